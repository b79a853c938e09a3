"""Trainings larger than memory: cut into pieces on disk, completed and valued piece by piece, here or on a cluster.

The driver holds what it knows of each sample and round, and matrices of the size of rounds times rank. Uploads are read
by the workers, one piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion import Completion, CompletionReport
from verfedsv.completion.complete import HELD_OUT, REGULARIZATIONS, fit_with
from verfedsv.completion.observations import HeldOut
from verfedsv.completion.parts import N_PARTS, Equations, Observations
from verfedsv.errors import InputError
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.plan import Plan
from verfedsv.threads import n_workers, ordered_map
from verfedsv.valuation.backends import Backend, batches
from verfedsv.valuation.chunks import Chunk
from verfedsv.valuation.completed import MAX_SWEEPS, TOLERANCE, CompletionPlan
from verfedsv.valuation.limits import Cuts
from verfedsv.valuation.pieces import (
    LABELS,
    ROWS,
    WEIGHTS,
    Extents,
    StoredPart,
    StoredSolver,
    StoredTraining,
    store_factors,
)
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.scratch import Scratch
from verfedsv.valuation.shuffle import BATCHES, GROUPS, SUMMARY, UPLOADS, Layout, RoundRange, merge, scatter
from verfedsv.valuation.trainings import RecordedTraining

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A training in pieces, and what is known of it: who uploaded what when, but no embedding.

    `groups` has the group of each player with uploads, `rounds` those of each group, `sizes` its uploads in each of
    them, `held_out` how many of these are held out. `intercepts` has what the server added in each round, NaN if it
    added nothing or what differs between samples. `n_seen` is by group and piece, `n_withheld` by player.
    """

    layout: Layout
    parts: list[range]
    groups: Mapping[int, int]
    rounds: list[Array]
    sizes: list[Array]
    held_out: list[Array]
    n_seen: NDArray[np.int64]
    has_gaps: NDArray[np.bool_]
    is_seen: NDArray[np.bool_]
    n_withheld: NDArray[np.int64]
    intercepts: Floats
    varies: bool
    all_extents: NDArray[np.int64]
    states: tuple[tuple[str, ...], ...]

    @property
    def server(self) -> int:
        return self.layout.n_clients

    @property
    def has_any_gaps(self) -> bool:
        """Whether embeddings of any player are missing."""
        return any(self.has_gaps[group] for group in self.groups.values())

    @property
    def intercept_rounds(self) -> Array:
        """The rounds in which what the server added is the same for all samples, and is not among the uploads."""
        is_known = np.asarray(np.isfinite(self.intercepts).all(axis=1))
        if self.server in self.groups:
            is_known[self.rounds[self.groups[self.server]]] = False
        return np.flatnonzero(is_known)

    def intercept(self) -> dict[int, Completion]:
        """Return what the server added to all samples alike, as factors of the rounds, if it ever did."""
        weights = self.intercepts[self.intercept_rounds][..., np.newaxis]
        return (
            {self.server: Completion(weights, np.empty((0, 1)), CompletionReport.of_uploads(0, 0))}
            if len(weights)
            else {}
        )

    def with_one_kind_of_offset(self) -> Shuffled:
        """Return a synchronous training; if offsets never differ between samples, they are an intercept."""
        if self.server not in self.groups:
            return self
        if self.varies:
            return self
        return replace(self, groups={player: g for player, g in self.groups.items() if player != self.server})

    def extents(self, player: int) -> Extents:
        """Return where the uploads of a player lie."""
        return Extents(player, self.all_extents[:, player], self.layout.widths[player], self.layout.precision)

    def observations(self, player: int) -> Observations:
        """Return the uploads of a player, for completion."""
        group, edges, extents = self.groups[player], self.layout.edges, self.extents(player)
        parts = [
            StoredPart(
                self.layout.scratch,
                own.start,
                replace(extents, of_pieces=extents.of_pieces[own.start : own.stop]),
                int(edges[own.stop] - edges[own.start]),
                int(self.n_seen[group, own.start : own.stop].sum()),
            )
            for own in self.parts
        ]
        return Observations(parts, extents.width, self.sizes[group], self.held_out[group])


def shuffle(
    training: RecordedTraining,
    scratch: Scratch,
    cuts: Cuts,
    seed: int,
    workers: int | Executor,
    step: Callable[[int], None],
) -> Shuffled:
    """Cut a training into pieces, and return what is known of them; `step` is called with the number of tasks done."""
    transcript = training.transcript
    widths = (*(training.width_of(player) for player in range(len(training.clients))), training.n_classes)
    precision = transcript.description.precision or "float64"
    layout = Layout(scratch, cuts.edges, widths, precision, len(cuts.rounds), HELD_OUT, seed)
    tasks = [
        RoundRange(k, transcript.first_record_of(cut.start), cut.start, cut.stop - cut.start)
        for k, cut in enumerate(cuts.rounds)
    ]
    scattering = partial(scatter, layout=layout, transcript=transcript, own_loss=training.own_loss)
    todo = [task for task in tasks if not scratch.has(f"{UPLOADS.format(task.task)}.npz")]
    step(len(tasks) - len(todo))
    _run(scattering, todo, workers, step)
    known = [scratch.load(UPLOADS.format(task.task)) for task in tasks]
    if [len(each["sizes"]) for each in known] != [task.n_rounds for task in tasks]:
        raise InputError(f"{scratch.path} has other rounds than the training; begin anew without resume")
    if training.is_synchronous and any(each["varies"] for each in known):
        mixed = [task._replace(spreads=True) for task, each in zip(tasks, known, strict=True) if _has_intercept(each)]
        list(ordered_map(scattering, mixed, workers))
        known = [scratch.load(UPLOADS.format(task.task)) for task in tasks]
    groups, rounds, sizes = _find_groups(known)
    if not scratch.has(f"{GROUPS}.npz"):
        _write_groups(layout, known, cuts.rounds, groups, rounds, sizes)
    unmerged = [j for j in range(layout.n_pieces) if not scratch.has(f"{SUMMARY.format(j)}.npz")]
    step(layout.n_pieces - len(unmerged))
    _run(partial(merge, layout=layout), unmerged, workers, step)
    for k in range(len(tasks)):  # what is in the pieces now
        scratch.remove_file(f"{UPLOADS.format(k)}.bin")
    summaries = [scratch.load(SUMMARY.format(j)) for j in range(layout.n_pieces)]
    return Shuffled(
        layout,
        cuts.parts,
        groups,
        rounds,
        sizes,
        [np.sum([summary[f"held-{g}"] for summary in summaries], axis=0) for g in range(len(rounds))],
        np.stack([summary["n_seen"] for summary in summaries], axis=1),
        np.any([summary["gaps"] for summary in summaries], axis=0),
        np.concatenate([summary["seen"] for summary in summaries]),
        np.sum([summary["withheld"] for summary in summaries], axis=0),
        np.concatenate([each["intercepts"] for each in known]),
        any(bool(each["varies"]) for each in known),
        np.stack([summary["extents"] for summary in summaries]),
        tuple(tuple(s.split(",")) if s else () for each in known for s in each["states"].tolist()),
    )


def _run(
    function: Callable[[Item], object], items: Iterable[Item], workers: int | Executor, step: Callable[[int], None]
) -> None:
    """Run a function on all items; if anything fails, nothing continues in the background."""
    with closing(ordered_map(function, items, workers)) as results:
        for _ in results:
            step(1)


def _has_intercept(known: Mapping[str, Array]) -> bool:
    """Return whether the server's offset of some round is not among the uploads."""
    return bool((np.isfinite(known["intercepts"]).all(axis=1) & (known["sizes"][:, -1] == 0)).any())


def _find_groups(known: list[dict[str, Array]]) -> tuple[dict[int, int], list[Array], list[Array]]:
    """Return the group of each player that uploaded anything, and the rounds and sizes of the uploads of each group."""
    all_sizes, digests = (np.concatenate([each[name] for each in known]) for name in ("sizes", "digests"))
    groups, keys = dict[int, int](), dict[bytes, int]()
    for player in np.flatnonzero(all_sizes.any(axis=0)).tolist():
        key = all_sizes[:, player].tobytes() + digests[:, player].tobytes()
        groups[player] = keys.setdefault(key, len(keys))
    first = [next(player for player, own in groups.items() if own == g) for g in range(len(keys))]
    rounds = [np.flatnonzero(all_sizes[:, player]) for player in first]
    return groups, rounds, [all_sizes[own, player] for own, player in zip(rounds, first, strict=True)]


def _write_groups(
    layout: Layout,
    known: list[dict[str, Array]],
    cuts: list[slice],
    groups: Mapping[int, int],
    rounds: list[Array],
    sizes: list[Array],
) -> None:
    """Write what merging needs of each group: its rounds, what comes before each piece, what is not held out."""
    arrays: dict[str, Array] = {"group": np.full(len(layout.widths), -1)}
    for player, g in groups.items():
        arrays["group"][player] = g
    # Of all tasks at once: a piece has a block of each, and opening their files took longer than reading the blocks.
    arrays["patterns"] = np.array([each["patterns"] for each in known])
    arrays["counts"] = np.concatenate([each["counts"] for each in known])
    arrays["edges"] = np.cumsum([0, *(len(each["counts"]) for each in known)])
    arrays["total"] = np.array([own.sum() for own in sizes])
    arrays["before"] = np.zeros((len(rounds), layout.n_pieces), np.int64)
    for g, (own, n_own) in enumerate(zip(rounds, sizes, strict=True)):
        player = next(player for player, group in groups.items() if group == g)
        draws = HeldOut(layout.held_out, layout.seed, int(n_own.sum()), layout.n_samples)
        entries, kept = draws.kept_of_rounds(n_own), list[int]()
        for k, (each, cut) in enumerate(zip(known, cuts, strict=True)):
            pattern = int(each["patterns"][player])
            if pattern < 0:
                continue
            counts = each["counts"][pattern]
            arrays["before"][g] += np.cumsum(counts) - counts
            at = int(each["offsets"][pattern])
            for t in range(*np.searchsorted(own, (cut.start, cut.stop)).tolist()):
                content = layout.scratch.read(f"{BATCHES.format(k)}.bin", 4 * (at + int(entries[t])), 4)
                kept.append(int.from_bytes(content, "little"))
                at += int(n_own[t])
        arrays |= {f"rounds-{g}": own, f"kept-{g}": np.array(kept)}
    layout.scratch.save(GROUPS, arrays)


def complete_stored(
    shuffled: Shuffled,
    training: RecordedTraining,
    plan: CompletionPlan,
    workers: int | Executor,
    step: Callable[[int], None],
) -> Factorisation:
    """Return the factors of the rounds of all players with gaps; those of the samples are written to files.

    A player has `N_PARTS` tasks at a time, so as many players are completed at once as keep all workers busy, and one
    more if workers would wait for the driver in between.
    """
    scratch, server, is_over = shuffled.layout.scratch, shuffled.server, Event()
    n = n_workers(workers) if isinstance(workers, Executor) else 0
    at_once = 1 + n // N_PARTS if n > 1 else 1
    gaps = [player for player, group in shuffled.groups.items() if shuffled.has_gaps[group]]

    def complete(player: int) -> Completion:
        observations = shuffled.observations(player)
        solver = StoredSolver(
            observations,
            REGULARIZATIONS[0],
            TOLERANCE,
            MAX_SWEEPS,
            workers,
            scratch=scratch,
            player=player,
            is_over=is_over.is_set,
            parts_each=max(1, N_PARTS // (2 * n)) if n else 1,
        )
        like = plan.like[player] if player < len(plan.like) else None
        fit, report = fit_with(solver, plan.rank, plan.regularization, "spectral", plan.seed, like)
        storing = partial(_store_factors, equations=fit.equations)
        list(ordered_map(storing, enumerate(observations.parts), workers))
        return Completion(fit.rounds, np.empty((0, report.rank)), report)

    fitted = dict[int, Completion]()
    with ThreadPoolExecutor(at_once) as drivers:
        futures = [drivers.submit(complete, player) for player in gaps]
        try:
            for player, future in zip(gaps, futures, strict=True):
                fitted[player] = future.result()
                step(1)
        except BaseException:
            is_over.set()
            for future in futures:
                future.cancel()
            raise
    reports = list[CompletionReport]()
    for player in range(server):
        sizes = shuffled.sizes[shuffled.groups[player]] if player in shuffled.groups else np.zeros(1, np.int64)
        uploaded = CompletionReport.of_uploads(int(sizes.sum()), training.n_samples - int(sizes.max()))
        report = fitted[player].report if player in fitted else uploaded
        reports.append(replace(report, n_withheld=int(shuffled.n_withheld[player])))
    return Factorisation(fitted | shuffled.intercept(), tuple(reports))


def _store_factors(numbered: tuple[int, StoredPart], equations: Equations) -> None:
    store_factors(numbered[1], equations, numbered[0])


def store_training(
    shuffled: Shuffled, training: RecordedTraining, rows: NDArray[np.intp], factored: Mapping[int, Completion]
) -> StoredTraining:
    """Write what the valuation of rows needs besides uploads and factors of samples; return what reads all of it."""
    scratch, server = shuffled.layout.scratch, shuffled.server
    scratch.save_array(LABELS, training.labels)
    scratch.save_array(ROWS, rows)
    scratch.save(WEIGHTS, {str(player): fit.rounds for player, fit in factored.items()})
    completed = [player for player, fit in factored.items() if fit.report.rank]
    rounds_of = {player: shuffled.rounds[group] for player, group in shuffled.groups.items()}
    return StoredTraining(
        scratch,
        training.loss,
        training.head,
        server,
        training.width,
        len(rows),
        shuffled.states,
        training.first_state,
        shuffled.layout.edges[[pieces.start for pieces in shuffled.parts]],
        shuffled.layout.edges,
        {player: shuffled.extents(player) for player in rounds_of if player not in completed},
        {
            player: shuffled.intercept_rounds if player == server and server not in completed else rounds_of[player]
            for player in factored
        },
        {player: own for player, own in rounds_of.items() if player not in completed},
    )


def value_batch(numbered: tuple[int, range], stored: StoredTraining, backend: Backend, plan: Plan) -> Estimate:
    """Return the sums of the estimates of some chunks of rows, as `Backend.value` does for one."""
    _, batch = numbered
    chunks = backend.split(stored.n_rows, stored.n_clients, stored.width)
    return Estimate.sum(_value_chunk(stored.part(chunks[index], index), backend, plan) for index in batch)


def _value_chunk(parts: Iterable[Chunk], backend: Backend, plan: Plan) -> Estimate:
    """Return the estimates of all rounds of a chunk, which comes in parts of some rounds."""
    found, n_rounds = list[Estimate](), 0
    for part in parts:
        own = range(n_rounds, n_rounds + part.n_rounds)
        refined = {t - n_rounds: allowed for t, allowed in plan.refined.items() if t in own}
        if plan.refined and not refined:
            found.append(Estimate.none(len(own), part.n_clients + 1))
        else:
            from_here = replace(plan, first_round=plan.first_round + n_rounds, refined=refined)
            found.append(backend.value(part, from_here))
        n_rounds = own.stop
    return Estimate.joined(found)


def sum_batches(
    plan: Plan, stored: StoredTraining, backend: Backend, workers: int | Executor, step: Callable[[int], None]
) -> Iterator[Estimate]:
    """Yield the sums over batches of chunks in their order; what is in the scratch folder is not computed again."""
    scratch, attempt = stored.scratch, f"{len(plan.refined)}-{plan.first_round}"
    all_batches = list(enumerate(batches(plan.n_chunks)))
    names = [f"values-{attempt}-{number}" for number, _ in all_batches]
    todo = [each for each in all_batches if not scratch.has(f"{names[each[0]]}.npz")]
    fresh = ordered_map(partial(value_batch, stored=stored, backend=backend, plan=plan), todo, workers)
    pending = {number for number, _ in todo}
    with closing(fresh):
        for number, name in enumerate(names):
            if number in pending:
                estimate = next(fresh)
                scratch.save(name, estimate.as_arrays())
            else:
                estimate = Estimate.of_arrays(scratch.load(name))
            yield estimate
            step(1)
