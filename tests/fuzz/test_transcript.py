"""Transcripts and extracts as others might send them: reading them ends in a result or in an error of our own."""

import json
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
FILES = ["transcript.json", "labels.arrow", "uploads.arrows", "chain.bin"]


def record(folder, mode):
    """Record a short training of three classes."""
    rng = np.random.default_rng(0)
    with Recorder(folder, LABELS, CLIENTS, "softmax", no_gradient=[3]) as recorder:
        for number in range(3):
            batch = rng.permutation(12)[:6]
            numbers = {name: rng.normal(size=(6, 3)) for name in CLIENTS}
            if mode == "synchronous":
                away = CLIENTS[: number % 2]
                present = {name: numbers[name] for name in CLIENTS if name not in away}
                recorder.log(batch, present, rng.normal(size=(6, 3)), absent=away)
            else:
                for name, values in numbers.items():
                    recorder.update(name, batch, values, time=number)
                recorder.stamp(rng.normal(size=(12, 3)) if number else None, time=number)
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
    for changed in islice(mutate(content, seed=1), count_of_inputs(60)):
        for other, before in others.items():
            (run / other).write_bytes(before)
        (run / name).write_bytes(changed)
        n_taken += read_all(run) and changed != content
    for other, before in others.items():
        (run / other).write_bytes(before)
    assert n_taken == 0
    assert read_all(run)


@pytest.mark.parametrize("name", ["transcript.json", "labels.arrow", "uploads.arrows"])
def test_a_mutated_transcript_with_a_chain_that_fits(run, tmp_path, name):
    """As its own server could write it: hashes find nothing, and what is taken can be valued."""
    transcript = Transcript.open(run)
    description, marks = transcript.origin
    honest = [message.to_pybytes() for message, batch, _ in transcript.messages() if batch is not None]
    source = {"transcript.json": description, "labels.arrow": marks, "uploads.arrows": honest[1]}[name]
    mutate = mutations_of_json if name.endswith(".json") else mutations_of_bytes
    for changed in islice(mutate(source, seed=2), count_of_inputs(60)):
        parts = {
            "transcript.json": (honest, changed, marks),
            "labels.arrow": (honest, description, changed),
            "uploads.arrows": ([honest[0], changed, *honest[2:]], description, marks),
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
        if who is None:
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
    for index in range(count_of_inputs(60)):
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
    extract = make_extract(Transcript.open(run), "telco")
    text, head = extract.to_json().encode(), extract.verify().head
    n_passed = 0
    for changed in islice(mutations_of_json(text, seed=4), count_of_inputs(150)):
        with suppress(VerfedsvError):
            n_passed += Extract.from_json(changed).verify().head == head and json.loads(changed) != json.loads(text)
    assert n_passed == 0
