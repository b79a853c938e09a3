import numpy as np
from rich.console import Console

from verfedsv.report.terminal import values_table
from verfedsv.shapley import ShapleyResult


def render(clients, values) -> str:
    values = np.asarray(values, dtype=float)
    result = ShapleyResult(values, np.full(len(values), 1e-9), "certified", "exact", "shapley", 1)
    console = Console(width=90, file=None, force_terminal=False, color_system=None, record=True, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(values_table(clients, result, title="A round"))
    return captured.get()


def test_clients_are_sorted_by_value():
    """The table lists value, share and error of each client, the largest first."""
    lines = render(["bank", "telco", "shop"], [0.1, 0.3, -0.1]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["telco", "bank", "shop"]
    assert lines[2].split()[1:4] == ["3.0000e-01", "100.00%", "1e-09"]
    assert lines[4].split()[2] == "-33.33%"


def test_bars_are_in_proportion():
    """The longest bar fills its column, half the value half of it; negative values stand left of zero."""
    lines = render(["a", "b"], [0.4, 0.2]).splitlines()
    assert lines[2].count("█") == 2 * lines[3].count("█") == 24
    lines = render(["a", "b"], [0.4, -0.4]).splitlines()
    assert lines[2].rindex("█") > lines[3].rindex("█")


def test_names_are_not_markup():
    """A client's name is printed as it is, whatever is in it."""
    assert "[red]bank[/red] [link=x]" in render(["[red]bank[/red] [link=x]"], [1.0])


def test_nothing_happened():
    """All values zero: no share, no bar, no crash."""
    assert "nan%" in render(["a", "b"], [0.0, 0.0])
