import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.preprocessing import OneHotEncoder

from verfedsv import InputError
from verfedsv.data.preparation import Preparation, prepare
from verfedsv.data.vertical import ClientData


@pytest.mark.parametrize("sparse", [False, True])
def test_standardised_columns(sparse):
    """Training rows have mean 0 and variance 1; a constant column becomes 0; test rows have no influence."""
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
    """They are scaled without losing their zeros, and rows are scaled to norm 1 without becoming dense."""
    rng = np.random.default_rng(0)
    numeric = csr_array(rng.normal(size=(40, 500)) * (rng.random((40, 500)) < 0.02))
    is_train = np.ones(40, bool)
    for scale in ("none", "standardise", "unit-rows"):
        features = prepare(ClientData("a", numeric), scale, is_train)
        assert features.nnz == numeric.nnz
    norms = np.sqrt(features.multiply(features).sum(axis=1))
    np.testing.assert_allclose(norms[np.diff(features.indptr) > 0], 1)


@pytest.mark.parametrize("width", [4, 400])
def test_both_scales_make_unit_rows_of_standardised_columns(width):
    """First columns, then rows; dense and sparse."""
    numeric = csr_array(np.random.default_rng(0).random((50, width)) * (np.arange(width) % 7 == 0))
    data, is_train = ClientData("a", numeric), np.arange(50) < 40
    both, standardised = (prepare(data, scale, is_train) for scale in ("standardise-unit-rows", "standardise"))
    both, standardised = (x if isinstance(x, np.ndarray) else x.toarray() for x in (both, standardised))
    norms = np.linalg.norm(standardised, axis=1, keepdims=True)
    np.testing.assert_allclose(both, standardised / norms, atol=1e-14)


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
    """A missing value is a category; one that is not in the training rows becomes zeros."""
    text = np.array([["red"], ["blue"], [None], ["green"]], dtype=object)
    data = ClientData("a", np.zeros((4, 0)), text)
    features = prepare(data, "none", np.array([True, True, True, False]))
    assert features.shape == (4, 3)
    np.testing.assert_array_equal(features.sum(axis=1), [1, 1, 1, 0])
    assert len(np.unique(features[:3].argmax(axis=1))) == 3


def test_an_unknown_scale():
    """The error lists the known ones."""
    with pytest.raises(InputError, match="unknown scale 'large'; allowed are 'none', 'standardise', 'unit-rows'"):
        prepare(ClientData("a", np.zeros((2, 1))), "large", np.ones(2, bool))


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("value", [0.1, 0.3, 1.1, -7e-9, 1e15 / 3])
@pytest.mark.parametrize("n_train", [3, 10, 1001])
def test_constant_columns_become_zeros(is_wide, value, n_train):
    """Even if the rounded mean of equal numbers differs from them, and in test rows with any value."""
    rng = np.random.default_rng(0)
    numeric = np.zeros((n_train + 2, 600 if is_wide else 2))
    numeric[:, 0] = value
    numeric[-1, 0] = 2 * value
    numeric[:, 1] = rng.normal(size=n_train + 2)
    is_train = np.arange(n_train + 2) < n_train
    features = prepare(ClientData("a", csr_array(numeric)), "standardise", is_train)
    assert isinstance(features, np.ndarray) != is_wide
    assert abs(features[:, [0]]).max() == 0
    if is_wide:
        assert features.nnz == n_train + 2
    known = numeric[is_train, 1]
    expected = numeric[:, 1] / known.std() if is_wide else (numeric[:, 1] - known.mean()) / known.std()
    np.testing.assert_allclose(np.asarray(features[:, [1]].sum(axis=1)).ravel(), expected)


def test_a_constant_column_with_missing_numbers():
    """It stays constant when they are filled in, although a million times 0.1 does not sum to 100,000."""
    numeric = np.full((1_000_000, 1), 0.1)
    numeric[::3] = np.nan
    assert not prepare(ClientData("a", numeric), "standardise", np.ones(1_000_000, bool)).any()


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_small_deviation_is_no_constant(is_wide):
    """A column of numbers around a million that differ in the fifth decimal still has variance 1."""
    numeric = np.zeros((40, 600 if is_wide else 1))
    numeric[:, 0] = 1e6 + 1e-5 * np.random.default_rng(0).normal(size=40)
    features = prepare(ClientData("a", csr_array(numeric)), "standardise", np.ones(40, bool))
    column = np.asarray(features[:, [0]].sum(axis=1)).ravel()
    np.testing.assert_allclose(column.std(), 1, rtol=1e-3)


def test_no_rows_to_fit_on():
    """Preparation needs training rows."""
    with pytest.raises(InputError, match="no sample is left for training"):
        prepare(ClientData("a", np.zeros((3, 1))), "standardise", np.zeros(3, bool))


def test_numbers_beside_a_wide_column_of_text():
    """They are centred, although the features are stored sparse; the one-hot part keeps its zeros."""
    rng = np.random.default_rng(0)
    numeric = rng.normal(5, 3, size=(600, 2))
    text = np.array([[f"town {i % 400}"] for i in range(600)], dtype=object)
    is_train = np.arange(600) < 500
    features = prepare(ClientData("a", numeric, text), "standardise", is_train)
    assert features.shape == (600, 402)
    assert features.nnz == 3 * 600
    np.testing.assert_allclose(features[is_train][:, :2].toarray().mean(axis=0), 0, atol=1e-12)
    alone = prepare(ClientData("a", numeric), "standardise", is_train)
    np.testing.assert_allclose(features[:, :2].toarray(), alone)
    train = features[is_train][:, 2:].toarray()
    np.testing.assert_allclose(train.std(axis=0), 1)
    assert (train >= 0).all()


def test_numbers_beside_a_narrow_column_of_text():
    """All columns are stored dense and centred."""
    rng = np.random.default_rng(0)
    text = np.array([[f"town {i % 4}"] for i in range(60)], dtype=object)
    features = prepare(ClientData("a", rng.normal(5, 3, size=(60, 2)), text), "standardise", np.ones(60, bool))
    assert features.shape == (60, 6)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(features.std(axis=0), 1)


def test_unit_rows_of_numbers_and_text():
    """The norm is that of all columns of a client together."""
    text = np.array([[f"town {i % 400}"] for i in range(600)], dtype=object)
    features = prepare(ClientData("a", np.full((600, 2), 2.0), text), "unit-rows", np.ones(600, bool))
    np.testing.assert_allclose(np.sqrt(features.multiply(features).sum(axis=1)), 1)
    np.testing.assert_allclose(features.data, np.tile([2 / 3, 2 / 3, 1 / 3], 600))


def by_hand(rows, preparation):
    """Return the features of rows of texts, as a program without this package would compute them."""
    result = []
    for row in rows:
        cells = dict(zip(preparation.columns, row, strict=True))
        means = dict(zip(preparation.numeric, preparation.means, strict=True))
        own = [means[name] if cells[name] is None else float(cells[name]) for name in preparation.numeric]
        for name, categories in zip(preparation.text, preparation.categories, strict=True):
            own += [float(cells[name] == category) for category in categories]
        scaled = (np.array(own) - preparation.centre) / preparation.divisor
        norm = np.linalg.norm(scaled)
        result.append(scaled / norm if preparation.unit_rows and norm else scaled)
    return np.array(result)


def mixed(n_towns, rows, seed=0):
    """Return a client with two columns of numbers, one of them with gaps, and two of text."""
    rng = np.random.default_rng(seed)
    numeric = rng.normal(5, 3, size=(rows, 2))
    numeric[rng.random(rows) < 0.2, 1] = np.nan
    text = np.array([[f"town {rng.integers(n_towns)}", [None, "a", "b"][rng.integers(3)]] for _ in range(rows)], object)
    return ClientData("a", numeric, text, ("age", "income", "town", "class"))


@pytest.mark.parametrize("n_towns", [4, 2000], ids=["dense", "sparse"])
@pytest.mark.parametrize("scale", ["none", "standardise", "unit-rows", "standardise-unit-rows"])
def test_new_rows_are_prepared_as_the_training_rows_were(scale, n_towns):
    """With the means and categories of training, and from the arrays of its state alone; gaps and new values too."""
    data = mixed(n_towns, 600)
    is_train = np.arange(600) < 500
    fitted = Preparation.fit(data, scale, is_train)
    again = Preparation.of_state(fitted.state())
    features = fitted.apply(data)
    assert isinstance(features, np.ndarray) == (n_towns == 4)
    assert np.array_equal(dense(features), dense(again.apply(data)))
    new = ClientData(
        "a", np.array([[1.0, np.nan], [np.nan, 2.0]]), np.array([["nowhere", None], ["town 3", "b"]]), data.columns
    )
    rows = [("1", None, "nowhere", None), (None, "2", "town 3", "b")]
    np.testing.assert_allclose(dense(again.apply(new)), by_hand(rows, again), rtol=1e-14)
    known = np.array([5, 550, 7])
    np.testing.assert_allclose(dense(again.apply(data.take(known))), dense(features)[known], rtol=1e-14)


def dense(features):
    """Return features as an array."""
    return features if isinstance(features, np.ndarray) else features.toarray()


def test_a_gap_where_training_had_none():
    """It becomes the mean of the training rows, of sparse columns with their zeros."""
    numeric = np.array([[1.0, 0.0], [3.0, 6.0], [100.0, 1.0]])
    is_train = np.array([True, True, False])
    for stored in (numeric, csr_array(numeric)):
        fitted = Preparation.fit(ClientData("a", stored), "none", is_train)
        assert fitted.apply(ClientData("a", np.full((1, 2), np.nan))).tolist() == [[2.0, 3.0]]


def test_categories_are_those_of_scikit_learn():
    """In the same order: sorted, a missing one last; NaN is missing as None is."""
    text = np.array([["b", "x"], [None, "y"], ["a", "x"], ["c", "z"]], object)
    fitted = Preparation.fit(ClientData("a", np.zeros((4, 0)), text), "none", np.ones(4, bool))
    encoder = OneHotEncoder().fit(text)
    assert fitted.categories == tuple(tuple(own) for own in encoder.categories_)
    np.testing.assert_array_equal(
        fitted.apply(ClientData("a", np.zeros((4, 0)), text)), encoder.transform(text).toarray()
    )
    text[1, 0] = np.nan
    assert Preparation.fit(ClientData("a", np.zeros((4, 0)), text), "none", np.ones(4, bool)).categories[0][-1] is None


def test_categories_that_are_no_text():
    """They are refused: numbers belong to the numeric columns."""
    data = ClientData("bank", np.zeros((2, 0)), np.array([["a"], [3]], object))
    with pytest.raises(InputError, match="bank: categorical columns hold text, and None if it is missing; received 3"):
        Preparation.fit(data, "none", np.ones(2, bool))


def test_columns_are_told_apart_by_name():
    """Rows with other columns, or in another order, are refused; so are names that do not fit the columns."""
    fitted = Preparation.fit(ClientData("a", np.eye(2), None, ("x", "y")), "none", np.ones(2, bool))
    with pytest.raises(InputError, match="a: the columns must be x, y, in this order"):
        fitted.apply(ClientData("a", np.eye(2), None, ("y", "x")))
    assert ClientData("a", np.eye(2)).columns == ("column 1", "column 2")
    for names in (("x",), ("x", "x")):
        with pytest.raises(InputError, match="a different name for each of the 2 columns"):
            ClientData("a", np.eye(2), None, names)


@pytest.mark.parametrize(
    "changes",
    [
        {"means": np.zeros(3)},
        {"means": np.full(2, np.nan)},
        {"centre": np.zeros(2)},
        {"divisor": np.zeros(8)},
        {"divisor": np.full(8, np.nan)},
        {"centre": np.zeros(8, np.float32)},
        {"is_sparse": np.zeros(2, bool)},
        {"unit_rows": np.zeros(2, bool)},
        {"columns": b'[{"name": "age"}]'},
        {"columns": b'[{"name": 3}]'},
        {"columns": b'[{"title": "age"}]'},
        {"columns": b'{"name": "age"}'},
        {"columns": b"["},
        {"columns": b'[{"name": "a"}, {"name": "a"}, {"name": "b", "categories": ["x", "y", "z", "u", "v", "w"]}]'},
        {"columns": b'[{"name": "a"}, {"name": "c"}, {"name": "b", "categories": ["x", "x", "z", "u", "v", "w"]}]'},
        {"columns": b'[{"name": "a"}, {"name": "c"}, {"name": "b", "categories": [1, "x", "z", "u", "v", "w"]}]'},
    ],
)
def test_a_damaged_state(changes):
    """Arrays that do not fit together are refused."""
    state = Preparation.fit(mixed(3, 60), "standardise", np.ones(60, bool)).state()
    assert len(state["centre"]) == 8
    if "columns" in changes:
        changes = {"columns": np.frombuffer(changes["columns"], np.uint8)}
    with pytest.raises(InputError, match=r"the (list|preparation) of columns .*(damaged|valid JSON)"):
        Preparation.of_state({**state, **changes})
