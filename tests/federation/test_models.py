import numpy as np
import pytest
from scipy.sparse import csr_array

from verfedsv import InputError
from verfedsv.federation import Perceptron

N_SAMPLES, N_FEATURES, N_CLASSES, HIDDEN = 20, 5, 3, 4


def steps(n_steps=3):
    """Yield features and gradients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_SAMPLES, N_FEATURES)) * (rng.random((N_SAMPLES, N_FEATURES)) < 0.5)
    for _ in range(n_steps):
        yield x, rng.normal(size=(N_SAMPLES, N_CLASSES))


def learn(model, kind=np.asarray):
    """Let a model take some steps, and return its embeddings."""
    for x, gradient in steps():
        model.learn(kind(x), gradient, 0.1)
    return model.embed(kind(x))


def test_the_perceptron_takes_the_steps_of_torch():
    """Plain SGD with torch's derivatives, from the same weights."""
    torch = pytest.importorskip("torch")
    model = Perceptron(N_FEATURES, N_CLASSES, hidden=HIDDEN)
    state = model.state()
    module = torch.nn.Sequential(
        torch.nn.Linear(N_FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, N_CLASSES)
    ).double()
    with torch.no_grad():
        for layer, name in ((module[0], "first"), (module[2], "second")):
            layer.weight.copy_(torch.as_tensor(state[f"{name}_weights"].T))
            layer.bias.copy_(torch.as_tensor(state[f"{name}_biases"]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for x, gradient in steps():
        optimizer.zero_grad()
        module(torch.as_tensor(x)).backward(torch.as_tensor(gradient))
        optimizer.step()
    expected = module(torch.as_tensor(x)).detach().numpy()
    assert np.abs(expected - model.embed(x)).max() > 0.1
    np.testing.assert_allclose(learn(model), expected, atol=1e-12)


def test_sparse_features_of_the_perceptron():
    """They give the same numbers as dense ones, up to rounding."""
    models = [Perceptron(N_FEATURES, N_CLASSES, hidden=HIDDEN) for _ in range(2)]
    np.testing.assert_allclose(learn(models[0], csr_array), learn(models[1]), atol=1e-12)


def test_the_perceptron_depends_on_its_seed_alone():
    """The same seed gives the same weights, another seed others; it continues from a saved state."""
    first, same, other = (Perceptron(N_FEATURES, N_CLASSES, seed=seed) for seed in (0, 0, 1))
    x, _ = next(steps())
    assert not np.array_equal(first.embed(x), other.embed(x))
    expected = learn(first)
    np.testing.assert_array_equal(learn(same), expected)
    other.restore(first.state())
    np.testing.assert_array_equal(other.embed(x), expected)
    learn(first)
    np.testing.assert_array_equal(other.embed(x), expected)


def test_a_perceptron_needs_hidden_units():
    """None at all are refused."""
    with pytest.raises(InputError, match="hidden must be at least 1; received 0"):
        Perceptron(N_FEATURES, N_CLASSES, hidden=0)
