from rich.console import Console

from tests.report.valuations import make_large_summary, make_summary
from verfedsv.report.brief import brief


def render(summary) -> str:
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        for line in brief(summary):
            console.print(line, highlight=False)
    return captured.get()


def test_names_do_nothing_in_the_terminal():
    """Neither as markup nor as what a terminal obeys, in sentences and in what is said of the order."""
    names = ["[bold]bank[/]", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "x" * 500]
    text = render(make_summary([4.0, 3.0, 2.99, -2.0], 0.02, clients=names))
    assert all(letter.isprintable() for letter in text.replace("\n", "").replace("\N{NO-BREAK SPACE}", ""))
    assert "[bold]bank[/] contributed" in text
    assert "x" * 61 not in text.replace("\n", "")


def test_of_many_clients_some_are_named():
    """And those that did harm, always."""
    text = render(make_large_summary(200))
    assert "bank 1 contributed" in text
    assert "raised the loss: " in text
    assert "and 189 more" in text


def test_groups_that_cannot_be_ranked_follow():
    """Each in a line, after the sentence that speaks of them."""
    text = render(make_summary([3.0, 2.99, 2.98, 1.0], 0.02))
    assert text.rstrip().endswith("bank, telco and hospital")
