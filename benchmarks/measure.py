"""Timing, the machine, and tables."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil

from experiments import Table, results
from experiments.page import markdown

Result = TypeVar("Result")


def timed(function: Callable[[], Result], repeat: int = 1) -> tuple[Result, float]:
    """Return the result and the median seconds of `repeat` calls, the first of several not being counted."""
    took = []
    for _ in range(repeat + 1 if repeat > 1 else 1):
        begin = time.perf_counter()
        result = function()
        took.append(time.perf_counter() - begin)
    return result, sorted(took[-repeat:])[repeat // 2]


def in_turn(*functions: Callable[[], object], repeat: int) -> list[float]:
    """Return the median seconds of each function, all called in turn; their first calls are not counted."""
    took = np.empty((repeat + 1, len(functions)))
    for repetition in took:
        for index, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            repetition[index] = time.perf_counter() - begin
    medians: list[float] = np.median(took[1:], axis=0).tolist()
    return medians


def machine() -> str:
    """Return the name of the machine, its vectors, its memory, and the versions that matter."""
    known = Path("/proc/cpuinfo")
    vectors = "with AVX-512" if known.exists() and "avx512f" in known.read_text() else "without AVX-512"
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("numpy", "numba", "shapiq", "cmfrec") if find_spec(name)
    )
    return f"{results.machine()}, {vectors}, {memory:.0f} GiB of memory, {packages}"


def commit() -> str:
    """Return the commit of this checkout, with a plus if files were changed."""
    git = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    return markdown(Table(header, rows))


def seconds(value: float) -> str:
    """Return a time in the unit that suits it."""
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def times(value: float) -> str:
    """Return a ratio with two significant digits and thousands separators."""
    digits = len(str(int(value))) - 2
    return f"{round(value, -max(digits, 0)):,.0f}" if value >= 10 else f"{value:.1f}"
