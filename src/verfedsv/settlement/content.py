"""What a statement may say: its fields and their kinds, checked where one is read."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from verfedsv.errors import InputError
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.keys import is_weak
from verfedsv.shapley.result import ErrorKind
from verfedsv.transcript.description import Mode


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise InputError, naming the field, unless there are all fields of a statement and no others, of their kinds."""
    try:
        _Fields.model_validate(fields)
        json.dumps(fields, allow_nan=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, why = ".".join(map(str, first["loc"]))[:60], first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise InputError(f"the statement has a field {place!r}, which no audit could check") from None
        raise InputError(f"the statement is damaged: {f'{place}: ' if place else ''}{why}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"the statement is damaged: {error}") from None


def _has_zone(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs its zone")
    return text


def _is_strong(digits: str) -> str:
    if is_weak(bytes.fromhex(digits)):
        raise ValueError("this is a key that anybody can sign for (a point of small order)")
    return digits


_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _is_complete(settings: dict[str, Any]) -> dict[str, Any]:
    if set(settings) != {field.name for field in dataclasses.fields(ValuationSettings)}:
        raise ValueError("settings are missing or unknown")
    return settings


class _Books(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    start: float
    end: float
    clients: float
    server: float
    clients_moved: float
    server_moved: float


class _Fields(BaseModel):
    # An unknown field would be signed, and checked by nobody.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: str
    version: int
    package: Annotated[str, Field(pattern="^verfedsv [0-9A-Za-z.+!-]{1,40}$")]
    created: Annotated[str, AfterValidator(_has_zone)]
    head: _Hash
    n_rounds: NonNegativeInt
    n_planned: NonNegativeInt | None
    n_samples: NonNegativeInt
    n_unseen: NonNegativeInt
    mode: Mode
    loss: str
    clients: list[str]
    values: list[float]
    shares: list[float | None]
    errors: list[float | None]
    estimator_errors: list[float | None]
    completion_errors: list[float | None]
    server_value: float
    server_error: float | None
    books: _Books
    error_kind: ErrorKind
    method: str
    settings: Annotated[dict[str, Any], AfterValidator(_is_complete)]
    configuration: str | None
    settlement: dict[str, Any] | None
    files: dict[str, _Hash]
    run: str | None
    public_key: Annotated[_Hash, AfterValidator(_is_strong)]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    @model_validator(mode="after")
    def _one_for_each_client(self) -> Self:
        columns = self.values, self.shares, self.errors, self.estimator_errors, self.completion_errors
        if any(len(column) != len(self.clients) for column in columns) or not self.clients:
            raise ValueError("there is not one value, error and share for each client")
        return self
