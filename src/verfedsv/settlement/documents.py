"""JSON files that say what they are: a format and its version come first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedsv.errors import InputError
from verfedsv.files import read_whole
from verfedsv.untrusted import read_json


def parse(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the fields of a JSON text, format and version among them; raise InputError, calling it `name`, if not."""
    what = f"this is not the JSON of {_with_article(name)}, or it is damaged"
    try:
        fields = read_json(text, "it")
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if not isinstance(fields, dict) or not {"format", "version"} <= fields.keys():
        raise InputError(what)
    return fields


def check_format(fields: Mapping[str, Any], name: str, version: int) -> dict[str, Any]:
    """Return the fields without format and version; raise InputError if these are others."""
    rest = dict(fields)
    received = rest.pop("format", None), rest.pop("version", None)
    if is_same(received, (name, version)):
        return rest
    if received[0] == name:
        raise InputError(
            f"this is {_with_article(name)} of format version {str(received[1])[:20]}; this verfedsv reads version "
            f"{version}. Use the version of verfedsv that wrote it"
        )
    what = f"{_with_article(received[0])}, not" if received[0] in _OURS else "not"
    raise InputError(f"this is {what} {_with_article(name)} that verfedsv wrote")


_OURS = ["verfedsv statement", "verfedsv settlement", "verfedsv extract", "verfedsv valuation", "verfedsv transcript"]


def _with_article(name: str) -> str:
    """Return what a format is called in a sentence.

    >>> _with_article("verfedsv extract")
    'an extract'
    """
    bare = name.removeprefix("verfedsv ")
    return f"{'an' if bare[0] in 'aeiou' else 'a'} {bare}"


def format_of(path: Path) -> str:
    """Return what a JSON file says it is; "" if it says nothing."""
    try:
        return str(json.loads(read_whole(path))["format"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def is_same(one: Any, other: Any) -> bool:
    """Return whether JSON would write both alike: 1, 1.0 and true are three different things there."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def is_close(one: Any, other: float | None) -> bool:
    """Return whether a number is another but for rounding, as sums may be rounded otherwise on another machine."""
    if other is None:
        return one is None
    return isinstance(one, float) and math.isclose(one, other, rel_tol=1e-9)


def is_alike(one: Any, other: Mapping[str, float]) -> bool:
    """Return whether an object has the same names as another, and the same numbers but for rounding."""
    return (
        isinstance(one, dict)
        and one.keys() == other.keys()
        and all(is_close(one[name], number) for name, number in other.items())
    )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise InputError if it cannot be read."""
    try:
        return read_whole(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
