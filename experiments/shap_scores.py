"""How much the features of each client matter to a model by SHAP, and how alike two rankings of clients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.lab import Settings, Trained, states_of, weights_of
from verfedsv.arrays import Array, Floats
from verfedsv.data import VerticalData, prepare


def kendalls_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's rank correlation."""
    # Imported late: it takes half a second.
    from scipy.stats import kendalltau

    return float(kendalltau(np.asarray(first, float), np.asarray(second, float)).statistic)


def shap_scores(
    data: VerticalData, settings: Settings, trained: Trained, *, n_explained: int = 500, n_background: int = 100
) -> Floats:
    """Return for each client the sum of the mean absolute SHAP values of its features, over all classes.

    Means are over training samples: all of them for linear models, whose SHAP values are exact; `n_explained` for
    perceptrons, against a background of `n_background` others, both drawn with the settings' seed. The joint model is a
    sum over clients, so the SHAP values of a client's features depend on its own model alone.
    """
    features = train_features(data, settings)
    if settings.model == "linear":
        return _linear_scores(features, trained)
    # With the seed alone, these would be the samples of the first batches.
    drawn = np.random.default_rng([settings.seed, *b"explained"]).permutation(int((~data.is_test).sum()))
    background, explained = drawn[:n_background], drawn[n_background : n_background + n_explained]
    return np.array(
        [
            perceptron_score(dense(x[explained]), dense(x[background]), state)
            for x, state in zip(features, states_of(trained.training), strict=True)
        ]
    )


def train_features(data: VerticalData, settings: Settings) -> list[Any]:
    """Return what each client's model sees of the training samples, (samples, features), dense or sparse."""
    is_train = ~data.is_test
    prepared: list[Any] = [prepare(client, settings.scale, is_train) for client in data.clients]
    return [x[is_train] for x in prepared]


def dense(features: Any) -> Floats:
    """Return features as a dense array."""
    return features if isinstance(features, np.ndarray) else np.asarray(features.toarray())


def starts_of(features: Sequence[Any]) -> Array:
    """Return where the features of each client start among those of all, (clients,)."""
    return np.cumsum([0, *(x.shape[1] for x in features[:-1])])


def _linear_scores(features: Sequence[Any], trained: Trained) -> Floats:
    import shap

    joined, stacked = np.hstack([dense(x) for x in features]), np.vstack(weights_of(trained.training))
    own = trained.evaluation.intercept
    intercept = np.zeros(stacked.shape[1]) if own is None else own
    of_features = np.zeros(len(stacked))
    # All samples; by default, shap would use a hundred.
    background = shap.maskers.Independent(joined, max_samples=len(joined))
    for of_class, constant in zip(stacked.T, intercept, strict=True):
        explainer = shap.LinearExplainer((of_class, constant), background)
        of_features += np.abs(explainer.shap_values(joined)).mean(axis=0)
    return np.add.reduceat(of_features, starts_of(features))


def perceptron_score(explained: Floats, background: Floats, state: Mapping[str, Floats]) -> float:
    """Return the sum of the mean absolute SHAP values of a perceptron's features, over all classes.

    The values are those of `shap.DeepExplainer`. With one hidden layer of ReLU, its factor of a neuron, between a
    sample and one of the background, is the mean derivative on the straight line between them: so it gives exactly what
    `shap.GradientExplainer` estimates from random points. Both are near exact Shapley values, and equal to them if no
    neuron switches. Written out here for all classes at once: the package takes a backward pass for each class.
    """
    # Of words that are in none of the documents, all SHAP values are 0.
    is_used = explained.any(axis=0) | background.any(axis=0)
    explained, background = explained[:, is_used], background[:, is_used]
    first, second = state["first_weights"][is_used], state["second_weights"]
    of_background = background @ first + state["first_biases"]  # (background, hidden)
    total = 0.0
    for x, inner in zip(explained, explained @ first + state["first_biases"], strict=True):
        change = inner - of_background
        moved = np.maximum(inner, 0) - np.maximum(of_background, 0)
        is_same = np.abs(change) < 1e-12
        slopes = np.where(is_same, inner > 0, moved / np.where(is_same, 1, change))
        # The mean over the background of (x - background) * slope, (features, hidden).
        distances = np.outer(x, slopes.mean(axis=0)) - background.T @ slopes / len(background)
        total += float(np.abs((distances * first) @ second).sum())
    return total / len(explained)


@dataclass(frozen=True, eq=False)
class LinearShap:
    """Averages of the SHAP values of any linear model with several classes: weight * (x - mean of the background).

    `distances`, (features,), are the means of |x - mean of the background| over samples. `shifts`, (features, classes),
    are the sums of x - mean of the background over the samples of a class, divided by the number of all samples.
    `starts` has the first feature of each client.
    """

    distances: Floats
    shifts: Floats
    starts: Array

    @classmethod
    def on(cls, joined: Floats, labels: Array, n_classes: int, starts: Array, background: Floats) -> LinearShap:
        """Explain all samples, (samples, features), against the rows of a background."""
        centred = joined - background.mean(axis=0)
        is_class = (labels[:, np.newaxis] == np.arange(n_classes)).astype(float)
        return cls(np.abs(centred).mean(axis=0), centred.T @ is_class / len(labels), starts)

    def scores(self, weights: Floats) -> dict[str, Floats]:
        """Return the scores of clients for the weights of a model, (features, classes), by how values are averaged.

        The authors' script has signed averages, for two classes. Of more, these add up to zero over classes, as the
        weights do; so their absolute values are added up, or each sample counts with its own class only.
        """
        of_classes = np.add.reduceat(self.shifts.sum(axis=1, keepdims=True) * weights, self.starts)
        return {
            "absolute": np.add.reduceat(self.distances * np.abs(weights).sum(axis=1), self.starts),
            "signed": np.abs(of_classes).sum(axis=1),
            "signed, true class": np.add.reduceat((self.shifts * weights).sum(axis=1), self.starts),
        }

    def taus(self, weights: Floats, values: Floats) -> dict[str, float]:
        """Return tau between the scores of clients and their values; NaN for scores that are zero up to rounding."""
        scores = self.scores(weights)
        least = 1e-9 * scores["absolute"].max()
        return {
            kind: kendalls_tau(of_kind, values) if np.abs(of_kind).max() > least else np.nan
            for kind, of_kind in scores.items()
        }
