"""What players can add to coalitions, held to all of them; and bounds where few samples jump in one coalition only."""

import copy

import numpy as np
import pytest

from verfedsv import shapley_values
from verfedsv.shapley.head_game import HeadGame

torch = pytest.importorskip("torch")
nn = torch.nn

LAYERS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU(approximate="tanh"),
    "elu below 1": lambda: nn.ELU(0.7),
    "elu above 1": lambda: nn.ELU(1.5),
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "steeper below": lambda: nn.LeakyReLU(1.7),
}


class Hidden(nn.Module):
    """A head that is not described by its layers."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        """Return the scores."""
        return self.module(x)


def build(rng, widths, activation, n_scores, seed):
    """Return a random head with norms, dropout and up to three hidden layers."""
    torch.manual_seed(seed)
    width, layers = sum(widths), []
    layers += [nn.LayerNorm(width)] if rng.random() < 0.2 else []
    layers += [nn.BatchNorm1d(width)] if rng.random() < 0.2 else []
    for _ in range(rng.integers(1, 4)):
        layers += [nn.Linear(width, 5), LAYERS[activation](), nn.Dropout(0.3)]
        layers += [nn.LayerNorm(5)] if rng.random() < 0.2 else []
        width = 5
    head = nn.Sequential(*layers, nn.Linear(width, n_scores, bias=bool(rng.random() < 0.5)))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(float(rng.choice([1, 3])))
        for layer in head:
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.3, 3)
    return head


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("activation", LAYERS)
def test_no_player_adds_more_than_is_proven(activation, loss):
    """To any coalition, in any sample, whether steps are small or large and the head moves or not."""
    rng = np.random.default_rng(sorted(LAYERS).index(activation))
    for seed, step in enumerate([0.01, 0.3, 2.0, 2.0]):
        widths, n = rng.integers(1, 4, 3), 20
        head = build(rng, widths, activation, {"softmax": 3, "squared": 2}.get(loss, 1), seed)
        earlier = copy.deepcopy(head) if seed % 2 else None
        for parameter in earlier.parameters() if earlier is not None else ():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
        previous = [rng.normal(size=(n, width)) for width in widths]
        current = [own + step * rng.normal(size=own.shape) for own in previous]
        labels = rng.normal(size=(n, 2)) if loss == "squared" else rng.integers(3 if loss == "softmax" else 2, size=n)
        game = HeadGame.from_arrays(previous, current, labels, loss, head, earlier)
        coalitions = (np.arange(2**game.n_players)[:, np.newaxis] >> np.arange(game.n_players) & 1).astype(bool)
        losses = game.losses(np.arange(n), coalitions)
        for player in range(game.n_players):
            without = np.flatnonzero(~coalitions[:, player])
            added = losses[without] - losses[without | 1 << player]
            rounding = 1e-12 * np.abs(losses).max()
            assert (added >= game.reach.low[player] - rounding).all()
            assert (added <= game.reach.high[player] + rounding).all()


def make_needle(activation, seed, n_clients=10, n_samples=3000):
    """Return a round in which one unit wakes for 2 samples, if the first half of the clients moved and no other."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(n_clients, 8), LAYERS[activation](), nn.Linear(8, 1)).double()
    with torch.no_grad():
        head[0].weight[0] = torch.where(torch.arange(n_clients) < n_clients // 2, 2.0, -2.0)
        head[0].bias[0] = 1 - 2 * (n_clients // 2)
        head[2].weight[0, 0] = 200.0
    previous = [np.zeros((n_samples, 1)) for _ in range(n_clients)]
    current = [0.1 * rng.normal(size=(n_samples, 1)) for _ in range(n_clients)]
    for own in current:
        own[:2] = 1
    return (previous, current, rng.integers(2, size=n_samples)), head


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
@pytest.mark.parametrize("seed", [4, 5])
def test_samples_that_jump_in_one_coalition_are_enumerated(activation, seed):
    """The errors stated for a head of common layers cover the true ones, where draws miss the jump."""
    arguments, head = make_needle(activation, seed)
    true = shapley_values(*arguments, head=head, method="exact").values
    found = shapley_values(*arguments, head=head, tolerance=0.2, seed=seed)
    assert (found.method, found.error_kind) == ("exact+sampling", "confidence")
    assert found.tolerance_met
    assert (np.abs(found.values - true) <= found.errors).all()


@pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")
@pytest.mark.parametrize("method", ["auto", "permutation"])
def test_errors_that_rest_on_an_assumption_say_so(method):
    """Of a head that is not made of common layers, nothing is proven."""
    arguments, head = make_needle("tanh", 0)
    found, proven = (
        shapley_values(*arguments, method=method, head=module, tolerance=0.2, n_permutations=50)
        for module in (Hidden(head), head)
    )
    assert (found.error_kind, proven.error_kind) == ("confidence on an assumption", "confidence")
    assert "(confidence on an assumption)" in repr(found)


def test_no_player_is_stated_far_more_exactly_than_others():
    """Permutations that miss what one client adds show by the others how far a draw can be off."""
    (previous, current, labels), head = make_needle("tanh", 1, n_clients=6, n_samples=200)
    true = shapley_values(previous, current, labels, head=head, method="exact").values
    for module in (head, Hidden(head)):
        found = shapley_values(previous, current, labels, head=module, method="permutation", n_permutations=60)
        assert found.errors.max() < 100 * found.errors.min()
        assert (np.abs(found.values - true) <= found.errors).all()


def test_a_head_with_a_jump_of_its_own_is_not_proven():
    """Torch's Softplus jumps where it begins to return its argument."""
    arguments, _ = make_needle("tanh", 0, n_clients=3, n_samples=20)
    head = nn.Sequential(nn.Linear(3, 2), nn.Softplus(threshold=0.0), nn.Linear(2, 1))
    assert HeadGame.from_arrays(*arguments, "logistic", head).reach is None


def test_what_is_proven_is_not_far_from_what_happens():
    """Under a smooth head of one hidden layer, small steps add to all coalitions nearly the same."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    previous = [rng.normal(size=(50, 1)) for _ in range(4)]
    current = [own + 0.01 * rng.normal(size=own.shape) for own in previous]
    reach = HeadGame.from_arrays(previous, current, rng.integers(2, size=50), "logistic", head).reach
    sizes = np.maximum(np.abs(reach.low), np.abs(reach.high))
    assert reach.widths().mean() < 0.05 * sizes.mean()
