"""Ids of samples: which are common to the files of all clients, and in which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.data.reading import is_text
from verfedsv.errors import DataError
from verfedsv.texts import count

WHOLE = "^(0|-?[1-9][0-9]*)$"
"""A whole number without plus sign or leading zeros."""

MISSING = ("NA", "N/A", "#N/A", "n/a", "NULL", "null", "NaN", "nan")
"""How programs write a missing number."""


@dataclass(frozen=True, eq=False)
class Ids:
    """The ids in a file as text, and whether the file stores them as numbers, whose original spelling is unknown.

    `n_stripped` of them had blanks around them.
    """

    path: Path
    values: pa.Array
    are_stored_as_numbers: bool
    n_stripped: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def is_whole(self) -> pa.Array:
        """Which of the ids are whole numbers, written as a program would write them."""
        return pc.match_substring_regex(self.values, WHOLE)

    @cached_property
    def are_whole(self) -> bool:
        return bool(pc.all(self.is_whole).as_py())

    def rows(self, wanted: pa.Array) -> pa.Array:
        """Return the rows of these ids."""
        return pc.index_in(wanted, value_set=self.values)


def read_ids(table: pa.Table, path: Path, id_column: str) -> Ids:
    """Return the ids in a column, stripped; raise DataError if some are missing, repeated or damaged."""
    column = table.column(id_column)
    kind = column.type
    if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
        raise DataError(f"{path}: ids must be whole numbers or text; column {id_column!r} is of type {kind}")
    written = column.cast(pa.large_string()).combine_chunks()
    values = pc.utf8_trim_whitespace(written)
    n_missing = values.null_count or _n_written_as_missing(values)
    if n_missing:
        raise DataError(f"{path}: {count(n_missing, 'row')} without an id in column {id_column!r}")
    if pc.any(pc.match_substring(values, "\0")).as_py():
        raise DataError(f"{path}: some ids in column {id_column!r} have NUL characters in them; correct the file")
    counts = pc.value_counts(values)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(f"{path}: ids must be unique; {count(len(repeated), 'id')} repeated, for example {repeated[0]}")
    n_stripped = pc.sum(pc.not_equal(written, values)).as_py()
    return Ids(path, values, bool(pa.types.is_integer(kind)), n_stripped or 0)


def find_common(files: Sequence[Ids]) -> pa.Array:
    """Return the ids common to all files, in the order of the first; raise DataError if they cannot be matched."""
    common = _in_all([ids.values for ids in files])
    _check_kinds(files, len(common))
    if len(common) == 0:
        raise DataError(f"no sample is in all files. {_say_first(files)}. Are they ids of the same samples?")
    return common


def find_all(files: Sequence[Ids]) -> pa.Array:
    """Return the ids that are in any of the files, in the order of the first, then of the second, and so on.

    Raises DataError if they cannot be matched, or if one of several files has no id in common with the others.
    """
    _check_kinds(files, len(_in_all([ids.values for ids in files])))
    for ids in files:
        others = [other.values for other in files if other is not ids]
        if others and not pc.any(pc.is_in(ids.values, value_set=pa.concat_arrays(others))).as_py():
            raise DataError(
                f"no id of {ids.path} is in another file. {_say_first(files)}. Are they ids of the same samples?"
            )
    return pc.unique(pa.concat_arrays([ids.values for ids in files]))


def _check_kinds(files: Sequence[Ids], n_common: int) -> None:
    if _are_of_two_kinds(files, n_common):
        said = "; ".join(map(_say_kind, files))
        raise DataError(f"ids must be written in the same way in all files: {said}")


def _say_first(files: Sequence[Ids]) -> str:
    shown = "; ".join(f"{ids.path}: {', '.join(map(str, ids.values[:3]))}, ..." for ids in files)
    return f"The first ids are: {shown}"


def _n_written_as_missing(values: pa.Array) -> int:
    """Return how many ids spell a missing number; 0 if others are text, as NA may then be an id."""
    is_missing = pc.is_in(values, value_set=pa.array(MISSING, pa.large_string()))
    are_others_whole = pc.all(pc.or_(is_missing, pc.match_substring_regex(values, WHOLE))).as_py()
    return int(pc.sum(is_missing).as_py()) if are_others_whole else 0


def _in_all(files: Sequence[pa.Array]) -> pa.Array:
    common, *others = files
    for other in others:
        common = common.filter(pc.is_in(common, value_set=other))
    return common


def _are_of_two_kinds(files: Sequence[Ids], n_common: int) -> bool:
    """Return whether some files have whole numbers, and others text that cannot be matched with them.

    Ids are compared as written, and those that a file stores as numbers may have been 0012 or 12. If a file lost
    leading zeros, more ids match without them.
    """
    if len({ids.are_whole for ids in files}) == 1:
        return False
    if n_common == 0 or any(ids.are_stored_as_numbers for ids in files):
        return True
    without_zeros = _in_all([pc.utf8_ltrim(ids.values, characters="+0") for ids in files])
    return len(without_zeros.unique()) > n_common


def _say_kind(ids: Ids) -> str:
    if ids.are_whole:
        return f"{ids.path} has numbers ({ids.values[0]})"
    return f"{ids.path} has text ({ids.values.filter(pc.invert(ids.is_whole))[0]})"
