"""Statements: what was recorded, valued and paid, in one small signed JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verfedsv._version import __version__
from verfedsv.errors import InputError
from verfedsv.runs.folders import CONFIG
from verfedsv.runs.reading import read_text
from verfedsv.settlement.documents import read_document
from verfedsv.settlement.folders import hash_files, options_of
from verfedsv.settlement.keys import is_signed, raw
from verfedsv.settlement.payouts import pay
from verfedsv.settlement.result import Settlement
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import Settings

FORMAT, VERSION = "verfedsv statement", 1
STATEMENT = "statement.json"
"""How a statement in the folder of its run is called."""

_KINDS = {
    "package": str,
    "created": str,
    "head": str,
    "n_rounds": int,
    "clients": list,
    "values": list,
    "errors": list,
    "shares": list,
    "error_kind": str,
    "settings": dict,
    "files": dict,
    "public_key": str,
}


@dataclass(frozen=True)
class Statement:
    """A signed statement. `content` is all that was signed, as JSON has it; docs/settlement.md lists the fields."""

    content: Mapping[str, Any]
    signature: bytes

    @property
    def public_key(self) -> bytes:
        """The key that the statement says it was signed with: whose that is, it cannot say."""
        return bytes.fromhex(self.content["public_key"])

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.content["clients"])

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.content["values"])

    @property
    def errors(self) -> tuple[float, ...]:
        """The errors of the values, NaN where they are unknown."""
        return tuple(math.nan if error is None else error for error in self.content["errors"])

    @property
    def settings(self) -> Settings:
        """How the values were computed."""
        return Settings(**self.content["settings"])

    @property
    def settlement(self) -> Settlement | None:
        """What is paid; None if nothing was settled."""
        fields = self.content.get("settlement")
        return None if fields is None else Settlement.from_fields(fields)

    def is_signed(self) -> bool:
        """Return whether the signature is that of the content."""
        return is_signed(self.public_key, self.signature, canonical(self.content))

    def to_json(self) -> bytes:
        """Return the bytes of the file: sorted, so that there is only one way to write a statement."""
        fields = {**self.content, "signature": self.signature.hex()}
        return (json.dumps(fields, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Statement:
        """Return the statement in a file; raise InputError if it is none. The signature is not checked here."""
        content = {"format": FORMAT, "version": VERSION, **read_document(text, FORMAT, VERSION)}
        for field, kind in _KINDS.items():
            if not isinstance(content.get(field), kind):
                raise InputError(f"the statement is damaged: {field} is missing or no {kind.__name__}")
        try:
            statement = cls(content, bytes.fromhex(content.pop("signature")))
            numbers = np.array([statement.values, statement.errors, content["shares"]], np.float64)
            _ = statement.public_key, statement.settings
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the statement is damaged: {error}") from None
        if numbers.shape != (3, len(statement.clients)):
            raise InputError("the statement is damaged: there is not one value, error and share for each client")
        return statement


def canonical(content: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: JSON in ASCII, keys sorted, no spaces, numbers as Python writes them."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def make_statement(
    folder: Path,
    transcript: Transcript,
    valuation: Valuation,
    key: Ed25519PrivateKey,
    place: Path,
    settlement: Settlement | None = None,
) -> Statement:
    """Return a signed statement of a run in a folder, to be written to `place`.

    Raises TranscriptError unless the transcript is whole, InputError unless valuation and settlement are of it.
    """
    transcript.verify()
    if valuation.head != transcript.head:
        raise InputError("the valuation is not of this transcript, or the transcript has grown since; value it again")
    options_of(valuation.settings)
    if settlement is not None:
        _check_settlement(settlement, valuation)
    written = json.loads(valuation.to_json())
    config = folder / CONFIG
    content = {
        "format": FORMAT,
        "version": VERSION,
        "package": f"verfedsv {__version__}",
        "created": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        **{name: written[name] for name in _OF_VALUATION},
        "configuration": read_text(config) if config.exists() else None,
        "settlement": None if settlement is None else settlement.to_fields(),
        "files": hash_files(folder, leave_out=place),
        "run": _way(place.parent, folder),
        "public_key": raw(key.public_key()).hex(),
    }
    return Statement(content, key.sign(canonical(content)))


_OF_VALUATION = (
    *("head", "n_rounds", "n_samples", "n_unseen", "mode", "loss", "clients", "values", "shares", "errors"),
    *("estimator_errors", "completion_errors", "error_kind", "method", "settings"),
)


def _check_settlement(settlement: Settlement, valuation: Valuation) -> None:
    """Raise InputError unless a settlement is of a valuation, and pays what its terms say."""
    values, errors = valuation.values.tolist(), valuation.errors.tolist()
    if settlement.head != valuation.head or settlement.clients != valuation.clients:
        raise InputError("the settlement is of another transcript; settle this run")
    if settlement.values != tuple(values):
        raise InputError("the settlement is of another valuation of this run; settle it again")
    if pay(settlement.terms, valuation.clients, values, errors, valuation.head).to_fields() != settlement.to_fields():
        raise InputError("the settlement was changed: its terms give other payouts; settle again")


def _way(start: Path, folder: Path) -> str | None:
    """Return how to get to the run from where the statement lies; None if there is no way, as between drives."""
    try:
        return PurePosixPath(Path(os.path.relpath(folder.resolve(), start.resolve()))).as_posix()
    except ValueError:
        return None
