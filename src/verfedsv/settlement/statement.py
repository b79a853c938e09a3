"""Statements: what was recorded, valued and paid, in one small signed JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AfterValidator, Field, NonNegativeInt

from verfedsv._version import __version__
from verfedsv.errors import InputError
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.agreement import check_is_of, options_of
from verfedsv.settlement.documents import BooksContent, ClientsContent, parse, read_bytes, validate
from verfedsv.settlement.keys import is_signed, is_weak, raw
from verfedsv.settlement.payouts import Basis, check_settlement
from verfedsv.settlement.result import Settlement, SettlementContent
from verfedsv.shapley.result import ErrorKind
from verfedsv.transcript import Transcript
from verfedsv.transcript.description import Mode
from verfedsv.valuation import Valuation
from verfedsv.valuation.document import as_json
from verfedsv.valuation.result import Books

FORMAT, VERSION = "verfedsv statement", 2

_OF_VALUATION = (
    *("head", "n_rounds", "n_samples", "n_unseen", "mode", "loss", "clients", "values", "shares", "errors"),
    *("estimator_errors", "completion_errors", "server_value", "server_error", "books"),
    *("error_kind", "method", "settings"),
)


def _has_zone(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs a time zone")
    return text


def _is_strong(digits: str) -> str:
    if is_weak(bytes.fromhex(digits)):
        raise ValueError("this is a key for which anyone can forge signatures (a point of small order)")
    return digits


def _is_complete(settings: dict[str, Any]) -> dict[str, Any]:
    if settings.keys() != ValuationSettings().as_dict().keys():
        raise ValueError("settings are missing or unknown")
    ValuationSettings.of(settings)
    return settings


_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StatementContent(ClientsContent):
    """The JSON fields of a statement, including its signature."""

    columns = ("values", "shares", "errors", "estimator_errors", "completion_errors")

    package: Annotated[str, Field(pattern="^verfedsv [0-9A-Za-z.+!-]{1,40}$")]
    created: Annotated[str, AfterValidator(_has_zone)]
    head: _Hash
    n_rounds: NonNegativeInt
    n_planned: NonNegativeInt | None
    n_samples: NonNegativeInt
    n_unseen: NonNegativeInt
    took_part: dict[str, str] = Field(default_factory=dict)
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


@dataclass(frozen=True)
class Statement:
    """A signed statement. `content` has the JSON fields that were signed, which docs/settlement.md lists.

    `text` is the file that it was read from, None if it was made here.
    """

    content: Mapping[str, Any]
    signature: bytes
    text: bytes | None = field(default=None, repr=False)

    @property
    def public_key(self) -> bytes:
        """The key that the statement names, which does not prove whose key it is."""
        return bytes.fromhex(self.content["public_key"])

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.content["clients"])

    @property
    def basis(self) -> Basis:
        """What payouts are computed from; NaN for errors that are unknown."""
        said = self.content
        errors = [math.nan if error is None else error for error in (*said["errors"], said["server_error"])]
        return Basis(
            clients=self.clients,
            values=tuple(said["values"]),
            errors=tuple(errors[:-1]),
            server_value=said["server_value"],
            server_error=errors[-1],
            books=Books(**said["books"]),
            head=said["head"],
            n_rounds=said["n_rounds"],
            n_planned=said["n_planned"],
        )

    @property
    def settlement(self) -> Settlement | None:
        """What is paid; None if nothing was settled."""
        fields = self.content["settlement"]
        return None if fields is None else Settlement.from_fields(fields)

    def is_signed(self) -> bool:
        """Return whether the signature is valid for the content, and the file exactly what `to_json` writes."""
        is_as_written = self.text in (None, self.to_json())
        return is_as_written and is_signed(self.public_key, self.signature, canonical(self.content))

    def to_json(self) -> bytes:
        """Return the bytes of the file: sorted, so that there is only one way to write a statement."""
        fields = {**self.content, "signature": self.signature.hex()}
        return (json.dumps(fields, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> Statement:
        """Return the statement in a file, as `from_json` does."""
        return cls.from_json(read_bytes(path))

    @classmethod
    def from_json(cls, text: bytes) -> Statement:
        """Return the statement in a JSON text; raise InputError if it is not one. The signature is not checked."""
        content = parse(text, FORMAT)
        validate(StatementContent, content, FORMAT, VERSION)
        signature = content.pop("signature")
        return cls(content, bytes.fromhex(signature), text)


def canonical(content: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: JSON in ASCII, keys sorted, no spaces, numbers as Python writes them."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def make_statement(
    folder: RunFolder,
    transcript: Transcript,
    valuation: Valuation,
    key: Ed25519PrivateKey,
    path: Path,
    settlement: Settlement | None = None,
) -> Statement:
    """Return a signed statement of a run, to be written to `path`.

    Raises TranscriptError unless the transcript is complete, and InputError if it is still being recorded, or valuation
    or settlement belong to another one. This does not check that the transcript yields these
    values; `compare_valuation` does.
    """
    extent = folder.extent(transcript)
    refuse_running(extent, "signed")
    present = transcript.verify().attendances()
    check_is_of(valuation, transcript)
    options_of(valuation.settings)
    if settlement is not None:
        check_settlement(settlement, valuation)
        if not says_plan(settlement, valuation.n_rounds, extent.n_planned):
            raise InputError(f"the settlement does not state that it is of {extent}; settle the run by its folder")
        if not says_attendance(settlement, present):
            raise InputError("the settlement says otherwise who took part when; settle the run by its folder")
    content = {
        "format": FORMAT,
        "version": VERSION,
        **fields_of(valuation),
        "n_planned": extent.n_planned,
        "agreed": transcript.description.agreed,
        "configuration": folder.config_text(),
        "settlement": None if settlement is None else settlement.to_fields(),
        "files": folder.hash_files(leave_out=path),
        "package": f"verfedsv {__version__}",
        "created": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "run": _relative_path(path.parent, folder.path),
        "public_key": raw(key.public_key()).hex(),
    }
    if present:
        content["took_part"] = present
    _refuse_unreadable(content)
    return Statement(content, key.sign(canonical(content)))


def _refuse_unreadable(content: Mapping[str, Any]) -> None:
    """Raise InputError if no audit could read a statement with this content."""
    try:
        Statement.from_json(Statement(content, bytes(64)).to_json())
    except InputError as error:
        raise InputError(f"not signed, because it could not be read back: {error}") from None


def says_plan(settlement: Settlement, n_rounds: int, n_planned: int | None) -> bool:
    """Return whether a settlement states the plan of a run, which it need not if all planned rounds were recorded."""
    is_unfinished = n_planned is not None and n_rounds < n_planned
    return settlement.n_planned == n_planned or (settlement.n_planned is None and not is_unfinished)


def says_attendance(settlement: Settlement, present: Mapping[str, str]) -> bool:
    """Return whether a settlement says who took part when as the run does, or nothing, as those of a valuation do."""
    return settlement.took_part in (present, {})


def fields_of(valuation: Valuation) -> dict[str, Any]:
    """Return the JSON fields of a statement that come from a valuation."""
    return {name: as_json(getattr(valuation, name)) for name in _OF_VALUATION}


def _relative_path(start: Path, folder: Path) -> str | None:
    """Return the path from the folder of the statement to the run; None if there is none, as between two drives."""
    try:
        return Path(os.path.relpath(folder.resolve(), start.resolve())).as_posix()
    except ValueError:
        return None
