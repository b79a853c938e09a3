import json
import os
import re
import shutil
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from tests.settlement.runs import ASYNCHRONOUS, CLIENTS, CONFIG, diverge, make_run, record, sign
from verfedsv import InputError, Recorder, TranscriptError, Valuation, value
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement import Terms, settle
from verfedsv.settlement.audit import audit
from verfedsv.settlement.extract import make_extract
from verfedsv.settlement.keys import new_keys, read_private_key, read_public_key
from verfedsv.settlement.statement import Statement, canonical, make_statement
from verfedsv.transcript import Transcript


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a run with a statement in its folder; not to be changed."""
    folder = make_run(tmp_path_factory.mktemp("original") / "run")
    sign(folder)
    return folder


@pytest.fixture
def run(original, tmp_path):
    """Return a copy of it, and of the keys beside it."""
    shutil.copytree(original.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture
def key(run):
    """Return the private key that the statement was signed with."""
    return read_private_key(run.parent / "consortium.key")


def flip(path, position, bit):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_the_work_of_a_valuation_is_no_evidence(run):
    """What an interrupted one left in the transcript's folder is neither signed nor an addition."""
    work = run / "transcript" / ".valuing" / "valuation-1"
    work.mkdir(parents=True)
    (work / "piece-0.bin").write_bytes(b"some")
    assert audit(run).passes
    sign(run)
    shutil.rmtree(work.parent)
    assert audit(run).passes


def test_a_true_statement_passes(run):
    """The checks are signature, chain, files, what was agreed, values and payouts, in this order."""
    result = audit(run / "statement.json", public_key=read_public_key(run.parent / "consortium.pub"))
    assert result.difference is None
    assert [check.name for check in result.checks] == [
        *("signature", "chain", "files", "agreed", "values", "books", "payouts", "terms")
    ]
    assert result.notes == ()
    assert audit(run).passes


def test_a_statement_says_what_is_needed(run):
    """It has head, configuration, version, values, payouts, settings, and a hash of every file."""
    stated = Statement.from_json((run / "statement.json").read_bytes())
    valuation = value(run)
    assert stated.content["head"] == Transcript.open(run).head
    assert stated.content["configuration"] == (run / "config.toml").read_text()
    assert stated.content["package"].startswith("verfedsv ")
    assert stated.basis.values == tuple(valuation.values)
    assert stated.basis.books == valuation.books
    assert stated.content["settings"] == valuation.settings.as_dict()
    assert sum(stated.settlement.payouts) == 100_000
    there = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert set(stated.content["files"]) == there - {"statement.json"}
    assert (run / "statement.json").stat().st_size < 5000


def test_any_flipped_bit_is_found(run):
    """200 random bits, flipped one at a time, in every file of the folder, the statement included."""
    rng = np.random.default_rng(0)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) == 9
    sizes = np.array([path.stat().st_size for path in files], dtype=float)
    for number in range(200):
        # By size, so that all bits are equally likely; and file by file, so that small ones have their turn.
        path = files[rng.choice(len(files), p=sizes / sizes.sum())] if number % 2 else files[number // 2 % len(files)]
        position, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        flip(path, position, bit)
        try:
            found = audit(run)
        except InputError:
            assert path.name == "statement.json"
        else:
            assert not found.passes, (path, position, bit)
            assert "\n" not in found.difference
        flip(path, position, bit)
    assert audit(run).passes


def test_a_changed_upload_is_named_by_round_and_client(run):
    """The difference names more than the file."""
    path = run / "transcript" / "uploads-00001.arrows"
    content = path.read_bytes()
    wanted = np.concatenate([u.embeddings for u in Transcript.open(run) if getattr(u, "client", "") == "telco"])[80:120]
    flip(path, content.index(wanted.tobytes()), 0)
    assert audit(run).difference == "the transcript was changed: round 3, client 'telco'"


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "'metrics.jsonl' was changed"),
        (lambda run: (run / "checkpoints" / "server.npz").unlink(), "'checkpoints/server.npz' is missing"),
        (lambda run: (run / "transcript" / "labels.arrow").unlink(), "'transcript/labels.arrow' is missing"),
        (
            lambda run: (run / "chain-00001.bin").write_text("!"),
            "there are two transcripts, in .*: move one of them away",
        ),
        (
            lambda run: shutil.copy(
                run / "transcript" / "uploads-00001.arrows", run / "transcript" / "uploads-0.arrows"
            ),
            "'uploads-0.arrows' is named like a file of the transcript, but is not one: move it away",
        ),
        (lambda run: (run / "checkpoints" / "b.npz").write_text("!"), "'checkpoints/b.npz' was added: it is not .*"),
        (lambda run: (run / "transcript" / "report.html").write_text("!"), "'transcript/report.html' was added: .*"),
        (lambda run: (run / "transcript" / ".lock").write_text("!"), "'transcript/.lock' was added: .*"),
        (lambda run: (run / "config.toml").write_text(""), "'config.toml' was changed"),
        (lambda run: go_on(run), "the transcript is not the one that was signed: signed are 6 rounds, found 8 rounds"),
        (
            lambda run: record_anew(run),
            "the transcript is not the one that was signed: signed are 6 rounds, found 6 rounds",
        ),
        (
            lambda run: record_another(run),
            "'transcript/labels.arrow' was changed, or is that of another run",
        ),
        (lambda run: cut_last_round(run), "the transcript is not .* signed are 6 rounds, found 5 rounds"),
        (
            lambda run: cut(run, "uploads-00001.arrows", 9000),
            "the transcript is complete up to round 2, .* was cut off, .*",
        ),
        (lambda run: cut(run, "uploads-00001.arrows", 40), "the transcript is complete up to round 5, .* cut off, .*"),
        (lambda run: cut(run, "chain-00001.bin", 40), "the transcript is complete up to round 5, .* cut off, .*"),
        (lambda run: flip(run / "transcript" / "labels.arrow", 40, 0), "'transcript/labels.arrow' was changed, or .*"),
        (
            lambda run: flip(run / "transcript" / "transcript.json", 40, 0),
            "'transcript/transcript.json' was changed, .*",
        ),
        (
            lambda run: flip(run / "transcript" / "chain-00001.bin", 48 * 3 + 20, 0),
            ".* changed: round 2 of .*, or its entry in chain-00001.bin",
        ),
        (lambda run: record(run), "there are two transcripts, in .*"),
    ],
)
def test_every_change_of_the_folder_is_said_in_one_line(run, change, difference):
    """Changed, missing and added files; a transcript that has grown, was cut off, or was rewritten."""
    change(run)
    found = audit(run)
    assert not found.passes
    assert re.fullmatch(difference, found.difference), found.difference


def go_on(run):
    record(run, n_rounds=2, recorder=Recorder(run / "transcript", np.arange(40) % 2, CLIENTS, resume=True))


def record_anew(run):
    before = (run / "transcript" / "transcript.json").read_bytes()
    shutil.rmtree(run / "transcript")
    with patch("verfedsv.transcript.description.Description.to_json", lambda _self: before):
        record(run / "transcript", seed=1)


def record_another(run):
    """Replace the transcript by that of another run."""
    shutil.rmtree(run / "transcript")
    with Recorder(run / "transcript", [0, 1], ["a", "b"]) as recorder:
        recorder.log([0, 1], {"a": [0.1, 0.2], "b": [0.3, 0.4]})


def cut(run, name, n_bytes):
    path = run / "transcript" / name
    path.write_bytes(path.read_bytes()[:-n_bytes])


def cut_last_round(run):
    folder = run / "transcript"
    chain = (folder / "chain-00001.bin").read_bytes()
    end = int.from_bytes(chain[-96:-88], "little")
    (folder / "chain-00001.bin").write_bytes(chain[:-48])
    (folder / "uploads-00001.arrows").write_bytes((folder / "uploads-00001.arrows").read_bytes()[:end])
    Transcript.open(run).verify()


def test_what_is_made_from_a_run_may_come_after_the_statement(run):
    """Reports, tables, other statements and other files are named in a note, and are no difference."""
    (run / "credit.html").write_text("<html></html>")
    (run / "notes").mkdir()
    (run / "notes" / "p.csv").write_text("!")
    (run / "payouts.json").write_text(settle(value(run), Terms.of(5, "EUR", negative="zero")).to_json())
    sign(run, run / "second.json")
    found = audit(run)
    assert found.passes
    assert "not part of the statement: 'credit.html', 'notes/p.csv', 'payouts.json' and 'second.json'" in found.notes
    assert audit(run / "second.json").passes


def resign(folder, key, **changes):
    """Sign a statement again with other content, as a dishonest owner of the key could."""
    content = {**Statement.from_json((folder / "statement.json").read_bytes()).content, **changes}
    (folder / "statement.json").write_bytes(Statement(content, key.sign(canonical(content))).to_json())
    return content


def test_a_false_round_is_named(run, key):
    """Round 5 of telco in valuation.json, signed as it is, is not what its uploads give."""
    fields = json.loads((run / "valuation.json").read_text())
    fields["per_round"][4][1] += 1e-3
    fields["per_round"][5][1] -= 1e-3
    (run / "valuation.json").write_text(json.dumps(fields))
    resign(run, key, files=files_of(run))
    assert audit(run).difference.startswith("round 5, client 'telco': valuation.json says ")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda c: {"errors": [1.0, *c["errors"][1:]]},
            "error of client 'bank': the statement says 1.0, valuation.json says ",
        ),
        (lambda c: {"errors": [None, *c["errors"][1:]]}, "error of client 'bank': the statement says null, "),
        (lambda c: {"shares": [0.9, *c["shares"][1:]]}, "share of client 'bank': the statement says 0.9, "),
        (lambda _: {"n_rounds": 7}, "n_rounds: the statement says 7, the transcript says 6"),
        (lambda _: {"clients": ["bank", "telco", "store"]}, 'clients: the statement says ["bank", "telco", "store"], '),
        (lambda _: {"error_kind": "confidence"}, "error_kind: the statement says "),
        (lambda _: {"loss": "squared"}, 'loss: the statement says "squared", the transcript says "logistic"'),
        (lambda _: {"mode": "asynchronous"}, "mode: the statement says "),
        (lambda _: {"n_samples": 41}, "n_samples: the statement says 41, valuation.json says 40"),
        (lambda _: {"n_unseen": 1}, "n_unseen: the statement says 1, valuation.json says 0"),
        (lambda _: {"method": "exact"}, 'method: the statement says "exact", valuation.json says "closed-form"'),
        (lambda _: {"configuration": None}, "configuration: the statement says null, the run gives "),
        (
            lambda c: {"settings": {**c["settings"], "seed": 1}},
            "settings, seed: the statement says 1, valuation.json says 0",
        ),
        (lambda _: {"estimator_errors": [0.0] * 3}, "estimator error of client 'bank': the statement says 0.0, "),
        (lambda _: {"completion_errors": [None] * 3}, "completion error of client 'bank': the statement says null"),
        (lambda c: {"errors": [c["errors"][0] * 1.1, *c["errors"][1:]]}, "error of client 'bank': the statement says"),
        (lambda c: {"values": [c["values"][0] * 2, *c["values"][1:]]}, "value of client 'bank': the statement says"),
        (lambda _: {"server_value": 0.1}, "server_value: the statement says 0.1, valuation.json says 0.0"),
        (lambda _: {"server_error": None}, "server_error: the statement says null, valuation.json says 0.0"),
        (lambda c: {"books": {**c["books"], "end": 0.1}}, "loss at the end: the statement says 0.1, "),
        (
            lambda c: {"settlement": {**c["settlement"], "books": {**c["books"], "start": 5.0}}},
            "the settlement in the statement: books, start is 5.0, but the terms and values give 0.69",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "payouts": ["1000.00", "0.00", "0.00"]}},
            "the settlement in the statement: payout of client 'bank' is 1000.00, but the terms and values give ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "lowest": ["1000.00", "0.00", "0.00"]}},
            "the settlement in the statement: lowest payout of client 'bank' is 1000.00, but the terms ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "notes": ["paid in cash", "", ""]}},
            "the settlement in the statement: note of client 'bank' is paid in cash, but the terms and values give no",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "shares": [0.1, 0.1, 0.8]}},
            "the settlement in the statement: share of client 'bank' is 0.1, ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "errors": [0.0, 0.0, 0.0]}},
            "the settlement in the statement: error of client 'bank' is 0.0, ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "rule": "floor", "floor": "900.00"}},
            "the settlement in the statement is not valid: 3 floors of 900.00 are 2,700.00, more than the budget",
        ),
    ],
)
def test_false_statements_are_found_although_they_are_signed(run, key, change, difference):
    """The owner of the key can sign anything, so the audit computes it again."""
    resign(run, key, **change(Statement.from_json((run / "statement.json").read_bytes()).content))
    assert audit(run).difference.startswith(difference)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_statement_of_another_version_with_other_errors_passes_with_reservation(run, key, factor):
    """Tighter or wider bounds are no forgery, but the audit does not pass without reservation."""
    valuation = json.loads((run / "valuation.json").read_text())
    content = Statement.from_json((run / "statement.json").read_bytes()).content
    older = {name: [factor * x for x in content[name]] for name in ("errors", "estimator_errors")}
    stated = replace(Valuation.from_json(json.dumps(valuation)), estimator_errors=np.array(older["estimator_errors"]))
    paid = settle(stated, Terms.of(1000, "EUR", negative="zero")).to_fields()
    (run / "valuation.json").write_text(stated.to_json().replace(valuation["package"], "verfedsv 0.0.1"))
    resign(run, key, **older, package="verfedsv 0.0.1", settlement=paid, files=files_of(run))
    found = audit(run)
    assert (found.difference, found.passes) == (None, False)
    assert found.reservations[0].startswith("error of client 'bank': the statement says ")
    note = next(note for note in found.notes if "was made with verfedsv 0.0.1, this is verfedsv " in note)
    assert "values agree within 0" in note
    resign(run, key, package=valuation["package"])
    assert audit(run).difference.startswith("error of client 'bank': the statement says ")


def test_a_true_statement_of_another_version_passes(run, key):
    """A note names both versions."""
    resign(run, key, package="verfedsv 0.0.1")
    found = audit(run)
    assert found.passes
    assert any("was made with verfedsv 0.0.1, this is verfedsv " in note for note in found.notes)


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """Return a run of small batches, whose values have large errors of completion; not to be changed."""
    rng = np.random.default_rng(2)
    labels = np.arange(200) % 2
    features = [(2 * labels - 1)[:, None] * size + rng.normal(size=(200, 3)) for size in (1.0, 0.6, 0.3)]
    weights = [np.zeros(3) for _ in features]
    folder = tmp_path_factory.mktemp("completed") / "run"
    with Recorder(folder / "transcript", labels, CLIENTS) as recorder:
        for _ in range(12):
            batch = np.sort(rng.permutation(200)[:40])
            embeddings = [x[batch] @ w for x, w in zip(features, weights, strict=True)]
            recorder.log(batch, dict(zip(CLIENTS, embeddings, strict=True)))
            sign_of = 2 * labels[batch] - 1
            slope = -sign_of / (1 + np.exp(sign_of * sum(embeddings)))
            weights = [w - x[batch].T @ slope / 40 for x, w in zip(features, weights, strict=True)]
    (folder / "valuation.json").write_text(value(folder).to_json())
    return folder


def moved(valuation, by):
    """Return a valuation with other values, which are still the means of its rounds."""
    by = np.asarray(by)
    return replace(valuation, values=valuation.values + by, per_round=valuation.per_round + by)


@pytest.mark.parametrize("package", [None, "verfedsv 0.0.1"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_no_value_can_be_moved_within_the_error_of_completion(completed, tmp_path, package, is_kept):
    """A tenth of that error moves more than 10 euros of 1,000, which is found whatever version is claimed."""
    shutil.copytree(completed, tmp_path / "run")
    run = tmp_path / "run"
    true = Valuation.from_json((run / "valuation.json").read_text())
    by = 0.1 * true.completion_errors[0] * np.array([-1.0, 1.0, 0.0])
    false = moved(true, by)
    honest, forged = (settle(valuation, Terms.of(1000, "EUR", negative="zero")) for valuation in (true, false))
    assert honest.payouts[0] - forged.payouts[0] > 1000
    if package is not None:
        false = replace(false, package=package)
    if is_kept:
        (run / "valuation.json").write_text(false.to_json())
    else:
        (run / "valuation.json").unlink()
    place = sign(run, change=lambda *_: (false, forged))
    if package is not None:
        resign(run, read_private_key(tmp_path / "consortium.key"), package=package)
    found = audit(place)
    assert found.difference.startswith("value of client 'bank': the statement says ")
    assert ("audit it with that" in found.difference) == (package is not None)


def test_values_within_the_error_of_the_estimator_pass_with_reservation_only(completed, tmp_path):
    """Another version, or a choice that rounding tipped, may give them; no difference beyond rounding is silent."""
    shutil.copytree(completed, tmp_path / "run")
    run = tmp_path / "run"
    (run / "valuation.json").unlink()
    true = value(run)
    largest = np.abs(true.values).max()
    for size, passes in ((1e-10 * largest, True), (0.5 * true.estimator_errors[1:].min() + 1e-8 * largest, False)):
        false = moved(true, [0.0, size, -size])
        paid = settle(false, Terms.of(1000, "EUR"))
        place = sign(run, tmp_path / f"{passes}.json", change=lambda *_: (false, paid))  # noqa: B023
        found = audit(place, run=run)
        assert found.difference is None
        assert found.passes == passes
        assert [text.split(":")[0] for text in found.reservations] == [] if passes else ["value of client 'telco'"]


def test_large_changes_that_are_taken_back_excuse_nothing(tmp_path):
    """Two clients whose changes cancel for a round could move their values unseen, if their sizes set the tolerance."""
    signs = np.resize([1.0, -1.0], 40)
    columns = {name: weight * signs for name, weight in (("bank", 1.0), ("shop", 0.05), ("mart", 0.02))}
    run = tmp_path / "run"
    with Recorder(run, (signs + 1) / 2, list(columns)) as recorder:
        for t in range(1, 9):
            jump = {"shop": 1e8 * signs, "mart": -1e8 * signs} if t == 3 else {}
            recorder.log(range(40), {name: 0.2 * t * own + jump.get(name, 0.0) for name, own in columns.items()})
    true = value(run)
    for by in ([0.0, 0.01, -0.01], [0.0, 0.01, 0.0]):  # the books of the second do not add up
        false = moved(true, by)
        (run / "valuation.json").write_text(false.to_json())
        paid = settle(false, Terms.of(1000, "EUR", negative="zero"))
        place = sign(run, tmp_path / "statement.json", change=lambda *_: (false, paid))  # noqa: B023
        assert audit(place, run=run).difference.startswith("value of client 'shop': the statement says ")
        assert not audit(run).passes
        place.unlink()


def test_books_that_do_not_add_up_are_found_without_the_run(run, tmp_path):
    """A client that has only its extract can add them up."""
    true = Valuation.from_json((run / "valuation.json").read_text())
    false = moved(true, [1.0, *[0.0] * (len(true.clients) - 1)])
    place = sign(run, tmp_path / "false.json", change=lambda *_: (false, None))
    client = true.clients[0]
    (tmp_path / "own.extract").write_bytes(make_extract(Transcript.open(run), client).to_bytes())
    found = audit(tmp_path / "own.extract", statement_path=place)
    assert found.difference.startswith("what is unaccounted for: the statement says 0.0, its books give -")


def test_files_that_change_during_an_audit_are_found(run, monkeypatch):
    """What is valued is read after what is verified, and might be something else."""
    place = sign(run)

    def value_and_change(*arguments, **options):
        (run / "valuation.json").write_text("{}")
        return value(*arguments, **options)

    monkeypatch.setattr("verfedsv.settlement.audit.value", value_and_change)
    assert audit(place).difference.startswith("files were changed during the audit")


def test_files_that_nobody_compares_are_not_read(run):
    """A sparse file can be of any size."""
    place = sign(run)
    with (run / "later.bin").open("wb") as file:
        file.truncate(2**42)
    found = audit(place)
    assert found.passes
    assert any("'later.bin'" in note for note in found.notes)


def test_a_rank_that_auto_would_not_choose_is_found(completed, tmp_path):
    """Choices of completion are taken from valuation.json only where rounding decides them."""
    shutil.copytree(completed, tmp_path / "run")
    run = tmp_path / "run"
    true = Valuation.from_json((run / "valuation.json").read_text())
    rank = true.completion[0].rank + 2
    false = replace(value(run, rank=rank), settings=true.settings)
    assert false.completion[0].rank == rank
    (run / "valuation.json").write_text(false.to_json())
    place = sign(run, change=lambda *_: (false, settle(false, Terms.of(1000, "EUR", negative="zero"))))
    assert audit(place).difference.startswith("value of client ")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda c: {"server_value": c["server_value"] * 1.001}, "value of the server: the statement says -36.467, "),
        (lambda _: {"server_error": 1.0}, "error of the server: the statement says 7, the transcript gives "),
        (lambda c: {"books": {**c["books"], "start": 90.0}}, "loss at the start: the statement says 90, "),
        (lambda c: {"books": {**c["books"], "end": 0.5}}, "loss at the end: the statement says 0.5, the transcript "),
        (lambda c: {"books": {**c["books"], "clients": 25.0}}, "books, clients: the statement says 25.0"),
        (lambda c: {"books": {**c["books"], "server": 0.0}}, "books, server: the statement says 0.0"),
        (lambda c: {"books": {**c["books"], "end": c["books"]["end"] * (1 + 1e-13)}}, None),
    ],
)
def test_books_are_computed_again(tmp_path, change, difference):
    """The loss at both ends, and what the server changed; a diverged training can be audited, with notes."""
    run = diverge(tmp_path / "run")
    place = sign(run, pay_server="hub")
    content = Statement.from_json(place.read_bytes()).content
    assert content["settlement"]["clients"] == ["bank", "telco", "hub"]
    changes = {"settlement": None, **change(content)}
    resign(run, read_private_key(tmp_path / "consortium.key"), **changes)
    found = audit(place)
    if difference is not None:
        assert found.difference.startswith(difference)
    else:
        assert found.passes, found.difference
        assert "The loss rose over the training, from 0.6931 to 12.92: the model became worse." in [
            reason.text for reason in found.reasons if reason.weight == "alarm"
        ]
        assert "server" in [reason.kind for reason in found.reasons if reason.weight == "doubt"]
        assert json.loads(found.to_json())["reasons"][0]["kind"] == "loss"


def test_a_payment_to_the_server_is_audited(tmp_path):
    """Its payout must follow from its value, and that it is paid is part of what was signed."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    (run / "config.toml").unlink()
    place = sign(run, pay_server="hub")
    assert audit(place).passes, audit(place).difference
    paid = Statement.from_json(place.read_bytes()).content["settlement"]
    assert paid["payouts"][3] == "0.00"
    key = read_private_key(tmp_path / "consortium.key")
    false = {"payouts": ["600.00", "200.00", "100.00", "100.00"]}
    for change in (false, {"pay_server": "shop"}, {"pay_server": None}, {"values": [*paid["values"][:3], 1.0]}):
        resign(run, key, settlement={**paid, **change})
        assert audit(place).difference.startswith("the settlement in the statement")


def test_both_audits_say_on_what_terms_is_paid_and_warn_of_the_servers_name(tmp_path):
    """The fixed part, what the server gets, and that its name looks like that of a client."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    (run / "config.toml").unlink()
    place = sign(run, pay_server="t\u0435lco", fixed_part="50%", rule="cap", cap=600)
    part = tmp_path / "telco.json"
    part.write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    for found in (audit(place), audit(part, statement_path=place)):
        assert found.passes, found.difference
        said = next(check.said for check in found.checks if check.name == "terms")
        assert said == (
            "cap, in proportion to values, at most 600.00 EUR for each; the server is paid 125.00 EUR for its own "
            "part, as 't\u0435lco'; 50% of the budget shared equally first; negative values count as zero"
        )
        texts = [reason.text for reason in found.reasons]
        assert r"'t\u0435lco' mixes Cyrillic and Latin letters that look alike: make sure who that is." in texts
        assert r"'telco' and 't\u0435lco' look alike: make sure who is who." in texts


@pytest.mark.parametrize("has_config", [True, False])
def test_settings_that_were_not_agreed_are_accepted_only_if_the_reader_says_so(tmp_path, has_config):
    """Another rank or seed can favour any client; the agreed ones are those of config.toml, or the defaults."""
    run = make_run(tmp_path / "run")
    if not has_config:
        (run / "config.toml").unlink()
    (run / "valuation.json").unlink()
    shopped = value(run, rank=1, regularization=100.0, seed=7)
    paid = settle(shopped, Terms.of(1000, "EUR", negative="zero"), accept_settings=True)
    place = sign(run, change=lambda *_: (shopped, paid))
    said = (
        "the values were not computed with the agreed settings: rank is 1 and not auto, regularization is 100.0 and "
        "not auto, seed is 7 and not 0; "
    )
    assert audit(place).difference == f"{said}to accept that, add --accept-settings"
    (tmp_path / "telco.json").write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    assert audit(tmp_path / "telco.json", statement_path=place).difference.startswith(said)
    found = audit(place, accept_settings=True)
    assert found.passes, found.difference
    assert f"{said[:-2]}; accepted, as asked" in found.notes
    place.unlink()
    (run / "valuation.json").write_text(shopped.to_json())
    assert audit(run).difference.startswith(said)
    assert audit(run, accept_settings=True).passes


def test_a_configuration_that_cannot_be_read_differs(run):
    """It cannot be compared with what was agreed."""
    (run / "statement.json").unlink()
    (run / "config.toml").write_text("[valuation\n")
    assert "config.toml is not valid TOML" in audit(run).difference


PLAN = {"step": {"kind": "gradient descent", "rate": 0.5, "decay": "constant"}, "n_planned": 6, "intercept": False}


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("rate = 0.5", "rate = 0.05", "step is .*0.05.* and not .*0.5"),
        ("rounds = 6", "rounds = 60", "n_planned is 60 and not 6"),
        ("rate = 0.5", "rate = 0.5\nintercept = true", "intercept is True and not False"),
        ('name = "adult"', 'name = "sector"', "loss is softmax and not logistic"),
        (
            "[output]",
            "[[client]]\nname = 'ship'\nrandom_level = 1\n[output]",
            "client 'ship' is in only one of the two",
        ),
        ("[output]", "[valuation]\nrank = 3\n[output]", "differs from what .* was agreed: rank is 3 and not auto"),
        ("rounds = 6", ASYNCHRONOUS, "mode is asynchronous and not synchronous"),
    ],
)
def test_a_configuration_that_contradicts_the_transcript_differs(tmp_path, before, after, difference):
    """It could be edited once the values are known; the transcript, which has the plan, could not."""
    run = make_run(tmp_path / "run", **PLAN)
    found = audit(run)
    assert found.passes, found.difference
    said = (
        "valuation: default settings; step: kind gradient descent, rate 0.5, decay constant; rounds: 6; intercept: no"
    )
    assert [check.said for check in found.checks if check.name == "agreed"] == [said]
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace(before, after))
    assert re.search(difference, audit(run).difference)
    (run / "config.toml").unlink()
    found = audit(run)
    assert found.passes
    assert "there is no config.toml, so what was agreed is what the transcript says" in found.notes


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"step": None}, "agreed, step: the statement says null, the transcript says"),
        ({"n_planned": 5}, "agreed, n_planned: the statement says 5, the transcript says 6"),
        ({"intercept": True}, "agreed, intercept: the statement says true, the transcript says false"),
        ({"head": {}}, 'agreed, head, kind: the statement says "not stated", the transcript says "sum"'),
        ({"valuation": {}}, 'agreed, valuation, method: the statement says "not stated", the transcript says "auto"'),
        ({"more": 1}, 'agreed, more: the statement says 1, the transcript says "not stated"'),
        ({"bank gets at least half": None}, "agreed, bank gets at least half: the statement says null, the transcript"),
    ],
)
def test_both_audits_hold_a_statement_to_what_was_agreed(tmp_path, change, difference):
    """Settings of the valuation, head, step and plan are in the first link of the chain, and so in every extract."""
    run = make_run(tmp_path / "run", **PLAN)
    place, part = sign(run), tmp_path / "telco.extract"
    part.write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    agreed = Statement.from_json(place.read_bytes()).content["agreed"]
    assert agreed == Transcript.open(run).description.agreed
    resign(run, read_private_key(tmp_path / "consortium.key"), agreed={**agreed, **change})
    assert audit(place).difference.startswith(difference)
    assert audit(part, statement_path=place).difference.startswith(difference)


def test_settings_of_the_transcript_are_the_agreed_ones(tmp_path):
    """They replace the defaults, and a configuration cannot change them afterwards."""
    run = make_run(tmp_path / "run", valuation={"method": "exact"})
    (run / "valuation.json").write_text(value(run, "auto").to_json())
    assert audit(run).difference.startswith(
        "the values were not computed with the agreed settings: method is auto and not exact"
    )
    (run / "valuation.json").write_text(value(run, "exact").to_json())
    assert audit(run).passes
    (run / "config.toml").write_text(CONFIG)
    assert "differs from what the transcript says was agreed: method is auto and not" in audit(run).difference


def test_an_offset_that_was_not_agreed_on_is_found(tmp_path):
    """The reader may accept it: with it, a server can move value from one client to another."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("intercept = true", "intercept = false"))
    place, part = sign(run), tmp_path / "telco.json"
    part.write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    told = "it was agreed that the server has no intercept, but the transcript has an offset; "
    assert audit(place).difference == f"{told}to accept that, add --accept-settings"
    found = audit(place, accept_settings=True)
    assert found.passes, found.difference
    assert f"{told}accepted, as asked" in found.notes
    found = audit(part, statement_path=place)
    assert found.passes
    assert any(note.startswith("the server adds an offset, and the tr") for note in found.notes)
    (run / "config.toml").write_text(config)
    assert audit(sign(run)).passes


def test_an_offset_where_the_transcript_excludes_one_is_found_by_both_audits(tmp_path):
    """A recorder refuses to write it, and a server that writes its own transcript is found out."""
    with pytest.raises(InputError, match="it was agreed that the server adds no offset"):
        record(tmp_path / "none", mode="asynchronous", intercept=False)
    with patch("verfedsv.transcript.recorder.Recorder._as_offset", lambda _self, offset, *_: offset):
        run = make_run(tmp_path / "run", mode="asynchronous", intercept=False)
    (run / "config.toml").unlink()
    place, part = sign(run), tmp_path / "telco.json"
    part.write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    for path, options in ((place, {}), (part, {"statement_path": place})):
        assert audit(path, **options).difference.startswith("it was agreed that the server has no intercept, but the")
        assert audit(path, accept_settings=True, **options).passes


def files_of(run):
    return RunFolder(run).hash_files(leave_out=run / "statement.json")


def test_an_unfinished_training_is_signed_and_audited_as_such(tmp_path):
    """Statement and settlement state the planned number of rounds, and the audit repeats it."""
    run = make_run(tmp_path / "run", n_rounds=4)
    with pytest.raises(InputError, match="the settlement does not state that it is of 4 of 6 rounds; settle the run"):
        sign(run)
    place = sign(run, change=lambda valuation, paid: (valuation, replace(paid, n_planned=6)))
    said = "The training was stopped after 4 of 6 rounds: the values are those of an unfinished training."
    found = audit(place)
    assert found.passes, found.difference
    assert said in [reason.text for reason in found.reasons]
    (tmp_path / "telco.json").write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    found = audit(tmp_path / "telco.json", statement_path=place)
    assert said in [reason.text for reason in found.reasons]
    key = read_private_key(tmp_path / "consortium.key")
    resign(run, key, n_planned=4)
    assert audit(place).difference == "n_planned: the statement says 4, the run gives 6"
    content = resign(run, key, n_planned=6)
    resign(run, key, settlement={**content["settlement"], "n_planned": None})
    assert audit(place).difference == "the settlement in the statement does not say that 6 rounds were planned"
    place.unlink()
    assert "the training was stopped after 4 of 6 rounds" in audit(run).notes


def test_clients_that_were_declared_absent_are_named(tmp_path):
    """This holds with and without a statement; other clients are not named."""
    with Recorder(tmp_path / "run", [0, 1], ["bank", "telco", "shop"]) as recorder:
        recorder.log([0, 1], {"bank": [-1.0, 1.0], "telco": [0.0, 0.5], "shop": [0.0, 0.1]})
        recorder.log([0, 1], {"bank": [-2.0, 2.0], "shop": [0.0, 0.2]}, absent=["telco"])
        recorder.log([0, 1], {"bank": [-3.0, 3.0]}, absent=["shop", "telco"])
    told = "declared absent: 'telco' in 2 and 'shop' in 1 of 3 rounds; ask them whether that is so"
    assert told in audit(tmp_path / "run").notes
    assert told in audit(sign(tmp_path / "run")).notes


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_clients_that_were_no_members_are_named(tmp_path, is_synchronous):
    """Leaving and joining again would otherwise hide what an absence shows; so would joining late."""
    with Recorder(tmp_path / "run", [0, 1], ["bank", "telco"]) as recorder:
        for t in range(6):
            if t == 1:
                recorder.leave("telco", time=t)
            if t == 5:
                recorder.join("telco", time=t)
                recorder.join("shop", time=t)
            uploads = {name: [-1.0 - t, 1.0 + t] for name in recorder.members}
            if is_synchronous:
                recorder.log([0, 1], uploads)
            else:
                for name, embeddings in uploads.items():
                    recorder.update(name, [0, 1], embeddings, time=t)
                recorder.stamp(time=t + 0.5)
    told = "not a member: 'shop' in 5 and 'telco' in 4 of 6 rounds; ask them whether that is so"
    assert told in audit(tmp_path / "run").notes
    assert told in audit(sign(tmp_path / "run")).notes
    own = tmp_path / "own.extract"
    own.write_bytes(make_extract(Transcript.open(tmp_path / "run"), "telco").to_bytes())
    told = "client 'telco' was not a member in 4 of 6 rounds: if it took part, its uploads are missing"
    assert told in audit(own).notes


def test_a_training_that_is_still_running_is_not_signed(run):
    """This holds although everything recorded so far is valid."""
    recorder = Recorder(run / "transcript", np.arange(40) % 2, CLIENTS, resume=True)
    with pytest.raises(InputError, match="the training is still running, 6 rounds so far, so it is not signed yet"):
        sign(run, run.parent / "new.json")
    recorder.close()
    sign(run, run.parent / "new.json")


def test_a_run_in_which_nothing_was_recorded_cannot_be_audited(tmp_path):
    """It is an error, and does not pass."""
    Recorder(tmp_path / "run", [0, 1], ["a", "b"]).close()
    with pytest.raises(InputError, match=r"no round was recorded in .*run, so there is nothing to audit"):
        audit(tmp_path / "run")


def test_the_signature_is_of_one_key(run):
    """Another key than expected, and any change of the statement, is found."""
    new_keys(run.parent / "other")
    found = audit(run, public_key=read_public_key(run.parent / "other.pub"))
    assert found.difference.startswith("the statement is signed with another key: ")
    path = run / "statement.json"
    text = path.read_text()
    for changed in (text.replace('"n_rounds": 6', '"n_rounds": 9'), text.replace("1000.00", "1000.01")):
        path.write_text(changed)
        assert audit(run).difference == "the statement was changed after it was signed"
    for changed in (text + "\n", text.replace('": ', '":  ', 1)):
        path.write_text(changed)
        assert audit(run).difference == "the statement was changed after it was signed"
    path.write_text(text.replace('"head"', '"head": "", "head"', 1))
    with pytest.raises(InputError, match="'head' is repeated"):
        audit(run)
    path.write_text(text.replace('"signature": "', '"signature": " '))
    with pytest.raises(InputError, match="the statement is damaged: signature"):
        audit(run)


def test_a_statement_finds_its_run(run, tmp_path):
    """It is searched where it was when it was signed, beside the statement, and where --run says."""
    place = sign(run, tmp_path / "elsewhere.json")
    assert audit(place).passes
    shutil.move(run, tmp_path / "moved")
    with pytest.raises(InputError, match="say where it is with --run"):
        audit(place)
    assert audit(place, run=tmp_path / "moved").passes
    with pytest.raises(InputError, match="there is no folder"):
        audit(place, run=tmp_path / "run")
    shutil.move(place, tmp_path / "moved" / "elsewhere.json")
    assert audit(tmp_path / "moved" / "elsewhere.json").passes


def test_a_run_without_a_statement_is_checked_as_far_as_can_be(run):
    """Its chain and its values are checked, and a note says that this is not everything."""
    (run / "statement.json").unlink()
    found = audit(run)
    assert found.passes
    assert [check.name for check in found.checks] == ["chain", "agreed", "values", "books"]
    assert "without a statement nobody vouches" in found.notes[0]
    text = (run / "valuation.json").read_text()
    changed = json.loads(text)
    changed["per_round"][2][0] += 1e-3
    changed["per_round"][3][0] -= 1e-3
    (run / "valuation.json").write_text(json.dumps(changed))
    assert audit(run).difference.startswith("round 3, client 'bank': valuation.json says")
    (run / "valuation.json").write_text(text[:-40])
    assert "valuation.json cannot be used: the valuation is not valid JSON" in audit(run).difference
    (run / "valuation.json").write_text(text)
    cut_last_round(run)
    assert audit(run).difference.startswith("the valuation is not of this transcript")
    (run / "valuation.json").unlink()
    assert "there is no valuation.json, so there are no values to compare" in audit(run).notes


@pytest.mark.parametrize("name", ["transcript.json", "labels.arrow", "uploads-00001.arrows", "chain-00001.bin"])
def test_a_damaged_transcript_without_a_statement_differs(run, name):
    """40 flipped bits in each file are found, whatever they do to reading it."""
    (run / "statement.json").unlink()
    (run / "valuation.json").unlink()
    rng = np.random.default_rng(1)
    path = run / "transcript" / name
    for _ in range(40):
        position, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        flip(path, position, bit)
        assert not audit(run).passes, (position, bit)
        flip(path, position, bit)
    assert audit(run).passes


def test_only_what_is_true_can_be_signed(run, key):
    """An incomplete transcript, a valuation of another one, and changed payouts are refused."""
    valuation, transcript = value(run), Transcript.open(run)
    paid = settle(valuation, Terms.of(1000, "EUR", negative="zero"))

    def make(valuation=valuation, paid=None):
        return make_statement(RunFolder(run), transcript, valuation, key, run / "new.json", paid)

    make(paid=paid)
    with pytest.raises(InputError, match="the valuation is not of this transcript"):
        make(replace(valuation, head="0" * 64))
    with pytest.raises(InputError, match=r"payout of client 'bank' is 1000\.00, but the terms and values give "):
        make(paid=replace(paid, payouts=(100_000, 0, 0)))
    with pytest.raises(InputError, match="another transcript, or the run has grown since; settle this run"):
        make(paid=replace(paid, head="0" * 64))
    with pytest.raises(InputError, match="another valuation of this run"):
        make(paid=replace(paid, values=(1.0, 2.0, 3.0)))
    with pytest.raises(InputError, match="samples chosen by index"):
        make(value(run, rows=[1, 2, 3]))
    with (run / "transcript" / "uploads-00001.arrows").open("ab") as file:
        file.write(b"unfinished")
    transcript = Transcript.open(run)
    with pytest.raises(TranscriptError, match=r"complete up to round 6, but uploads-00001.arrows has 10 and chain-"):
        make()


def test_unknown_errors_can_be_signed_and_audited(tmp_path):
    """NaN is null in JSON, and is the same unknown when it is computed again."""
    with Recorder(tmp_path / "run", np.arange(20) % 2, ["a", "b"]) as recorder:
        for t in range(4):
            h = np.random.default_rng(t).normal(size=(2, 5))
            recorder.log(np.arange(5 * t, 5 * t + 5), {"a": h[0], "b": h[1]})
    with pytest.warns(match="uploaded no sample more than once"):
        place = sign(tmp_path / "run")
    assert Statement.from_json(place.read_bytes()).settlement.lowest == (None, None)
    with pytest.warns(match="uploaded no sample more than once"):
        assert audit(place).passes
    resign(tmp_path / "run", read_private_key(tmp_path / "consortium.key"), errors=[1e-9, 1e-9])
    with pytest.warns(match="uploaded no sample more than once"):
        assert audit(place).difference.startswith(
            "error of client 'a': the statement says 4e-09, the transcript gives unknown"
        )


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff" * 9, b'\xef\xbb\xbf"client","payout"\r\n'])
def test_what_is_no_file_of_ours_cannot_be_audited(tmp_path, content):
    """The error says what can be, not what is wrong with its JSON."""
    (tmp_path / "pay.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"pay\.csv is neither a statement nor an extract, nor the folder of a run"):
        audit(tmp_path / "pay.csv")


@pytest.mark.parametrize("content", [b"{", b'{"format": "verfedsv statement", "version": 9}'])
def test_what_is_no_statement_cannot_be_audited(tmp_path, content):
    """It is an error, not a difference."""
    (tmp_path / "statement.json").write_bytes(content)
    with pytest.raises(InputError, match=r"not the JSON of a statement|of format version 9; this verfedsv reads"):
        audit(tmp_path / "statement.json")
    with pytest.raises(InputError, match="there is no run in"):
        audit(tmp_path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [None, 0.0, 0.0]}, r"values\.0: "),
        ({"values": ["0.1", "0.2", "0.3"]}, r"values\.0: "),
        ({"values": [True, 0.0, 0.0]}, r"values\.0: "),
        ({"shares": ["1"]}, r"shares\.0"),
        ({"errors": [0.0]}, "errors must have one entry for each client"),
        ({"clients": [{}, 1, 2]}, r"clients\.0: "),
        ({"files": {"config.toml": 5}}, r"files\.config\.toml: "),
        ({"settings": {"seed": 0}}, "settings: .*missing or unknown"),
        ({"settlement": [1]}, "settlement: "),
        ({"settlement": {"shares": [True, 1, None]}}, r"settlement\.shares\.0: "),
        ({"settlement": {"remark": "telco agreed"}}, r"a field 'settlement\.remark', which no audit could check"),
        ({"created": "yesterday"}, "created: "),
        ({"package": "verfedsv 1, and telco agreed"}, "package: "),
        ({"remark": "telco agreed"}, "a field 'remark', which no audit could check"),
    ],
)
def test_a_statement_with_other_fields_cannot_be_used(run, key, change, message):
    """A signed field of the wrong type, or one that is missing or unknown, is named in an error."""
    paid = json.loads((run / "statement.json").read_text())["settlement"]
    resign(
        run,
        key,
        **{name: paid | new if isinstance(new, dict) and name == "settlement" else new for name, new in change.items()},
    )
    with pytest.raises(InputError, match=f"the statement (is damaged: |has ){message}"):
        audit(run)


def test_numbers_that_no_float_can_be_cannot_be_used(run):
    """JSON allows 1e400, which Python reads as infinity."""
    text = (run / "statement.json").read_text()
    value_of_bank = json.loads(text)["values"][0]
    for name in (f"{value_of_bank!r}", '"tolerance": 0.001'):
        assert name in text
        for number in ("1e400", "1" + 400 * "0", "NaN"):
            (run / "statement.json").write_text(text.replace(name, f"{name.rpartition(' ')[0]} {number}"))
            with pytest.raises(InputError, match="this is not the JSON of a statement, or it is damaged: "):
                audit(run)


def test_texts_that_cannot_be_written_cannot_be_used(run):
    """NUL, half of a surrogate pair, and a thousand levels are refused."""
    text = (run / "statement.json").read_text()
    assert '"run": "."' in text
    for content in ('"\\u0000"', '"\\ud800"', 1000 * "[" + 1000 * "]"):
        (run / "statement.json").write_text(text.replace('"run": "."', f'"run": {content}'))
        with pytest.raises(InputError, match="this is not the JSON of a statement, or it is damaged: "):
            audit(run)


def test_a_statement_of_files_with_endless_names_finds_no_run(run, key):
    """A name that the operating system refuses gives an error of this package."""
    resign(run, key, files={"x" * 5000: "0" * 64}, run="y" * 5000)
    with pytest.raises(InputError, match="say where it is with --run"):
        audit(run / "statement.json")


def test_a_statement_by_a_key_that_anybody_can_sign_for_cannot_be_used(run):
    """Such a signature is valid for every text."""
    content = {**Statement.from_json((run / "statement.json").read_bytes()).content}
    content["public_key"] = (1).to_bytes(32, "little").hex()
    signature = bytes.fromhex(content["public_key"]) + bytes(32)
    (run / "statement.json").write_bytes(Statement(content, signature).to_json())
    with pytest.raises(InputError, match="public_key: this is a key for which anyone can forge signatures"):
        audit(run)


def test_links_are_neither_signed_nor_overlooked(run):
    """A folder that was added by a link is found; a transcript behind one is not signed."""
    outside = run.parent / "outside"
    outside.mkdir()
    (run / "extra").symlink_to(outside)
    assert audit(run).difference.startswith("'extra' is a link")
    (run / "extra").unlink()
    assert audit(run).passes
    shutil.move(run / "transcript", outside / "transcript")
    (run / "transcript").symlink_to(outside / "transcript")
    with pytest.raises(TranscriptError, match="transcript is a symbolic link"):
        sign(run, run.parent / "new.json")
    assert audit(run).difference.startswith("'transcript' is a link")


def test_folders_within_folders_are_neither_signed_nor_followed_for_ever(run):
    """A thousand would end in an error of Python, here and in what removes them after a test."""
    (run / "statement.json").unlink()
    deepest = run.joinpath(*["a"] * 16)
    deepest.mkdir(parents=True)
    (deepest / "notes.txt").write_text("mine")
    sign(run)
    assert audit(run).passes
    (deepest / "a").mkdir()
    assert audit(run).difference.startswith("'a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a' is nested too deeply: at most 16")
    with pytest.raises(InputError, match="is nested too deeply"):
        sign(run, run.parent / "new.json")


@pytest.mark.parametrize("name", ["statement.json", "valuation.json", "transcript/.lock"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(run, name):
    """An audit must not block on what somebody else put into a folder."""
    (run / name).unlink()
    os.mkfifo(run / name)
    if name == "statement.json":
        with pytest.raises(InputError, match=r"statement\.json: it is not a regular file"):
            audit(run)
    else:
        assert "is a link or not a regular file" in audit(run).difference
        (run / "statement.json").unlink()
        assert audit(run).passes == (name != "valuation.json")


def test_what_no_audit_could_read_is_not_signed(run, key):
    """A number of more than 64 bits is refused before signing."""
    long = Extent(6, 2**70, is_running=False)
    with (
        patch("verfedsv.runs.folder.RunFolder.extent", return_value=long),
        pytest.raises(InputError, match=r"could not be read back: .* an integer has more than 64 bits"),
    ):
        make_statement(RunFolder(run), Transcript.open(run), value(run), key, run / "second.json")


def test_a_file_whose_name_is_not_utf_8_is_not_signed(run, key):
    """JSON cannot contain such a name."""
    (run / os.fsdecode(b"\xff.txt")).touch()
    with pytest.raises(InputError, match=r"'\\udcff\.txt' has a name that is not UTF-8, .* rename it"):
        make_statement(RunFolder(run), Transcript.open(run), value(run), key, run / "second.json")
    assert "is not UTF-8" in audit(run).difference


def test_a_run_is_not_looked_for_above_its_statement(run, key):
    """A statement does not decide what is read on an auditor's machine; others must be named."""
    (run.parent / "statements").mkdir()
    place = sign(run, run.parent / "statements" / "s.json")
    assert Statement.from_json(place.read_bytes()).content["run"] == "../run"
    with pytest.raises(InputError, match="neither in its folder nor below it; say where it is with --run"):
        audit(place)
    place.with_name("uploads.extract").touch()
    with pytest.raises(InputError, match=r"A client that has no run: verfedsv audit .*uploads.extract --statement"):
        audit(place)
    assert audit(place, run=run).passes
    resign(run, key, run="../../../..", files={"etc/hostname": "0" * 64})
    with pytest.raises(InputError, match="neither in its folder nor below it"):
        audit(run / "statement.json")


@pytest.mark.parametrize("name", ["../outside.txt", "{}/outside.txt", "transcript/../../outside.txt"])
def test_no_file_outside_the_folder_of_a_statement_is_looked_for(run, key, name):
    """Otherwise an audit would tell whether a file exists, whose path the statement chose."""
    name = name.format(run.parent)
    (run.parent / "outside.txt").write_text("private")
    for path in ("moved", "../run", f"transcript/../{run.name}", str(run)):
        resign(run, key, run=path, files={name: "0" * 64})
        with pytest.raises(InputError, match="neither in its folder nor below it"):
            audit(run / "statement.json")


def test_names_of_files_and_clients_stay_in_one_line(run):
    """Control characters in a name cannot draw on a terminal, nor make a second line."""
    (run / "transcript" / "a\nb\x1b[31m").write_text("!")
    difference = audit(run).difference
    assert difference.isprintable()
    assert "was added" in difference


def test_a_valuation_of_the_run_is_needed_only_where_it_is(run):
    """A statement of a run without valuation.json is audited by computing the values alone."""
    (run / "valuation.json").unlink()
    (run / "statement.json").unlink()
    place = sign(run)
    assert audit(place).passes
    (run / "valuation.json").write_text(Valuation.to_json(value(run)))
    assert audit(place).difference == "'valuation.json' was added: it is not in the statement"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"per_round_errors": 0.0}, "error of round 2, client 'bank'"),
        ({"guarantee": 1e-12}, "guarantee: valuation.json says 1e-12"),
        ({"tolerance_met": False}, "tolerance_met: valuation.json says false, the transcript gives true"),
        ({"held_out_rmse": 1e-9}, "completion of client 'bank', held_out_rmse: valuation.json says 1e-09"),
        ({"n_held_out": 123456}, "completion of client 'bank', n_held_out: valuation.json says 123456"),
    ],
)
def test_a_valuation_may_not_look_surer_than_it_is(completed, tmp_path, change, said):
    """Errors and reports of completion are computed again too, because reports show them."""
    shutil.copytree(completed, tmp_path / "run")
    path = tmp_path / "run" / "valuation.json"
    true = Valuation.from_json(path.read_text())
    ((name, other),) = change.items()
    if name in ("held_out_rmse", "n_held_out"):
        false = replace(true, completion=tuple(replace(report, **change) for report in true.completion))
    elif name == "per_round_errors":
        false = replace(true, per_round_errors=np.full_like(true.per_round_errors, other))
    else:
        false = replace(true, **change)
    path.write_text(false.to_json())
    assert audit(tmp_path / "run").difference.startswith(said)


def test_a_large_value_is_no_room_for_others(tmp_path):
    """A server's jump that an accomplice takes back is worth millions; no other value may move by a part of that."""
    rng = np.random.default_rng(0)
    labels, everybody = rng.normal(size=40), np.arange(40)
    with Recorder(tmp_path / "run", labels, ["bank", "telco", "friend"], "squared") as recorder:
        for part, back, jump in ((0.3, 0.0, 0.0), (0.3, 0.0, 3e4), (0.3, -3e4, 3e4), (0.6, -3e4, 3e4)):
            uploads = {"bank": part * labels, "telco": part / 6 * labels, "friend": np.full(40, back)}
            recorder.log(everybody, uploads, np.full(40, jump))
    true = value(tmp_path / "run")
    both = true.values[:2].sum()
    false = moved(true, [0.02 * both - true.values[0], 0.98 * both - true.values[1], 0.0])
    assert true.values.max() > 1e6 * np.abs(false.values - true.values).max()
    place = sign(tmp_path / "run", change=lambda *_: (false, settle(false, Terms.of(1000, "EUR"))))
    assert audit(place).difference.startswith("value of client 'bank'")


VARIES = "the server's offset differs between samples, so it is more than an intercept"
UNSTATED = "the server adds an offset, and the transcript does not say whether that was agreed"


@pytest.mark.parametrize(
    ("offset", "intercept", "expected"),
    [
        (None, None, []),
        ([0.5, 0.5, 0.5], True, []),
        ([0.5, 0.5, 0.5], None, [UNSTATED]),
        ([0.5, 0.5, 0.6], True, [VARIES]),
        ([0.5, 0.5, 0.6], None, [UNSTATED, VARIES]),
    ],
)
def test_both_audits_say_the_same_of_an_offset(tmp_path, offset, intercept, expected):
    """That it is not known to be agreed, and that it is more than an intercept, which is one number."""
    with Recorder(tmp_path / "run", [0, 1, 1], ["bank"], intercept=intercept) as recorder:
        recorder.log([0, 1, 2], {"bank": [-1.0, 1.0, 1.0]}, offset)
    part = tmp_path / "bank.extract"
    part.write_bytes(make_extract(Transcript.open(tmp_path / "run"), "bank").to_bytes())
    for path in (tmp_path / "run", part):
        notes = [note for note in audit(path).notes if "offset" in note]
        assert [text[: len(begin)] for text, begin in zip(notes, expected, strict=True)] == expected


def test_a_guarantee_where_nothing_was_completed_is_found(tmp_path):
    """A guarantee is a difference if none is computed."""
    folder = make_run(tmp_path / "run", mode="asynchronous")
    path = folder / "valuation.json"
    path.write_text(replace(value(folder), guarantee=1.0).to_json())
    assert audit(folder).difference == "guarantee: valuation.json says 1.0, the transcript gives null"


def test_an_audit_reads_all_records_twice(tmp_path, monkeypatch):
    """Once to verify and once to value them, because transcripts are large."""
    run, n_passes = make_run(tmp_path / "run"), []
    for name in ("verify_more", "_records"):
        method = getattr(Transcript, name)

        def counted(self, *arguments, method=method):
            n_passes.append(method.__name__)
            return method(self, *arguments)

        monkeypatch.setattr(Transcript, name, counted)
    assert audit(run).passes
    assert n_passes == ["verify_more", "_records"]


def test_both_audits_compute_what_is_unaccounted_for(tmp_path):
    """Values of another semivalue do not add up to the decrease of the loss; a statement that hides it differs."""
    run = make_run(tmp_path / "run", valuation={"semivalue": "banzhaf"})
    place, part = sign(run), tmp_path / "telco.extract"
    part.write_bytes(make_extract(Transcript.open(run), "telco").to_bytes())
    assert audit(place).passes
    content = Statement.from_json(place.read_bytes()).content
    books, paid = content["books"] | {"unaccounted": 0.0}, content["settlement"]
    paid = paid | {"books": paid["books"] | {"unaccounted": 0.0}}
    resign(run, read_private_key(tmp_path / "consortium.key"), books=books, settlement=paid)
    assert "what is unaccounted for" in audit(place).difference
    assert "what is unaccounted for" in audit(part, statement_path=place).difference
