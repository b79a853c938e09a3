"""Names of clients: which are refused, and which are easily taken for each other."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(code) for code in range(0xFE00, 0xFE10)}
"""Characters that count as letters, marks or symbols and are not seen."""

_LATIN = dict(
    zip(
        "авеѕіјкмһорстухԁԛԝзбαγεικνορτυχωѵ",
        "abesijkmhopctyxdqw36ayeikvoptuxwv",
        strict=True,
    )
)
"""Cyrillic and Greek letters, in lower case, with the Latin ones and the digits that they look like."""


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless these can be names of clients: at least one, all different, each readable as it is."""
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("there must be at least one client, and each needs a name")
    for name in names:
        # Not printable are, among others, control characters, line ends and characters of format (category Cf).
        if name != name.strip() or not name.isprintable() or not _BLANK.isdisjoint(name):
            raise ValueError(
                "names of clients must be printable, without invisible characters and without spaces around them; "
                f"received {name[:60]!a}"
            )
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the names of the clients must differ; repeated: {', '.join(repeated)}")


def find_lookalikes(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of names that a reader could take for each other.

    >>> find_lookalikes(["Bank", "bank", "telco", "telсo"])  # the last with a Cyrillic letter
    [('Bank', 'bank'), ('telco', 'telсo')]
    """
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        other = first.setdefault(_skeleton(name), name)
        if other is not name:
            pairs.append((other, name))
    return pairs


def _skeleton(name: str) -> str:
    """Return what is left of a name when width, case, accents, spaces and the script of a letter do not count."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    letters = (_LATIN.get(letter, letter) for letter in plain if not unicodedata.combining(letter))
    return "".join(letter for letter in letters if not letter.isspace()).translate(_ALIKE)


_ALIKE = str.maketrans("01|", "oll")
