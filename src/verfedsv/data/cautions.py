"""Warnings before training: columns without values, of nearly all numbers, or that give labels away; new classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array

from verfedsv.arrays import Array
from verfedsv.data.categories import NUMBER
from verfedsv.data.targets import LabelArray
from verfedsv.errors import DataError
from verfedsv.texts import with_count

N_COMPARED = 5000
"""Columns are compared with labels on about this many samples."""

FEW = 0.01
"""A column gives labels away if it makes at most this fraction of the mistakes of always guessing the largest class, or
leaves at most this fraction of the variance of the labels' ranks."""

NEARLY_ALL = 0.9
"""Text is suspected to be numbers if at least this fraction of its cells are, but not all."""

_SHOWN = 5


def caution(
    client: str,
    numeric: Mapping[str, Array],
    text: Mapping[str, Array],
    empty: list[str],
    labels: LabelArray | None,
) -> list[str]:
    """Return warnings about the columns of a client, (samples,) each; `empty` names columns without a type.

    Without `labels`, columns are not compared with them.
    """
    n_missing = {name: int(np.isnan(column).sum()) for name, column in numeric.items()}
    n_samples = max([0, *map(len, (*numeric.values(), *text.values()))])
    without = [*empty, *(name for name, n in n_missing.items() if n == n_samples)]
    without += [name for name, column in text.items() if all(value is None for value in column)]
    filled = {name: n for name, n in n_missing.items() if 0 < n < n_samples}
    lines = []
    if without:
        lines.append(
            f"{client}: no values in {_listed([repr(name) for name in without])}, so nothing is learnt from them"
        )
    if filled:
        cells = _listed([f"{n:,} of {n_samples:,} in {name!r}" for name, n in filled.items()])
        lines.append(f"{client}: missing numbers become the mean of their column: {cells}")
    for name, column in text.items():
        n_filled, n_numbers = _count_numbers(column)
        if NEARLY_ALL * n_filled <= n_numbers < n_filled:
            # Other parties may read these lines, so that they show no cell.
            lines.append(
                f"{client}: column {name!r} is text, as {n_filled - n_numbers:,} of its {n_filled:,} filled cells "
                f"{'is' if n_filled - n_numbers == 1 else 'are'} not a plain number, so each of its values is a "
                "category. If these cells stand for missing numbers, leave them blank: then the column is numeric"
            )
    if labels is None:
        return lines
    rows = slice(None, None, max(1, n_samples // N_COMPARED))
    compared = labels[rows]
    gives_away = _gives_classes_away if compared.dtype.kind == "i" else _gives_amounts_away
    for name, column in [*numeric.items(), *text.items()]:
        if name not in without and (how := gives_away(column[rows], compared)):
            lines.append(
                f"{client}: column {name!r} gives the label away: {how}. If it is not known before the label is, "
                "leave it out (columns)"
            )
    return lines


def caution_zeros(client: str, features: csr_array[Any], is_train: NDArray[np.bool_]) -> list[str]:
    """Return a warning if all sparse features of a client are zero in the training samples."""
    if features.data[np.repeat(is_train, np.diff(features.indptr))].any():
        return []
    return [f"{client}: all its features are 0 in the training samples, so nothing is learnt from them"]


def caution_untrained(labels: LabelArray, classes: Sequence[str] | None, is_test: NDArray[np.bool_]) -> list[str]:
    """Return a warning if there are classes that no training sample has."""
    found = _untrained(labels, classes, is_test)
    return [f"labels: no training sample has {found}, so that cannot be learnt"] if found else []


def refuse_untrained(labels: LabelArray, classes: Sequence[str] | None, is_test: NDArray[np.bool_], path: Path) -> None:
    """Raise DataError if a test file has labels that no training sample has."""
    if found := _untrained(labels, classes, is_test):
        raise DataError(
            f"{path} has labels that no training sample has: {found}. Correct or remove them; if they are classes that "
            f"cannot be learnt from these data, set classes = {len(classes or ())} in [data]"
        )


def _untrained(labels: LabelArray, classes: Sequence[str] | None, is_test: NDArray[np.bool_]) -> str:
    """Return the classes that only test samples have, with their counts."""
    if classes is None:
        return ""
    train, test = (np.bincount(labels[mask], minlength=len(classes)) for mask in (~is_test, is_test))
    new = np.flatnonzero((train == 0) & (test > 0))
    shown = ", ".join(with_count(classes[m], int(test[m])) for m in new[:_SHOWN])
    return f"{shown}, ..." if len(new) > _SHOWN else shown


def _gives_classes_away(column: Array, labels: Array) -> str:
    """Return how well a column predicts the classes if it is nearly always right, else an empty string."""
    n_samples = len(labels)
    counts = np.bincount(labels)
    n_classes, n_others = int((counts > 0).sum()), n_samples - int(counts.max())
    if column.dtype == object:
        codes, n_categories = _categories(column)
        right = np.zeros((n_categories, len(counts)), np.intp)
        np.add.at(right, (codes, labels), 1)
        n_right = int(right.max(axis=1).sum())
        is_told = n_others >= 5 and n_categories <= 0.1 * n_samples and n_samples - n_right <= FEW * n_others
        return f"its {n_categories:,} categories predict {n_right:,} of {n_samples:,} labels" if is_told else ""
    # A number predicts the labels if these change rarely when sorted by it; each exception adds two changes.
    most = 2 * (n_classes - 1) + 2 * FEW * n_others
    n_changes = int(np.count_nonzero(np.diff(labels[column.argsort(kind="stable")])))
    if n_others < 5 or most > n_others / 2 or n_changes > most:
        return ""
    return f"sorted by it, {n_samples:,} labels change only {'once' if n_changes == 1 else f'{n_changes:,} times'}"


def _gives_amounts_away(column: Array, labels: Array) -> str:
    """Return how well a column orders the amounts if it does so nearly perfectly, else an empty string.

    Ranks are compared, so that a logarithm of the label, say, is found too.
    """
    is_text = column.dtype == object
    is_known = np.ones(len(column), bool) if is_text else ~np.isnan(column)
    n_samples, wanted = int(is_known.sum()), _centred_ranks(labels[is_known])
    if n_samples < 10 or not wanted.any():
        return ""
    if is_text:
        codes, n_categories = _categories(column)
        means = np.bincount(codes, wanted) / np.bincount(codes)
        explained = float(np.square(means[codes]).sum() / np.square(wanted).sum())
        is_told = n_categories <= 0.1 * n_samples and explained >= 1 - FEW
        return f"its {n_categories:,} categories put {n_samples:,} labels almost in order" if is_told else ""
    found = _centred_ranks(column[is_known])
    if not found.any():
        return ""
    correlation = float(found @ wanted / np.sqrt(np.square(found).sum() * np.square(wanted).sum()))
    return f"its rank correlation with the labels is {correlation:.3f}" if correlation**2 >= 1 - FEW else ""


def _centred_ranks(values: Array) -> Array:
    """Return ranks less their mean, equal values with equal ranks; importing scipy.stats for it takes a second."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - counts / 2)[places]
    return np.asarray(ranks - ranks.mean() if len(ranks) else ranks)


def _count_numbers(column: Array) -> tuple[int, int]:
    """Return how many cells of a text column are not missing, and how many of these are plain numbers."""
    cells = pa.array(column, pa.large_string()).drop_null()
    return len(cells), int(pc.sum(pc.match_substring_regex(cells, NUMBER)).as_py() or 0)


def _categories(column: Array) -> tuple[NDArray[np.intp], int]:
    """Return the category of each value of a text column as a number, and how many there are."""
    values, codes = np.unique(["" if value is None else value for value in column], return_inverse=True)
    return codes, len(values)


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - _SHOWN:,} more columns" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
