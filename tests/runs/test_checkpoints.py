import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from tests.runs.test_execute import entries, finish, make
from tests.runs.test_folders import TINY
from tests.runs.test_resume import kill_after, stop_at
from verfedsv import InputError
from verfedsv.data import ClientData, VerticalData
from verfedsv.runs.checkpoints import Checkpoint, fingerprint


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
    checkpoint = Checkpoint.read(tmp_path / "out" / "checkpoint.npz")
    assert (checkpoint.n_rounds, checkpoint.n_records) == (4, 4)
    assert {f"client {m}/weights" for m in range(4)} <= set(checkpoint.state)


def test_records_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """A power failure may lose either only in that order."""
    synced = []
    bring = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), bring(number)))
    finish(make(tmp_path, TINY))
    records, checkpoint = (
        (tmp_path / "out" / name).stat().st_ino for name in ("transcript/uploads.arrows", "checkpoint.npz")
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
