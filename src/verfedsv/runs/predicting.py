"""Predictions for new rows from the folder of a finished run, without the files it was trained on."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.arrays import PART_BYTES
from verfedsv.data.libsvm import is_libsvm
from verfedsv.data.rows import NewRows, align_rows, check_sizes, read_libsvm_rows, read_rows
from verfedsv.data.vertical import ClientData
from verfedsv.errors import InputError
from verfedsv.federation.checkpoints import SERVER, client_file, path_of_round
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.clients import Client
from verfedsv.federation.predictions import Predictions, Predictor, predict_rows
from verfedsv.federation.transports import InProcess
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.texts import spreadsheet_text

PREDICTION, PROBABILITY = "prediction", "probability_"
"""The column of predictions, and how the names of the columns of probabilities begin."""

ROW = "row"
"""The column of the numbers of rows, where files have no ids."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Source:
    """What a client contributed to predictions: the file, None if it is absent, and for how many rows it had a row.

    The others have its mean embedding. `ignored` names columns of the file that training did not use.
    """

    client: str
    path: Path | None
    n_rows: int
    n_means: int
    ignored: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """Return this as plain data."""
        return {
            "client": self.client,
            "file": None if self.path is None else str(self.path),
            "n_rows": self.n_rows,
            "n_mean_embeddings": self.n_means,
            "ignored_columns": list(self.ignored),
        }


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Predictions for rows with these ids, (rows,), and where the rows of each client came from."""

    ids: pa.Array
    id_column: str
    predictions: Predictions
    sources: tuple[Source, ...]

    def to_table(self) -> pa.Table:
        """Return ids, predictions and, for classes, the probability of each: a row per id."""
        found, names = self.predictions, self.predictions.classes or ()
        columns: dict[str, Any] = {self.id_column: self.ids, PREDICTION: pa.array(found.values)}
        probabilities = found.probabilities
        if probabilities is not None:
            columns |= {f"{PROBABILITY}{name}": probabilities[:, c] for c, name in enumerate(names)}
        if len(columns) < 2 + len(names):
            raise InputError(
                f"the column of ids cannot be called {self.id_column!r}: that is a column of the predictions; rename it"
            )
        return pa.table(columns)

    def to_csv(self) -> bytes:
        """Return the table as CSV in UTF-8; numbers have all their digits, and text is quoted.

        Ids and names that look like formulas are made harmless for spreadsheets; Parquet has them as they are.
        """
        sink, table = io.StringIO(), self.to_table()
        # As in payouts: where semicolons separate cells, one in a text would begin another cell.
        writer = csv.writer(sink, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(map(_as_cell, table.column_names))
        writer.writerows(zip(*(map(_as_cell, column.to_pylist()) for column in table.columns), strict=True))
        return sink.getvalue().encode()

    def to_parquet(self) -> bytes:
        """Return the table as Parquet."""
        import pyarrow.parquet

        sink = io.BytesIO()
        pyarrow.parquet.write_table(self.to_table(), sink)
        return sink.getvalue()

    def summary(self) -> dict[str, Any]:
        """Return how many rows were predicted, as which classes, and from what, as plain data."""
        classes = self.predictions.classes
        counts = None if classes is None else Counter(map(str, self.predictions.values))
        return {
            "n_rows": len(self.ids),
            "loss": self.predictions.loss.name,
            "classes": None if counts is None else {name: counts[name] for name in classes or ()},
            "clients": [source.to_fields() for source in self.sources],
        }


def predict(
    run: RunFolder | str | os.PathLike[str],
    features: Mapping[str, str | os.PathLike[str]],
    *,
    id_column: str | None = None,
) -> PredictedRows:
    """Return predictions for all rows in new files of some clients of a finished run, matched by id.

    For a client without a file, and for rows that its file does not have, its mean embedding of the training samples
    counts. Ids are in `id_column`, by default the column that the run's configuration names for the client. If one file
    is in LIBSVM format, all files must have the same rows in the same order, and are read without ids.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    predictor = read_predictor(folder, "used for predictions")
    if not features:
        raise InputError(f"name the new file of at least one client; the clients are {', '.join(predictor.clients)}")
    models = {name: read_model(folder, predictor, name) for name in features}
    files = {name: Path(path) for name, path in features.items()}
    numbered = [path for path in files.values() if is_libsvm(path)]
    if numbered and id_column is not None:
        raise InputError(f"{numbered[0]}: LIBSVM files have no ids; rows are numbered, without a column of ids (--id)")
    columns = {name: None if numbered else id_column or _id_column(folder, name) for name in features}
    rows = {name: _read(files[name], columns[name], model) for name, model in models.items()}
    if numbered:
        check_sizes([*rows.values()])
    ids, numbers, ordered = align_rows([*rows.values()])
    which, own = dict(zip(models, numbers, strict=True)), dict(zip(models, ordered, strict=True))
    # A small checkpoint can have a wide layer, so what is held of the rows has a limit, not their number.
    n_numbers = predictor.n_numbers + sum(model.n_numbers for model in models.values())
    # Four parts of an evaluation: what malloc maps (32 MiB or more) goes back to the system. Smaller layers fragment
    # the heap around the scores that are kept, which took 12 GB for 1,500 parts.
    size = max(1, 4 * PART_BYTES // (8 * n_numbers))
    predictions = Predictions.joined(
        [
            _predict_part(predictor, models, own, which, range(start, min(start + size, len(ids))))
            for start in range(0, max(1, len(ids)), size)
        ]
    )
    sources = [
        Source(name, files[name], len(which[name]), len(ids) - len(which[name]), rows[name].ignored)
        if name in files
        else Source(name, None, 0, len(ids))
        for name in predictor.clients
    ]
    if all(own.ids.are_stored_as_numbers for own in rows.values()):
        ids = _as_numbers(ids)
    return PredictedRows(ids, next(iter(columns.values())) or ROW, predictions, tuple(sources))


def _read(path: Path, id_column: str | None, model: ClientModel) -> NewRows:
    columns = model.preparation.numeric, model.preparation.text
    if is_libsvm(path):
        return read_libsvm_rows(model.name, path, *columns)
    return read_rows(model.name, path, id_column, *columns)


def _predict_part(
    predictor: Predictor,
    models: Mapping[str, ClientModel],
    own: Mapping[str, ClientData],
    which: Mapping[str, NDArray[np.intp]],
    part: range,
) -> Predictions:
    """Return predictions for a part of all rows; `own` are those that each client has, and `which` their numbers."""
    clients, numbers = [], {}
    for name, model in models.items():
        first, last = np.searchsorted(which[name], [part.start, part.stop])
        if first < last:
            # From here on, the client side has its rows, and the server's side has the numbers of those rows.
            clients.append(Client.of_new_rows(model, own[name].take(np.arange(first, last))))
            numbers[name] = which[name][first:last] - part.start
    return predict_rows(predictor, InProcess(clients), numbers, len(part))


def read_predictor(folder: RunFolder, what: str) -> Predictor:
    """Return the server's part of a trained model; raise InputError, 'is not `what`', unless the run is finished."""
    transcript = folder.open(for_values=False)
    extent, path = folder.extent(transcript), folder.checkpoints_path / SERVER
    refuse_running(extent, what)
    if not path.exists():
        raise InputError(
            f"there are no models in {folder}, as it has no {path.relative_to(folder.path)}: it was only recorded, in "
            "a training elsewhere, or its checkpoints were deleted"
        )
    predictor = Predictor.read(path)
    if extent.is_unfinished or predictor.n_records != transcript.n_records:
        raise InputError(
            f"the training in {folder} is not finished, {extent} so far, so it is not {what} yet: continue it with "
            "verfedsv run --resume"
        )
    return predictor


def read_model(folder: RunFolder, predictor: Predictor, client: str) -> ClientModel:
    """Return the trained model of a client; raise InputError if there is no such client."""
    if client not in predictor.clients:
        known = ", ".join(map(repr, predictor.clients))
        raise InputError(f"{client!r} is not a client with a model in {folder}; the clients are {known}")
    if predictor.rounds[client] < 0:
        raise InputError(
            f"{client!r} has no model in {folder}: the training ended before it joined. Leave it out: it counts with "
            "embeddings of zero"
        )
    begin = folder.checkpoints_path / client_file(predictor.clients.index(client))
    path, width = path_of_round(begin, predictor.rounds[client]), len(predictor.means[client])
    if not path.exists():
        raise InputError(f"{path} is missing: {_where_else(folder, client)}")
    model = ClientModel.read(path, client)
    if model.width != width:
        raise InputError(
            f"{path} is damaged: the embeddings of {client!r} have {model.width} numbers, and the server takes {width}"
        )
    return model


def _where_else(folder: RunFolder, client: str) -> str:
    """Return where a client's model is that is not in the folder of the run."""
    config = folder.config()
    if config is None or config.server is None:
        return "restore it from a backup, or train again"
    return (
        f"{client!r} was on another machine, and its model is there, as model.npz in the folder of its verfedsv join. "
        "To predict with it, use verfedsv predict --serve, and verfedsv join --predict there"
    )


def _as_cell(value: str | float) -> str | float:
    """Return a value that a spreadsheet does not evaluate; numbers, also those written as text, stay as they are."""
    is_plain = not isinstance(value, str) or _NUMBER.fullmatch(value)
    return value if is_plain else spreadsheet_text(str(value))


def _as_numbers(ids: pa.Array) -> pa.Array:
    """Return ids as whole numbers, unless one has more than 64 bits."""
    try:
        return ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return ids


def _id_column(folder: RunFolder, client: str) -> str:
    """Return the column of ids that the configuration names for a client."""
    config = folder.config()
    named = {} if config is None else {section.name: section.id for section in config.client}
    return named.get(client, "id")
