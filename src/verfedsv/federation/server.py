"""The server side: labels, head, table of embeddings, recording, rounds, scores and its own checkpoint.

It knows clients only by name: it returns requests for them and takes their answers in `receive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.data.targets import LabelScale
from verfedsv.errors import AnswerError, DivergedError, InputError
from verfedsv.federation.checkpoints import (
    as_bytes,
    check_fingerprint,
    fingerprint,
    read_checkpoint,
    write_checkpoint,
)
from verfedsv.federation.evaluation import Evaluation, measure
from verfedsv.federation.heads import SumHead
from verfedsv.federation.messages import Embed, Embeddings, Gradients, Prediction, Request
from verfedsv.federation.models import Rate, State
from verfedsv.federation.tape import Tape
from verfedsv.losses import Array, Floats, Loss, get_loss
from verfedsv.transcript import Recorder, Stamp, Upload
from verfedsv.transcript.format import LARGEST_EMBEDDING
from verfedsv.transcript.meaning import is_usable
from verfedsv.transcript.records import Join, Leave

_IN_RANGE = f"must be finite and below {LARGEST_EMBEDDING:g} in size"


class Server:
    """Holds the labels, and the latest embeddings of all clients and training samples, zeros at first.

    `labels` are those of the `n_train` training samples, then of the test samples. `n_classes` is the width of
    embeddings, and `classes` are the names of the classes, for predictions. `label_scale` has the units of labels that
    were standardised: measures and predictions are in the original ones. `intercept` is the learning rate of the head's
    intercept, None for no intercept. Checkpoints are written to the file `checkpoint`.

    A synchronous round is `begin_round`, `receive` for each upload, `end_round`. In asynchronous training, `request`
    and `receive` are one client's upload, at any time, and `stamp` ends a round. Methods are safe to call from several
    threads.
    """

    def __init__(
        self,
        labels: ArrayLike,
        clients: Sequence[str],
        n_classes: int,
        loss: str | Loss = "logistic",
        *,
        n_train: int | None = None,
        label_scale: LabelScale = LabelScale(),  # noqa: B008  # it is immutable
        intercept: Rate | None = None,
        checkpoint: Path | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.loss, self.n_classes, self.label_scale = get_loss(loss), n_classes, label_scale
        self._classes = None if classes is None else list(classes)
        self.labels: NDArray[Any] = np.asarray(labels)
        self.n_train = len(self.labels) if n_train is None else n_train
        self.clients = self.present = tuple(clients)
        self.n_rounds, self.time = 0, 0.0
        self.n_uploads = dict.fromkeys(clients, 0)
        self._head = SumHead(n_classes, intercept)
        self._targets = self.loss.encode(self.labels, n_classes)
        self._table = np.zeros((len(clients), self.n_train, n_classes))
        self._means: dict[str, Floats] = {}  # of each client's embeddings of training samples, when last evaluated
        self._sequence = count(1)
        self._asked: dict[str, Embed] = {}
        self._uploads: dict[str, Floats] = {}
        self._answers: dict[str, Gradients] = {}
        self._recorder: Recorder | None = None
        self.tape = Tape(None)
        self._checkpoint = checkpoint
        self.saved_round = -1  # of the last checkpoint; -1 without one
        self._lock = RLock()

    def record(self, recorder: Recorder) -> None:
        """Record from now on.

        Records that the transcript already holds, after the first `tape.n_records`, are compared instead of written.
        """
        with self._lock:
            self._recorder, self.tape = recorder, Tape(recorder, n_records=self.tape.n_records)

    # Who takes part

    def join(self, client: str) -> None:
        """Let a client take part from the next round on; the embeddings of a new one are zero until it uploads."""
        with self._lock:
            self._check_between_rounds()
            if client in self.present:
                raise InputError(f"client {client!r} takes part already")
            self.tape.write(Join(client, self.time))
            self._admit(client)

    def leave(self, client: str) -> None:
        """Let a client leave; the server keeps its last embeddings."""
        with self._lock:
            self._check_between_rounds()
            self._check_present(client)
            self.tape.write(Leave(client, self.time))
            self._dismiss(client)

    def _admit(self, client: str) -> None:
        if client not in self.clients:
            self.clients = (*self.clients, client)
            self.n_uploads[client] = 0
            self._table = np.concatenate([self._table, np.zeros_like(self._table[:1])])
        self.present = tuple(name for name in self.clients if name == client or name in self.present)

    def _dismiss(self, client: str) -> None:
        self.present = tuple(name for name in self.present if name != client)
        self._asked.pop(client, None)

    def _check_present(self, client: str) -> None:
        if client not in self.present:
            raise InputError(f"unknown client {client!r}; those that take part are {', '.join(self.present)}")

    def _check_between_rounds(self) -> None:
        if self._uploads:
            raise InputError("clients join and leave between rounds; end this one first")

    # Training

    def begin_round(self, batch: Array) -> list[Embed]:
        """Begin a synchronous round; return a request to each client."""
        with self._lock:
            t = self.n_rounds + 1
            self._uploads, self._answers = {}, {}
            self._asked = {name: Embed(name, t, next(self._sequence), batch) for name in self.present}
            return [*self._asked.values()]

    def request(self, client: str, samples: Array) -> Embed:
        """Ask a client for the embeddings of some training samples; this cancels an earlier request."""
        with self._lock:
            self._check_present(client)
            self._answers.pop(client, None)
            self._asked[client] = Embed(client, self.n_rounds + 1, next(self._sequence), samples)
            return self._asked[client]

    def request_all(self, kind: Callable[..., Request], *content: Any) -> list[Request]:
        """Return a request of a kind, Predict, Save or Restore, to each client that takes part."""
        with self._lock:
            return [kind(name, self.n_rounds, next(self._sequence), *content) for name in self.present]

    def receive(
        self, upload: Embeddings, batch: Array | None = None, now: Callable[[], float] | None = None
    ) -> Gradients | None:
        """Accept the upload that a client was asked for; if it comes again, only return the same answer.

        In asynchronous training, which passes a clock `now`, the upload is recorded at once, and the answer is the
        gradients of `batch`. In synchronous training, `end_round` records it and makes the answers; until then, return
        None. Raises AnswerError unless it answers an open request, and DivergedError if its numbers are too large;
        nothing is changed then.
        """
        with self._lock:
            name, asked = upload.client, self._check(upload)
            if name in self._answers or name in self._uploads:
                return self._answers.get(name)
            # The first upload decides the precision of a transcript; no client may decide it for the others.
            embeddings = upload.embeddings.astype(np.float64, copy=False)
            if now is None:
                self._uploads[name] = embeddings
                return None
            self.time = now()
            self.tape.write(Upload(name, self.time, asked.samples, embeddings))
            self._store(name, asked.samples, embeddings)
            samples = asked.samples if batch is None else batch
            answer = Gradients(name, asked.round, next(self._sequence), samples, self._gradients(samples, {}))
            self._answers[name] = answer
            return answer

    def end_round(self) -> list[Gradients]:
        """Record a synchronous round, with clients that uploaded nothing as absent; return gradients for the others."""
        with self._lock:
            if not self._uploads:
                raise InputError(f"no client uploaded anything in round {self.n_rounds + 1}")
            uploads = {name: self._uploads[name] for name in self.present if name in self._uploads}
            batch = self._asked[next(iter(uploads))].samples
            absent = tuple(name for name in self.present if name not in uploads)
            t = self.n_rounds + 1
            recorded = (Upload(name, float(t), batch, embeddings) for name, embeddings in uploads.items())
            self.tape.write(*recorded, Stamp(float(t), self._checked_offset(), absent))
            for name, embeddings in uploads.items():
                self._store(name, batch, embeddings)
            values = self._gradients(batch, uploads)
            self._answers = {name: Gradients(name, t, next(self._sequence), batch, values) for name in uploads}
            # From now on, uploads of absent clients for this round are rejected.
            self._asked, self._uploads = {name: self._asked[name] for name in uploads}, {}
            self.n_rounds, self.time = t, float(t)
            return [*self._answers.values()]

    def stamp(self, number: int, now: Callable[[], float]) -> bool:
        """End and record an asynchronous round; before the first upload, record nothing and return False."""
        with self._lock:
            self.n_rounds, self.time = number, now()
            if not any(self.n_uploads.values()):
                return False
            self.tape.write(Stamp(self.time, self._checked_offset()))
            return True

    def _check(self, upload: Embeddings) -> Embed:
        """Return the open request that an upload answers; raise AnswerError if there is none or it is invalid."""
        name, asked = upload.client, self._asked.get(upload.client)
        if asked is None or upload.round != asked.round or upload.sequence != asked.sequence:
            if name not in self.clients:
                self._check_present(name)
            expected = "was not asked for anything"
            if asked is not None:
                expected = f"the open request is message {asked.sequence} of round {asked.round}"
            raise AnswerError(f"{name} answered message {upload.sequence} of round {upload.round}, but {expected}")
        check_embeddings(name, upload.embeddings, (len(asked.samples), self.n_classes))
        return asked

    def _store(self, client: str, samples: Array, embeddings: Floats) -> None:
        table = self._table[self.clients.index(client)]
        if self.n_classes == 1:  # flat: 2,837 numbers take 3.8 instead of 7.8 microseconds
            table, embeddings = table.reshape(-1), embeddings.reshape(-1)
        table[samples] = embeddings
        self.n_uploads[client] += 1

    def _checked_offset(self) -> Floats | None:
        """Return the intercept; raise DivergedError if it is too large, naming whose embeddings are largest.

        An upload below the limit is valid and may still do this: gradients of the squared loss grow with it.
        """
        offset = self._head.offset
        if offset is not None and not is_usable(offset):
            sizes = np.abs(self._table).max(axis=(1, 2))
            largest = f"the largest embeddings, {sizes.max():.2g}, are those of {self.clients[sizes.argmax()]!r}"
            raise DivergedError(f"the intercept {_IN_RANGE}; {largest}")
        return offset

    def _gradients(self, samples: Array, uploads: Mapping[str, Floats]) -> Floats:
        """Return the gradients of the loss with respect to the embeddings of some samples, (samples, classes).

        The head takes a step. Embeddings come from the table, except those just uploaded for these samples.
        """
        latest = [
            uploads[name] if name in uploads else self._table[m].take(samples, axis=0)
            for m, name in enumerate(self.clients)
        ]
        scores = self._head.scores(latest)
        gradients = self._head.learn(self.loss.gradient(scores, self._targets[samples]))
        gradients.flags.writeable = False  # in a round, all clients get the same array
        return gradients

    # Evaluation

    def embeddings_of(self, prediction: Prediction, samples: Array | None) -> Floats:
        """Return a client's predicted embeddings of some samples, of all if `samples` is None.

        Raises AnswerError if their shape is wrong, and DivergedError if they are too large.
        """
        n_samples = len(self.labels) if samples is None else len(samples)
        check_embeddings(prediction.client, prediction.embeddings, (n_samples, self.n_classes))
        return prediction.embeddings

    def evaluate(self, predictions: Mapping[str, Floats]) -> Evaluation:
        """Return the measures of the model, from each client's `embeddings_of` all samples.

        A client without any, because it left or did not answer, counts with its last embeddings of training samples,
        and with zero for test samples. The means over training samples are kept, for predictions without a client.
        """
        with self._lock:
            embeddings = self._predicted(predictions, np.arange(len(self.labels)))
            scores, offset = self._head.scores(embeddings), self._head.offset
            means = [of_client[: self.n_train].mean(axis=0) for of_client in embeddings]
            self._means = dict(zip(self.clients, means, strict=True))
            n_rounds, time = self.n_rounds, self.time
        train, test = (
            measure(self.loss, scores[part], self.labels[part], self._targets[part], self.label_scale)
            for part in (slice(None, self.n_train), slice(self.n_train, None))
        )
        of_training = np.stack([of_client[: self.n_train] for of_client in embeddings])
        return Evaluation(n_rounds, time, train, test, of_training, offset)

    def scores(self, predictions: Mapping[str, Floats], samples: Array) -> Floats:
        """Return the scores of some samples, (samples, classes), from `embeddings_of` all clients that take part.

        Scores of amounts are in the units of the labels. A client that left counts as in `evaluate`.
        """
        if missing := [name for name in self.present if name not in predictions]:
            raise InputError(f"no prediction: no valid answer from {', '.join(missing)}")
        with self._lock:
            return self.label_scale.restored(self._head.scores(self._predicted(predictions, samples)))

    def _predicted(self, predictions: Mapping[str, Floats], samples: Array) -> list[Floats]:
        """Return the embeddings of some samples, (samples, classes), for each client."""
        result, is_train = [], samples < self.n_train
        for name, own in zip(self.clients, self._table, strict=True):
            embeddings = predictions.get(name)
            if embeddings is None:
                embeddings = np.zeros((len(samples), self.n_classes))
                embeddings[is_train] = own[samples[is_train]]
            result.append(embeddings)
        return result

    # Checkpoints

    def save(self, extra: State) -> None:
        """Write a checkpoint, with the caller's arrays `extra`, once the records that it counts are on the disk."""
        if self._checkpoint is None:
            raise InputError("the server was given no file for checkpoints")
        with self._lock:
            self.tape.sync()
            write_checkpoint(self._checkpoint, {**self.state(), **extra, **self._kept})
            self.saved_round = self.n_rounds

    def load(self, extra: State) -> dict[str, Array] | None:
        """Restore the checkpoint; return the caller's arrays in it, which are like `extra`, or None without one.

        Later records will be recomputed and compared.
        """
        if self._checkpoint is None or not self._checkpoint.exists():
            return None
        kept, whose = self._kept, f"these {len(self.clients)} clients: pass all that ever joined to the server"
        content = read_checkpoint(self._checkpoint, {**self.state(), **extra, **kept}, whose)
        check_fingerprint(self._checkpoint, content["fingerprint"], kept["fingerprint"], "the server")
        self.restore(content)
        self.saved_round = self.n_rounds
        return {name: content[name] for name in extra}

    def state(self) -> State:
        """Return a copy of everything that `restore` needs to continue exactly from here."""
        with self._lock:
            return {
                **self._head.state(),
                "table": self._table.copy(),
                "means": np.concatenate([self._mean(name) for name in self.clients]),
                "n_rounds": np.array(self.n_rounds),
                "time": np.array(self.time),
                "n_records": np.array(self.tape.n_records),
                "n_uploads": np.array([self.n_uploads[name] for name in self.clients]),
                "is_present": np.array([name in self.present for name in self.clients]),
            }

    def restore(self, state: State) -> None:
        """Continue from a state."""
        with self._lock:
            self._head.restore(state)
            self._table = np.array(state["table"], order="C")  # which `_store` flattens
            self._means = split_means(state["means"], self.clients, self._widths)
            self.n_rounds, self.time = int(state["n_rounds"]), float(state["time"])
            self.n_uploads = dict(zip(self.clients, state["n_uploads"].tolist(), strict=True))
            self.present = tuple(
                name for name, is_present in zip(self.clients, state["is_present"], strict=True) if is_present
            )
            self.tape = Tape(self._recorder, n_records=int(state["n_records"]))
            self._asked, self._uploads, self._answers = {}, {}, {}

    def catch_up(self) -> None:
        """Apply what was recorded after the state, instead of computing it again."""
        if self._recorder is None:
            raise InputError("nothing to catch up with: the training is not recorded")
        with self._lock:
            for record in self._recorder.transcript.records(1 + self.tape.n_records):
                self.time = record.time
                match record:
                    case Upload():
                        self._store(record.client, record.samples, record.embeddings)
                    case Stamp():
                        self.n_rounds += 1
                    case Join():
                        self._admit(record.client)
                    case Leave():
                        self._dismiss(record.client)
            self.tape = Tape(self._recorder, n_records=None)

    @property
    def _kept(self) -> State:
        """What a checkpoint has besides the state: a hash of the data, and what predictions need to know."""
        about = {
            "clients": self.clients,
            "widths": self._widths,
            "loss": self.loss.name,
            "classes": self._classes,
        }
        units = np.array([self.label_scale.mean, self.label_scale.deviation])
        mark = fingerprint([self.clients, self.n_classes, self.n_train, self._classes], [self.labels, units])
        return {"about": as_bytes(about), "label_scale": units, "fingerprint": mark}

    @property
    def _widths(self) -> list[int]:
        return [int(of_client.shape[-1]) for of_client in self._table]

    def _mean(self, client: str) -> Floats:
        """Return the mean embedding of a client: when last evaluated, or of what it uploaded last."""
        mean = self._means.get(client)
        return self._table[self.clients.index(client)].mean(axis=0) if mean is None else mean


def split_means(means: Floats, clients: Sequence[str], widths: Sequence[int]) -> dict[str, Floats]:
    """Return the mean embedding of each client, (width,), from all of them one after the other."""
    if means.shape != (sum(widths),):
        raise InputError(f"means of embeddings must be {sum(widths)} numbers; received {means.shape}")
    return dict(zip(clients, np.split(means, np.cumsum(widths)[:-1]), strict=True))


def check_embeddings(client: str, embeddings: Any, shape: tuple[int, ...]) -> None:
    """Raise AnswerError unless embeddings are numbers of a shape, and DivergedError if they are too large."""
    if not isinstance(embeddings, np.ndarray) or embeddings.dtype.kind != "f" or embeddings.shape != shape:
        found = f"{embeddings.dtype} {embeddings.shape}" if isinstance(embeddings, np.ndarray) else type(embeddings)
        raise AnswerError(f"{client}: embeddings must be numbers of shape {shape}; received {found}")
    if not is_usable(embeddings):
        raise DivergedError(f"{client}: embeddings {_IN_RANGE}")
