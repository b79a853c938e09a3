"""A recorded training: its clients, and the changes of each round in the same form for every mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_samples
from verfedsv.arrays import Array
from verfedsv.errors import InputError, how_to_install
from verfedsv.loss_checks import encode_checked
from verfedsv.losses import LOSSES, Loss, get_loss
from verfedsv.transcript import Stamp, Transcript, Upload
from verfedsv.valuation.chunks import Change, Changes, Round, State

if TYPE_CHECKING:
    from verfedsv.valuation.heads import TrainedHead


@dataclass(frozen=True)
class RecordedTraining:
    """A recorded training with at least one round. `own_loss` is the loss it was recorded with if that is a user's.

    `head` is its head, None if that is a sum.
    """

    transcript: Transcript
    own_loss: Loss | None = None
    head: TrainedHead | None = None

    @classmethod
    def of(
        cls, transcript: Transcript, own_loss: Loss | None = None, module: Any = None, *, trust_head: bool = False
    ) -> RecordedTraining:
        """Return a training with its head: `module`, or what was recorded of it, as in `find_head`."""
        kind = transcript.description.head.kind
        if kind == "sum":
            if module is not None and not (isinstance(module, str) and module == "sum"):
                raise InputError("the embeddings of this training are summed: it has no head")
            return cls(transcript, own_loss)
        try:
            from verfedsv.valuation.heads import find_head
        except ImportError:
            raise InputError(f"a training with a head needs PyTorch: {how_to_install('torch')}") from None
        return cls(transcript, own_loss, find_head(transcript, module, trust=trust_head or transcript.trusts_head))

    def __post_init__(self) -> None:
        about = self.transcript.description
        if self.n_rounds == 0:
            hint = "; in asynchronous training, record times of valuation with Recorder.stamp"
            raise InputError(
                "the transcript has no rounds yet, so there is nothing to value" + hint * (about.mode == "asynchronous")
            )
        about.check_can_be_valued(has_loss=self.own_loss is not None, has_head=True)
        is_same = about.is_own_loss or self.own_loss is LOSSES.get(about.loss)
        if self.own_loss is not None and not (is_same and self.own_loss.name == about.loss):
            whose = "a loss of your own named" if about.is_own_loss else "the package's loss"
            raise InputError(f"the training was recorded with {whose} {about.loss!r}; received {self.own_loss.name!r}")

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """All clients, in the order in which they joined."""
        return self.transcript.clients

    @property
    def n_samples(self) -> int:
        return self.transcript.description.n_samples

    @property
    def n_classes(self) -> int:
        return self.transcript.description.n_classes or 1

    @property
    def width(self) -> int:
        """The largest number of embeddings per sample of a client."""
        return self.n_classes if self.head is None else max(self.transcript.widths.values())

    def width_of(self, player: int) -> int:
        """Return the number of embeddings per sample of a player."""
        return self.n_classes if self.head is None else self.transcript.widths.get(self.clients[player], 1)

    @property
    def first_state(self) -> State:
        """The hashes of the head's parameters before the first round."""
        return self.transcript.description.head.state

    @property
    def n_rounds(self) -> int:
        return self.transcript.n_rounds

    @property
    def loss(self) -> Loss:
        return self.own_loss or get_loss(self.transcript.description.loss)

    @cached_property
    def labels(self) -> Array:
        """The labels as the loss takes them."""
        return encode_checked(self.loss, self.transcript.labels, self.n_classes)

    @property
    def is_synchronous(self) -> bool:
        return self.transcript.description.mode == "synchronous"

    def rounds(self, first: int = 1, unstamped: list[Upload] | None = None) -> Iterator[Round]:
        """Yield the changes of each round, in order; the arrays are views of the file.

        The server's own part is a change of the last player: of the samples of the round in synchronous training, of
        all samples in asynchronous training. If it is the same for all samples, it is given as weights of a factor of
        ones. To continue, pass the number of the first record to read, and the uploads before it that no time stamp has
        followed; that list is updated. Joining and leaving change no embedding.
        """
        index = {name: m for m, name in enumerate(self.clients)}
        uploads = [] if unstamped is None else unstamped
        for record in self.transcript.records(first):
            if isinstance(record, Upload):
                uploads.append(record)
            elif isinstance(record, Stamp):
                changes = [Change(index[upload.client], upload.samples, upload.embeddings) for upload in uploads]
                if record.offset is not None:
                    changes.append(self._change_of_server(record.offset, changes))
                yield Round(changes, record.state)
                uploads.clear()

    def _change_of_server(self, offset: Array, uploads: Changes) -> Change:
        server = len(self.clients)
        if offset.ndim == 1:
            return Change(server, None, offset[:, np.newaxis].astype(np.float64))
        batch = shared_samples(uploads) if self.is_synchronous else None
        return Change(server, self.all_samples if batch is None else batch, offset)

    @cached_property
    def all_samples(self) -> Array:
        return np.arange(self.n_samples)

    def select(self, rows: str | ArrayLike) -> NDArray[np.intp]:
        """Return the indices of the samples that `rows` selects."""
        if isinstance(rows, str):
            receives = self.transcript.receives_gradient
            meaning = {"all": np.ones(self.n_samples, bool), "gradient": receives, "no-gradient": ~receives}
            if rows not in meaning:
                allowed = ", ".join(map(repr, meaning))
                raise InputError(f"rows must be {allowed}, or a list of sample numbers; received {rows!r}")
            chosen = np.flatnonzero(meaning[rows])
        else:
            chosen = np.sort(as_samples("rows", rows, self.n_samples, may_be_empty=True)).astype(np.intp)
        if len(chosen) == 0:
            raise InputError(f"rows {rows!r} selects no sample")
        return chosen


def shared_samples(uploads: Changes) -> Array | None:
    """Return the samples of a round if all clients uploaded the same samples in the same order, else None."""
    first, *others = (upload.samples for upload in uploads if upload.samples is not None)
    return first if all(np.array_equal(first, samples) for samples in others) else None


@dataclass(frozen=True, eq=False)
class Uploads:
    """All uploads of a synchronous training, read once; the arrays are views of its file.

    `by_player` has the changes of each client, and of a server with a part of its own, by round.
    """

    rounds: Sequence[Round]
    by_player: Sequence[Mapping[int, Change]]
    n_clients: int
    n_samples: int

    @classmethod
    def of(cls, training: RecordedTraining) -> Uploads:
        """Read the uploads of a training."""
        n_clients, n_samples = len(training.clients), training.n_samples
        rounds = _with_one_kind_of_offset(list(training.rounds()), n_clients, training.all_samples)
        by_player = [dict[int, Change]() for _ in range(n_clients + 1)]
        for t, (changes, _) in enumerate(rounds):
            for change in changes:
                by_player[change.player][t] = change
        return cls(rounds, by_player if by_player[-1] else by_player[:-1], n_clients, n_samples)

    @cached_property
    def has_gaps(self) -> tuple[bool, ...]:
        """Whether embeddings of each player are missing: a sample is in some of its uploads, but not in all."""
        return tuple(_has_gaps(list(changes.values()), self.n_samples) for changes in self.by_player)

    @cached_property
    def is_seen(self) -> NDArray[np.bool_]:
        """Whether any client ever uploaded each sample, (samples,)."""
        result = np.zeros(self.n_samples, bool)
        for changes, _ in self.rounds:
            uploads = [change for change in changes if change.player < self.n_clients]
            shared = shared_samples(uploads)
            for samples in [change.samples for change in uploads] if shared is None else [shared]:
                result[samples] = True
        return result


def _has_gaps(changes: Sequence[Change], n_samples: int) -> bool:
    if not changes or changes[0].samples is None:
        return False  # absent throughout, or an intercept
    is_in_first = np.zeros(n_samples, bool)
    is_in_first[changes[0].samples] = True
    n_first = len(changes[0].samples)
    return any(len(change.values) != n_first or not is_in_first[change.samples].all() for change in changes)


def _with_one_kind_of_offset(rounds: Sequence[Round], server: int, all_samples: Array) -> list[Round]:
    """Return the rounds with the server's own part as an intercept in all of them, or by sample in all of them.

    It is an intercept if it is the same for all samples of each round, which is always so for a single sample.
    """
    own = {t: changes[-1] for t, (changes, _) in enumerate(rounds) if changes[-1].player == server}
    is_intercept = all(c.samples is None or (c.values == c.values[:1]).all() for c in own.values())
    result = list(rounds)
    for t, change in own.items():
        others = rounds[t].changes[:-1]
        if is_intercept and change.samples is not None:
            result[t] = Round([*others, Change(server, None, change.values[:1].T.astype(np.float64))])
        elif not is_intercept:
            result[t] = spread(rounds[t], server, len(all_samples))
    return result


def spread(each: Round, server: int, n_samples: int) -> Round:
    """Return a round with an offset that is the same for all samples as one by sample: of its batch, or else of all."""
    *others, offset = each.changes
    if offset.player != server or offset.samples is not None:
        return each
    batch = shared_samples(others)
    samples = np.arange(n_samples) if batch is None else batch
    values = np.repeat(offset.values.T, len(samples), axis=0)
    return each._replace(changes=[*others, Change(server, samples, values)])
