import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv import InputError
from verfedsv.data.preparation import prepare
from verfedsv.data.vertical import ClientData


@pytest.mark.parametrize("sparse", [False, True])
def test_standardised_columns(sparse):
    """Training rows have mean 0 and variance 1; a constant column becomes 0; test rows take part in neither."""
    rng = np.random.default_rng(0)
    numeric = np.hstack([rng.normal(5, 3, size=(60, 4)), np.ones((60, 1))])
    is_train = np.arange(60) < 40
    features = prepare(ClientData("a", csr_array(numeric) if sparse else numeric), "standardise", is_train)
    np.testing.assert_allclose(features[is_train].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(features[is_train][:, :4].std(axis=0), 1)
    other = numeric.copy()
    other[~is_train] = 1e6
    again = prepare(ClientData("a", other), "standardise", is_train)
    np.testing.assert_allclose(again[is_train], features[is_train])


def test_wide_sparse_columns_stay_sparse():
    """They are scaled without losing their zeros, and rows are made of norm 1 without being filled."""
    rng = np.random.default_rng(0)
    numeric = csr_array(rng.normal(size=(40, 500)) * (rng.random((40, 500)) < 0.02))
    is_train = np.ones(40, bool)
    for scale in ("none", "standardise", "unit-rows"):
        features = prepare(ClientData("a", numeric), scale, is_train)
        assert features.nnz == numeric.nnz
    norms = np.sqrt(features.multiply(features).sum(axis=1))
    np.testing.assert_allclose(norms[np.diff(features.indptr) > 0], 1)


def test_unit_rows():
    """Every row has norm 1, but for rows of zeros."""
    numeric = np.array([[3.0, 4.0], [0.0, 0.0]])
    features = prepare(ClientData("a", numeric), "unit-rows", np.ones(2, bool))
    np.testing.assert_allclose(features, [[0.6, 0.8], [0, 0]])


def test_missing_numbers_become_the_mean_of_the_training_rows():
    """Not that of all rows."""
    numeric = np.array([[1.0], [3.0], [np.nan], [100.0], [np.nan]])
    features = prepare(ClientData("a", numeric), "none", np.array([True, True, True, False, False]))
    assert features.ravel().tolist() == [1, 3, 2, 100, 2]


def test_categories_are_one_hot():
    """A missing category is one of its own; one that is not among the training rows is zeros."""
    text = np.array([["red"], ["blue"], [None], ["green"]], dtype=object)
    data = ClientData("a", np.zeros((4, 0)), text)
    features = prepare(data, "none", np.array([True, True, True, False]))
    assert features.shape == (4, 3)
    np.testing.assert_array_equal(features.sum(axis=1), [1, 1, 1, 0])
    assert len(np.unique(features[:3].argmax(axis=1))) == 3


def test_an_unknown_scale():
    """It is named with those there are."""
    with pytest.raises(InputError, match="unknown scale 'large'; allowed are 'none', 'standardise', 'unit-rows'"):
        prepare(ClientData("a", np.zeros((2, 1))), "large", np.ones(2, bool))
