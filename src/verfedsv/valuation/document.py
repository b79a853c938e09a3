"""The JSON of a valuation, without the embeddings that a later valuation continues from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verfedsv.arrays import Floats
from verfedsv.completion import CompletionReport
from verfedsv.errors import InputError
from verfedsv.files import MOST_BYTES
from verfedsv.names import check_names
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.estimate import ErrorKind, Estimate
from verfedsv.shapley.estimators import PARTS
from verfedsv.transcript.description import Mode
from verfedsv.untrusted import read_json
from verfedsv.valuation.result import Books, Valuation

FORMAT, VERSION = "verfedsv valuation", 2

_NOT_WRITTEN = ("factorisation", "replay")

_DERIVED = "method", "shares", "errors", "books"
_OF_COMMAND = "format", "version", "finished", "verdict"
"""Fields beside those of a valuation: the last two are written by `verfedsv value`."""

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
"""None if it is unknown."""


class _Report(BaseModel):
    """A CompletionReport; errors are None if nothing was held out."""

    rank: Count
    regularization: Number
    train_rmse: Error
    train_largest: Error
    held_out_rmse: Error
    held_out_largest: Error
    held_out_size: Error
    expected_rmse: Error
    expected_size: Error
    n_observations: Count
    n_held_out: Count
    n_unseen: Count
    n_sweeps: Count
    fit_sweeps: tuple[Count, ...]
    n_withheld: Count


class _Sampled(BaseModel):
    """What errors are computed from where they average out, (rounds, clients and server) each."""

    errors: list[list[Error]]
    variance: list[list[Error]]
    largest: list[list[Error]]


class _Content(BaseModel):
    """The fields of a valuation and their types; `_check` checks that they fit each other."""

    model_config = ConfigDict(strict=True)

    clients: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    values: list[Number]
    estimator_errors: list[Error]
    completion_errors: list[Error]
    error_kind: ErrorKind
    per_round: list[list[Number]]
    per_round_errors: list[list[Error]]
    server_value: Number
    server_error: Error
    per_round_server: list[Number]
    per_round_server_errors: list[Error]
    losses: list[Number]
    methods: tuple[Annotated[str, Field(pattern=f"^({'|'.join(PARTS)})$")], ...]
    mode: Mode
    loss: str
    n_rounds: Annotated[int, Field(ge=1)]
    n_samples: Annotated[int, Field(ge=1)]
    n_unseen: Count
    tolerance_met: bool | None
    completion: tuple[_Report, ...] | None
    guarantee: Error
    head: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    settings: ValuationSettings
    seconds: dict[str, Number]
    package: str
    sampled: _Sampled | None


def to_json(valuation: Valuation) -> str:
    """Return a valuation as JSON; NaN is written as null.

    `method`, `shares`, `errors` and `books`, which follow from the fields, are written for other readers.
    """
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    content |= {f.name: as_json(getattr(valuation, f.name)) for f in fields(valuation) if f.name not in _NOT_WRITTEN}
    content |= {name: as_json(getattr(valuation, name)) for name in _DERIVED}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str | bytes) -> Valuation:
    """Return the valuation that `to_json` wrote."""
    document = read_json(text, "the valuation", most=MOST_BYTES)
    if not isinstance(document, dict) or "format" not in document or "version" not in document:
        raise InputError("this is not a valuation: it has no format and version")
    name, version = document["format"], document["version"]
    if name != FORMAT or version != VERSION or isinstance(version, bool):
        raise InputError(f"this verfedsv reads {FORMAT!r} of version {VERSION}; received {name!r}, {version!r}")
    try:
        content = _Content.model_validate_json(text)
        result = _build(content)
        _check(result)
        _check_derived(document, result)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"the valuation is damaged: {where}: {first['msg']}") from None
    except ValueError as error:
        raise InputError(f"the valuation is damaged: {error}") from None
    return result


def _check_derived(document: Mapping[str, Any], valuation: Valuation) -> None:
    """Raise ValueError if derived fields contradict the others, or if there are unknown fields."""
    if unknown := sorted(document.keys() - _Content.model_fields.keys() - {*_DERIVED, *_OF_COMMAND}):
        raise ValueError(f"it has a field {unknown[0]!r}, which no valuation has")
    least = {"books": 1e-9 * float(np.abs(valuation.losses).max())}  # differences of losses
    for name in _DERIVED:
        right = as_json(getattr(valuation, name))
        if name in document and not _is_close(document[name], right, least.get(name, 0.0)):
            raise ValueError(f"its {name} does not follow from its values")


def _is_close(stated: Any, right: Any, least: float) -> bool:
    """Return whether two values of JSON are the same up to rounding, which may differ on another processor."""
    if isinstance(right, float) and isinstance(stated, float | int):
        return math.isclose(stated, right, rel_tol=1e-9, abs_tol=least)
    if isinstance(right, dict) and isinstance(stated, dict):
        return stated.keys() == right.keys() and all(_is_close(stated[name], right[name], least) for name in right)
    if isinstance(right, list) and isinstance(stated, list):
        return len(stated) == len(right) and all(_is_close(*pair, least) for pair in zip(stated, right, strict=True))
    return bool(stated == right)


def _build(content: _Content) -> Valuation:
    parts = {name: getattr(content, name) for name in _Content.model_fields}
    parts |= {name: _floats(parts[name], name) for name in _SHAPES}
    parts["server_error"] = math.nan if content.server_error is None else content.server_error
    if content.completion is not None:
        parts["completion"] = tuple(CompletionReport(**_numbers(dict(report))) for report in content.completion)
    result = Valuation(**parts | {"sampled": None})
    if content.sampled is None:
        return result
    sampled: dict[str, Any] = {name: _floats(part, name) for name, part in content.sampled}
    return replace(result, sampled=replace(result.rounds, **sampled))


def _check(valuation: Valuation) -> None:
    """Raise ValueError if the parts do not fit each other."""
    n_clients, n_rounds = len(valuation.clients), valuation.n_rounds
    check_names(valuation.clients)
    sizes = {"rounds": n_rounds, "losses": n_rounds + 1, "clients": n_clients}
    for name, axes in _SHAPES.items():
        expected = tuple(sizes[axis] for axis in axes)
        if getattr(valuation, name).shape != expected:
            raise ValueError(f"{name} has shape {getattr(valuation, name).shape} instead of {expected}")
    rounds, players = valuation.rounds, (n_rounds, n_clients + 1)
    if any(part.shape != players for part in (rounds.errors, rounds.variance, rounds.largest)):
        raise ValueError(f"sampled must be of {n_rounds} rounds, {n_clients} clients and the server")
    if valuation.completion is not None and len(valuation.completion) != n_clients:
        raise ValueError(f"completion must have a report for each of {n_clients} clients")
    values = np.append(valuation.values, valuation.server_value)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.abs(values).sum() * n_rounds):
            raise ValueError("its values are too large to be added up")
    per_round = np.column_stack([valuation.per_round, valuation.per_round_server])
    if not np.allclose(values, per_round.mean(axis=0), rtol=0, atol=1e-9 * np.abs(per_round).max()):
        raise ValueError("its values are not the means over its rounds")


_SHAPES = {
    "values": ("clients",),
    "estimator_errors": ("clients",),
    "completion_errors": ("clients",),
    "per_round": ("rounds", "clients"),
    "per_round_errors": ("rounds", "clients"),
    "per_round_server": ("rounds",),
    "per_round_server_errors": ("rounds",),
    "losses": ("losses",),
}


def _floats(values: Any, name: str) -> Floats:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        raise ValueError(f"the rows of {name} differ in length") from None


def _numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in content.items()}


def as_json(value: Any) -> Any:
    """Return a value as JSON can have it: arrays as lists, and None for numbers that are not finite."""
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, Estimate):
        return as_json({name: getattr(value, name) for name in _Sampled.model_fields})
    if isinstance(value, CompletionReport | ValuationSettings):
        return as_json(asdict(value))
    if isinstance(value, Books):
        return as_json(value._asdict())
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
