"""Attacks on what crosses between the server and a client, each with the view of one of them only.

A client has received `gradients`, (epochs, samples, width), one for each training sample in each epoch. The server has
received embeddings. "Li" is Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022), "Fu" is
Fu et al., "Label Inference Attacks Against Vertical Federated Learning" (USENIX Security 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

Floats = NDArray[np.float64]
Labels = NDArray[Any]
Numbers = NDArray[np.intp]

PENALTIES = np.logspace(-3, 1, 9)
"""Of scikit-learn's C; the labelled samples choose, in five folds."""

N_SOLVED = 2000
"""Samples whose columns are solved for, each by itself."""


OF_ATTACKS = 2022
"""Begins the seeds of attacks: what they draw must be independent of what trainings draw, such as batches."""


# What gradients tell a client of labels, and of the others' embeddings


def score_by_sign(gradients: Floats) -> Floats:
    """Return scores, (samples, width), under a sum: Fu's direct attack.

    The gradient of the logistic loss is p - y: negative for label 1, positive for label 0. That of softmax is negative
    for the label and positive for all other classes. So one gradient is enough; these are the means over the epochs,
    with the sign reversed.
    """
    result: Floats = -gradients.mean(axis=0)
    return result


def score_by_direction(gradients: Floats, positive: int) -> Floats:
    """Return scores, (samples,), above zero for label 1, under any head: Li's attack by direction.

    The score is the cosine between a sample's gradient and that of one sample that is known to be positive. Li compares
    within a batch; here it is the mean over the epochs, as the two may be in different batches.
    """
    directions = gradients / np.maximum(np.linalg.norm(gradients, axis=2, keepdims=True), np.finfo(float).tiny)
    cosines: Floats = np.einsum("esw,ew->es", directions, directions[:, positive])
    return cosines.mean(axis=0)


def score_by_length(gradients: Floats) -> Floats:
    """Return the mean length of each sample's gradients, (samples,), larger for rarer labels: Li's attack by norm."""
    lengths: Floats = np.linalg.norm(gradients, axis=2)
    return lengths.mean(axis=0)


def choose_threshold(scores: Floats, labels: Labels) -> float:
    """Return the threshold above which to guess label 1 that is right for most of these samples."""
    edges = np.concatenate([[-np.inf], np.sort(scores)])
    return float(edges[np.argmax([((scores > edge) == labels).mean() for edge in edges])])


def embeddings_of_others(gradients: Floats, uploads: Floats) -> Floats:
    """Return the sum of all other clients' embeddings and the intercept, under a sum with the logistic loss.

    The size of a gradient is the probability of the wrong label, which gives the score; the client subtracts its own
    embeddings, `uploads`. All shapes are that of `gradients`.
    """
    result: Floats = np.sign(gradients) * logit(np.abs(gradients)) - uploads
    return result


# What a client's own model tells it of labels


def fit_few(inputs: Floats, known: Numbers, labels: Labels) -> Floats:
    """Return scores of all samples, (samples,), by logistic regression on the `known` ones, which have these labels.

    On the client's embeddings this is Fu's passive attack, a completion of its model, with one more layer, the model as
    it is, and no use of unlabelled samples. Training the whole model as well, with or without Fu's MixMatch on the
    unlabelled samples, never gave a higher AUC in trials on Adult and credit, and about that of the columns on breast.
    """
    x = (inputs - inputs.mean(axis=0)) / np.maximum(inputs.std(axis=0), 1e-12)
    search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": PENALTIES}, scoring="neg_log_loss", cv=5)
    return np.asarray(search.fit(x[known], labels).decision_function(x))


# What embeddings tell the server of features


def halve(n_samples: int, seed: int) -> tuple[Numbers, Numbers]:
    """Return the samples whose columns the server knows, and the others, on which it is measured."""
    known, others = np.array_split(np.random.default_rng([OF_ATTACKS, seed, 1]).permutation(n_samples), 2)
    return known, others


def r2_by_regression(embeddings: Floats, columns: Floats, seed: int) -> Floats:
    """Return the R2 of each column, (columns,), by linear regression on embeddings, (samples, numbers).

    It uses the principal components above a cutoff, chosen for each column by a fifth of the known samples: all of them
    where columns can be had exactly, few where embeddings are many and samples are not.
    """
    known, others = halve(len(columns), seed)
    fitted, check = np.split(known, [4 * len(known) // 5])
    centre, size = embeddings[known].mean(axis=0), np.maximum(embeddings[known].std(axis=0), 1e-300)
    x, mean = (embeddings - centre) / size, columns[known].mean(axis=0)
    u, s, vt = np.linalg.svd(x[fitted], full_matrices=False)
    of_components = (u.T @ (columns[fitted] - mean)) / np.maximum(s, 1e-300)[:, np.newaxis]
    best, least = np.zeros((x.shape[1], columns.shape[1])), np.full(columns.shape[1], np.inf)
    for cutoff in 10.0 ** -np.arange(13):
        weights = vt[s > cutoff * s[0]].T @ of_components[s > cutoff * s[0]]
        off = ((columns[check] - mean - x[check] @ weights) ** 2).mean(axis=0)
        best[:, off < least], least = weights[:, off < least], np.minimum(off, least)
    return _r2(columns[others], mean + x[others] @ best)


def r2_from_few(embeddings: Floats, columns: Floats, seed: int) -> Floats:
    """Return the R2 of each column, as `r2_by_regression`, if only one more sample is known than there are columns."""
    order = np.random.default_rng([OF_ATTACKS, seed, 2]).permutation(len(columns))
    known, others = np.split(order, [columns.shape[1] + 1])
    x = embeddings / np.maximum(np.abs(embeddings).max(axis=0), 1e-300)
    centre, mean = x[known].mean(axis=0), columns[known].mean(axis=0)
    weights = np.linalg.lstsq(x[known] - centre, columns[known] - mean, rcond=1e-12)[0]
    return _r2(columns[others], mean + (x[others] - centre) @ weights)


def r2_by_solving(uploads: Floats, rounds: Numbers, columns: Floats, seed: int) -> Floats:
    """Return the R2 of each column, (columns,), from the uploads of a linear model without intercept.

    `uploads`, (epochs, samples, width), are those of `rounds`, (epochs, samples). The known samples of a batch give the
    weights of its round, if there are at least as many as columns. Each other sample then has an equation for each
    number that it uploaded; where they are too few, its columns are the most likely ones by the mean and covariance of
    the known samples.
    """
    known, others = halve(len(columns), seed)
    others = others[:N_SOLVED]
    mean = columns[known].mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(columns[known], rowvar=False))
    root = vectors * np.sqrt(np.where(values > 1e-10 * values[-1], values, 0))
    weights = {
        t: np.linalg.lstsq(columns[own], of_known)[0]
        for t, own, of_known in _batches(uploads, rounds, known)
        if len(own) >= len(mean)
    }
    found = np.empty((len(others), len(mean)))
    for row, sample in enumerate(others):
        is_solved = [t in weights for t in rounds[:, sample]]
        equations = np.hstack([weights[t] for t in rounds[is_solved, sample]]).T
        right = uploads[is_solved, sample].ravel() - equations @ mean
        found[row] = mean + root @ np.linalg.lstsq(equations @ root, right, rcond=1e-12)[0]
    return _r2(columns[others], found)


def _batches(uploads: Floats, rounds: Numbers, known: Numbers) -> Iterator[tuple[int, Numbers, Floats]]:
    """Yield each round, the known samples of its batch, and what they uploaded."""
    for of_samples, numbers in zip(uploads, rounds, strict=True):
        for t in np.unique(numbers):
            own = known[numbers[known] == t]
            yield int(t), own, of_samples[own]


def _r2(true: Floats, found: Floats) -> Floats:
    """Return the R2 of each column that is not constant."""
    varies = true.std(axis=0) > 0
    result: Floats = 1 - ((true - found) ** 2).mean(axis=0)[varies] / true.var(axis=0)[varies]
    return result
