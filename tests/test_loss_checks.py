import math

import numpy as np
import pytest

import verfedsv
from tests.games import LogCosh
from verfedsv import CubicForm, InputError, Loss, Recorder, check_loss, shapley_values, value
from verfedsv.losses import LOSSES, Softmax

RNG = np.random.default_rng(0)
N_SAMPLES = 60
LABELS = RNG.normal(size=N_SAMPLES)


def variant(base=LogCosh, **changed):
    """Return an instance of a loss with some methods or constants changed."""
    return type("Variant", (base,), {"name": "variant", **changed})()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("loss", "labels", "n_classes"),
    [
        (LOSSES["logistic"], LABELS > 0, 1),
        (LOSSES["softmax"], RNG.integers(0, 5, N_SAMPLES), 5),
        (LOSSES["softmax"], RNG.integers(0, 100, N_SAMPLES), 100),
        (LOSSES["squared"], LABELS, 1),
        (LOSSES["squared"], 1e6 * RNG.normal(size=(N_SAMPLES, 3)), 3),
        (LogCosh(), LABELS, 1),
        (LogCosh(), 1e5 * LABELS, 1),
        (variant(third_derivative=math.inf, fifth_derivative=math.inf), LABELS, 1),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_right_losses_pass(loss, labels, n_classes, seed):
    """Those of the package, and one whose derivatives were found by hand, with labels of any size."""
    check_loss(loss, labels, n_classes, seed=seed)


class Sharp(LogCosh):
    """log(cosh(100 (x - y))) / 10,000, whose fifth derivative is a million times as large."""

    name = "sharp"
    lipschitz, smoothness, gradient_range, third_derivative, fifth_derivative = 0.01, 1.0, 0.02, 77, 4.1e6

    def value(self, x, labels):
        return super().value(100 * x, 100 * labels) / 1e4

    def gradient(self, x, labels):
        return super().gradient(100 * x, 100 * labels) / 100

    def cubic_form(self, x, labels):
        return CubicForm(100 * super().cubic_form(100 * x, 100 * labels).weights, np.zeros(x.shape))


def test_a_sharp_loss_passes():
    """Numeric differences are taken on the scale that the constants imply."""
    check_loss(Sharp(), np.zeros(N_SAMPLES), n_points=4000)


@pytest.mark.parametrize("unit", [1e-12, 1e9])
def test_a_loss_in_any_unit(unit):
    """Mistakes are found, and right derivatives pass, however large a loss is."""

    class Scaled(LogCosh):
        name = "scaled"
        lipschitz, smoothness, gradient_range = unit, unit, 2 * unit
        third_derivative, fifth_derivative = 0.77 * unit, 4.1 * unit

        def value(self, x, labels):
            return unit * super().value(x, labels)

        def gradient(self, x, labels):
            return unit * super().gradient(x, labels)

        def cubic_form(self, x, labels):
            return CubicForm(unit * super().cubic_form(x, labels).weights, np.zeros(x.shape))

    check_loss(Scaled(), LABELS)
    for wrong in ({"gradient": LogCosh.cubic_form}, {"fifth_derivative": 2 * unit}, {"smoothness": 0.0}):
        with pytest.raises(InputError):
            check_loss(variant(Scaled, **wrong), LABELS)


WRONG = {
    "the slope by gradient is": variant(gradient=lambda _, x, y: 3 * np.tanh(x - y[:, None])),
    "the slope by gradient": variant(gradient=lambda _, x, y: -np.tanh(x - y[:, None])),
    "the third derivative by cubic_form": variant(cubic_form=lambda _, x, y: CubicForm(0 * x + y[:, None], 0 * x)),
    "lipschitz is stated as 0.5, but": variant(lipschitz=0.5),
    "smoothness is stated as 0.5, but": variant(smoothness=0.5),
    "gradient_range is stated as 1, but": variant(gradient_range=1.0),
    "third_derivative is stated as 0.3, but 0.7": variant(third_derivative=0.3),
    "fifth_derivative is stated as 2, but": variant(fifth_derivative=2.0),
    "encode must return an array with a row for each of 60 samples": variant(encode=lambda _, y, n: [*y][: 60 - n]),
    "value must return finite numbers": variant(value=lambda _, x, y: x - y[:, None]),
    "gradient must return finite numbers": variant(gradient=lambda _, x, y: np.tanh(x[:, 0] - y)),
    "value must take": variant(value=lambda _, x, y: LogCosh().value(x.reshape(-1, 1)[-len(y) :], y)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_losses_are_found(message):
    """A wrong derivative, constant or shape raises an error that names it, with what was found."""
    with pytest.raises(InputError, match=f"loss 'variant': {message}"):
        check_loss(WRONG[message], LABELS)


class Half(Loss):
    """Half the squared distance, with the bounds of a range of embeddings only."""

    name = "half"
    lipschitz = gradient_range = 30.0
    smoothness, third_derivative, fifth_derivative = 1.0, 0.0, 0.0

    def encode(self, labels, n_classes):  # noqa: ARG002
        return np.asarray(labels, dtype=float)

    def value(self, x, labels):
        return np.square(x[..., 0] - labels) / 2

    def gradient(self, x, labels):
        return x - labels[:, None]

    def cubic_form(self, x, labels):  # noqa: ARG002
        return CubicForm(0 * x, 0 * x)


def test_bounds_that_hold_only_near_zero_are_found():
    """Constants must hold for every embedding, and are compared far out also at the few points of each use."""
    for n_points in (8, 256):
        with pytest.raises(InputError, match="lipschitz is stated as 30, but 5"):
            check_loss(Half(), LABELS, n_points=n_points)
    with pytest.raises(InputError, match="gradient_range is stated as 30, but"):
        check_loss(variant(Half, lipschitz=math.inf), LABELS, n_points=8)
    check_loss(variant(Half, lipschitz=math.inf, gradient_range=math.inf), LABELS)


def test_zero_is_one_of_the_points():
    """Where every training begins: a gradient that is 0 / 0 there is found."""
    norm = variant(Half, gradient=lambda _, x, y: x * (x - y[:, None]) / x)
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="gradient must return finite numbers"):
        check_loss(norm, LABELS, n_points=8)


def test_an_infinite_constant_beside_a_finite_one():
    """The scale of numeric differences is then 1."""
    check_loss(variant(fifth_derivative=math.inf), LABELS)
    check_loss(variant(third_derivative=math.inf), LABELS)


def test_shift_invariance_is_checked():
    """A loss of several classes that sees what all of them share may not claim otherwise."""

    class Claimed(Softmax):
        name = "claimed"

        def value(self, x, labels):
            return super().value(x, labels) + x.sum(axis=-1)

        def gradient(self, x, labels):
            return super().gradient(x, labels) + 1

    with pytest.raises(InputError, match="shift_invariant is True, but adding 1 to all classes changes its value"):
        check_loss(Claimed(), [0, 1, 2], 3)


WRONG_GRADIENT = WRONG["the slope by gradient is"]


def test_a_wrong_loss_of_ones_own_is_not_used():
    """A single round, a recorder and a valuation refuse it before any work."""
    with pytest.raises(InputError, match="the slope by gradient"):
        shapley_values(np.zeros((2, N_SAMPLES)), np.ones((2, N_SAMPLES)), LABELS, WRONG_GRADIENT)
    recorder = Recorder(None, LABELS, ["one"], WRONG_GRADIENT)
    with pytest.raises(InputError, match="the slope by gradient"):
        recorder.log([0], {"one": [1.0]})
    with pytest.raises(InputError, match="the slope by gradient"):
        Recorder(None, LABELS, ["one"], WRONG_GRADIENT, n_classes=1)
    with Recorder(None, LABELS, ["one"], variant()) as recorder:
        recorder.log([0], {"one": [1.0]})
    with pytest.raises(InputError, match="the slope by gradient"):
        value(recorder, loss=WRONG_GRADIENT)


@pytest.mark.parametrize("size", [None, "1", -1.0, math.nan])
def test_constants_must_be_numbers(size):
    """A constant that is missing, negative or not a number is named, with what to write if there is no bound."""
    for constant in ("lipschitz", "fifth_derivative"):
        with pytest.raises(InputError, match=rf"loss 'variant': {constant} must be a number, at least 0 \(math.inf"):
            check_loss(variant(**{constant: size}), LABELS)


def test_a_loss_without_constants_or_name():
    """The first that is missing is named."""
    methods = {name: vars(LogCosh)[name] for name in ("encode", "value", "gradient", "cubic_form")}
    with pytest.raises(InputError, match=r"loss 'variant': lipschitz must be a number.*; received None"):
        check_loss(variant(Loss, **methods), LABELS)
    with pytest.raises(InputError, match="Nameless: a loss needs a name"):
        check_loss(type("Nameless", (Loss,), methods)(), LABELS)


def test_a_class_in_place_of_an_instance():
    """The message says what to pass."""
    with pytest.raises(InputError, match=r"loss must be an instance, and LogCosh is a class; pass LogCosh\(\)"):
        verfedsv.shapley_values(np.zeros((1, 2)), np.ones((1, 2)), [0, 1], LogCosh)
