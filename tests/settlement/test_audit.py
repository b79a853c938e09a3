import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.settlement.runs import CLIENTS, make_run, record, sign
from verfedsv import InputError, Recorder, TranscriptError, Valuation, value
from verfedsv.settlement import settle
from verfedsv.settlement.audit import audit
from verfedsv.settlement.folders import hash_files
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


def test_a_true_statement_passes(run):
    """Signature, chain, files, values and payouts, in this order."""
    result = audit(run / "statement.json", public_key=read_public_key(run.parent / "consortium.pub"))
    assert result.difference is None
    assert [check.name for check in result.checks] == ["signature", "chain", "files", "values", "payouts"]
    assert result.notes == ()
    assert audit(run).passes


def test_a_statement_says_what_is_needed(run):
    """Head, configuration, version, values, payouts, settings, and a hash of every file."""
    stated = Statement.from_json((run / "statement.json").read_bytes())
    valuation = value(run)
    assert stated.content["head"] == Transcript.open(run).head
    assert stated.content["configuration"] == (run / "config.toml").read_text()
    assert stated.content["package"].startswith("verfedsv ")
    assert stated.values == tuple(valuation.values)
    assert stated.settings == valuation.settings
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
    """Not only by its file."""
    path = run / "transcript" / "uploads.arrows"
    content = path.read_bytes()
    wanted = np.concatenate([u.embeddings for u in Transcript.open(run) if getattr(u, "client", "") == "telco"])[80:120]
    flip(path, content.index(wanted.tobytes()), 0)
    assert audit(run).difference == "the transcript was changed: round 3, client 'telco'"


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "'metrics.jsonl' was changed"),
        (lambda run: (run / "checkpoint.npz").unlink(), "'checkpoint.npz' is missing"),
        (lambda run: (run / "transcript" / "labels.arrow").unlink(), "'transcript/labels.arrow' is missing"),
        (lambda run: (run / "notes.txt").write_text("!"), "'notes.txt' was added: it is not in the statement"),
        (lambda run: (run / "transcript" / "report.html").write_text("!"), "'transcript/report.html' was added: .*"),
        (lambda run: (run / "transcript" / ".lock").write_text("!"), "'transcript/.lock' was added: .*"),
        (lambda run: (run / "config.toml").write_text(""), "'config.toml' was changed"),
        (lambda run: go_on(run), "the transcript has grown since the statement, by 2 rounds"),
        (lambda run: record_anew(run), "the transcript is not that of the statement: the head of its chain differs"),
        (lambda run: cut_last_round(run), "the transcript is not that of the statement: the head of its chain differs"),
        (lambda run: record(run), "the transcript is not .*|'chain.bin' was added.*"),
    ],
)
def test_every_change_of_the_folder_is_said_in_one_line(run, change, difference):
    """Files changed, missing and added; a transcript that went on, was cut off, or was written anew."""
    change(run)
    found = audit(run)
    assert not found.passes
    assert re.fullmatch(difference, found.difference), found.difference


def go_on(run):
    record(run, n_rounds=2, recorder=Recorder(run / "transcript", np.arange(40) % 2, CLIENTS, resume=True))


def record_anew(run):
    shutil.rmtree(run / "transcript")
    record(run / "transcript", seed=1)


def cut_last_round(run):
    folder = run / "transcript"
    chain = (folder / "chain.bin").read_bytes()
    end = int.from_bytes(chain[-80:-72], "little")
    (folder / "chain.bin").write_bytes(chain[:-40])
    (folder / "uploads.arrows").write_bytes((folder / "uploads.arrows").read_bytes()[:end])
    Transcript.open(run).verify()


def test_what_is_made_from_a_run_may_come_after_the_statement(run):
    """A report, other statements and settlements are noted, and not taken for changes; and are not covered."""
    (run / "report.html").write_text("<html></html>")
    (run / "payouts.json").write_text(settle(value(run), 5, "EUR", negative="zero").to_json())
    sign(run, run / "second.json")
    found = audit(run)
    assert found.passes
    assert "not covered by the statement: 'payouts.json', 'report.html', 'second.json'" in found.notes
    assert audit(run / "second.json").passes


def resign(folder, key, **changes):
    """Sign the statement of a run again with other content, as a dishonest owner of the key could."""
    content = {**Statement.from_json((folder / "statement.json").read_bytes()).content, **changes}
    (folder / "statement.json").write_bytes(Statement(content, key.sign(canonical(content))).to_json())
    return content


def test_a_false_round_is_named(run, key):
    """Round 5 of telco in valuation.json, signed as it is, is not what its uploads give."""
    fields = json.loads((run / "valuation.json").read_text())
    fields["per_round"][4][1] += 1e-3
    fields["per_round"][5][1] -= 1e-3
    (run / "valuation.json").write_text(json.dumps(fields))
    resign(run, key, files=hash_files(run, leave_out=run / "statement.json"))
    assert audit(run).difference.startswith("round 5, client 'telco': valuation.json says ")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda c: {"errors": [1.0, *c["errors"][1:]]}, "error of client 'bank': the statement says 1, "),
        (lambda c: {"errors": [None, *c["errors"][1:]]}, "error of client 'bank': the statement says nan, "),
        (lambda c: {"shares": [0.9, *c["shares"][1:]]}, "share of client 'bank': the statement says 0.9, "),
        (lambda _: {"n_rounds": 7}, "the statement is of 7 rounds; there are 6"),
        (lambda _: {"clients": ["bank", "telco", "store"]}, "the clients of the statement are not those of"),
        (lambda _: {"error_kind": "confidence"}, "error_kind: the statement says "),
        (lambda _: {"loss": "squared"}, 'loss: the statement says "squared", the run gives "logistic"'),
        (lambda _: {"mode": "asynchronous"}, "mode: the statement says "),
        (lambda _: {"n_samples": 41}, "n_samples: the statement says 41, the run gives 40"),
        (lambda _: {"n_unseen": 1}, "n_unseen: the statement says 1, the run gives 0"),
        (lambda _: {"method": "exact"}, 'method: the statement says "exact", the run gives "closed-form"'),
        (lambda _: {"configuration": None}, "configuration: the statement has another than the run"),
        (
            lambda c: {"settings": {**c["settings"], "seed": 1}},
            "settings: valuation.json has another than the run",
        ),
        (lambda _: {"estimator_errors": [0.0] * 3}, "estimator error of client 'bank': the statement says 0, "),
        (lambda _: {"completion_errors": [None] * 3}, "completion error of client 'bank': the statement says nan, "),
        (lambda c: {"errors": [c["errors"][0] * 1.1, *c["errors"][1:]]}, "errors of client 'bank': the statement says"),
        (lambda c: {"values": [c["values"][0] * 2, *c["values"][1:]]}, "value of client 'bank': the statement says"),
        (
            lambda c: {"settlement": {**c["settlement"], "payouts": ["1000.00", "0.00", "0.00"]}},
            "the settlement in the statement: payout of client 'bank': 1000.00, its terms and values give ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "lowest": ["1000.00", "0.00", "0.00"]}},
            "the settlement in the statement: lowest payout of client 'bank': 1000.00, its terms and values give ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "notes": ["paid in cash", "", ""]}},
            "the settlement in the statement: note of client 'bank': paid in cash, its terms and values give none",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "shares": [0.1, 0.1, 0.8]}},
            "the settlement in the statement: share of client 'bank': 0.1, ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "shares": [10**400, True, None]}},
            "the settlement in the statement: share of client 'bank': 1000000",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "errors": [0.0, 0.0, 0.0]}},
            "the settlement in the statement: error of client 'bank': 0.0, ",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "remark": "telco agreed"}},
            "the settlement in the statement: the field 'remark' is none of a settlement",
        ),
        (
            lambda c: {"settlement": {**c["settlement"], "rule": "floor", "floor": "900.00"}},
            "the settlement in the statement cannot be: 3 floors of 900.00 are 2,700.00, more than the budget",
        ),
    ],
)
def test_false_statements_are_found_although_they_are_signed(run, key, change, difference):
    """Whoever holds the key can sign anything; the audit computes it again."""
    resign(run, key, **change(Statement.from_json((run / "statement.json").read_bytes()).content))
    assert audit(run).difference.startswith(difference)


def test_values_within_their_errors_but_odd_are_noted(run, key, monkeypatch):
    """Where errors are large, a value that is not the transcript's passes, as stated, with a note that names it."""
    true = value(run)
    wide = replace(true, completion_errors=np.full(3, 0.1))
    stated = replace(wide, values=true.values + np.array([0.0, 0.01, 0.0]))
    (run / "valuation.json").unlink()
    (run / "statement.json").unlink()
    signed = make_statement(run, Transcript.open(run), stated, key, run / "statement.json")
    (run / "statement.json").write_bytes(signed.to_json())
    monkeypatch.setattr("verfedsv.settlement.audit.value", lambda *_arguments, **_options: wide)
    found = audit(run)
    assert found.passes
    assert any(note.startswith("value of client 'telco' differs by 0.01") for note in found.notes)


def test_the_signature_is_of_one_key(run):
    """Another key than expected, or a statement that was changed in any way, is found."""
    new_keys(run.parent / "other")
    found = audit(run, public_key=read_public_key(run.parent / "other.pub"))
    assert found.difference.startswith("the statement is signed with another key: ")
    path = run / "statement.json"
    text = path.read_text()
    for changed in (text.replace('"n_rounds": 6', '"n_rounds": 9'), text.replace("1000.00", "1000.01")):
        path.write_text(changed)
        assert "it was changed after it was signed" in audit(run).difference
    for changed in (text + "\n", text.replace('": ', '":  ', 1), text.replace('"head"', '"head": "", "head"', 1)):
        path.write_text(changed)
        assert (
            audit(run).difference == "the statement was changed: its file is not written as it was when it was signed"
        )
    path.write_text(text.replace('"signature": "', '"signature": " '))
    with pytest.raises(InputError, match="the statement is damaged: signature"):
        audit(run)


def test_a_statement_finds_its_run(run, tmp_path):
    """Where it was when it was signed, beside the statement, or where it is said to be."""
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
    """Its chain and its values; that this is not everything is said."""
    (run / "statement.json").unlink()
    found = audit(run)
    assert found.passes
    assert [check.name for check in found.checks] == ["chain", "values"]
    assert "without a statement nobody vouches" in found.notes[0]
    text = (run / "valuation.json").read_text()
    changed = json.loads(text)
    changed["per_round"][2][0] += 1e-3
    changed["per_round"][3][0] -= 1e-3
    (run / "valuation.json").write_text(json.dumps(changed))
    assert audit(run).difference.startswith("round 3, client 'bank': valuation.json says")
    (run / "valuation.json").write_text(text[:-40])
    assert "valuation.json cannot be used: this is not the JSON of a valuation" in audit(run).difference
    (run / "valuation.json").write_text(text)
    cut_last_round(run)
    assert audit(run).difference.startswith("valuation.json is not of this transcript: it was cut off")
    (run / "valuation.json").unlink()
    assert "there is no valuation.json, so there are no values to compare" in audit(run).notes


@pytest.mark.parametrize("name", ["transcript.json", "labels.arrow", "uploads.arrows", "chain.bin"])
def test_a_damaged_transcript_without_a_statement_differs(run, name):
    """Whatever the damage does to reading it: 40 flipped bits in each file."""
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
    """A transcript that is not whole, a valuation of another one, and payouts that were changed are refused."""
    valuation, transcript = value(run), Transcript.open(run)
    paid = settle(valuation, 1000, "EUR", negative="zero")

    def make(valuation=valuation, paid=None):
        return make_statement(run, transcript, valuation, key, run / "new.json", paid)

    make(paid=paid)
    with pytest.raises(InputError, match="the valuation is not of this transcript"):
        make(replace(valuation, head="0" * 64))
    with pytest.raises(InputError, match=r"payout of client 'bank': 1000\.00, its terms and values give "):
        make(paid=replace(paid, payouts=(100_000, 0, 0)))
    with pytest.raises(InputError, match="another transcript, or the run has grown since; settle this run"):
        make(paid=replace(paid, head="0" * 64))
    with pytest.raises(InputError, match="another valuation of this run"):
        make(paid=replace(paid, values=(1.0, 2.0, 3.0)))
    with pytest.raises(InputError, match="samples chosen by number"):
        make(value(run, rows=[1, 2, 3]))
    with (run / "transcript" / "uploads.arrows").open("ab") as file:
        file.write(b"unfinished")
    transcript = Transcript.open(run)
    with pytest.raises(TranscriptError, match="bytes after its last record"):
        make()


def test_unknown_errors_can_be_signed_and_audited(tmp_path):
    """NaN is null in JSON, and is the same unknown when it is computed again."""
    with Recorder(tmp_path / "run", np.arange(20) % 2, ["a", "b"]) as recorder:
        for t in range(4):
            h = np.random.default_rng(t).normal(size=(2, 5))
            recorder.log(np.arange(5 * t, 5 * t + 5), {"a": h[0], "b": h[1]})
    with pytest.warns(match="no sample was uploaded in two rounds"):
        place = sign(tmp_path / "run")
    assert Statement.from_json(place.read_bytes()).settlement.lowest == (None, None)
    with pytest.warns(match="no sample was uploaded in two rounds"):
        assert audit(place).passes
    resign(tmp_path / "run", read_private_key(tmp_path / "consortium.key"), errors=[1e-9, 1e-9])
    with pytest.warns(match="no sample was uploaded in two rounds"):
        assert audit(place).difference.startswith(
            "error of client 'a': the statement says 1e-09, the transcript gives nan"
        )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "verfedsv statement", "version": 9}', b"\xff" * 9])
def test_what_is_no_statement_cannot_be_audited(tmp_path, content):
    """An error, and not a difference."""
    (tmp_path / "statement.json").write_bytes(content)
    with pytest.raises(InputError, match=r"not the JSON of a statement|of version 1; received"):
        audit(tmp_path / "statement.json")
    with pytest.raises(InputError, match="there is no run in"):
        audit(tmp_path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [None, 0.0, 0.0]}, r"values\.0: "),
        ({"values": ["0.1", "0.2", "0.3"]}, r"values\.0: "),
        ({"values": [10**400, 0.0, 0.0]}, r"values\.0: "),
        ({"values": [True, 0.0, 0.0]}, r"values\.0: "),
        ({"shares": ["1"]}, r"shares\.0"),
        ({"errors": [0.0]}, "there is not one value, error and share for each client"),
        ({"clients": [{}, 1, 2]}, r"clients\.0: "),
        ({"files": {"config.toml": 5}}, r"files\.config\.toml: "),
        ({"settings": {"seed": 0}}, "settings: .*missing or unknown"),
        ({"settlement": [1]}, "settlement: "),
        ({"created": "yesterday"}, "created: "),
        ({"package": "verfedsv 1, and telco agreed"}, "package: "),
        ({"remark": "telco agreed"}, "a field 'remark', which no audit could check"),
    ],
)
def test_a_statement_with_other_fields_cannot_be_used(run, key, change, message):
    """Though it is signed: what is of the wrong kind, missing, or unknown, is named, without a traceback."""
    resign(run, key, **change)
    with pytest.raises(InputError, match=f"the statement (is damaged: |has ){message}"):
        audit(run)


def test_numbers_that_no_float_can_be_cannot_be_used(run):
    """JSON can write 1e400, which Python reads as infinity."""
    text = (run / "statement.json").read_text()
    value_of_bank = json.loads(text)["values"][0]
    for name in (f"{value_of_bank!r}", '"tolerance": 0.001'):
        assert name in text
        (run / "statement.json").write_text(text.replace(name, name.rpartition(" ")[0] + " 1e400"))
        with pytest.raises(InputError, match="the statement is damaged"):
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
    with pytest.raises(InputError, match="'transcript' is a link"):
        sign(run, run.parent / "new.json")
    assert audit(run).difference.startswith("'transcript' is a link")


def test_a_run_is_not_looked_for_above_its_statement(run, key):
    """Whoever signs does not decide what an auditor's machine reads: other folders have to be named."""
    (run.parent / "statements").mkdir()
    place = sign(run, run.parent / "statements" / "s.json")
    assert Statement.from_json(place.read_bytes()).content["run"] == "../run"
    with pytest.raises(InputError, match="neither in its folder nor below it; say where it is with --run"):
        audit(place)
    assert audit(place, run=run).passes
    resign(run, key, run="../../../..", files={"etc/hostname": "0" * 64})
    with pytest.raises(InputError, match="neither in its folder nor below it"):
        audit(run / "statement.json")


def test_names_of_files_and_clients_stay_in_one_line(run):
    """Control characters in a name cannot draw on a terminal, nor make a second line."""
    (run / "a\nb\x1b[31m").write_text("!")
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
