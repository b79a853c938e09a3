"""From the rounds of a transcript to pieces of the samples, each with its uploads of all rounds: two tasks.

`scatter` reads some rounds and writes their uploads in blocks, one for each piece; `merge` reads the blocks of a piece
and sorts its uploads by sample. Neither holds more than its rounds or its piece, twice.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.compiled import compiled
from verfedsv.completion.observations import HeldOut, place
from verfedsv.completion.sweeps import Observed
from verfedsv.errors import InputError
from verfedsv.losses import Loss
from verfedsv.transcript import Transcript
from verfedsv.valuation.chunks import Round
from verfedsv.valuation.scratch import Scratch
from verfedsv.valuation.trainings import RecordedTraining, spread

GROUPS, UPLOADS, BATCHES, PIECE, SUMMARY = "groups", "uploads-{}", "batches-{}", "piece-{}", "summary-{}"
"""Names of files: who uploaded the same samples; for each task its blocks, and the samples in the order in which they
were uploaded; for each piece its uploads, and what is known of them."""


class RoundRange(NamedTuple):
    """Some rounds that a task reads: the number of the task, the first record, the first round, and how many.

    If it `spreads` offsets that are the same for all samples, they become uploads of the server.
    """

    task: int
    record: int
    first: int
    n_rounds: int
    spreads: bool = False


@dataclass(frozen=True)
class Layout:
    """How the uploads of a training are cut: what every task needs to know.

    Piece j has the samples `edges[j]` to `edges[j + 1]` - 1. `widths` are those of all players; the server, with an
    offset by sample, is the last one.
    """

    scratch: Scratch
    edges: NDArray[np.int64]
    widths: tuple[int, ...]
    precision: str
    n_tasks: int
    held_out: float
    seed: int

    @property
    def n_clients(self) -> int:
        return len(self.widths) - 1

    @property
    def n_pieces(self) -> int:
        return len(self.edges) - 1

    @property
    def n_samples(self) -> int:
        return int(self.edges[-1])


class _Lists(NamedTuple):
    """What a player uploaded in some rounds: the index of each round, its samples, and their embeddings."""

    rounds: list[int]
    samples: list[Array]
    values: list[Array]


class _Order(NamedTuple):
    """Samples and rounds sorted by piece, where each upload comes to lie, and how many there are in each piece."""

    samples: Array
    rounds: Array
    positions: Array
    counts: Array

    @classmethod
    def of(cls, lists: _Lists, first_round: int, edges: NDArray[np.int64]) -> _Order:
        """Return the order of the uploads of a player, and of all that uploaded the same samples."""
        samples = np.concatenate(lists.samples).astype(np.uint32)
        rounds = first_round + np.repeat(lists.rounds, [len(own) for own in lists.samples])
        piece = np.searchsorted(edges, samples, side="right") - 1
        counts = np.bincount(piece, minlength=len(edges) - 1)
        positions = _positions(piece, np.cumsum(counts) - counts)
        result = cls(np.empty_like(samples), np.empty(len(samples), np.int32), positions, counts)
        result.samples[positions], result.rounds[positions] = samples, rounds
        return result


def scatter(task: RoundRange, layout: Layout, transcript: Transcript, own_loss: Loss | None) -> None:
    """Write the uploads of some rounds in blocks for the pieces, and what is known of each upload.

    A block has the values of all players and, for each list of samples that several may share, samples and rounds.
    """
    training = RecordedTraining(copy(transcript), own_loss)  # a copy is read by one thread
    rounds = list(islice(training.rounds(task.record), task.n_rounds))
    if task.spreads:
        rounds = [spread(each, layout.n_clients, layout.n_samples) for each in rounds]
    known, lists = _describe(rounds, layout)
    patterns, firsts = np.full(len(layout.widths), -1), list[int]()
    keys = dict[bytes, int]()
    for player in sorted(lists):
        patterns[player] = keys.setdefault(known["digests"][:, player].tobytes(), len(keys))
        if patterns[player] == len(firsts):
            firsts.append(player)
    orders = [_Order.of(lists[player], task.first, layout.edges) for player in firsts]
    columns = dict[int, Array]()
    for player, own in sorted(lists.items()):
        columns[player] = place_all(own.values, orders[patterns[player]].positions, layout, player)
        own.values.clear()
    _write_blocks(task.task, layout, columns, patterns, orders)
    offsets = [0]
    with layout.scratch.writing(f"{BATCHES.format(task.task)}.bin") as file:
        for player in firsts:
            for samples in lists[player].samples:
                file.write(np.ascontiguousarray(samples, np.uint32).data)
            offsets.append(offsets[-1] + sum(map(len, lists[player].samples)))
    known |= {"patterns": patterns, "offsets": np.array(offsets)}
    known |= {"counts": np.array([order.counts for order in orders]).reshape(-1, layout.n_pieces)}
    layout.scratch.save(UPLOADS.format(task.task), known)


def _describe(rounds: Sequence[Round], layout: Layout) -> tuple[dict[str, Array], dict[int, _Lists]]:
    """Return what is known of each upload, and what each player uploaded.

    Sizes and hashes of the samples of each round and player; what the server added to all samples alike, NaN if there
    is no such thing; whether it ever added what differs; the states of the head.
    """
    sizes, digests = np.zeros((2, len(rounds), len(layout.widths)), np.uint64)
    intercepts, varies = np.full((len(rounds), layout.widths[-1]), np.nan), False
    lists = dict[int, _Lists]()
    for t, (changes, _) in enumerate(rounds):
        for player, samples, values in changes:
            if samples is None:
                intercepts[t] = values[:, 0]
                continue
            own = lists.setdefault(player, _Lists([], [], []))
            own.rounds.append(t)
            own.samples.append(samples)
            own.values.append(values)
            sizes[t, player] += np.uint64(len(samples))
            digests[t, player] = _digest(digests[t, player], samples)
            if player == layout.n_clients:
                is_same = bool((values == values[:1]).all())
                intercepts[t], varies = values[0] if is_same else np.nan, varies or not is_same
    states = np.array([",".join(state) for _, state in rounds])
    known = {"sizes": sizes.astype(np.int64), "digests": digests, "intercepts": intercepts}
    return known | {"varies": np.array(varies), "states": states}, lists


def place_all(uploads: Sequence[Array], positions: Array, layout: Layout, player: int) -> Array:
    """Return the embeddings of a player, (uploads, width), each where it belongs."""
    result, done = np.empty((len(positions), layout.widths[player]), layout.precision), 0
    for uploaded in uploads:
        place(uploaded, positions[done : done + len(uploaded)], result)
        done += len(uploaded)
    return result


def _write_blocks(
    task: int, layout: Layout, columns: Mapping[int, Array], patterns: Array, orders: Sequence[_Order]
) -> None:
    ends = [np.cumsum(order.counts) for order in orders]
    with layout.scratch.writing(f"{UPLOADS.format(task)}.bin") as file:
        for j in range(layout.n_pieces):
            own = [slice(int(end[j] - order.counts[j]), int(end[j])) for end, order in zip(ends, orders, strict=True)]
            for player, values in columns.items():
                file.write(values[own[patterns[player]]].data)
            for part, order in zip(own, orders, strict=True):
                file.write(order.samples[part].data)
                file.write(order.rounds[part].data)


def _digest(before: np.uint64, samples: Array) -> np.uint64:
    """Return a hash of samples, and of those that were uploaded before in the same round."""
    content = before.tobytes() + np.ascontiguousarray(samples, np.uint32).tobytes()
    return np.uint64(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))


class Block(NamedTuple):
    """What a task wrote for a piece: the values of each player, and for each pattern its samples and rounds."""

    values: dict[int, Array]
    lists: list[tuple[Array, Array]]
    patterns: Array


def read_block(layout: Layout, task: int, piece: int, groups: Mapping[str, Array]) -> Block:
    """Return the block of a task for a piece."""
    patterns = groups["patterns"][task]
    counts = groups["counts"][slice(*groups["edges"][task : task + 2])]
    item, present = np.dtype(layout.precision).itemsize, np.flatnonzero(patterns >= 0)
    widths = np.array(layout.widths)
    per_entry = np.full(len(counts), 8)
    np.add.at(per_entry, patterns[present], widths[present] * item)
    start, size = int((per_entry @ counts[:, :piece]).sum()), int(per_entry @ counts[:, piece])
    content = layout.scratch.read(f"{UPLOADS.format(task)}.bin", start, size)
    values, at = dict[int, Array](), 0
    for player in present.tolist():
        n = int(counts[patterns[player], piece])
        values[player] = np.frombuffer(content, layout.precision, n * widths[player], at).reshape(n, widths[player])
        at += values[player].nbytes
    lists = list[tuple[Array, Array]]()
    for n in counts[:, piece].tolist():
        lists.append((np.frombuffer(content, np.uint32, n, at), np.frombuffer(content, np.int32, n, at + 4 * n)))
        at += 8 * n
    return Block(values, lists, patterns)


def merge(piece: int, layout: Layout) -> None:
    """Write the uploads of a piece, sorted by sample, and what is known of them.

    For each group of players with the same uploads: where those of each sample begin, the index of the round of each
    among the rounds of the group, and whether it is held out; for each player the values.
    """
    groups = layout.scratch.load(GROUPS)
    first, n_samples = int(layout.edges[piece]), int(np.diff(layout.edges)[piece])
    n_groups = len(groups["total"])
    blocks = [read_block(layout, task, piece, groups) for task in range(layout.n_tasks)]
    arrays, summary, of_clients = dict[str, Array](), dict[str, Array](), list[Uploaded]()
    n_seen, n_uploads, gaps = np.zeros((3, n_groups), np.int64)
    for g in range(n_groups):
        players, of_rounds = np.flatnonzero(groups["group"] == g).tolist(), groups[f"rounds-{g}"]
        lists = [block.lists[block.patterns[players[0]]] for block in blocks if block.patterns[players[0]] >= 0]
        samples, when = (np.concatenate(own) for own in zip(*lists, strict=True))
        samples, when = samples.astype(np.int64) - first, np.searchsorted(of_rounds, when)
        n_of_sample = np.bincount(samples, minlength=n_samples)
        starts = np.concatenate([[0], np.cumsum(n_of_sample)])
        positions = _positions(samples, starts[:-1])
        rounds = np.empty(len(samples), np.int32)
        rounds[positions] = when
        for player in players:
            uploads = [block.values.pop(player) for block in blocks if player in block.values]
            arrays[f"values-{player}"] = place_all(uploads, positions, layout, player)
        is_held_out = _hold_out(layout, groups, g, piece, starts, rounds)
        arrays |= {f"starts-{g}": starts, f"rounds-{g}": rounds, f"held-{g}": is_held_out}
        summary[f"held-{g}"] = np.bincount(rounds[is_held_out], minlength=len(of_rounds))
        n_seen[g], n_uploads[g] = np.count_nonzero(n_of_sample), len(samples)
        gaps[g] = not np.isin(n_of_sample, [0, len(of_rounds)]).all()
        if players[0] < layout.n_clients:
            uploaded = of_rounds[rounds] * n_samples + np.repeat(np.arange(n_samples), n_of_sample)
            of_clients.append(Uploaded(players, of_rounds, uploaded, n_of_sample > 0))
    begins = layout.scratch.stack(f"{PIECE.format(piece)}.bin", arrays)
    extents = np.zeros((len(layout.widths), 6), np.int64)
    for player, g in enumerate(groups["group"].tolist()):
        if g >= 0:
            names = f"starts-{g}", f"rounds-{g}", f"held-{g}", f"values-{player}"
            extents[player] = n_samples, n_uploads[g], *(begins[name] for name in names)
    summary |= {"seen": np.any([own.is_seen for own in of_clients] or [np.zeros(n_samples, bool)], axis=0)}
    summary |= {"withheld": _count_withheld(of_clients, n_samples, len(layout.widths))}
    layout.scratch.save(SUMMARY.format(piece), summary | {"n_seen": n_seen, "gaps": gaps > 0, "extents": extents})


def _hold_out(
    layout: Layout, groups: Mapping[str, Array], group: int, piece: int, starts: Array, rounds: Array
) -> NDArray[np.bool_]:
    """Return which uploads of a piece are held out: the same as if all were held out at once."""
    draws = HeldOut(layout.held_out, layout.seed, int(groups["total"][group]), layout.n_samples)
    first, last = layout.edges[piece : piece + 2].tolist()
    result = draws.among(int(groups["before"][group, piece]), first, starts)
    kept = groups[f"kept-{group}"]
    for t in np.flatnonzero((kept >= first) & (kept < last)).tolist():
        own = slice(starts[kept[t] - first], starts[kept[t] - first + 1])
        result[own] &= rounds[own] != t
    return result


def read_uploads(scratch: Scratch, piece: int, extent: Array, width: int, precision: str) -> Observed:
    """Return the uploads of a player in a piece, from their extent there."""
    n_samples, n_uploads, *begins = extent.tolist()
    kinds = ("i8", n_samples + 1), ("i4", n_uploads), ("?", n_uploads), (precision, n_uploads * width)
    path = scratch.path / f"{PIECE.format(piece)}.bin"
    with path.open("rb") as file:
        # Reading took as long as a sweep, half of it to get memory and give it back. Loops are compiled for arrays that
        # can be written to; what they wrote would go to a copy.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        arrays = [np.frombuffer(content, *kind, begin) for begin, kind in zip(begins, kinds, strict=True)]
    except ValueError:
        raise InputError(f"{path} was cut off; begin anew without resume") from None
    starts, rounds, is_held_out, values = arrays
    return Observed(starts, rounds, is_held_out, values.reshape(-1, width))


class Uploaded(NamedTuple):
    """What a group of players uploaded in a piece: each upload as round * samples + sample."""

    players: list[int]
    rounds: Array
    uploads: Array
    is_seen: NDArray[np.bool_]


def _count_withheld(groups: Sequence[Uploaded], n_samples: int, n_players: int) -> Array:
    """Return how many embeddings each client did not upload although another one uploaded the sample in that round.

    Only in rounds in which the client took part, of samples that it ever uploaded.
    """
    result = np.zeros(n_players, np.int64)
    if len(groups) < 2:
        return result
    anyone = np.unique(np.concatenate([group.uploads for group in groups]))
    for players, rounds, uploads, is_seen in groups:
        could = np.isin(anyone // n_samples, rounds) & is_seen[anyone % n_samples]
        result[players] = np.count_nonzero(could) - len(uploads)
    return result


@compiled
def _positions(keys: Array, starts: Array) -> Array:
    """Return where each entry comes to lie if they are sorted by a key and then by their order."""
    following, result = starts.copy(), np.empty(len(keys), np.int64)
    for k in range(len(keys)):
        result[k] = following[keys[k]]
        following[keys[k]] += 1
    return result
