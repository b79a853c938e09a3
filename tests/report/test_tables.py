import numpy as np
import pytest
from rich.console import Console

from tests.report.valuations import make_summary, make_valuation
from verfedsv.report.amounts import Amounts
from verfedsv.report.tables import values_table


def render(clients, values, width=90, errors=1e-9) -> list[str]:
    result = make_valuation(np.asarray(values) / 4, np.asarray(errors) / 4, clients=clients, n_rounds=4)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(values_table(result, width))
    return captured.get().splitlines()


def test_clients_are_sorted_by_value():
    """The table lists share and total value of each client with their errors, the largest first."""
    lines = render(["bank", "telco", "shop"], [0.1, 0.3, -0.1])
    assert [line.split()[0] for line in lines[1:]] == ["telco", "bank", "shop"]
    assert lines[1].split()[1:7] == ["100.00%", "±", "<0.01%", "0.3000", "±", "1.0"]
    assert lines[3].split()[1] == "-33.33%"


def test_values_are_those_over_all_rounds():
    """As in the report, whatever the number of rounds; the header says so."""
    result = make_valuation([0.0103, 0.002], 1e-5, n_rounds=75)
    console = Console(width=90, color_system=None)
    with console.capture() as captured:
        console.print(values_table(result, 90))
    lines = captured.get().splitlines()
    assert "total value ± error" in lines[0]
    assert "0.7725 ± 0.00075" in lines[1]
    assert Amounts.of(make_summary([0.0103, 0.002], 1e-5, n_rounds=75)).value(0.7725) == "0.7725"


def test_errors_of_shares_are_how_far_they_can_be_off():
    """Of two clients each can be off by as much as the other; what is not known is said."""
    lines = render(["bank", "telco"], [0.3, 0.1], errors=np.array([0.005, 0.02]))
    # 0.305 / (0.305 + 0.08) is the most that the bank's share can be.
    assert lines[1].split()[1:4] == ["75.00%", "±", "4.23%"]
    assert lines[2].split()[1:4] == ["25.00%", "±", "4.23%"]
    assert lines[1].index("±") == lines[2].index("±")
    assert render(["bank"], [0.3], errors=np.nan)[1].split()[1:4] == ["100.00%", "±", "unknown"]
    assert "150.00% ± unknown" in render(["bank", "telco"], [0.3, -0.1], errors=np.array([0.005, 0.5]))[1]


def test_bars_are_in_proportion():
    """The longest bar fills its column, half the value half of it."""
    lines = render(["a", "b"], [0.4, 0.2])
    assert lines[1].count("█") == 2 * lines[2].count("█") == 24


def test_bars_of_negative_values_run_to_the_left():
    """Both sides share one scale and one zero; what is too small to show is not shown."""
    lines = render(["a", "b", "c"], [0.4, -1e-9, -0.4])
    assert lines[1].count("█") == lines[3].count("█") == 12
    assert lines[1].index("█") == lines[3].rindex("█") + 1
    assert "█" not in lines[2]


@pytest.mark.parametrize("width", [36, 40, 60, 80])
def test_numbers_are_never_cut(width):
    """In a narrow terminal bars and names give way, and then values come below the shares."""
    lines = render(["a client with a long name", "b"], [0.4, -0.25], width, errors=0.03)
    assert "266.67% ± 145%" in lines[1]
    assert "0.4000 ± 0.030" in lines[1 if width >= 60 else 2]
    assert max(map(len, lines)) <= width


def test_names_are_not_markup():
    """A client's name is printed as it is, whatever is in it."""
    assert "[red]bank[/red] [link=x]" in render(["[red]bank[/red] [link=x]"], [1.0])[1]


def test_there_are_no_shares_of_a_damage():
    """If the clients raised the loss, the table has values alone."""
    lines = render(["a", "b"], [0.1, -0.4])
    assert "%" not in "".join(lines)
    assert "-0.4000" in lines[2].replace("\N{MINUS SIGN}", "-")


def test_one_unknown_error_leaves_the_errors_of_shares_unknown():
    """A share is part of a sum with that client; the errors of the other values are known."""
    lines = render(["a", "b", "c"], [0.6, 0.3, 0.1], errors=np.array([0.001, 0.001, np.nan]))
    assert "60.00% ± unknown  0.6000 ±  0.0010" in lines[1]
    assert "10.00% ± unknown" in lines[3]


def test_nothing_happened():
    """All values zero: no share, no bar, no crash."""
    assert " - " in render(["a", "b"], [0.0, 0.0])[1]
