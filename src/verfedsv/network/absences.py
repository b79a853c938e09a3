"""What a network run does about clients that do not answer, or not as they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation.messages import Embed, Gradients, Request, Restore
from verfedsv.network.hub import Hub
from verfedsv.runs.config import ServerSection


class Absences:
    """Goes on without a client, or ends the training, as `if_missing` in [server] says.

    `checkpoints` is the folder to name if a client lost its own.
    """

    def __init__(self, hub: Hub, section: ServerSection, checkpoints: Path, notify: Callable[[str], None]) -> None:
        self._hub, self._section, self._checkpoints, self._notify = hub, section, checkpoints, notify

    def miss(self, request: Request) -> None:
        """Go on without a client that did not answer in time, or raise MissingClientError."""
        if isinstance(request, Restore) and self._hub.has_missed(request.client):
            self._hub.catch_up_later(request.client, request)
            return
        waited = f"{request.client!r} did not answer in round {request.round:,} within {self._section.deadline:g} s"
        if self._section.if_missing == "stop":
            raise MissingClientError(
                f"{waited}. What was recorded is kept: start the server again, and the training continues"
            )
        if self._hub.write_off(request.client):
            self._notify(f"{waited}; the training goes on without it until it is back")

    def refuse(self, request: Request, error: InputError) -> None:
        """Log an answer that cannot be used, and let the client be absent from the round, or raise an error."""
        if isinstance(request, Restore):
            raise InputError(
                f"{request.client!r} cannot go back to round {request.round:,}, the last checkpoint: {error}\nIf its "
                f"checkpoint is lost, delete {self._checkpoints} and start the server again: all models start anew, "
                "and what was recorded is kept"
            )
        refused = f"{request.client} refused: round {request.round}: {error}"
        if self._section.if_missing == "stop" and isinstance(request, Embed | Gradients):
            # Repeated after a crash, the round would be another one if the client did not refuse again.
            raise MissingClientError(f"{refused}. What was recorded is kept: start the server again, and it continues")
        self._notify(refused)
