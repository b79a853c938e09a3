import dataclasses
import hashlib
import json
import os
import re
import shutil
import warnings
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.transcript import forgeries
from verfedsv.errors import InputError, TranscriptError, TranscriptWarning
from verfedsv.settings import ValuationSettings
from verfedsv.transcript import Description, Head, Recorder, Stamp, Transcript, Upload
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain, Segment, pack_entry
from verfedsv.transcript.format import Kind
from verfedsv.transcript.storage import FolderStorage

CLIENTS = ["bank", "telco", "shop"]
LABELS = np.arange(40) % 2
ROOT = Path(__file__).parents[2]
UPLOADS, CHAIN = forgeries.UPLOADS, forgeries.CHAIN


def full(values):
    """Return the same embeddings for every client."""
    return {client: values for client in CLIENTS}  # noqa: C420  # fromkeys is for immutable values


def record(path, n_rounds=5, seed=0, n_classes=None, dtype=np.float64, offset=False, **options):
    """Record a synchronous training and return what was logged."""
    rng = np.random.default_rng(seed)
    logged = []
    loss = "softmax" if n_classes else "logistic"
    with Recorder(path, LABELS, CLIENTS, loss, n_classes=n_classes, **options) as recorder:
        for _ in range(n_rounds):
            batch = rng.permutation(40)[:16]
            shape = (16, n_classes) if n_classes else (16,)
            embeddings = {client: rng.normal(size=shape).astype(dtype) for client in CLIENTS}
            own = rng.normal(size=shape).astype(dtype) if offset else None
            recorder.log(batch, embeddings, own)
            logged.append((batch, embeddings, own))
    return logged


def rounds(transcript):
    """Return the uploads of each round, and its stamp."""
    result, uploads = [], []
    for entry in transcript:
        if isinstance(entry, Stamp):
            result.append((uploads, entry))
            uploads = []
        else:
            uploads.append(entry)
    return result


@pytest.mark.parametrize("n_classes", [None, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [False, True])
def test_what_was_logged_is_read_back(tmp_path, n_classes, dtype, offset):
    """Every upload of every client comes back in order, to the last bit, in the precision it was recorded in."""
    logged = record(tmp_path / "run", n_classes=n_classes, dtype=dtype, offset=offset)
    transcript = Transcript.open(tmp_path / "run")
    transcript.verify()
    assert transcript.n_rounds == 5
    assert transcript.description.mode == "synchronous"
    np.testing.assert_array_equal(transcript.labels, LABELS)
    for (batch, embeddings, own), (uploads, stamp) in zip(logged, rounds(transcript), strict=True):
        assert [upload.client for upload in uploads] == CLIENTS
        for upload in uploads:
            assert upload.embeddings.dtype == dtype
            np.testing.assert_array_equal(upload.samples, batch)
            np.testing.assert_array_equal(upload.embeddings, embeddings[upload.client].reshape(16, -1))
        if own is None:
            assert stamp.offset is None
        else:
            np.testing.assert_array_equal(stamp.offset, own.reshape(16, -1))


def test_asynchronous_uploads_come_back_in_the_order_of_arrival(tmp_path):
    """Uploads and stamps keep their order and their times, and each client its own batches."""
    with Recorder(tmp_path, LABELS, CLIENTS) as recorder:
        recorder.update("telco", [3, 1], [0.5, -0.5], time=0.1)
        recorder.update("bank", [0], [1.5], time=0.2)
        recorder.stamp(time=0.25)
        recorder.update("telco", [7], [2.5], time=0.3)
        recorder.stamp(np.linspace(0, 1, 40), time=0.5)
    entries = list(Transcript.open(tmp_path))
    assert [type(entry) for entry in entries] == [Upload, Upload, Stamp, Upload, Stamp]
    assert [entry.time for entry in entries] == [0.1, 0.2, 0.25, 0.3, 0.5]
    assert entries[0].client == "telco"
    np.testing.assert_array_equal(entries[0].samples, [3, 1])
    np.testing.assert_array_equal(entries[0].embeddings, [[0.5], [-0.5]])
    assert entries[4].offset.shape == (40, 1)


def test_an_uploaded_zero_is_an_upload(tmp_path):
    """Zeros are recorded like any other number."""
    with Recorder(tmp_path, LABELS, ["one"]) as recorder:
        recorder.log([4, 5], {"one": [0.0, 0.0]})
    upload = next(iter(Transcript.open(tmp_path)))
    np.testing.assert_array_equal(upload.samples, [4, 5])
    np.testing.assert_array_equal(upload.embeddings, [[0.0], [0.0]])


def test_recording_in_memory():
    """Without a path nothing is written to disk, and all else is the same."""
    recorder = Recorder(None, LABELS, ["one"])
    recorder.log([1], {"one": [0.5]})
    assert recorder.transcript.n_rounds == 1
    recorder.log([2], {"one": [0.25]})
    recorder.transcript.verify()
    assert recorder.transcript.n_rounds == recorder.n_rounds == 2


def test_tensors_are_taken_off_their_graph():
    """Any object with detach and cpu, like a torch tensor, is recorded; torch is not needed."""

    class Tensor:
        def __init__(self, values, attached=True):
            self.values, self.attached = np.asarray(values, dtype=np.float32), attached

        def detach(self):
            return Tensor(self.values, attached=False)

        def cpu(self):
            return self

        def __array__(self, dtype=None, copy=None):
            assert not self.attached
            return self.values.astype(dtype or np.float32)

    recorder = Recorder(None, LABELS, ["one"])
    recorder.log([1, 2], {"one": Tensor([0.5, 1.5])})
    np.testing.assert_array_equal(next(iter(recorder.transcript)).embeddings, np.float32([[0.5], [1.5]]))


def test_rows_without_gradients_are_marked(tmp_path):
    """Samples that receive no gradients are marked in the transcript, and a recorder with other marks is refused."""
    record(tmp_path, no_gradient=[2, 5])
    marks = Transcript.open(tmp_path).receives_gradient
    np.testing.assert_array_equal(np.flatnonzero(~marks), [2, 5])
    with pytest.raises(InputError, match="other labels or no_gradient"):
        Recorder(tmp_path, LABELS, CLIENTS)


def test_a_folder_is_continued(tmp_path):
    """A second recorder appends to what is there: the same bytes as one recorder would have written."""
    record(tmp_path / "parts", n_rounds=3, seed=1)
    first = Transcript.open(tmp_path / "parts").head
    with Recorder(tmp_path / "parts", LABELS, CLIENTS, resume=True) as recorder:
        assert recorder.n_rounds == 3
        recorder.log([0, 1], full([1.0, 2.0]))
    transcript = Transcript.open(tmp_path / "parts")
    transcript.verify()
    assert transcript.n_rounds == 4
    assert transcript.head != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": ["bank", "telco"]}, "cannot be continued with clients"),
        ({"loss": "squared"}, "cannot be continued"),
        ({"labels": 1 - LABELS}, "other labels"),
    ],
)
def test_another_training_is_not_mixed_in(tmp_path, change, message):
    """A folder is not continued with other clients, another loss or other labels; it stays as it was."""
    record(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=message):
        Recorder(tmp_path, **({"labels": LABELS, "clients": CLIENTS, "loss": "logistic"} | change))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_recorders_do_not_share_a_folder(tmp_path):
    """A second recorder is refused until the first is closed."""
    with Recorder(tmp_path, LABELS, CLIENTS), pytest.raises(TranscriptError, match="another recorder is open on"):
        Recorder(tmp_path, LABELS, CLIENTS)
    Recorder(tmp_path, LABELS, CLIENTS).close()


def test_a_torn_record_is_cut_off_wherever_it_tore(tmp_path):
    """Whatever prefix of the last record a crash left, the rounds before it are kept and the rest is reported."""
    record(tmp_path / "whole", n_rounds=2)
    record(tmp_path / "long", n_rounds=3)
    size, chain = ((tmp_path / "whole" / name).stat().st_size for name in (UPLOADS, CHAIN))
    long_size = (tmp_path / "long" / UPLOADS).stat().st_size
    cuts = [(size + part, chain) for part in range(1, long_size - size, 97)]
    cuts += [(long_size, chain), *((long_size, chain + part) for part in (1, 20, 47))]
    for index, (end, chain_end) in enumerate(cuts):
        folder = tmp_path / str(index)
        shutil.copytree(tmp_path / "long", folder)
        os.truncate(folder / UPLOADS, end)
        os.truncate(folder / CHAIN, chain_end)
        assert Transcript.open(folder).n_rounds == 2
        with pytest.warns(TranscriptWarning, match="unfinished record, now cut off"):
            recorder = Recorder(folder, LABELS, CLIENTS, resume=True)
        recorder.log([1], full([0.5]))
        recorder.close()
        Transcript.open(folder).verify()
        assert Transcript.open(folder).n_rounds == 3


def record_until_killed(path, connection):
    """Log round after round, each with its number, and say so after each."""
    warnings.simplefilter("ignore", TranscriptWarning)
    recorder = Recorder(path, LABELS, CLIENTS, resume=True)
    number = recorder.n_rounds
    while True:
        connection.send(number)
        number += 1
        recorder.log([number % 40], full([float(number)]))


@pytest.mark.filterwarnings("ignore::verfedsv.errors.TranscriptWarning")
def test_no_completed_upload_is_lost_by_kill(tmp_path):
    """Killed 50 times at random and continued each time: every round whose log() returned is recorded, in order."""
    rng = np.random.default_rng(0)
    context = get_context("forkserver")  # which imports everything once, and not 50 times
    context.set_forkserver_preload([__name__, "pandas"])  # pyarrow imports pandas if it is there
    for _ in range(50):
        connection, theirs = context.Pipe(duplex=False)
        process = context.Process(target=record_until_killed, args=(tmp_path, theirs))
        process.start()
        theirs.close()
        completed = [connection.recv() for _ in range(rng.integers(2, 12))]
        process.kill()
        with suppress(EOFError):
            while True:
                completed.append(connection.recv())
        process.join()
        found = [uploads[0].embeddings[0, 0] for uploads, _ in rounds(Transcript.open(tmp_path))]
        assert len(found) >= completed[-1]
        assert found == list(range(1, len(found) + 1))
    assert completed[-1] > 50
    Recorder(tmp_path, LABELS, CLIENTS, resume=True).close()
    Transcript.open(tmp_path).verify()


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_any_flipped_bit_is_found(tmp_path, mode):
    """200 random bits, flipped one at a time, anywhere in the folder: each is found by verify."""
    if mode == "synchronous":
        record(tmp_path, n_rounds=4, n_classes=3)
    else:
        with Recorder(tmp_path, LABELS, CLIENTS) as recorder:
            for number in range(12):
                recorder.update(CLIENTS[number % 3], [number], [float(number)], time=number)
                recorder.stamp(time=number)
    rng = np.random.default_rng(0)
    files = [path for path in sorted(tmp_path.iterdir()) if path.stat().st_size]
    sizes = np.array([path.stat().st_size for path in files], dtype=float)
    Transcript.open(tmp_path).verify()
    for _ in range(200):
        path = files[rng.choice(len(files), p=sizes / sizes.sum())]
        content = bytearray(path.read_bytes())
        position, bit = rng.integers(len(content)), rng.integers(8)
        content[position] ^= 1 << bit
        path.write_bytes(content)
        with pytest.raises(TranscriptError):
            Transcript.open(tmp_path).verify()
        content[position] ^= 1 << bit
        path.write_bytes(content)
    Transcript.open(tmp_path).verify()


def test_a_change_is_named_by_round_and_client(tmp_path):
    """A changed embedding is named: which round, which client."""
    logged = record(tmp_path, n_rounds=6)
    path = tmp_path / UPLOADS
    content = bytearray(path.read_bytes())
    position = content.find(logged[3][1]["telco"].tobytes())
    content[position + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match="round 4, client 'telco'"):
        Transcript.open(tmp_path).verify()


def test_swapped_and_dropped_records_are_found(tmp_path):
    """Valid records in another order break the chain."""
    record(tmp_path, n_rounds=5)
    content = (tmp_path / CHAIN).read_bytes()
    ends = [int.from_bytes(content[i : i + 8], "little") for i in range(48, len(content), 48)]
    stream, chain = (tmp_path / UPLOADS).read_bytes(), (tmp_path / CHAIN).read_bytes()
    third, fourth = stream[ends[2] : ends[3]], stream[ends[3] : ends[4]]
    (tmp_path / UPLOADS).write_bytes(stream[: ends[2]] + fourth + third + stream[ends[4] :])
    with pytest.raises(TranscriptError, match="round 3"):
        Transcript.open(tmp_path).verify()
    (tmp_path / UPLOADS).write_bytes(stream[: ends[2]] + stream[ends[3] :])
    (tmp_path / CHAIN).write_bytes(chain[:192] + chain[240:])
    with pytest.raises(TranscriptError):
        Transcript.open(tmp_path).verify()


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (forgeries.over_digests, "columns overlap"),
        (forgeries.stamps_with_numbers, "there are samples that are part of no upload"),
        (forgeries.without_some_numbers, "embeddings are missing"),
    ],
)
def test_a_chain_that_does_not_cover_everything_is_refused(tmp_path, layout, reason):
    """Although all hashes are right: two such transcripts could have one head and different uploads."""
    record(tmp_path / "honest", n_rounds=2)
    forgeries.rewrite(tmp_path / "honest", tmp_path / "same", lambda content: content)
    Transcript.open(tmp_path / "same").verify()
    forgeries.rewrite(tmp_path / "honest", tmp_path / "forged", layout)
    with pytest.raises(TranscriptError, match=rf"the transcript was changed: round 1.*{reason}"):
        Transcript.open(tmp_path / "forged").verify()


@pytest.mark.parametrize(
    ("layout", "reason"), [(forgeries.over_lists, "overlap"), (forgeries.compressed, "compressed")]
)
def test_columns_lie_by_themselves_in_a_message(tmp_path, layout, reason):
    """If they overlap or are compressed, the hashed bytes do not determine the others."""
    record(tmp_path, n_rounds=1)
    *_, entry = Transcript.open(tmp_path).entries()
    forged = pa.py_buffer(layout(entry.message.to_pybytes()))
    with pytest.raises(ValueError, match=reason):
        fmt.form_of(forged, "float64")


def test_two_transcripts_do_not_have_one_head(tmp_path):
    """The layout that would let them: digests lie where the chain has gaps."""
    about, heads = None, []
    for seed in (0, 1):
        logged = record(tmp_path / f"{seed}", n_rounds=1, seed=seed)
        about = about or (tmp_path / "0" / "transcript.json").read_bytes()
        heads.append(forgeries.rewrite(tmp_path / f"{seed}", tmp_path / f"forged{seed}", forgeries.over_digests, about))
        forged = Transcript.open(tmp_path / f"forged{seed}")
        assert logged[0][0].astype(np.uint32).tobytes() in (tmp_path / f"forged{seed}" / UPLOADS).read_bytes()
        for read in (forged.verify, lambda forged=forged: list(forged)):
            with pytest.raises(TranscriptError, match=r"part of no upload|columns overlap"):
                read()
    assert heads[0] == heads[1]


def test_the_stream_says_what_is_read(tmp_path):
    """Readers that go by the schema in the stream find the columns that were checked."""
    record(tmp_path / "run", n_rounds=1)
    transcript = Transcript.open(tmp_path / "run")
    names = {"samples": "embeddings", "embeddings": "samples"}
    fields = [field.with_name(names.get(field.name, field.name)) for field in forgeries.SCHEMA]
    other = pa.schema(fields).serialize()
    stream, chain, _ = forgeries.chained(fmt.first_link(*transcript.origin), [(Kind.SCHEMA, other, None)])
    (tmp_path / "run" / UPLOADS).write_bytes(stream)
    (tmp_path / "run" / CHAIN).write_bytes(chain)
    with pytest.raises(TranscriptError, match="the columns are not those of a transcript"):
        Transcript.open(tmp_path / "run").verify()


def test_a_schema_that_only_means_the_same_is_refused(tmp_path):
    """Another reader may refuse it, or see an extension type in it: the bytes are those of the documentation."""
    for precision in ("float32", "float64"):
        message = fmt.upload_schema(precision).serialize()
        fmt.check_schema(message, precision)
        assert hashlib.sha256(message).hexdigest() in (ROOT / "docs" / "transcript.md").read_text()
    record(tmp_path / "run", n_rounds=1)
    entries = list(Transcript.open(tmp_path / "run", mapped=False).entries())
    named = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
    flipped = bytearray(entries[1].message.to_pybytes())
    flipped[20] = 0  # which pyarrow reads as a message, and not as the beginning of a stream
    others = [
        pa.schema([field.with_metadata(named) for field in forgeries.SCHEMA]).serialize(),
        forgeries.SCHEMA.with_metadata({"a": "b"}).serialize(),
        pa.py_buffer(bytes(flipped)),
    ]
    for other in others:
        rest = [(entry.kind, entry.message, forgeries.read(entry.message)) for entry in entries[2:]]
        stream, chain, _ = forgeries.chained(entries[0].link, [(Kind.SCHEMA, other, None), *rest])
        (tmp_path / "run" / UPLOADS).write_bytes(stream)
        (tmp_path / "run" / CHAIN).write_bytes(chain)
        with pytest.raises(TranscriptError, match="the columns are not those of a transcript"):
            Transcript.open(tmp_path / "run")


@pytest.mark.parametrize(
    "name", ["uploads-000015.arrows", "uploads-1.arrows", "uploads-.arrows", "Uploads-00002.arrows", "chain-x.bin"]
)
def test_files_that_another_reader_could_take_for_segments_are_refused(tmp_path, name):
    """By readers, and by a recorder that would continue the transcript."""
    record(tmp_path, n_rounds=1)
    (tmp_path / name).write_bytes((tmp_path / UPLOADS).read_bytes())
    for read in (Transcript.open, lambda path: Recorder(path, LABELS, CLIENTS, resume=True)):
        with pytest.raises(TranscriptError, match="is named like a file of the transcript, but is not one"):
            read(tmp_path)


@pytest.mark.parametrize(("outer", "inner"), [("", "transcript"), ("transcript", "transcript/transcript")])
def test_a_run_has_one_transcript(tmp_path, outer, inner):
    """Otherwise the path that is passed would decide which of the two is read."""
    record(tmp_path / outer, n_rounds=1)
    record(tmp_path / inner, n_rounds=2)
    with pytest.raises(TranscriptError, match=r"there are two transcripts, in .*: move one of them away"):
        Transcript.open(tmp_path)


@pytest.mark.parametrize("version", [2, 4])
def test_an_unknown_version_is_refused(tmp_path, version):
    """A transcript of an earlier or a later format is answered with both versions and what to do."""
    record(tmp_path)
    description = json.loads((tmp_path / "transcript.json").read_text())
    (tmp_path / "transcript.json").write_text(json.dumps(description | {"version": version}))
    with pytest.raises(TranscriptError, match=f"format version {version}; this verfedsv reads version 3: use the"):
        Transcript.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "other", "version": 1}'])
def test_a_damaged_description_is_refused(tmp_path, content):
    """A file that is not a description is called that."""
    (tmp_path / "transcript.json").write_text(content)
    with pytest.raises(TranscriptError, match=r"transcript\.json"):
        Transcript.open(tmp_path)


def test_no_transcript_there(tmp_path):
    """A folder without one, or no folder, is a clear error."""
    with pytest.raises(TranscriptError, match="there is no transcript in"):
        Transcript.open(tmp_path / "nowhere")


def test_an_empty_transcript(tmp_path):
    """A recorder that recorded nothing leaves a valid transcript of no rounds."""
    Recorder(tmp_path, LABELS, CLIENTS).close()
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    assert (transcript.n_rounds, transcript.head, list(transcript)) == (0, "", [])


BAD = [
    (lambda r: r.log([0, 40], full([1, 2])), "from 0 to 39; received 40"),
    (lambda r: r.log([-1, 4], full([1, 2])), "received -1"),
    (lambda r: r.log([3, 3], full([1, 2])), "sample 3 is repeated"),
    (lambda r: r.log([0.5, 1], full([1, 2])), "list of sample numbers"),
    (lambda r: r.log([[0, 1]], full([1, 2])), "list of sample numbers"),
    (lambda r: r.log([0, 1], {"bank": [1, 2]}), "'telco', 'shop' have none"),
    (lambda r: r.log([0, 1], full([1, 2]) | {"x": [1, 2]}), "embeddings are of 'x'"),
    (lambda r: r.log([0, 1], full([1, 2, 3])), r"received \(3,\)"),
    (lambda r: r.log([0, 1], full([1, np.nan])), "bank: embeddings must be finite"),
    (lambda r: r.log([0, 1], full(["a", "b"])), "real numbers"),
    (
        lambda r: r.log([0, 1], full([[1, 2], [3, 4]])),
        r"shape \(2,\) or \(2, 1\), .*; received \(2, 2\)",
    ),
    (lambda r: r.log([0, 1], full([1.0, 2.0]), [[1.0, 2.0]] * 2), "offset must be a number, or an array of shape"),
    (lambda r: r.log([0, 1], full([1, 2]), time=0.5), "time must not run backwards"),
    (lambda r: r.log([0, 1], full([1, 2]), time=1.7e308), r"seconds, from -1e\+15 to 1e\+15; received 1.7e\+308"),
    (lambda r: r.log([0, 1], full([1, 2]), time=np.nan), "received nan"),
    (lambda r: r.update("bank", [0], [1.0]), "this transcript is synchronous: use log"),
    (lambda r: r.stamp(), "this transcript is synchronous: use log"),
    (
        lambda r: r.update("nobody", [0], [1.0]),
        r"client 'nobody' is unknown; the clients are .*, and recorder\.join\('nobody'\) adds one",
    ),
]


def test_whose_embeddings_have_too_many_digits_is_said():
    """A client by its name, and the offset."""
    single = np.float32([1.0, 2.0])
    with Recorder(None, LABELS, CLIENTS) as recorder:
        recorder.log([0, 1], full(single))
        with pytest.raises(
            InputError, match=r"^telco: received float64, but this transcript began with float32 embedd"
        ):
            recorder.log([0, 1], full(single) | {"telco": [1.0, 2.0]})
        with pytest.raises(InputError, match=r"^offset: received float64"):
            recorder.log([0, 1], full(single), [0.1, 0.2])


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_calls_write_nothing(tmp_path, call, message):
    """Each kind of bad call is an InputError that says what was received, and leaves every file as it was."""
    with Recorder(tmp_path, LABELS, CLIENTS) as recorder:
        recorder.log([0, 1], full([1.0, 2.0]))
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(InputError, match=message):
            call(recorder)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        recorder.log([2, 3], full([1.0, 2.0]))
    Transcript.open(tmp_path).verify()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": []}, "at least one client"),
        ({"clients": "bank"}, "list of names; received 'bank'"),
        ({"clients": ["a", "a"]}, "repeated: a"),
        ({"loss": "hinge"}, "unknown loss"),
        ({"labels": []}, "at least one"),
        ({"no_gradient": [40]}, "no_gradient must hold"),
    ],
)
def test_bad_recorders_are_refused(tmp_path, arguments, message):
    """What cannot be recorded is refused before anything is written."""
    with pytest.raises(InputError, match=message):
        Recorder(tmp_path / "run", **({"labels": LABELS, "clients": CLIENTS} | arguments))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        ([0, 1, 2], "logistic"),
        ([0.5, 1], "softmax"),
        ([0, np.nan], "softmax"),
        (["y", "n", "m"], "logistic"),
        (["y", "y"], "logistic"),
        (["y", None], "logistic"),
        (["y", float("nan")], "logistic"),
        (["y", ""], "softmax"),
        ([f"name {n}" for n in range(30)], "softmax"),
        (["y", "n"], "squared"),
        ([[0], [1]], "logistic"),
    ],
)
def test_labels_that_no_upload_can_fit_are_refused_at_once(tmp_path, labels, loss):
    """Before anything is written."""
    with pytest.raises(InputError, match="labels"):
        Recorder(tmp_path / "run", labels, ["one"], loss)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_not_continued_by_mistake(tmp_path):
    """A second recorder continues with a warning, silently with resume=True, and not at all with False."""
    record(tmp_path, n_rounds=3)
    with pytest.warns(TranscriptWarning, match="holds a transcript of 3 rounds, which is continued"):
        Recorder(tmp_path, LABELS, CLIENTS).close()
    with pytest.raises(InputError, match="already holds a transcript"):
        Recorder(tmp_path, LABELS, CLIENTS, resume=False)


def test_a_folder_without_uploads_can_be_begun_anew(tmp_path):
    """With other labels and clients: nothing of value is lost."""
    Recorder(tmp_path, LABELS, CLIENTS).close()
    with Recorder(tmp_path, LABELS[::-1], ["other"]) as recorder:
        recorder.log([0], {"other": [1.0]})
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    assert transcript.description.clients == ("other",)
    np.testing.assert_array_equal(transcript.labels, LABELS[::-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.log([], full([])), "at least one sample; received none"),
        (lambda r: r.update("bank", [], []), "at least one sample; received none"),
        (lambda r: r.log([0, 1], np.zeros((3, 2))), "must map the name of each client to its array; received ndarray"),
        (lambda r: r.log([0], full([1.0]), time="noon"), "time must be a number; received 'noon'"),
        (lambda r: r.stamp(time="noon"), "time must be a number; received 'noon'"),
    ],
)
def test_more_wrong_uploads(call, message):
    """Each is named."""
    with pytest.raises(InputError, match=message):
        call(Recorder(None, LABELS, CLIENTS))


@pytest.mark.parametrize("clients", [2, {"a", "b"}, ["a "], ["a\nb"], ["\x1b[31mred"]])
def test_names_that_would_confuse(clients):
    """Sets have no order; control characters and outer spaces would confuse those who read a table."""
    with pytest.raises(InputError, match="clients"):
        Recorder(None, LABELS, clients)


def test_a_mask_of_samples_without_gradients():
    """A mask of all samples replaces a list of numbers."""
    mask = np.arange(40) % 4 == 0
    np.testing.assert_array_equal(Recorder(None, LABELS, CLIENTS, no_gradient=mask).transcript.receives_gradient, ~mask)


def test_places_that_cannot_hold_a_transcript(tmp_path):
    """A file and a missing folder are told apart."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TranscriptError, match=r"cannot record into .*: it is a file"):
        Recorder(tmp_path / "file", LABELS, CLIENTS)
    with pytest.raises(TranscriptError, match="that is a file; pass its folder"):
        Transcript.open(tmp_path / "file")
    with pytest.raises(TranscriptError, match="there is no such folder"):
        Transcript.open(tmp_path / "nothing")


def test_all_files_have_the_same_mode(tmp_path):
    """Whoever may read one file may read them all."""
    record(tmp_path)
    names = ("transcript.json", "labels.arrow", UPLOADS, CHAIN)
    assert len({(tmp_path / name).stat().st_mode for name in names}) == 1


def test_what_is_being_written_does_not_spoil_the_rest(tmp_path):
    """With `is_growing`, half a record at the end is not an error."""
    record(tmp_path)
    with (tmp_path / UPLOADS).open("ab") as file:
        file.write(b"half a reco")
    Transcript.open(tmp_path).verify(is_growing=True)
    with pytest.raises(TranscriptError, match=r"complete up to round 5, but uploads-00001.arrows has 11 and chain-"):
        Transcript.open(tmp_path).verify()


def test_both_can_be_printed(tmp_path):
    """With clients, samples, loss and rounds."""
    recorder = Recorder(None, LABELS, CLIENTS)
    assert (
        repr(recorder)
        == "<Recorder: 3 clients, 40 samples, logistic loss, nothing uploaded yet, 0 rounds so far, open>"
    )
    record(tmp_path)
    assert (
        repr(Transcript.open(tmp_path)) == "<Transcript: 3 clients, 40 samples, logistic loss, synchronous, 5 rounds>"
    )


@pytest.mark.parametrize("failing", [UPLOADS, CHAIN])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, failing):
    """When writing fails half-way the call raises, the record is taken back, and the next one is recorded."""
    with Recorder(tmp_path, LABELS, CLIENTS) as recorder:
        recorder.log([0, 1], full([1.0, 2.0]))
        write = FolderStorage.append

        def full_disk(self, name, content):
            write(self, name, content if name != failing else memoryview(content)[:11])
            if name == failing:
                raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(FolderStorage, "append", full_disk)
            with pytest.raises(OSError, match="no space"):
                recorder.log([2, 3], full([3.0, 4.0]))
        recorder.log([4, 5], full([5.0, 6.0]))
    transcript = Transcript.open(tmp_path)
    transcript.verify()
    assert [uploads[0].samples.tolist() for uploads, _ in rounds(transcript)] == [[0, 1], [4, 5]]


def test_a_closed_recorder_records_no_more(tmp_path):
    """After closing, recording is refused."""
    recorder = Recorder(tmp_path, LABELS, CLIENTS)
    recorder.close()
    with pytest.raises(InputError, match="closed"):
        recorder.log([0], full([1.0]))


def test_the_script_of_the_documentation_reads_it(tmp_path, capsys, monkeypatch):
    """The script in docs/transcript.md, which uses pyarrow alone, prints the records of all segments."""
    logged = record(tmp_path / "run", n_rounds=5, n_classes=3, segment_rounds=2)
    script = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "transcript.md").read_text(), re.DOTALL).group(1)
    assert "verfedsv" not in script
    assert len(script.strip().splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "transcript.md", "exec"), {})  # noqa: S102  # our own example
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["upload", "upload", "upload", "stamp"] * 5
    for number, (_, embeddings, _) in enumerate(logged):
        assert printed[4 * number].startswith(f"upload bank {number + 1}.0 (16, 3) ")
        assert str(embeddings["bank"].sum().round(6)) in printed[4 * number]


def test_the_script_reads_an_asynchronous_transcript(tmp_path, capsys, monkeypatch):
    """In which clients join and leave, also if its last segment is empty."""
    with Recorder(tmp_path / "run", LABELS, ["a"], segment_rounds=1) as recorder:
        recorder.update("a", [0, 1], np.float32([1, 2]), time=1)
        recorder.stamp(0.5, time=2)
        recorder.join("b", time=3)
        recorder.update("b", [2], np.float32([3]), time=4)
        recorder.leave("a", time=5)
        recorder.stamp(time=6)
    for name in (fmt.uploads_file(3), fmt.chain_file(3)):
        (tmp_path / "run" / name).touch()
    script = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "transcript.md").read_text(), re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "transcript.md", "exec"), {})  # noqa: S102  # our own example
    assert capsys.readouterr().out.splitlines() == [
        "upload a 1.0 (2, 1) 3.0",
        "stamp  2.0 (0, 0) 0.0",
        "join b 3.0 (0, 0) 0.0",
        "upload b 4.0 (1, 1) 3.0",
        "leave a 5.0 (0, 0) 0.0",
        "stamp  6.0 (0, 0) 0.0",
    ]


def test_the_page_describes_every_field_and_column():
    """Those of transcript.json, of its objects, of both Arrow files, and the kinds of entries, in its tables."""
    page = (ROOT / "docs" / "transcript.md").read_text()
    described = {name for line in page.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    classes = Description, Head, ValuationSettings
    expected = {field.name for kind in classes for field in dataclasses.fields(kind)} | {"format", "version"}
    expected |= {*fmt.upload_schema("float64").names, "label", "receives_gradient"}
    assert expected <= described
    assert [int(n) for line in re.findall(r"^\| (\d(?:, \d)?) \|", page, re.MULTILINE) for n in line.split(", ")] == [
        *Kind
    ]


@pytest.mark.parametrize("mapped", [True, False])
def test_verifying_goes_on_from_where_it_was(tmp_path, mapped):
    """Portions find the same as one pass, and count rounds and uploads; what was verified is not read again."""
    record(tmp_path, 6)
    whole = Transcript.open(tmp_path, mapped=mapped).verify_more()
    assert (whole.n_entries, whole.n_records, whole.n_rounds) == (8, 6, 6)
    assert (whole.n_uploads["bank"], whole.n_embeddings["bank"]) == (6, 96)
    part, called = None, []
    while part is None or part.n_entries < 8:
        transcript = Transcript.open(tmp_path, mapped=mapped)
        part = transcript.verify_more(part, 3, lambda done, total: called.append((done, total)))
        assert transcript.up_to(part).n_rounds == part.n_rounds
        assert sum(isinstance(entry, Stamp) for entry in transcript.up_to(part)) == part.n_rounds
    assert part == whole
    assert called == [(0, 8)]


def test_verifying_starts_anew_where_the_beginning_is_another(tmp_path):
    """With another chain, a shorter one or another description, verification starts over."""
    record(tmp_path / "a", 4)
    record(tmp_path / "b", 4, seed=1)
    record(tmp_path / "c", 2)
    verified = Transcript.open(tmp_path / "a").verify_more()
    for name in ("b", "c"):
        other = Transcript.open(tmp_path / name)
        assert other.verify_more(verified) == other.verify_more()
    path = tmp_path / "a" / "transcript.json"
    path.write_text(path.read_text().replace("bank", "rank"))
    with pytest.raises(TranscriptError, match=r"transcript\.json"):
        Transcript.open(tmp_path / "a").verify_more(verified)


def test_links_that_end_in_zeros_are_links():
    """A head is a hash of 32 bytes; a shorter text is not found."""
    links = [bytes(32), bytes(31) + b"\1", b"\1" + bytes(31)]
    entries = zip([0, 8, 16], [Kind.START, Kind.SCHEMA, Kind.ROUND], links, strict=True)
    content = b"".join(pack_entry(*entry) for entry in entries)
    chain = Chain.of([Segment.of(1, content + b"cut short", 16)])
    assert [chain.link(index)[-1] for index in range(3)] == [0, 1, 0]
    assert chain.contains("01" + "00" * 31)
    assert not any(chain.contains(head) for head in ("", "01", "zz", "02" + "00" * 31, "01" + "00" * 32))


@pytest.mark.parametrize(
    ("offsets", "has_offset", "varies"),
    [
        ((None, None), False, False),
        ((0.5, 0.25), True, False),
        (([0.5, 0.5], [0.25, 0.25]), True, False),
        (([0.5, 0.5], [0.25, 0.5]), True, True),
    ],
)
def test_verifying_shows_absences_and_offsets(offsets, has_offset, varies):
    """Absences are counted, and an intercept differs from an offset that varies between samples."""
    with Recorder(None, [0, 1], ["bank", "telco", "shop"]) as recorder:
        recorder.log([0, 1], {"bank": [-1.0, 1.0], "shop": [0.0, 0.1]}, offsets[0], absent=["telco"])
        recorder.log([0, 1], {"bank": [-2.0, 2.0]}, offsets[1], absent=["telco", "shop"])
    found = recorder.transcript.verify()
    assert (found.n_rounds, found.absences) == (2, {"telco": 2, "shop": 1})
    assert (found.has_offset, found.offset_varies) == (has_offset, varies)
