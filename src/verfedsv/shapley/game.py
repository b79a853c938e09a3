"""The game of one round: what the loss would have been if only some clients had sent their new embeddings.

For a coalition S of clients, with h the embeddings at the two time stamps (equation 1 of the paper),

    U(S) = mean over samples of  f(sum of h_previous) - f(sum over S of h_current + sum over the others of h_previous).

If the server's own part of the sum changes, the server is one more player, the last. `Game` is what estimators that
know nothing of the head ask for: they treat all players alike. `RoundGame` is the game of summed embeddings.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_array, as_whole
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.loss_checks import encode_checked
from verfedsv.losses import Loss, get_loss
from verfedsv.shapley.blocks import LARGEST_EMBEDDING, Block, block_size, compensated_sum
from verfedsv.shapley.coalitions import BLOCK_SAMPLES, CoalitionSums, coalition_sums
from verfedsv.shapley.moments import sum_moments
from verfedsv.threads import available_threads, ordered_map, split

Result = TypeVar("Result")
Samples = slice | NDArray[np.intp]


class Game(ABC):
    """The game of one round. Players are the clients and, if it moved, the server, which is the last."""

    loss: Loss

    @property
    @abstractmethod
    def n_clients(self) -> int:
        """The number of clients."""

    @property
    @abstractmethod
    def n_players(self) -> int:
        """Clients, plus one if the server is a player."""

    @property
    @abstractmethod
    def n_samples(self) -> int:
        """The number of samples."""

    @property
    def rounding_is_bounded(self) -> bool:
        """Whether `rounding_errors` is proven."""
        return self.loss.rounding_is_bounded

    @abstractmethod
    def map_sums(
        self, function: Callable[[CoalitionSums], Result], samples: NDArray[np.intp] | None = None
    ) -> Iterator[Result]:
        """Yield what a function makes of the coalitions of each block of samples, in order; `samples` restricts it."""

    @abstractmethod
    def decrease(self) -> Floats:
        """Return the utility of all players, (); raise InputError if it cannot be computed from the embeddings."""

    @abstractmethod
    def rounding_errors(self) -> Floats:
        """Return a bound on the rounding errors of exact values, (players,); 0 for players that did not move."""

    @abstractmethod
    def width_of_draws(self) -> Floats | None:
        """Return the length of an interval that contains what a player adds to any coalition, (players,), if known."""

    @abstractmethod
    def identical_clients(self) -> list[list[int]]:
        """Return the groups of two or more clients with exactly the same changes."""


@dataclass(frozen=True, eq=False)
class RoundGame(Game):
    """The game of one round. Build it with `RoundGame.from_arrays`, which checks its input.

    `previous` and `current` are (clients, samples, classes), views of the caller's arrays; `labels` are encoded by the
    loss; `offset` is the server's own part of the sum, (samples, classes) or None. With a `previous_offset` the server
    is a player too, after all clients.

    >>> game = RoundGame.from_arrays([[0.0, 0.0], [0.5, 0.0]], [[1.0, -1.0], [0.5, 0.0]], labels=[1, 0])
    >>> game([[False, False], [True, False], [True, True]]).round(4)
    array([0.    , 0.3263, 0.3263])
    """

    previous: Array
    current: Array
    labels: Array
    loss: Loss
    offset: Floats | None = None
    previous_offset: Floats | None = None
    n_threads: int = field(default_factory=available_threads)

    @classmethod
    def from_arrays(
        cls,
        previous: ArrayLike,
        current: ArrayLike,
        labels: ArrayLike,
        loss: str | Loss = "logistic",
        *,
        offset: ArrayLike | None = None,
        previous_offset: ArrayLike | None = None,
        n_threads: int | None = None,
    ) -> RoundGame:
        """Return the game of a round after checking its arrays; embeddings are not copied.

        Estimators check that embeddings are finite as they read them.
        """
        loss = get_loss(loss)
        before, after = cls.as_embeddings("previous", previous), cls.as_embeddings("current", current)
        if before.shape != after.shape:
            raise InputError(
                "previous and current must have the same shape (clients, samples) or (clients, samples, classes); "
                f"received {np.shape(previous)} and {np.shape(current)}"
            )
        n_clients, n_samples, n_classes = before.shape
        if 0 in before.shape:
            raise InputError(
                "at least one client, one sample and one class are needed; "
                f"received {n_clients} clients, {n_samples} samples and {n_classes} classes"
            )
        label_array = as_array("labels", labels)
        if label_array.ndim == 0 or len(label_array) != n_samples:
            is_transposed = label_array.ndim > 0 and len(label_array) == n_clients
            raise InputError(
                f"previous has shape {np.shape(previous)}, which is {n_clients} clients x {n_samples} samples, so "
                f"labels must have {n_samples} rows; received shape {label_array.shape}"
                + ("; are the embeddings transposed? They must be (clients, samples)" if is_transposed else "")
            )
        encoded = encode_checked(loss, label_array, n_classes)
        if previous_offset is not None and offset is None:
            raise InputError("previous_offset is the offset before the round; also pass offset, the one after it")
        own = _as_offset("offset", offset, n_samples, n_classes)
        own_before = _as_offset("previous_offset", previous_offset, n_samples, n_classes)
        hint = "; leave it out to use all cores"
        threads = available_threads() if n_threads is None else as_whole("n_threads", n_threads, at_least=1, hint=hint)
        return cls(before, after, encoded, loss, own, own_before, threads)

    @staticmethod
    def as_embeddings(name: str, embeddings: ArrayLike) -> Array:
        """Return embeddings as an array (clients, samples, classes)."""
        return with_classes(name, as_array(name, embeddings))

    def third_order_sums(self) -> Floats | None:
        """Return what `sum_third_order` does, of all samples, or None: then the compiled loops have to."""
        return None

    @property
    def n_clients(self) -> int:
        return int(self.previous.shape[0])

    @property
    def n_players(self) -> int:
        return self.n_clients + (self.previous_offset is not None)

    @property
    def n_samples(self) -> int:
        return int(self.previous.shape[1])

    @property
    def n_classes(self) -> int:
        return int(self.previous.shape[2])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of the blocks: float32 if no embedding is wider than that, else float64."""
        narrow = all(a.dtype in (np.float32, np.float16) for a in (self.previous, self.current))
        narrow = narrow and self.previous_offset is None
        return np.dtype(np.float32 if narrow else np.float64)

    @cached_property
    def is_plain(self) -> bool:
        """Whether compiled loops read the embeddings without a copy; otherwise they are copied block by block."""
        arrays = self.previous, self.current
        return self.previous_offset is None and all(
            a.dtype == self.dtype and a.flags.c_contiguous and a.flags.writeable and a.flags.aligned for a in arrays
        )

    def __call__(self, coalitions: ArrayLike) -> Floats:
        """Return the utility of each coalition, a row of booleans over players, by the definition."""
        given = np.atleast_2d(as_array("coalitions", coalitions))
        members = given.astype(bool)
        if members.ndim != 2 or members.shape[1] != self.n_players or (members != given).any():
            raise InputError(f"a coalition is a row of {self.n_players} booleans; received an array of {given.shape}")

        def utilities(block: Block) -> Floats:
            base, change = block.base(), block.change()
            before = self.loss.value(base, block.labels)
            sums = [self.loss.value(base + change[row].sum(axis=0), block.labels) for row in members]
            return np.array([(before - after).sum() for after in sums])

        total: Floats = sum(self.map_blocks(utilities), np.zeros(len(members)))
        return total / self.n_samples

    def map_blocks(
        self,
        function: Callable[[Block], Result],
        *,
        size: int | None = None,
        samples: NDArray[np.intp] | None = None,
    ) -> Iterator[Result]:
        """Yield `function(block)` for blocks of `size` samples, in order, computed by the game's threads.

        `samples` restricts the game to those samples. Blocks do not depend on the number of threads, so sums over
        them do not either.
        """
        n_samples = self.n_samples if samples is None else len(samples)
        parts: list[Samples] = list(split(n_samples, size or block_size(self.n_players, self.n_classes)))
        if samples is not None:
            parts = [samples[part] for part in parts]
        n_threads = min(self.n_threads, len(parts))
        return ordered_map(lambda item: function(self.block(item[1], item[0])), enumerate(parts), n_threads)

    def map_sums(
        self, function: Callable[[CoalitionSums], Result], samples: NDArray[np.intp] | None = None
    ) -> Iterator[Result]:
        return self.map_blocks(
            lambda block: function(coalition_sums(block, self.loss)), size=BLOCK_SAMPLES, samples=samples
        )

    def block(self, part: Samples, index: int = 0) -> Block:
        """Return some samples of the round as a block, without a copy if possible."""
        offset = None if self.offset is None else self.offset[part]
        previous, current, start = self.previous, self.current, 0
        if self.offset is not None and self.previous_offset is not None:
            previous = np.concatenate([previous[:, part], self.previous_offset[np.newaxis, part]], dtype=self.dtype)
            current = np.concatenate([current[:, part], self.offset[np.newaxis, part]], dtype=self.dtype)
            offset = None
        elif isinstance(part, slice) and self.is_plain:
            start = part.start
        else:
            previous = np.ascontiguousarray(previous[:, part], dtype=self.dtype)
            current = np.ascontiguousarray(current[:, part], dtype=self.dtype)
        flat = (self.n_players, -1)
        labels = self.labels[part]
        return Block(index, previous.reshape(flat), current.reshape(flat), start, self.n_classes, labels, offset)

    def identical_clients(self) -> list[list[int]]:
        """Return the groups of two or more clients with exactly the same changes."""
        groups = [list(range(self.n_clients))]
        # A few samples separate most clients; only those that agree there are compared in full.
        for parts in (split(min(self.n_samples, 16), 16), split(self.n_samples, 2**16)):
            groups = [same for group in groups for same in self._group(group, parts) if len(same) > 1]
        return groups

    def _group(self, clients: list[int], parts: list[slice]) -> list[list[int]]:
        """Return groups of clients with exactly the same changes in these samples."""
        groups: dict[bytes, list[int]] = {}
        for client in clients:
            digest = hashlib.blake2b()
            for part in parts:
                change = np.subtract(self.current[client, part], self.previous[client, part], dtype=np.float64)
                digest.update(np.ascontiguousarray(change + 0.0).data)  # the sum turns -0.0 into 0.0
            groups.setdefault(digest.digest(), []).append(client)
        return list(groups.values())

    def decrease(self) -> Floats:
        """Return the utility of all players, (); raise InputError if an embedding is not finite or too large."""

        def of_block(block: Block) -> Floats:
            with np.errstate(over="ignore", invalid="ignore"):
                base, change = block.base(), block.change()
                size = np.abs(base).max(axis=-1) + np.abs(change).max(axis=-1).sum(axis=0)
                if not (size < LARGEST_EMBEDDING).all():
                    return np.asarray(np.nan)
            before = self.loss.value(base, block.labels)
            return np.asarray((before - self.loss.value(base + change.sum(axis=0), block.labels)).sum())

        total = compensated_sum(self.map_blocks(of_block))
        if np.isnan(total):
            self.raise_not_finite()
        return np.asarray(total / self.n_samples)

    def rounding_errors(self) -> Floats:
        """Return a bound on the rounding errors of exact values, (players,); 0 for players that did not move.

        docs/closed-form.md derives it. No coalition is further from the midpoint than half the `magnitude`, which
        bounds the loss and its slope.
        """
        n_players, n_classes, loss = self.n_players, self.n_classes, self.loss

        def noise_and_movement(block: Block) -> tuple[float, NDArray[np.bool_]]:
            moments = sum_moments(block)
            middle, size = moments.base + 0.5 * moments.total, moments.magnitude
            smoothness = np.where(size > 0, loss.smoothness, 0.0)  # which may be infinite
            slope = np.abs(loss.gradient(middle, block.labels)).sum(axis=-1) + n_classes * smoothness * size / 2
            slope = np.minimum(slope, math.sqrt(n_classes) * loss.lipschitz)
            height = np.abs(loss.value(middle, block.labels)) + slope * size / 2
            noise = size * (n_players + 44 + (2 * n_players + 24) * slope) + (n_classes + 40) * height
            noise += 3 * n_players + 2 * n_classes + 16
            return float(noise.sum()), (block.change() != 0).any(axis=(1, 2))

        noise, moved = 0.0, np.zeros(n_players, dtype=bool)
        for noise_of_block, moved_in_block in self.map_blocks(noise_and_movement):
            noise += noise_of_block
            moved |= moved_in_block
        return np.asarray(np.where(moved, np.finfo(np.float64).eps * noise / self.n_samples, 0.0))

    def width_of_draws(self) -> Floats:
        """Return the length of an interval that contains what a client adds in any draw, (clients,).

        It adds -d . f'(x) averaged along its change d. Over all coalitions of the others f' varies by at most its
        range, and by at most its smoothness times the summed spreads of the others' changes.
        """

        def spread_times_variation(block: Block) -> Floats:
            spread = self.loss.spread(block.change())
            # Not the total minus a client's spread: small others would be lost beside a large client.
            padded = np.pad(spread, ((1, 1), (0, 0)))
            others = padded[:-2].cumsum(axis=0) + padded[:1:-1].cumsum(axis=0)[::-1]
            with np.errstate(invalid="ignore"):  # 0 times an infinite constant
                each = spread * np.minimum(self.loss.gradient_range, self.loss.smoothness * others)
            return np.asarray(np.nan_to_num(each, nan=0.0, posinf=np.inf).sum(axis=1))

        total: Floats = sum(self.map_blocks(spread_times_variation), np.zeros(self.n_players))
        return total / self.n_samples

    def raise_not_finite(self) -> NoReturn:
        """Raise InputError with the first embedding that is not finite, or say that embeddings are too large."""
        for name, embeddings in (("previous", self.previous), ("current", self.current)):
            for part in split(self.n_samples, block_size(self.n_players, self.n_classes)):
                bad = np.argwhere(~np.isfinite(embeddings[:, part]))
                if len(bad):
                    client, sample, c = bad[0]
                    value = embeddings[client, part.start + sample, c]
                    where = f"{client}, {part.start + sample}" + (f", {c}" if self.n_classes > 1 else "")
                    raise InputError(f"embeddings must be finite; {name}[{where}] is {value}")
        raise InputError(f"the absolute embeddings of a sample must sum to less than {LARGEST_EMBEDDING:g}")


def with_classes(name: str, array: Array) -> Array:
    """Return embeddings with an axis of classes; raise InputError if they have the wrong shape."""
    if array.ndim == 2:
        array = array.reshape((*array.shape, 1))
    if array.ndim != 3:
        raise InputError(
            f"{name} must have shape (clients, samples) or (clients, samples, classes); received {array.shape}"
        )
    return array


def _as_offset(name: str, offset: ArrayLike | None, n_samples: int, n_classes: int) -> Floats | None:
    if offset is None:
        return None
    array = as_array(name, offset)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must hold finite numbers; received NaN or infinity")
    expected = (n_samples, n_classes) if n_classes > 1 else (n_samples,)
    if array.shape not in (expected, (n_samples, n_classes)):
        raise InputError(f"{name} must have shape {expected}; received {array.shape}")
    return array.astype(np.float64, copy=False).reshape(n_samples, n_classes)
