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
    """The fields of a document of which some, its `columns`, have an entry for each client."""

    columns: ClassVar[tuple[str, ...]]
    clients: list[str]

    @model_validator(mode="after")
    def _one_for_each_client(self) -> Self:
        if not self.clients:
            raise ValueError("there are no clients")
        for name in self.columns:
            if len(getattr(self, name)) != len(self.clients):
                raise ValueError(f"{name} must have one entry for each client")
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
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, why = ".".join(map(str, first["loc"]))[:60], first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise InputError(f"the {_kind(name)} has a field {field!r}, which no audit could check") from None
        raise InputError(f"the {_kind(name)} is damaged: {f'{field}: ' if field else ''}{why}") from None


def parse(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the fields of a JSON document; raise InputError, calling it `name`, if it is not one."""
    what = f"this is not the JSON of a {_kind(name)}, or it is damaged"
    try:
        fields = read_json(text, "it")
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(what)
    return fields


def _check_format(fields: Mapping[str, Any], name: str, version: int) -> None:
    """Raise InputError unless a document is of this format and version."""
    received = fields.get("format"), fields.get("version")
    if received == (name, version):
        return
    if received[0] == name:
        raise InputError(
            f"this is a {_kind(name)} of format version {str(received[1])[:20]}; this verfedsv reads version "
            f"{version}. Use the version of verfedsv that wrote it"
        )
    what = f"a {_kind(received[0])}, not" if received[0] in _OURS else "not"
    raise InputError(f"this is {what} a {_kind(name)} that verfedsv wrote")


_OURS = ["verfedsv statement", "verfedsv settlement", "verfedsv valuation", "verfedsv transcript", "verfedsv report"]


def _kind(name: str) -> str:
    return name.removeprefix("verfedsv ")


def format_of(path: Path) -> str:
    """Return the format that a JSON file states; "" if it states none."""
    try:
        text = read_whole(path)
        check_size(text, "it", MOST_BYTES)
        return str(json.loads(text)["format"])  # also of a document that `read_json` refuses
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def find_difference(
    said: Mapping[str, Any],
    right: Mapping[str, Any],
    clients: Sequence[str] = (),
    *,
    rounding: float = 0.0,
    least: float = 0.0,
) -> tuple[str, Any, Any] | None:
    """Return the first field in which a JSON object is not right, what it says, and what is right; None if all are.

    In a list with one entry for each client, that is the first client's entry that differs. Numbers may be off by
    `rounding`, relative to their size, or by `least`: sums come out differently on another processor.

    >>> find_difference({"values": [0.5, 1.0]}, {"values": [0.5, 2.0]}, ["bank", "telco"])
    ("value of client 'telco'", 1.0, 2.0)
    """
    for name in [*right, *(said.keys() - right.keys())]:
        one: Any = said.get(name, _MISSING)
        other: Any = right.get(name, _MISSING)
        if isinstance(one, dict) and isinstance(other, dict):
            inner = find_difference(one, other, rounding=rounding, least=least)
            if inner is not None:
                return f"{name}, {inner[0]}", *inner[1:]
        elif name != "clients" and all(isinstance(each, list) and len(each) == len(clients) for each in (one, other)):
            for client, entry, expected in zip(clients, one, other, strict=True):
                if not _is_close(entry, expected, rounding, least):
                    return f"{name.removesuffix('s').replace('_', ' ')} of client {client!r}", entry, expected
        elif not _is_close(one, other, rounding, least):
            return name, one, other
    return None


_MISSING = "not stated"


def _is_close(one: Any, other: Any, rounding: float, least: float) -> bool:
    if rounding and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=rounding, abs_tol=least)
    # As JSON, in which 1, 1.0 and true are three different values.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise InputError if it cannot be read."""
    try:
        return read_whole(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
