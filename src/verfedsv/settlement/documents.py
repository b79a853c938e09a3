"""JSON files that say what they are: a format and its version come first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verfedsv.errors import InputError


def read_document(text: str | bytes, name: str, version: int) -> dict[str, Any]:
    """Return the fields of a JSON text of that format, without format and version; raise InputError if it is none."""
    try:
        fields = json.loads(text, parse_constant=_refuse)
        received = fields.pop("format"), fields.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"this is not the JSON of a {name.removeprefix('verfedsv ')}, or it is damaged") from None
    if received != (name, version):
        raise InputError(
            f"this verfedsv reads {name!r} of version {version}; received {received[0]!r}, {received[1]!r}"
        )
    result: dict[str, Any] = fields
    return result


def format_of(path: Path) -> str:
    """Return what a JSON file says it is; "" if it says nothing."""
    try:
        return str(json.loads(path.read_bytes())["format"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise InputError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
