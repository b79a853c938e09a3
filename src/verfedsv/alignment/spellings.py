"""How a party's ids are written, as counts, and what that says before an alignment: ids are compared as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.alignment.digests import portions
from verfedsv.data.ids import WHOLE, Ids, read_ids
from verfedsv.errors import InputError
from verfedsv.texts import listed, quoted


@dataclass(frozen=True)
class Spelling:
    """How many of a party's ids there are, and how many are written in some way; the coordinator is told no more.

    `stripped` had blanks around them, which were removed; `shortest` and `longest` are numbers of characters.
    """

    n_ids: int
    stripped: int
    whole: int
    zeros: int
    capitals: int
    small: int
    marks: int
    composed: int
    shortest: int
    longest: int


class _Way(NamedTuple):
    """A way of writing ids: in words, and which ids are written so."""

    words: str
    find: Callable[[pa.Array], pa.Array]
    doubt: str = ""
    """What may be wrong if some parties have such ids, and others none; empty if that is usual."""


_WAYS = {
    "whole": _Way("plain whole numbers", lambda ids: pc.match_substring_regex(ids, WHOLE)),
    "zeros": _Way(
        "numbers with leading zeros or a plus sign",
        lambda ids: pc.match_substring_regex(ids, r"^(\+[0-9]+|-?0[0-9]+)$"),
        "0012 and 12 are different ids",
    ),
    "capitals": _Way(
        "capital letters", lambda ids: pc.not_equal(pc.utf8_lower(ids), ids), "A12 and a12 are different ids"
    ),
    "small": _Way("small letters", lambda ids: pc.not_equal(pc.utf8_upper(ids), ids), "A12 and a12 are different ids"),
    "marks": _Way(
        "spaces or punctuation",
        lambda ids: pc.match_substring_regex(ids, r"[^\pL\pM\pN]"),
        "A-12, A 12 and A12 are different ids",
    ),
    "composed": _Way(
        "characters that Unicode writes in several ways",
        lambda ids: pc.not_equal(pc.utf8_normalize(ids, "NFKC"), ids),
        "they are compared as written: normalise all files (NFKC)",
    ),
}


def make_ids(ids: Sequence[str] | pa.Array, whose: str = "ids") -> Ids:
    """Return ids that are not in a file; raise DataError if some are blank or repeated, as for a file.

    `whose` stands for the path of the file in messages.
    """
    values = pa.array(ids, pa.large_string())
    is_blank = pc.equal(pc.utf8_trim_whitespace(values), "")
    values = pc.if_else(is_blank, pa.scalar(None, pa.large_string()), values)
    return read_ids(pa.table({"id": values}), Path(whose), "id")


def describe_spelling(ids: Ids) -> Spelling:
    """Return how ids are written, as counts."""
    counts, lengths = dict.fromkeys(_WAYS, 0), []
    for some in portions(ids.values):
        for name, way in _WAYS.items():
            counts[name] += pc.sum(way.find(some)).as_py()
        lengths.append(pc.min_max(pc.utf8_length(some)).as_py())
    shortest, longest = min(found["min"] for found in lengths), max(found["max"] for found in lengths)
    return Spelling(len(ids), ids.n_stripped, **counts, shortest=shortest, longest=longest)


def compare_spellings(spellings: Mapping[str, Spelling]) -> list[str]:
    """Return sentences on spellings that may keep the ids of parties, by name, from matching.

    Raises InputError if no id of two parties can match: all ids of one are written in a way in which none of the
    other's is, or all are longer.
    """
    why = next(_find_obstacles(spellings), None)
    if why:
        raise InputError(f"no id can be common, as ids are compared as they are written: {why}. Write them in one way")
    return [*_find_doubts(spellings)]


def _find_obstacles(spellings: Mapping[str, Spelling]) -> Iterator[str]:
    for name, way in _WAYS.items():
        with_all = [whose for whose, spelling in spellings.items() if getattr(spelling, name) == spelling.n_ids]
        with_none = [whose for whose, spelling in spellings.items() if getattr(spelling, name) == 0]
        if with_all and with_none:
            yield f"all ids of {quoted(with_all)}, and none of {quoted(with_none)}, are or have {way.words}"
    long = max(spellings, key=lambda name: spellings[name].shortest)
    short = min(spellings, key=lambda name: spellings[name].longest)
    least, most = spellings[long].shortest, spellings[short].longest
    if least > most:
        yield f"ids of {quoted([long])} have at least {least:,} characters, those of {quoted([short])} at most {most:,}"


def _find_doubts(spellings: Mapping[str, Spelling]) -> Iterator[str]:
    for whose, spelling in spellings.items():
        if spelling.stripped:
            yield f"blanks around {spelling.stripped:,} ids of {quoted([whose])} were removed"
    for name, way in _WAYS.items():
        counts = {whose: getattr(spelling, name) for whose, spelling in spellings.items()}
        some, none = [who for who, n in counts.items() if n], [who for who, n in counts.items() if not n]
        if way.doubt and some and none:
            shown = listed([f"{counts[whose]:,} ids of {quoted([whose])}" for whose in some], 5)
            yield f"{shown} are or have {way.words}, none of {quoted(none)}; {way.doubt}"
