"""The order in which common samples are trained on."""

import numpy as np
import pytest

from tests.network.consortium import Consortium
from tests.network.rehearsal import Rehearsal
from verfedsv.network.label_file import LabelFile
from verfedsv.network.serving import NetworkRun


@pytest.fixture
def labels(tmp_path):
    return LabelFile(NetworkRun.of_file(Consortium(tmp_path).config).config)


def reread(labels, change):
    """Return the file after its lines of data were changed."""
    path = labels.file.path
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, *change(lines)]) + "\n", encoding="utf-8")
    labels.__dict__.clear()
    labels.__init__(NetworkRun.of_file(path.with_name("consortium.toml")).config)


def trained(labels, rows):
    """Return the ids of samples in the order in which they are trained on."""
    ids = labels.ids.values.to_pylist()
    return [ids[row] for row in np.asarray(rows)[labels.order(rows)]]


def test_the_order_does_not_depend_on_the_alignment(labels):
    """Which shuffles the samples, nor on that of the rows in the file; so the same files give the same training."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(200)
    first = trained(labels, rows)
    assert sorted(first) == sorted(labels.ids.values.to_pylist()[row] for row in rows)
    assert trained(labels, rng.permutation(rows)) == first
    before = [labels.ids.values.to_pylist()[row] for row in rows]
    reread(labels, lambda lines: lines[::-1])
    ids = labels.ids.values.to_pylist()
    assert trained(labels, np.array([ids.index(own) for own in before])) == first


def test_the_order_needs_all_ids_and_labels(labels):
    """Who knows the ids alone, such as an auditor of the run, cannot say which sample has which."""
    rows = np.arange(200)
    first = trained(labels, rows)
    assert first != sorted(first)
    reread(labels, lambda lines: [*lines[:-1], lines[-1][:-1] + str(1 - int(lines[-1][-1]))])
    assert trained(labels, rows) != first


def test_the_same_files_give_the_same_training(tmp_path):
    """Over a network, with an alignment of its own each time: the same uploads of the same samples."""
    found = []
    for name in ("one", "two"):
        settings = {"rounds": 4, "evaluate_every": 2, "batch_size": 240}
        whole = Rehearsal(tmp_path / name, training=settings, data={"aligned": False})
        whole.join()
        assert not whole.serve(timeout=60.0)
        whole.wait_for_parties()
        found.append(whole.records())
    assert found[0] == found[1]
