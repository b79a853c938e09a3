"""Whatever a statement, a settlement, an extract or a key from others holds, the answer is an error of our own.

A few hundred inputs each time; VERFEDSV_FUZZ=20000 tries that many of each kind.
"""

import contextlib
import json
from itertools import islice

import numpy as np
import pytest

from tests.fuzz.mutations import count_of_inputs, mutations_of_bytes, mutations_of_json
from tests.settlement.runs import make_run, sign
from verfedsv import Valuation, VerfedsvError, value
from verfedsv.settlement import Terms, settle
from verfedsv.settlement.audit import audit
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.extract import make_extract
from verfedsv.settlement.keys import new_keys, read_private_key, read_public_key
from verfedsv.settlement.result import Settlement
from verfedsv.settlement.statement import canonical
from verfedsv.transcript import Transcript

N_INPUTS = count_of_inputs(80)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a signed run, its key and an extract."""
    folder = tmp_path_factory.mktemp("fuzz")
    run = make_run(folder / "run", mode="asynchronous", n_rounds=2)
    for name in ("config.toml", "valuation.json"):
        (run / name).unlink()
    sign(run, folder / "statement.json")
    (folder / "telco.extract").write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    return folder


def inputs(original, seed):
    """Return damaged copies of the JSON in a file."""
    return islice(mutations_of_json(original.read_bytes(), seed), N_INPUTS)


def test_statements_by_others(place):
    """Signed again after they were changed, so that more than the signature is looked at."""
    key = read_private_key(place / "consortium.key")
    path = place / "changed.json"
    n_signed = 0
    for text in inputs(place / "statement.json", 0):
        path.write_bytes(text)
        with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
            content = json.loads(text)
            content.pop("signature", None)
            content["signature"] = key.sign(canonical(content)).hex()
            path.write_text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")
            n_signed += 1
        for arguments in ((path, {"run": place / "run"}), (place / "telco.extract", {"statement_path": path})):
            with contextlib.suppress(VerfedsvError):
                audit(arguments[0], **arguments[1], accept_settings=True)
    assert n_signed > N_INPUTS / 2


def test_settlements_by_others(place):
    """What can be read can also be shown."""
    original = place / "payouts.json"
    original.write_text(json.dumps(json.loads((place / "statement.json").read_text())["settlement"]))
    for text in inputs(original, 1):
        with contextlib.suppress(VerfedsvError):
            Settlement.from_json(text).to_csv()


def test_valuations_by_others(place):
    """What can be read can be settled, or not, and shown; and a run with such a file can be audited."""
    original, path = place / "original.json", place / "run" / "valuation.json"
    original.write_text(value(place / "run").to_json())
    for number, text in enumerate(inputs(original, 4)):
        with contextlib.suppress(VerfedsvError), np.errstate(all="ignore"):
            valuation = Valuation.from_json(text)
            paid = settle(valuation, Terms.of(1000, "EUR", negative="zero"), even_if_the_loss_rose=True)
            assert explain(paid, valuation)
            assert paid.to_csv()
        if number % 8 == 0:
            path.write_bytes(text)
            with contextlib.suppress(VerfedsvError):
                audit(place / "run", accept_settings=True)
    path.unlink()


def test_extracts_by_others(place):
    """With the statement that they belong to."""
    path = place / "changed.extract"
    for content in islice(mutations_of_bytes((place / "telco.extract").read_bytes(), 2), N_INPUTS):
        path.write_bytes(content)
        with contextlib.suppress(VerfedsvError):
            audit(path, statement_path=place / "statement.json")


def test_keys_by_others(tmp_path):
    """Of either kind, with some bytes changed, left out or added."""
    private, public = new_keys(tmp_path / "mine")
    for path, read in ((private, read_private_key), (public, read_public_key)):
        for content in islice(mutations_of_bytes(path.read_bytes(), 3), N_INPUTS):
            path.write_bytes(content)
            with contextlib.suppress(VerfedsvError):
                read(path)
