from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from scipy.special import softmax

from tests.games import LOSSES, mean_loss
from verfedsv.compiled import compiled
from verfedsv.errors import InputError
from verfedsv.loss_loops import expand_logistic, expand_softmax
from verfedsv.losses import LOSSES as LOSS_OBJECTS
from verfedsv.losses import dot, get_loss
from verfedsv.vectors import LANES, load, sum_lanes

N_CLASSES = {"logistic": 1, "softmax": 4, "squared": 2}


def points(name: str, n_samples=40, scale=2.0, seed=0):
    """Return a loss, embeddings and encoded labels."""
    rng = np.random.default_rng(seed)
    n_classes = N_CLASSES[name]
    x = scale * rng.normal(size=(n_samples, n_classes))
    labels = {
        "logistic": rng.integers(0, 2, n_samples),
        "softmax": rng.integers(0, n_classes, n_samples),
        "squared": rng.normal(size=(n_samples, n_classes)),
    }[name]
    loss = get_loss(name)
    return loss, x, loss.encode(labels, n_classes), labels


def directional_derivative(function, x, v, h):
    """Return the derivative of `function` along v by a central difference of fourth order."""
    ahead, behind = function(x + h * v) - function(x - h * v), function(x + 2 * h * v) - function(x - 2 * h * v)
    return (8 * ahead - behind) / (12 * h)


def third_derivative(loss, x, labels, v, w):
    """Return the vector of u -> D^3 f(x)[u, v, w] of each sample, from the loss's cubic form."""
    weights, centre = loss.cubic_form(x, labels)
    product = weights * (v - dot(centre, v)) * (w - dot(centre, w))
    return product - centre * product.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", LOSSES)
def test_value_is_the_textbook_loss(name):
    """The value agrees with the formula as scipy computes it."""
    loss, x, labels, given = points(name)
    flat = x[:, 0] if name == "logistic" else x
    assert loss.value(x, labels).mean() == pytest.approx(mean_loss(name, flat, given), rel=1e-14, abs=0)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_the_derivative_of_the_value(name):
    """The gradient agrees with a numeric derivative in random directions."""
    loss, x, labels, _ = points(name)
    v = np.random.default_rng(1).normal(size=x.shape)
    numeric = directional_derivative(lambda z: loss.value(z, labels), x, v, 1e-3)
    np.testing.assert_allclose((loss.gradient(x, labels) * v).sum(-1), numeric, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_cubic_form_is_the_second_derivative_of_the_gradient(name):
    """The third-order contraction agrees with numeric derivatives of the gradient along two directions."""
    loss, x, labels, _ = points(name)
    v, w = np.random.default_rng(1).normal(size=(2, *x.shape))

    def along_v(z):
        return directional_derivative(lambda y: loss.gradient(y, labels), z, v, 1e-2)

    np.testing.assert_allclose(
        third_derivative(loss, x, labels, v, w), directional_derivative(along_v, x, w, 1e-2), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_stable_for_embeddings_up_to_a_million(name, dtype):
    """Embeddings of size 1e6 give finite values and derivatives, right to the precision of the input."""
    loss, x, labels, given = points(name, scale=1.0)
    big = (1e6 * x).astype(dtype)
    exact = big.astype(np.float64)
    values = loss.value(big, labels)
    flat = exact[:, 0] if name == "logistic" else exact
    assert values.mean() == pytest.approx(mean_loss(name, flat, given), rel=1e-12)
    assert np.isfinite(loss.gradient(big, labels)).all()
    assert np.isfinite(third_derivative(loss, big, labels, x, x)).all()


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_small_losses_keep_their_precision(name):
    """A well classified sample has a loss of exp(-margin), not 0, at margins far below the precision of 1."""
    loss = get_loss(name)
    n_classes = N_CLASSES[name]
    x = np.zeros((1, n_classes))
    x[0, 0] = 50.0
    labels = loss.encode(np.array([1 if name == "logistic" else 0]), n_classes)
    expected = (1 if name == "logistic" else n_classes - 1) * np.exp(-50.0)
    assert loss.value(x, labels)[0] == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_constants_hold(name):
    """Lipschitz, smoothness and gradient range hold at random points and directions, and are nearly reached."""
    loss, x, labels, _ = points(name, n_samples=4000, scale=3.0)
    rng = np.random.default_rng(1)
    gradient = loss.gradient(x, labels)
    assert 0.9 * loss.lipschitz < np.linalg.norm(gradient, axis=-1).max() <= loss.lipschitz
    near = x + 1e-4 * rng.normal(size=x.shape)
    ratio = np.linalg.norm(loss.gradient(near, labels) - gradient, axis=-1) / np.linalg.norm(near - x, axis=-1)
    assert 0.6 * loss.smoothness < ratio.max() <= loss.smoothness * (1 + 1e-6)
    v = rng.normal(size=x.shape)
    difference = ((gradient - loss.gradient(x[::-1], labels)) * v).sum(-1)
    assert (np.abs(difference) <= loss.gradient_range * loss.spread(v) * (1 + 1e-12)).all()
    third = (third_derivative(loss, x, labels, near, near) * v).sum(-1)
    assert (np.abs(third) <= loss.third_derivative * loss.spread(v) * loss.spread(near) ** 2 * (1 + 1e-9)).all()


def fifth_cumulant(p, a, b):
    """Return the fifth derivative of log-sum-exp at softmax p along a, b, b, b, b: a joint cumulant."""
    a, b = a - p @ a, b - p @ b
    return p @ (a * b**4) - 4 * (p @ (a * b)) * (p @ b**3) - 6 * (p @ (a * b**2)) * (p @ b**2)


def test_fifth_derivative_of_logistic_is_its_maximum():
    """The constant is the largest fifth derivative of log(1 + e^x), rounded up in the ninth digit."""
    s = 1 / (1 + np.exp(-np.linspace(-10, 10, 2_000_001)))
    p = s * (1 - s)
    largest = np.abs(p * (1 - 2 * s) * (1 - 12 * p)).max()
    assert largest <= get_loss("logistic").fifth_derivative < largest + 1e-9


@pytest.mark.parametrize("n_classes", [2, 3, 5, pytest.param(20, marks=pytest.mark.slow)])
def test_fifth_derivative_of_softmax_holds(n_classes):
    """No joint cumulant of directions of spread 1 exceeds the constant, also after climbing from random starts."""
    rng = np.random.default_rng(n_classes)
    largest = 0.0
    for _ in range(300):
        p = rng.dirichlet(np.full(n_classes, rng.choice([0.2, 1.0, 5.0])))
        b = rng.random(n_classes)
        b = (b - b.min()) / (np.ptp(b) or 1)
        for _ in range(30):
            trial = np.clip(b + 0.2 * rng.normal(size=n_classes), 0, 1), rng.dirichlet(1 + 50 * p)
            # The form is linear in a, so the best a for b is 0 or 1 everywhere.
            slopes = [
                [fifth_cumulant(q, np.eye(n_classes)[c], d) for c in range(n_classes)] for d, q in [(b, p), trial]
            ]
            sizes = [max(np.maximum(s, 0).sum(), np.maximum(np.negative(s), 0).sum()) for s in slopes]
            if sizes[1] > sizes[0]:
                b, p = trial
            largest = max(largest, *sizes)
    assert largest <= get_loss("softmax").fifth_derivative
    assert n_classes > 2 or largest > 0.127  # two classes are the logistic loss again


@pytest.mark.parametrize(
    ("name", "labels", "n_classes", "message"),
    [
        ("logistic", [0, 1, 2], 1, "received the values 0, 1, 2"),
        ("logistic", [-1, 0, 1], 1, "received the values -1, 0, 1"),
        ("logistic", [0.5, 1], 1, "received the values 0.5, 1"),
        ("logistic", [0, np.nan], 1, "NaN"),
        ("logistic", [0, 1], 2, "use loss='softmax'"),
        ("logistic", [[0], [1]], 1, "shape"),
        ("logistic", ["a", "b"], 1, "real numbers"),
        ("softmax", [0, 1e300], 3, "0 to 2"),
        ("softmax", [0, 1, 3], 3, "0 to 2"),
        ("softmax", [-1, 1, 2], 3, "0 to 2"),
        ("softmax", [0, 0.5], 3, "0 to 2"),
        ("softmax", [1, 2, 3], 3, "received the values 1, 2, 3; if they count from 1, subtract 1"),
        ("softmax", [2, 3], 3, "if they count from 1, subtract 1"),
        ("softmax", [1, 2, 4], 3, "received the values 1, 2, 4$"),
        ("softmax", [0, 1, 3], 3, "received the values 0, 1, 3$"),
        ("softmax", [1.5, 3], 3, "received the values 1.5, 3$"),
        ("softmax", [0, 1], 1, "at least 2 classes"),
        ("softmax", list(range(20)), 3, "and 14 more"),
        ("squared", [0.0, np.inf], 1, "infinity"),
        ("squared", [0.0, 1.0], 3, r"\(samples, 3\)"),
    ],
)
def test_labels_outside_the_range_of_the_loss(name, labels, n_classes, message):
    """Labels that do not fit are refused with what was received and what is allowed."""
    with pytest.raises(InputError, match=message):
        get_loss(name).encode(np.array(labels), n_classes)


@pytest.mark.parametrize("labels", [[0, 1, 1], [-1, 1, 1], [False, True, True], [0.0, 1.0, 1.0]])
def test_both_codes_of_binary_labels_mean_the_same(labels):
    """-1/+1, 0/1 and booleans are encoded alike."""
    np.testing.assert_array_equal(get_loss("logistic").encode(np.array(labels), 1), [-1, 1, 1])


def test_unknown_loss():
    """An unknown name is answered with the known ones."""
    with pytest.raises(InputError, match="unknown loss 'hinge'; allowed are 'logistic', 'softmax', 'squared'"):
        get_loss("hinge")


def test_a_loss_is_taken_as_it_is():
    """An instance of a loss can be passed in place of its name."""
    assert get_loss(LOSS_OBJECTS["logistic"]) is LOSS_OBJECTS["logistic"]


def cumulants(p, b):
    """Return the first four cumulants of b under p."""
    mean = p @ b
    x = b - mean
    return np.array([mean, p @ x**2, p @ x**3, p @ x**4 - 3 * (p @ x**2) ** 2])


def test_fifth_derivative_of_softmax_by_total_cumulance():
    """The formula of docs/closed-form.md: the joint cumulant with an indicator, from the laws inside and outside."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, b = rng.dirichlet(np.ones(7)), rng.random(7)
        inside = np.arange(7) < rng.integers(1, 7)
        q = p[inside].sum()
        v = q * (1 - q)
        d = cumulants(p[inside] / q, b[inside]) - cumulants(p[~inside] / (1 - q), b[~inside])
        formula = v * (
            d[3]
            + (1 - 2 * q) * (4 * d[0] * d[2] + 3 * d[1] ** 2)
            + 6 * (1 - 6 * v) * d[1] * d[0] ** 2
            + (1 - 2 * q) * (1 - 12 * v) * d[0] ** 4
        )
        assert formula == pytest.approx(fifth_cumulant(p, inside.astype(float), b), rel=1e-9, abs=1e-14)


def test_fifth_derivative_of_softmax_is_proven():
    """The bound of docs/closed-form.md stays below the constant, with what a slope of 7 can add between grid points."""
    q, d = np.linspace(0, 0.5, 4001)[:, None], np.linspace(0, 1, 4001)[None]
    v, s, e = q * (1 - q), np.where(d <= 0.5, 0.25, d * (1 - d)), (1 - d**2) / 2
    bound = v * (
        np.minimum(0.174, e)
        + np.abs(1 - 2 * q) * (4 * d * np.minimum(0.1925, e) + 3 * s**2)
        + 6 * np.abs(1 - 6 * v) * s * d**2
        + np.abs((1 - 2 * q) * (1 - 12 * v)) * d**4
    )
    steps = np.abs(np.diff(bound, axis=0)).max() * 8000, np.abs(np.diff(bound, axis=1)).max() * 4000
    assert max(steps) < 7
    assert bound.max() < 0.184
    assert bound.max() + 7 * (1 / 16000 + 1 / 8000) < 0.186 < get_loss("softmax").fifth_derivative


def test_cumulants_on_the_unit_interval():
    """The bounds on single cumulants that the proof uses hold for random laws on [0, 1] and for all two-point laws."""
    rng = np.random.default_rng(0)
    laws = [(rng.dirichlet(np.full(5, 0.3)), rng.random(5)) for _ in range(5000)]
    laws += [(np.array([1 - m, m]), np.array([0.0, 1.0])) for m in np.linspace(0, 1, 1001)]
    for p, b in laws:
        mean, second, third, fourth = cumulants(p, b)
        assert second <= mean * (1 - mean) + 1e-15
        assert abs(third) <= min(0.09625, second) + 1e-15
        assert -0.125 - 1e-15 <= fourth <= 0.049
        assert abs(fourth) <= second + 1e-15


@pytest.mark.parametrize("step", [1e-9, 0.01, -0.35, 0.35, 0.36, -3.0])
def test_the_decrease_of_the_logistic_loss_is_precise(step):
    """To a few units in the last place for short steps; else to those of the two losses."""
    for base in (-30.0, -3.0, -0.1, 0.0, 0.3, 2.0, 12.0):
        for label in (1.0, -1.0):
            before, after = (
                PRECISE.ln(PRECISE.add(1, PRECISE.exp(Decimal(-label) * (Decimal(base) + Decimal(moved)))))
                for moved in (0.0, step)
            )
            eight = np.zeros((3, LANES))
            eight[:, 5] = base, step, label
            error = abs(Decimal(expand(*eight)) - (before - after))
            size = abs(before - after) if abs(step) <= 0.35 else before + after
            assert error <= Decimal("1e-15") * (1 + abs(int(base))) * size  # the base is rounded, too


@pytest.mark.parametrize("n_classes", [2, 7, 26])
@pytest.mark.parametrize("step", [1e-12, 1e-6, 0.01, 0.3, 0.6, 5.0, 50.0])
def test_the_decrease_of_the_softmax_loss_is_precise(step, n_classes):
    """To a few units of the mean relative step if it is short; else to those of the two losses."""
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 10.0, 40.0) * 5:
        base, change = np.zeros((2, n_classes, LANES))
        base[:, 2], change[:, 2] = scale * rng.normal(size=n_classes), rng.uniform(-step, step, n_classes)
        label = int(rng.integers(n_classes))
        with localcontext(PRECISE):
            before = [Decimal(x) for x in base[:, 2]]
            after = [x + Decimal(d) for x, d in zip(before, change[:, 2], strict=True)]
            losses = [sum((x.exp() for x in points), Decimal(0)).ln() - points[label] for points in (before, after)]
            decrease = losses[0] - losses[1]
        labels, p, gradient = np.full(LANES, label), np.empty(n_classes * LANES), np.empty(n_classes * LANES)
        found = expand_classes(base.reshape(-1), change.reshape(-1), labels, p, gradient)
        relative = np.abs(change[:, 2] - change[label, 2])
        is_short = relative.max() / 2 <= 0.35
        size = Decimal(float(p.reshape(n_classes, LANES)[:, 2] @ relative)) if is_short else sum(losses)
        assert abs(Decimal(found) - decrease) <= Decimal("1e-15") * (2 + int(scale)) * size
        middle = np.exp(base + change / 2 - (base + change / 2).max(axis=0))
        np.testing.assert_allclose(p.reshape(n_classes, LANES), middle / middle.sum(axis=0), rtol=1e-14)
        expected = p.reshape(n_classes, LANES) - (np.arange(n_classes)[:, np.newaxis] == label)
        np.testing.assert_array_equal(gradient.reshape(n_classes, LANES), expected)


PRECISE = Context(prec=120)


@compiled
def expand(base, step, labels):
    return sum_lanes(expand_logistic(load(base, 0), load(step, 0), load(labels, 0))[2])


@compiled
def expand_classes(base, step, labels, p, gradient):
    return expand_softmax(base, step, labels, 0, p, gradient, np.empty(LANES))


def test_probabilities_keep_small_numbers():
    """That of the improbable class is not 1 minus a rounded one."""
    found = LOSS_OBJECTS["logistic"].probabilities(np.array([[40.0], [-800.0], [0.0]]))
    np.testing.assert_allclose(found, [[np.exp(-40), 1], [1, 0], [0.5, 0.5]], rtol=1e-12, atol=1e-300)
    x = np.random.default_rng(0).normal(size=(3, 20, 5)) * 10
    np.testing.assert_allclose(LOSS_OBJECTS["softmax"].probabilities(x), softmax(x, axis=-1), rtol=1e-12)
