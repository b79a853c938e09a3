"""A data owner's program: it answers every message of the server, and keeps all that it needs to come back.

Its folder is private, and holds

    alignment/              while ids are aligned
    aligned                 which rows of the file are the common samples
    client-ROUND.npz        the model after a round, up to two of them
    journal                 what it was asked since
    training.txt            the name of the training
    received/               what the server sent at the end: values, its extract, the signed statement
    model.npz               the trained model, at the end
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, get_args

import numpy as np

from verfedsv._version import __version__
from verfedsv.alignment import Aligned, Party, read_aligned, write_aligned
from verfedsv.data.ids import Ids
from verfedsv.data.sources import ClientFile, TableRows, read_source
from verfedsv.data.tables import check_columns, read_columns
from verfedsv.errors import InputError
from verfedsv.federation import Client
from verfedsv.federation.checkpoints import client_file, path_of_round
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.messages import Answer, Done, Embed, Gradients, Predict, Refusal, Restore, Save
from verfedsv.files import remove_unfinished, write_whole
from verfedsv.network import messages as net
from verfedsv.network.aligning import answer_for, check_room
from verfedsv.network.belonging import enter_training, newest_checkpoint, training_of
from verfedsv.network.journal import Journal
from verfedsv.network.locking import lock_folder
from verfedsv.network.refusing import CANNOT, TellableError, refuse, telling
from verfedsv.network.terms import check_size, client_of, describe_terms
from verfedsv.texts import listed

RECEIVED, ALIGNMENT = "received", "alignment"
_MOST_VERSIONS = 20
"""Files of one name that are kept if the server sends different ones."""
_FEW = 1000
"""Samples that are embedded to warm up."""
_ALIGNMENT = get_args(net.AlignmentRequest)


class Member:
    """A client of a training over a network, with its features in a file.

    `folder` is its own, and locked while the member is open. With `aligned`, its owner says that the file has
    the same rows as those of the others, in the same order; without, no row is used before ids were aligned. `on_event`
    is told in words what happens.
    """

    def __init__(
        self,
        name: str,
        file: ClientFile,
        folder: Path,
        *,
        aligned: bool = False,
        on_event: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> None:
        self.name, self.folder, self._file, self._on_event = name, folder, file, on_event
        self._is_aligned = aligned
        self._source = read_source(file, None)
        check_columns(file, self._source)
        self._lock = lock_folder(folder)
        try:
            self._come_back()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, InputError) and training_of(folder):
                raise InputError(f"{error}\nFor another training, name another folder: --folder OTHER") from None
            raise

    def _come_back(self) -> None:
        """Be where the last process was that worked in the folder."""
        folder = self.folder
        self._clear_alignment()
        for each in (folder, folder / RECEIVED):
            remove_unfinished(each)
        self.party = Party(self.name, self._ids, folder / ALIGNMENT)
        self._session = secrets.token_hex(16)
        self._client: Client | None = None
        self._begin: net.Begin | None = None
        self._reached = 0
        self._aligned = self._read_aligned()
        self._journal = Journal(folder / "journal", self.name)
        self.n_planned = self.n_steps = 0
        self.unusable = ""  # why the columns cannot be trained on, if they cannot
        self.received: list[Path] = []
        self._recall()
        self._say_round()

    def close(self) -> None:
        """Unlock the folder."""
        self.party.close()
        self._clear_alignment(anew=False)
        self._lock.close()

    def _clear_alignment(self, *, anew: bool = True) -> None:
        """Delete what an interrupted alignment left behind."""
        shutil.rmtree(self.folder / ALIGNMENT, ignore_errors=True)
        if anew:
            (self.folder / ALIGNMENT).mkdir(mode=0o700)

    @property
    def _ids(self) -> Ids:
        if not isinstance(self._source, TableRows) or not self._source.ids:
            raise InputError(f"{self._file.path} must be a CSV or Parquet file with a column of ids")
        return self._source.ids[0]

    def hello(self) -> net.Hello:
        """Return the first message of a connection; its sequence number is that of the last message in the journal."""
        start = "" if self._begin is None else self._begin.start
        checksum = "" if self._aligned is None else self._aligned.checksum
        about = self.name, 0, self._reached, net.PROTOCOL, __version__, self.name
        return net.Hello(*about, self._session, time.time(), "train", start, checksum, training_of(self.folder))

    def welcome(self, message: net.Welcome) -> None:
        """Take the server's first message; raise InputError if the folder holds the model of another training."""
        enter_training(self.folder, message)

    def answer(self, message: Any) -> Any:
        """Do what a message asks for; if it comes again, return the same answer.

        Raises OSError if something of a training cannot be written, as on a full disk. The process then ends, and the
        server waits for it: with a refusal, the training would go on without it.
        """
        try:
            return self._carry_out(message)
        except CANNOT as error:
            if isinstance(message, net.Begin) and not isinstance(error, TellableError):
                self.unusable = str(error)
            return refuse(message, error, self._on_event)

    def _carry_out(self, message: Any) -> Any:
        done = Done(message.client, message.round, message.sequence)
        match message:
            case net.Begin():
                self._start(message)
            case net.Deliver():
                self._keep(message)
            case Embed() | Gradients() | Predict() | Save() | Restore():
                return self._train(message)
            case _ if isinstance(message, _ALIGNMENT):
                with telling():
                    if isinstance(message, net.StartAlignment):
                        check_room(self.folder, sum(message.sizes))
                    answer = answer_for(self.party, message)
                if isinstance(message, net.Agree) and self.party.aligned is not None:
                    self._keep_aligned(self.party.aligned)
                return answer
            case _:
                raise TellableError(f"{type(message).__name__} is not for a client")
        return done

    # Alignment

    def _read_aligned(self) -> Aligned | None:
        path = self.folder / "aligned"
        if not path.exists():
            return None
        try:
            return read_aligned(path, self._ids)
        except InputError as error:
            if newest_checkpoint(self.folder) is not None:
                raise InputError(
                    f"the model in {self.folder} was trained with other ids than those in {self._file.path}, or {path} "
                    "is damaged: restore it"
                ) from None
            self._on_event(f"{error}; ids are aligned again")
            return None

    def _keep_aligned(self, aligned: Aligned) -> None:
        # The rows of an earlier training were those of another alignment.
        self._begin = self._client = None
        self._reached = 0
        self._journal.begin()
        write_aligned(self.folder / "aligned", aligned, self._ids)
        self._aligned = aligned
        shown = ", ".join(f"{rate:.1%} of {name}'s {aligned.sizes[name]:,}" for name, rate in aligned.rates.items())
        self._on_event(f"{aligned.n_common:,} ids are common to all: {shown}")

    # Training

    def _start(self, message: net.Begin) -> None:
        """Begin a training with a new model."""
        if self._begin is not None and self._begin.start == message.start:
            return
        self.unusable = ""
        self._client = self._build(message)
        self._on_event(describe_terms(message))
        # What takes time once, takes it now, and not in the first round.
        self._client.answer(Predict(self.name, 0, 0, np.arange(min(len(message.samples), _FEW))))
        self._journal.begin(message)
        self._begin, self._reached, self.n_planned, self.n_steps = message, 0, message.n_planned, 0

    def _build(self, message: net.Begin) -> Client:
        rows, learning = self._rows(message.samples), message.learning
        with telling():
            check_size(learning)
        if message.is_test.shape != message.samples.shape:
            raise TellableError("which samples are for testing must be said of each")
        is_test = message.is_test.astype(bool)
        read = read_columns(self.name, self._file, self._source, rows, is_test)
        for text in (read.note, *read.cautions):
            self._on_event(text)
        if read.client is None:
            raise InputError(f"{self._file.path} has no features")
        return client_of(read.client, is_test, learning, self.folder / client_file(0))

    def _rows(self, samples: Any) -> Any:
        """Return the rows of the file that hold these samples of those that were aligned."""
        if self._aligned is None and not self._is_aligned:
            raise TellableError(
                "its ids were never aligned with those of the others, so the server would get embeddings of all its "
                "rows. If all files have the same rows in the same order, join with --aligned"
            )
        known = np.arange(len(self._ids)) if self._aligned is None else self._aligned.rows
        if samples.ndim != 1 or samples.dtype != np.int64 or not len(samples):
            raise TellableError("the samples of a training must be a list of whole numbers")
        if samples.min() < 0 or samples.max() >= len(known) or len(np.unique(samples)) < len(samples):
            raise TellableError(f"samples must be different numbers from 0 to {len(known) - 1:,}")
        return known[samples].astype(np.int64)

    def _train(self, message: Embed | Gradients | Predict | Save | Restore) -> Answer:
        if self._client is None or self._begin is None:
            raise TellableError("no training has begun")
        if isinstance(message, Embed | Gradients):
            self._journal.add(message)
            self._reached = message.sequence
        answer = self._client.answer(message)
        if isinstance(answer, Refusal):  # of a checkpoint, with its path
            raise (InputError if isinstance(message, Save | Restore) else TellableError)(answer.reason)
        step = message.gradients if isinstance(message, Embed) else message
        if step is not None:
            self.n_steps = step.round
        if isinstance(message, Save | Restore):
            self._journal.begin(self._begin, message)
            self._reached = message.sequence
            if isinstance(message, Restore):
                self._say_round()
        return answer

    def _say_round(self) -> None:
        if self.n_steps:
            self._on_event(f"continuing from round {self.n_steps:,} of {self.n_planned:,}")

    def _recall(self) -> None:
        """Come back to where a killed process was."""
        for message in self._journal:
            match message:
                case net.Begin():
                    self._begin, self._client = message, self._build(message)
                    self.n_planned = message.n_planned
                    continue
                case Save() | Restore() if not self._has_checkpoint(message.round):
                    self._on_event(f"the checkpoint of round {message.round:,} is gone from {self.folder}")
                    self._begin = self._client = None
                    return
                case Save() if self._client is not None:
                    self._client.recall(message)
                case Embed() | Gradients() | Restore() if self._client is not None:
                    self._client.answer(message)
            self.n_steps, self._reached = message.round, message.sequence

    def _has_checkpoint(self, round_number: int) -> bool:
        return path_of_round(self.folder / client_file(0), round_number).exists()

    # The end

    def _keep(self, message: net.Deliver) -> None:
        """Write a file that the server sent, beside earlier ones with another content, which may be evidence."""
        if message.name not in net.DELIVERED:
            raise TellableError(
                f"{message.name[:80]!a} is none of the files that a client gets: {listed(net.DELIVERED)}"
            )
        folder, first = self.folder / RECEIVED, PurePath(message.name)
        folder.mkdir(exist_ok=True)
        others = (f"{first.stem}-{number}{first.suffix}" for number in range(2, _MOST_VERSIONS + 1))
        for path in (folder / each for each in (first.name, *others)):
            if not path.exists():
                write_whole(path, message.content, overwrite=False)
                if path.name != message.name:
                    self._on_event(f"another {message.name} was received before; this one is {path}")
            elif path.read_bytes() != message.content:
                continue
            if path not in self.received:
                self.received.append(path)
            return
        raise InputError(f"{folder} has {_MOST_VERSIONS} different files {message.name} already: move them away")

    def write_model(self) -> Path | None:
        """Write the model of the last checkpoint to a file of its own, None if there is none."""
        newest = newest_checkpoint(self.folder)
        if newest is None:
            return None
        path = self.folder / "model.npz"
        write_whole(path, ClientModel.read(newest, self.name).to_bytes())
        return path
