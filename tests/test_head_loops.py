"""Scores by compiled loops, held to the same module in torch."""

import copy

import mpmath
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from verfedsv.head_layers import to_layers  # noqa: E402  # needs torch
from verfedsv.head_loops import HeadLoops  # noqa: E402

nn = torch.nn

ACTIVATIONS = {
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(0.2),
    "elu": nn.ELU(0.7),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "softplus": nn.Softplus(2.0, 5.0),
}

WIDTHS = 3, 1, 9, 2
"""Of the clients; those of the last do not move."""


def states_of(module):
    """Return the module in two states, with statistics of batches that are not those of a new one."""
    torch.manual_seed(1)
    result = []
    for _ in range(2):
        own = copy.deepcopy(module).double().eval()
        with torch.no_grad():
            for tensor in own.state_dict().values():
                if tensor.is_floating_point():
                    tensor += 0.3 * torch.rand_like(tensor)
        result.append(own)
    return result


def deviation(module, previous, current, members):
    """Return how far scores are from torch's, in multiples of the largest in the same coalition."""
    states, columns = states_of(module), np.repeat([0, 1, 2, -1], WIDTHS)
    layers = to_layers(states[0])
    loops = HeadLoops.of(layers, states[0].state_dict())
    numbers = np.concatenate([loops.numbers(state.state_dict()) for state in states])
    found = loops.scores(previous, current, columns, numbers, members)
    worst = 0.0
    for own, scores in zip(np.broadcast_to(members, (len(members), len(previous), 4)), found, strict=True):
        x = torch.from_numpy(np.where(own[:, columns] & (columns >= 0), current, previous))
        with torch.no_grad():
            before, after = (state(x).numpy() for state in states)
        expected = np.where(own[:, 3:], after, before)
        worst = max(worst, float(np.abs(scores - expected).max() / np.abs(expected).max()))
    return worst


def embeddings(scale=1.0, n_samples=11):
    """Return random ones before and after a round."""
    rng = np.random.default_rng(0)
    return (scale * rng.normal(size=(n_samples, sum(WIDTHS))) for _ in range(2))


EVERY_COALITION = (np.arange(16)[:, np.newaxis] >> np.arange(4) & 1).astype(bool)[:, np.newaxis]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_agrees_with_torch(activation, scale):
    """In every coalition, from nearly linear to saturated; of widths that do not fill vectors."""
    module = nn.Sequential(nn.Linear(15, 13), ACTIVATIONS[activation], nn.Linear(13, 3))
    assert deviation(module, *embeddings(scale), EVERY_COALITION) < 1e-13


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(15, 1)],
        [nn.Linear(15, 64), nn.Tanh(), nn.Linear(64, 1, bias=False)],
        [nn.Linear(15, 20, bias=False), nn.BatchNorm1d(20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 9), nn.Tanh()],
        [nn.Linear(15, 33), nn.LayerNorm(33), nn.ReLU(), nn.Linear(33, 5), nn.SiLU(), nn.Linear(5, 26)],
        [nn.Sequential(nn.Linear(15, 3), nn.LayerNorm(3, elementwise_affine=False)), nn.Linear(3, 2)],
        [nn.Linear(15, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 7), nn.Tanh()],
    ],
)
def test_layers_in_any_order_agree_with_torch(layers):
    """Wide and narrow ones, with and without bias, norms of both kinds, one within another, and none but one."""
    assert deviation(nn.Sequential(*layers), *embeddings(), EVERY_COALITION) < 1e-13


def test_samples_may_have_coalitions_of_their_own():
    """In any order, some of them the same."""
    module = nn.Sequential(nn.Linear(15, 13), nn.Tanh(), nn.Linear(13, 3))
    members = np.random.default_rng(3).random((30, 11, 4)) < 0.5
    assert deviation(module, *embeddings(), members) < 1e-13


def test_one_state_has_no_server():
    """Then all players are clients."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    loops = HeadLoops.of(to_layers(module), module.state_dict())
    previous, current = np.zeros((3, 2)), np.random.default_rng(0).normal(size=(3, 2))
    members = np.array([[[False, False]], [[True, False]], [[True, True]]])
    found = loops.scores(previous, current, np.array([0, 1]), loops.numbers(module.state_dict()), members)
    x = np.stack([previous, current * [1, 0], current])
    with torch.no_grad():
        np.testing.assert_allclose(found, module(torch.from_numpy(x)).numpy(), rtol=1e-14, atol=1e-15)


PRECISE = {
    "tanh": mpmath.tanh,
    "elu": lambda x: mpmath.mpf(0.7) * mpmath.expm1(x) if x < 0 else x,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.ncdf(x),
}


@pytest.mark.parametrize("activation", PRECISE)
def test_activations_keep_their_digits(activation):
    """Within a few units in the last place of 60 digits' arithmetic, also where numbers are tiny; NaN stays NaN."""
    x = np.concatenate([sign * np.geomspace(1e-9, 8, 200) for sign in (-1, 1)])
    found = of_identity(ACTIVATIONS[activation], np.append(x, np.nan))
    with mpmath.workdps(60):
        expected = np.array([float(PRECISE[activation](mpmath.mpf(each))) for each in x])
    # exp(-x^2 / 2) has an error that grows with x^2.
    np.testing.assert_allclose(found[:-1], expected, rtol=2e-14 if activation == "gelu" else 1.5e-15, atol=0)
    assert np.isnan(found[-1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_right_at_the_far_ends(activation):
    """Those that vanish there do: their exponentials are limited, and huge numbers would multiply what is left."""
    x = np.array([-1e308, -1e150, -1e3, -701.0, -699.0, -38.5, 38.5, 699.0, 701.0, 1e3, 1e150, 1e308])
    with torch.no_grad():
        expected = copy.deepcopy(ACTIVATIONS[activation]).double()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(of_identity(ACTIVATIONS[activation], x), expected, rtol=1e-13, atol=1e-299)


def of_identity(activation, x):
    """Return an activation of single numbers, which pass linear layers unchanged."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), activation).double()
    nn.init.ones_(module[0].weight)
    loops = HeadLoops.of(to_layers(module), module.state_dict())
    numbers, nobody = loops.numbers(module.state_dict()), np.zeros((1, 1, 1), bool)
    return loops.scores(x[:, np.newaxis], x[:, np.newaxis], np.zeros(1, int), numbers, nobody).ravel()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.ReLU(), nn.Linear(15, 1)],
        [nn.LayerNorm(15), nn.Linear(15, 1)],
        [nn.Tanh()],
        [nn.Linear(15, 8000)],
        [nn.Linear(15, 256), nn.Tanh(), nn.Linear(256, 64)],
    ],
)
def test_other_heads_are_left_to_torch(layers):
    """Those whose first layer is not linear, and those that are too large."""
    module = nn.Sequential(*layers)
    assert HeadLoops.of(to_layers(module), module.state_dict()) is None
