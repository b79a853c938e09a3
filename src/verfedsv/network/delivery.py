"""At the end of a training: every client gets its results, whenever it is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verfedsv.errors import InputError, MissingClientError
from verfedsv.files import write_whole
from verfedsv.network.hub import Hub, ask_one
from verfedsv.network.messages import Deliver, End
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement.books import why_rejected
from verfedsv.settlement.extract import make_extract
from verfedsv.settlement.statement import make_statement
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation

FINISHED = End("", 0, 0, "the training is finished", is_finished=True)
"""What clients are told at the end."""

LATE = 15.0
"""Seconds in which a client may ask again for results that it has already: longer than its pause between attempts."""

_PATIENCE = 120.0
"""Seconds that a client has to take a file."""

_PAUSE = 0.05
"""Seconds between looks at who is there."""


class Delivery:
    """Sends clients their files. Those that have this `version` of the results are noted in the file `path`."""

    def __init__(
        self,
        hub: Hub,
        path: Path,
        version: str,
        files: Callable[[str], Mapping[str, bytes]],
        notify: Callable[[str], None],
    ) -> None:
        self._hub, self._path, self._version, self._files, self._notify = hub, path, version, files, notify
        self._noted = self._read()
        self._served = set[str]()
        self._refused: dict[str, str] = {}  # by whom, and in which process

    def run(self, clients: Iterable[str], timeout: float | None, should_stop: Callable[[], bool]) -> list[str]:
        """Send every client its files as soon as it is there, and let it go; return who did not get them in time.

        If all have them already, clients that lost them have some seconds to ask again.
        """
        left = {name for name in clients if self._noted.get(name) != self._version}
        is_late = not left
        seconds = LATE if is_late else timeout
        end = None if seconds is None else time.monotonic() + seconds
        while (left or is_late) and not should_stop() and (end is None or time.monotonic() < end):
            for name, hello in self._hub.connected().items():
                self._serve(name, hello.session)
            left -= self._served
            time.sleep(_PAUSE)
        return sorted(left)

    def _serve(self, client: str, session: str) -> None:
        if self._refused.get(client) == session:
            return
        try:
            if client not in self._served:
                self._send(client)
        except InputError as error:
            self._notify(str(error))
            self._refused[client] = session
        except MissingClientError:
            return  # it may come back
        else:
            self._hub.disconnect(client, "it has its results", FINISHED)

    def _send(self, client: str) -> None:
        for number, item in enumerate(self._files(client).items(), 1 << 32):
            self._hub.write_off(client)  # if it goes away, the others do not wait
            ask_one(self._hub, Deliver(client, 0, number, *item), _PATIENCE)
        self._served.add(client)
        self._noted[client] = self._version
        write_whole(self._path, json.dumps(self._noted).encode())

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes()) if self._path.exists() else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}


def signed_statement(
    files: RunFolder,
    transcript: Transcript,
    valuation: Valuation,
    key: Ed25519PrivateKey | None,
    notify: Callable[[str], None],
) -> bytes | None:
    """Return the statement of a run, signed now if there is none yet; None without a key, or if it is rejected."""
    path = files.statement_path
    if path.exists():
        return path.read_bytes()
    if key is None:
        return None
    if why := why_rejected(valuation):
        notify(
            f"not signed: {why} To sign it anyway: verfedsv statement {files.path} --key KEY --even-if-the-loss-rose; "
            "clients get the statement when the server is started again"
        )
        return None
    statement = make_statement(files, transcript, valuation, key, path).to_json()
    write_whole(path, statement)
    notify(f"signed {path}")
    return statement


def files_for(
    valuation: Valuation, transcript: Transcript, signed: Mapping[str, bytes], client: str
) -> dict[str, bytes]:
    """Return what a client gets, by name: its values, its extract, and what is `signed`, if anything is."""
    files = {"value.json": _own_value(valuation, client), **signed}
    if client in transcript.clients:
        files["uploads.extract"] = make_extract(transcript, client).to_bytes()
    return files


def _own_value(valuation: Valuation, client: str) -> bytes:
    """Return what a client may know of a valuation: its own numbers, and how they were obtained."""
    if client not in valuation.clients:
        content: dict[str, Any] = {"client": client, "value": 0.0, "n_rounds": valuation.n_rounds}
    else:
        m = valuation.clients.index(client)
        content = {
            "client": client,
            "value": float(valuation.values[m]),
            "share": _finite(valuation.shares[m]),
            "error": _finite(valuation.errors[m]),
            "method": valuation.method,
            "n_rounds": valuation.n_rounds,
            "n_clients": len(valuation.clients),
            "transcript": valuation.head,
        }
    return (json.dumps(content, indent=2) + "\n").encode()


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
