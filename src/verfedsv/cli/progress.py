"""The progress of a command, and what is printed when Ctrl-C ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from verfedsv.cli.options import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from verfedsv.cli.output import explain_warnings


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Yield a bar with count, time and a text, which is cut where the terminal ends."""
    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    fixed = [kind(table_column=Column(no_wrap=True)) for kind in (MofNCompleteColumn, TimeRemainingColumn)]
    columns = BarColumn(bar_width=10), *fixed, text
    bar = Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_interactive)
    from verfedsv.compiled import announce_by  # imports numba, as those who show progress do anyway

    with bar, announce_by(_say(console)):
        yield bar


def _say(console: Console) -> Callable[[str], None]:
    """Return a function that prints a text to people, and to nobody else."""

    def say(text: str) -> None:
        if console.is_interactive:
            console.print(text, style="dim", highlight=False)

    return say


def follow(bar: Progress, task: TaskID, check: Callable[[], None]) -> Callable[[int, int], None]:
    """Return a callback, (done, total), that moves a bar; `check` raises if Ctrl-C was pressed."""

    def progress(done: int, total: int) -> None:
        check()
        bar.update(task, completed=done, total=total)

    return progress


@contextmanager
def explain_interrupt(console: Console, message: str | Callable[[], str]) -> Iterator[None]:
    """End with a message, or what a function returns then, and exit code 130 if Ctrl-C is pressed within."""
    try:
        yield
    except KeyboardInterrupt:
        text = message if isinstance(message, str) else message()
        console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def working(console: Console, stopped: str | Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Yield a function that raises if Ctrl-C was pressed; end with a message then, and print warnings at the end."""
    with explain_interrupt(console, stopped), explain_warnings(console), interrupts() as check:
        yield check
        check()


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C was pressed.

    Ctrl-C raises at once too, but that exception may be lost in foreign code, as during compilation. The first one
    waits for blocks of samples that are being computed; a second does not.
    """
    pressed = list[bool]()

    def press() -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    with _on_interrupt(press):
        yield check


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C interrupts as usual."""
    pressed = list[bool]()

    def press() -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    with _on_interrupt(press):
        yield lambda: bool(pressed)


@contextmanager
def _on_interrupt(press: Callable[[], None]) -> Iterator[None]:
    """Call a function when Ctrl-C is pressed within, or when the process is told to end, as by systemd."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda _number, _frame: press()) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
