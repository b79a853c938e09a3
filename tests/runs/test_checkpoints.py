import io
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from tests.runs.test_execute import entries, finish, make
from tests.runs.test_folders import TINY
from tests.runs.test_resume import kill_after, stop_at
from verfedsv import InputError, VerfedsvError
from verfedsv.data import ClientData, VerticalData
from verfedsv.runs.checkpoints import fingerprint


@pytest.mark.parametrize("n_bytes", [0, 1, 100, -200])
def test_a_damaged_checkpoint_is_named(tmp_path, n_bytes):
    """It may be deleted: training starts over, and finds what it recorded."""
    finish(make(tmp_path, TINY.replace('"out"', '"whole"'), "whole.toml"))
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(InputError, match=r"checkpoint\.npz cannot be read .*It may be deleted; training then starts"):
        finish(make(tmp_path, TINY), resume=True)
    path.unlink()
    finish(make(tmp_path, TINY), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


def test_the_checkpoint_stays(tmp_path):
    """Whoever runs all clients has their models."""
    finish(make(tmp_path, TINY))
    with np.load(tmp_path / "out" / "checkpoint.npz") as checkpoint:
        assert (checkpoint["n_rounds"], checkpoint["n_records"]) == (4, 4)
        assert {f"client {m}/weights" for m in range(4)} <= set(checkpoint)


def forge(path, save=np.savez, **changes):
    """Change arrays of a checkpoint; None takes one out."""
    with np.load(path) as arrays:
        content = {**arrays, **changes}
    save(path, **{name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_rounds": 1}, "does not fit the transcript: it counts 1 round in 2 records, where the transcript has 2"),
        ({"n_records": 1}, "counts 2 rounds in 1 record, where the transcript has 1"),
        ({"n_rounds": 1, "n_records": 1}, "record 2 of the transcript is not what this training computes again"),
        ({"n_rounds": 3, "n_records": 3}, "after 3 records, of which the transcript has only 2"),
        ({"steps": np.arange(4)}, "or other uploads of clients"),
        ({"n_rounds": -1}, "n_rounds has negative numbers"),
        ({"n_rounds": np.arange(2)}, r"n_rounds is int64 of shape \(2,\), not int64 of \(\)"),
        ({"n_rounds": np.array("many")}, "n_rounds is <U4"),
        ({"live": None}, "'live' is missing, or should not be there"),
        ({"odd": np.zeros(3)}, "'odd' is missing, or should not be there"),
        ({"server/table": None}, "'server/table' is missing, or should not be there"),
        ({"client 0/weights": np.zeros((3, 1))}, r"client 0/weights is float64 of shape \(3, 1\), not"),
        ({"client 0/weights": np.full((30, 1), np.nan)}, "client 0/weights has numbers that are not finite"),
        ({"client 0/weights": np.ones((30, 1), np.complex128)}, "client 0/weights is complex128"),
        ({"server/table": np.ones((4, 10**5, 1))}, "bytes, more than such models and embeddings take"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, changes, says):
    """By its arrays, by what it counts, or by what is computed from it; the folder stays as it is."""
    text = TINY.replace("evaluate_every = 10", "evaluate_every = 1")
    finish(make(tmp_path, text), should_stop=stop_at(2))
    forge(tmp_path / "out" / "checkpoint.npz", **changes)
    before = contents(tmp_path / "out")
    with pytest.raises(VerfedsvError, match=says):
        finish(make(tmp_path, text), resume=True)
    assert contents(tmp_path / "out") == before


def contents(folder):
    """Return all files of a folder with what is in them."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_compressed_checkpoint_is_refused(tmp_path):
    """As a few bytes could become any amount of memory."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoint.npz"
    forge(path, np.savez_compressed)
    with pytest.raises(InputError, match=r"checkpoint\.npz cannot be read \(ValueError\)"):
        finish(make(tmp_path, TINY), resume=True)


def test_an_array_that_claims_to_be_large_is_not_made(tmp_path):
    """Its header is compared with the models before anything is allocated."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoint.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 1)})
    members["client 0/weights.npy"] = header.getvalue() + bytes(8)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=rf"client 0/weights is float64 of shape \({2**50}, 1\), not"):
        finish(make(tmp_path, TINY), resume=True)


def test_leftovers_of_interrupted_checkpoints_are_removed(tmp_path):
    """Those of others, such as an editor's, stay."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    for name in (".checkpoint.npz.abcd_123", ".metrics.jsonl.12345678", ".config.toml.swp"):
        (tmp_path / "out" / name).write_bytes(b"half")
    finish(make(tmp_path, TINY), resume=True)
    hidden = sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith("."))
    assert hidden == [".config.toml.swp"]


def test_records_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """A power failure may lose either only in that order."""
    synced = []
    bring = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), bring(number)))
    finish(make(tmp_path, TINY))
    records, checkpoint = (
        (tmp_path / "out" / name).stat().st_ino for name in ("transcript/uploads-00001.arrows", "checkpoint.npz")
    )
    last = len(synced) - 1 - synced[::-1].index(checkpoint)
    assert records in synced[:last]


def write_file(tmp_path, rows):
    """Write a client's file and return the configuration of a run on it."""
    (tmp_path / "a.csv").write_text("\n".join(["id,y,x", *rows]))
    text = TINY.replace('name = "adult"\nclients = 4\nsamples = 300', 'label = "y"\nlabel_client = "a"')
    return text + '[[client]]\nname = "a"\nfile = "a.csv"\n'


@pytest.mark.parametrize("n_records", [1, 3])
def test_changed_data_are_noticed(tmp_path, n_records):
    """Also before the first round is saved; once they are back, training goes on."""
    rows = [f"{i},{i % 2},{i % 7}" for i in range(60)]
    text = write_file(tmp_path, rows)
    kill_after(n_records, make(tmp_path, text))
    write_file(tmp_path, [*rows[:-1], "59,1,1000"])
    with pytest.raises(InputError, match=r"the data are not those that the run in .* began with"):
        finish(make(tmp_path, text), resume=True)
    write_file(tmp_path, rows)
    assert finish(make(tmp_path, text), resume=True)[-1].n_rounds == 4


def test_the_fingerprint_covers_all_that_training_depends_on():
    """Names, numbers, missing ones, categories, labels, and what is to test on."""
    dense, sparse = ClientData("a", np.array([[1.0], [2.0]])), ClientData("b", csr_array([[0.0, 1.0], [2.0, 0.0]]))
    text = ClientData("c", np.zeros((2, 0)), np.array([["x"], [None]], object))
    data = VerticalData((dense, sparse, text), np.array([0, 1]), 2, np.array([False, True]))
    others = [
        replace(data, clients=(replace(dense, name="z"), sparse, text)),
        replace(data, clients=(replace(dense, numeric=np.array([[1.0], [3.0]])), sparse, text)),
        replace(data, clients=(replace(dense, numeric=np.array([[1.0], [np.nan]])), sparse, text)),
        replace(data, clients=(replace(dense, numeric=np.array([[1.0, 2.0]])), sparse, text)),
        replace(data, clients=(dense, replace(sparse, numeric=csr_array([[1.0, 0.0], [2.0, 0.0]])), text)),
        replace(data, clients=(dense, sparse, replace(text, categorical=np.array([["x"], ["None"]], object)))),
        replace(data, clients=(sparse, dense, text)),
        replace(data, labels=np.array([1, 0])),
        replace(data, n_classes=3),
        replace(data, is_test=np.array([True, False])),
    ]
    assert len({fingerprint(data), *map(fingerprint, others)}) == 1 + len(others)
    assert fingerprint(data) == fingerprint(replace(data, notes=("read",)))
