import io
import signal
import sys

import numba
import pytest
import typer
from rich.console import Console

from verfedsv.cli.progress import explain_interrupt, interrupts, progress_bar, stop_on_interrupt
from verfedsv.compiled import ANNOUNCER


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bar_count_and_time_keep_their_places(width):
    """For any text, which is cut at the end of the line."""
    plain, lines = Console(width=width, color_system=None), []
    with progress_bar(Console(file=io.StringIO(), force_terminal=True)) as bar:
        for text in (
            "training",
            "loss 0.3249, accuracy 84.91%; a client with a long name 41%, another 25%, and one more 11%",
        ):
            task = bar.add_task(text, total=720, completed=436)
            with plain.capture() as captured:
                plain.print(bar.get_renderable())
            bar.remove_task(task)
            lines.append(captured.get().splitlines())
    (short,), (long,) = lines
    assert short[: short.index("training")] == long[: long.index("loss")]
    assert short.index("436/720") == 11
    assert len(long) <= width
    assert long.endswith("…") == (width < 120)


def compile_two(module):
    """Compile and call two new functions of a module."""

    def loop(x):
        return x + 1

    for function in (loop, lambda x: x + 2):
        function.__module__ = module
        numba.njit(function)(1)


@pytest.mark.parametrize("is_interactive", [True, False])
def test_compiling_is_said_once(is_interactive, monkeypatch):
    """To people only, and of our own loops only."""
    monkeypatch.setattr(ANNOUNCER, "has_said", False)
    console = Console(width=120, file=io.StringIO(), force_interactive=is_interactive, force_terminal=True)
    with progress_bar(console):
        compile_two("theirs")
        assert "Compiling loops" not in console.file.getvalue()
        compile_two("verfedsv.own")
    assert console.file.getvalue().count("Compiling loops") == is_interactive


@pytest.mark.parametrize("is_terminal", [True, False])
def test_compiling_is_said_by_the_library_on_a_terminal(is_terminal, monkeypatch, capsys):
    """Who calls it from Python knows what is being waited for."""
    monkeypatch.setattr(ANNOUNCER, "has_said", False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    compile_two("verfedsv.own")
    said = "verfedsv: Compiling loops for this processor: some seconds, once on each machine.\n"
    assert capsys.readouterr().err == said * is_terminal


def test_an_interrupt_is_one_line(capsys):
    """And exit code 130."""
    with pytest.raises(typer.Exit) as caught, explain_interrupt(Console(width=80), "stopped; go on with --resume"):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    assert capsys.readouterr().out == "stopped; go on with --resume\n"


def test_an_interrupt_that_was_lost_is_found():
    """Compilation can swallow exceptions."""
    with interrupts() as check:
        check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()


def test_the_second_interrupt_does_not_wait():
    """The first only asks the training to stop."""
    with stop_on_interrupt() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
