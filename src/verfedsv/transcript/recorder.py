"""`Recorder`: write down who uploaded which embeddings for which samples, and when."""

from __future__ import annotations

import datetime as dt
import os
import time as clock
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv._version import __version__
from verfedsv.errors import InputError, TranscriptError, TranscriptWarning
from verfedsv.losses import Array
from verfedsv.shapley.result import count
from verfedsv.texts import misleading
from verfedsv.transcript import format as fmt
from verfedsv.transcript.inputs import as_embeddings, as_labels, as_names, as_offset, as_samples, as_time, as_uploads
from verfedsv.transcript.meaning import check_fit
from verfedsv.transcript.messages import Record, build_message
from verfedsv.transcript.reader import Transcript, describe
from verfedsv.transcript.recovery import check_end, cut_off
from verfedsv.transcript.storage import FolderStorage, MemoryStorage, Storage

_MOST_NUMBERS = 2**31 - 1
"""Of one record: Arrow counts them with 32 bits."""


class Recorder:
    """Writes a transcript of vertical training, in a folder or, with `path` None, in memory.

    `labels` has one entry per sample, `clients` one name per client, `loss` is the name of the loss. Labels that are
    texts or truth values are recorded as numbers, in the order of the texts; `transcript.description.classes` has the
    texts. `n_classes` is for softmax, where the labels do not show every class. `no_gradient` lists the samples that
    receive no gradients in training, if any. A folder that already holds a transcript of the same clients, loss and
    labels is verified and continued, with a TranscriptWarning unless `resume` is True; if it is False, that is an
    error. What a crash left unfinished there is cut off, with a TranscriptWarning.

    Synchronous training calls `log` once per round. Asynchronous training calls `update` for each upload and
    `stamp` at each time of valuation. A batch is a list of sample numbers, or a mask of all samples. Embeddings are
    NumPy arrays, torch tensors or data frames, (samples of the batch,) or (samples, classes). When a call returns, what
    it recorded survives the end of the process; when it raises, nothing was written.

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
        loss: str = "logistic",
        *,
        n_classes: int | None = None,
        no_gradient: ArrayLike | None = None,
        resume: bool | None = None,
    ) -> None:
        names = as_names(clients)
        self._labels = as_labels(labels, loss, n_classes)
        n_samples = len(self._labels.numbers)
        receives = np.ones(n_samples, dtype=bool)
        receives[as_samples(no_gradient if no_gradient is not None else [], n_samples, "no_gradient")] = False
        for sentence in [*misleading(names), *self._labels.doubts]:
            warnings.warn(sentence, TranscriptWarning, 2)
        self._storage: Storage = MemoryStorage() if path is None else FolderStorage(Path(path), writable=True)
        self._closed = self._has_warned = False
        self._end, self._head, self._last_time, self._n_rounds = 0, b"", -np.inf, 0
        try:
            self._description = fmt.Description(
                clients=names,
                loss=loss,
                n_samples=n_samples,
                created=dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
                package=f"verfedsv {__version__}",
                classes=self._labels.classes,
            )
            content = self._labels.file(receives)
            there = self._find()
            if there is None:
                self._storage.write(fmt.LABELS, content)
                self._storage.write(fmt.DESCRIPTION, self._description.to_json())
            else:
                self._continue(there, content, resume)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Recorder: {describe(self._description)}, {count(self._n_rounds, 'round')} so far, {state}>"

    @property
    def transcript(self) -> Transcript:
        """What has been recorded so far."""
        return Transcript(self._storage)

    @property
    def n_rounds(self) -> int:
        """The number of time stamps so far; in synchronous training, of rounds."""
        return self._n_rounds

    def log(
        self,
        batch: ArrayLike,
        embeddings: Mapping[str, ArrayLike],
        offset: ArrayLike | None = None,
        *,
        absent: Sequence[str] = (),
        time: float | None = None,
    ) -> None:
        """Record one synchronous round: the embeddings of every client for the samples `batch`.

        Clients that took no part in it are listed in `absent`. `offset` is the server's own part for those samples:
        shaped as one client's embeddings, or a number, or one number per class, that is the same for all. `time`
        defaults to the number of the round.
        """
        samples = self._as_batch(batch)
        given = as_uploads(embeddings, absent, self._description.clients)
        uploads = {name: as_embeddings(values, len(samples), name) for name, values in given.items()}
        own = None if offset is None else self._as_offset(offset, len(samples), [*uploads.values()])
        moment = float(self._n_rounds + 1) if time is None else as_time(time)
        self._write("synchronous", samples, uploads, moment, is_stamp=True, offset=own)

    def update(self, client: str, batch: ArrayLike, embeddings: ArrayLike, *, time: float | None = None) -> None:
        """Record one asynchronous upload. `time` defaults to the seconds since 1970."""
        if client not in self._description.clients:
            raise InputError(f"unknown client {client!r}; the clients are {', '.join(self._description.clients)}")
        samples = self._as_batch(batch)
        uploads = {client: as_embeddings(embeddings, len(samples), client)}
        self._write("asynchronous", samples, uploads, self._now(time), is_stamp=False)

    def stamp(self, offset: ArrayLike | None = None, *, time: float | None = None) -> None:
        """Record a time of valuation; `offset` is the server's own part at that time, for all samples, as in `log`."""
        own = None if offset is None else self._as_offset(offset, self._description.n_samples, [])
        self._write("asynchronous", np.empty(0, np.uint32), {}, self._now(time), is_stamp=True, offset=own)

    def _as_offset(self, offset: ArrayLike, n_samples: int, uploads: Sequence[Array]) -> Array:
        """Return the server's own part for so many samples, as wide and as precise as the embeddings are."""
        known = self._description
        width = uploads[0].shape[1] if uploads else known.n_classes or self._labels.width or 1
        precision = known.precision
        if precision is None and uploads and all(array.dtype == np.float32 for array in uploads):
            precision = "float32"
        return as_offset(offset, n_samples, width, precision)

    def sync(self) -> None:
        """Bring what was recorded to the disk, so that it survives a power failure too."""
        self._storage.sync()

    def close(self) -> None:
        """End the recording; the transcript can still be read, and continued by another recorder."""
        self._closed = True
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _as_batch(self, batch: ArrayLike) -> NDArray[np.uint32]:
        samples = as_samples(batch, self._description.n_samples, "batch")
        if len(samples) == 0:
            raise InputError("batch must hold at least one sample; received none")
        return samples

    def _now(self, time: float | None) -> float:
        """Return a time that was given, or that of the clock; a clock that was set back stands still meanwhile."""
        if time is not None:
            return as_time(time)
        now = clock.time()
        if now >= self._last_time:
            return now
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the clock says {now}, earlier than the last record ({self._last_time}); until it has caught up, "
                "records have the time of that one",
                TranscriptWarning,
                3,
            )
        return self._last_time

    def _find(self) -> fmt.Description | None:
        """Return what the folder's transcript is of, if uploads have begun; None if it can be begun anew."""
        has_description = self._storage.exists(fmt.DESCRIPTION)
        there = None
        if has_description:
            there = fmt.Description.from_json(self._storage.read(fmt.DESCRIPTION).to_pybytes())
        for name in (fmt.UPLOADS, fmt.CHAIN):
            has_content = self._storage.read(name).size > 0
            if has_content and there is None:
                raise TranscriptError(f"the folder has {name} and no {fmt.DESCRIPTION}; choose another folder")
            if has_content or (there is not None and there.mode is not None and not self._storage.exists(name)):
                return there
        return None

    def _continue(self, there: fmt.Description, labels_file: bytes, resume: bool | None) -> None:
        """Take up the transcript that is already there, if it is as it was written."""
        if resume is False:
            raise InputError("the folder already holds a transcript; choose another, or continue it with resume=True")
        given = self._description
        if (there.clients, there.loss, there.n_samples) != (given.clients, given.loss, given.n_samples):
            raise InputError(
                f"the folder holds a transcript of clients {list(there.clients)}, loss {there.loss!r} and "
                f"{there.n_samples} samples, which cannot be continued with clients {list(given.clients)}, loss "
                f"{given.loss!r} and {given.n_samples} samples; choose another folder"
            )
        is_same = self._storage.read(fmt.LABELS).to_pybytes() == labels_file and there.classes == given.classes
        transcript = Transcript(self._storage)
        if not is_same:
            raise InputError("the folder holds a transcript with other labels or marks; choose another folder")
        verified = transcript.verify_on()
        check_end(self._storage)
        self._n_rounds, self._last_time = verified.n_rounds, verified.last_time
        self._description = there
        del transcript  # and with it the views of files that may be cut off now
        chain, lost = cut_off(self._storage)
        if lost:
            warnings.warn(f"the transcript ended in an unfinished record, now cut off ({lost})", TranscriptWarning, 4)
        if len(chain):
            self._end, self._head = chain.end(-1), chain.link(-1)
        else:
            # What the first upload was to show was not recorded with it.
            self._description = replace(there, mode=None, n_classes=None, precision=None)
        if resume is None:
            warnings.warn(
                f"the folder holds a transcript of {count(self._n_rounds, 'round')}, which is continued; "
                "say resume=True if that is meant, or choose another folder",
                TranscriptWarning,
                4,
            )

    def _write(
        self,
        mode: fmt.Mode,
        samples: NDArray[np.uint32],
        uploads: Mapping[str, Array],
        time: float,
        *,
        is_stamp: bool,
        offset: Array | None = None,
    ) -> None:
        """Check what is left to check, and append one record batch and its link of the chain."""
        if self._closed:
            raise InputError("the recorder is closed; open the folder with a new one to continue")
        description = self._describe(mode, uploads, offset)
        if not abs(time) <= fmt.LATEST:
            raise InputError(f"time must be in seconds, from {-fmt.LATEST:g} to {fmt.LATEST:g}; received {time}")
        if time < self._last_time:
            raise InputError(f"time must not run backwards: received {time}, after {self._last_time}")
        if self._end == 0:
            self._begin(description)
        clients = description.clients if mode == "synchronous" else tuple(uploads)
        record = Record(clients, samples, [uploads.get(name) for name in clients], time, is_stamp, offset)
        self._append(*build_message(record, description.precision or "float64", self._head))
        self._last_time = time
        self._n_rounds += is_stamp

    def _describe(self, mode: fmt.Mode, uploads: Mapping[str, Array], offset: Array | None) -> fmt.Description:
        """Return the description with what this upload shows; raise InputError if it does not fit what came before."""
        known = self._description
        arrays = [*uploads.items(), *([] if offset is None else [("offset", offset)])]
        widths = {array.shape[1] for _, array in arrays} | ({known.n_classes} if known.n_classes else set())
        if len(widths) > 1:
            raise InputError(f"all embeddings must have the same number of classes; received {sorted(widths)}")
        if sum(array.size for array in uploads.values()) > _MOST_NUMBERS:
            raise InputError(f"a record holds at most {_MOST_NUMBERS:,} numbers; log smaller batches")
        if known.mode not in (None, mode):
            raise InputError(
                f"this transcript is {known.mode}: use {'log' if known.mode == 'synchronous' else 'update and stamp'}"
            )
        wide = [name for name, array in arrays if array.dtype != np.float32]
        if known.precision == "float32" and wide:
            raise InputError(
                f"{wide[0]}: received float64, and this transcript began with float32 embeddings; convert to float32"
            )
        if known.n_classes is not None or not widths:
            return known
        (n_classes,) = widths
        check_fit(self._labels.numbers, known.loss, n_classes)
        self._labels.check_width(n_classes)
        return replace(known, mode=mode, n_classes=n_classes, precision="float64" if wide else "float32")

    def _begin(self, description: fmt.Description) -> None:
        """Write the description for good and the head of the stream, from where the chain begins."""
        if description.precision is None:
            raise InputError("a transcript begins with an upload, not with a bare time stamp")
        content = description.to_json()
        for name in (fmt.UPLOADS, fmt.CHAIN):
            self._storage.append(name, b"")  # so that a file that was deleted later is missed
        self._storage.write(fmt.DESCRIPTION, content)
        self._description = description
        message = fmt.upload_schema(description.precision).serialize()
        first = fmt.first_link(content, self._storage.read(fmt.LABELS).to_pybytes())
        self._append(memoryview(message), fmt.frame_hash(first, message, fmt.frame_ranges(message, None)))

    def _append(self, message: memoryview, link: bytes) -> None:
        end = self._end + len(message)
        try:
            self._storage.append(fmt.UPLOADS, message)
            self._storage.append(fmt.CHAIN, fmt.pack_link(end, link))
        except BaseException:
            # A full disk, or Ctrl-C between the two: nothing half-written stays.
            cut_off(self._storage, self._end)
            raise
        self._end, self._head = end, link
