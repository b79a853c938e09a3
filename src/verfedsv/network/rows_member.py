"""A client's end of predictions over a network: it embeds the rows of a new file with its trained model."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from verfedsv._version import __version__
from verfedsv.alignment import Party
from verfedsv.data.rows import read_rows
from verfedsv.errors import InputError
from verfedsv.federation import Client
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.messages import Predict
from verfedsv.network import messages as net
from verfedsv.network.aligning import answer_for, check_room
from verfedsv.network.belonging import check_training, newest_checkpoint, training_of
from verfedsv.network.locking import lock_folder
from verfedsv.network.refusing import CANNOT, TellableError, refuse, telling


class NewRowsMember:
    """Answers what a server asks that predicts; the model is that of the newest checkpoint in `folder`."""

    def __init__(self, name: str, path: Path, id_column: str, folder: Path, on_event: Callable[[str], None]) -> None:
        self.name, self._on_event, self._session = name, on_event, secrets.token_hex(16)
        self._lock, self._folder = lock_folder(folder), folder
        self._place = tempfile.TemporaryDirectory(dir=folder)
        newest = newest_checkpoint(folder)
        if newest is None:
            raise InputError(f"there is no trained model in {folder}; name the folder of the training (--folder)")
        self._model = ClientModel.read(newest, name)
        prepared = self._model.preparation
        self._rows = read_rows(name, path, id_column, prepared.numeric, prepared.text)
        self._party = Party(name, self._rows.ids, Path(self._place.name))
        self._client: Client | None = None
        self.n_steps = self.n_planned = 0
        self.received: list[Path] = []

    def close(self) -> None:
        """Delete temporary files, and unlock the folder."""
        self._party.close()
        self._place.cleanup()
        self._lock.close()

    def hello(self) -> net.Hello:
        """Return the first message of a connection."""
        about = self.name, 0, 0, net.PROTOCOL, __version__, self.name
        return net.Hello(*about, self._session, time.time(), "predict", "", "", training_of(self._folder))

    def welcome(self, message: net.Welcome) -> None:
        """Take the server's first message; raise InputError if the model in the folder is of another training."""
        check_training(self._folder, message)

    def answer(self, message: Any) -> Any:
        """Do what a message asks for; if it comes again, return the same answer."""
        try:
            return self._carry_out(message)
        except CANNOT as error:
            return refuse(message, error, self._on_event)

    def _carry_out(self, message: Any) -> Any:
        if isinstance(message, get_args(net.AlignmentRequest)):
            with telling():
                if isinstance(message, net.StartAlignment):
                    check_room(Path(self._place.name), sum(message.sizes))
                answer = answer_for(self._party, message)
            if isinstance(message, net.Agree) and self._party.aligned is not None:
                rows = self._party.aligned.rows.astype(np.intp)
                self._client = Client.of_new_rows(self._model, self._rows.data.take(rows))
                self._on_event(f"{len(rows):,} of {len(self._rows.ids):,} new rows are common to all")
            return answer
        if not isinstance(message, Predict) or self._client is None:
            raise TellableError(f"{type(message).__name__} is not for a client that predicts")
        if message.round != self._model.n_rounds:
            raise TellableError(
                f"the server's model is that of round {message.round:,}, and the one of {self.name!r} is of round "
                f"{self._model.n_rounds:,}: they are of different trainings"
            )
        return self._client.answer(message)
