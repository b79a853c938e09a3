"""Files of a run as others might send them: a report or a watch page of them, or an error of our own."""

import json
import shutil
from itertools import islice

import pytest
from rich.console import Console

import verfedsv
from tests.fuzz.mutations import TEXTS, count_of_inputs, mutations_of_json
from tests.watch.runs import GrowingRun
from verfedsv.errors import VerfedsvError
from verfedsv.report.markdown import to_markdown
from verfedsv.report.reading import summarise
from verfedsv.report.terminal import brief
from verfedsv.settlement import Settlement, Terms, settle
from verfedsv.watch.follower import Follower

LINE = {"n_rounds": 2, "train_loss": 0.5, "test_loss": None, "train_accuracy": 0.75, "time": 1.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a small run with all that a report reads."""
    run = GrowingRun(tmp_path_factory.mktemp("fuzz") / "run")
    run.grow(4)
    run.close()
    valuation = verfedsv.value(run.folder)
    (run.folder / "valuation.json").write_text(valuation.to_json())
    payouts = settle(valuation, Terms.of("1000", "EUR", negative="zero"))
    (run.folder.parent / "payouts.json").write_text(payouts.to_json())
    return run.folder


@pytest.fixture
def run(whole, tmp_path):
    """Return a copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


def report(folder, settlement=None):
    """Make a report in every format but the page, which has the same texts; return whether there is one."""
    try:
        summary = summarise(folder, settlement=settlement)
    except VerfedsvError:
        return False
    json.loads(summary.to_json())
    to_markdown(summary).encode()
    console = Console(width=80)
    with console.capture() as captured:
        for line in brief(summary):
            console.print(line)
    captured.get().encode()
    return True


def watch(folder):
    """Look at a run once; what a follower does not foresee, it names by its type."""
    states = []
    Follower(folder, states.append).poll()
    json.loads(states[-1].to_json())
    assert not any("cannot be valued: " in problem for problem in states[-1].problems), states[-1].problems


def test_metrics(run):
    """Lines that cannot be read are left out, and never a reason to have no report."""
    path, line = run / "metrics.jsonl", json.dumps(LINE).encode()
    odd = (text.encode() for text in ("[]", "1", "null", '"x"', *TEXTS))
    for number, changed in enumerate([*odd, *islice(mutations_of_json(line), count_of_inputs(80))]):
        path.write_bytes(line + b"\n" + changed + b"\n" + line + b"\n")
        assert report(run), changed
        if number % 4 == 0:
            watch(run)


def test_a_valuation(run):
    """One that is damaged is named or refused, or, where it is of another transcript, not used."""
    path = run / "valuation.json"
    content = path.read_bytes()
    n_taken = 0
    for number, changed in enumerate(islice(mutations_of_json(content), count_of_inputs(120))):
        path.write_bytes(changed)
        n_taken += report(run)
        if number % 4 == 0:
            watch(run)
    assert n_taken < count_of_inputs(120)


def test_payouts(run, whole):
    """Others than those of the values are refused."""
    content = (whole.parent / "payouts.json").read_bytes()
    assert report(run, Settlement.from_json(content))
    for changed in islice(mutations_of_json(content), count_of_inputs(120)):
        try:
            settlement = Settlement.from_json(changed)
        except VerfedsvError:
            continue
        report(run, settlement)
