import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

import verfedsv
from tests.cli.inprocess import call
from tests.report.valuations import make_valuation
from tests.settlement.runs import make_run, record
from verfedsv.cli.settle import show
from verfedsv.settlement import Terms, settle
from verfedsv.settlement.payouts import Basis, pay
from verfedsv.watch.follower import Follower

BUDGET = ("--budget", "1000", "--currency", "EUR")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a valued run, in which the shop's value is negative."""
    return make_run(tmp_path_factory.mktemp("runs") / "credit")


def test_a_table_is_printed_with_the_sum(folder):
    """By decreasing payout, with the rule and what happened to negative values."""
    done = call("settle", folder, *BUDGET, "--negative", "zero")
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert [line.split()[0] for line in lines[1:4]] == ["bank", "telco", "shop"]
    assert next(line for line in lines if line.startswith("Sum")).split() == ["Sum", "1,000.00"]
    assert "Rule: shares, in proportion to values." in lines
    assert "Negative values: 1, counted as zero." in lines
    assert " to " in lines[1]
    assert done.stderr.startswith("note: The loss was still falling at the end")


def test_json_and_files_hold_the_same_payouts(folder, tmp_path):
    """Printed, written as JSON and written as CSV."""
    done = call("settle", folder, *BUDGET, "--negative", "deduct", "--json", "-o", tmp_path / "p.json")
    printed = json.loads(done.stdout)
    assert (tmp_path / "p.json").read_text() == done.stdout
    assert sum(round(100 * float(payout)) for payout in printed["payouts"]) == 100_000
    assert printed["clients"] == ["bank", "telco", "shop"]
    assert float(printed["payouts"][2]) < 0
    call("settle", folder, *BUDGET, "--negative", "deduct", "-o", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["payout"] for row in rows[:4]] == [*printed["payouts"], "1000.00"]
    assert rows[2]["note"] == "negative value deducted; pays in"
    assert {"run": "credit", "signed": "no, this is a draft"}.items() <= {
        row["client"]: row["payout"] for row in rows[4:]
    }.items()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rule", "floor", "--floor", "300"], "at least 300.00 EUR for each"),
        (["--rule", "cap", "--cap", "600"], "at most 600.00 EUR for each"),
        (["--rule", "floor-and-cap", "--floor", "10", "--cap", "600"], "at least 10.00 and at most 600.00 EUR for"),
        (["--fixed-part", "20%"], "20% of the budget shared equally first"),
        (["--rule", "shapley-positive"], "in proportion to positive values"),
    ],
)
def test_rules_and_what_is_said_of_them(folder, options, said):
    """All of them pay the whole budget."""
    done = call("settle", folder, *BUDGET, *([] if "shapley-positive" in options else ["--negative", "zero"]), *options)
    assert done.returncode == 0, done.stderr
    assert said in " ".join(done.stdout.split())
    assert "1,000.00" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BUDGET], "'shop' is negative; choose what happens to negative values with the argument negative (--"),
        ([*BUDGET, "--negative", "refuse"], "refused: the value of 'shop' is negative"),
        (["--budget", "1000.001", "--currency", "EUR"], "budget may have 2 digits after the point in EUR"),
        (["--budget", "1000", "--currency", "euro"], "currency must be a code of three letters"),
        ([*BUDGET, "--rule", "floor"], "rule 'floor' needs a floor"),
        ([*BUDGET, "--rule", "floor", "--floor", "400", "--negative", "zero"], "3 floors of 400.00 are 1,200.00"),
        ([*BUDGET, "--fixed-part", "20"], "must be a percentage"),
        ([*BUDGET, "-o", "payouts.xlsx"], "its name must end in .csv or .json"),
        ([*BUDGET, "-o", "nowhere/payouts.csv"], "there is no folder nowhere"),
        (["--currency", "EUR"], "Missing option '--budget'"),
    ],
)
def test_what_cannot_be_settled_ends_with_a_message_and_code_2(folder, arguments, message):
    """In one line, without a traceback, and nothing is written."""
    done = call("settle", folder, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_a_valuation_can_be_settled_by_itself(folder):
    """Its JSON is all that is needed."""
    one = call("settle", folder, *BUDGET, "--negative", "zero")
    two = call("settle", folder / "valuation.json", *BUDGET, "--negative", "zero")
    assert one.stdout == two.stdout
    assert call("settle", folder / "config.toml", *BUDGET).returncode == 2
    assert "there is no transcript in" in call("settle", folder / "nowhere", *BUDGET).stderr


def test_a_run_that_has_grown_is_valued_first(tmp_path):
    """With the agreed settings, not those of the old valuation, which anybody may have made and which is kept."""
    folder = make_run(tmp_path / "run")
    (folder / "config.toml").unlink()
    (folder / "valuation.json").write_text(verfedsv.value(folder, "exact", seed=3).to_json())
    before = (folder / "valuation.json").read_bytes()
    labels, clients = np.arange(40) % 2, ["bank", "telco", "shop"]
    record(folder, n_rounds=2, recorder=verfedsv.Recorder(folder / "transcript", labels, clients, resume=True))
    done = call("settle", folder, *BUDGET, "--negative", "zero", "--json")
    expected = verfedsv.value(folder)
    assert json.loads(done.stdout)["values"] == expected.values.tolist()
    assert json.loads(done.stdout)["head"] == expected.head
    assert (folder / "valuation.json").read_bytes() == before


def test_values_by_settings_that_were_not_agreed_are_not_settled(tmp_path):
    """Unless an option accepts them; for a valuation elsewhere, the agreement is unknown."""
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text(verfedsv.value(folder, seed=3).to_json())
    for path in (folder, folder / "valuation.json"):
        done = call("settle", path, *BUDGET, "--negative", "zero")
        assert done.returncode == 2
        assert (
            "not computed with the agreed settings: seed is 3 and not 0; train and value the run as agreed"
            in done.stderr
        )
        assert call("settle", path, *BUDGET, "--negative", "zero", "--accept-settings").returncode == 0
    (folder / "valuation.json").rename(tmp_path / "v.json")
    done = call("settle", tmp_path / "v.json", *BUDGET, "--negative", "zero")
    assert done.returncode == 2
    assert "the agreed settings are unknown, " in done.stderr
    assert "these differ from the defaults: seed is 3 and not 0" in done.stderr
    assert call("settle", tmp_path / "v.json", *BUDGET, "--negative", "zero", "--accept-settings").returncode == 0


@pytest.mark.parametrize("has_config", [True, False])
def test_a_run_that_has_grown_is_valued_alike_everywhere(tmp_path, has_config):
    """Settling, report and watch use the same settings, so payouts match the report."""
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text(verfedsv.value(folder, "exact", seed=3).to_json())
    if not has_config:
        (folder / "config.toml").unlink()
    labels, clients = np.arange(40) % 2, ["bank", "telco", "shop"]
    record(folder, n_rounds=2, recorder=verfedsv.Recorder(folder / "transcript", labels, clients, resume=True))
    payouts = tmp_path / "p.json"
    assert call("settle", folder, *BUDGET, "--negative", "zero", "-o", payouts).returncode == 0
    assert json.loads(payouts.read_text())["values"] == verfedsv.value(folder).values.tolist()
    done = call("report", folder, "--settlement", payouts, "-o", tmp_path / "report.md")
    assert done.returncode == 0, done.stderr
    states = []
    Follower(folder, states.append).poll()
    table, n_rounds = states[-1].table, states[-1].n_rounds
    place = [heading.text for heading in table.headings].index("Total value")
    shown = {row[0].text: row[place].number / n_rounds for row in table.rows}
    assert [shown[client] for client in clients] == pytest.approx(json.loads(payouts.read_text())["values"], rel=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": ["shop", "telco", "bank"]}, "the settlement was changed: clients is "),
        ({"payouts": ["9000.00", "0.00", "-8000.00"]}, "payout of client 'bank' is 9000.00, but the terms"),
        ({"notes": ["agreed by all", "", ""]}, "note of client 'bank' is agreed by all"),
        ({"highest": ["9000.00", "1.00", "1.00"]}, "highest payout of client 'bank'"),
        ({"budget": "2000.00"}, "payout of client 'bank'"),
    ],
)
def test_a_report_shows_only_payouts_that_its_values_give(folder, tmp_path, change, message):
    """Names, amounts, ranges and notes are computed again, not read from the file."""
    path = tmp_path / "p.json"
    call("settle", folder, *BUDGET, "--negative", "zero", "-o", path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = call("report", folder, "--settlement", path, "-o", tmp_path / "report.md")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "report.md").exists()


def test_a_damaged_valuation_is_named(tmp_path):
    """With its path and what to do, also if it was named on the command line."""
    folder = make_run(tmp_path / "run")
    path = folder / "valuation.json"
    fields = json.loads(path.read_text())
    for text in ("{", json.dumps(fields | {"values": [0.0, 0.9, 0.0]})):
        path.write_text(text)
        done = call("settle", folder, *BUDGET)
        assert done.returncode == 2
        assert f"{path} cannot be used: " in done.stderr
        assert "Delete it, and the run is valued again" in done.stderr
        assert f"{path} cannot be used: " in call("settle", path, *BUDGET).stderr


def test_a_changed_transcript_is_not_settled(tmp_path):
    """Even if there is a valuation."""
    folder = make_run(tmp_path / "run")
    path = folder / "transcript" / "uploads-00001.arrows"
    content = bytearray(path.read_bytes())
    content[-600] ^= 1
    path.write_bytes(content)
    done = call("settle", folder, *BUDGET, "--negative", "zero")
    assert done.returncode == 2
    assert "the transcript was changed: round 6" in done.stderr


def test_names_cannot_draw_on_the_terminal(folder, tmp_path):
    """Formulas and markup are shown literally, and names with control characters are refused."""
    fields = json.loads((folder / "valuation.json").read_text())
    fields["clients"] = ['=HYPERLINK("http://evil")', "[red]<script>alert(1)</script>", "x" * 100]
    (tmp_path / "v.json").write_text(json.dumps(fields))
    done = call("settle", tmp_path / "v.json", *BUDGET, "--negative", "zero", "-o", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    assert "[red]<" in done.stdout
    assert "1,000.00" in done.stdout
    assert (tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()[1].startswith("\"'=HYPERLINK(")
    done = call("settle", tmp_path / "v.json", *BUDGET)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    fields["clients"][0] = "a\x1b[2Jb\nc"
    (tmp_path / "v.json").write_text(json.dumps(fields))
    assert r"received 'a\x1b[2Jb\nc'" in call("settle", tmp_path / "v.json", *BUDGET).stderr
    fields["clients"][0] = "\ud800"
    (tmp_path / "v.json").write_text(json.dumps(fields))
    assert "half of a surrogate pair" in call("settle", tmp_path / "v.json", *BUDGET).stderr


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(folder, width):
    """With long names and large amounts, names shrink, notes move below, and finally each client has a paragraph."""
    fields = json.loads((folder / "valuation.json").read_text())
    fields["clients"] = ["north" * 20, "south" * 20, "east" * 20]
    valuation = verfedsv.Valuation.from_json(json.dumps(fields))
    result = settle(valuation, Terms.of(1_000_000, "EUR", negative="zero"))
    console = Console(width=width, file=io.StringIO())
    show(console, result, valuation)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert ("client" in lines[0]) == (width >= 80)
    text = " ".join(" ".join(lines).split())
    for amount in (*result.payouts, *result.lowest, *result.highest, 100_000_000):
        assert result.currency.shown(amount) in text
    for share, part in zip(result.shares, result.parts, strict=True):
        assert f"{share:.2%}".replace("-", "\N{MINUS SIGN}") in text
        assert f"{part:.2%}" in text
    assert all(word in text for word in ("negative", "value", "counted", "as", "zero", "range"))


@pytest.mark.parametrize("width", [20, 80])
def test_there_are_no_shares_of_a_damage(width):
    """Neither in the table nor in the paragraphs of a narrow terminal, nor in files."""
    valuation = make_valuation([-3.0, 1.0])
    result = pay(Terms.of(100, "EUR", negative="zero"), Basis.of(valuation))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        show(console, result, valuation)
    assert "of values" not in captured.get()
    assert "100.00" in captured.get()
    assert json.loads(result.to_json())["shares"] == [None, None]


def test_a_valuation_of_an_unfinished_training_is_not_settled(tmp_path):
    """The file that `verfedsv value` wrote says so."""
    folder = make_run(tmp_path / "run")
    content = json.loads((folder / "valuation.json").read_text()) | {"finished": False}
    (tmp_path / "v.json").write_text(json.dumps(content))
    done = call("settle", tmp_path / "v.json", "--budget", "100", "--currency", "EUR", "--negative", "zero")
    assert done.returncode == 2
    assert "is of a training that had not ended" in done.stderr


def test_what_was_accepted_is_said(tmp_path):
    """A note names the settings that were not agreed."""
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text(verfedsv.value(folder, semivalue="banzhaf").to_json())
    terms = ["--budget", "100", "--currency", "EUR", "--negative", "zero"]
    done = call("settle", folder, *terms, "--accept-settings")
    assert done.returncode == 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "Accepted, although the values were not computed with the agreed settings: semivalue is banzhaf" in said
    assert "Values: banzhaf, not Shapley values." in said


def test_doubts_come_before_the_payouts(tmp_path):
    """Whoever reads the table has read them."""
    folder = make_run(tmp_path / "run", n_rounds=4)
    done = call("settle", folder, "--budget", "100", "--currency", "EUR", "--negative", "zero")
    assert done.returncode == 0
    assert 0 <= done.stdout.index("The training was stopped after") < done.stdout.index("bank")
