import numpy as np
import pytest
from rich.console import Console

from tests.report.valuations import make_large_summary, make_summary, make_valuation
from verfedsv.report.amounts import Amounts
from verfedsv.report.summary import Payout, SettlementSummary, build
from verfedsv.report.tables import contributions, details, payouts, quarters, side_by_side
from verfedsv.report.terminal import brief, to_rich


def printed(summary) -> str:
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        for line in brief(summary):
            console.print(line, highlight=False)
    return captured.get()


def test_names_do_nothing_in_the_terminal():
    """They are neither markup nor control sequences, in sentences and in the ranking."""
    names = ["[bold]bank[/]", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "x" * 500]
    text = printed(make_summary([4.0, 3.0, 2.99, -2.0], 0.02, clients=names))
    assert all(letter.isprintable() for letter in text.replace("\n", "").replace("\N{NO-BREAK SPACE}", ""))
    assert "[bold]bank[/]" in text
    assert "x" * 61 not in text.replace("\n", "")


def test_of_many_clients_some_are_named():
    """Clients that did harm are always named."""
    text = printed(make_large_summary(200))
    assert "bank 1 " in text
    assert "clinic 20 " in text
    assert "and 179 more" in text


def test_groups_that_cannot_be_ranked_follow():
    """Each has a line, after the sentence on them."""
    text = printed(make_summary([3.0, 2.99, 2.98, 1.0], 0.02))
    assert text.rstrip().endswith("bank, telco and hospital")


def lines_of(table, width=90) -> list[str]:
    """Return the lines of a table in a terminal of that width."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(to_rich(table, width), highlight=False)
    return captured.get().splitlines()


def render(clients, values, width=90, errors=1e-9) -> list[str]:
    """Return the table of values, totals over four rounds."""
    result = make_valuation(np.asarray(values) / 4, np.asarray(errors) / 4, clients=clients, n_rounds=4)
    return lines_of(contributions(build(result), "terminal"), width)


def test_clients_are_sorted_by_value():
    """The table lists share and total value of each client with their errors, the largest first."""
    lines = render(["bank", "telco", "shop"], [0.1, 0.3, -0.1])
    assert [line.split()[0] for line in lines[1:]] == ["telco", "bank", "shop"]
    assert lines[1].split()[1:7] == ["100.00%", "±", "<0.01%", "0.3000", "±", "1.0"]
    assert lines[3].split()[1] == "\N{MINUS SIGN}33.33%"
    assert "-" not in "".join(lines)


def test_values_are_those_over_all_rounds():
    """The table shows totals, as the report does, whatever the number of rounds."""
    lines = lines_of(contributions(build(make_valuation([0.0103, 0.002], 1e-5, n_rounds=75)), "terminal"))
    assert "total value ± error" in lines[0]
    assert "0.7725 ± 0.00075" in lines[1]
    assert Amounts(make_summary([0.0103, 0.002], 1e-5, n_rounds=75)).value(0.7725) == "0.7725"


def test_errors_of_shares_are_how_far_they_can_be_off():
    """Two shares can be off by the same; unknown errors are called unknown."""
    lines = render(["bank", "telco"], [0.3, 0.1], errors=np.array([0.005, 0.02]))
    # 0.305 / (0.305 + 0.08) is the most that the bank's share can be.
    assert lines[1].split()[1:4] == ["75.00%", "±", "4.23%"]
    assert lines[2].split()[1:4] == ["25.00%", "±", "4.23%"]
    assert lines[1].index("±") == lines[2].index("±")
    assert render(["bank"], [0.3], errors=np.nan)[1].split()[1:4] == ["100.00%", "±", "unknown"]
    assert "150.00% ± unknown" in render(["bank", "telco"], [0.3, -0.1], errors=np.array([0.005, 0.5]))[1]


def test_bars_are_in_proportion():
    """The longest bar fills its column, and half the value fills half of it."""
    lines = render(["a", "b"], [0.4, 0.2])
    assert lines[1].count("█") == 2 * lines[2].count("█") == 24


def test_bars_of_negative_values_run_to_the_left():
    """Both sides share one scale and one zero; tiny values have no bar."""
    lines = render(["a", "b", "c"], [0.4, -1e-9, -0.4])
    assert lines[1].count("█") == lines[3].count("█") == 12
    assert lines[1].index("█") == lines[3].rindex("█") + 1
    assert "█" not in lines[2]


@pytest.mark.parametrize("width", [36, 40, 60, 80])
def test_numbers_are_never_cut(width):
    """In a narrow terminal bars and names are shortened, and then each client has a paragraph."""
    lines = render(["a client with a long name", "b"], [0.4, -0.25], width, errors=0.03)
    text = "\n".join(lines)
    assert "266.67% ± 145%" in text
    assert "0.4000 ± 0.030" in text
    assert ("a client with a long name\n  share 266.67%" in text) == (width < 60)
    assert max(map(len, lines)) <= width


def test_names_are_not_markup():
    """A client's name is printed as it is."""
    assert "[red]bank[/red] [link=x]" in render(["[red]bank[/red] [link=x]"], [1.0])[1]


def test_there_are_no_shares_of_a_damage():
    """If the clients raised the loss, the table has only values."""
    lines = render(["a", "b"], [0.1, -0.4])
    assert "%" not in "".join(lines)
    assert "-0.4000" in lines[2].replace("\N{MINUS SIGN}", "-")


def test_one_unknown_error_leaves_the_errors_of_shares_unknown():
    """A share depends on the sum, which includes that client; the errors of the other values stay known."""
    lines = render(["a", "b", "c"], [0.6, 0.3, 0.1], errors=np.array([0.001, 0.001, np.nan]))
    assert lines[1].split()[:7] == ["a", "60.00%", "±", "unknown", "0.6000", "±", "0.0010"]
    assert "10.00% ± unknown" in lines[3]


def test_nothing_happened():
    """If all values are zero, there are no shares and no bars."""
    lines = render(["a", "b"], [0.0, 0.0])
    assert [line.split()[0] for line in lines] == ["client", "a", "b"]
    assert "%" not in "".join(lines)
    assert "█" not in "".join(lines)


def test_bars_can_be_left_out_by_no_number():
    """Trainings side by side share one scale, and each client has one line with all its numbers."""
    modes = {"synchronous": make_summary([0.4, 0.2]), "asynchronous": make_summary([0.2, 0.4])}
    lines = lines_of(side_by_side(modes), 80)
    assert lines[1].split()[:4] == ["bank", "66.67%", "±", "0.00%"]
    assert lines[1].count("█") == lines[2].count("█") == 12 + 6
    assert max(map(len, lines)) <= 80


PAID = SettlementSummary(
    "10.00", "EUR", (), (Payout("bank", "7.50", "7.40", "7.60", "cap"), Payout("x", "2.50", None, None, ""))
)


@pytest.mark.parametrize("width", [30, 80, 120])
def test_every_table_of_a_report_can_be_printed(width):
    """All texts are printed at any width, and the sum comes last."""
    summary = make_summary([3.0, 1.0], 0.01, completed=True, settings=[("data", "name", "adult")])
    tables = [quarters(summary), payouts(PAID), *(section.table for section in details(summary))]
    for table in tables:
        text = "".join("".join(lines_of(table, width)).split())
        for row in table.rows:
            assert all("".join(cell.text.split()) in text for cell in row)
    assert lines_of(payouts(PAID), 80)[-1].split() == ["Sum", "10.00"]
