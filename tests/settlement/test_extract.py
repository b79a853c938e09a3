import hashlib
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tests.memory import IS_KNOWN, reset_peak, resident
from tests.settlement.runs import CLIENTS, make_run, record, sign
from tests.transcript import forgeries
from verfedsv import InputError, TranscriptError
from verfedsv.settlement.audit import audit
from verfedsv.settlement.extract import MAGIC, Extract, Part, make_extract
from verfedsv.settlement.keys import read_private_key
from verfedsv.settlement.statement import Statement, canonical
from verfedsv.texts import error_text
from verfedsv.transcript import Recorder, Transcript, Upload
from verfedsv.transcript import format as fmt
from verfedsv.transcript.format import Kind, upload_schema

MODES = [("synchronous", np.float64), ("asynchronous", np.float64), ("asynchronous", np.float32)]


@pytest.fixture(params=MODES, ids=lambda param: f"{param[0]}-{param[1].__name__}")
def run(request, tmp_path):
    """Return a signed run."""
    folder = make_run(tmp_path / "run", mode=request.param[0], precision=request.param[1])
    sign(folder)
    return folder


def written(run, client="telco"):
    """Return where the extract of a client was written, beside the run."""
    path = run.parent / f"{client}.extract"
    path.write_bytes(make_extract(Transcript.open(run), client).to_bytes())
    return path


def uploads(run, client):
    return [record for record in Transcript.open(run) if isinstance(record, Upload) and record.client == client]


def test_an_extract_leads_to_the_head_of_the_statement(run):
    """This holds for every client, with its own uploads only."""
    for client in CLIENTS:
        found = audit(written(run, client), statement_path=run / "statement.json")
        assert found.passes, found.difference
        names = [check.name for check in found.checks]
        assert names == ["signature", "chain", "uploads", "agreed", "payouts", "terms", "own payout"]
        for said in (f"the statement says of client {client!r}: value ", "the statement says: loss 0.69315 at the "):
            assert any(note.startswith(said) for note in found.notes)
        basis, m = Statement.read(run / "statement.json").basis, CLIENTS.index(client)
        error = error_text(basis.n_rounds * basis.errors[m])
        assert any(f" over the training, error {error}, share " in note for note in found.notes)
        verified = Extract.from_bytes(written(run, client).read_bytes()).verify()
        found = verified.verified
        assert (found.link.hex(), found.roster.clients) == (Transcript.open(run).head, tuple(CLIENTS))
        for upload, expected in zip(verified.uploads, uploads(run, client), strict=True):
            assert (upload.client, upload.time) == (client, expected.time)
            np.testing.assert_array_equal(upload.samples, expected.samples)
            np.testing.assert_array_equal(upload.embeddings, expected.embeddings)


def test_nothing_of_others_is_in_an_extract(run):
    """It contains no embedding of another client, and no label."""
    content = written(run).read_bytes()
    for other in ("bank", "shop"):
        for upload in uploads(run, other):
            assert not any(number.tobytes() in content for number in upload.embeddings.ravel())
    assert all(upload.embeddings.tobytes() in content for upload in uploads(run, "telco"))
    assert Transcript.open(run).labels.tobytes() not in content


def test_an_extract_is_about_as_large_as_the_uploads(tmp_path):
    """This holds in asynchronous training too, where other clients send many messages: 26 classes, batches of 50."""
    rng = np.random.default_rng(0)
    clients = [f"client {number}" for number in range(4)]
    with Recorder(tmp_path, np.arange(600) % 26, clients, "softmax") as recorder:
        for number in range(200):
            recorder.update(clients[number % 4], rng.permutation(600)[:50], rng.normal(size=(50, 26)), time=number)
            if number % 4 == 3:
                recorder.stamp(rng.normal(size=26), time=number)
    transcript = Transcript.open(tmp_path)
    size = sum(
        len(record.samples) * (4 + 26 * 8) for record in transcript if getattr(record, "client", "") == clients[1]
    )
    assert len(make_extract(transcript, clients[1]).to_bytes()) < 1.2 * size


def size_of_upload(run):
    first = uploads(run, "telco")[0]
    return first.samples.nbytes + first.embeddings.nbytes


def nudge(extract, run):
    own = bytearray(extract.own)
    own[2 * size_of_upload(run) + size_of_upload(run) - 1] ^= 1
    return {"own": own}


def swap(extract, run):
    size = size_of_upload(run)
    return {"own": bytes(extract.own[size : 2 * size]) + bytes(extract.own[:size]) + bytes(extract.own[2 * size :])}


def without(index):
    return lambda extract, _: {"parts": [part for number, part in enumerate(extract.parts) if number != index]}


@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        (nudge, "the upload in the extract is not the one of the transcript: round 3, client 'telco'"),
        (swap, "not the one of the transcript: round 1, client 'telco'"),
        (lambda extract, _: {"own": extract.own[:-1]}, "it cannot be read (it ends too early)"),
        (lambda extract, _: {"own": extract.own[:0]}, "it cannot be read (it ends too early)"),
        (lambda extract, _: {"own": bytes(extract.own) + bytes(8)}, "the extract has more uploads than the transcript"),
        (lambda _, __: {"client": "bank"}, "round 1, client 'bank'"),
        (lambda _, __: {"client": "nobody"}, "there is no client 'nobody'"),
        (
            lambda _, __: {"labels_sha256": "00" * 32},
            "the extract was changed: its description, the hash of its labels",
        ),
        (
            lambda _, __: {"labels_sha256": "AB" * 32},
            "the extract was changed: its description, the hash of its labels",
        ),
        (lambda _, __: {"labels_sha256": "labels"}, "it cannot be read"),
        (lambda _, __: {"head": "00" * 32}, "the extract was changed: its description, the hash of its labels, or a"),
        (
            lambda _, __: {"parts": [], "head": "", "own": b""},
            "the transcript is not the one that was signed",
        ),
        (without(0), "the extract was changed"),
        (lambda extract, _: {"parts": extract.parts[:-1]}, "the extract "),
        (without(3), "the extract "),
        (lambda extract, _: {"description": extract.description + " "}, "the extract was changed: its description"),
        (lambda _, __: {"description": "5"}, "not the description of a transcript"),
    ],
)
def test_a_changed_extract_is_found(run, edit, difference):
    """Uploads are changed, swapped, left out, added or of another client; records are cut off or damaged."""
    path = written(run)
    extract = Extract.from_bytes(path.read_bytes())
    path.write_bytes(replace(extract, **edit(extract, run)).to_bytes())
    found = audit(path, statement_path=run / "statement.json")
    assert not found.passes
    assert difference in found.difference


def test_an_extract_of_fewer_records_is_of_another_transcript(run):
    """It is consistent, but its head is not the one that was signed."""
    path = written(run)
    extract = Extract.from_bytes(path.read_bytes())
    n_parts = len(extract.parts) - (1 if Transcript.open(run).description.mode == "synchronous" else 4)
    entries = [entry for entry in Transcript.open(run).entries() if entry.kind is not Kind.START]
    shorter = replace(
        extract,
        parts=extract.parts[:n_parts],
        own=extract.own[: len(extract.own) - size_of_upload(run)],
        head=entries[n_parts - 1].link.hex(),
    )
    assert shorter.verify().verified.n_rounds == 5
    path.write_bytes(shorter.to_bytes())
    found = audit(path, statement_path=run / "statement.json")
    assert "the transcript is not the one that was signed" in found.difference


def test_an_extract_of_a_roster_and_segments(tmp_path):
    """A client may join late, and others leave, across segments."""
    with Recorder(tmp_path, [0, 1, 1], ["bank", "telco"], segment_rounds=2) as recorder:
        for number in range(7):
            if number == 2:
                recorder.join("shop")
            if number == 5:
                recorder.leave("bank")
            recorder.log([number % 3], {name: [float(number)] for name in recorder.members})
    transcript = Transcript.open(tmp_path)
    for client, rounds in (("bank", range(5)), ("telco", range(7)), ("shop", range(2, 7))):
        verified = Extract.from_bytes(make_extract(transcript, client).to_bytes()).verify()
        assert [float(upload.embeddings[0, 0]) for upload in verified.uploads] == [*map(float, rounds)]
        found = verified.verified
        assert (found.link.hex(), found.n_rounds, found.roster) == (transcript.head, 7, transcript.verify().roster)


def test_any_flipped_bit_of_an_extract_is_found(run):
    """200 random bits are flipped, one at a time."""
    rng = np.random.default_rng(0)
    content = written(run).read_bytes()
    Extract.from_bytes(content).verify()
    for _ in range(200):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        with pytest.raises((TranscriptError, InputError)):
            Extract.from_bytes(bytes(changed)).verify()


def test_an_extract_of_a_forged_transcript_is_found(tmp_path):
    """If digests lay in gaps of the chain, other digests would lead to the same head."""
    record(tmp_path / "honest")
    head = forgeries.rewrite(tmp_path / "honest", tmp_path / "forged", forgeries.over_digests)
    honest = make_extract(Transcript.open(tmp_path / "honest"), "telco")
    parts = [honest.parts[0]]
    for part in honest.parts[1:]:
        content, _ = part.message()
        message = pa.py_buffer(forgeries.over_digests(content.to_pybytes()))
        ranges = forgeries.bare_ranges(message, forgeries.read(message))
        parts.append(cut(part.kind, message.to_pybytes(), ranges))
    with pytest.raises(TranscriptError, match="columns overlap"):
        replace(honest, parts=parts, head=head).verify()


def cut(kind, message, ranges):
    """Return a message with gaps between some ranges."""
    pieces = [message[start:stop] for start, stop in ranges] + [b""] * (3 - len(ranges))
    gaps = [after[0] - before[1] for before, after in pairwise(ranges)]
    return Part(kind, pieces, gaps + [0] * (2 - len(gaps)))


INVALID = {
    "unknown": ([forgeries.upload("thief", [0], [1.0])], "round 1, client 'thief' is unknown"),
    "lengths": ([forgeries.upload("shop", [0, 1], [1.0])], "round 1, client 'shop': 1 embeddings for 2 samples"),
    "infinite time": (
        [forgeries.upload("bank", [0], [1.0], np.inf)],
        "round 1, all rows of a record must have the same time, from -1e15 to 1e15 seconds",
    ),
    "repeated samples": (
        [forgeries.upload("telco", [1, 1], [1.0, 2.0])],
        "client 'telco': a sample is repeated",
    ),
    "out of range": ([forgeries.upload("telco", [9], [1.0])], "client 'telco': sample 9 is not one of 0 to 3"),
    "infinite": ([forgeries.upload("telco", [1], [np.inf])], "client 'telco': embeddings must be finite"),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_extract_of_what_no_recorder_writes_is_found(tmp_path, case):
    """The rules for transcripts apply as far as an extract shows the numbers, even if all hashes are right."""
    rows, why = INVALID[case]
    about = forgeries.ABOUT | {"mode": "asynchronous"}
    forged = Transcript.open(forgeries.write(tmp_path / "run", [rows, [forgeries.stamp(2.0)]], about))
    description, labels = forged.origin
    parts = [Part.of(entry) for entry in forged.entries() if entry.kind is not Kind.START]
    numbers = [np.array(row["samples"], np.uint32).tobytes() + np.array(row["embeddings"]).tobytes() for row in rows]
    own = b"".join(numbers) if rows[0]["client"] == "telco" else b""
    extract = Extract("telco", description.decode(), hashlib.sha256(labels).hexdigest(), forged.head, parts, own)
    with pytest.raises(TranscriptError, match=why):
        extract.verify()


def test_a_client_that_was_absent_has_an_extract(tmp_path):
    """It has the uploads of the rounds that it took part in, and the audit counts the others."""
    with Recorder(tmp_path / "run", [0, 1, 1], ["bank", "telco"]) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 2.0], "telco": [3.0, 4.0]})
        recorder.log([2], {"bank": [5.0]}, absent=["telco"])
    transcript = Transcript.open(tmp_path / "run")
    for client, n_uploads in (("bank", 2), ("telco", 1)):
        verified = Extract.from_bytes(make_extract(transcript, client).to_bytes()).verify()
        assert (len(verified.uploads), verified.verified.n_rounds) == (n_uploads, 2)
        assert verified.verified.link.hex() == transcript.head
        found = audit(written(tmp_path / "run", client))
        told = f"client {client!r} was declared absent from 1 of 2 rounds: if it took part, its uploads are missing"
        assert (told in found.notes) == (client == "telco")


@pytest.mark.parametrize("kind", [Kind.START, Kind.ROUND])
def test_messages_without_content_take_no_memory(tmp_path, kind):
    """A sparse file can state millions of them."""
    with Recorder(tmp_path / "run", [0, 1], ["bank"]) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 2.0]})
    honest = make_extract(Transcript.open(tmp_path / "run"), "bank")
    content = replace(honest, parts=honest.parts[:1], own=b"").to_bytes()
    n_headers = 200_000
    at = content.rindex((1).to_bytes(8, "little"))  # the number of headers
    header = kind.to_bytes(4, "little") + bytes(44)
    content = content[:at] + n_headers.to_bytes(8, "little") + header * n_headers
    tracemalloc.start()
    with pytest.raises((InputError, TranscriptError), match="extract"):
        Extract.from_bytes(content).verify()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(content)


@pytest.mark.skipif(not IS_KNOWN, reason="needs /proc")
@pytest.mark.parametrize("gap", [2**33, 2**60, 2**63, 2**64 - 1])
def test_gaps_take_no_memory(tmp_path, gap):
    """This holds however large an extract claims they are."""
    honest = make_extract(Transcript.open(make_run(tmp_path / "run", mode="asynchronous")), "telco")
    forged = replace(honest.parts[1], gaps=[gap, honest.parts[1].gaps[1]])
    content = replace(honest, parts=[honest.parts[0], forged, *honest.parts[2:]]).to_bytes()
    before = reset_peak()
    with pytest.raises(TranscriptError, match="the extract was changed"):
        Extract.from_bytes(content).verify()
    assert resident(what="VmHWM") - before < 2**24


def test_gaps_are_where_the_numbers_were(run):
    """Bytes in a gap are not part of the chain, and could be anything."""
    honest = make_extract(Transcript.open(run), "telco")
    message, _ = honest.parts[1].message()
    filled = replace(honest.parts[1], pieces=[message.to_pybytes(), b"", b""], gaps=[0, 0])
    with pytest.raises(TranscriptError, match="the extract was changed"):
        replace(honest, parts=[honest.parts[0], filled, *honest.parts[2:]]).verify()


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
            "the settlement in the statement: clients is ",
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
    """The note gives the head to compare."""
    found = audit(written(run))
    assert found.passes
    assert f"compare the head {Transcript.open(run).head}" in found.notes[0]


def test_what_cannot_be_extracted_is_refused(run):
    """An unknown client, a changed transcript, and a file that is not an extract are refused."""
    with pytest.raises(InputError, match="there is no client 'nobody'; there are 'bank', 'telco', 'shop'"):
        make_extract(Transcript.open(run), "nobody")
    content = written(run).read_bytes()
    for wrong, message in (
        (b"{}", "it ends too early"),
        (b"x" * 100, "this is not an extract that verfedsv wrote"),
        (MAGIC + b"\1" + content[len(MAGIC) + 1 :], "of format version 1; this verfedsv reads version 2"),
        (content[:200], "it ends too early"),
    ):
        with pytest.raises(InputError, match=message):
            Extract.from_bytes(wrong)
    path = run / "transcript" / fmt.uploads_file(1)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(TranscriptError):
        make_extract(Transcript.open(run), "telco")


def test_an_extract_has_no_more_rows_than_bytes(tmp_path):
    """Rows whose columns lie in a gap would cost nothing in the file, and much time to read."""
    n_rows, schema = 10_000, upload_schema("float64")
    columns = [pa.nulls(n_rows, field.type) for field in schema]
    columns[0] = pa.array([""] * n_rows)
    columns[2] = pa.array(np.zeros(n_rows))
    for number in (6, 7):
        columns[number] = pa.array([[]] * n_rows, schema.field(number).type)
    message = pa.record_batch(columns, schema=schema).serialize()
    start = message.to_pybytes().index(bytes(1000))
    forged = Part(Kind.ROUND, [message.to_pybytes()[:start], b"", b""], [message.size - start, 0])
    extract = make_extract(record(tmp_path / "run").transcript, "telco")
    with pytest.raises(TranscriptError, match="the extract was changed"):
        replace(extract, parts=[extract.parts[0], forged]).verify()


END = Part(Kind.END, [fmt.END_OF_STREAM, b"", b""], [0, 0])


def split(part, *sizes):
    """Return a part in three pieces without gaps between them."""
    content = part.message()[0].to_pybytes()
    first, second = sizes
    return replace(part, pieces=[content[:first], content[first:second], content[second:]], gaps=[0, 0])


def hollow(part):
    """Return a part with a gap where three zeros were."""
    content = part.message()[0].to_pybytes()
    start = content.index(bytes(3), 16)
    return replace(part, pieces=[content[:start], content[start + 3 :], b""], gaps=[3, 0])


@pytest.mark.parametrize(
    "edit",
    [
        lambda parts: parts[1:],
        lambda parts: [parts[0], *parts],
        lambda parts: [END, *parts],
        lambda parts: [*parts[:3], END, *parts[3:]],
        lambda parts: [*parts[:3], parts[0], *parts[3:]],
        lambda parts: [*parts[:3], END, parts[0], *parts[3:]],
        lambda parts: [part for part in parts if part.kind is not Kind.END],
        lambda parts: [part for index, part in enumerate(parts) if index == 0 or part.kind is not Kind.SCHEMA],
        lambda parts: [*parts, END],
        lambda parts: [*parts, parts[0]],
        lambda parts: [parts[0], END, *parts],
        lambda parts: [*parts[:4], replace(END, kind=Kind.START), *parts[4:]],
        lambda parts: [hollow(parts[0]), *parts[1:]],
        lambda parts: [split(parts[0], 100, 200), *parts[1:]],
        lambda parts: [parts[0], split(parts[1], 100, 200), *parts[2:]],
        lambda parts: [split(part, 2, 4) if part.kind is Kind.END else part for part in parts],
    ],
)
def test_an_extract_has_the_segments_of_a_transcript(tmp_path, edit):
    """A schema, records, an end marker after the last round, all of them hashed: else no transcript has that head."""
    with Recorder(tmp_path, [0, 1, 1], ["bank", "telco"], segment_rounds=3) as recorder:
        for number in range(7):
            recorder.log([number % 3], {name: [float(number)] for name in ("bank", "telco")})
    honest = make_extract(Transcript.open(tmp_path), "telco")
    assert with_parts(honest, [*honest.parts]).verify().verified.n_rounds == 7
    with pytest.raises(TranscriptError, match="the extract was changed"):
        with_parts(honest, edit([*honest.parts])).verify()


def with_parts(extract, parts):
    """Return an extract of these messages, with the head that their hashes lead to."""
    link = fmt.link_of_digests(
        hashlib.sha256(extract.description.encode()).digest(), bytes.fromhex(extract.labels_sha256)
    )
    for part in parts:
        link = fmt.next_link(link, *part.message())
    return replace(extract, parts=parts, head=link.hex())


def test_metadata_that_are_too_long_are_refused(run):
    """They are not those of a message."""
    extract = make_extract(Transcript.open(run), "telco")
    long = 2**14
    head = b"\xff\xff\xff\xff" + long.to_bytes(4, "little") + bytes(long)
    forged = replace(extract, parts=[replace(part, pieces=[head, *part.pieces[1:]]) for part in extract.parts])
    with pytest.raises(InputError, match="the metadata of a message are too long"):
        Extract.from_bytes(forged.to_bytes())


def test_shared_metadata_are_held_once(run):
    """Else 50 bytes per message in the file would be 16 kB in memory."""
    extract = make_extract(Transcript.open(run), "telco")
    size, n_parts = 2**14, 10_000
    head = b"\xff\xff\xff\xff" + (size - 8).to_bytes(4, "little") + bytes(size - 8)
    content = replace(extract, parts=[Part(Kind.ROUND, [head + b"x", b"", b""], [0, 0])] * n_parts, own=b"").to_bytes()
    assert len(content) < 1_000_000
    tracemalloc.start()
    found = Extract.from_bytes(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    assert found.to_bytes() == content


def test_more_rounds_than_agreed_are_not_in_an_extract(tmp_path):
    """A client finds them in its own part, too."""
    rows = [[forgeries.upload(n, [0], [0.1], t) for n in forgeries.ABOUT["clients"]] for t in (1.0, 2.0)]
    rounds = [[*uploaded, forgeries.stamp(time)] for uploaded, time in zip(rows, (1.0, 2.0), strict=True)]
    folder = forgeries.write(tmp_path / "run", rounds, about=forgeries.ABOUT | {"n_planned": 2})
    extract = make_extract(Transcript.open(folder), "bank")
    assert extract.verify().verified.n_rounds == 2
    described = extract.description.replace('"n_planned": 2', '"n_planned": 1')
    assert described != extract.description
    with pytest.raises(TranscriptError, match="there are 2 rounds, and 1 were agreed"):
        replace(extract, description=described).verify()
