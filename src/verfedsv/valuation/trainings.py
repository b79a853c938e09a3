"""What a transcript says of a training: its rounds, whatever the mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_array
from verfedsv.errors import InputError
from verfedsv.losses import Array, Loss, get_loss
from verfedsv.transcript import Stamp, Transcript, Upload
from verfedsv.valuation.chunks import UploadsOfRound


@dataclass(frozen=True)
class Training:
    """A recorded training with at least one round."""

    transcript: Transcript

    def __post_init__(self) -> None:
        if self.transcript.n_rounds == 0:
            hint = "; in asynchronous training, record times of valuation with Recorder.stamp"
            is_asynchronous = self.transcript.description.mode == "asynchronous"
            raise InputError("the transcript has no rounds yet, so there is nothing to value" + hint * is_asynchronous)

    @property
    def clients(self) -> tuple[str, ...]:
        return self.transcript.clients

    @property
    def n_samples(self) -> int:
        return self.transcript.description.n_samples

    @property
    def n_classes(self) -> int:
        return self.transcript.description.n_classes or 1

    @property
    def n_rounds(self) -> int:
        return self.transcript.n_rounds

    @cached_property
    def loss(self) -> Loss:
        return get_loss(self.transcript.description.loss)

    @cached_property
    def labels(self) -> Array:
        """The labels as the loss takes them."""
        return self.loss.encode(self.transcript.labels, self.n_classes)

    @property
    def is_synchronous(self) -> bool:
        return self.transcript.description.mode == "synchronous"

    @cached_property
    def has_gaps(self) -> bool:
        """Whether embeddings are missing that synchronous training needs: a sample was in some batches, not in all."""
        if not self.is_synchronous:
            return False
        is_seen = np.zeros(self.n_samples, bool)
        sizes = set()
        for uploads in self.rounds():
            batch = uploads.samples[0]
            is_seen[batch] = True
            sizes.add(len(batch))
        return sizes != {int(is_seen.sum())}

    def rounds(self, first: int = 1, unstamped: list[Upload] | None = None) -> Iterator[UploadsOfRound]:
        """Yield the rounds in order, their arrays being views of the file.

        The server's own part is an upload of the last player: in synchronous training for the samples of the batch,
        which is the same for all clients, in asynchronous training for all samples. To go on, pass the message to begin
        with, and the uploads before it that no time stamp has followed; afterwards the list has those of now.
        """
        number = {name: m for m, name in enumerate(self.clients)}
        uploads = [] if unstamped is None else unstamped
        for record in self.transcript.records(first):
            if isinstance(record, Stamp):
                players = [number[upload.client] for upload in uploads]
                samples, embeddings = [u.samples for u in uploads], [u.embeddings for u in uploads]
                if record.offset is not None:
                    players.append(len(self.clients))
                    samples.append(samples[0] if self.is_synchronous else self._all_samples)
                    shape = len(samples[-1]), self.n_classes
                    embeddings.append(np.broadcast_to(record.offset, shape))
                yield UploadsOfRound(players, samples, embeddings)
                uploads.clear()
            elif isinstance(record, Upload):
                uploads.append(record)

    @cached_property
    def _all_samples(self) -> Array:
        return np.arange(self.n_samples)

    def select(self, rows: str | ArrayLike) -> NDArray[np.intp]:
        """Return the numbers of the samples that `rows` means."""
        if isinstance(rows, str):
            receives = self.transcript.receives_gradient
            meaning = {"all": np.ones(self.n_samples, bool), "gradient": receives, "no-gradient": ~receives}
            if rows not in meaning:
                allowed = ", ".join(map(repr, meaning))
                raise InputError(f"rows must be {allowed}, or a list of sample numbers; received {rows!r}")
            chosen = np.flatnonzero(meaning[rows])
        else:
            chosen = self._as_numbers(as_array("rows", rows))
        if len(chosen) == 0:
            raise InputError(f"rows {rows!r} means no sample at all")
        return chosen

    def _as_numbers(self, rows: Array) -> NDArray[np.intp]:
        if rows.dtype == bool and rows.shape == (self.n_samples,):
            return np.flatnonzero(rows)
        if rows.size == 0:
            return np.empty(0, np.intp)
        numbers = np.unique(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(numbers) < len(rows):
            raise InputError("rows must list sample numbers, none twice, or be one boolean for each sample")
        if numbers[0] < 0 or numbers[-1] >= self.n_samples:
            raise InputError(f"rows must hold sample numbers from 0 to {self.n_samples - 1}")
        return numbers.astype(np.intp)


@dataclass(frozen=True, eq=False)
class Batches:
    """The uploads of a synchronous training: the batch of each round, and of each player its uploads by round.

    Who is absent from a round has no upload of it. The server is the last player, if it has an own part at all.
    """

    samples: Sequence[Array]
    uploads: Sequence[Mapping[int, Array]]

    @classmethod
    def of(cls, training: Training) -> Batches:
        """Return views of all uploads of a training."""
        samples = list[Array]()
        uploads = [dict[int, Array]() for _ in range(len(training.clients) + 1)]
        for t, of_round in enumerate(training.rounds()):
            samples.append(of_round.samples[0])
            for player, _, embeddings in of_round:
                uploads[player][t] = embeddings
        return cls(samples, uploads if uploads[-1] else uploads[:-1])
