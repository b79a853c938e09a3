"""What every method must satisfy, whatever the loss and the type of the arrays."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verfedsv
from tests.games import LOSSES, Game, LogCosh, random_game, utility, values_by_definition
from verfedsv.errors import InputError, ToleranceWarning, TooManyClientsError
from verfedsv.shapley.estimators import ESTIMATORS, PARTS

METHODS = tuple(ESTIMATORS)

games = st.builds(
    random_game,
    loss=st.sampled_from(LOSSES),
    n_clients=st.integers(1, 6),
    n_samples=st.integers(1, 40),
    step=st.sampled_from([1e-3, 0.1, 1.0, 5.0]),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.longdouble]),
    offset=st.booleans(),
)


def value(game: Game, method: str, **options) -> verfedsv.ShapleyResult:
    return verfedsv.shapley_values(*game.arguments, method=method, offset=game.offset, **options)


def scale(game: Game) -> float:
    """Return the size that rounding errors of a utility are relative to."""
    movement = np.abs(game.current.astype(np.float64) - game.previous).sum(axis=0)
    return float(1 + (movement**2).mean() if game.loss == "squared" else 1 + movement.mean())


@pytest.mark.parametrize("method", METHODS)
@given(game=games)
def test_values_are_within_their_errors_of_the_definition(method, game):
    """Every value is within its error of the Shapley value by definition."""
    result = value(game, method)
    expected = values_by_definition(game)
    assert (np.abs(result.values - expected) <= result.errors + 1e-13 * scale(game)).all()


@pytest.mark.parametrize("method", METHODS)
@given(game=games)
def test_values_add_up_to_the_utility_of_all(method, game):
    """Balance: the values sum to U([M])."""
    total = utility(game, frozenset(range(game.n_clients)))
    assert value(game, method).values.sum() == pytest.approx(total, rel=1e-9, abs=1e-12 * scale(game))


@pytest.mark.parametrize("method", METHODS)
@given(game=games, position=st.integers(0, 5))
def test_a_client_that_did_not_move_gets_exactly_nothing(method, game, position):
    """Zero element: no rounding, no sampling error, no correction gives anything to a client without a change."""
    client = position % game.n_clients
    game.current[client] = game.previous[client]
    result = value(game, method)
    assert result.values[client] == 0
    assert result.errors[client] == 0


@pytest.mark.parametrize("method", METHODS)
@given(game=games)
def test_identical_clients_get_equal_values(method, game):
    """Symmetry: two clients whose embeddings changed by the same get the same, for sampled values too."""
    n = game.n_clients
    twins = replace(
        game,
        previous=np.concatenate([game.previous, game.previous[:1]]),
        current=np.concatenate([game.current, game.current[:1]]),
    )
    values = value(twins, method).values
    assert values[0] == values[n]


@pytest.mark.parametrize("method", METHODS)
@given(game=games, seed=st.integers(0, 1000))
def test_the_order_of_the_clients_does_not_matter(method, game, seed):
    """Anonymity: permuting the clients permutes the values, within the errors."""
    order = np.random.default_rng(seed).permutation(game.n_clients)
    permuted = replace(game, previous=game.previous[order], current=game.current[order])
    plain, mixed = value(game, method), value(permuted, method)
    allowed = plain.errors[order] + mixed.errors + 1e-13 * scale(game)
    assert (np.abs(mixed.values - plain.values[order]) <= allowed).all()


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=20)
@given(game=games)
def test_one_client_gets_everything(method, game):
    """A round with one client is valid: its value is the decrease of the loss."""
    alone = replace(game, previous=game.previous[:1], current=game.current[:1])
    expected = utility(alone, frozenset([0]))
    assert value(alone, method).values == pytest.approx([expected], rel=1e-9, abs=1e-12 * scale(alone))


UNBOUNDED = [
    ["fifth_derivative"],
    ["smoothness"],
    ["lipschitz", "smoothness", "gradient_range"],
    ["lipschitz", "smoothness", "gradient_range", "third_derivative", "fifth_derivative"],
]


NEEDED = {"exact": {"lipschitz"}, "permutation": {"gradient_range"}, "closed-form": {"smoothness", "fifth_derivative"}}
"""Constants without which errors are infinite."""


@pytest.mark.parametrize("constants", UNBOUNDED, ids="+".join)
@pytest.mark.parametrize(
    ("method", "n_clients"),
    [*((method, 3) for method in METHODS), ("closed-form", 30), ("permutation", 30), ("auto", 30)],
)
@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
def test_constants_that_are_infinite(method, n_clients, constants):
    """A loss without some bound has infinite errors at worst, not NaN, also where a sample or client is all zeros."""
    loss = type("Unbounded", (LogCosh,), {"name": "unbounded", **dict.fromkeys(constants, np.inf)})()
    current = np.random.default_rng(0).normal(size=(n_clients, 5)).repeat(5000, axis=1)  # several blocks
    current[:, 0] = current[0] = 0
    arguments = np.zeros_like(current), current, np.full(25_000, 0.5)
    result = verfedsv.shapley_values(*arguments, loss, method, n_permutations=10)
    assert result.values[0] == result.errors[0] == 0
    assert not np.isnan(result.errors).any()
    if method in NEEDED:
        assert np.isfinite(result.errors).all() == NEEDED[method].isdisjoint(constants)
    if n_clients == 3:
        exact = verfedsv.shapley_values(*arguments, LogCosh(), "exact")
        assert (np.abs(result.values - exact.values) <= result.errors + exact.errors).all()


def test_every_method_has_its_name():
    """The type used by settings and command line has the names of the registry."""
    assert get_args(verfedsv.Method) == METHODS


@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
@pytest.mark.parametrize("method", METHODS)
@given(game=games)
def test_a_round_is_a_training_of_one_round(method, game):
    """A transcript of a single round from zero has the values of that round, the same where nothing is refined."""
    step = (game.current - game.previous).astype(np.float64)
    names = [f"client {m}" for m in range(game.n_clients)]
    n_classes = {"n_classes": 3} if game.loss == "softmax" else {}
    with verfedsv.Recorder(None, game.labels, names, game.loss, **n_classes) as recorder:
        recorder.log(np.arange(len(game.labels)), dict(zip(names, step, strict=True)))
    whole = verfedsv.value(recorder, method)
    result = verfedsv.shapley_values(np.zeros_like(step), step, game.labels, game.loss, method)
    assert set(whole.methods) | set(result.method.split("+")) <= set(PARTS)
    if method == "auto":
        assert (np.abs(whole.values - result.values) <= whole.errors + result.errors).all()
        return
    assert (whole.method, whole.error_kind) == (result.method, result.error_kind)
    np.testing.assert_allclose(whole.values, result.values, rtol=1e-12, atol=1e-15 * scale(game))
    np.testing.assert_allclose(whole.per_round_errors[0], result.errors, rtol=1e-6, atol=1e-15 * scale(game))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", LOSSES)
def test_layouts_of_the_input_do_not_matter(method, loss):
    """Fortran order, strides, byte order, read-only memory and nested lists give the values of plain arrays."""
    game = random_game(loss, n_clients=5, n_samples=70)
    expected = value(game, method).values

    def strided(array):
        wide = np.zeros((array.shape[0] * 2, array.shape[1] * 3, *array.shape[2:]))
        view = wide[::2, ::3]
        view[:] = array
        return view

    def read_only(array):
        copy = array.copy()
        copy.flags.writeable = False
        return copy

    for change in (np.asfortranarray, strided, read_only, lambda a: a.astype(">f8"), np.ndarray.tolist):
        other = replace(game, previous=change(game.previous), current=change(game.current))
        result = verfedsv.shapley_values(*other.arguments, method=method).values
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", LOSSES)
def test_threads_do_not_change_a_bit(method, loss):
    """The result is the same, to the last bit, for any number of threads."""
    game = random_game(loss, n_clients=6, n_samples=20_000, step=3.0)
    options = {"n_permutations": 300} if method == "permutation" else {"tolerance": 1e-2}
    results = [value(game, method, n_threads=n, **options) for n in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other.values, results[0].values)
        np.testing.assert_array_equal(other.errors, results[0].errors)


@pytest.mark.parametrize("method", METHODS)
def test_classes_of_one_are_scalars(method):
    """(clients, samples, 1) and (clients, samples) are the same round."""
    game = random_game("logistic", n_clients=5, n_samples=100)
    deep = replace(game, previous=game.previous[..., None], current=game.current[..., None])
    np.testing.assert_array_equal(value(deep, method).values, value(game, method).values)


@pytest.mark.parametrize("method", METHODS)
def test_two_classes_of_softmax_are_logistic(method):
    """A softmax over (0, x) is the logistic loss of x, and so are its values."""
    game = random_game("logistic", n_clients=5, n_samples=100)
    two = replace(
        game,
        previous=np.stack([np.zeros_like(game.previous), game.previous], axis=-1),
        current=np.stack([np.zeros_like(game.current), game.current], axis=-1),
        loss="softmax",
    )
    binary, classes = value(game, method), value(two, method)
    assert (np.abs(classes.values - binary.values) <= binary.errors + classes.errors).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_embeddings_of_a_million(method, loss):
    """Embeddings of size 1e6 are valued without overflow, within the stated errors."""
    game = random_game(loss, n_clients=4, n_samples=50)
    huge = replace(game, previous=1e6 * game.previous, current=1e6 * game.current)
    result = value(huge, method)
    expected = values_by_definition(huge)
    assert np.isfinite(result.values).all()
    if method != "closed-form":  # whose errors are large here
        np.testing.assert_allclose(result.values, expected, atol=0.2 * np.abs(expected).max())
    assert (np.abs(result.values - expected) <= result.errors + 1e-9 * np.abs(expected).max()).all()


BAD_INPUT = [
    ({"previous": np.zeros((2, 3)), "current": np.zeros((2, 4))}, "same shape"),
    ({"previous": np.zeros(3), "current": np.zeros(3)}, r"received \(3,\)"),
    ({"previous": np.zeros((0, 3)), "current": np.zeros((0, 3))}, "0 clients"),
    ({"previous": np.zeros((2, 0)), "current": np.zeros((2, 0)), "labels": []}, "0 samples"),
    ({"labels": [0, 1]}, r"2 clients x 3 samples, so labels must have 3 rows; received shape \(2,\)"),
    ({"previous": np.zeros((3, 2)), "current": np.ones((3, 2))}, "are the embeddings transposed"),
    ({"labels": 1}, "3 rows"),
    ({"labels": [0, 1, 2]}, "received the values 0, 1, 2"),
    ({"labels": [[0], [1], [1]]}, r"use labels\.ravel\(\)"),
    ({"labels": [[0], [1, 2], [3]]}, "labels cannot be read"),
    ({"labels": ["yes", "no", "no"]}, "labels must hold real numbers: .*'yes'"),
    ({"labels": None}, "labels must be an array of numbers; received NoneType"),
    ({"previous": None}, "previous must be an array of numbers; received NoneType"),
    ({"previous": {"bank": [1, 2, 3]}}, "received dict"),
    ({"previous": np.ma.zeros((2, 3))}, "masks are not supported"),
    ({"previous": np.array([["a"] * 3] * 2)}, "real numbers: .*'a'"),
    ({"previous": np.zeros((2, 3), dtype=complex)}, "real numbers"),
    ({"previous": [[1, 2, 3], [1, 2]]}, "previous cannot be read as an array"),
    ({"offset": [1.0, 2.0]}, r"offset must have shape \(3,\)"),
    ({"offset": [1.0, np.nan, 2.0]}, "offset must hold finite numbers"),
    ({"loss": "hinge"}, "unknown loss 'hinge'"),
    ({"method": "magic"}, "unknown method 'magic'; allowed are 'auto'"),
    ({"semivalue": "nucleolus"}, "unknown semivalue 'nucleolus'"),
    ({"semivalue": "banzhaf", "method": "closed-form"}, "Shapley values only"),
    ({"tolerance": 0}, "tolerance must be a positive number; received 0"),
    ({"tolerance": np.nan}, "tolerance must be a positive number; received nan"),
    ({"tolerance": "1e-3"}, "tolerance must be a positive number; received '1e-3'"),
    ({"tolerance": None}, "tolerance must be a positive number; received None"),
    ({"standard_error": -1}, "standard_error must be a positive number"),
    ({"n_permutations": 0}, "n_permutations must be at least 1; received 0"),
    ({"n_permutations": 2.5}, r"n_permutations must be a whole number; received 2\.5"),
    ({"n_threads": 0}, "n_threads must be at least 1; received 0; leave it out to use all cores"),
    ({"n_threads": True}, "n_threads must be at least 1"),
    ({"seed": None}, "seed must be a whole number; received None"),
    ({"seed": -1}, "seed must be at least 0"),
    ({"progress": True}, "progress must be a function"),
]


@pytest.mark.parametrize(("changed", "message"), BAD_INPUT, ids=[m for _, m in BAD_INPUT])
def test_bad_input_is_refused_with_what_was_received(changed, message):
    """Each kind of bad input raises InputError, a ValueError, that says what is wrong."""
    arguments = {"previous": np.zeros((2, 3)), "current": np.ones((2, 3)), "labels": [0, 1, 1]} | changed
    with pytest.raises(InputError, match=message) as caught:
        verfedsv.shapley_values(**arguments)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["previous", "current"])
def test_embeddings_that_are_not_finite_are_named(method, loss, bad, name):
    """NaN and infinity are refused by every method, with the client and the sample they were found at."""
    game = random_game(loss, n_clients=3, n_samples=500)
    getattr(game, name)[2, 321] = bad
    with pytest.raises(InputError, match=rf"{name}\[2, 321{', 0' if loss == 'softmax' else ''}\] is {bad}"):
        value(game, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e61, 1e155, 1e308])
def test_embeddings_too_large_to_compute_with_are_refused(method, size):
    """Finite embeddings whose powers overflow are refused too."""
    with pytest.raises(InputError, match="less than 1e\\+60"):
        verfedsv.shapley_values(np.full((3, 2), size), np.full((3, 2), -size), [0, 1], method=method)


def test_too_many_clients_for_enumeration():
    """More than 25 clients cannot be enumerated; the error names what can be done."""
    game = random_game("logistic", n_clients=26, n_samples=3)
    with pytest.raises(TooManyClientsError, match=r"up to 25 clients, .* received 26\. Use method='auto'"):
        value(game, "exact")


def test_result_says_what_it_is():
    """The result names method, semivalue and kind of error, and its shares sum to one."""
    result = value(random_game("logistic", step=0.1), "auto")
    assert (result.method, result.semivalue, result.error_kind) == ("closed-form", "shapley", "certified")
    assert result.shares.sum() == pytest.approx(1)
    assert repr(result).startswith(
        "<ShapleyResult: 4 clients, shapley, closed-form, the clients lowered the loss by 0.0189"
    )
    worse = value(random_game("logistic", step=1.0), "exact")
    assert worse.values.sum() < 0
    assert "1 client," in repr(value(random_game("logistic", n_clients=1), "exact"))
    assert "clients RAISED the loss by" in repr(worse)
    with pytest.raises(ValueError, match="read-only"):
        result.values[0] = 1.0


def test_shares_of_nothing_are_not_numbers():
    """When nothing changed there is nothing to share: values 0, shares NaN, no warning and no error."""
    result = verfedsv.shapley_values(np.ones((2, 3)), np.ones((2, 3)), [0, 1, 1])
    np.testing.assert_array_equal(result.values, [0, 0])
    assert np.isnan(result.shares).all()
    assert result.tolerance_met


def test_progress_is_reported_to_the_end():
    """Long methods report rising numbers of steps, up to the total."""
    steps = []
    game = random_game("logistic", n_clients=18, n_samples=5)
    value(game, "exact", progress=lambda done, of: steps.append((done, of)))
    assert steps == [(i, 4) for i in range(1, 5)]
    steps.clear()
    value(game, "permutation", n_permutations=600, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(256, 600), (512, 600), (600, 600)]


def test_an_error_in_progress_stops_the_work():
    """An exception raised from the progress callback, such as Ctrl-C, ends the call and reaches the caller."""

    def interrupt(_done, _of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        value(random_game("logistic", n_samples=5000), "permutation", progress=interrupt)


def test_tolerance_that_cannot_be_met_is_said_plainly():
    """With too few permutations for the tolerance a warning names the error that remains; the result is valid."""
    game = random_game("logistic", n_clients=40, n_samples=20, step=5.0)
    with pytest.warns(
        ToleranceWarning, match="does not keep the tolerance of 1e-06; allow more than n_permutations=50 or"
    ):
        result = value(game, "auto", tolerance=1e-6, n_permutations=50)
    assert result.tolerance_met is False
    assert result.errors.max() > 1e-6 * np.abs(result.values).max()
