"""The models that a configuration describes: those of the clients, and the head of the server."""

from __future__ import annotations

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError, how_to_install
from verfedsv.federation import Rate
from verfedsv.federation.heads import Head, SumHead
from verfedsv.head_layers import mlp_layers
from verfedsv.losses import get_loss
from verfedsv.runs.config import ClassWeights, Config
from verfedsv.texts import shortened


def weigh_classes(weights: ClassWeights | None, data: VerticalData) -> Floats | None:
    """Return the weight of each class, (classes,), None if all count alike; raise InputError if they do not fit.

    Balanced weights are n / (C n_c), as in scikit-learn, for the n_c of n training samples in each of C classes.
    """
    if weights is None:
        return None
    what = "training.class_weights"
    if data.loss == "squared":
        raise InputError(f"{what} is for classes, and the labels are amounts; leave it out")
    if weights == "balanced":
        counts = np.bincount(data.labels[~data.is_test], minlength=data.n_classes)
        balanced: Floats = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return balanced
    names = data.classes or tuple(map(str, range(data.n_classes)))
    listed = shortened(", ".join(names), 200)
    if isinstance(weights, list):
        if len(weights) != len(names):
            raise InputError(
                f"{what} must have a number for each of the {len(names)} classes, {listed}; received {len(weights)}"
            )
        return np.array(weights, np.float64)
    if unknown := [name for name in weights if name not in names]:
        raise InputError(
            f"{what} has a weight for {shortened(unknown[0], 80)!r}, which is not a class; the classes are {listed}"
        )
    return np.array([weights.get(name, 1.0) for name in names])


def build_head(config: Config, data: VerticalData) -> Head | None:
    """Return the head as it is before the first round, None if it is a sum; raise InputError if torch is missing."""
    section = config.model
    if section.head == "sum":
        return None
    try:
        from verfedsv.federation.torch_heads import TorchHead
    except ImportError:
        raise InputError(f'head = "mlp" in [model] needs PyTorch: {how_to_install("torch")}') from None
    own = {client.name: client.width for client in config.client}
    widths = {name: own.get(name) or section.width for name in data.names}
    layers = mlp_layers(sum(widths.values()), config.head.hidden, data.width, config.head.activation)
    return TorchHead(layers, widths, Rate(config.head.rate), config.head.optimizer, seed=config.training.seed)


def loss_at_start(data: VerticalData, head: Head | None) -> float:
    """Return the mean loss on training samples if all embeddings are zero, as before the first round."""
    loss, labels = get_loss(data.loss), data.targets[~data.is_test]
    head = SumHead(data.width, None) if head is None else head
    scores = head.scores({name: np.zeros((1, head.width_of(name))) for name in data.names})
    return float(loss.value(np.repeat(scores, len(labels), axis=0), loss.encode(labels, data.width)).mean())
