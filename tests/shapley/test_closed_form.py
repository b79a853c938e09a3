import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import verfedsv
from tests.games import Game, LogCosh, random_game, values_by_definition
from verfedsv.data import load_adult_round
from verfedsv.losses import Logistic, Softmax
from verfedsv.shapley.closed_form import sample_errors, third_order
from verfedsv.shapley.game import RoundGame


def test_the_formula_written_out():
    """One sample, three clients, logistic loss: the sum written out in docs/closed-form.md, term by term."""
    d, base = np.array([0.4, -0.7, 0.2]), 0.3
    total, squares, c = d.sum(), (d**2).sum(), base + d.sum() / 2
    s = 1 / (1 + np.exp(-c))
    first, third = s - 1, s * (1 - s) * (1 - 2 * s)
    expected = -d * (first + third * (total**2 / 24 + squares / 12 - d * total / 12))
    game = RoundGame.from_arrays(np.zeros((3, 1)), d[:, None], [1], offset=[base])
    np.testing.assert_allclose(third_order(game).values, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_error_falls_with_the_fifth_power_of_the_step(loss):
    """Half the step, a 32nd of the error: the remainder is of fifth order, and so is its bound."""
    errors, bounds = [], []
    for step in (0.4, 0.2, 0.1):
        game = random_game(loss, n_clients=5, n_samples=50)
        # Shrunk towards the midpoint, which stays the same.
        middle, change = (game.previous + game.current) / 2, game.current - game.previous
        game.previous, game.current = middle - step / 2 * change, middle + step / 2 * change
        result = verfedsv.shapley_values(*game.arguments, method="closed-form")
        errors.append(np.abs(result.values - values_by_definition(game)).max())
        bounds.append(result.errors.max())
    for sequence in (errors, bounds):
        ratios = np.array(sequence[:-1]) / np.array(sequence[1:])
        assert (ratios > 28).all()
        assert (ratios < 36).all()


def test_squared_error_is_exact():
    """A quadratic game has no remainder: the closed form is exact up to rounding, for any step."""
    game = random_game("squared", n_clients=7, step=100.0)
    result = verfedsv.shapley_values(*game.arguments, method="closed-form")
    expected = values_by_definition(game)
    np.testing.assert_allclose(result.values, expected, rtol=1e-10)
    assert result.errors.max() < 1e-9 * np.abs(expected).max()


@given(
    loss=st.sampled_from(["logistic", "softmax"]),
    n_clients=st.integers(1, 8),
    step=st.floats(0.01, 3),
    sign=st.sampled_from(["random", "aligned", "cancelling"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_bound_holds_for_single_samples(loss, n_clients, step, sign, seed):
    """The certified error holds for single samples, where nothing averages out; clients agree, or cancel, or not."""
    game = random_game(loss, n_clients, n_samples=1, seed=seed)
    change = game.current - game.previous
    if sign == "aligned":
        change = np.abs(change)
    elif sign == "cancelling":
        change = change - change.mean(axis=0)
    game.current = game.previous + step * change
    result = verfedsv.shapley_values(*game.arguments, method="closed-form")
    assert (np.abs(result.values - values_by_definition(game)) <= result.errors + 1e-15).all()


def test_the_bound_is_not_far_from_the_truth():
    """The bound is within a factor of 200 of the true error on a hard round; a useless bound would be easy to prove."""
    game = random_game("logistic", n_clients=8, n_samples=200, step=1.0)
    result = verfedsv.shapley_values(*game.arguments, method="closed-form")
    error = np.abs(result.values - values_by_definition(game)).max()
    assert error < result.errors.max() < 200 * error


def test_many_clients_do_not_spoil_the_bound():
    """The bound grows with what moved, not with the number of clients who moved it in different directions."""
    rng = np.random.default_rng(0)
    bounds = []
    for n_clients in (10, 1000):
        change = rng.normal(size=(n_clients, 300)) / np.sqrt(n_clients)
        labels = rng.integers(0, 2, 300)
        result = verfedsv.shapley_values(np.zeros_like(change), change, labels, method="closed-form")
        bounds.append(result.errors.sum() / np.abs(change).mean(axis=1).sum())
    assert bounds[1] < 1.5 * bounds[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_moment_bound_holds(seed):
    """The mean fourth power of a coalition's distance from the midpoint is below both bounds used for it."""
    rng = np.random.default_rng(seed)
    n_clients = 9
    d = rng.normal(size=n_clients) * rng.choice([0.1, 1.0, 5.0], n_clients) + rng.choice([0, 1])
    for m in range(n_clients):
        # Draw coalitions of the others as the Shapley value does, and a point of the client's own change.
        t = rng.random((200_000, 1))
        others = np.delete(d, m)
        w = (np.where(rng.random((200_000, n_clients - 1)) < t, 0.5, -0.5) * others).sum(axis=1)
        fourth = ((w + (rng.random(200_000) - 0.5) * d[m]) ** 4).mean()
        energy = (d**2).sum()
        reach = (abs(d.sum()) + np.sqrt(energy)) ** 2
        assert fourth <= 1.01 * (np.abs(d).sum() / 2) ** 4
        assert fourth <= 1.01 * (reach**2 / 80 + reach * energy / 12 + 2 * energy**2 / 15)


def test_sample_errors_bound_the_errors():
    """The errors of single samples, averaged, are at least the error of every client."""
    game = random_game("softmax", n_clients=5, n_samples=100)
    round_game = RoundGame.from_arrays(*game.arguments)
    assert sample_errors(round_game).mean() >= 0.999999 * third_order(round_game).errors.max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_real_round_of_adult(dtype):
    """Fourteen clients of Adult: within 1e-8 of the exact values, relative to the largest, as are the bounds."""
    real = load_adult_round()
    arguments = real.previous.astype(dtype), real.current.astype(dtype), real.labels
    closed = verfedsv.shapley_values(*arguments, method="closed-form")
    exact = verfedsv.shapley_values(*arguments, method="exact")
    largest = exact.values.max()
    assert np.abs(closed.values - exact.values).max() < 1e-9 * largest
    assert closed.errors.max() < 1e-8 * largest


def test_a_loss_of_ones_own():
    """A loss written by a user, in plain NumPy, is valued by the same closed form, within its constant."""
    rng = np.random.default_rng(0)
    previous, labels = rng.normal(size=(5, 40)), rng.normal(size=40)
    current = previous + 0.1 * rng.normal(size=(5, 40))
    closed = verfedsv.shapley_values(previous, current, labels, LogCosh(), "closed-form")
    exact = verfedsv.shapley_values(previous, current, labels, LogCosh(), "exact")
    assert (np.abs(closed.values - exact.values) <= closed.errors + exact.errors).all()
    assert closed.errors.max() < 1e-2 * exact.values.max()
    # Its rounding is unknown unless the loss states that it is bounded.
    assert closed.error_kind == exact.error_kind == "certified but for rounding"
    bounded = type("Bounded", (LogCosh,), {"rounding_is_bounded": True})()
    assert verfedsv.shapley_values(previous, current, labels, bounded, "exact").error_kind == "certified"


def test_exact_values_sum_to_the_utility_of_the_game():
    """The values of the exact method sum to what the callable game gives for everybody."""
    game: Game = random_game("softmax", n_clients=3)
    round_game = RoundGame.from_arrays(*game.arguments)
    everybody = round_game([[True, True, True]])[0]
    result = verfedsv.shapley_values(*game.arguments, method="exact")
    assert result.values.sum() == pytest.approx(everybody, rel=1e-12)


@pytest.mark.parametrize(("loss", "fifth", "norm"), [("logistic", 0.127683922, 1), ("softmax", 0.19, 4)])
@pytest.mark.parametrize(("n_clients", "mirrored", "uses_path"), [(2, 1, True), (100, -1, False), (100, -0.8, False)])
def test_the_error_is_at_least_the_proven_one(loss, fifth, norm, n_clients, mirrored, uses_path):
    """Plain numbers through the smaller of the two bounds in docs/closed-form.md; balancing may double them.

    If all changes cancel, so do the values: then there is nothing to balance.
    """
    half = np.random.default_rng(0).normal(size=(n_clients // 2, 1, 3 if loss == "softmax" else 1))
    change = np.concatenate([half, mirrored * half])
    result = verfedsv.shapley_values(np.zeros_like(change), change, [1], loss, "closed-form")
    d = change[:, 0]
    spread = np.ptp(d, axis=1) if loss == "softmax" else np.abs(d[:, 0])
    energy, length = np.square(d).sum(), np.linalg.norm(d.sum(axis=0))
    reach = length + np.sqrt(energy)
    moment = norm * (reach**4 / 80 + reach**2 * energy / 12 + 2 * energy**2 / 15)
    path = (spread.sum() / 2) ** 4
    assert (path < moment) == uses_path
    proven = fifth / 24 * spread * min(path, moment)
    assert (proven <= result.errors * (1 + 1e-9)).all()
    assert (result.errors <= (1 if mirrored == -1 else 2) * (1 + 1e-9) * proven + 1e-12).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize(
    ("n_clients", "n_samples", "n_classes"),
    [(1, 1, 1), (3, 700, 1), (4, 256, 1), (9, 257, 1), (1, 1, 2), (2, 65, 3), (5, 200, 7), (3, 30, 105)],
)
def test_the_fused_loops_agree_with_the_separate_steps(n_clients, n_samples, n_classes, has_offset, dtype):
    """The loops of the built-in losses give what moments, derivatives and sums computed one after the other give."""
    rng = np.random.default_rng(n_samples)
    previous = (2 * rng.normal(size=(n_clients, n_samples, n_classes))).astype(dtype)
    current = (previous + 0.5 * rng.normal(size=previous.shape)).astype(dtype)
    current[0] = previous[0]
    labels = rng.integers(0, max(n_classes, 2), n_samples)
    offset = rng.normal(size=(n_samples, n_classes)) if has_offset else None
    loss = Softmax if n_classes > 1 else Logistic
    separate = type("Separate", (loss,), {})  # not one of the two classes that have loops of their own
    arguments = previous, current, labels
    fused, plain = (third_order(RoundGame.from_arrays(*arguments, own(), offset=offset)) for own in (loss, separate))
    np.testing.assert_allclose(fused.values, plain.values, rtol=0, atol=(fused.errors + plain.errors).max() * 1e-3)
    np.testing.assert_allclose(fused.values, plain.values, rtol=0, atol=1e-14)
    np.testing.assert_allclose(fused.errors, plain.errors, rtol=1e-6)
    assert fused.utility == pytest.approx(plain.utility, rel=1e-12, abs=1e-14)
    assert fused.values[0] == fused.errors[0] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e61])
@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("name", ["previous", "current", "offset"])
def test_embeddings_that_cannot_be_computed_with_are_found(n_classes, bad, name):
    """One bad number anywhere, also in the last class of the last sample, is an InputError."""
    rng = np.random.default_rng(0)
    arrays = {key: rng.normal(size=(5, 300, n_classes)) for key in ("previous", "current")}
    arrays["offset"] = rng.normal(size=(300, n_classes))
    arrays[name][..., -1, -1] = bad
    labels = rng.integers(0, 2, 300)
    loss = "softmax" if n_classes > 1 else "logistic"
    with pytest.raises(verfedsv.InputError, match=r"finite|less than"):
        verfedsv.shapley_values(labels=labels, loss=loss, method="closed-form", **arrays)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_what_a_loss_of_ones_own_returns_is_converted_and_checked(n_classes):
    """Whole numbers are taken as they are; another shape than that of the embeddings is an error, in every block."""

    class Half(verfedsv.Loss):
        """Half the squared distance, its third derivative in whole numbers; the gradient of many samples as asked."""

        name = "half"
        lipschitz, smoothness, gradient_range = np.inf, 1.0, np.inf
        third_derivative = fifth_derivative = 0.0

        def __init__(self, asked):
            self.asked = asked

        def encode(self, labels, n_classes):
            return np.asarray(labels, float).reshape(-1, n_classes)

        def value(self, x, labels):
            return np.square(x - labels).sum(axis=-1) / 2

        def gradient(self, x, labels):
            gradient = x - labels
            return gradient if len(x) <= 8 else self.asked(gradient)

        def cubic_form(self, x, labels):  # noqa: ARG002
            return verfedsv.CubicForm(np.zeros(x.shape, int), np.zeros(x.shape, bool))

    rng = np.random.default_rng(0)
    previous, change = rng.normal(size=(2, 3, 70, n_classes))
    labels = rng.normal(size=(70, n_classes))
    expected = verfedsv.shapley_values(previous, previous + change, labels, "squared", "closed-form")
    for same in (lambda g: g, lambda g: g.tolist(), lambda g: g.astype(np.longdouble), lambda g: g.astype(">f8")):
        result = verfedsv.shapley_values(previous, previous + change, labels, Half(same), "closed-form")
        np.testing.assert_allclose(result.values, expected.values, rtol=1e-13)
    for wrong in (lambda g: g[:8], lambda g: g[..., 0], lambda g: g + 0j, lambda g: np.where(g > 1, np.nan, g)):
        with pytest.raises(verfedsv.InputError, match="'half'"):
            verfedsv.shapley_values(previous, previous + change, labels, Half(wrong), "closed-form")


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("constant", ["smoothness", "fifth_derivative"])
@pytest.mark.parametrize("size", [1e-50, 1.0, 1e15, 1e40])
def test_errors_are_infinite_where_a_constant_is(n_classes, constant, size):
    """Whatever the size of the changes; a client that did not move has an error of 0."""
    loss = type(verfedsv.losses.get_loss("squared"))()
    loss.__class__ = type("Own", (type(loss),), {constant: np.inf})
    previous = np.zeros((3, 5, n_classes))
    current = np.full(previous.shape, size)
    current[1] = 0.0
    labels = np.zeros((5, n_classes))
    errors = verfedsv.shapley_values(previous, current, labels, loss, "closed-form").errors
    np.testing.assert_array_equal(errors, [np.inf, 0.0, np.inf])
