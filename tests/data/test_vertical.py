import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv import InputError
from verfedsv.data.catalogue import Samples
from verfedsv.data.preparation import prepare
from verfedsv.data.vertical import (
    ClientData,
    VerticalData,
    noisy_copy,
    random_client,
    split_features,
    take_rows,
)


def samples(n_samples=50, n_features=11, n_test=10):
    """Return random sparse samples."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(n_samples, n_features)) * (rng.random((n_samples, n_features)) < 0.5)
    return Samples("random", csr_array(dense), rng.integers(0, 3, n_samples), 3, n_test), dense


@pytest.mark.parametrize("n_clients", [1, 3, 11])
def test_features_are_split_into_contiguous_blocks(n_clients):
    """Put together again they are the features, and no two blocks differ by more than one column."""
    data, dense = samples()
    split = split_features(data, n_clients)
    np.testing.assert_array_equal(np.hstack([client.numeric.toarray() for client in split.clients]), dense)
    sizes = [client.numeric.shape[1] for client in split.clients]
    assert max(sizes) - min(sizes) <= 1
    assert split.names == tuple(f"client {m + 1}" for m in range(n_clients))


def test_the_test_part():
    """By default the data set's own, the last samples; or a random part of that size, the same for the same seed."""
    data, _ = samples()
    assert np.flatnonzero(split_features(data, 2).is_test).tolist() == list(range(40, 50))
    chosen = split_features(data, 2, test=0.3, seed=1).is_test
    assert chosen.sum() == 15
    np.testing.assert_array_equal(chosen, split_features(data, 2, test=0.3, seed=1).is_test)
    assert split_features(data, 2, test=0).is_test.sum() == 0
    with pytest.raises(InputError, match="from 0 to below 1; received 1"):
        split_features(data, 2, test=1.0)
    with pytest.raises(InputError, match="11 features for 1 to 11 clients; received 12"):
        split_features(data, 12)


def test_a_noisy_copy():
    """White noise on a part of the columns; none at 0."""
    data, dense = samples(n_samples=2000)
    client = split_features(data, 1).clients[0]
    same, noisy = (noisy_copy(client, "copy", part, np.random.default_rng(0)) for part in (0.0, 0.4))
    np.testing.assert_array_equal(same.numeric, dense)
    changed = (noisy.numeric != dense).any(axis=0)
    assert changed.sum() == round(0.4 * 11)
    assert np.std((noisy.numeric - dense)[:, changed]) == pytest.approx(1, rel=0.05)


def test_a_random_client():
    """Columns N(i, i^2), as many as another has."""
    data, _ = samples(n_samples=2000)
    client = random_client(split_features(data, 1).clients[0], "random", 3.0, np.random.default_rng(0))
    assert client.numeric.shape == (2000, 11)
    assert client.numeric.mean() == pytest.approx(3, rel=0.05)
    assert client.numeric.std() == pytest.approx(3, rel=0.05)


def test_names_must_differ():
    """A further client cannot have the name of another."""
    data, _ = samples()
    split = split_features(data, 2)
    with pytest.raises(InputError, match="repeated: client 1"):
        split.with_clients(ClientData("client 1", np.zeros((50, 1))))


def test_some_rows_of_all_clients():
    """Columns, labels and marks stay together."""
    text = np.array([["a"], ["b"], ["c"]], dtype=object)
    data = VerticalData(
        (ClientData("x", np.arange(3.0)[:, None], text),), np.arange(3), 3, np.array([False, True, False])
    )
    some = take_rows(data, [2, 1])
    assert some.clients[0].numeric.ravel().tolist() == [2.0, 1.0]
    assert some.clients[0].categorical.ravel().tolist() == ["c", "b"]
    assert some.labels.tolist() == [2, 1]
    assert some.is_test.tolist() == [False, True]


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
