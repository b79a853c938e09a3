"""Labels in users' files: classes or amounts, and likely mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.arrays import LARGEST_LABEL, Array
from verfedsv.data.categories import NUMBER
from verfedsv.data.ids import MISSING
from verfedsv.data.reading import is_number, is_text, order_of, remedy
from verfedsv.data.targets import AskedLoss, LabelArray, choose_loss
from verfedsv.errors import DataError, InputError
from verfedsv.texts import digits, doubtful_classes, with_count

MOST_NUMBERS = 20
"""More distinct numbers than this are taken for amounts, unless the user gives the number of classes."""

MOST_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class WrittenLabels:
    """Labels as a file has them: those of the rows that have one, `is_known`, as numbers, booleans or text.

    `what` is where they are in the file, for messages. `order` is that of the classes, empty if they are to be sorted.
    """

    path: Path
    what: str
    known: Array
    is_known: NDArray[np.bool_]
    order: Sequence[str] = ()

    @property
    def are_text(self) -> bool:
        return self.known.dtype.kind in "UO"

    def padded(self, values: Array) -> LabelArray:
        """Return values of the known labels as values of all rows, 0 where there is no label."""
        result = np.zeros(len(self.is_known), values.dtype)
        result[self.is_known] = values
        return result


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """Labels as 0 to C - 1, or amounts, (rows,), and which of them are known.

    `classes` are the C classes as written, None for amounts; `n_classes` is then 1.
    """

    values: LabelArray
    is_known: NDArray[np.bool_]
    n_classes: int
    classes: tuple[str, ...] | None
    note: str
    cautions: list[str]


def read_labels(table: pa.Table, name: str, path: Path) -> WrittenLabels:
    """Return the labels in a column, text stripped; raise DataError if they are of an unsupported type."""
    column = table.column(name)
    kind = column.type
    if not (is_number(kind) or is_text(kind) or pa.types.is_null(kind)):
        several = "Only one label per sample is supported. " if pa.types.is_nested(kind) else ""
        raise DataError(
            f"{path}: labels must be numbers, booleans or text; column {name!r} is of type {kind}. "
            f"{several}{remedy(kind)}"
        )
    is_known = pc.invert(column.is_null(nan_is_null=True))
    known = (pc.utf8_trim_whitespace(column) if is_text(kind) else column).filter(is_known).to_numpy()
    known = known.astype(str) if is_text(kind) else known
    return WrittenLabels(path, f"column {name!r}", known, np.asarray(is_known.to_numpy(), bool), order_of(table, name))


def interpret(written: WrittenLabels, loss: AskedLoss, n_classes: int | None) -> LabelColumn:
    """Return labels as amounts if the loss is squared, else as classes; raise DataError if they cannot be."""
    labels = _as_amounts(written) if loss == "squared" else _as_classes(written, n_classes)
    try:
        choose_loss(loss, labels.n_classes)
    except InputError as error:
        raise DataError(f"{written.path}: {error}") from None
    return labels


def _as_classes(written: WrittenLabels, n_classes: int | None) -> LabelColumn:
    """Return labels as numbers of classes, which are sorted unless they have an order of their own.

    Raise DataError if the number of classes is not `n_classes`, or if that is None and they look like amounts.
    """
    values, numbers = np.unique(written.known, return_inverse=True)
    if order := {text: position for position, text in enumerate(written.order)}:
        sorting = np.argsort([order.get(value, len(order)) for value in values], kind="stable")
        values, numbers = values[sorting], np.argsort(sorting)[numbers]
    classes, counts = tuple(map(str, values)), np.bincount(numbers, minlength=len(values))
    path, what = written.path, written.what
    if n_classes is None and not written.are_text and len(values) > MOST_NUMBERS:
        shown = ", ".join(classes[:: max(1, len(values) // 4)][:4])
        raise DataError(
            f"{path}: labels must be classes, and {what} has {len(values):,} different numbers, such as {shown}. If "
            f"each of them is a class, set classes = {len(values)} in [data]. If they are amounts, set "
            'loss = "squared" in [training]'
        )
    if n_classes is not None and n_classes != len(values):
        rarest = _listed(classes, counts, counts.argsort(kind="stable"))
        raise DataError(
            f"{path}: {what} should have {n_classes:,} classes and has {len(values):,}; the rarest are {rarest}. "
            "Correct the file, or classes in [data]"
        )
    if not 2 <= len(values) <= MOST_CLASSES:
        raise DataError(f"{path}: labels need 2 to {MOST_CLASSES:,} different values; there are {len(values):,}")
    cautions = [*doubtful_classes(classes, counts.tolist(), "correct the file")]
    if missing := [name for name in classes if name in MISSING]:
        cautions.append(f"labels: {missing[0]!r} is a class here; leave the cell empty if there is no label")
    note = f"labels of all samples: {_listed(classes, counts, range(len(classes)))}"
    return LabelColumn(written.padded(numbers.astype(np.intp)), written.is_known, len(classes), classes, note, cautions)


def _listed(classes: Sequence[str], counts: NDArray[np.intp], order: Sequence[int] | NDArray[np.intp]) -> str:
    """Return the first five classes in an order, with their sample counts."""
    shown = ", ".join(with_count(classes[m], counts[m]) for m in order[:5])
    return f"{shown}, ..." if len(order) > 5 else shown


def _as_amounts(written: WrittenLabels) -> LabelColumn:
    """Return labels as numbers; raise DataError if they are text, booleans, not finite, or all the same."""
    path, what = written.path, written.what
    if written.are_text and len(written.known):
        texts = pa.array(written.known, pa.large_string())
        others = texts.filter(pc.invert(pc.match_substring_regex(texts, NUMBER)))
        first = f"; the first that is not a number is {others[0].as_py()!r}" if len(others) else ""
        raise DataError(
            f"{path}: labels must be numbers under loss 'squared', and {what} is text{first}. Leave cells without a "
            "label empty; for labels that are classes, leave out loss"
        )
    if written.known.dtype.kind == "b":
        raise DataError(
            f"{path}: labels must be numbers under loss 'squared', and {what} is true or false; leave out loss, as "
            "these are classes"
        )
    amounts = written.known.astype(np.float64)
    if not (np.abs(amounts) < LARGEST_LABEL).all():
        odd = amounts[~(np.abs(amounts) < LARGEST_LABEL)][0]
        raise DataError(f"{path}: labels must be finite and below {LARGEST_LABEL:g} in size; {what} has {odd:g}")
    distinct = np.unique(amounts)
    if len(distinct) < 2:
        raise DataError(f"{path}: labels need 2 or more different values; there are {len(distinct)}")
    cautions = []
    if len(distinct) == 2:
        cautions.append(
            f"labels: only two different numbers, {distinct[0]:g} and {distinct[1]:g}. If they are classes, leave out "
            "loss"
        )
    spread = f"with mean {digits(amounts.mean(), 4)} and standard deviation {digits(amounts.std(), 4)}"
    note = f"labels of all samples: {len(amounts):,} amounts from {distinct[0]:g} to {distinct[-1]:g}, {spread}"
    return LabelColumn(written.padded(amounts), written.is_known, 1, None, note, cautions)
