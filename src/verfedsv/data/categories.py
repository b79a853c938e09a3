"""Columns of text in users' files: whether their values are categories, or nearly all different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.errors import DataError

MANY, FRACTION_OF_ROWS = 50, 0.5
"""Text with more distinct values than both this number and this fraction of the training rows is refused: one-hot
encoded, it would be a feature for every row or two, and the model would memorise rows."""

NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
NUMBER_AND_MORE = r"^[^0-9A-Za-z]*[0-9]{1,3}([,.' ]?[0-9]{3})*([.,][0-9]+)?[^0-9]{0,4}$"
"""A plain number; and one with a currency, a unit or thousands separators."""


def count_categories(values: pa.ChunkedArray, name: str, path: Path) -> int:
    """Return the number of distinct values in the training rows; raise DataError if nearly all differ."""
    found = pc.unique(values.drop_null())
    if len(found) > max(MANY, FRACTION_OF_ROWS * len(values)):
        shown = ", ".join(map(repr, found[:3].to_pylist()))
        raise DataError(
            f"{path}: column {name!r} is text with {len(found):,} different values in {len(values):,} training rows, "
            f"such as {shown}. Each would become a feature, and the model would memorise rows. "
            f"{_look_for_numbers(found)}Clean the column, or leave it out by naming those to take (columns)"
        )
    return len(found)


def approaches_limit(values: pa.ChunkedArray) -> int:
    """Return the number of distinct values if it is more than half of what is refused, else 0."""
    found = len(pc.unique(values.drop_null()))
    return found if 2 * found > max(MANY, FRACTION_OF_ROWS * len(values)) else 0


def _look_for_numbers(found: pa.Array) -> str:
    """Return a sentence if most of these values are numbers or look like numbers, else nothing."""
    if others := _others_if_few(found, NUMBER):
        return f"Most of its values are numbers; the first that is not is {others[0]!r}. "
    if _others_if_few(found, NUMBER_AND_MORE) is not None:
        return "Most of its values look like numbers with a unit or separators; write them plainly, such as 1234.5. "
    return ""


def _others_if_few(found: pa.Array, pattern: str) -> list[Any] | None:
    """Return the values that do not match if most do, else None."""
    others: list[Any] = found.filter(pc.invert(pc.match_substring_regex(found, pattern))).to_pylist()
    return others if len(others) < len(found) / 2 else None
