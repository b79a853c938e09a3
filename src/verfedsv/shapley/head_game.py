"""The game of one round under a head that is not a sum: any function of the embeddings of all clients.

A client moves from its previous to its current embeddings, and the server, as one more player, from the previous to the
current parameters of its head. Players that did not move are left out of coalitions: they get exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_array, as_whole
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError, how_to_install
from verfedsv.loss_checks import encode_checked
from verfedsv.losses import Loss, get_loss
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.coalitions import CoalitionSums
from verfedsv.shapley.game import Game
from verfedsv.threads import available_threads, ordered_map, split

if TYPE_CHECKING:
    from verfedsv.head_loops import HeadLoops
    from verfedsv.heads import Head, HeadMove, HeadState
    from verfedsv.shapley.head_reach import Reach

Result = TypeVar("Result")

BLOCK_SAMPLES = 2048
"""Samples of a block: fewer lose time to the interpreter, more leave the cache in wide layers."""

_ROWS_AT_A_TIME = 2048
"""Rows that the head evaluates at once. With 64 units in float64, 2048 took 0.8 us a row and 8192 1.1 us."""

_MOST_LOSSES = 2**17
"""Losses that are held at once, 1 MB; the loops of known layers share the first one among the coalitions of a call."""

_ROUNDED = 64
"""Samples whose rounding errors are estimated: so many of those with the largest embeddings, and of the others."""


@dataclass(frozen=True, eq=False)
class HeadGame(Game):
    """The game of one round under a head.

    `previous` and `current` are the concatenated embeddings of all clients, (samples, width), in float64. `columns`,
    (width,), is the client that each column belongs to, or -1 if that is no player. `labels` are encoded by the loss.
    """

    previous: Floats
    current: Floats
    columns: Array
    _n_clients: int
    labels: Array
    loss: Loss
    head: Head
    move: HeadMove
    n_threads: int = field(default_factory=available_threads)

    @classmethod
    def from_arrays(
        cls,
        previous: Sequence[ArrayLike],
        current: Sequence[ArrayLike],
        labels: ArrayLike,
        loss: str | Loss,
        head: Any,
        previous_head: Any = None,
        *,
        n_threads: int | None = None,
    ) -> HeadGame:
        """Return the game of a round after checking its arguments.

        `previous` and `current` have an array (samples, width) of each client. `head` is a torch module as it was after
        the round; `previous_head`, if it changed, the module before it, or its `state_dict`.
        """
        Head, HeadMove = _import_heads()  # noqa: N806  # classes
        loss = get_loss(loss)
        before, after = _as_embeddings("previous", previous), _as_embeddings("current", current)
        widths = [part.shape[1] for part in before]
        if widths != [part.shape[1] for part in after] or len({len(part) for part in (*before, *after)}) != 1:
            raise InputError(
                "previous and current must have an array of the same shape for each client, (samples, width), all with "
                f"the same samples; received {[part.shape for part in before]} and {[part.shape for part in after]}"
            )
        label_array = as_array("labels", labels)
        if label_array.ndim == 0 or len(label_array) != len(before[0]):
            raise InputError(
                f"the embeddings have {len(before[0])} samples, so labels must have as many rows; "
                f"received shape {label_array.shape}"
            )
        own = Head(head)
        n_classes = own.check(sum(widths))
        earlier = own.state
        if previous_head is not None:
            state = previous_head.state_dict() if hasattr(previous_head, "state_dict") else previous_head
            if not isinstance(state, Mapping):
                raise InputError(
                    "previous_head must be the module before the round, or its state_dict(); received "
                    f"{type(previous_head).__name__}"
                )
            earlier = own.read(
                {name: as_array(f"parameter {name!r}", value) for name, value in state.items()},
                "the parameters of previous_head are not those of head (pass the same module as it was before the "
                "round, or its state_dict())",
            )
        hint = "; leave it out to use all cores"
        return cls(
            np.concatenate(before, axis=1),
            np.concatenate(after, axis=1),
            np.repeat(np.arange(len(widths)), widths),
            len(widths),
            encode_checked(loss, label_array, n_classes),
            loss,
            own,
            HeadMove.of(earlier, own.state),
            available_threads() if n_threads is None else as_whole("n_threads", n_threads, at_least=1, hint=hint),
        )

    @property
    def n_clients(self) -> int:
        return self._n_clients

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_players(self) -> int:
        return self.n_clients + self.move.is_move

    @property
    def rounding_is_bounded(self) -> bool:
        return False  # of the head, nothing is known

    def moving(self) -> tuple[HeadGame, NDArray[np.intp]]:
        """Return the game of the players that moved, and their numbers in this game."""
        moved = np.unique(self.columns[(self.previous != self.current).any(axis=0)])
        number = np.full(self.n_clients + 1, -1)
        number[moved] = np.arange(len(moved))
        game = replace(self, columns=number[self.columns], _n_clients=len(moved))
        return game, np.append(moved, self.n_clients) if self.move.is_move else moved

    def losses(self, samples: Array, members: NDArray[np.bool_]) -> Floats:
        """Return the losses of these samples, (coalitions, samples), if only members moved.

        `members` are (coalitions, players), or (coalitions, samples, players) if samples have coalitions of their own.
        """
        members = members if members.ndim == 3 else members[:, np.newaxis]
        before, after = self.previous[samples], self.current[samples]
        loops = self.head.loops
        if loops is not None:
            scores = loops.scores(before, after, self.columns, self._numbers(loops), members)
            losses = np.asarray(self.loss.value(scores, self.labels[samples]))
            if np.isfinite(losses).all():
                return losses
        # By torch, which finds the first sample whose loss is not finite.
        result = np.empty((len(members), len(samples)))
        for part in split(len(members), max(1, 4 * _ROWS_AT_A_TIME // len(samples))):
            own = members[part]
            # A column of nobody, -1, is the same before and after.
            x = np.where(own[:, :, self.columns], after, before).reshape(-1, before.shape[1])
            rows = np.tile(samples, len(own))
            has_moved = np.broadcast_to(own[:, :, -1] & self.move.is_move, (len(own), len(samples))).ravel()
            losses = np.empty(len(rows))
            for state, chosen in ((self.move.previous, ~has_moved), (self.move.current, has_moved)):
                losses[chosen] = self._losses_of(state, x[chosen], rows[chosen])
            result[part] = losses.reshape(len(own), -1)
        return result

    def _numbers(self, loops: HeadLoops) -> Floats:
        """Return the numbers of the head's states before and after the round, or of the one state, for its loops."""
        states = (self.move.previous, self.move.current) if self.move.is_move else (self.move.current,)
        return np.concatenate([loops.numbers(state.tensors) for state in states])

    def _losses_of(self, state: HeadState, embeddings: Floats, samples: Array) -> Floats:
        """Return the losses of embeddings, (rows, width), of these samples; raise InputError if some are not finite."""
        result = np.empty(len(samples))
        for part in split(len(samples), _ROWS_AT_A_TIME):
            scores = self.head.scores(state, embeddings[part])
            result[part] = self.loss.value(scores, self.labels[samples[part]])
        if not np.isfinite(result).all():
            self._raise_not_finite(int(samples[int(np.argmin(np.isfinite(result)))]))
        return result

    def map_samples(
        self,
        function: Callable[[Array, int], Result],
        *,
        size: int = BLOCK_SAMPLES,
        samples: NDArray[np.intp] | None = None,
    ) -> Iterator[Result]:
        """Yield `function(samples, index)` for blocks of samples, in order, computed by the game's threads."""
        chosen = np.arange(self.n_samples) if samples is None else samples
        parts = [chosen[part] for part in split(len(chosen), size)]
        return ordered_map(lambda item: function(item[1], item[0]), enumerate(parts), min(self.n_threads, len(parts)))

    def map_sums(
        self, function: Callable[[CoalitionSums], Result], samples: NDArray[np.intp] | None = None
    ) -> Iterator[Result]:
        return self.map_samples(lambda part, _: function(HeadSums(self, part)), samples=samples)

    def decrease(self) -> Floats:
        def of_block(part: Array, _: int) -> Floats:
            before, after = self.ends(part)
            return np.asarray((before - after).sum())

        return np.asarray(compensated_sum(self.map_samples(of_block)) / self.n_samples)

    def mean_loss(self) -> float:
        """Return the mean loss before the round."""
        sums = self.map_samples(
            lambda part, _: float(self._losses_of(self.move.previous, self.previous[part], part).sum())
        )
        return sum(sums) / self.n_samples

    def ends(self, samples: Array) -> tuple[Floats, Floats]:
        """Return the losses of these samples before and after the round; raise InputError if one is not finite."""
        before, after = self.losses(samples, np.array([[False], [True]]).repeat(self.n_players, axis=1))
        return before, after

    def _raise_not_finite(self, sample: int) -> None:
        for name, embeddings in (("previous", self.previous), ("current", self.current)):
            if not np.isfinite(embeddings[sample]).all():
                raise InputError(f"embeddings must be finite; those of sample {sample} in {name} are not")
        raise InputError(f"the head gives NaN or infinity for the finite embeddings of sample {sample}")

    def rounding_errors(self) -> Floats:
        """Return an estimate of the rounding errors of exact values.

        These are some units in the last place of the losses, and some times what losses change if all embeddings and
        parameters do by such a unit: where large numbers cancel, that is much more. It is measured in coalitions of
        nobody, all and single players, for samples with large embeddings and for others.
        """
        sizes = np.maximum(np.abs(self.previous).max(axis=1), np.abs(self.current).max(axis=1))
        order = np.argpartition(sizes, -min(_ROUNDED, self.n_samples))
        others, large = np.split(order, [-min(_ROUNDED, self.n_samples)])
        chosen = np.append(large, others[:: -(-len(others) // _ROUNDED) or 1])
        here = self.part(chosen)
        one, nobody = np.eye(self.n_players, dtype=bool), np.zeros((1, self.n_players), bool)
        coalitions, everywhere = np.vstack([nobody, ~nobody, one, ~one]), np.arange(len(chosen))
        losses, nudged = (each.losses(everywhere, coalitions) for each in (here, here._nudged()))
        eps = np.finfo(np.float64).eps
        errors = (8 * np.abs(losses - nudged) + 64 * eps * np.abs(losses)).max(axis=0)
        of_others = errors[len(large) :].mean() if len(others) else 0.0
        mean = (errors[: len(large)].sum() + len(others) * of_others) / self.n_samples
        return np.full(self.n_players, float(mean))

    def _nudged(self) -> HeadGame:
        """Return the game with all embeddings and parameters moved by a unit in their last place, either way."""
        rng, move = np.random.default_rng(0), self.move
        previous, current = (array * _nudges(rng, array.shape) for array in (self.previous, self.current))
        first = move.previous.scaled(lambda shape: _nudges(rng, shape))
        last = move.current.scaled(lambda shape: _nudges(rng, shape)) if move.is_move else first
        return replace(self, previous=previous, current=current, move=replace(move, previous=first, current=last))

    def width_of_draws(self) -> Floats | None:
        return None if self.reach is None else np.asarray(self.reach.widths().mean(axis=1))

    @cached_property
    def reach(self) -> Reach | None:
        """What each player adds to any coalition lies in it, for each sample; None if nothing proves that."""
        from verfedsv.shapley.head_reach import reach_of  # needs torch

        return reach_of(self)

    def part(self, samples: NDArray[np.intp]) -> HeadGame:
        """Return the game of some samples."""
        return replace(
            self, previous=self.previous[samples], current=self.current[samples], labels=self.labels[samples]
        )

    def identical_clients(self) -> list[list[int]]:
        return []  # clients with the same changes may still differ in the head


class HeadSums(CoalitionSums):
    """Sums of losses over some samples of a game with a head; nothing of them is linear in the coalition."""

    def __init__(self, game: HeadGame, samples: Array) -> None:
        self._game, self._samples = game, samples
        self.linear = np.zeros(game.n_players)
        self._at_a_time = max(1, _MOST_LOSSES // len(samples))

    def subsets(self, n_free: int, fixed: NDArray[np.bool_]) -> Floats:
        result = np.empty(2**n_free)
        for part in split(2**n_free, self._at_a_time):
            free = np.arange(part.start, part.stop)[:, np.newaxis] >> np.arange(n_free) & 1
            result[part] = self._sum(np.hstack([free.astype(bool), np.tile(fixed, (len(free), 1))]))
        return result

    def chains(self, orders: NDArray[np.intp]) -> Floats:
        places = np.argsort(orders, axis=1)  # of each player in each permutation
        steps = np.arange(orders.shape[1] + 1)[:, np.newaxis]
        return self._sum_many(places[:, np.newaxis] < steps)

    def toggles(self, members: NDArray[np.bool_]) -> Floats:
        here = self._sum_many(members[:, np.newaxis])
        flipped = members[:, np.newaxis] ^ np.eye(members.shape[1], dtype=bool)
        there = self._sum_many(flipped)
        return np.asarray(np.where(members, here - there, there - here))

    def _sum_many(self, coalitions: NDArray[np.bool_]) -> Floats:
        """Return the sums of coalitions, (..., players)."""
        flat = coalitions.reshape(-1, coalitions.shape[-1])
        parts = [self._sum(flat[part]) for part in split(len(flat), self._at_a_time)]
        return np.concatenate(parts).reshape(coalitions.shape[:-1])

    def _sum(self, coalitions: NDArray[np.bool_]) -> Floats:
        return np.asarray(self._game.losses(self._samples, coalitions).sum(axis=1))


def _nudges(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return random factors that are a unit in the last place away from 1."""
    return np.asarray(1 + np.finfo(np.float64).eps * rng.choice([-1.0, 1.0], shape))


def _import_heads() -> Any:
    """Return the classes of heads, which need torch."""
    try:
        from verfedsv.heads import Head, HeadMove
    except ImportError:
        raise InputError(f"a head needs PyTorch: {how_to_install('torch')}") from None
    return Head, HeadMove


def _as_embeddings(name: str, embeddings: Sequence[ArrayLike]) -> list[Floats]:
    """Return the embeddings of each client, (samples, width), in float64."""
    if not isinstance(embeddings, Sequence | np.ndarray) or len(embeddings) == 0:
        raise InputError(f"with a head, {name} must be a list with an array (samples, width) of each client")
    result = []
    for client, values in enumerate(embeddings):
        array = as_array(f"{name}[{client}]", values)
        array = array[:, np.newaxis] if array.ndim == 1 else array
        if array.ndim != 2 or 0 in array.shape:
            raise InputError(f"{name}[{client}] must have shape (samples, width); received {array.shape}")
        result.append(array.astype(np.float64, copy=False))
    return result
