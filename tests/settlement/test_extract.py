import base64
import hashlib
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tests.settlement.runs import CLIENTS, make_run, record, sign
from tests.transcript import forgeries
from verfedsv import InputError, TranscriptError
from verfedsv.settlement.audit import audit
from verfedsv.settlement.extract import Extract, Record, _cut, make_extract
from verfedsv.settlement.keys import read_private_key
from verfedsv.settlement.statement import Statement, canonical
from verfedsv.transcript import Recorder, Transcript, Upload
from verfedsv.transcript.format import upload_schema

MODES = [("synchronous", np.float64), ("asynchronous", np.float64), ("asynchronous", np.float32)]


@pytest.fixture(params=MODES, ids=lambda param: f"{param[0]}-{param[1].__name__}")
def run(request, tmp_path):
    """Return a signed run."""
    folder = make_run(tmp_path / "run", mode=request.param[0], precision=request.param[1])
    sign(folder)
    return folder


def written(run, client="telco"):
    """Return where the extract of a client was written, beside the run."""
    path = run.parent / f"{client}.json"
    path.write_text(make_extract(Transcript.open(run), client).to_json())
    return path


def uploads(run, client):
    return [record for record in Transcript.open(run) if isinstance(record, Upload) and record.client == client]


def test_an_extract_leads_to_the_head_of_the_statement(run):
    """With the uploads of the client alone, for every client."""
    for client in CLIENTS:
        found = audit(written(run, client), statement_path=run / "statement.json")
        assert found.passes, found.difference
        names = [check.name for check in found.checks]
        assert names == ["signature", "chain", "uploads", "payouts", "terms", "own payout"]
        assert found.notes[1].startswith(f"the statement says of client {client!r}: value ")
        assert found.notes[2].startswith("the statement says: loss 0.69315 at the start, ")
        extract = Extract.from_json(written(run, client).read_bytes())
        assert extract.verify().head == Transcript.open(run).head
        mine = [upload for record in extract.records for upload in record.uploads]
        for upload, expected in zip(mine, uploads(run, client), strict=True):
            np.testing.assert_array_equal(upload.samples, expected.samples)
            np.testing.assert_array_equal(upload.embeddings, expected.embeddings)


def test_nothing_of_others_is_in_an_extract(run):
    """Neither as bytes, nor as text: no embedding of another client, and no label."""
    text = written(run).read_text()
    fields = json.loads(text)
    frames = [base64.b64decode(piece) for record in fields["records"] for piece in record["frame"]]
    for other in ("bank", "shop"):
        for upload in uploads(run, other):
            for number in upload.embeddings.ravel():
                assert repr(float(number)) not in text
                assert not any(number.tobytes() in frame for frame in frames)
    own = np.concatenate([upload.embeddings.ravel() for upload in uploads(run, "telco")])
    assert repr(float(own[0])) in text
    labels = Transcript.open(run).labels
    assert not any(labels.tobytes() in frame for frame in frames)
    assert str(labels.tolist()) not in text
    assert set(fields) == {"format", "version", "client", "description", "labels_sha256", "records"}


def change(path, edit):
    fields = json.loads(path.read_bytes())
    edit(fields)
    path.write_text(json.dumps(fields))


def swap(fields):
    first, second = [record["uploads"] for record in fields["records"] if record["uploads"]][:2]
    first[0], second[0] = second[0], first[0]


def own(fields, number=0):
    return [upload for record in fields["records"] for upload in record["uploads"]][number]


def nudge(fields):
    embeddings = own(fields, 2)["embeddings"]
    embeddings[3][0] = float(np.nextafter(np.float32(embeddings[3][0]), np.float32(9)))


@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        (nudge, "the upload in the extract is not the one of the transcript: round 3, client 'telco'"),
        (lambda fields: own(fields)["samples"].reverse(), "not the one of the transcript: round 1, client 'telco'"),
        (swap, "not the one of the transcript: round 1, client 'telco'"),
        (lambda fields: own(fields)["embeddings"].pop(), "not the one of the transcript: round 1"),
        (lambda fields: fields["records"][-2]["uploads"].append(own(fields)), "does not have the uploads"),
        (lambda fields: [r["uploads"].clear() for r in fields["records"][:5]], "does not have the uploads"),
        (lambda fields: fields.update(client="bank"), "round 1, client 'bank'"),
        (lambda fields: fields.update(client="nobody"), "there is no client 'nobody'"),
        (lambda fields: fields.update(labels_sha256="00" * 32), "the extract was changed: its description or labels"),
        (lambda fields: fields["records"].pop(), "another transcript than the statement: their heads differ"),
        (lambda fields: fields["records"].clear(), "another transcript than the statement: their heads differ"),
        (lambda fields: fields["records"].pop(3), "the extract was changed: round"),
        (
            lambda fields: own(fields).update(samples=[0.5 + s for s in own(fields)["samples"]]),
            "round 1, client 'telco'",
        ),
        (
            lambda fields: own(fields).update(samples=[str(s) for s in own(fields)["samples"]]),
            "round 1, client 'telco'",
        ),
        (lambda fields: fields.update(description=5), "the extract was changed: it cannot be read"),
        (lambda fields: fields["records"][3]["gaps"].append(8), "the extract was changed: "),
        (lambda fields: fields["records"][3].update(frame=["AAAA"], gaps=[]), "the extract was changed: "),
    ],
)
def test_a_changed_extract_is_found(run, edit, difference):
    """Own uploads changed, swapped, left out or added; another client's; records cut off or damaged."""
    path = written(run)
    change(path, edit)
    found = audit(path, statement_path=run / "statement.json")
    assert not found.passes
    assert difference in found.difference


def test_numbers_that_are_rounded_to_the_uploaded_ones_are_found(tmp_path):
    """Fractions, texts, other digits, embeddings said to be sample numbers: their bytes have the same digest."""
    folder = make_run(tmp_path / "run", mode="asynchronous", precision=np.float32)
    path = written(folder)

    def fractions(fields):
        own(fields)["samples"] = [number + 0.5 for number in own(fields)["samples"]]

    def texts(fields):
        own(fields)["embeddings"] = [[repr(number) for number in row] for row in own(fields)["embeddings"]]

    def one_row(fields):
        own(fields)["embeddings"] = [[number for (number,) in own(fields)["embeddings"]]]

    def more_digits(fields):
        own(fields)["embeddings"] = [[number * (1 + 2e-9) for number in row] for row in own(fields)["embeddings"]]

    def as_samples(fields):
        numbers = np.array(own(fields)["embeddings"], np.float32).ravel()
        own(fields)["samples"] += numbers[:5].view(np.uint32).tolist()
        own(fields)["embeddings"] = numbers[5:, np.newaxis].tolist()

    for edit in (fractions, texts, one_row, more_digits, as_samples):
        change(path, edit)
        with pytest.raises(TranscriptError, match="not the one of the transcript: round 1, client 'telco'"):
            Extract.from_json(path.read_bytes()).verify()
        path = written(folder)


def test_any_changed_byte_of_a_frame_is_found(run):
    """50 random bits of what stands for the rest of the transcript."""
    rng = np.random.default_rng(0)
    text = written(run).read_bytes()
    for _ in range(50):
        fields = json.loads(text)
        record = fields["records"][rng.integers(len(fields["records"]))]
        piece = int(rng.integers(len(record["frame"])))
        content = bytearray(base64.b64decode(record["frame"][piece]))
        if not content:
            continue
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        record["frame"][piece] = base64.b64encode(content).decode()
        with pytest.raises(TranscriptError):
            Extract.from_json(json.dumps(fields)).verify()


def test_an_extract_of_a_forged_transcript_is_found(tmp_path):
    """Digests where the chain has gaps could be any: the same links would lead to the head that was signed."""
    record(tmp_path / "honest")
    head = forgeries.rewrite(tmp_path / "honest", tmp_path / "forged", forgeries.over_digests)
    honest, forged = make_extract(Transcript.open(tmp_path / "honest"), "telco"), Transcript.open(tmp_path / "forged")
    assert honest.verify().head == Transcript.open(tmp_path / "honest").head
    records = []
    for own_part, (message, batch, link) in zip(honest.records, forged.messages(), strict=True):
        ranges = forgeries.bare_ranges(message, batch)
        frame = [base64.b64encode(message.to_pybytes()[start:stop]).decode() for start, stop in ranges]
        gaps = [start - stop for (_, stop), (start, _) in pairwise(ranges)]
        records.append(replace(own_part, frame=frame, gaps=gaps, link=link.hex()))
    assert records[-1].link == head
    with pytest.raises(TranscriptError, match="the extract was changed"):
        replace(honest, records=records).verify()


INVALID = {
    "unknown": ([forgeries.upload("thief", [0], [1.0])], "round 1, client 'thief' is unknown"),
    "lengths": ([forgeries.upload("shop", [0, 1], [1.0])], "round 1, client 'shop': 1 embeddings for 2 samples"),
    "infinite time": (
        [forgeries.upload("bank", [0], [1.0], np.inf)],
        "round 1, a record has one time, in seconds, of at most 1e15",
    ),
    "repeated samples": (
        [forgeries.upload("telco", [1, 1], [1.0, 2.0])],
        "client 'telco': a sample is there more than",
    ),
    "out of range": ([forgeries.upload("telco", [9], [1.0])], "client 'telco': sample 9 is none of 0 to 3"),
    "infinite": ([forgeries.upload("telco", [1], [np.inf])], "client 'telco': embeddings must be finite"),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_extract_of_what_no_recorder_writes_is_found(tmp_path, case):
    """By the rules for transcripts, as far as an extract shows the numbers; all its hashes are in order."""
    rows, why = INVALID[case]
    about = forgeries.ABOUT | {"mode": "asynchronous"}
    forged = Transcript.open(forgeries.write(tmp_path / "run", [rows, [forgeries.stamp(2.0)]], about))
    description, labels = forged.origin
    records = [_cut(message, batch, link, "telco", 1) for message, batch, link in forged.messages()]
    extract = Extract("telco", description.decode(), hashlib.sha256(labels).hexdigest(), records)
    with pytest.raises(TranscriptError, match=why):
        extract.verify()


def test_a_client_that_was_absent_has_an_extract(tmp_path):
    """Of the rounds that it took part in; the others are in the chain like any other."""
    with Recorder(tmp_path / "run", [0, 1, 1], ["bank", "telco"]) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 2.0], "telco": [3.0, 4.0]})
        recorder.log([2], {"bank": [5.0]}, absent=["telco"])
    transcript = Transcript.open(tmp_path / "run")
    for client, n_uploads in (("bank", 2), ("telco", 1)):
        verified = Extract.from_json(make_extract(transcript, client).to_json()).verify()
        assert (verified.n_uploads, verified.n_rounds, verified.head) == (n_uploads, 2, transcript.head)
        found = audit(written(tmp_path / "run", client))
        told = f"client {client!r} was declared absent from 1 of 2 rounds: if it took part, its uploads were left out"
        assert (told in found.notes) == (client == "telco")


@pytest.mark.parametrize("gap", [2**33, 2**60, -8, True, 8.0, "8"])
def test_gaps_take_no_memory(tmp_path, gap):
    """However large an extract says that they are; what is no size of a gap is refused."""
    resource = pytest.importorskip("resource")
    honest = make_extract(Transcript.open(make_run(tmp_path / "run", mode="asynchronous")), "telco")
    forged = replace(honest.records[1], gaps=[gap, *honest.records[1].gaps[1:]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TranscriptError, match="the extract was changed"):
        replace(honest, records=[honest.records[0], forged, *honest.records[2:]]).verify()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes


def test_gaps_are_where_the_numbers_were(run):
    """Bytes in their place would not be part of the chain, and could say anything."""
    honest = make_extract(Transcript.open(run), "telco")
    message, _ = honest.records[1].message()
    filled = replace(honest.records[1], frame=[base64.b64encode(message.to_pybytes()).decode()], gaps=[])
    with pytest.raises(TranscriptError, match="the extract was changed"):
        replace(honest, records=[honest.records[0], filled, *honest.records[2:]]).verify()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda c: {"clients": c["clients"][::-1]}, 'clients: the statement says ["shop", "telco", "bank"], '),
        (lambda _: {"n_rounds": 99}, "n_rounds: the statement says 99, the transcript says 6"),
        (lambda _: {"loss": "squared"}, 'loss: the statement says "squared", the transcript says "logistic"'),
        (lambda _: {"mode": "asynchronous"}, 'mode: the statement says "asynchronous", the transcript says "sync'),
        (
            lambda c: {"values": [0.0, *c["values"][1:]], "settlement": None},
            "share of client 'bank': the statement says",
        ),
        (lambda c: {"values": [0.0, *c["values"][1:]], "shares": [0.0, 1.2, -0.2]}, "share of client 'telco'"),
        (
            lambda c: {"settlement": {**c["settlement"], "clients": c["clients"][::-1]}},
            "the settlement in the statement: clients: ",
        ),
    ],
)
def test_a_statement_that_contradicts_the_extract_is_found(tmp_path, change, difference):
    """Clients, their order, the number of rounds and the loss are in the extract; shares follow from values."""
    run = make_run(tmp_path / "run")
    content = {**Statement.from_json(sign(run).read_bytes()).content}
    content |= change(content)
    key = read_private_key(tmp_path / "consortium.key")
    (run / "statement.json").write_bytes(Statement(content, key.sign(canonical(content))).to_json())
    assert audit(written(run), statement_path=run / "statement.json").difference.startswith(difference)


def test_an_extract_without_a_statement_says_that_it_is_not_tied_to_one(run):
    """And gives the head to compare."""
    found = audit(written(run))
    assert found.passes
    assert f"compare the head {Transcript.open(run).head}" in found.notes[0]


def test_what_cannot_be_extracted_is_refused(run):
    """A client that is not there; a transcript that was changed; a file that is no extract."""
    with pytest.raises(InputError, match="there is no client 'nobody'; there are 'bank', 'telco', 'shop'"):
        make_extract(Transcript.open(run), "nobody")
    for content in (
        "{}",
        '{"format": "verfedsv extract", "version": 2}',
        '{"format": "verfedsv extract", "version": 1}',
    ):
        with pytest.raises(InputError, match=r"not the JSON of an extract|of format version 2|'records' is missing"):
            Extract.from_json(content)
    path = run / "transcript" / "uploads.arrows"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(TranscriptError):
        make_extract(Transcript.open(run), "telco")


def test_an_extract_has_no_more_rows_than_bytes(tmp_path):
    """Rows whose columns lie in a gap would cost nothing in the file: a billion of them, all without a client."""
    rows = 10_000
    schema = upload_schema("float64")
    columns = [pa.nulls(rows, field.type) if field.nullable else None for field in schema]
    columns[1] = pa.array(np.zeros(rows))
    for number in (4, 5):
        columns[number] = pa.array([[]] * rows, schema.field(number).type)
    message = pa.record_batch(columns, schema=schema).serialize().to_pybytes()
    start = message.index(bytes(1000))
    pieces = [base64.b64encode(piece).decode() for piece in (message[:start], b"")]
    forged = Record(pieces, [len(message) - start], [], "00" * 32)
    extract = make_extract(record(tmp_path / "run").transcript, "telco")
    with pytest.raises(TranscriptError, match="it has more rows than the extract has bytes"):
        replace(extract, records=[extract.records[0], forged]).verify()
