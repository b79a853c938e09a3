"""The order in which common samples are trained on."""

import numpy as np
import pytest

from tests.network.consortium import ORDER, Consortium
from tests.network.rehearsal import Killed, Rehearsal
from verfedsv.errors import DataError, InputError
from verfedsv.federation.messages import Embed
from verfedsv.network.label_file import ORDER_KEY, LabelFile, order_key
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


def trained(labels, rows, key=ORDER):
    """Return the ids of samples in the order in which they are trained on."""
    ids = labels.ids.values.to_pylist()
    return [ids[row] for row in np.asarray(rows)[labels.order(rows, key)]]


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


def test_the_order_shows_nothing_but_the_key(labels):
    """A client that tries out labels, or ids that are not common, finds the same order for all of them."""
    rows = np.arange(200)
    first = trained(labels, rows)
    assert first != sorted(first)
    assert trained(labels, rows, bytes(32)) != first
    reread(labels, lambda lines: [line[:-1] + str(1 - int(line[-1])) for line in lines])
    assert trained(labels, rows) == first
    reread(labels, lambda lines: [*lines[:200], *(f"other-{line}" for line in lines[200:])])
    assert trained(labels, rows) == first


def test_each_training_has_a_key_of_its_own(tmp_path):
    """Random, private, and kept: without it, a training that has begun is not continued with another order."""
    keys = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keys.append(order_key(tmp_path / name, is_begun=False))
        assert order_key(tmp_path / name, is_begun=True) == keys[-1]
        assert (tmp_path / name / ORDER_KEY).stat().st_mode & 0o777 == 0o600
    assert keys[0] != keys[1]
    assert {*map(len, keys)} == {32}
    (tmp_path / "one" / ORDER_KEY).unlink()
    with pytest.raises(InputError, match="is gone, and with it the order of the samples"):
        order_key(tmp_path / "one", is_begun=True)
    (tmp_path / "two" / ORDER_KEY).write_bytes(keys[1][:-1])
    with pytest.raises(InputError, match="must have 32 random bytes, and has 31"):
        order_key(tmp_path / "two", is_begun=True)


def test_the_same_files_and_key_give_the_same_training(tmp_path):
    """Over a network, with an alignment of its own each time: the same uploads of the same samples."""
    found = []
    for name, key in (("one", ORDER), ("two", ORDER), ("three", bytes(32))):
        settings = {"rounds": 4, "evaluate_every": 2, "batch_size": 240}
        whole = Rehearsal(tmp_path / name, training=settings, data={"aligned": False})
        whole.give_key(key)
        whole.join()
        assert not whole.serve(timeout=60.0)
        whole.wait_for_parties()
        found.append(whole.records())
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_training_that_lost_its_key_is_not_continued(tmp_path):
    """Its samples would be in another order."""
    settings = {"rounds": 4, "evaluate_every": 2, "batch_size": 240}
    whole = Rehearsal(tmp_path, training=settings, data={"aligned": False})
    whole.join()

    def kill(messages):
        if isinstance(messages[0], Embed) and messages[0].round == 3:
            raise Killed

    with pytest.raises(Killed):
        whole.serve(tap=kill)
    (tmp_path / "run.private" / ORDER_KEY).unlink()
    with pytest.raises(InputError, match="is gone, and with it the order of the samples"):
        whole.serve()
    whole.give_key(ORDER)
    assert not whole.serve()
    whole.wait_for_parties()


@pytest.mark.parametrize(("n_classes", "n_different", "is_right"), [(None, 3, True), (2, 3, True), (3, 2, False)])
def test_rows_that_are_not_common_may_have_other_classes(tmp_path, n_classes, n_different, is_right):
    """So only a file with fewer classes than are set is refused before ids are aligned."""
    whole = Consortium(tmp_path, data={} if n_classes is None else {"classes": n_classes})
    labels = LabelFile(NetworkRun.of_file(whole.config).config)
    reread(labels, lambda lines: [f"{line[:-1]}{number % n_different}" for number, line in enumerate(lines)])
    if is_right:
        assert "240 rows in" in labels.check()
    else:
        with pytest.raises(DataError, match="should have 3 classes and has 2"):
            labels.check()
