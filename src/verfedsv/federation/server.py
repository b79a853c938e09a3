"""The server side: labels, head, table of embeddings, recording, rounds, scores and its own checkpoint.

It knows clients only by name: it returns requests for them and takes their answers in `receive`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arrays import LARGEST_EMBEDDING, PART_BYTES, Array, Floats, is_usable
from verfedsv.data.targets import LabelScale
from verfedsv.errors import AnswerError, DivergedError, InputError
from verfedsv.federation.checkpoints import (
    as_bytes,
    check_fingerprint,
    fingerprint,
    read_checkpoint,
    write_checkpoint,
)
from verfedsv.federation.evaluation import Evaluation, Tally
from verfedsv.federation.heads import Head, SumHead
from verfedsv.federation.messages import (
    Embed,
    Embeddings,
    Gradients,
    Prediction,
    Request,
    Restore,
    Save,
)
from verfedsv.federation.models import Rate, State
from verfedsv.federation.optimizers import BuildOptimizer, PlainDescent
from verfedsv.federation.tape import Tape
from verfedsv.losses import Loss, get_loss
from verfedsv.transcript import Recorder, Stamp, Upload
from verfedsv.transcript.records import Join, Leave

_IN_RANGE = f"must be finite and below {LARGEST_EMBEDDING:g} in size"


class Server:
    """Holds the labels, and the latest embeddings of all clients and training samples, zeros at first.

    `labels` are those of the `n_train` training samples, then of the test samples. `n_classes` is how many numbers per
    sample the loss takes, and `classes` are the names of the classes, for predictions. `label_scale` has the units of
    labels that were standardised: measures and predictions are in the original ones. The `head` is by default the sum
    of embeddings that are as wide; `intercept` is the learning rate of its intercept, None for no intercept, and
    `optimizer` takes its steps. `class_weights`, (classes,), multiply the gradients of each sample, by its class; no
    loss is weighted. Checkpoints are written to the file `checkpoint`. `members` are the clients that take part from
    the start, None for all of `clients`; the others can join later, and so can clients not named here.

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
        head: Head | None = None,
        checkpoint: Path | None = None,
        classes: Sequence[str] | None = None,
        optimizer: BuildOptimizer = PlainDescent,
        class_weights: Floats | None = None,
        members: Sequence[str] | None = None,
    ) -> None:
        self.loss, self.n_classes, self.label_scale = get_loss(loss), n_classes, label_scale
        self._classes = None if classes is None else list(classes)
        self.labels: NDArray[Any] = np.asarray(labels)
        self.n_train = len(self.labels) if n_train is None else n_train
        self.clients = tuple(clients)
        self.present = self.clients if members is None else tuple(name for name in clients if name in members)
        self.n_rounds, self.time = 0, 0.0
        self.n_uploads = dict.fromkeys(clients, 0)
        self.head: Head = SumHead(n_classes, intercept, optimizer) if head is None else head
        self._targets = self.loss.encode(self.labels, n_classes)
        self._weights = None if class_weights is None else class_weights[self.labels.astype(np.intp), np.newaxis]
        # Of clients with narrower embeddings, the last columns are zero.
        self._table = np.zeros((len(clients), self.n_train, max(map(self.head.width_of, clients))))
        self._means: dict[str, Floats] = {}  # of each client's embeddings of training samples, when last evaluated
        self._sequence = count(1)
        self._asked: dict[str, Embed] = {}
        self._uploads: dict[str, Floats] = {}
        self._answers: dict[str, Gradients] = {}
        self._recorder: Recorder | None = None
        self.tape = Tape(None)
        self._checkpoint = checkpoint
        self.saved_round = -1  # of the last checkpoint; -1 without one
        self._saved: dict[str, int] = {}  # the round of each client's checkpoint that the server's counts on
        self._unsaved: set[str] = set()  # who has left since the last checkpoint
        self._lock = RLock()

    def record(self, recorder: Recorder) -> None:
        """Record from now on.

        Records that the transcript already holds, after the first `tape.n_records`, are compared instead of written.
        """
        with self._lock:
            self._recorder, self.tape = recorder, self._new_tape(recorder, self.tape.n_records)

    def _new_tape(self, recorder: Recorder | None, n_records: int | None) -> Tape:
        return Tape(recorder, n_records=n_records, parameters=self.head.parameters)

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
            widest = max(self._table.shape[2], self.head.width_of(client))
            table = np.zeros((len(self.clients), self.n_train, widest))
            table[:-1, :, : self._table.shape[2]] = self._table
            self._table = table
        self.present = tuple(name for name in self.clients if name == client or name in self.present)
        self._unsaved.discard(client)

    def _dismiss(self, client: str) -> None:
        self.present = tuple(name for name in self.present if name != client)
        self._asked.pop(client, None)
        self._unsaved.add(client)

    def _check_present(self, client: str) -> None:
        if client not in self.present:
            raise InputError(f"unknown client {client!r}; those that take part are {', '.join(self.present)}")

    def _check_between_rounds(self) -> None:
        if self._uploads:
            raise InputError("clients join and leave between rounds; end this one first")

    # Training

    def begin_round(self, batch: Array, absent: Collection[str] = ()) -> list[Embed]:
        """Begin a synchronous round; return a request to each client that takes part and is not `absent`."""
        with self._lock:
            t = self.n_rounds + 1
            self._uploads, self._answers = {}, {}
            asked = [name for name in self.present if name not in absent]
            self._asked = {name: Embed(name, t, next(self._sequence), batch) for name in asked}
            return [*self._asked.values()]

    def request(self, client: str, samples: Array) -> Embed:
        """Ask a client for the embeddings of some training samples; this cancels an earlier request."""
        with self._lock:
            self._check_present(client)
            self._answers.pop(client, None)
            self._asked[client] = Embed(client, self.n_rounds + 1, next(self._sequence), samples)
            return self._asked[client]

    def request_all(self, kind: Callable[..., Request], *content: Any) -> list[Request]:
        """Return a request of a kind, such as Predict, to each client that takes part."""
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
            values = self._gradients(samples, {})[name]
            others = None if np.array_equal(samples, asked.samples) else samples
            answer = Gradients(name, asked.round, next(self._sequence), others, values)
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
            self._answers = {name: Gradients(name, t, next(self._sequence), None, values[name]) for name in uploads}
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
        check_embeddings(name, upload.embeddings, (len(asked.samples), self.head.width_of(name)))
        return asked

    def _store(self, client: str, samples: Array, embeddings: Floats) -> None:
        table = self._of_client(client)
        if self._table.shape[2] == 1:  # flat: 2,837 numbers take 3.8 instead of 7.8 microseconds
            table, embeddings = table.reshape(-1), embeddings.reshape(-1)
        table[samples] = embeddings
        self.n_uploads[client] += 1

    def _checked_offset(self) -> Floats | None:
        """Return the intercept; raise DivergedError if it is too large, naming whose embeddings are largest.

        An upload below the limit is valid and may still do this: gradients of the squared loss grow with it.
        """
        offset = self.head.offset
        if offset is not None and not is_usable(offset):
            sizes = np.abs(self._table).max(axis=(1, 2))
            largest = f"the largest embeddings, {sizes.max():.2g}, are those of {self.clients[sizes.argmax()]!r}"
            raise DivergedError(f"the intercept {_IN_RANGE}; {largest}")
        return offset

    def _of_client(self, client: str) -> Floats:
        """Return the latest embeddings of a client, (samples, width), in the table."""
        table: Floats = self._table[self.clients.index(client)]
        width = self.head.width_of(client)
        return table if width == table.shape[1] else table[:, :width]

    def _gradients(self, samples: Array, uploads: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Return the gradients of the loss with respect to each client's embeddings of some samples, (samples, width).

        The head takes a step. Embeddings come from the table, except those just uploaded for these samples.
        """
        latest = {
            name: uploads[name] if name in uploads else self._of_client(name).take(samples, axis=0)
            for name in self.clients
        }

        def slope(scores: Floats) -> Floats:
            result = self.loss.gradient(scores, self._targets[samples])
            return result if self._weights is None else result * self._weights[samples]

        return self.head.learn(latest, slope)

    # Evaluation

    def embeddings_of(self, prediction: Prediction, samples: Array | None) -> Floats:
        """Return a client's predicted embeddings of some samples, of all if `samples` is None.

        Raises AnswerError if their shape is wrong, and DivergedError if they are too large.
        """
        n_samples = len(self.labels) if samples is None else len(samples)
        name = prediction.client
        check_embeddings(name, prediction.embeddings, (n_samples, self.head.width_of(name)))
        return prediction.embeddings

    def parts(self) -> list[Array]:
        """Return all samples in parts, whose embeddings take at most `PART_BYTES` together."""
        size = max(1, PART_BYTES // (8 * sum(self._widths)))
        return [np.arange(start, min(start + size, len(self.labels))) for start in range(0, len(self.labels), size)]

    def evaluate(self, predictions: Iterable[Mapping[str, Floats]]) -> Evaluation:
        """Return the measures of the model, from each client's `embeddings_of` all `parts`, one after the other.

        A client without any, because it left or did not answer, counts with its last embeddings of training samples,
        and with zero for test samples. The means over training samples of those that answer are kept, for predictions
        without a client.
        """
        halves = slice(None, self.n_train), slice(self.n_train, None)
        train, test = (Tally(self.loss, self._targets[half], self.label_scale) for half in halves)
        of_training = {name: np.empty((self.n_train, self.head.width_of(name))) for name in self.clients}
        answered: set[str] = set()
        for samples, of_part in zip(self.parts(), predictions, strict=True):
            answered |= {*of_part}
            with self._lock:
                embeddings = self._predicted(of_part, samples)
                scores = self.head.scores(embeddings)
            n_train = max(0, min(len(samples), self.n_train - int(samples[0])))
            for tally, part in ((train, slice(None, n_train)), (test, slice(n_train, None))):
                tally.add(scores[part], self.labels[samples[part]], self._targets[samples[part]])
            for name, own in embeddings.items():
                of_training[name][samples[:n_train]] = own[:n_train]
        with self._lock:
            self._means = {
                name: own.mean(axis=0) if name in answered else self._mean(name) for name, own in of_training.items()
            }
            parameters = {name: array.copy() for name, array in self.head.parameters().items()}
            measures, offset = (train.measures(), test.measures()), self.head.offset
            return Evaluation(self.n_rounds, self.time, *measures, [*of_training.values()], offset, parameters)

    def scores(self, predictions: Mapping[str, Floats], samples: Array) -> Floats:
        """Return the scores of some samples, (samples, classes), from `embeddings_of` all clients that take part.

        Scores of amounts are in the units of the labels. A client that left counts as in `evaluate`.
        """
        if missing := [name for name in self.present if name not in predictions]:
            raise InputError(f"no prediction: no valid answer from {', '.join(missing)}")
        with self._lock:
            return self.label_scale.restored(self.head.scores(self._predicted(predictions, samples)))

    def _predicted(self, predictions: Mapping[str, Floats], samples: Array) -> dict[str, Floats]:
        """Return the embeddings of some samples, (samples, width), by client."""
        result, is_train = {}, samples < self.n_train
        for name in self.clients:
            embeddings = predictions.get(name)
            if embeddings is None:
                embeddings = np.zeros((len(samples), self.head.width_of(name)))
                embeddings[is_train] = self._of_client(name)[samples[is_train]]
            result[name] = embeddings
        return result

    # Checkpoints

    def request_saves(self) -> list[Save]:
        """Return a request to each client that takes part, and to those that have left since the last checkpoint.

        Each keeps the checkpoint that the server's last one counts on.
        """
        with self._lock:
            names = [name for name in self.clients if name in self.present or name in self._unsaved]
            return [Save(name, self.n_rounds, next(self._sequence), self._saved.get(name, -1)) for name in names]

    def request_restores(self) -> list[Restore]:
        """Return a request to each client with a checkpoint to restore that."""
        with self._lock:
            return [Restore(name, at, next(self._sequence)) for name, at in self._saved.items()]

    def save(self, extra: State, clients: Collection[str] | None = None) -> None:
        """Write a checkpoint, with the caller's arrays `extra`, once the records that it counts are on the disk.

        It counts on the checkpoints that these clients have just written, None for all that take part.
        """
        if self._checkpoint is None:
            raise InputError("the server was given no file for checkpoints")
        with self._lock:
            self.tape.sync()
            own = dict.fromkeys(self.present if clients is None else clients, self.n_rounds)
            saved = {name: number for name in self.clients if (number := {**self._saved, **own}.get(name, -1)) >= 0}
            content = {**self.state(), "saved": self._saved_array(saved), **extra, **self._kept}
            write_checkpoint(self._checkpoint, content)
            self.saved_round, self._saved = self.n_rounds, saved
            self._unsaved -= own.keys()

    def load(self, extra: State) -> dict[str, Array] | None:
        """Restore the checkpoint; return the caller's arrays in it, which are like `extra`, or None without one.

        Later records will be recomputed and compared.
        """
        if self._checkpoint is None or not self._checkpoint.exists():
            return None
        kept, whose = self._kept, f"these {len(self.clients)} clients: pass all that ever joined to the server"
        expected = {**self.state(), "saved": self._saved_array({}), **extra, **kept}
        content = read_checkpoint(self._checkpoint, expected, whose)
        check_fingerprint(self._checkpoint, content["fingerprint"], kept["fingerprint"], "the server")
        self.restore(content)
        self.saved_round = self.n_rounds
        saved = zip(self.clients, content["saved"].tolist(), strict=True)
        self._saved = {name: number - 1 for name, number in saved if number}
        return {name: content[name] for name in extra}

    def _saved_array(self, saved: Mapping[str, int]) -> Array:
        """Return the rounds of the clients' checkpoints, (clients,), plus 1; 0 without one."""
        return np.array([saved.get(name, -1) + 1 for name in self.clients])

    def state(self) -> State:
        """Return a copy of everything that `restore` needs to continue exactly from here."""
        with self._lock:
            return {
                **self.head.state(),
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
            self.head.restore(state)
            self._table = np.array(state["table"], order="C")  # which `_store` flattens
            self._means = split_means(state["means"], self.clients, self._widths)
            self.n_rounds, self.time = int(state["n_rounds"]), float(state["time"])
            self.n_uploads = dict(zip(self.clients, state["n_uploads"].tolist(), strict=True))
            self.present = tuple(
                name for name, is_present in zip(self.clients, state["is_present"], strict=True) if is_present
            )
            self.tape = self._new_tape(self._recorder, int(state["n_records"]))
            self._asked, self._uploads, self._answers = {}, {}, {}
            self._unsaved.clear()

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
            self.tape = self._new_tape(self._recorder, None)

    @property
    def _kept(self) -> State:
        """What a checkpoint has besides the state: a hash of the data, and what predictions need to know."""
        about = {
            "clients": self.clients,
            "widths": self._widths,
            "loss": self.loss.name,
            "classes": self._classes,
            "head": self.head.describe(),
        }
        units = np.array([self.label_scale.mean, self.label_scale.deviation])
        mark = fingerprint([self.clients, self.n_classes, self.n_train, self._classes], [self.labels, units])
        return {"about": as_bytes(about), "label_scale": units, "fingerprint": mark}

    @property
    def _widths(self) -> list[int]:
        return [*map(self.head.width_of, self.clients)]

    def _mean(self, client: str) -> Floats:
        """Return the mean embedding of a client: when it last answered an evaluation, or of what it uploaded last."""
        mean, own = self._means.get(client), self._of_client(client)
        if mean is None:
            is_known = (own != 0).any(axis=1)
            return own[is_known].mean(axis=0) if is_known.any() else np.zeros(own.shape[1])
        return mean


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
