"""Labels in users' files: their classes, and likely mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.data.ids import MISSING
from verfedsv.data.reading import is_number, is_text, order_of, remedy
from verfedsv.errors import DataError
from verfedsv.texts import doubtful_classes, with_count

MOST_NUMBERS = 20
"""More distinct numbers than this are taken for amounts, unless the user gives the number of classes."""

MOST_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """Labels as 0 to C - 1, which of them are known, and the C classes as written, with their sample counts."""

    numbers: NDArray[np.intp]
    is_known: NDArray[np.bool_]
    classes: tuple[str, ...]
    counts: NDArray[np.intp]

    def __str__(self) -> str:
        shown = ", ".join(self._shown(m) for m in range(min(5, len(self.classes))))
        return f"labels: {shown}{', ...' if len(self.classes) > 5 else ''}"

    @property
    def rarest(self) -> str:
        """The classes with the fewest samples, as text."""
        order = self.counts.argsort(kind="stable")
        return ", ".join(self._shown(m) for m in order[:5]) + (", ..." if len(order) > 5 else "")

    @property
    def cautions(self) -> list[str]:
        """Likely mistakes, in sentences."""
        missing = [name for name in self.classes if name in MISSING]
        lines = [*doubtful_classes(self.classes, self.counts.tolist(), "correct the file")]
        if missing:
            lines.append(f"labels: {missing[0]!r} is a class here; leave the cell empty if there is no label")
        return lines

    def _shown(self, m: int) -> str:
        return with_count(self.classes[m], self.counts[m])


def read_labels(table: pa.Table, name: str, path: Path, n_classes: int | None) -> LabelColumn:
    """Return the labels in a column, stripped; classes are sorted, unless the file orders its categories.

    Raise DataError if the number of classes is not `n_classes`, or if that is None and they look like amounts.
    """
    column = table.column(name)
    kind = column.type
    if not (is_number(kind) or is_text(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{path}: labels must be numbers, booleans or text; column {name!r} is of type {kind}. {remedy(kind)}"
        )
    is_known = pc.invert(column.is_null(nan_is_null=True))
    known = (pc.utf8_trim_whitespace(column) if is_text(kind) else column).filter(is_known).to_numpy()
    values, numbers = np.unique(known.astype(str) if is_text(kind) else known, return_inverse=True)
    if order := {text: position for position, text in enumerate(order_of(table, name))}:
        sorting = np.argsort([order.get(value, len(order)) for value in values], kind="stable")
        values, numbers = values[sorting], np.argsort(sorting)[numbers]
    is_labelled = np.asarray(is_known.to_numpy(), bool)
    padded = np.zeros(len(column), np.intp)
    padded[is_labelled] = numbers
    labels = LabelColumn(padded, is_labelled, tuple(map(str, values)), np.bincount(numbers, minlength=len(values)))
    if n_classes is None and not is_text(kind) and len(values) > MOST_NUMBERS:
        shown = ", ".join(labels.classes[:: max(1, len(values) // 4)][:4])
        raise DataError(
            f"{path}: labels must be classes, and column {name!r} has {len(values):,} different numbers, such as "
            f"{shown}. If each of them is a class, set classes = {len(values)} in [data]. If they are amounts, "
            'group them into classes, or train elsewhere and record it with verfedsv.Recorder(loss="squared"): '
            "verfedsv run does not support regression yet"
        )
    if n_classes is not None and n_classes != len(values):
        raise DataError(
            f"{path}: column {name!r} should have {n_classes:,} classes and has {len(values):,}; the rarest "
            f"are {labels.rarest}. Correct the file, or classes in [data]"
        )
    if not 2 <= len(values) <= MOST_CLASSES:
        raise DataError(f"{path}: labels need 2 to {MOST_CLASSES:,} different values; there are {len(values):,}")
    return labels
