"""`Recorder`: write down who uploaded which embeddings for which samples, and when."""

from __future__ import annotations

import datetime as dt
import io
import os
import time as clock
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from verfedsv._version import __version__
from verfedsv.arguments import as_array
from verfedsv.errors import InputError, TranscriptWarning
from verfedsv.losses import Array, get_loss
from verfedsv.shapley.result import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain
from verfedsv.transcript.messages import Record, build_message
from verfedsv.transcript.reader import Transcript, describe
from verfedsv.transcript.storage import FolderStorage, MemoryStorage, Storage


class Recorder:
    """Writes a transcript of vertical training, in a folder or, with `path` None, in memory.

    `labels` has one entry per sample, `clients` one name per client, `loss` is the name of the loss. `no_gradient`
    lists the samples that receive no gradients in training, if any. A folder that already holds a transcript of the
    same clients, loss and labels is continued, with a TranscriptWarning unless `resume` is True; if it is False, that
    is an error. What a crash left unfinished there is cut off, with a TranscriptWarning.

    Synchronous training calls `log` once per iteration. Asynchronous training calls `update` for each upload and
    `stamp` at each time of valuation. Embeddings are NumPy arrays or torch tensors, (samples of the batch,) or
    (samples, classes). When a call returns, what it recorded survives the end of the process; when it raises, nothing
    was written.

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
        no_gradient: ArrayLike | None = None,
        resume: bool | None = None,
    ) -> None:
        names = _as_names(clients)
        values = _as_labels(labels, loss)
        receives = np.ones(len(values), dtype=bool)
        receives[_as_samples(no_gradient if no_gradient is not None else [], len(values), "no_gradient")] = False
        self._storage: Storage = MemoryStorage() if path is None else FolderStorage(Path(path), writable=True)
        self._closed = False
        try:
            self._description = fmt.Description(
                clients=names,
                loss=loss,
                n_samples=len(values),
                created=dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
                package=f"verfedsv {__version__}",
            )
            self._labels = values
            content = _labels_file(values, receives)
            if self._storage.exists(fmt.DESCRIPTION):
                there = fmt.Description.from_json(self._storage.read(fmt.DESCRIPTION).to_pybytes())
            if self._storage.read(fmt.UPLOADS).size:
                self._continue(there, content, resume)
            else:
                self._storage.write(fmt.LABELS, content)
                self._storage.write(fmt.DESCRIPTION, self._description.to_json())
                self._end, self._head, self._last_time, self._n_rounds = 0, b"", -np.inf, 0
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
        """The number of time stamps so far; in synchronous training, of iterations."""
        return self._n_rounds

    def log(
        self,
        batch: ArrayLike,
        embeddings: Mapping[str, ArrayLike],
        offset: ArrayLike | None = None,
        *,
        time: float | None = None,
    ) -> None:
        """Record one synchronous iteration: the embeddings of every client for the samples `batch`.

        `offset` is the server's own part for those samples, shaped as one client's embeddings. `time` defaults to the
        number of the iteration.
        """
        samples = self._as_batch(batch)
        if not isinstance(embeddings, Mapping):
            raise InputError(
                f"embeddings must map the name of each client to its array; received {type(embeddings).__name__}"
            )
        missing = [name for name in self._description.clients if name not in embeddings]
        unknown = [name for name in embeddings if name not in self._description.clients]
        if missing or unknown:
            raise InputError(
                "a synchronous iteration needs the embeddings of every client: "
                f"missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        uploads = {name: _as_embeddings(embeddings[name], len(samples), name) for name in self._description.clients}
        own = None if offset is None else _as_embeddings(offset, len(samples), "offset")
        moment = float(self._n_rounds + 1) if time is None else _as_time(time)
        self._write("synchronous", samples, uploads, moment, is_stamp=True, offset=own)

    def update(self, client: str, batch: ArrayLike, embeddings: ArrayLike, *, time: float | None = None) -> None:
        """Record one asynchronous upload. `time` defaults to the seconds since 1970."""
        if client not in self._description.clients:
            raise InputError(f"unknown client {client!r}; the clients are {', '.join(self._description.clients)}")
        samples = self._as_batch(batch)
        uploads = {client: _as_embeddings(embeddings, len(samples), client)}
        self._write("asynchronous", samples, uploads, _now(time), is_stamp=False)

    def stamp(self, offset: ArrayLike | None = None, *, time: float | None = None) -> None:
        """Record a time of valuation; `offset` is the server's own part at that time, for all samples."""
        own = None if offset is None else _as_embeddings(offset, self._description.n_samples, "offset")
        self._write("asynchronous", np.empty(0, np.uint32), {}, _now(time), is_stamp=True, offset=own)

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
        samples = _as_samples(batch, self._description.n_samples, "batch")
        if len(samples) == 0:
            raise InputError("batch must hold at least one sample; received none")
        return samples

    def _continue(self, there: fmt.Description, labels_file: bytes, resume: bool | None) -> None:
        """Take up the transcript that is already there."""
        if resume is False:
            raise InputError("the folder already holds a transcript; choose another, or continue it with resume=True")
        given = self._description
        if (there.clients, there.loss, there.n_samples) != (given.clients, given.loss, given.n_samples):
            raise InputError(
                f"the folder holds a transcript of clients {list(there.clients)}, loss {there.loss!r} and "
                f"{there.n_samples} samples, which cannot be continued with clients {list(given.clients)}, loss "
                f"{given.loss!r} and {given.n_samples} samples; choose another folder"
            )
        if self._storage.read(fmt.LABELS).to_pybytes() != labels_file:
            raise InputError("the folder holds a transcript with other labels or marks; choose another folder")
        self._description = there
        chain, lost = cut_off(self._storage)
        if lost:
            warnings.warn(f"the transcript ended in an unfinished record, now cut off ({lost})", TranscriptWarning, 4)
        transcript = Transcript(self._storage)
        self._end, self._head = (chain.end(-1), chain.link(-1)) if len(chain) else (0, b"")
        self._n_rounds, self._last_time = transcript.n_rounds, transcript.last_time
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
        if not (np.isfinite(time) and time >= self._last_time):
            raise InputError(f"time must not run backwards: received {time}, after {self._last_time}")
        if self._end == 0:
            self._begin(description)
        record = Record(tuple(uploads), samples, list(uploads.values()), time, is_stamp, offset)
        self._append(*build_message(record, description.precision or "float64", self._head))
        self._last_time = time
        self._n_rounds += is_stamp

    def _describe(self, mode: fmt.Mode, uploads: Mapping[str, Array], offset: Array | None) -> fmt.Description:
        """Return the description with what this upload shows; raise InputError if it does not fit what came before."""
        known = self._description
        arrays = [*uploads.values(), *([] if offset is None else [offset])]
        widths = {array.shape[1] for array in arrays} | ({known.n_classes} if known.n_classes else set())
        if len(widths) > 1:
            raise InputError(f"all embeddings must have the same number of classes; received {sorted(widths)}")
        if known.mode not in (None, mode):
            raise InputError(
                f"this transcript is {known.mode}: use {'log' if known.mode == 'synchronous' else 'update and stamp'}"
            )
        wide = any(array.dtype != np.float32 for array in arrays)
        if known.precision == "float32" and wide:
            raise InputError("this transcript began with float32 embeddings; convert the others to float32")
        if known.n_classes is not None or not widths:
            return known
        (n_classes,) = widths
        get_loss(known.loss).encode(self._labels, n_classes)
        sizes = {name: len(array) for name, array in uploads.items()}
        precision: fmt.Precision = "float64" if wide else "float32"
        return replace(known, mode=mode, n_classes=n_classes, precision=precision, batch_sizes=sizes)

    def _begin(self, description: fmt.Description) -> None:
        """Write the description for good and the head of the stream, from where the chain begins."""
        if description.precision is None:
            raise InputError("a transcript begins with an upload, not with a time stamp")
        content = description.to_json()
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


def cut_off(storage: Storage, end: int | None = None) -> tuple[Chain, str]:
    """Cut what is unfinished, or lies beyond `end`, off the files; return the rest of the chain and what was cut."""
    content, n_uploads = storage.read(fmt.CHAIN), storage.read(fmt.UPLOADS).size
    chain = Chain.of(pa.py_buffer(content.to_pybytes()), n_uploads if end is None else end)
    last = chain.end(-1) if len(chain) else 0
    lost = []
    for name, size, kept in ((fmt.UPLOADS, n_uploads, last), (fmt.CHAIN, content.size, chain.n_bytes)):
        if size > kept:
            storage.truncate(name, kept)
            lost.append(f"{size - kept} bytes of {name}")
    return chain, ", ".join(lost)


def _labels_file(labels: Array, receives_gradient: NDArray[np.bool_]) -> bytes:
    column = (
        pa.array(labels) if labels.ndim == 1 else pa.FixedSizeListArray.from_arrays(labels.ravel(), labels.shape[1])
    )
    table = pa.table({"label": column, "receives_gradient": pa.array(receives_gradient)})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _now(time: float | None) -> float:
    return clock.time() if time is None else _as_time(time)


def _as_time(time: float) -> float:
    try:
        return float(time)
    except (TypeError, ValueError):
        raise InputError(f"time must be a number; received {time!r}") from None


def _as_labels(labels: ArrayLike, loss: str) -> Array:
    """Return the labels if the loss can use them, as far as that can be told before the first upload."""
    values = np.asarray(_as_numpy(labels))
    if values.ndim not in (1, 2) or len(values) == 0:
        raise InputError(f"labels need one row per sample, and at least one; received shape {values.shape}")
    known = get_loss(loss)
    if known.name == "softmax":
        # How many classes there are is not known yet: at least as many as the labels need.
        numbers = as_array("labels", values)
        known.encode(numbers, max(2, int(numbers.max()) + 1) if np.isfinite(numbers).all() else 2)
    else:
        known.encode(values, values.shape[1] if values.ndim == 2 and known.name == "squared" else 1)
    return values


def _as_numpy(values: Any) -> Array:
    # A torch tensor, without importing torch: off the graph, off the accelerator.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _as_names(clients: Sequence[str]) -> tuple[str, ...]:
    names = tuple(clients) if isinstance(clients, Iterable) and not isinstance(clients, set | frozenset) else ()
    if isinstance(clients, str) or not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"clients must be a list of at least one name; received {clients!r}")
    odd = [name for name in names if name != name.strip() or not name.isprintable()]
    if odd:
        raise InputError(f"names of clients must be printable, without spaces around them; received {odd[0]!r}")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"the names of the clients must differ; repeated: {', '.join(repeated)}")
    return names


def _as_samples(batch: ArrayLike, n_samples: int, name: str) -> NDArray[np.uint32]:
    samples = _as_numpy(batch)
    if name == "no_gradient" and samples.dtype == bool and samples.shape == (n_samples,):
        samples = np.flatnonzero(samples)
    if samples.size == 0:
        samples = samples.astype(np.uint32)
    if samples.ndim != 1 or samples.dtype.kind not in "iu":
        raise InputError(f"{name} must be a list of sample numbers; received shape {samples.shape} of {samples.dtype}")
    if samples.size and not (samples.min() >= 0 and samples.max() < n_samples):
        wrong = samples[(samples < 0) | (samples >= n_samples)][0]
        raise InputError(f"{name} must hold sample numbers from 0 to {n_samples - 1}; received {wrong}")
    # Marking is ten times faster than sorting.
    seen = np.zeros(n_samples, dtype=bool)
    seen[samples] = True
    if np.count_nonzero(seen) < len(samples):
        numbers, counts = np.unique(samples, return_counts=True)
        raise InputError(f"{name} must not repeat samples; sample {numbers[counts > 1][0]} is there more than once")
    return samples.astype(np.uint32)


def _as_embeddings(values: ArrayLike, n_samples: int, name: str) -> Array:
    array = _as_numpy(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: embeddings must be real numbers; received {array.dtype}")
    if array.ndim not in (1, 2) or len(array) != n_samples:
        raise InputError(
            f"{name}: embeddings must have shape ({n_samples},) or ({n_samples}, classes), one row per sample; "
            f"received {array.shape}"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name}: embeddings must be finite; received NaN or infinity")
    array = array if array.ndim == 2 else array[:, np.newaxis]
    return array.astype(np.float32 if array.dtype in (np.float16, np.float32) else np.float64, copy=False)
