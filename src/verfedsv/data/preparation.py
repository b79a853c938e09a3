"""How each client prepares its own columns: missing values, categories, scale."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from verfedsv.data.vertical import ClientData, Matrix
from verfedsv.errors import InputError

Scale = Literal["none", "standardise", "unit-rows", "standardise-unit-rows"]

DENSE_FEATURES, DENSE_FRACTION = 256, 0.1
"""With at most this many features, or more than this fraction of nonzeros, rows of a dense matrix are taken faster."""

CONSTANT = 1e-12
"""A column whose standard deviation is at most this fraction of its largest number is constant up to rounding."""


def prepare(data: ClientData, scale: Scale, is_train: NDArray[np.bool_]) -> Matrix:
    """Return the features that a client's model sees, (samples, features).

    Means, standard deviations and categories are those of the training rows. A missing number becomes the mean. Text is
    one-hot encoded; a missing value is a category, and one that is not in the training rows becomes zeros.

    "standardise" gives each column mean 0 and variance 1; one that is constant on the training rows becomes zero. Where
    features are stored sparse, one-hot columns and numbers that were sparse already are scaled but not centred.
    "unit-rows" scales each row to norm 1, as Proposition 1 of the paper asks; rows of zeros stay zero.
    "standardise-unit-rows" does both, in this order.
    """
    if scale not in get_args(Scale):
        raise InputError(f"unknown scale {scale!r}; allowed are {', '.join(map(repr, get_args(Scale)))}")
    if not is_train.any():
        raise InputError("no sample is left for training; lower the test fraction")
    blocks = _blocks(data, is_train)
    if scale.startswith("standardise"):
        blocks = [_standardise(block, is_train) for block in blocks]
    features = _join(blocks)
    return _unit_rows(features) if scale.endswith("unit-rows") else features


def _blocks(data: ClientData, is_train: NDArray[np.bool_]) -> list[Matrix]:
    """Return all columns as one block, or, if that would be sparse, numbers and one-hot columns as two."""
    numeric = _suitable(_fill(data.numeric, is_train))
    if data.categorical is None or not data.categorical.shape[1]:
        return [numeric]
    blocks = [numeric, _one_hot(data.categorical, is_train)]
    joined = _join(blocks)
    return [joined] if isinstance(joined, np.ndarray) else blocks


def _join(blocks: list[Matrix]) -> Matrix:
    if len(blocks) == 1:
        return blocks[0]
    return _suitable(csr_array(hstack([csr_array(block) for block in blocks])))


def _fill(numeric: Matrix, is_train: NDArray[np.bool_]) -> Matrix:
    if not isinstance(numeric, np.ndarray) or not np.isnan(numeric).any():
        return numeric
    train = numeric[is_train]
    is_known = np.isfinite(train)
    counts = np.maximum(is_known.sum(axis=0), 1)
    mean = np.where(is_known, train, 0.0).sum(axis=0) / counts
    mean += np.where(is_known, train - mean, 0.0).sum(axis=0) / counts
    return np.where(np.isnan(numeric), mean, numeric)


def _one_hot(categorical: NDArray[np.object_], is_train: NDArray[np.bool_]) -> csr_array[Any]:
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(handle_unknown="ignore").fit(categorical[is_train])
    return csr_array(encoder.transform(categorical))


def _suitable(features: Matrix) -> Matrix:
    if isinstance(features, np.ndarray):
        return np.ascontiguousarray(features, dtype=np.float64)
    n_samples, n_features = features.shape
    is_dense = n_features <= DENSE_FEATURES or features.nnz > DENSE_FRACTION * n_samples * n_features
    return features.toarray() if is_dense else features.tocsr()


def _standardise(features: Matrix, is_train: NDArray[np.bool_]) -> Matrix:
    if isinstance(features, np.ndarray):
        train = features[is_train]
        mean = _mean(train)
        deviation = np.sqrt(np.square(train - mean).mean(axis=0))
        centred: Matrix = (features - mean) / _divisors(deviation, np.abs(train).max(axis=0))
        return centred
    result = csr_array(features.multiply(1 / _divisors(*_sparse_deviation(features[is_train]))))
    result.eliminate_zeros()
    return result


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of columns, corrected for rounding, so that the mean of equal numbers is that number."""
    mean: NDArray[np.float64] = values.mean(axis=0)
    mean += (values - mean).mean(axis=0)
    return mean


def _sparse_deviation(train: csr_array[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the standard deviations of columns, zeros included, and their largest absolute numbers."""
    n_samples, n_features = train.shape

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(train.indices, values, n_features), np.float64)

    n_zeros = n_samples - np.bincount(train.indices, minlength=n_features)
    mean = total(train.data) / n_samples
    mean += (total(train.data - mean[train.indices]) - n_zeros * mean) / n_samples
    squares = total(np.square(train.data - mean[train.indices])) + n_zeros * mean**2
    return np.sqrt(squares / n_samples), np.asarray(abs(train).max(axis=0).toarray()).ravel()


def _divisors(deviation: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divisor of each column; for a constant column infinity, which makes it zero."""
    return np.where(deviation <= CONSTANT * largest, np.inf, deviation)


def _unit_rows(features: Matrix) -> Matrix:
    if isinstance(features, np.ndarray):
        norms = np.sqrt(np.square(features).sum(axis=1, keepdims=True))
        return features / np.where(norms > 0, norms, 1.0)
    norms = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    return csr_array(features.multiply((1 / np.where(norms > 0, norms, 1.0))[:, np.newaxis]))
