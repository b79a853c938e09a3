"""Transcripts and extracts as others might send them: reading them ends in a result or in an error of our own."""

import warnings
from contextlib import suppress
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

import verfedsv
from tests.fuzz.mutations import count_of_inputs, mutations_of_bytes, mutations_of_json
from tests.transcript import forgeries
from verfedsv.errors import TranscriptWarning, VerfedsvError
from verfedsv.settlement.extract import Extract, make_extract
from verfedsv.transcript import Recorder, Transcript

CLIENTS = ["bank", "telco", "shop"]
LABELS = np.arange(12) % 3
MODES = ["synchronous", "asynchronous"]
FILES = [*forgeries.FILES, "uploads-00002.arrows", "chain-00002.bin"]


def record(folder, mode):
    """Record a short training of three classes, in which a client joins and one leaves, in two segments."""
    rng = np.random.default_rng(0)
    with Recorder(folder, LABELS, CLIENTS, "softmax", no_gradient=[3], segment_rounds=2) as recorder:
        for number in range(3):
            batch = rng.permutation(12)[:6]
            numbers = {name: rng.normal(size=(6, 3)) for name in recorder.members}
            if mode == "synchronous":
                away = CLIENTS[: number % 2]
                present = {name: numbers[name] for name in numbers if name not in away}
                recorder.log(batch, present, rng.normal(size=(6, 3)), absent=away)
            else:
                for name, values in numbers.items():
                    recorder.update(name, batch, values, time=number)
                recorder.stamp(rng.normal(size=(12, 3)) if number else None, time=number)
            if number == 0:
                recorder.join("mall", time=number + 1)
            elif number == 2:
                recorder.leave("shop", time=number + 1)
    return folder


@pytest.fixture(scope="module", params=MODES)
def run(request, tmp_path_factory):
    """Return the folder of a transcript."""
    return record(tmp_path_factory.mktemp("fuzz") / "run", request.param)


def read_all(folder):
    """Read a transcript in every way; raise what is not an error of ours. Return whether it was taken."""
    taken = True
    for read in (_open, _verify, _read, _resume):
        try:
            read(folder)
        except VerfedsvError:
            taken = False
    return taken


def _open(folder):
    for mapped in (True, False):
        transcript = Transcript.open(folder, mapped=mapped)
        repr(transcript), transcript.labels, transcript.receives_gradient, transcript.head


def _verify(folder):
    Transcript.open(folder).verify()


def _read(folder):
    for record in Transcript.open(folder):
        assert np.isfinite(record.time)


def _resume(folder):
    before = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TranscriptWarning)
            Recorder(folder, LABELS, CLIENTS, "softmax", no_gradient=[3], resume=True).close()
    except VerfedsvError:
        assert before == {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
        raise


def value_verified(folder):
    """Value a transcript that passes verify."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(VerfedsvError):
            Transcript.open(folder).verify()
            verfedsv.value(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_mutated_file_of_a_transcript(run, name):
    """Whatever becomes of one of its files: opening, verifying, reading and resuming end in an error of our own."""
    content = (run / name).read_bytes()
    others = {other: (run / other).read_bytes() for other in FILES}
    mutate = mutations_of_json if name.endswith(".json") else mutations_of_bytes
    n_taken = 0
    for changed in islice(mutate(content, seed=1), count_of_inputs(40)):
        for other, before in others.items():
            (run / other).write_bytes(before)
        (run / name).write_bytes(changed)
        n_taken += read_all(run) and changed != content
    for other, before in others.items():
        (run / other).write_bytes(before)
    assert n_taken == 0
    assert read_all(run)


@pytest.mark.parametrize("name", ["transcript.json", "labels.arrow", "uploads"])
def test_a_mutated_transcript_with_a_chain_that_fits(run, tmp_path, name):
    """As its own server could write it: hashes find nothing, and what is taken can be valued."""
    transcript = Transcript.open(run)
    description, marks = transcript.origin
    description = description.replace(b'"segment_rounds": 2', b'"segment_rounds": 9')  # in one segment again
    honest = [entry.message.to_pybytes() for entry in transcript.entries() if entry.rows is not None]
    source = {"transcript.json": description, "labels.arrow": marks, "uploads": honest[1]}[name]
    mutate = mutations_of_json if name.endswith(".json") else mutations_of_bytes
    for changed in islice(mutate(source, seed=2), count_of_inputs(40)):
        parts = {
            "transcript.json": (honest, changed, marks),
            "labels.arrow": (honest, description, changed),
            "uploads": ([honest[0], changed, *honest[2:]], description, marks),
        }[name]
        folder = forgeries.write(tmp_path / "run", *parts)
        read_all(folder)
        value_verified(folder)


def nasty_rows(rng, mode):
    """Return rows of which some are what no recorder writes, though their digests fit."""

    def pick(*choices):
        return choices[int(rng.integers(len(choices)))]

    rows = []
    for name in [*CLIENTS, None] if mode == "synchronous" else [pick(*CLIENTS, None)]:
        batch = pick([0, 5, 7], [0, 5, 7], [0, 5, 7], [5, 0, 7], [0, 0, 1], [], [12], [2**32 - 1, 1, 2])
        width = pick(3, 3, 3, 3, 2, 0, 4)
        number = pick(0.5, 0.5, 0.5, np.nan, np.inf, 1e308, -1e308)
        time = pick(1.0, 1.0, 1.0, 1.0, 2.0, np.nan, np.inf, -1e300)
        offset = pick(None, None, [0.5] * 9, [0.5] * 36, [], [np.nan] * 9)
        who = pick(name, name, name, name, "thief", "", "bank", None)
        if rng.random() < 0.1:
            rows.append(forgeries.row(pick("join", "leave", "upload", "stamp", "", None), who, time))
        elif who is None:
            rows.append(forgeries.stamp(time, offset=offset))
        elif rng.random() < 0.1:
            rows.append(forgeries.absent(who, time))
        else:
            rows.append(forgeries.upload(who, batch, [number] * (len(batch) * width), time))
    return rows


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_any_content(tmp_path, mode):
    """Made by Arrow, and hashed as they should be: what is taken can be valued, all else is an error of our own."""
    rng = np.random.default_rng(3)
    about = forgeries.ABOUT | {"mode": mode, "n_samples": 12, "loss": "softmax", "n_classes": 3}
    labels = {"label": LABELS, "receives_gradient": [True] * 12}
    for index in range(count_of_inputs(40)):
        messages = [nasty_rows(rng, mode) for _ in range(int(rng.integers(1, 4)))]
        folder = forgeries.write(tmp_path / f"{index}", messages, about, labels)
        read_all(folder)
        value_verified(folder)


ODD_COLUMNS = [
    *(pa.array(range(12), kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.date32(), pa.duration("s"))),
    pa.array([0.5] * 12, pa.float16()),
    pa.array([b"x"] * 12),
    pa.array(["x"] * 12).dictionary_encode(),
    pa.nulls(12),
    pa.array([[1, 2]] * 12),
    pa.array([{"a": 1}] * 12),
    pa.array([True] * 12),
    pa.array([2**63] * 12, pa.uint64()),
    pa.array([1] * 12, pa.decimal128(5)),
    pa.RunEndEncodedArray.from_arrays([12], [1]),
    pa.array(["x"] * 12, pa.string_view()),
]


@pytest.mark.parametrize("column", ODD_COLUMNS, ids=lambda column: str(column.type).replace("\n", ""))
def test_labels_of_any_type(tmp_path, column):
    """Columns that Arrow can hold and a recorder does not write."""
    marks = pa.array([True] * 12)
    about = forgeries.ABOUT | {"n_samples": 12}
    for number, table in enumerate(({"label": column, "receives_gradient": marks}, {"label": marks, "x": column})):
        folder = forgeries.write(tmp_path / f"{number}", [], about, forgeries.file_of(pa.table(table)))
        read_all(folder)
        value_verified(folder)


def test_a_mutated_extract(run):
    """Whatever it holds, reading and verifying it ends in an error of our own; nothing changed passes."""
    content = make_extract(Transcript.open(run), "telco").to_bytes()
    head, n_passed = Extract.from_bytes(content).verify().verified.link, 0
    for changed in islice(mutations_of_bytes(content, seed=4), count_of_inputs(100)):
        with suppress(VerfedsvError):
            n_passed += Extract.from_bytes(changed).verify().verified.link == head and changed != content
    assert n_passed == 0


def read_plainly(folder):
    """Return the rows that a reader with pyarrow alone finds, as far as it gets; None if it cannot read them."""
    rows = []
    try:
        for path in sorted(folder.glob("uploads-*.arrows")):
            rows += [row for batch in pa.ipc.open_stream(path.read_bytes()) for row in batch.to_pylist()]
    except (pa.ArrowException, OSError, ValueError):
        return None
    return rows


@pytest.mark.parametrize("mode", MODES)
def test_two_readers_see_one_training(tmp_path, mode):
    """What this package takes, of whatever its own server wrote, has the same rows for a reader of the streams."""
    rng = np.random.default_rng(5)
    honest = record(tmp_path / "honest", mode)
    transcript = Transcript.open(honest)
    description, marks = transcript.origin
    description = description.replace(b'"segment_rounds": 2', b'"segment_rounds": 9')
    messages = [entry.message.to_pybytes() for entry in transcript.entries() if entry.rows is not None]
    odd = [b"\xff\xff\xff\xff\0\0\0\0", bytes(8), forgeries.SCHEMA.serialize().to_pybytes(), messages[-1], b""]
    n_taken = 0
    for _ in range(count_of_inputs(60)):
        changed = list(messages)
        place = int(rng.integers(len(changed)))
        before, after = rng.integers(len(odd), size=2)
        match int(rng.integers(4)):
            case 0:
                changed[place] = odd[before] + changed[place]
            case 1:
                changed[place] += odd[after]
            case 2:
                changed[place] = next(mutations_of_bytes(changed[place], seed=int(rng.integers(2**32))))
            case 3:
                changed.insert(place, odd[before])
        folder = forgeries.write(tmp_path / "run", changed, description, marks)
        with suppress(VerfedsvError):
            Transcript.open(folder).verify()
            n_taken += 1
            entries = [entry for entry in Transcript.open(folder).entries() if entry.rows is not None]
            kinds = [kind for entry in entries for kind in entry.rows.kinds]
            clients = [name for entry in entries for name in entry.rows.clients]
            plain = read_plainly(folder)
            assert plain is not None
            assert ([row["kind"] for row in plain], [row["client"] for row in plain]) == (kinds, clients)
    assert n_taken > 0
