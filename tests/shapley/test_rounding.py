"""Certified errors cover rounding too: against 60 digits, with no allowance."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

import verfedsv
from verfedsv.shapley.closed_form import sum_third_order
from verfedsv.shapley.game import RoundGame

mpmath.mp.dps = 60


def loss_in_many_digits(loss, x, label):
    if loss == "logistic":
        return mpmath.log1p(mpmath.exp(-x[0] if label == 1 else x[0]))
    if loss == "softmax":
        return mpmath.log(mpmath.fsum(map(mpmath.exp, x))) - x[label]
    return mpmath.fsum((a - b) ** 2 for a, b in zip(x, label, strict=True)) / 2


def values_in_many_digits(previous, current, labels, loss):
    """Return the Shapley values of arrays (clients, samples, classes), by the definition."""
    n_clients, n_samples, n_classes = previous.shape
    moved = [m for m in range(n_clients) if (previous[m] != current[m]).any()]
    values = [mpmath.mpf(0)] * n_clients
    n = len(moved)
    for i in range(n_samples):
        base = [mpmath.fsum(mpmath.mpf(float(h)) for h in previous[:, i, c]) for c in range(n_classes)]
        change = {
            m: [mpmath.mpf(float(current[m, i, c])) - mpmath.mpf(float(previous[m, i, c])) for c in range(n_classes)]
            for m in moved
        }
        label = [mpmath.mpf(float(t)) for t in np.atleast_1d(labels[i])] if loss == "squared" else int(labels[i])
        losses = []
        for code in range(2**n):
            members = [m for bit, m in enumerate(moved) if code >> bit & 1]
            x = [b + mpmath.fsum(change[m][c] for m in members) for c, b in enumerate(base)]
            losses.append(loss_in_many_digits(loss, x, label))
        for bit, m in enumerate(moved):
            for code in range(2**n):
                if not code >> bit & 1:
                    size = code.bit_count()
                    weight = mpmath.mpf(1) / (n * mpmath.binomial(n - 1, size))
                    values[m] += weight * (losses[code] - losses[code | 1 << bit]) / n_samples
    return values


def with_offset(embeddings, offset):
    """Return embeddings with the server's own part as those of one more client, who does not move."""
    return np.concatenate([embeddings, np.reshape(offset, (1, *embeddings.shape[1:]))])


def assert_within(result, expected):
    for value, error, exact in zip(result.values, result.errors, expected[: len(result.values)], strict=True):
        assert abs(mpmath.mpf(float(value)) - exact) <= mpmath.mpf(float(error))


def random_round(loss, n_clients, n_classes, size, step, seed):
    rng = np.random.default_rng(seed)
    previous = size * rng.normal(size=(n_clients, 2, n_classes))
    current = previous + step * rng.normal(size=previous.shape)
    labels = {"logistic": rng.integers(0, 2, 2), "softmax": rng.integers(0, n_classes, 2)}
    return previous, current, labels.get(loss, rng.normal(size=(2, n_classes)))


@pytest.mark.parametrize("method", ["closed-form", "exact", "auto", "permutation"])
@pytest.mark.parametrize(("loss", "n_classes"), [("logistic", 1), ("softmax", 3), ("squared", 2)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("step", [1e-10, 1e-7, 1e-3])
@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
def test_small_steps(method, loss, n_classes, size, step):
    """Steps so small that rounding is all there is: the reported errors still hold, sampled ones too."""
    for seed in range(3):
        previous, current, labels = random_round(loss, 3, n_classes, size, step, seed)
        options = {"n_permutations": 300} if method == "permutation" else {}
        result = verfedsv.shapley_values(previous, current, labels, loss, method, **options)
        assert_within(result, values_in_many_digits(previous, current, labels, loss))


@pytest.mark.parametrize("method", ["closed-form", "exact", "auto"])
@pytest.mark.parametrize("n_classes", [2, 10, 1000])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
def test_many_classes_that_move_together(method, n_classes, loss):
    """Sums over many classes round many times; a shift of all classes alike is worth nothing to softmax."""
    previous, current = np.zeros((1, 1, n_classes)), np.full((1, 1, n_classes), 0.3)
    labels = [0] if loss == "softmax" else np.full((1, n_classes), -0.1)
    result = verfedsv.shapley_values(previous, current, labels, loss, method)
    assert_within(result, values_in_many_digits(previous, current, np.asarray(labels), loss))


@pytest.mark.parametrize("n_classes", [2, 10])
def test_a_sum_over_clients_that_loses_the_small_ones(n_classes):
    """Clients each too small to change the running sum in floating point, but not together."""
    previous = np.zeros((20, 1, n_classes))
    previous[0] = 16.0
    previous[1:-1] = 1.001 * 16 * 2.0**-53
    current = previous.copy()
    current[-1] = 1e-6
    labels = np.full((1, n_classes), 16.0)
    result = verfedsv.shapley_values(previous, current, labels, "squared", "closed-form")
    assert_within(result, values_in_many_digits(previous, current, labels, "squared"))


def hard_round(kind, loss, n_classes, seed):
    """Return embeddings before and after a round, labels and the server's own part."""
    rng = np.random.default_rng(seed)
    previous, current, labels = random_round(loss, 9 if kind == "many clients" else 4, n_classes, 1.0, 1.0, seed)
    change, offset = current - previous, np.zeros((2, n_classes))
    if kind == "cancelling":
        previous[0] += 1e6
        previous[1] = rng.normal(size=(2, n_classes)) - previous[0]
    elif kind == "large offset":
        offset = 1e4 * rng.normal(size=(2, n_classes))
    elif kind == "far":
        change[:, 0] *= 20.0
    elif kind == "many clients":
        previous[0] = 16.0
        previous[1:] = 1.001 * 16 * 2.0**-53  # each is lost in the sum, with half a unit of its last place
        change[:] = 0.3
    return previous, previous + change, labels, offset


@pytest.mark.parametrize("method", ["exact", "closed-form"])
@pytest.mark.parametrize("kind", ["cancelling", "large offset", "far", "many clients"])
@pytest.mark.parametrize(("loss", "n_classes"), [("logistic", 1), ("softmax", 3), ("squared", 2)])
def test_hard_rounds(method, kind, loss, n_classes):
    """Sums that cancel, large offsets, far samples and many equal clients, which round alike: the errors hold."""
    for seed in range(2):
        previous, current, labels, offset = hard_round(kind, loss, n_classes, seed)
        own = offset[:, 0] if n_classes == 1 else offset
        result = verfedsv.shapley_values(previous, current, labels, loss, method, offset=own)
        everything = (with_offset(embeddings, offset) for embeddings in (previous, current))
        assert_within(result, values_in_many_digits(*everything, labels, loss))


def test_a_shift_of_all_classes_beside_large_changes_that_cancel():
    """It is worth nothing to softmax, whatever the others do; its truncation error is 0, and only rounding is left."""
    change = np.zeros((3, 1, 2))
    change[0] = 1.0
    change[1, 0] = [-438954.9085610357, 1142118.2545257295]
    change[2] = -change[1]
    result = verfedsv.shapley_values(np.zeros_like(change), change, [0], "softmax", "closed-form")
    assert abs(result.values[0]) <= result.errors[0]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_the_last_of_thousands_of_clients(loss):
    """Leave-one-out is exact for any number of clients; rounding of all their changes is within the error."""
    change = np.full((3000, 1, 1), 2.0**-10 / 3)
    result = verfedsv.shapley_values(np.zeros_like(change), change, [1], loss, "exact", semivalue="leave-one-out")
    d, label = mpmath.mpf(float(change[0, 0, 0])), [mpmath.mpf(1)] if loss == "squared" else 1
    without, everybody = (loss_in_many_digits(loss, [n * d], label) for n in (2999, 3000))
    assert_within(result, [without - everybody] * 3000)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
def test_many_blocks():
    """One client's tiny change in many blocks of few samples: the sum over blocks does not add to the error."""
    n_clients, n_samples = 16384, 20_000
    change = np.zeros((n_clients, 1))
    change[0] = 1e-3
    previous, current = (np.broadcast_to(a, (n_clients, n_samples)) for a in (np.zeros((n_clients, 1)), change))
    result = verfedsv.shapley_values(previous, current, np.ones(n_samples), method="closed-form")
    expected = mpmath.log(2) - mpmath.log1p(mpmath.exp(-mpmath.mpf(1e-3)))
    assert abs(mpmath.mpf(float(result.values[0])) - expected) <= mpmath.mpf(float(result.errors[0]))


@pytest.mark.parametrize("n_classes", [1, 3])
def test_the_rounding_error_does_not_grow_with_a_block(n_classes):
    """A block of 200,000 samples states an error of the mean as small as one of 16, and the true one is within it."""
    rng = np.random.default_rng(0)
    shape = 3, 200_000, n_classes
    # In steps of 2^-20, so that midpoints and products are exact and all of the rounding is that of the sums.
    previous, change = (np.round(rng.uniform(1, 2, shape) * 2**20) / 2**20 for _ in range(2))
    labels = np.zeros(shape[1:])
    game = RoundGame.from_arrays(previous, previous + change, labels, "squared")
    stated = {}
    for n_samples in (16, 200_000):
        found = sum_third_order(game.block(slice(0, n_samples)), game.loss)
        values, errors = found[:3], found[3:6]
        stated[n_samples] = errors / n_samples
        d = np.round(change[:, :n_samples] * 2**20).astype(np.int64)
        doubled = 2 * np.round(previous[:, :n_samples] * 2**20).astype(np.int64).sum(axis=0) + d.sum(axis=0)
        for client in range(3):
            # The value is -d . (the midpoint), exact in whole numbers of at most 63 bits for each sample.
            exact = -sum(map(int, (d[client] * doubled).ravel().tolist()))
            true = abs(mpmath.mpf(float(values[client])) - mpmath.mpf(exact) / 2**41)
            assert true <= float(errors[client])
    assert (stated[200_000] <= 4 * stated[16]).all()


@pytest.mark.parametrize("n_classes", [1, 2])
def test_small_terms_after_a_large_one(n_classes):
    """Added one by one, thousands of small terms would all be lost; in short runs few are."""
    # The first term of the sum is 1, the other 4095 are a little less than half a unit in its last place.
    change, slope = np.full(4096, 2.0**-27), np.full(4096, 0.99 * 2.0**-26)
    change[0], slope[0] = 2.0**-20, 2.0**20
    current, labels = np.zeros((1, 4096, n_classes)), np.zeros((4096, n_classes))
    current[0, :, 0], labels[:, 0] = change, slope + change / 2
    result = verfedsv.shapley_values(np.zeros_like(current), current, labels, "squared", "closed-form", n_threads=1)
    terms = (Fraction(d) * (Fraction(y) - Fraction(d) / 2) for d, y in zip(change, labels[:, 0], strict=True))
    assert abs(Fraction(result.values[0]) - sum(terms) / 4096) <= Fraction(result.errors[0])


def test_the_partition_sum_of_many_classes():
    """Every small class loses half a unit of the sum to rounding, and the probability of the largest is off by all."""
    n_classes, step = 10_000, 2.0**-20
    small = (round(1e-3 / n_classes * 2**52) + 0.49) / 2**52
    embedding = np.full(n_classes, np.log(small) / 2)
    embedding[0] *= -1
    previous, current = np.tile(embedding, (2, 1, 1, 1))
    previous[0, 0, 0] -= step / 2
    current[0, 0, 0] += step / 2
    result = verfedsv.shapley_values(previous, current, [0], "softmax", "closed-form")
    others, before, after = (mpmath.mpf(float(x)) for x in (embedding[1], previous[0, 0, 0], current[0, 0, 0]))
    losses = [mpmath.log1p((n_classes - 1) * mpmath.exp(others - own)) for own in (before, after)]
    assert_within(result, [losses[0] - losses[1]])


def test_a_loss_that_sees_what_all_classes_share():
    """A user's loss of several classes that is not shift-invariant is bounded in norms, not in ranges."""

    class LogCosh(verfedsv.Loss):
        """The sum over classes of log(cosh(x - y))."""

        name = "log-cosh"
        lipschitz, smoothness, gradient_range = np.inf, 1.0, np.inf
        third_derivative, fifth_derivative = 0.77, 4.1

        def encode(self, labels, n_classes):  # noqa: ARG002
            return np.asarray(labels, dtype=float)

        def value(self, x, labels):
            r = np.abs(x - labels)
            return (r + np.log1p(np.exp(-2 * r)) - np.log(2)).sum(axis=-1)

        def gradient(self, x, labels):
            return np.tanh(x - labels)

        def cubic_form(self, x, labels):
            t = np.tanh(x - labels)
            return verfedsv.CubicForm(-2 * t * (1 - t**2), np.zeros(x.shape))

    rng = np.random.default_rng(0)
    previous = rng.normal(size=(4, 6, 1)).repeat(3, axis=2)
    current = previous + rng.normal(size=(4, 6, 1)).repeat(3, axis=2)
    labels = rng.normal(size=(6, 3))
    closed = verfedsv.shapley_values(previous, current, labels, LogCosh(), "closed-form")
    exact = verfedsv.shapley_values(previous, current, labels, LogCosh(), "exact")
    assert np.abs(closed.values - exact.values).max() > 1e-4  # a step large enough to matter
    assert (np.abs(closed.values - exact.values) <= closed.errors + exact.errors).all()
