"""Whatever a statement, a settlement, an extract or a key from others holds, the answer is an error of our own.

A few hundred inputs each time; VERFEDSV_FUZZ=20000 tries so many of each kind.
"""

import contextlib
import copy
import json
import os

import numpy as np
import pytest

from tests.settlement.runs import make_run, sign
from verfedsv import Valuation, VerfedsvError, value
from verfedsv.settlement import settle
from verfedsv.settlement.audit import audit
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.extract import make_extract
from verfedsv.settlement.keys import new_keys, read_private_key, read_public_key
from verfedsv.settlement.result import Settlement
from verfedsv.settlement.statement import canonical
from verfedsv.transcript import Transcript

N_INPUTS = int(os.environ.get("VERFEDSV_FUZZ", "80"))

ODD = [
    *(None, True, 0, -1, 2**63 - 1, 1e308, -1e308, 5e-324, 0.5),
    *("", "x", "\u202e", "=1", "a" * 5000, "/etc/passwd", "..", "nan", "1000.00", "verfedsv 9", "00" * 32),
    *([], {}, [[]], {"a": 1}, [1, 2, 3]),
]
RAW = ["NaN", "1e400", "-" + 400 * "9", '"\\u0000"', '"\\ud800"', 2000 * "[", '{"a": 1, "a": 1}', "01", "", "\x00"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a signed run, its key and an extract."""
    folder = tmp_path_factory.mktemp("fuzz")
    run = make_run(folder / "run", mode="asynchronous", n_rounds=2)
    for name in ("config.toml", "valuation.json"):
        (run / name).unlink()
    sign(run, folder / "statement.json")
    (folder / "telco.json").write_text(make_extract(Transcript.open(run), "telco").to_json())
    return folder


def places(content, at=()):
    """Yield the way to everything in a document, but the document."""
    children = content.items() if isinstance(content, dict) else enumerate(content)
    for name, child in children:
        yield (*at, name)
        if isinstance(child, dict | list):
            yield from places(child, (*at, name))


def mutated(content, rng):
    """Return a document of which one to three parts are replaced, left out, repeated or added."""
    result = copy.deepcopy(content)
    for _ in range(rng.integers(1, 4)):
        deepest = rng.integers(1, 5)
        ways = [way for way in places(result) if len(way) <= deepest]
        *way, last = ways[rng.integers(len(ways))]
        parent = result
        for name in way:
            parent = parent[name]
        odd = copy.deepcopy(ODD[rng.integers(len(ODD))])
        kind = rng.integers(5)
        if kind == 0:
            del parent[last]
        elif kind == 1 and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(parent[last]))
        elif kind == 1:
            parent[f"{last}_"] = odd
        else:
            parent[last] = odd
        if not isinstance(result, dict) or not result:
            return content
    return result


def damaged(text, rng):
    """Return the bytes of a document with some of them changed, or with something that is no JSON in it."""
    content = bytearray(text.encode())
    start = int(rng.integers(len(content)))
    if rng.integers(2):
        content[start : start + int(rng.integers(9))] = rng.bytes(int(rng.integers(9)))
        return bytes(content)
    start = text.find(": ", start) + 2
    end = min((text.find(mark, start) for mark in ",}]" if text.find(mark, start) > 0), default=len(text))
    return (text[:start] + RAW[rng.integers(len(RAW))] + text[end:]).encode("utf-8", "surrogatepass")


def inputs(original, rng):
    """Yield damaged copies of the JSON in a file."""
    text = original.read_text()
    content = json.loads(text)
    for number in range(N_INPUTS):
        if number % 4:
            yield json.dumps(mutated(content, rng)).encode()
        else:
            yield damaged(text, rng)


def test_statements_by_others(place):
    """Signed again after they were changed, so that more than the signature is looked at."""
    key = read_private_key(place / "consortium.key")
    path = place / "changed.json"
    n_signed = 0
    for text in inputs(place / "statement.json", np.random.default_rng(0)):
        path.write_bytes(text)
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            content = json.loads(text)
            content.pop("signature", None)
            content["signature"] = key.sign(canonical(content)).hex()
            path.write_text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")
            n_signed += 1
        for arguments in ((path, {"run": place / "run"}), (place / "telco.json", {"statement_path": path})):
            with contextlib.suppress(VerfedsvError):
                audit(arguments[0], **arguments[1], accept_settings=True)
    assert n_signed > N_INPUTS / 2


def test_settlements_by_others(place):
    """What can be read can also be shown."""
    original = place / "payouts.json"
    original.write_text(json.dumps(json.loads((place / "statement.json").read_text())["settlement"]))
    for text in inputs(original, np.random.default_rng(1)):
        with contextlib.suppress(VerfedsvError):
            Settlement.from_json(text).to_csv()


def test_valuations_by_others(place):
    """What can be read can be settled, or not, and shown; and a run with such a file can be audited."""
    original, path = place / "original.json", place / "run" / "valuation.json"
    original.write_text(value(place / "run").to_json())
    for number, text in enumerate(inputs(original, np.random.default_rng(4))):
        with contextlib.suppress(VerfedsvError), np.errstate(all="ignore"):
            valuation = Valuation.from_json(text)
            paid = settle(valuation, 1000, "EUR", negative="zero", even_if_the_loss_rose=True)
            assert explain(paid, valuation)
            assert paid.to_csv()
        if number % 8 == 0:
            path.write_bytes(text)
            with contextlib.suppress(VerfedsvError):
                audit(place / "run", accept_settings=True)
    path.unlink()


def test_extracts_by_others(place):
    """With the statement that they belong to."""
    path = place / "changed.json"
    for text in inputs(place / "telco.json", np.random.default_rng(2)):
        path.write_bytes(text)
        with contextlib.suppress(VerfedsvError):
            audit(path, statement_path=place / "statement.json")


def test_keys_by_others(tmp_path):
    """Of either kind, with some bytes changed, left out or added."""
    rng = np.random.default_rng(3)
    private, public = new_keys(tmp_path / "mine")
    for path, read in ((private, read_private_key), (public, read_public_key)):
        whole = path.read_bytes()
        for _ in range(N_INPUTS):
            content = bytearray(whole)
            for position in rng.integers(len(whole), size=int(rng.integers(1, 4))):
                content[position : position + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
            path.write_bytes(content)
            with contextlib.suppress(VerfedsvError):
                read(path)
