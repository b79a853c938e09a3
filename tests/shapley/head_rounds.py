"""Random rounds under a head, and their values by the definition in plain torch."""

import copy
import math

import numpy as np
import pytest

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
    head = copy.deepcopy(head).double()
    states = [options["previous_head"] or head.state_dict(), {**head.state_dict()}]
    y, n = torch.as_tensor(labels), len(previous) + (options["previous_head"] is not None)

    def mean_loss(members):
        x = np.hstack([(current if members >> m & 1 else previous)[m] for m in range(len(previous))])
        state = states[members >> len(previous) & 1] if n > len(previous) else states[1]
        state = {name: value.double() for name, value in state.items()}
        scores = torch.func.functional_call(head, state, (torch.as_tensor(x),)).reshape(len(y), -1)
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


def learn(arguments, options):
    """Return the arguments with labels towards which every sample moves, so that its loss falls."""
    previous, current, _, loss = arguments
    head = copy.deepcopy(options["head"]).double()
    with torch.no_grad():
        after = head(torch.as_tensor(np.hstack(current)))
        if options["previous_head"] is not None:
            head.load_state_dict(options["previous_head"])
        before = head(torch.as_tensor(np.hstack(previous)))
    return previous, current, (after > before)[:, 0].numpy().astype(int), loss
