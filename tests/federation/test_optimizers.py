import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv import InputError
from verfedsv.federation import Adam, Linear, Momentum, Perceptron, PlainDescent
from verfedsv.federation.heads import SumHead
from verfedsv.federation.models import Rate

torch = pytest.importorskip("torch")

KINDS = {
    "sgd": (PlainDescent, torch.optim.SGD),
    "momentum": (lambda like: Momentum(like, 0.7), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.7)),
    "adam": (Adam, torch.optim.Adam),
}
SHAPES = {"weights": (4, 3), "biases": (3,)}
RATES = [0.1, 0.1, 0.05, 0.3, 0.02]


def gradients():
    """Yield gradients of very different sizes, and some of zero."""
    rng = np.random.default_rng(0)
    for step in range(len(RATES)):
        yield {name: rng.normal(size=shape) * 10.0 ** (2 - step) for name, shape in SHAPES.items()} | (
            {"biases": np.zeros(3)} if step == 0 else {}
        )


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kind):
    """Every parameter follows torch's optimiser step by step, also when the rate changes."""
    build, build_torch = KINDS[kind]
    own = {name: np.ones(shape) for name, shape in SHAPES.items()}
    theirs = {name: torch.ones(shape, dtype=torch.float64, requires_grad=True) for name, shape in SHAPES.items()}
    optimizer, other = build(own), build_torch(list(theirs.values()), lr=1.0)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        optimizer.step(own, gradient, rate)
        other.param_groups[0]["lr"] = rate
        for name, tensor in theirs.items():
            tensor.grad = torch.as_tensor(gradient[name])
        other.step()
        for name, tensor in theirs.items():
            np.testing.assert_allclose(own[name], tensor.detach().numpy(), rtol=1e-12, atol=1e-12)
    assert np.abs(own["weights"] - 1).min() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_continues_from_its_state(kind):
    """One that is restored takes the same steps, to the last bit, and its state has the same arrays at all times."""
    build, _ = KINDS[kind]
    first = {name: np.ones(shape) for name, shape in SHAPES.items()}
    optimizer, *rest = build(first), *gradients()
    shapes = {name: (array.shape, array.dtype) for name, array in optimizer.state().items()}
    optimizer.step(first, rest[0], 0.1)
    state = optimizer.state()
    assert {name: (array.shape, array.dtype) for name, array in state.items()} == shapes
    second, again = {name: array.copy() for name, array in first.items()}, build(first)
    again.restore(state)
    for own, each in ((first, optimizer), (second, again)):
        for gradient in rest[1:]:
            each.step(own, gradient, 0.1)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    if kind != "sgd":  # the state is a copy, and not empty
        fresh = {name: array.copy() for name, array in first.items()}
        build(first).step(fresh, rest[1], 0.1)
        optimizer.step(first, rest[1], 0.1)
        assert not np.array_equal(fresh["weights"], first["weights"])


@pytest.mark.parametrize("build", [Linear, Perceptron])
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_models_take_the_steps_of_torch_on_sparse_features(build, kind):
    """Linear models and perceptrons with sparse features learn as torch modules with dense ones."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 5)) * (rng.random((20, 5)) < 0.5)
    model = build(5, 3, optimizer=KINDS[kind][0])
    state = {name: torch.as_tensor(array.copy()) for name, array in model.state().items()}
    if build is Linear:
        parameters = {"weights": state["weights"].requires_grad_()}
    else:
        names = "first_weights", "first_biases", "second_weights", "second_biases"
        parameters = {name: state[name].requires_grad_() for name in names}

    def embed():
        if build is Linear:
            return torch.as_tensor(x) @ parameters["weights"]
        inner = torch.relu(torch.as_tensor(x) @ parameters["first_weights"] + parameters["first_biases"])
        return inner @ parameters["second_weights"] + parameters["second_biases"]

    optimizer = KINDS[kind][1](list(parameters.values()), lr=0.05)
    for _ in range(4):
        gradient = rng.normal(size=(20, 3))
        model.learn(csr_array(x), gradient, 0.05)
        optimizer.zero_grad()
        embed().backward(torch.as_tensor(gradient))
        optimizer.step()
        np.testing.assert_allclose(model.embed(x), embed().detach().numpy(), atol=1e-11)
    other = build(5, 3, optimizer=KINDS[kind][0])
    other.restore(model.state())
    for each in (model, other):
        each.learn(x, gradient, 0.05)
    np.testing.assert_array_equal(model.embed(x), other.embed(x))


def test_the_intercept_follows_its_optimizer():
    """The server's intercept takes Adam's steps, whose first has the size of the rate, and continues from a state."""
    heads = [SumHead(2, Rate(0.1), Adam) for _ in range(2)]
    slopes = np.array([[3.0, -0.5], [1.0, -0.1]])
    embeddings = {"bank": np.zeros((2, 2))}
    heads[0].learn(embeddings, lambda _: slopes)
    np.testing.assert_allclose(heads[0].offset, [-0.1, 0.1], rtol=1e-6)
    heads[1].restore(heads[0].state())
    for head in heads:
        head.learn(embeddings, lambda _: -slopes)
    np.testing.assert_array_equal(heads[0].offset, heads[1].offset)
    assert heads[0].offset[0] > -0.1


@pytest.mark.parametrize("momentum", [0.0, 1.0, -1.0])
def test_momentum_is_a_fraction(momentum):
    """Without momentum, or without an end to it, it is refused."""
    with pytest.raises(InputError, match="momentum must be above 0 and below 1"):
        Momentum({}, momentum)
