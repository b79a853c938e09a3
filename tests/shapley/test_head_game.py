import math

import numpy as np
import pytest

from verfedsv import shapley_values

torch = pytest.importorskip("torch")

ACTIVATIONS = {"tanh": torch.nn.Tanh, "gelu": torch.nn.GELU, "relu": torch.nn.ReLU}


def build(width, n_classes, activation, hidden=6, seed=0):
    """Return a head of one hidden layer."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(width, hidden), ACTIVATIONS[activation](), torch.nn.Linear(hidden, n_classes)
    )


def make(widths, n_samples=20, loss="softmax", activation="tanh", step=0.3, moves_server=True, seed=0):
    """Return the arguments of `shapley_values` for a random round, and those of the head by name."""
    rng = np.random.default_rng(seed)
    n_classes = 3 if loss == "softmax" else 1
    previous = [rng.normal(size=(n_samples, width)) for width in widths]
    current = [own + step * rng.normal(size=own.shape) for own in previous]
    labels = rng.integers(3, size=n_samples) if loss == "softmax" else rng.integers(2, size=n_samples)
    labels = rng.normal(size=n_samples) if loss == "squared" else labels
    head = build(sum(widths), n_classes, activation, seed=seed)
    earlier = {name: value.clone() for name, value in head.state_dict().items()}
    if moves_server:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(0.1 * step * torch.randn_like(parameter))
    return (previous, current, labels, loss), {"head": head, "previous_head": earlier if moves_server else None}


def brute_force(arguments, options):
    """Return the Shapley values of clients and server by the definition, in plain torch."""
    (previous, current, labels, loss), head = arguments, options["head"]
    head = torch.nn.Sequential(*head).double()
    states = [options["previous_head"] or head.state_dict(), {**head.state_dict()}]
    y, n = torch.as_tensor(labels), len(previous) + (options["previous_head"] is not None)

    def mean_loss(members):
        x = np.hstack([(current if members >> m & 1 else previous)[m] for m in range(len(previous))])
        state = states[members >> len(previous) & 1] if n > len(previous) else states[1]
        state = {name: value.double() for name, value in state.items()}
        scores = torch.func.functional_call(head, state, (torch.as_tensor(x),))
        if loss == "softmax":
            return float(torch.nn.functional.cross_entropy(scores, y))
        if loss == "logistic":
            return float(torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], y.double()))
        return float(((scores[:, 0] - y) ** 2).mean() / 2)

    with torch.no_grad():
        losses = [mean_loss(members) for members in range(2**n)]
    values = np.zeros(n)
    for m in range(n):
        for members in range(2**n):
            if not members >> m & 1:
                size = members.bit_count()
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                values[m] += weight * (losses[members] - losses[members | 1 << m])
    return values[: len(previous)], values[-1] if n > len(previous) else 0.0


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [[3], [2, 1], [1, 2, 3, 1], [1, 1, 2, 1, 1, 1, 2, 1]])
@pytest.mark.parametrize("loss", ["softmax", "logistic", "squared"])
def test_every_method_is_held_to_brute_force(widths, activation, loss):
    """Exact to rounding, auto and permutation within their stated errors, the closed form closely if it is smooth."""
    arguments, options = make(widths, loss=loss, activation=activation, seed=len(widths))
    values, server = brute_force(arguments, options)
    size = max(np.abs(values).max(), abs(server))
    exact = shapley_values(*arguments, "exact", **options)
    np.testing.assert_allclose([*exact.values, exact.server_value], [*values, server], atol=1e-12 * size)
    assert exact.error_kind == "certified but for rounding"
    for method in ("auto", "permutation"):
        found = shapley_values(*arguments, method, **options, n_permutations=400)
        assert (np.abs(found.values - values) <= found.errors + 1e-14).all()
        assert abs(found.server_value - server) <= found.server_error + 1e-14
        np.testing.assert_allclose(found.values.sum() + found.server_value, values.sum() + server, atol=1e-13)
    closed = shapley_values(*arguments, "closed-form", **options)
    assert np.isinf(closed.errors).all()
    if activation != "relu":
        np.testing.assert_allclose([*closed.values, closed.server_value], [*values, server], atol=0.02 * size)
