import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv.federation import Linear

torch = pytest.importorskip("torch")

from verfedsv.federation.torch_models import TorchModel, perceptron  # noqa: E402  # needs torch


def linear(n_features=5, n_classes=2):
    """Return a linear module in double precision that starts at zero."""
    module = torch.nn.Linear(n_features, n_classes, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(module.weight)
    return module


def learn(model, steps=5, features=None):
    """Let a model take some steps on given gradients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5)) if features is None else features
    for _ in range(steps):
        model.learn(x, rng.normal(size=(20, 2)), 0.1)
    return model.embed(x)


def test_a_linear_module_is_the_linear_model():
    """Plain SGD of torch and ours take the same steps."""
    np.testing.assert_allclose(learn(TorchModel(linear())), learn(Linear(5, 2)), atol=1e-12)


def test_gradients_are_those_of_the_loss():
    """A step goes down the loss whose gradients by the embeddings it was given, by numeric derivatives."""
    model = perceptron(5, 2, hidden=4)
    x, target = np.random.default_rng(0).normal(size=(20, 5)), np.random.default_rng(1).normal(size=(20, 2))

    def loss(m):
        return 0.5 * np.square(m.embed(x) - target).sum()

    before = loss(model)
    gradient = model.embed(x) - target
    weights = [p.detach().clone() for p in model._module.parameters()]
    model.learn(x, gradient, 1e-3)
    change = [(p.detach() - w) for p, w in zip(model._module.parameters(), weights, strict=True)]
    expected = -sum(float((c**2).sum()) for c in change) / 1e-3
    assert loss(model) - before == pytest.approx(expected, rel=0.05)


def test_an_optimiser_of_ones_own_is_saved_with_its_state():
    """Adam goes on after a restore as if nothing had happened."""

    def adam(parameters, rate):
        return torch.optim.Adam(parameters, lr=rate)

    whole, first, second = (TorchModel(linear(), adam) for _ in range(3))
    learn(whole, 3)
    expected = learn(whole, 3)
    learn(first, 3)
    second.restore(first.state())
    np.testing.assert_array_equal(learn(second, 3), expected)


def test_sparse_features():
    """They are filled row by row as they are needed."""
    x = np.random.default_rng(0).normal(size=(20, 5))
    np.testing.assert_allclose(
        learn(TorchModel(linear()), features=csr_array(x)), learn(TorchModel(linear()), features=x)
    )


def test_the_perceptron_depends_on_its_seed_alone():
    """And leaves the generator of torch as it was."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    models = [perceptron(5, 2, seed=seed) for seed in (0, 0, 1)]
    assert torch.rand(1) == expected
    x = np.random.default_rng(0).normal(size=(20, 5))
    np.testing.assert_array_equal(models[0].embed(x), models[1].embed(x))
    assert not np.array_equal(models[0].embed(x), models[2].embed(x))
