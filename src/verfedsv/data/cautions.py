"""Warnings about a client's columns before training: missing values, and columns that give labels away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array

N_COMPARED = 5000
"""Columns are compared with labels on about this many samples."""

FEW = 0.01
"""A column gives labels away if it makes at most this fraction of the mistakes of always guessing the largest class."""

_SHOWN = 5


def caution(
    client: str,
    numeric: Mapping[str, Array],
    text: Mapping[str, Array],
    empty: list[str],
    labels: NDArray[np.intp],
) -> list[str]:
    """Return warnings about the columns of a client, (samples,) each; `empty` names columns without a type."""
    n_missing = {name: int(np.isnan(column).sum()) for name, column in numeric.items()}
    n_samples = len(labels)
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
    rows = slice(None, None, max(1, n_samples // N_COMPARED))
    for name, column in [*numeric.items(), *text.items()]:
        if name not in without and (how := _gives_away(column[rows], labels[rows])):
            lines.append(
                f"{client}: column {name!r} gives the label away: {how}. If it is not known before the label is, "
                "leave it out (columns)"
            )
    return lines


def _gives_away(column: Array, labels: NDArray[np.intp]) -> str:
    """Return how well a column predicts the labels if it is nearly always right, else an empty string."""
    n_samples = len(labels)
    counts = np.bincount(labels)
    n_classes, n_others = int((counts > 0).sum()), n_samples - int(counts.max())
    if column.dtype == object:
        values, codes = np.unique(["" if value is None else value for value in column], return_inverse=True)
        right = np.zeros((len(values), len(counts)), np.intp)
        np.add.at(right, (codes, labels), 1)
        n_right = int(right.max(axis=1).sum())
        is_told = n_others >= 5 and len(values) <= 0.1 * n_samples and n_samples - n_right <= FEW * n_others
        return f"its {len(values):,} categories predict {n_right:,} of {n_samples:,} labels" if is_told else ""
    # A number predicts the labels if these change rarely when sorted by it; each exception adds two changes.
    most = 2 * (n_classes - 1) + 2 * FEW * n_others
    n_changes = int(np.count_nonzero(np.diff(labels[column.argsort(kind="stable")])))
    if n_others < 5 or most > n_others / 2 or n_changes > most:
        return ""
    return f"sorted by it, {n_samples:,} labels change only {'once' if n_changes == 1 else f'{n_changes:,} times'}"


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - _SHOWN:,} more columns" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
