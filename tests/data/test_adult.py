import hashlib
import importlib.util
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from verfedsv.data import load_adult, load_adult_round
from verfedsv.data.adult import ATTRIBUTES
from verfedsv.errors import InputError


def test_files_are_those_of_the_notice():
    """The data files are byte for byte what their notice says they are."""
    folder = files("verfedsv.data") / "files"
    notice = (folder / "NOTICE.md").read_text()
    for name in ("a9a.bz2", "a9a.t.bz2"):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() in notice
    assert "CC BY 4.0" in notice or "Attribution 4.0" in notice


def test_adult_is_the_data_set_of_the_paper():
    """48,842 rows of 123 binary features; about 24 % earn more than 50,000 dollars."""
    features, labels = load_adult()
    assert features.shape == (48_842, 123)
    assert set(np.unique(features.data)) == {1.0}
    assert set(np.unique(labels)) == {-1.0, 1.0}
    assert (labels > 0).mean() == pytest.approx(0.2393, abs=1e-4)


def test_attributes_are_where_they_are_said_to_be():
    """Each block of features is one attribute: at most one of its features is set, and exactly one unless unknown."""
    features, _ = load_adult()
    edges = np.cumsum([0, *ATTRIBUTES.values()])
    assert edges[-1] == 123
    for (a, b), name in zip(pairwise(edges), ATTRIBUTES, strict=True):
        counts = features[:, a:b].sum(axis=1)
        assert counts.max() == 1
        assert counts.min() == (0 if name in {"workclass", "occupation", "native-country"} else 1)


def test_recorded_weights_can_be_recorded_again():
    """The script that made the weights makes the same weights."""
    path = Path(__file__).parents[2] / "scripts" / "record_adult_weights.py"
    specification = importlib.util.spec_from_file_location("record_adult_weights", path)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    with (files("verfedsv.data") / "files" / "adult_weights.csv").open() as file:
        recorded = np.loadtxt(file, delimiter=",", skiprows=1)
    np.testing.assert_allclose(script.train(), recorded, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_clients", [None, 1, 8, 123])
def test_rounds_add_up_to_the_same_model(n_clients):
    """However the features are split, the embeddings of all clients sum to those of the joint model."""
    whole, part = load_adult_round(1), load_adult_round(n_clients)
    assert len(part.clients) == len(part.previous) == (n_clients or 14)
    np.testing.assert_allclose(part.current.sum(axis=0), whole.current[0], atol=1e-12)
    np.testing.assert_allclose(part.previous.sum(axis=0), whole.previous[0], atol=1e-12)


def test_the_jump_starts_at_zero_and_ends_trained():
    """The whole training as one round: from zero to a model that is right for 84 % of the people."""
    jump = load_adult_round(4, jump=True)
    assert not jump.previous.any()
    assert ((jump.current.sum(axis=0) > 0) == (jump.labels > 0)).mean() > 0.84


@pytest.mark.parametrize(
    ("n_clients", "message"), [(0, "at least 1"), (124, "1 to 123 clients"), ("8", "whole number")]
)
def test_clients_need_a_feature_each(n_clients, message):
    """More clients than features, or none, are refused."""
    with pytest.raises(InputError, match=message):
        load_adult_round(n_clients)
