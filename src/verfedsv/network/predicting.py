"""Predictions of new rows by clients on other machines: the server's end; `rows_member` is the other.

The ids of the new rows of all that take part are aligned as before a training; those that all of them have are
predicted. Clients that do not take part count with their mean embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import count
from pathlib import Path

import numpy as np

from verfedsv.arrays import PART_BYTES, Array
from verfedsv.data.ids import Ids, read_ids
from verfedsv.data.reading import read_table
from verfedsv.data.rows import NewRows, read_rows
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation import Client
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.messages import Predict
from verfedsv.federation.predictions import Predictions, Predictor
from verfedsv.federation.transports import ask
from verfedsv.network.common_ids import SETTLING, CommonIds
from verfedsv.network.hub import largest_answer
from verfedsv.network.serving import NetworkRun
from verfedsv.runs.config import Config
from verfedsv.runs.predicting import PredictedRows, Source, read_model, read_predictor


class NetworkPrediction(NetworkRun):
    """The server's end. `ids` is a file with the ids to predict, and the server's own columns if it was a client.

    `clients` are those on other machines that take part.
    """

    purpose = "predict"

    def __init__(self, config: Config, text: str) -> None:
        super().__init__(config, text)
        self._clients: tuple[str, ...] = ()
        self._path, self._id_column = Path(), "id"

    def prepare(self, clients: tuple[str, ...], ids: Path, id_column: str | None) -> None:
        """Say who takes part, and in which file the ids are; raise InputError if the run cannot predict."""
        known = super().others
        if unknown := [name for name in clients if name not in known]:
            raise InputError(f"{unknown[0]!r} is not a client on another machine; these are {', '.join(known)}")
        self._clients = clients or known
        self._path, self._id_column = ids, id_column or self._labels.id_column
        _ = self.predictor, self._own_ids
        if not self._files.identity():
            raise InputError(f"{self._files.identity_path} is gone, so clients cannot tell their models: restore it")

    @property
    def others(self) -> tuple[str, ...]:
        return self._clients

    @cached_property
    def predictor(self) -> Predictor:
        """The server's part of the trained model."""
        return read_predictor(self._files, "used for predictions")

    @cached_property
    def _own(self) -> tuple[ClientModel, NewRows] | None:
        """The model and the new rows of the client in this process, if there is one."""
        name = self._labels.owner
        if name not in self.predictor.clients:
            return None
        model = read_model(self._files, self.predictor, name)
        prepared = model.preparation
        return model, read_rows(name, self._path, self._id_column, prepared.numeric, prepared.text)

    @cached_property
    def _own_ids(self) -> Ids:
        if self._own is not None:
            return self._own[1].ids
        return read_ids(read_table(self._path, self._id_column), self._path, self._id_column)

    @cached_property
    def _common(self) -> CommonIds:
        """The common ids of new rows: always aligned, and used once."""
        return CommonIds(
            self.hub,
            self._labels.owner,
            self._own_ids,
            self.private,
            self.others,
            rule="once",
            notify=self.notify,
            check=self.check,
        )

    def predict_all(self, progress: Callable[[int, int], None] = lambda done, total: None) -> PredictedRows:  # noqa: ARG005
        """Return predictions for the common ids."""
        predictor, rows = self.predictor, self._common_rows
        widths = {name: len(mean) for name, mean in predictor.means.items()}
        self.hub.limit = partial(largest_answer, widths=widths, n_samples=len(rows))
        if self._own is not None:
            model, own = self._own
            self.hub.local = {model.name: Client.of_new_rows(model, own.data.take(rows))}
        asked = [name for name in predictor.clients if name in (*self.others, *self.hub.local)]
        size, numbers, found = max(1, PART_BYTES // (8 * predictor.n_numbers)), count(1 << 33), []
        for start in range(0, len(rows), size):
            part = np.arange(start, min(start + size, len(rows)))
            found.append(self._predict_part(asked, part, numbers))
            progress(int(part[-1]) + 1, len(rows))
        taken = self._own_ids.values.take(rows)
        sources = [Source(name, *self._source_of(name, asked, len(rows))) for name in predictor.clients]
        return PredictedRows(taken, self._id_column, Predictions.joined(found), tuple(sources))

    def _predict_part(self, asked: list[str], part: Array, numbers: count[int]) -> Predictions:
        rounds = self.predictor.rounds
        requests = [Predict(name, rounds[name], next(numbers), part) for name in asked]
        rows = dict.fromkeys(asked, np.arange(len(part)))
        answers = ask(self.hub, requests, partial(self.predictor.accept, rows=rows), timeout=SETTLING, n_tries=1)
        if missing := [name for name in asked if name not in answers]:
            raise MissingClientError(f"no prediction: no answer from {', '.join(missing)}")
        return self.predictor.predict(answers, rows, len(part))

    def _source_of(self, name: str, asked: list[str], n_rows: int) -> tuple[Path | None, int, int, tuple[str, ...]]:
        if name not in asked:
            return None, 0, n_rows, ()
        if name in self.hub.local and self._own is not None:
            return self._path, n_rows, 0, self._own[1].ignored
        return Path(f"the file of {name}"), n_rows, 0, ()
