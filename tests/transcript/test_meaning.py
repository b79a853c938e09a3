import hashlib
import itertools
import json
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

import verfedsv
from tests.transcript import forgeries
from tests.transcript.forgeries import ABOUT, LABELS, absent, file_of, row, stamp, upload, write
from verfedsv.errors import InputError, TranscriptError
from verfedsv.settlement.audit import audit
from verfedsv.transcript import Recorder, Stamp, Transcript, meaning

NAMES = ("bank", "telco", "shop")
NUMBERS = {"bank": [1.0, -2.0], "telco": [0.5, 0.25], "shop": [-1.5, 3.0]}
EMPTY = hashlib.sha256().digest()
ASYNCHRONOUS = ABOUT | {"mode": "asynchronous"}


def round_of(batch=(0, 2), time=1.0, names=NAMES):
    """Return the rows of an honest round."""
    return [*(upload(name, [*batch], NUMBERS[name], time) for name in names), stamp(time)]


def edited(rows, row, **others):
    """Return the rows, one of them with other fields and a digest that fits."""
    changed = {"client": rows[row]["client"], "time": rows[row]["time"], **others}
    fields = {name: changed.pop(name, rows[row][name]) for name in ("samples", "embeddings")}
    client, time = changed.pop("client"), changed.pop("time")
    return [*rows[:row], upload(client, *fields.values(), time, **changed), *rows[row + 1 :]]


def assert_refused(folder, match):
    """Check that every way of reading a transcript gives the same error, and that resuming changes no file."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ways = [
        lambda: Transcript.open(folder).verify(),
        lambda: list(Transcript.open(folder)),
        lambda: verfedsv.value(folder),
        lambda: Recorder(folder, LABELS["label"], NAMES, resume=True),
    ]
    for way in ways:
        with pytest.raises(TranscriptError, match=match):
            way()
    assert match.replace("\\", "") in audit(folder).difference
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == before


def test_honest_rows_written_by_hand_are_valid(tmp_path):
    """The tools of these tests write what a recorder writes: verify and resume accept it."""
    folder = write(tmp_path / "run", [round_of(), round_of((3, 1), 2.0)])
    Transcript.open(folder).verify()
    with Recorder(folder, LABELS["label"], NAMES, resume=True) as recorder:
        assert recorder.n_rounds == 2
        recorder.log([1], {name: [0.5] for name in NAMES})
    Transcript.open(folder).verify()


def test_rows_in_another_order_are_read_by_name(tmp_path):
    """Readers go by names, so that the training is the same and no client gets the numbers of another."""
    honest = Transcript.open(write(tmp_path / "honest", [round_of()]))
    swapped = Transcript.open(write(tmp_path / "swapped", [round_of(names=("shop", "bank", "telco"))]))
    swapped.verify()
    tables = [
        {r.client: (r.samples.tolist(), r.embeddings.tolist()) for r in transcript if not isinstance(r, Stamp)}
        for transcript in (honest, swapped)
    ]
    assert tables[0] == tables[1]


INVALID_ROUNDS = {
    "unknown": (edited(round_of(), 1, client="thief"), "round 1, client 'thief' is unknown"),
    "repeated": (edited(round_of(), 1, client="bank"), "round 1, client 'bank' is repeated"),
    "missing": (round_of(names=("bank", "shop")), "round 1, client 'telco' is missing, and was not declared absent"),
    "nobody": ([absent(name) for name in NAMES] + [stamp()], "round 1, a synchronous round needs at least one upload"),
    "no stamp": (round_of()[:-1], "round 1, a synchronous round has the uploads of its clients, and one time stamp"),
    "two stamps": ([*round_of(), stamp()], "round 1, a synchronous round has the uploads of its clients"),
    "stamp first": ([stamp(), *round_of()[:-1]], "round 1, a synchronous round has the uploads of its clients"),
    "an upload alone": ([upload("bank", [0], [1.0])], "round 1, a synchronous round has the uploads"),
    "stamp with digest": ([*round_of()[:-1], stamp(digest=EMPTY)], "round 1, every upload has a digest, and nothing"),
    "absent with digest": (
        [*round_of()[:-2], absent("shop") | {"digest": EMPTY}, stamp()],
        "every upload has a digest",
    ),
    "stamp with client": (
        [*round_of()[:-1], stamp() | {"client": "bank"}],
        "round 1, every row but a time stamp has a client",
    ),
    "no client": (edited(round_of(), 1, client=None), "round 1, every row but a time stamp has a client"),
    "no kind": (edited(round_of(), 1, kind=None), "round 1, every upload has a digest, and nothing else has one"),
    "join in a round": ([row("join", "mall", 1.0), *round_of()], "round 1, a synchronous round has the uploads"),
    "join first": ([row("join", "mall", 1.0)], "round 1, a transcript begins with an upload"),
    "state without a head": ([*round_of()[:-1], stamp(state=[EMPTY])], "a time stamp states the head's parameters"),
    "out of range": (
        [*[upload(n, [0, 4], [1, 2]) for n in NAMES], stamp()],
        "client 'bank': sample 4 is not one of 0 to 3",
    ),
    "repeated samples": ([*[upload(n, [3, 3], [1, 2]) for n in NAMES], stamp()], "'bank': a sample is repeated"),
    "no samples": ([*[upload(n, [], []) for n in NAMES], stamp()], "'bank': an upload has at least one sample"),
    "fewer embeddings": (edited(round_of(), 1, embeddings=[0.5]), "'telco': 1 embeddings for 2 samples of width 1"),
    "more embeddings": (edited(round_of(), 1, embeddings=[0.5] * 4), "'telco': 4 embeddings for 2 samples"),
    "NaN": (edited(round_of(), 2, embeddings=[1.0, np.nan]), "round 1, client 'shop': embeddings must be finite"),
    "infinity": (edited(round_of(), 0, embeddings=[-np.inf, 1.0]), "round 1, client 'bank': embeddings must be finite"),
    "two times": (edited(round_of(), 1, time=2.0), "round 1, all rows of a record must have the same time"),
    "no time": (round_of(time=None), "round 1 cannot be read (times are missing)"),
    "NaN time": (round_of(time=np.nan), "round 1, all rows of a record must have the same time"),
    "infinite time": (round_of(time=np.inf), "round 1, all rows of a record must have the same time"),
    "offset of an upload": (
        edited(round_of(), 0, offset=[1.0, 2.0]),
        "round 1 cannot be read (only a time stamp has an offset)",
    ),
    "long offset": (
        [*round_of()[:-1], stamp(offset=[1.0] * 3)],
        "round 1, the offset has 3 numbers for 2 or 4 samples",
    ),
    "offset of all": ([*round_of()[:-1], stamp(offset=[1.0] * 4)], "round 1, the offset has 4 numbers for 2 samples"),
    "offset of some": (
        [*edited(round_of(), 1, samples=[2, 0])[:-1], stamp(offset=[1.0, 2.0])],
        "round 1, the offset has 2 numbers for 4 samples",
    ),
    "NaN offset": (
        [*round_of()[:-1], stamp(offset=[1.0, np.nan])],
        "round 1, the offset must be finite",
    ),
    "null in offset": (
        [*round_of()[:-1], stamp(offset=[1.0, None])],
        "1 cannot be read (an offset lacks values)",
    ),
    "no digest": (edited(round_of(), 1, digest=None), "round 1"),
    "nothing": ([], "round 1 cannot be read (it is empty)"),
}


@pytest.mark.parametrize("case", INVALID_ROUNDS)
def test_what_no_recorder_writes_in_a_synchronous_round_is_refused(tmp_path, case):
    """Although every hash is right: by verify, iterating, value, audit, and a recorder that resumes."""
    rows, why = INVALID_ROUNDS[case]
    message = pa.record_batch([[]] * 8, schema=forgeries.SCHEMA).serialize().to_pybytes() if rows == [] else rows
    folder = write(tmp_path / "run", [message, round_of(time=2.0)])
    assert_refused(folder, why.replace("(", r"\(").replace(")", r"\)"))


INVALID_RECORDS = {
    "unknown": ([upload("thief", [0], [1.0])], "round 1, client 'thief' is unknown"),
    "two uploads": ([upload("bank", [0], [1.0]), upload("shop", [0], [1.0])], "one upload or one time stamp"),
    "a round": (round_of(), "round 1, an asynchronous record is one upload or one time stamp"),
    "absent": ([absent("bank"), stamp()], "round 1, an asynchronous record is one upload or one time stamp"),
    "no samples": ([upload("bank", [], [])], "client 'bank': an upload has at least one sample"),
    "out of range": ([upload("bank", [9], [1.0])], "client 'bank': sample 9 is not one of 0 to 3"),
    "repeated samples": ([upload("bank", [1, 1], [1.0, 2.0])], "client 'bank': a sample is repeated"),
    "NaN": ([upload("bank", [1], [np.nan])], "client 'bank': embeddings must be finite"),
    "more embeddings": ([upload("bank", [1], [1.0, 2.0])], "client 'bank': 2 embeddings for 1 samples"),
    "join first": ([row("join", "mall", 1.0)], "round 1, a transcript begins with an upload"),
    "offset of an upload": ([upload("bank", [1], [1.0], offset=[1.0])], "client 'bank': only a time stamp has an"),
    "stamp first": ([stamp()], "a transcript begins with an upload, or with a time stamp that has an offset"),
}


@pytest.mark.parametrize("case", INVALID_RECORDS)
def test_what_no_recorder_writes_of_an_asynchronous_training_is_refused(tmp_path, case):
    """By all readers, as in synchronous rounds."""
    rows, why = INVALID_RECORDS[case]
    assert_refused(write(tmp_path / "run", [rows, [stamp(2.0)]], ASYNCHRONOUS), why)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (stamp(1.5, offset=[1.0, 2.0]), "round 2, the offset has 2 numbers for 4 samples"),
        (row("join", "bank", 1.5), "round 2, client 'bank' takes part already"),
        (row("leave", "mall", 1.5), "round 2, client 'mall' is unknown"),
        (row("join", "mall ", 1.5), "round 2, names of clients must be printable"),
        (row("leave", None, 1.5), "round 2, every row but a time stamp has a client"),
        (row("join", "mall", 0.5), "round 2, time runs backwards"),
        (stamp(0.5), "round 2, time runs backwards, from 1.0 to 0.5"),
        (upload("bank", [0], [1.0], 0.5), "round 2, time runs backwards, from 1.0 to 0.5"),
    ],
)
def test_the_round_of_an_asynchronous_record_is_named(tmp_path, row, why):
    """It is the one that ends with the next time stamp."""
    folder = write(tmp_path / "run", [[upload("bank", [0], [1.0])], [stamp()], [row], [stamp(3.0)]], ASYNCHRONOUS)
    assert_refused(folder, why)


def test_time_never_falls_from_round_to_round(tmp_path):
    """Also where verifying begins later."""
    folder = write(tmp_path / "run", [round_of(time=1.0), round_of(time=3.0), round_of(time=2.0)])
    assert_refused(folder, "round 3, time runs backwards, from 3.0 to 2.0")
    transcript = Transcript.open(folder)
    with pytest.raises(TranscriptError, match="round 3, time runs backwards"):
        transcript.verify_more(transcript.verify_more(most=4))


def test_a_client_that_was_declared_absent(tmp_path):
    """Its row has neither numbers nor a digest; the stamp says who was absent, in the order of the clients."""
    rows = [absent("shop"), upload("bank", [0, 2], [1.0, 2.0]), absent("telco"), stamp()]
    transcript = Transcript.open(write(tmp_path / "run", [rows]))
    transcript.verify()
    first, last = transcript
    assert (first.client, last.absent) == ("bank", ("telco", "shop"))
    assert transcript.verify_more().n_uploads == {"bank": 1}


ODD_LABELS = {
    "shorter": ({"label": [0, 1], "receives_gradient": [True] * 2}, "it has 2 rows for 4 samples"),
    "longer": ({"label": [0, 1] * 3, "receives_gradient": [True] * 6}, "it has 6 rows"),
    "no marks": ({"label": LABELS["label"]}, "its columns must be"),
    "no labels": ({"receives_gradient": LABELS["receives_gradient"]}, "its columns must be"),
    "null marks": (LABELS | {"receives_gradient": [True, None, True, True]}, "receives_gradient contains nulls"),
    "null labels": (LABELS | {"label": [0, None, 1, 1]}, "label or receives_gradient contains nulls"),
    "marks that are numbers": (LABELS | {"receives_gradient": [1, 1, 1, 0]}, "must be true or false"),
    "texts": (LABELS | {"label": ["a", "b", "a", "b"]}, "labels must be numbers"),
    "no numbers": (LABELS | {"label": pa.nulls(4)}, "labels must be numbers"),
    "other classes": (LABELS | {"label": [0, 1, 2, 0]}, "takes labels -1 and"),
    "two columns": (LABELS | {"label": pa.FixedSizeListArray.from_arrays([0.0] * 8, 2)}, "takes labels of shape"),
    "empty lists": (LABELS | {"label": pa.array([[]] * 4, pa.list_(pa.int64(), 0))}, "labels must be numbers"),
    "NaN": (LABELS | {"label": [0.0, 1.0, np.nan, 1.0]}, "finite"),
}


@pytest.mark.parametrize("case", ODD_LABELS)
def test_labels_that_no_recorder_writes_are_refused(tmp_path, case):
    """When the transcript is opened: values depend on them."""
    labels, why = ODD_LABELS[case]
    folder = write(tmp_path / "run", [round_of()], labels=labels)
    with pytest.raises(TranscriptError, match=rf"labels\.arrow is not valid: .*{why}"):
        Transcript.open(folder)


HEAD = ABOUT["head"] | {"kind": "parametric", "architecture": "0" * 64, "parameters": ["w"], "state": ["0" * 64]}

ODD_FIELDS = [
    {"version": True},
    {"version": "2"},
    {"version": 1},
    {"is_own_loss": 0},
    {"is_own_loss": None},
    {"segment_rounds": 0},
    {"segment_rounds": None},
    {"head": None},
    {"head": {"kind": "sum"}},
    {"head": ABOUT["head"] | {"parameters": ["w"]}},
    {"head": ABOUT["head"] | {"kind": "parametric"}},
    {"head": ABOUT["head"] | {"kind": "other"}},
    {"head": HEAD | {"parameters": ["w", "w"], "state": ["0" * 64] * 2}},
    {"head": HEAD | {"state": ["../../etc/passwd"]}},
    {"head": HEAD | {"architecture": None}},
    {"head": HEAD | {"program": "../../etc/passwd"}},
    {"head": HEAD | {"clients": ["a", "b"], "widths": [1]}},
    {"head": HEAD | {"clients": ["a", "b"], "widths": [1, 0]}},
    {"head": HEAD | {"clients": ["a"], "widths": [1]}},
    {"head": HEAD | {"layers": ["Linear", 2, 2]}},
    {"head": HEAD | {"layers": ["Linear", 2**40, 2, True]}},
    {"head": HEAD | {"layers": ["Exec", "rm -rf"]}},
    {"head": HEAD | {"layers": ["Sequential", [["0", ["Tanh"]], ["0", ["Tanh"]]]]}},
    {"valuation": None},
    {"valuation": {}},
    {"valuation": ABOUT["valuation"] | {"tolerance": "small"}},
    {"valuation": ABOUT["valuation"] | {"tolerance": -1.0}},
    {"valuation": ABOUT["valuation"] | {"rows": "3 of 4"}},
    {"valuation": ABOUT["valuation"] | {"more": 1}},
    {"valuation": ABOUT["valuation"] | {"rank": 3.0}},
    {"step": 3},
    {"step": ["rate"]},
    {"step": {"rate": {}}},
    {"step": {str(n): n for n in range(100)}},
    {"version": 10**30},
    {"format": ["verfedsv transcript"]},
    {"mode": 3},
    {"mode": None},
    {"mode": ["synchronous"]},
    {"mode": "Synchronous"},
    {"n_classes": 0},
    {"n_classes": 2},
    {"n_classes": True},
    {"n_classes": 1.0},
    {"n_classes": None},
    {"precision": "float16"},
    {"precision": {}},
    {"loss": "hinge"},
    {"loss": ["logistic"]},
    {"loss": None},
    {"n_samples": 0},
    {"n_samples": -4},
    {"n_samples": "4"},
    {"n_samples": 4.0},
    {"n_samples": 2**33},
    {"clients": "bank"},
    {"clients": []},
    {"clients": ["bank", "bank", "shop"]},
    {"clients": ["bank", "telco ", "shop"]},
    {"clients": ["bank", "tel\u200bco", "shop"]},
    {"clients": ["bank", "telco\n", "shop"]},
    {"clients": ["bank", 3, "shop"]},
    {"clients": {"bank": 1, "telco": 2, "shop": 3}},
    {"clients": None},
    {"created": 5},
    {"package": None},
    {"classes": ["no"]},
    {"classes": ["no", "no"]},
    {"classes": ["no", "yes", "perhaps"]},
    {"classes": "no"},
    {"classes": [0, 1]},
    {"more": 1},
]


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=str)
def test_descriptions_that_no_recorder_writes_are_refused(tmp_path, fields):
    """Whatever is of another type or range than documented is found at opening."""
    folder = write(tmp_path / "run", [round_of()], ABOUT | fields)
    with pytest.raises(TranscriptError, match=r"transcript\.json|format version"):
        Transcript.open(folder)


@pytest.mark.parametrize("name", ABOUT)
def test_every_field_of_a_description_is_needed(tmp_path, name):
    """A transcript without one is not read as if it had a default."""
    folder = write(tmp_path / "run", [round_of()], {key: value for key, value in ABOUT.items() if key != name})
    with pytest.raises(TranscriptError, match=r"transcript\.json|format version"):
        Transcript.open(folder)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ABOUT).replace('"loss"', '"loss": "squared", "loss"'),
        json.dumps(ABOUT).replace(": 4", ": 1" + "0" * 400),
        json.dumps(ABOUT).replace(": 4", ": NaN"),
        json.dumps(ABOUT)[:-1] + ', "x": ' + "[" * 100_000,
        json.dumps(ABOUT).replace("bank", r"\ud800"),
        json.dumps(ABOUT).replace("bank", r"\u0000"),
    ],
)
def test_json_that_should_not_be_read_is_refused(tmp_path, text):
    """Repeated names, numbers that overflow, depth, half of a surrogate pair and NUL."""
    folder = write(tmp_path / "run", [round_of()], text.encode())
    with pytest.raises(TranscriptError, match=r"transcript\.json"):
        Transcript.open(folder)


def in_one_entry(*messages):
    return b"".join(forgeries.message_of(rows) for rows in messages)


@pytest.mark.parametrize(
    "entry",
    [
        in_one_entry(round_of(), round_of(time=2.0)),
        in_one_entry(round_of()) + b"\xff\xff\xff\xff\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        in_one_entry(round_of()) + bytes(8),
        forgeries.SCHEMA.serialize().to_pybytes(),
    ],
    ids=["two messages", "an end marker after it", "an end marker", "zeros after it", "a schema"],
)
def test_an_entry_is_one_message(tmp_path, entry):
    """Otherwise a reader of the stream would see another number of rounds."""
    folder = write(tmp_path / "run", [round_of(), entry])
    for read in (lambda: Transcript.open(folder).verify(), lambda: list(Transcript.open(folder))):
        with pytest.raises(TranscriptError, match="round 2 cannot be read"):
            read()


def peak_of(call):
    """Return the peak memory of Python and NumPy during a call that fails, in bytes."""
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    try:
        with pytest.raises(TranscriptError):
            call()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory() - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_columns_are_refused_before_they_are_unpacked(tmp_path, codec):
    """Of uploads and of labels: a small file does not take much memory."""
    n_numbers = 4_000_000
    rows = pa.record_batch(
        [
            pa.array(["upload"]),
            pa.array(["bank"]),
            pa.array([1.0]),
            pa.nulls(1, pa.large_list(pa.float64())),
            pa.nulls(1, pa.list_(pa.binary(32))),
            pa.array([bytes(32)], pa.binary(32)),
            pa.LargeListArray.from_arrays([0, n_numbers], pa.array(np.zeros(n_numbers, np.uint32))),
            pa.LargeListArray.from_arrays([0, n_numbers], pa.array(np.zeros(n_numbers))),
        ],
        schema=forgeries.SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, forgeries.SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(rows)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message().serialize().to_pybytes()
    assert len(message) < n_numbers / 4
    del rows, sink, reader
    uploads = write(tmp_path / "uploads", [message], ASYNCHRONOUS)
    many = {"label": np.zeros(n_numbers, np.int64), "receives_gradient": np.ones(n_numbers, bool)}
    content = forgeries.file_of(many, compression=codec)
    labels = write(tmp_path / "labels", [round_of()], ABOUT | {"n_samples": n_numbers}, content)
    for call in (lambda: Transcript.open(uploads).verify(), lambda: Transcript.open(labels)):
        assert peak_of(call) < 4_000_000
    with pytest.raises(TranscriptError, match="it is compressed"):
        list(Transcript.open(uploads))
    with pytest.raises(TranscriptError, match=r"labels\.arrow is damaged: .*it is compressed"):
        Transcript.open(labels)


def test_labels_are_one_batch_that_the_footer_lists(tmp_path):
    """Otherwise readers of the file and of the stream in it could find different labels."""
    table = pa.table(LABELS)
    halves = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    whole = forgeries.file_of(LABELS)
    for content in (forgeries.file_of(halves), whole[:-6], whole + whole, whole[:200], b"", b"ARROW1\0\0ARROW1"):
        folder = write(tmp_path / f"{len(content)}", [round_of()], labels=content)
        with pytest.raises(TranscriptError, match=r"labels\.arrow is damaged"):
            Transcript.open(folder)


def with_big_endian_footer(content):
    """Return an Arrow file whose footer, unlike its stream, says that numbers are big-endian."""
    end = len(content) - 10
    (n_footer,) = struct.unpack_from("<i", content, end)
    footer = end - n_footer
    root = footer + struct.unpack_from("<I", content, footer)[0]
    fields = root - struct.unpack_from("<i", content, root)[0]
    place = root + struct.unpack_from("<H", content, fields + 4 + 2)[0]
    schema = place + struct.unpack_from("<I", content, place)[0]
    fields = schema - struct.unpack_from("<i", content, schema)[0]
    forged = bytearray(content[:end] + struct.pack("<q", 1) + struct.pack("<i", n_footer + 8) + b"ARROW1")
    struct.pack_into("<H", forged, fields + 4, end - schema)
    return bytes(forged)


def test_labels_that_the_footer_turns_into_others_are_refused(tmp_path):
    """A reader that goes by the footer would see other labels than one that goes by the stream."""
    forged = with_big_endian_footer(file_of(LABELS))
    read = pa.ipc.open_file(pa.py_buffer(forged)).get_batch(0)
    assert read.column("label").to_pylist() != LABELS["label"]
    with pytest.raises(TranscriptError, match="its footer has other columns"):
        Transcript.open(write(tmp_path, [round_of()], labels=forged))


def with_lists_of_one(content):
    """Return an Arrow file of lists of two numbers whose metadata say that they have one."""
    twos = [i for i, byte in enumerate(content) if byte == 2]
    for first, second in itertools.combinations(twos, 2):
        forged = bytearray(content)
        forged[first] = forged[second] = 1
        try:
            kinds = {read(pa.py_buffer(bytes(forged))).schema.types[0] for read in (pa.ipc.open_file, stream_in)}
        except (pa.ArrowInvalid, OSError):
            continue
        if kinds == {pa.list_(pa.float64(), 1)}:
            return bytes(forged)
    raise AssertionError


def stream_in(content):
    """Return a reader of the stream within an Arrow file."""
    return pa.ipc.open_stream(content.slice(8))


def test_labels_that_no_row_has_are_refused(tmp_path):
    """Lists of one label, in a column of two labels a row: one reader would take one of them, another both."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8.0)), 2)
    labels = with_lists_of_one(file_of(pa.table({"label": lists, "receives_gradient": [True] * 4})))
    with pytest.raises(TranscriptError, match="labels outside its rows"):
        Transcript.open(write(tmp_path, [round_of()], about=ABOUT | {"loss": "squared"}, labels=labels))


def test_no_more_rounds_than_agreed(tmp_path):
    """A recorder refuses to record them, and readers refuse a transcript that has them."""
    with Recorder(None, [0, 1, 1, 0], ["bank"], n_planned=1) as recorder:
        recorder.log([0, 1], {"bank": [1.0, 2.0]})
        with pytest.raises(InputError, match="all agreed rounds"):
            recorder.log([0, 1], {"bank": [1.0, 2.0]})
    rounds = [round_of(), round_of(time=2.0)]
    assert Transcript.open(write(tmp_path / "two", rounds, about=ABOUT | {"n_planned": 2})).n_rounds == 2
    with pytest.raises(TranscriptError, match=r"there are 2 rounds, but 1 were agreed"):
        Transcript.open(write(tmp_path / "one", rounds, about=ABOUT | {"n_planned": 1}))


def test_a_transcript_behind_a_link_is_not_read(tmp_path):
    """The sender of a folder must not choose which other files are read."""
    write(tmp_path / "private", [round_of()])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "transcript").symlink_to(tmp_path / "private")
    with pytest.raises(TranscriptError, match="is a symbolic link"):
        Transcript.open(tmp_path / "run")
    (tmp_path / "private" / "labels.arrow").rename(tmp_path / "labels.arrow")
    (tmp_path / "private" / "labels.arrow").symlink_to(tmp_path / "labels.arrow")
    with pytest.raises(TranscriptError, match=r"labels\.arrow is a symbolic link"):
        Transcript.open(tmp_path / "private")


def test_what_a_description_says_does_nothing_in_a_terminal(tmp_path):
    """Its fields may come from others, and an error may show them."""
    for about in (ABOUT | {"\x1b[2Jx": 1}, ABOUT | {"version": "\x1b]0;x\x07"}):
        with pytest.raises(TranscriptError) as caught:
            Transcript.open(write(tmp_path / str(len(about)), [round_of()], about=about))
        assert str(caught.value).isprintable()


def test_a_join_checks_one_name(monkeypatch):
    """Checking all of them again each time would take quadratic time."""
    checked = []
    monkeypatch.setattr(meaning, "check_names", checked.extend)
    roster = meaning.Roster.of_founders(("bank", "telco")).left("bank").joined("mall").joined("bank")
    assert roster.clients == ("bank", "telco", "mall")
    assert roster.members == {"bank", "telco", "mall"}
    assert checked == ["mall"]
