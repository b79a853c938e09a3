import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv import InputError
from verfedsv.data.catalogue import Samples
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
    """Joined again they are the features, and block sizes differ by at most one column."""
    data, dense = samples()
    split = split_features(data, n_clients)
    np.testing.assert_array_equal(np.hstack([client.numeric.toarray() for client in split.clients]), dense)
    sizes = [client.numeric.shape[1] for client in split.clients]
    assert max(sizes) - min(sizes) <= 1
    assert split.names == tuple(f"client {m + 1}" for m in range(n_clients))
    assert sum((client.columns for client in split.clients), ()) == tuple(f"feature {k + 1}" for k in range(11))


def test_the_test_part():
    """By default the data set's own, the last samples; or a random fraction, the same for the same seed."""
    data, _ = samples()
    assert np.flatnonzero(split_features(data, 2).is_test).tolist() == list(range(40, 50))
    chosen = split_features(data, 2, test=0.3, seed=1).is_test
    assert chosen.sum() == 15
    np.testing.assert_array_equal(chosen, split_features(data, 2, test=0.3, seed=1).is_test)
    assert split_features(data, 2, test=0).is_test.sum() == 0
    with pytest.raises(InputError, match="at least 0 and below 1; received 1"):
        split_features(data, 2, test=1.0)
    with pytest.raises(InputError, match="11 features for 1 to 11 clients; received 12"):
        split_features(data, 12)


def test_a_noisy_copy():
    """White noise on a fraction of the columns; none at 0."""
    data, dense = samples(n_samples=2000)
    client = split_features(data, 1).clients[0]
    same, noisy = (noisy_copy(client, "copy", part, np.random.default_rng(0)) for part in (0.0, 0.4))
    assert same.numeric is client.numeric  # sparse ones stay sparse, so that embeddings are the same to the last bit
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


def categories(n_samples=50, n_columns=3):
    """Return random columns of text."""
    return np.random.default_rng(0).choice(np.array(["x", "y"], dtype=object), size=(n_samples, n_columns))


@pytest.mark.parametrize(("n_numeric", "n_text", "expected"), [(0, 3, 3), (2, 3, 5), (0, 0, 1)])
def test_a_random_client_like_one_with_text(n_numeric, n_text, expected):
    """Columns of text count, and there is at least one column."""
    like = ClientData("a", np.zeros((50, n_numeric)), categories(n_columns=n_text))
    client = random_client(like, "random", 1.0, np.random.default_rng(0))
    assert client.numeric.shape == (50, expected)
    assert client.categorical is None


def test_a_noisy_copy_of_few_columns():
    """For any fraction, at least one column is changed."""
    client = ClientData("a", np.zeros((50, 2)))
    copy = noisy_copy(client, "copy", 0.2, np.random.default_rng(0))
    assert (copy.numeric != 0).any(axis=0).sum() == 1


def test_a_noisy_copy_of_text():
    """Without numeric columns, only a plain copy is possible."""
    client = ClientData("a", np.zeros((50, 0)), categories())
    np.testing.assert_array_equal(
        noisy_copy(client, "copy", 0.0, np.random.default_rng(0)).categorical, client.categorical
    )
    with pytest.raises(InputError, match="'a' has no numeric columns to add noise to"):
        noisy_copy(client, "copy", 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_a_copy_with_noisy_entries(fraction):
    """Each entry gets noise with that probability, independently."""
    client = ClientData("a", np.full((20_000, 2), 5.0))
    copy = noisy_copy(client, "copy", fraction, np.random.default_rng(0), of="entries")
    noise = copy.numeric - client.numeric
    is_noisy = noise != 0
    np.testing.assert_allclose(is_noisy.mean(axis=0), fraction, atol=0.02)
    assert (is_noisy[:, 0] & is_noisy[:, 1]).mean() == pytest.approx(fraction**2, abs=0.02)
    assert fraction == 0 or noise[is_noisy].std() == pytest.approx(1, rel=0.05)
    again = noisy_copy(client, "copy", fraction, np.random.default_rng(0), of="entries")
    np.testing.assert_array_equal(again.numeric, copy.numeric)


@pytest.mark.parametrize(
    ("fraction", "of", "message"),
    [
        (1.5, "columns", "from 0 to 1; received 1.5"),
        (float("nan"), "entries", "from 0 to 1; received nan"),
        (0.5, "rows", "'columns' or 'entries'; received 'rows'"),
    ],
)
def test_invalid_noise(fraction, of, message):
    """Fractions outside 0 to 1 and other places for noise are refused."""
    with pytest.raises(InputError, match=message):
        noisy_copy(ClientData("a", np.zeros((5, 2))), "copy", fraction, np.random.default_rng(0), of=of)


def test_names_must_differ():
    """Another client cannot have the same name."""
    data, _ = samples()
    split = split_features(data, 2)
    with pytest.raises(InputError, match="repeated: client 1"):
        split.with_clients(ClientData("client 1", np.zeros((50, 1))))


def test_some_rows_of_all_clients():
    """Columns, labels and test marks stay aligned."""
    text = np.array([["a"], ["b"], ["c"]], dtype=object)
    data = VerticalData(
        (ClientData("x", np.arange(3.0)[:, None], text),), np.arange(3), 3, np.array([False, True, False])
    )
    some = take_rows(data, [2, 1])
    assert some.clients[0].numeric.ravel().tolist() == [2.0, 1.0]
    assert some.clients[0].categorical.ravel().tolist() == ["c", "b"]
    assert some.labels.tolist() == [2, 1]
    assert some.is_test.tolist() == [False, True]
