"""How each client prepares its own columns: missing values, categories, scale."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from verfedsv.arrays import Array, Floats
from verfedsv.data.vertical import ClientData, Matrix
from verfedsv.errors import InputError
from verfedsv.files import MOST_BYTES
from verfedsv.untrusted import read_json

Scale = Literal["none", "standardise", "unit-rows", "standardise-unit-rows"]
Categories = tuple[str | None, ...]

DENSE_FEATURES, DENSE_FRACTION = 256, 0.1
"""With at most this many features, or more than this fraction of nonzeros, rows of a dense matrix are taken faster."""

CONSTANT = 1e-12
"""A column whose standard deviation is at most this fraction of its largest number is constant up to rounding."""


def prepare(data: ClientData, scale: Scale, is_train: NDArray[np.bool_]) -> Matrix:
    """Return the features that a client's model sees, (samples, features): see `Preparation`."""
    return Preparation.fit(data, scale, is_train).apply(data)


@dataclass(frozen=True, eq=False)
class Preparation:
    """Turns a client's columns into the features that its model sees; fitted on training rows.

    Features are the numeric columns, then one for each category of each column of text. `means` replace missing
    numbers. A missing text is a category, None, if training rows have one; a value that is not in `categories` becomes
    zeros. From each feature its `centre` is subtracted, and the result is divided by its `divisor`, infinity for a
    column that was constant: it becomes zero. Then rows get norm 1 if `unit_rows` is set; rows of zeros stay zero.
    """

    numeric: tuple[str, ...]
    text: tuple[str, ...]
    means: Floats
    categories: tuple[Categories, ...]
    centre: Floats
    divisor: Floats
    unit_rows: bool
    is_sparse: tuple[bool, bool, bool]
    """Whether numbers, one-hot columns, and all features together are stored sparse."""

    @classmethod
    def fit(cls, data: ClientData, scale: Scale, is_train: NDArray[np.bool_]) -> Preparation:
        """Return the preparation of a client's columns, with means, deviations and categories of the training rows.

        "standardise" gives each column mean 0 and variance 1; one that is constant on the training rows becomes zero.
        Where features are stored sparse, one-hot columns and numbers that were sparse already are scaled but not
        centred. "unit-rows" scales each row to norm 1, as Proposition 1 of the paper asks. "standardise-unit-rows" does
        both, in this order.
        """
        if scale not in get_args(Scale):
            raise InputError(f"unknown scale {scale!r}; allowed are {', '.join(map(repr, get_args(Scale)))}")
        if not is_train.any():
            raise InputError("no sample is left for training; lower the test fraction")
        means, categories = _means(data.numeric[is_train]), _find_categories(data, is_train)
        blocks = _blocks(_suitable(_fill(data.numeric, means)), _one_hot(data, categories))
        fitted = [_centre_and_divisor(block[is_train], scale.startswith("standardise")) for block in blocks]
        centre, divisor = (np.concatenate(parts) for parts in zip(*fitted, strict=True))
        numeric, text = data.columns[: data.numeric.shape[1]], data.columns[data.numeric.shape[1] :]
        are_sparse = [not isinstance(block, np.ndarray) for block in blocks]
        is_sparse = are_sparse[0], are_sparse[-1], are_sparse[0]
        result = cls(numeric, text, means, categories, centre, divisor, scale.endswith("unit-rows"), is_sparse)
        if len(blocks) == 1:
            return result
        joined = _suitable(_join(result._standardise(blocks)))  # centred numbers have fewer zeros
        return replace(result, is_sparse=(*is_sparse[:2], not isinstance(joined, np.ndarray)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, numeric ones first."""
        return self.numeric + self.text

    @property
    def n_features(self) -> int:
        return len(self.centre)

    def apply(self, data: ClientData) -> Matrix:
        """Return the features of some rows, (rows, features)."""
        if data.columns != self.columns:
            raise InputError(f"{data.name}: the columns must be {', '.join(self.columns)}, in this order")
        blocks: list[Matrix] = [_stored(_fill(data.numeric, self.means), self.is_sparse[0])]
        if self.text:
            blocks.append(_stored(_one_hot(data, self.categories), self.is_sparse[1]))
        blocks = self._standardise(blocks)
        features = _stored(_join(blocks), self.is_sparse[2])
        return _unit_rows(features) if self.unit_rows else features

    def _standardise(self, blocks: list[Matrix]) -> list[Matrix]:
        if not self.centre.any() and (self.divisor == 1).all():
            return blocks
        edges = np.cumsum([int(block.shape[1]) for block in blocks])[:-1]
        parts = zip(blocks, np.split(self.centre, edges), np.split(self.divisor, edges), strict=True)
        return [_standardise(*part) for part in parts]

    def state(self) -> dict[str, Array]:
        """Return arrays from which `of_state` makes the same preparation; `columns` is JSON in UTF-8."""
        columns: list[dict[str, Any]] = [{"name": name} for name in self.numeric]
        columns += [{"name": name, "categories": own} for name, own in zip(self.text, self.categories, strict=True)]
        return {
            "columns": np.frombuffer(json.dumps(columns).encode(), np.uint8),
            "means": self.means,
            "centre": self.centre,
            "divisor": self.divisor,
            "unit_rows": np.array(self.unit_rows),
            "is_sparse": np.array(self.is_sparse),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Array]) -> Preparation:
        """Return the preparation that has this state; raise InputError if its arrays do not fit together."""
        numeric, text = _parse_columns(state["columns"])
        means, centre, divisor = state["means"], state["centre"], state["divisor"]
        n_features = len(numeric) + sum(map(len, text.values()))
        is_valid = (
            means.shape == (len(numeric),)
            and centre.shape == divisor.shape == (n_features,)
            and {means.dtype, centre.dtype, divisor.dtype} == {np.dtype(np.float64)}
            and bool(np.isfinite(means).all() and np.isfinite(centre).all() and (divisor > 0).all())
            and (state["is_sparse"].shape, state["unit_rows"].shape) == ((3,), ())
        )
        if not is_valid:
            raise InputError("the preparation of columns is damaged: its arrays do not fit together")
        numbers, one_hot, all_features = state["is_sparse"].astype(bool).tolist()
        is_sparse = numbers, one_hot, all_features
        names, categories = tuple(text), tuple(text.values())
        return cls(numeric, names, means, categories, centre, divisor, bool(state["unit_rows"]), is_sparse)


def _parse_columns(content: Array) -> tuple[tuple[str, ...], dict[str, Categories]]:
    """Return the names of numeric columns, and those of text with their categories."""
    columns = read_json(content.tobytes(), "the list of columns", most=MOST_BYTES)
    numeric, text = list[str](), dict[str, Categories]()
    try:
        for column in columns:
            name, categories = column["name"], column.get("categories")
            if categories is None:
                numeric.append(name)
            else:
                text[name] = tuple(categories)
        names = [*numeric, *text]
        values = [value for own in text.values() for value in own if value is not None]
        is_valid = all(isinstance(value, str) for value in [*names, *values])
        is_valid = is_valid and len({*names}) == len(columns) and all(len({*own}) == len(own) for own in text.values())
    except (TypeError, KeyError, AttributeError):
        is_valid = False
    if not is_valid:
        raise InputError("the list of columns is damaged")
    return tuple(numeric), text


def _blocks(numeric: Matrix, one_hot: csr_array[Any]) -> list[Matrix]:
    """Return all columns as one block, or, if that would be sparse, numbers and one-hot columns as two."""
    if not one_hot.shape[1]:
        return [numeric]
    joined = _suitable(csr_array(_join([numeric, one_hot])))
    return [joined] if isinstance(joined, np.ndarray) else [numeric, one_hot]


def _join(blocks: Sequence[Matrix]) -> Matrix:
    if len(blocks) == 1:
        return blocks[0]
    dense = [block for block in blocks if isinstance(block, np.ndarray)]
    if len(dense) == len(blocks):
        return np.hstack(dense)
    return csr_array(hstack([csr_array(block) for block in blocks]))


def _means(train: Matrix) -> Floats:
    """Return the mean of the known numbers of each column, corrected for rounding; 0 if none is known."""
    if not isinstance(train, np.ndarray):
        return np.asarray(train.sum(axis=0), np.float64).ravel() / train.shape[0]
    is_known = np.isfinite(train)
    counts = np.maximum(is_known.sum(axis=0), 1)
    mean: Floats = np.where(is_known, train, 0.0).sum(axis=0) / counts
    mean += np.where(is_known, train - mean, 0.0).sum(axis=0) / counts
    return mean


def _fill(numeric: Matrix, means: Floats) -> Matrix:
    if not isinstance(numeric, np.ndarray) or not np.isnan(numeric).any():
        return numeric
    return np.where(np.isnan(numeric), means, numeric)


def _find_categories(data: ClientData, is_train: NDArray[np.bool_]) -> tuple[Categories, ...]:
    """Return the different values of each column of text, sorted, None last."""
    if data.categorical is None:
        return ()
    found = [{_text(value, data.name) for value in column} for column in data.categorical[is_train].T]
    known = [sorted(value for value in values if value is not None) for values in found]
    return tuple((*own, None) if None in values else tuple(own) for own, values in zip(known, found, strict=True))


def _text(value: Any, client: str) -> str | None:
    if value is None or value != value:
        return None
    if not isinstance(value, str):
        raise InputError(f"{client}: categorical columns hold text, and None if it is missing; received {value!r}")
    return value


def _one_hot(data: ClientData, categories: tuple[Categories, ...]) -> csr_array[Any]:
    """Return a column for each category of each column of text.

    Not by scikit-learn's OneHotEncoder: what it has learnt can only be kept as a pickle.
    """
    n_samples, edges = len(data), np.cumsum([0, *map(len, categories)])
    codes = np.full((n_samples, len(categories)), -1)
    for number, own in enumerate(categories):
        numbers = {category: edges[number] + code for code, category in enumerate(own)}
        values = () if data.categorical is None else data.categorical[:, number]
        codes[:, number] = [numbers.get(_text(value, data.name), -1) for value in values]
    is_known = codes >= 0
    starts = np.concatenate([[0], np.cumsum(is_known.sum(axis=1))])
    columns = codes[is_known]
    return csr_array((np.ones(len(columns)), columns, starts), shape=(n_samples, int(edges[-1])))


def _suitable(features: Matrix) -> Matrix:
    if isinstance(features, np.ndarray):
        return _stored(features, False)
    n_samples, n_features = features.shape
    is_dense = n_features <= DENSE_FEATURES or features.nnz > DENSE_FRACTION * n_samples * n_features
    return _stored(features, not is_dense)


def _stored(features: Matrix, sparse: bool) -> Matrix:
    if sparse:
        return csr_array(features)
    return np.ascontiguousarray(features if isinstance(features, np.ndarray) else features.toarray(), np.float64)


def _centre_and_divisor(train: Matrix, standardise: bool) -> tuple[Floats, Floats]:
    """Return what to subtract from each column, nothing if they are sparse, and what to divide it by."""
    if not standardise:
        return np.zeros(train.shape[1]), np.ones(train.shape[1])
    if not isinstance(train, np.ndarray):
        return np.zeros(train.shape[1]), _divisors(*_sparse_deviation(train))
    mean = _mean(train)
    deviation = np.sqrt(np.square(train - mean).mean(axis=0))
    return mean, _divisors(deviation, np.abs(train).max(axis=0))


def _standardise(features: Matrix, centre: Floats, divisor: Floats) -> Matrix:
    if isinstance(features, np.ndarray):
        centred: Matrix = (features - centre) / divisor
        return centred
    result = csr_array(features.multiply(1 / divisor))
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
