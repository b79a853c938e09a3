import errno
import json
import os
import shutil

import pyarrow.dataset as ds
from pyarrow import parquet

from tests.cli.inprocess import call
from tests.settlement.runs import make_run
from verfedsv.transcript import Transcript


def test_a_run_is_exported(folder, tmp_path):
    """With one row for each sample of each upload, and the head of the chain that was checked."""
    done = call("export", folder, "--parquet", tmp_path / "tables")
    transcript = Transcript.open(folder)
    n_rows = sum(transcript.verify().n_embeddings.values())
    assert done.returncode == 0
    assert done.stdout == f"wrote {tmp_path / 'tables'}: {transcript.n_rounds} rounds, {n_rows:,} rows of uploads\n"
    assert ds.dataset(tmp_path / "tables" / "uploads").count_rows() == n_rows
    assert json.loads((tmp_path / "tables" / "export.json").read_text())["head"] == transcript.head


def test_nothing_is_exported_that_was_changed(folder, tmp_path):
    """Or that is not there, or to a place that is taken."""
    run = shutil.copytree(folder, tmp_path / "run")
    path = run / "uploads-00001.arrows"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    for arguments, why in [
        ((run, tmp_path / "tables"), "the transcript was changed: round"),
        ((tmp_path / "nothing", tmp_path / "tables"), "there is no transcript in"),
        ((folder, tmp_path), "it exists; name a new folder"),
        ((folder, "s3://key:secret@bucket/tables"), "must not hold keys"),
    ]:
        done = call("export", arguments[0], "--parquet", arguments[1])
        assert done.returncode == 2
        assert why in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_is_said_with_the_folder(folder, tmp_path, monkeypatch):
    """The error of the operating system names none, and nothing is left in it."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", fail)
    done = call("export", folder, "--parquet", tmp_path / "tables")
    assert done.returncode == 2
    said = "".join(done.stderr.split())
    assert "".join(f"cannot use {tmp_path / 'tables'}: No space left on device. Free some space".split()) in said
    assert not [*tmp_path.iterdir()]


def test_an_export_is_no_part_of_a_run(tmp_path):
    """In the folder of a transcript it would fail the audit."""
    run = make_run(tmp_path / "run")
    done = call("export", run, "--parquet", run / "transcript" / "tables")
    assert done.returncode == 2
    assert "in that folder of a run it would fail the audit" in " ".join(done.stderr.split())
    assert call("export", run, "--parquet", run / "tables").returncode == 0
