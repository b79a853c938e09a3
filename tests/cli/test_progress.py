import signal

import pytest
import typer
from rich.console import Console

from verfedsv.cli.progress import explain_interrupt, interrupts, progress_bar, stop_on_interrupt


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bar_count_and_time_keep_their_places(width):
    """For any text, which is cut at the end of the line."""
    console = Console(width=width, force_terminal=True, color_system=None)
    bar = progress_bar(console)
    lines = []
    for text in (
        "training",
        "loss 0.3249, accuracy 84.91%; a client with a long name 41%, another 25%, and one more 11%",
    ):
        task = bar.add_task(text, total=720, completed=436)
        with console.capture() as captured:
            console.print(bar.get_renderable())
        bar.remove_task(task)
        lines.append(captured.get().splitlines())
    (short,), (long,) = lines
    assert short[: short.index("training")] == long[: long.index("loss")]
    assert short.index("436/720") == 11
    assert len(long) <= width
    assert long.endswith("…") == (width < 120)


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
