"""`Recorder`: record who uploaded which embeddings for which samples, and when."""

from __future__ import annotations

import datetime as dt
import os
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from verfedsv._version import __version__
from verfedsv.arguments import as_samples, as_whole
from verfedsv.arrays import Array
from verfedsv.errors import InputError, TranscriptError, TranscriptWarning, warn
from verfedsv.losses import Loss, is_own
from verfedsv.settings import ValuationSettings
from verfedsv.texts import count, misleading
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Description, Mode, Step
from verfedsv.transcript.format import Kind
from verfedsv.transcript.heads import RecordedHead
from verfedsv.transcript.inputs import (
    as_batches,
    as_embeddings,
    as_labels,
    as_names,
    as_offset,
    as_time,
    as_uploads,
)
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.meaning import Roster
from verfedsv.transcript.messages import RecordMessage
from verfedsv.transcript.objects import ObjectStorage
from verfedsv.transcript.reader import Transcript, describe
from verfedsv.transcript.resuming import continue_transcript, find_transcript, remove_unused
from verfedsv.transcript.segments import SegmentWriter
from verfedsv.transcript.storage import FolderStorage, MemoryStorage, Storage

SEGMENT_ROUNDS = 1000
STORE_SEGMENT_ROUNDS = 100
"""Default numbers of rounds in a segment, in a folder or memory, and in an object store."""


class Recorder:
    """Writes a transcript of vertical training in a folder, an object store ("s3://bucket/run") or memory (None).

    `labels` has one entry per sample, `clients` the names of the clients that take part from the start. `loss` is
    "logistic", "softmax", "squared" (half the squared distance) or a `Loss` of your own. Labels that are text or
    booleans are recorded as numbers of classes, in alphabetical order or that of ordered pandas categories, with their
    names in `transcript.description.classes`; numbers written as text are numbers. Squared loss has no classes, and
    booleans stay booleans. `classes` names the classes 0, 1, ... of labels that are numbers, also those that no label
    has. `n_classes` is for softmax, if the labels do not show every class, and for losses of your own. `no_gradient`
    lists samples that receive no gradients in training.

    `head` is how the server combines embeddings: "sum", or a torch module that takes those of all clients concatenated,
    in the order of joining, and gives what the loss takes. Its parameters are recorded now and at each time stamp, as
    they are then. A head that cannot be valued is refused before the first record. This needs the widths of all
    clients' embeddings: unless the first round has all of them, or if clients join later, pass `widths`, by name, in
    the order in which the head takes them.

    What was agreed is recorded for statements and audits, which compare it: `valuation`, the settings of the valuation
    (arguments of `value` by name; None for its defaults); `step`, the step that clients should take (a text, or a few
    settings by name); `n_planned`, the number of rounds; `intercept`, whether the server may add an offset. None means
    not agreed. If `intercept` is False, an offset is an error.

    A transcript of the same training in the folder is verified and continued: with a TranscriptWarning if `resume` is
    None, silently if True; if False, it is an error. What a crash left unfinished is cut off, with a TranscriptWarning.
    A new file begins every `segment_rounds` rounds, by default 1,000 (in an object store 100) or as in the transcript
    that is continued.

    Synchronous training calls `log` once per round. Asynchronous training calls `update` for each upload and `stamp` at
    each time of valuation. A batch is a list of sample numbers, or a mask of all samples. Embeddings are NumPy arrays,
    torch tensors or data frames, (samples,) or (samples, width). When a call returns, what it recorded survives the end
    of the process; when it raises, nothing was recorded. Objects cannot be appended to: in an object store, what was
    recorded since a file began is there only after `sync` or `close`.

    >>> with Recorder(None, labels=[0, 1, 1], clients=["bank", "telco"]) as recorder:
    ...     recorder.log([0, 2], {"bank": [0.1, 0.2], "telco": [0.0, -0.3]})
    >>> recorder.transcript.n_rounds
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        labels: ArrayLike,
        clients: Sequence[str],
        loss: str | Loss = "logistic",
        *,
        head: Any = "sum",
        widths: Mapping[str, int] | None = None,
        valuation: Mapping[str, Any] | ValuationSettings | None = None,
        step: Step | None = None,
        n_planned: int | None = None,
        intercept: bool | None = None,
        n_classes: int | None = None,
        classes: Sequence[str] | None = None,
        no_gradient: ArrayLike | None = None,
        resume: bool | None = None,
        segment_rounds: int | None = None,
    ) -> None:
        names = as_names(clients)
        if not isinstance(path, str | os.PathLike | None):
            raise InputError(f"path must be a folder, or None to record in memory; received {path!r}")
        place = None if path is None else as_location(path)
        rounds = STORE_SEGMENT_ROUNDS if isinstance(place, str) else SEGMENT_ROUNDS
        if segment_rounds is not None:
            rounds = segment_rounds
        self._labels = as_labels(labels, loss, n_classes, classes)
        self._head = RecordedHead(head, widths)
        n_samples = len(self._labels.numbers)
        receives = np.ones(n_samples, dtype=bool)
        if no_gradient is not None:
            receives[as_samples("no_gradient", no_gradient, n_samples, may_be_empty=True)] = False
        if self._labels.n_classes is None and self._head.description.kind != "sum":
            raise InputError("pass n_classes: how many numbers per sample the head gives to your loss")
        try:
            self._description = Description(
                clients=names,
                loss=self._labels.loss.name,
                is_own_loss=is_own(self._labels.loss),
                n_samples=n_samples,
                n_classes=self._labels.n_classes,
                created=dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
                package=f"verfedsv {__version__}",
                classes=self._labels.classes,
                head=self._head.description,
                valuation=ValuationSettings.of(valuation),
                step=dict(step) if isinstance(step, Mapping) else step,
                n_planned=n_planned,
                intercept=intercept,
                segment_rounds=as_whole("segment_rounds", rounds, at_least=1),
            )
        except TranscriptError as error:
            raise InputError(str(error).partition(" is not valid: ")[2]) from None
        self._check_valuation(len(names) + (intercept is True))
        for sentence in [*misleading(names), *self._labels.doubts]:
            warn(sentence, TranscriptWarning)
        self._storage = _storage_at(place)
        self._writer = SegmentWriter(self._storage, self._description.segment_rounds)
        self._closed = self._has_warned = False
        self._roster = Roster.of_founders(names)
        self._last_time, self._n_rounds = -np.inf, 0
        try:
            labels_file = self._labels.file(receives)
            there = find_transcript(self._storage)
            if there is not None:
                self._continue(there, labels_file, resume, segment_rounds)
            if self._writer.number == 0:
                self._begin(labels_file)
        except BaseException:
            self.close()
            raise

    def _begin(self, labels_file: bytes) -> None:
        """Write what is known before the first record. If widths were given, the head is tried before that."""
        if self._description.head.clients:
            self._description = self._begin_head({}, self._description)
        remove_unused(self._storage, self._description.head)
        self._head.write(self._storage)
        self._storage.write(fmt.LABELS, labels_file)
        self._storage.write(fmt.DESCRIPTION, self._description.to_json())

    def _continue(
        self, there: Description, labels_file: bytes, resume: bool | None, segment_rounds: int | None
    ) -> None:
        if resume is False:
            raise InputError("the folder already holds a transcript; choose another, or continue it with resume=True")
        given = self._description
        self._writer, verified = continue_transcript(self._storage, there, given, labels_file, segment_rounds)
        self._n_rounds, self._last_time, self._roster = verified.n_rounds, verified.last_time, verified.roster
        if self._writer.number:  # if not, the first record was cut off, and the arguments given now apply
            self._description = there
        if resume is None:
            warn(
                f"the folder holds a transcript of {count(self._n_rounds, 'round')}, which is continued; "
                "pass resume=True to confirm, or choose another folder",
                TranscriptWarning,
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        about = describe(self._description, len(self._roster.clients))
        return f"<Recorder: {about}, {count(self._n_rounds, 'round')} so far, {state}>"

    @property
    def transcript(self) -> Transcript:
        """The transcript of what has been recorded so far."""
        return Transcript(self._storage)

    @property
    def n_rounds(self) -> int:
        """The number of rounds so far."""
        return self._n_rounds

    @property
    def own_head(self) -> Any:
        """The torch module that combines embeddings, if it is not made of common layers; else None."""
        return self._head.module if self._description.head.layers is None else None

    @property
    def members(self) -> tuple[str, ...]:
        """The clients that take part now, in the order of joining."""
        return tuple(name for name in self._roster.clients if name in self._roster.members)

    def join(self, client: str, *, time: float | None = None) -> None:
        """Record that a client takes part from now on, for the first time or again.

        `time` defaults to that of the last record in synchronous training, else to the clock, in seconds since 1970.
        """
        self._change(client, Kind.JOIN, time)

    def leave(self, client: str, *, time: float | None = None) -> None:
        """Record that a client stops taking part; `time` is as in `join`."""
        self._change(client, Kind.LEAVE, time)

    def _change(self, client: str, kind: Kind, time: float | None) -> None:
        self._check_open()
        is_join = kind is Kind.JOIN
        try:
            roster = self._roster.joined(client) if is_join else self._roster.left(client)
        except ValueError as error:
            raise InputError(str(error)) from None
        if is_join:
            self._check_head_takes(client)
            self._check_valuation(len(roster.clients))
            for sentence in misleading(roster.clients):
                warn(sentence, TranscriptWarning)
        if self._writer.number == 0:  # before the first record, this changes the initial clients
            founders = roster.clients if is_join else tuple(name for name in roster.clients if name != client)
            if not founders:
                raise InputError(f"client {client!r} is the only one, and a training needs at least one")
            self._description = replace(self._description, clients=founders)
            self._storage.write(fmt.DESCRIPTION, self._description.to_json())
            self._roster = Roster.of_founders(founders)
            return
        at = self._last_time if time is None and self._description.mode == "synchronous" else self._now(time)
        self._write(kind, RecordMessage(("join" if is_join else "leave",), (client,), at, [None]))
        self._roster = roster

    def log(
        self,
        batch: ArrayLike | Mapping[str, ArrayLike],
        embeddings: Mapping[str, ArrayLike],
        offset: ArrayLike | None = None,
        *,
        absent: Sequence[str] = (),
        time: float | None = None,
    ) -> None:
        """Record one synchronous round: the embeddings of every client for the samples `batch`.

        If clients upload different samples, `batch` maps each client to its own. Clients that miss the round must be in
        `absent`. The head adds `offset`: a number or one number per class, the same for all samples; or one row per
        sample of the batch, or of all samples if `batch` is a mapping. `time` defaults to the number of the round.
        """
        members = self.members
        given = as_uploads(embeddings, absent, members)
        n_samples = self._description.n_samples
        batches, is_one = as_batches(batch, [*given], n_samples)
        uploads = {name: self._as_embeddings(name, values, len(batches[name])) for name, values in given.items()}
        first, *others = batches.values()
        added = None
        if offset is not None:
            added = self._as_offset(offset, len(first) if is_one else n_samples, uploads)
            if not is_one and added.ndim == 2 and all(np.array_equal(first, other) for other in others):
                added = added[first]  # the mapping has one batch for all
        description = self._describe("synchronous", uploads, added)
        at = float(self._n_rounds + 1) if time is None else as_time(time)
        rows = [(batches[name], uploads[name]) if name in uploads else None for name in members]
        kinds = tuple("absent" if row is None else "upload" for row in rows)
        message = RecordMessage((*kinds, "stamp"), (*members, None), at, [*rows, None], added)
        self._write(Kind.ROUND, message, description)

    def update(self, client: str, batch: ArrayLike, embeddings: ArrayLike, *, time: float | None = None) -> None:
        """Record one asynchronous upload. `time` defaults to the clock, in seconds since 1970."""
        if client not in self._roster.members:
            has_left = client in self._roster.clients
            why = "has left, and must join again" if has_left else "is unknown"
            how = f"recorder.join({client!r}) adds {'it again' if has_left else 'one'}"
            raise InputError(f"client {client!r} {why}; the clients are {', '.join(self.members)}, and {how}")
        samples = as_samples("batch", batch, self._description.n_samples)
        array = self._as_embeddings(client, embeddings, len(samples))
        message = RecordMessage(("upload",), (client,), self._now(time), [(samples, array)])
        self._write(Kind.UPLOAD, message, self._describe("asynchronous", {client: array}, None))

    def stamp(self, offset: ArrayLike | None = None, *, time: float | None = None) -> None:
        """Record a time of valuation, which ends a round; the head adds `offset`, as in `log`.

        If it differs between samples, it has one row for every sample. `time` is as in `update`.
        """
        added = None if offset is None else self._as_offset(offset, self._description.n_samples, {})
        message = RecordMessage(("stamp",), (None,), self._now(time), [None], added)
        self._write(Kind.ROUND, message, self._describe("asynchronous", {}, added))

    def sync(self) -> None:
        """Write what was recorded to the disk, so that it also survives a power failure."""
        self._storage.sync()

    def close(self) -> None:
        """End the recording. Another recorder can continue the transcript."""
        self._closed = True
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _now(self, time: float | None) -> float:
        """Return the given time, else the later of the clock and the last record, with a warning if that differs."""
        if time is not None:
            return as_time(time)
        now = clock.time()
        if now >= self._last_time:
            return now
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"the clock says {now}, earlier than the last record ({self._last_time}); until it catches up, "
                "records get the time of the last one",
                TranscriptWarning,
            )
        return self._last_time

    def _describe(self, mode: Mode, uploads: Mapping[str, Array], offset: Array | None) -> Description:
        """Return the description with what this record shows; raise InputError if it does not fit earlier ones."""
        description = self._description
        if description.mode not in (None, mode):
            calls = "log" if description.mode == "synchronous" else "update and stamp"
            raise InputError(f"this transcript is {description.mode}: use {calls}")
        arrays = [*uploads.items(), *([] if offset is None else [("offset", offset)])]
        wide = [name for name, array in arrays if array.dtype != np.float32]
        if description.precision == "float32" and wide:
            raise InputError(
                f"{wide[0]}: received float64, but this transcript began with float32 embeddings; convert to float32"
            )
        if description.mode is not None:
            return description
        n_classes = description.n_classes or self._labels.find_n_classes([array.shape[1] for array in uploads.values()])
        if not arrays or n_classes is None:
            raise InputError("a transcript must begin with an upload, as there is nothing to value before it")
        return replace(description, mode=mode, n_classes=n_classes, precision="float64" if wide else "float32")

    def _as_embeddings(self, client: str, values: ArrayLike, n_samples: int) -> Array:
        head = self._description.head
        if head.kind == "sum":
            width, advice = self._description.n_classes, self._labels.advice
        else:
            stated = dict(zip(head.clients, head.widths, strict=True))
            width = stated.get(client, self._roster.widths.get(client))
            whence = "as stated in widths=, or in the first round" if client in stated else "as in its earlier uploads"
            advice = f"The head takes that many numbers of this client, {whence}"
        return as_embeddings(f"{client}: embeddings", values, n_samples, width, advice)

    def _as_offset(self, offset: ArrayLike, n_samples: int, uploads: Mapping[str, Array]) -> Array:
        """Return the offset in the precision of the embeddings."""
        description, arrays = self._description, [*uploads.values()]
        if description.head.kind != "sum":
            raise InputError("a head with parameters has no offset: make it a layer of the head, or a client")
        if description.intercept is False:
            raise InputError("it was agreed that the server adds no offset (intercept=False)")
        self._check_valuation(len(self._roster.clients) + 1)
        is_single = arrays and all(array.dtype == np.float32 for array in arrays)
        precision = description.precision or ("float32" if is_single else None)
        return as_offset(offset, n_samples, description.n_classes or (arrays[0].shape[1] if arrays else 1), precision)

    def _check_head_takes(self, client: str) -> None:
        """Raise InputError if the head has no place for the embeddings of a client that joins."""
        known = self._description.head.clients
        if known and client not in known:
            raise InputError(
                f"client {client!r} cannot join: the head takes the embeddings of {', '.join(known)}; pass those of "
                "clients that join later in widths= when the training begins, and zeros take their place until then"
            )

    def _check_valuation(self, n_players: int) -> None:
        """Raise InputError if the agreed valuation could not be computed for that many clients, the server included."""
        self._description.valuation.check_players(n_players)

    def _begin_head(self, uploaded: Mapping[str, int], description: Description) -> Description:
        """Return the description with the head, tried on embeddings of the stated widths or of those `uploaded`."""
        n_classes = description.n_classes or 1
        return replace(description, head=self._head.begin(uploaded, description.clients, n_classes, self._storage))

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the recorder is closed; create another on the folder to continue")

    def _write(self, kind: Kind, message: RecordMessage, description: Description | None = None) -> None:
        """Append a record.

        Raises InputError if the recorder is closed, no round is left in the plan, or time is out of range or runs
        backwards.
        """
        self._check_open()
        n_planned = self._description.n_planned
        if kind is Kind.ROUND and n_planned is not None and self._n_rounds >= n_planned:
            raise InputError(f"all agreed rounds (n_planned={n_planned}) have been recorded")
        time = message.time
        if not abs(time) <= fmt.LATEST:
            raise InputError(f"time must be in seconds, from {-fmt.LATEST:g} to {fmt.LATEST:g}; received {time}")
        if time < self._last_time:
            raise InputError(f"time must not run backwards: received {time}, after {self._last_time}")
        if self._description.head.kind != "sum":
            if description is not None and self._description.mode is None and not description.head.clients:
                description = self._begin_head(_widths_of(message), description)
            if kind is Kind.ROUND:
                message = replace(message, state=self._head.write(self._storage))
        self._writer.write(kind, message, description or self._description)
        self._description, self._last_time = description or self._description, time
        self._n_rounds += kind is Kind.ROUND
        if self._description.head.kind != "sum":  # if it is, all clients have the same width
            self._roster = replace(self._roster, widths={**self._roster.widths, **_widths_of(message)})
        # Seal now: a full segment is never appended to again, and the transcript's head changes only with a record.
        self._writer.seal_if_full()


def _storage_at(place: Path | str | None) -> Storage:
    if place is None:
        return MemoryStorage()
    return ObjectStorage(place) if isinstance(place, str) else FolderStorage(place, writable=True)


def _widths_of(message: RecordMessage) -> dict[str, int]:
    """Return the width of the embeddings of each client that uploads in a message."""
    rows = zip(message.clients, message.uploads, strict=True)
    return {str(client): upload[1].shape[1] for client, upload in rows if upload is not None}
