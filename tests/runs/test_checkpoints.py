import io
import itertools
import os
import shutil
import zipfile
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from tests.runs.test_execute import entries, finish, make
from tests.runs.test_resume import SMALL, Killed, kill_after, stop_at
from tests.runs.test_writing import TINY
from verfedsv import InputError, VerfedsvError
from verfedsv.data import ClientData
from verfedsv.federation import clients, server
from verfedsv.federation.checkpoints import fingerprint_client, write_checkpoint


@pytest.mark.parametrize("n_bytes", [0, 1, 100, -200])
@pytest.mark.parametrize("name", ["server.npz", "client-1-2.npz"])
def test_a_damaged_checkpoint_is_named(tmp_path, name, n_bytes):
    """Without checkpoints, training starts over, and finds what it recorded."""
    finish(make(tmp_path, TINY.replace('"out"', '"whole"'), "whole.toml"))
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoints" / name
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(InputError, match=rf"{name} cannot be read .*Delete the folder of checkpoints to start over"):
        finish(make(tmp_path, TINY), resume=True)
    shutil.rmtree(path.parent)
    finish(make(tmp_path, TINY), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


def test_the_checkpoint_stays(tmp_path):
    """It holds the trained models."""
    finish(make(tmp_path, TINY))
    folder = tmp_path / "out" / "checkpoints"
    with np.load(folder / "server.npz") as checkpoint:
        assert (checkpoint["n_rounds"], checkpoint["n_records"]) == (4, 4)
        assert not any("weights" in name for name in checkpoint)
    for m in range(4):
        with np.load(folder / f"client-{m}-4.npz") as checkpoint:
            prepared = {"columns", "means", "centre", "divisor", "unit_rows", "is_sparse"}
            assert set(checkpoint) == {"weights", "n_steps", "round", "fingerprint", "about", *prepared}


SERVER, CLIENT = "server.npz", "client-0-2.npz"


def forge(path, save=np.savez, **changes):
    """Change arrays of a checkpoint; None removes one."""
    with np.load(path) as arrays:
        content = {**arrays, **changes}
    save(path, **{name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (SERVER, {"n_rounds": 1}, "does not match the transcript: it counts 1 round in 2 records, where"),
        (SERVER, {"saved": np.full(4, 2)}, r"client-0-1.npz cannot be read \(No such file or directory\)"),
        (SERVER, {"saved": np.array([0, 3, 3, 3])}, "training cannot continue: no valid answer from client 1"),
        (
            SERVER,
            {"n_records": 1},
            "does not match the transcript: it counts 2 rounds in 1 record, where",
        ),
        (SERVER, {"n_records": 4}, "after 4 records, of which the transcript has only 3"),
        (SERVER, {"n_uploads": np.arange(4)}, "or other numbers of uploads"),
        (SERVER, {"n_rounds": -1}, "n_rounds has negative numbers"),
        (SERVER, {"n_rounds": np.arange(2)}, r"n_rounds is int64 of shape \(2,\), not int64 of \(\)"),
        (SERVER, {"n_rounds": np.array("many")}, "n_rounds is <U4"),
        (SERVER, {"live": None}, "'live' is missing or unexpected"),
        (SERVER, {"odd": np.zeros(3)}, "'odd' is missing or unexpected"),
        (SERVER, {"table": None}, "'table' is missing or unexpected"),
        (SERVER, {"table": np.ones((4, 10**5, 1))}, "bytes, more than its arrays take"),
        (CLIENT, {"round": 1}, "holds round 1, not 2"),
        (
            CLIENT,
            {"weights": np.ones((30, 1))},
            "record 3 of the transcript differs from what this training recomputes",
        ),
        (CLIENT, {"weights": np.zeros((3, 1))}, r"weights is float64 of shape \(3, 1\), not"),
        (CLIENT, {"weights": np.full((30, 1), np.nan)}, "weights has numbers that are not finite"),
        (CLIENT, {"weights": np.ones((30, 1), np.complex128)}, "weights is complex128"),
        (CLIENT, {"fingerprint": np.array("0" * 64)}, "the data of 'client 1' have changed"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, name, changes, says):
    """By its arrays, its counts, or what is computed from it; the folder is unchanged."""
    text = TINY.replace("evaluate_every = 10", "evaluate_every = 1")
    finish(make(tmp_path, text), should_stop=stop_at(2))
    kill_after(1, make(tmp_path, text), resume=True)
    forge(tmp_path / "out" / "checkpoints" / name, **changes)
    before = contents(tmp_path / "out")
    with pytest.raises(VerfedsvError, match=says):
        finish(make(tmp_path, text), resume=True)
    assert contents(tmp_path / "out") == before


def contents(folder):
    """Return all files of a folder with their contents."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_compressed_checkpoint_is_refused(tmp_path):
    """A few bytes could expand to any amount of memory."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoints" / CLIENT
    forge(path, np.savez_compressed)
    with pytest.raises(InputError, match=r"client-0-2\.npz cannot be read \(ValueError\)"):
        finish(make(tmp_path, TINY), resume=True)


def test_an_array_that_claims_to_be_large_is_not_made(tmp_path):
    """Its header is compared with the models before anything is allocated."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    path = tmp_path / "out" / "checkpoints" / CLIENT
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 1)})
    members["weights.npy"] = header.getvalue() + bytes(8)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=rf"weights is float64 of shape \({2**50}, 1\), not"):
        finish(make(tmp_path, TINY), resume=True)


def test_leftovers_of_interrupted_checkpoints_are_removed(tmp_path):
    """Files of others, such as an editor's, stay."""
    finish(make(tmp_path, TINY), should_stop=stop_at(2))
    for name in ("checkpoints/.server.npz.abcd_123", ".metrics.jsonl.12345678", ".config.toml.swp"):
        (tmp_path / "out" / name).write_bytes(b"half")
    finish(make(tmp_path, TINY), resume=True)
    found = [*(tmp_path / "out").iterdir(), *(tmp_path / "out" / "checkpoints").iterdir()]
    hidden = sorted(path.name for path in found if path.name.startswith("."))
    assert hidden == [".config.toml.swp"]


def test_records_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """So a power failure cannot leave a checkpoint without its records."""
    synced = []
    bring = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), bring(number)))
    finish(make(tmp_path, TINY))
    records, checkpoint = (
        (tmp_path / "out" / name).stat().st_ino
        for name in ("transcript/uploads-00001.arrows", "checkpoints/server.npz")
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
    """Even before the first round is saved; with the original data, training continues."""
    rows = [f"{i},{i % 2},{i % 7}" for i in range(60)]
    text = write_file(tmp_path, rows)
    kill_after(n_records, make(tmp_path, text))
    write_file(tmp_path, [*rows[:-1], "59,1,1000"])
    with pytest.raises(InputError, match=r"the data of .* have changed since the training began of which .* is"):
        finish(make(tmp_path, text), resume=True)
    write_file(tmp_path, rows)
    assert finish(make(tmp_path, text), resume=True)[-1].n_rounds == 4


@pytest.mark.parametrize(
    ("changed", "whose"),
    [(("no,x", "nein,x"), "the server"), (("id,y,x", "id,y,length"), "'a'")],
    ids=["class", "column"],
)
def test_other_names_are_noticed(tmp_path, changed, whose):
    """Predictions use the names of classes and columns, so that both must stay the same."""
    rows = [f"{i},{'no' if i % 2 else 'yes'},x{i % 3}" for i in range(60)]
    text = write_file(tmp_path, rows)
    finish(make(tmp_path, text), should_stop=stop_at(2))
    path = tmp_path / "a.csv"
    path.write_text(path.read_text().replace(*changed))
    with pytest.raises(InputError, match=f"the data of {whose} have changed"):
        finish(make(tmp_path, text), resume=True)


def test_the_fingerprint_covers_all_that_training_depends_on():
    """Names, numbers, missing ones, categories and test marks; labels are in the server's."""
    dense, sparse = ClientData("a", np.array([[1.0], [2.0]])), ClientData("b", csr_array([[0.0, 1.0], [2.0, 0.0]]))
    text, is_test = ClientData("c", np.zeros((2, 0)), np.array([["x"], [None]], object)), np.array([False, True])
    marks = [
        fingerprint_client(data, test)
        for data, test in [
            (dense, is_test),
            (dense, ~is_test),
            (replace(dense, name="z"), is_test),
            (replace(dense, numeric=np.array([[1.0], [3.0]])), is_test),
            (replace(dense, numeric=np.array([[1.0], [np.nan]])), is_test),
            (replace(dense, numeric=np.array([[1.0, 2.0]]), columns=()), is_test),
            (replace(dense, columns=("age",)), is_test),
            (sparse, is_test),
            (replace(sparse, numeric=csr_array([[1.0, 0.0], [2.0, 0.0]])), is_test),
            (text, is_test),
            (replace(text, categorical=np.array([["x"], ["None"]], object)), is_test),
        ]
    ]
    assert len({str(mark) for mark in marks}) == len(marks)
    assert fingerprint_client(dense, is_test) == marks[0]


@pytest.mark.parametrize("text", SMALL, ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("n_written", range(6))
def test_killed_between_two_checkpoints(tmp_path, monkeypatch, text, n_written):
    """The server's is written last, and clients keep the one it counts: training continues to the same records."""
    finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))
    finish(make(tmp_path, text), should_stop=stop_at(2))
    n_left = itertools.count(n_written, -1)

    def write_or_die(path, state):
        if next(n_left) == 0:
            raise Killed
        write_checkpoint(path, state)

    for module in (clients, server):
        monkeypatch.setattr(module, "write_checkpoint", write_or_die)
    for _ in range(2):
        n_left = itertools.count(n_written, -1)
        with pytest.raises(Killed) if n_written < 5 else nullcontext():
            finish(make(tmp_path, text), resume=True, should_stop=stop_at(3))
    monkeypatch.undo()
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "out" / "checkpoints").glob("client-*")} >= {
        f"client-{m}-{n_rounds_of(text)}.npz" for m in range(4)
    }


def n_rounds_of(text):
    """Return the rounds of one of the two configurations."""
    return 16 if text == SMALL[0] else 3
