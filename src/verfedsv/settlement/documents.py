"""JSON documents with a format and a version, whose fields are all declared and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from verfedsv.errors import InputError
from verfedsv.files import MOST_BYTES, read_whole
from verfedsv.untrusted import check_size, read_json


class Content(BaseModel):
    """The fields of a document. An unknown field is refused: it would be signed, and checked by nobody."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: str
    version: int


class ClientsContent(Content):
    """The fields of a document with one entry for each client in some of them, its `columns`."""

    columns: ClassVar[tuple[str, ...]]
    clients: list[str]

    @model_validator(mode="after")
    def _one_for_each_client(self) -> Self:
        if not self.clients:
            raise ValueError("there are no clients")
        for name in self.columns:
            if len(getattr(self, name)) != len(self.clients):
                raise ValueError(f"there is not one entry of {name} for each client")
        return self


class BooksContent(BaseModel):
    """The books of a valuation, by name."""

    model_config = Content.model_config

    start: float
    end: float
    clients: float
    server: float
    clients_moved: float
    server_moved: float
    unaccounted: float

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        rest = self.start - self.end - self.clients - self.server
        if self.unaccounted and not math.isclose(self.unaccounted, rest, rel_tol=1e-9, abs_tol=1e-9 * abs(self.start)):
            raise ValueError(f"unaccounted is {self.unaccounted}, and what the books leave is {rest}")
        return self


_C = TypeVar("_C", bound=Content)


def validate(model: type[_C], fields: Mapping[str, Any], name: str, version: int) -> _C:
    """Return the content of a document; raise InputError if it has another format, or is damaged, naming the field."""
    _check_format(fields, name, version)
    name = name.removeprefix("verfedsv ")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, why = ".".join(map(str, first["loc"]))[:60], first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise InputError(f"the {name} has a field {field!r}, which no audit could check") from None
        raise InputError(f"the {name} is damaged: {f'{field}: ' if field else ''}{why}") from None


def parse(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the fields of a JSON text, format and version among them; raise InputError, calling it `name`, if not."""
    what = f"this is not the JSON of {with_article(name)}, or it is damaged"
    try:
        fields = read_json(text, "it")
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if not isinstance(fields, dict) or not {"format", "version"} <= fields.keys():
        raise InputError(what)
    return fields


def _check_format(fields: Mapping[str, Any], name: str, version: int) -> None:
    """Raise InputError unless a document is of this format and version."""
    received = fields.get("format"), fields.get("version")
    if is_same(received, (name, version)):
        return
    if received[0] == name:
        raise InputError(
            f"this is {with_article(name)} of format version {str(received[1])[:20]}; this verfedsv reads version "
            f"{version}. Use the version of verfedsv that wrote it"
        )
    what = f"{with_article(received[0])}, not" if received[0] in _OURS else "not"
    raise InputError(f"this is {what} {with_article(name)} that verfedsv wrote")


_OURS = ["verfedsv statement", "verfedsv settlement", "verfedsv extract", "verfedsv valuation", "verfedsv transcript"]


def with_article(name: str) -> str:
    """Return what a format is called in a sentence.

    >>> with_article("verfedsv extract")
    'an extract'
    """
    bare = name.removeprefix("verfedsv ")
    return f"{'an' if bare[0] in 'aeiou' else 'a'} {bare}"


def format_of(path: Path) -> str:
    """Return the format that a JSON file states; "" if it states none."""
    try:
        text = read_whole(path)
        check_size(text, "it", MOST_BYTES)
        return str(json.loads(text)["format"])  # also of a document that `read_json` refuses
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def is_same(one: Any, other: Any) -> bool:
    """Return whether JSON would write both alike: 1, 1.0 and true are three different things there."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def find_difference(
    said: Mapping[str, Any],
    right: Mapping[str, Any],
    clients: Sequence[str] = (),
    *,
    rounding: float = 0.0,
    least: float = 0.0,
) -> tuple[str, Any, Any] | None:
    """Return the first field in which a JSON object is not what is right, and both contents; None if there is none.

    Of a list with one entry for each client, it is the entry of the first client that differs. Numbers may be off by
    `rounding`, relative to their size, or by `least`: sums come out differently on another processor.

    >>> find_difference({"values": [0.5, 1.0]}, {"values": [0.5, 2.0]}, ["bank", "telco"])
    ("value of client 'telco'", 1.0, 2.0)
    """
    for name in [*right, *(said.keys() - right.keys())]:
        one: Any = said.get(name)
        other: Any = right.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            inner = find_difference(one, other, rounding=rounding, least=least)
            if inner is not None:
                return f"{name}, {inner[0]}", *inner[1:]
        elif name != "clients" and _are_columns(one, other, clients):
            for client, entry, expected in zip(clients, one, other, strict=True):
                if not _is_close(entry, expected, rounding, least):
                    return f"{name.removesuffix('s').replace('_', ' ')} of client {client!r}", entry, expected
        elif not _is_close(one, other, rounding, least):
            return name, one, other
    return None


def _are_columns(one: Any, other: Any, clients: Sequence[str]) -> bool:
    return isinstance(one, list) and isinstance(other, list) and len(one) == len(other) == len(clients)


def _is_close(one: Any, other: Any, rounding: float, least: float) -> bool:
    if rounding and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=rounding, abs_tol=least)
    return is_same(one, other)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise InputError if it cannot be read."""
    try:
        return read_whole(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
