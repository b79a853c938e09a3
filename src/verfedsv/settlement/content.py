"""The fields of a statement and their types, checked when one is read."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from pydantic import AfterValidator, Field, NonNegativeInt

from verfedsv.settings import ValuationSettings
from verfedsv.settlement.documents import BooksContent, ClientsContent
from verfedsv.settlement.keys import is_weak
from verfedsv.settlement.result import SettlementContent
from verfedsv.shapley.result import ErrorKind
from verfedsv.transcript.description import Mode


def _has_zone(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs its zone")
    return text


def _is_strong(digits: str) -> str:
    if is_weak(bytes.fromhex(digits)):
        raise ValueError("this is a key that anybody can sign for (a point of small order)")
    return digits


def _is_complete(settings: dict[str, Any]) -> dict[str, Any]:
    if settings.keys() != ValuationSettings().as_dict().keys():
        raise ValueError("settings are missing or unknown")
    ValuationSettings.of(settings)
    return settings


_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StatementContent(ClientsContent):
    """A statement, including its signature."""

    columns = ("values", "shares", "errors", "estimator_errors", "completion_errors")

    package: Annotated[str, Field(pattern="^verfedsv [0-9A-Za-z.+!-]{1,40}$")]
    created: Annotated[str, AfterValidator(_has_zone)]
    head: _Hash
    n_rounds: NonNegativeInt
    n_planned: NonNegativeInt | None
    n_samples: NonNegativeInt
    n_unseen: NonNegativeInt
    mode: Mode
    loss: str
    values: list[float]
    shares: list[float | None]
    errors: list[float | None]
    estimator_errors: list[float | None]
    completion_errors: list[float | None]
    server_value: float
    server_error: float | None
    books: BooksContent
    error_kind: ErrorKind
    method: str
    settings: Annotated[dict[str, Any], AfterValidator(_is_complete)]
    agreed: dict[str, Any]
    configuration: str | None
    settlement: SettlementContent | None
    files: dict[str, _Hash]
    run: str | None
    public_key: Annotated[_Hash, AfterValidator(_is_strong)]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
