"""JSON from others: accepted only if it is of limited size, and every reader understands it in the same way."""

from __future__ import annotations

import codecs
import json
import math
from typing import Any

from verfedsv.errors import InputError

MOST_JSON_BYTES = 1 << 22
"""Default size limit of a text. Parsing may take 50 times as much memory. A statement of 10,000 clients has 3 MB."""

_LEAST_PER_VALUE = 8
"""Bytes per value that a longer text must have, so that parsing takes at most 12 times its size. Valuations have 11."""

_DEEPEST = 64
"""Limit of nested lists and objects. What this package writes has at most 8 levels."""

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def read_json(text: bytes | str, what: str, *, most: int = MOST_JSON_BYTES) -> Any:
    r"""Return the content of a JSON text; raise InputError, which begins with `what`, if it is not acceptable.

    Beside invalid JSON, it refuses what readers could understand differently or fail on: repeated names in an object,
    NaN and Infinity, numbers that overflow, integers of more than 64 bits, texts with NUL or half of a surrogate pair,
    more than 64 levels, and more than `most` bytes.

    >>> read_json(b'{"rounds": 3}', "the file")
    {'rounds': 3}
    >>> read_json(b'{"rounds": 3, "rounds": 4}', "the file")
    Traceback (most recent call last):
    verfedsv.errors.InputError: the file is not valid JSON: 'rounds' is repeated
    """
    check_size(text, what, most)
    if text[:1] == "\ufeff" or text[:3] == codecs.BOM_UTF8:
        raise InputError(f"{what} is not valid JSON: it begins with a byte order mark")
    try:
        decoded = text if isinstance(text, str) else text.decode()
        value = json.loads(decoded, object_pairs_hook=_as_object, parse_constant=_refuse_constant)
        _check_values(value, may_have_odd_texts="\\u" in decoded or isinstance(text, str))
    except RecursionError:
        raise InputError(f"{what} cannot be read: it has more than {_DEEPEST} levels") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} is not valid JSON: it is not UTF-8") from None
    except ValueError as error:
        raise InputError(f"{what} is not valid JSON: {error}") from None
    return value


def check_size(text: bytes | str, what: str, most: int) -> None:
    """Raise InputError at a text that is too long, or that is long and too dense."""
    size = len(text)
    if size > most:
        raise InputError(f"{what} is too large: it has {size:,} bytes, and at most {most:,} are read")
    if size > MOST_JSON_BYTES:
        content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        n_values = sum(map(content.count, (b"[", b"{", b",")))
        if n_values * _LEAST_PER_VALUE > size:
            raise InputError(f"{what} is too large: it has {n_values:,} values in {size:,} bytes")


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{repeated[:60]!a} is repeated")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_values(value: Any, *, may_have_odd_texts: bool) -> None:
    """Raise ValueError at a number or text that is not allowed, RecursionError at too many levels."""
    level = [[value]]
    for _ in range(_DEEPEST + 1):
        below: list[list[Any]] = []
        for children in level:
            # Long lists mostly have one type: then this is a few passes in C.
            kinds = set(map(type, children))
            if float in kinds and any(map(math.isinf, _of(float, children, kinds))):
                raise ValueError("a number is too large")
            integers = _of(int, children, kinds) if int in kinds else [0]
            if min(integers) < _SMALLEST or max(integers) > _LARGEST:
                raise ValueError("an integer has more than 64 bits")
            if may_have_odd_texts and str in kinds:
                _check_texts(_of(str, children, kinds))
            if list in kinds:
                below += _of(list, children, kinds)
            if dict in kinds:
                below += [[*child, *child.values()] for child in _of(dict, children, kinds)]
        if not below:
            return
        level = below
    raise RecursionError


def _of(kind: type, children: list[Any], kinds: set[type]) -> list[Any]:
    return children if len(kinds) == 1 else [child for child in children if type(child) is kind]


def _check_texts(texts: list[str]) -> None:
    for text in texts:
        if "\0" in text:
            raise ValueError("a text has a NUL character in it")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair in it") from None
