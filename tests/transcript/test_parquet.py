"""Exported tables, read by pyarrow alone, against the transcript they are from."""

import json
import warnings

import numpy as np
import pyarrow.dataset as ds
import pytest

from tests.stores import serving
from tests.trainings import train
from tests.transcript.test_recorder import Linear, as_rows
from verfedsv import value
from verfedsv.errors import CompletionWarning, InputError
from verfedsv.transcript import Recorder, Stamp, Transcript, parquet
from verfedsv.transcript.parquet import export_parquet


def read(folder):
    """Return the rows of each table."""
    return {path.name: ds.dataset(path).to_table().to_pylist() for path in folder.iterdir() if path.is_dir()}


def again(folder, path=None):
    """Record a training once more, from its export alone."""
    about, tables = json.loads((folder / "export.json").read_text()), read(folder)
    was = about["transcript"]
    labels = [row["label"] for row in sorted(tables["samples"], key=lambda row: row["sample"])]
    recorder = Recorder(path, labels, was["clients"], was["loss"], classes=was["classes"])
    number = np.float32 if was["precision"] == "float32" else np.float64
    uploads = {}
    for row in tables["uploads"]:
        uploads.setdefault((row["round"], row["upload"]), []).append(row)
    for stamp in tables["rounds"]:
        batch, embeddings = {}, {}
        for (round_number, _), rows in sorted(uploads.items()):
            if round_number != stamp["round"]:
                continue
            client = rows[0]["client"]
            batch[client] = [row["sample"] for row in rows]
            embeddings[client] = np.array([row["embedding"] for row in rows], number)
            if was["mode"] == "asynchronous":
                recorder.update(client, batch[client], embeddings[client], time=rows[0]["time"])
        offsets = [row for row in tables["offsets"] if row["round"] == stamp["round"]]
        offset = np.array([row["offset"] for row in offsets], number) if offsets else None
        if offset is not None and offsets[0]["sample"] is None:
            offset = offset[0]
        if was["mode"] == "asynchronous":
            recorder.stamp(offset, time=stamp["time"])
            continue
        if offset is not None and offset.ndim == 2:
            assert [row["sample"] for row in offsets] == batch[was["clients"][0]]
            batch = batch[was["clients"][0]]
        recorder.log(batch, embeddings, offset, absent=stamp["absent"], time=stamp["time"])
    return recorder


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_training_is_valued_again_from_its_export(tmp_path, loss, intercept):
    """With the same records and the same values, to the last bit."""
    before = train(loss, n_samples=60, batch=20, n_epochs=8, intercept=intercept).record().transcript
    n_rows = export_parquet(before, tmp_path / "tables")
    after = again(tmp_path / "tables").transcript
    assert as_rows(after) == as_rows(before)
    assert n_rows["uploads"] == 24 * 3 * 20
    with warnings.catch_warnings(action="ignore", category=CompletionWarning):
        assert np.array_equal(value(after).values, value(before).values)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_asynchronous_uploads_keep_their_order(tmp_path, precision):
    """Also of two uploads of one client in a round; offsets by sample are for all samples."""
    rng = np.random.default_rng(0)
    with Recorder(tmp_path / "run", np.arange(20) % 2, ["a", "b"]) as recorder:
        for step in range(30):
            client, samples = "ab"[int(rng.integers(2))], rng.permutation(20)[:5]
            recorder.update(client, samples, rng.normal(size=5).astype(precision), time=step // 2)
            if step % 4 == 3:
                own = rng.normal(size=20).astype(precision) if step % 8 == 3 else precision(0.5)
                recorder.stamp(own, time=step // 2)
        recorder.update("a", [1], [precision(2)], time=100)
    before = Transcript.open(tmp_path / "run")
    export_parquet(before, tmp_path / "tables")
    tables = read(tmp_path / "tables")
    assert [row["round"] for row in tables["uploads"]][-1] == before.n_rounds + 1  # not valued yet
    after = again(tmp_path / "tables").transcript
    assert as_rows(after) == as_rows(before)[:-1][: len(as_rows(after))]
    stamps = [[row.offset for row in transcript if isinstance(row, Stamp)] for transcript in (before, after)]
    assert all(np.array_equal(*pair) for pair in zip(*stamps, strict=True))
    assert np.array_equal(value(after).values, value(before).values)
    assert ds.dataset(tmp_path / "tables" / "uploads").schema.field("embedding").type.value_type == (
        "float" if precision is np.float32 else "double"
    )


def test_members_heads_and_absences_are_exported(tmp_path):
    """In the tables members and rounds, with the hashes of a head's parameters."""
    head = Linear()
    with Recorder(
        None, ["no", "yes", "no"], ["a", "b"], "softmax", head=head, widths={"a": 2, "b": 3, "late": 1}
    ) as recorder:
        recorder.log([0, 2], {"a": np.ones((2, 2))}, absent=["b"], time=5)
        recorder.join("late")
        recorder.leave("a")
        recorder.log({"b": [1], "late": [0, 1]}, {"b": np.ones((1, 3)), "late": [[1.0], [2.0]]}, time=6)
    before = recorder.transcript
    export_parquet(before, tmp_path / "tables")
    tables = read(tmp_path / "tables")
    assert [(row["round"], row["time"], row["client"], row["change"]) for row in tables["members"]] == [
        (1, None, "a", "founder"),
        (1, None, "b", "founder"),
        (2, 5.0, "late", "join"),
        (2, 5.0, "a", "leave"),
    ]
    assert [row["absent"] for row in tables["rounds"]] == [["b"], []]
    assert [tuple(row["state"]) for row in tables["rounds"]] == [
        each.state for each in before if hasattr(each, "state")
    ]
    assert [(row["client"], row["sample"], row["embedding"]) for row in tables["uploads"]] == [
        ("a", 0, [1.0, 1.0]),
        ("a", 2, [1.0, 1.0]),
        ("b", 1, [1.0, 1.0, 1.0]),
        ("late", 0, [1.0]),
        ("late", 1, [2.0]),
    ]
    assert [(row["label"], row["class"], row["receives_gradient"]) for row in tables["samples"]] == [
        (0, "no", True),
        (1, "yes", True),
        (0, "no", True),
    ]
    assert tables["offsets"] == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, 255], np.uint8), [0, 255]),
        (np.array([2**64 - 1, 0], np.uint64), [2.0**64, 0.0]),
        (np.array([0.5, -1], np.float32), [0.5, -1.0]),
        (np.array([True, False]), [True, False]),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]),
    ],
)
def test_labels_have_types_that_spark_knows(tmp_path, labels, expected):
    """It has no unsigned integers."""
    width = np.ndim(expected) if np.ndim(expected) == 1 else 2
    with Recorder(None, labels, ["a"], "squared") as recorder:
        recorder.log([0], {"a": np.ones((1, width))})
    export_parquet(recorder.transcript, tmp_path / "tables")
    assert [row["label"] for row in read(tmp_path / "tables")["samples"]] == expected


def test_rows_are_in_groups_and_files_of_bounded_size(tmp_path, monkeypatch):
    """Whatever the size of an upload, and with nothing lost between them."""
    monkeypatch.setattr(parquet, "_GROUP", 2**12)
    monkeypatch.setattr(parquet, "_FILE", 2**14)
    with Recorder(None, np.arange(1000) % 2, ["a"]) as recorder:
        for number in range(5):
            recorder.log(np.arange(1000), {"a": np.full(1000, number / 2)})
        for number in range(2000):
            recorder.log([number % 1000], {"a": [0.25]})
    n_rows = export_parquet(recorder.transcript, tmp_path / "tables")
    paths = sorted((tmp_path / "tables" / "uploads").iterdir())
    assert [path.name for path in paths] == [f"part-{number:05}.parquet" for number in range(1, 1 + len(paths))]
    sizes = [ds.dataset(path).count_rows() for path in paths]
    assert len(sizes) > 10
    assert max(sizes) < 600
    assert sum(sizes) == n_rows["uploads"] == 7000
    rows = read(tmp_path / "tables")["uploads"]
    assert [row["embedding"][0] for row in rows] == [number / 2 for number in range(5) for _ in range(1000)] + [
        0.25
    ] * 2000
    assert [row["sample"] for row in rows] == [*range(1000)] * 7


def test_an_export_is_whole_or_not_at_all(tmp_path):
    """After an error nothing is left, and what exists is not touched."""
    recorder = train(n_samples=60, batch=20, n_epochs=2).record()

    def stop(done, _total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_parquet(recorder.transcript, tmp_path / "tables", stop)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "tables").mkdir()
    with pytest.raises(InputError, match="tables: it exists; name a new folder"):
        export_parquet(recorder.transcript, tmp_path / "tables")
    with pytest.raises(InputError, match="there is no folder"):
        export_parquet(recorder.transcript, tmp_path / "nowhere" / "tables")


def test_an_export_may_go_to_a_store(tmp_path):
    """With the same files; after an error nothing is left, and a folder that is not empty is not touched."""
    recorder = train(n_samples=60, batch=20, n_epochs=2).record()
    export_parquet(recorder.transcript, tmp_path / "tables")

    def stop(done, _total):
        if done == 3:
            raise KeyboardInterrupt

    with serving() as store:
        with pytest.raises(KeyboardInterrupt):
            export_parquet(recorder.transcript, store.uri("tables"), stop)
        assert store.names("tables") == []
        export_parquet(recorder.transcript, store.uri("tables"))
        local = {path.relative_to(tmp_path / "tables").as_posix(): path for path in (tmp_path / "tables").rglob("*.*")}
        assert store.contents("tables") == {name: path.read_bytes() for name, path in local.items()}
        with pytest.raises(InputError, match=r"^cannot write s3://bucket/tables: it is not empty; name a new folder$"):
            export_parquet(recorder.transcript, store.uri("tables"))
