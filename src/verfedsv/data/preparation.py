"""How a client prepares its columns, by itself: missing values, categories, scale."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from verfedsv.data.vertical import ClientData, Matrix
from verfedsv.errors import InputError

Scale = Literal["none", "standardise", "unit-rows"]

DENSE_FEATURES, DENSE_FRACTION = 256, 0.1
"""Features are held dense up to that number, or from that part of nonzero ones on: rows are then gathered faster."""


def prepare(data: ClientData, scale: Scale, is_train: NDArray[np.bool_]) -> Matrix:
    """Return the features that a client's model sees, (samples, features).

    Means, standard deviations and categories are those of the training rows. A missing number becomes the mean; a
    missing category is one of its own; a category that was not among the training rows becomes zeros. "standardise"
    makes each column of mean 0 and variance 1 (a sparse one keeps its zeros, and is only scaled); "unit-rows" makes
    each row of norm 1, as Proposition 1 of the paper asks; a row of zeros stays as it is.
    """
    if scale not in get_args(Scale):
        raise InputError(f"unknown scale {scale!r}; allowed are {', '.join(map(repr, get_args(Scale)))}")
    parts = [_fill(data.numeric, is_train)]
    if data.categorical is not None and data.categorical.shape[1]:
        parts.append(_one_hot(data.categorical, is_train))
    features = parts[0] if len(parts) == 1 else csr_array(hstack([csr_array(part) for part in parts]))
    features = _suitable(features)
    if scale == "standardise":
        features = _standardise(features, is_train)
    elif scale == "unit-rows":
        features = _unit_rows(features)
    return features


def _fill(numeric: Matrix, is_train: NDArray[np.bool_]) -> Matrix:
    if not isinstance(numeric, np.ndarray) or not np.isnan(numeric).any():
        return numeric
    known = np.isfinite(numeric) & is_train[:, np.newaxis]
    counts = known.sum(axis=0)
    means = np.where(known, numeric, 0.0).sum(axis=0) / np.maximum(counts, 1)
    return np.where(np.isnan(numeric), means, numeric)


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
        known = features[is_train]
        deviation = known.std(axis=0)
        result: Matrix = (features - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        return result
    train = features[is_train]
    mean = np.asarray(train.mean(axis=0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(train.multiply(train).mean(axis=0)).ravel() - mean**2, 0))
    return csr_array(features.multiply(1 / np.where(deviation > 0, deviation, 1.0)))


def _unit_rows(features: Matrix) -> Matrix:
    if isinstance(features, np.ndarray):
        norms = np.sqrt(np.square(features).sum(axis=1, keepdims=True))
        return features / np.where(norms > 0, norms, 1.0)
    norms = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    return csr_array(features.multiply((1 / np.where(norms > 0, norms, 1.0))[:, np.newaxis]))
