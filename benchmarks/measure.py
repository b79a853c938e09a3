"""Timing, the machine, and tables."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import psutil

from verfedsv.shapley.blocks import available_threads

Result = TypeVar("Result")


def timed(function: Callable[[], Result], repeat: int = 1) -> tuple[Result, float]:
    """Return the result and the median seconds of `repeat` calls, the first of several not being counted."""
    took = []
    for _ in range(repeat + 1 if repeat > 1 else 1):
        begin = time.perf_counter()
        result = function()
        took.append(time.perf_counter() - begin)
    return result, sorted(took[-repeat:])[repeat // 2]


def machine() -> str:
    """Return one sentence that names the machine and the versions that matter."""
    model = platform.processor() or "unknown processor"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "shapiq", "cmfrec"))
    return (
        f"{model}, {available_threads()} cores, {memory:.0f} GiB of memory, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    rule = "|".join(["---", *["---:"] * (len(header) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, *rows]).replace("|\n", f"|\n|{rule}|\n", 1)


def seconds(value: float) -> str:
    """Return a time in the unit that suits it."""
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def times(value: float) -> str:
    """Return a ratio with two significant digits and thousands separators."""
    digits = len(str(int(value))) - 2
    return f"{round(value, -max(digits, 0)):,.0f}" if value >= 10 else f"{value:.1f}"
