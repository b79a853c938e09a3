"""Alternating least squares on a GPU: the loops over observations of `sweeps`. Imported when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import cuda, float64

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import add
from verfedsv.completion import sweeps
from verfedsv.completion.factors import CompiledSolver, Fit
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Equations, solve
from verfedsv.gpu.lanes import IS_SIMULATED, device, kernel, lane, one_each
from verfedsv.gpu.memory import upload, zeros

N_THREADS = 8 if IS_SIMULATED else 128

N_SLICES, TILE = 8, 32
"""Parts of the observations of a round, each added by blocks of its own, and observations that are added plainly."""

SHARED_NUMBERS = 4096
"""Numbers that the threads of a block share."""

_add, _factorise, _substitute = lane(add), lane(sweeps.factorise), lane(sweeps.substitute)


class PatternOnGpu(NamedTuple):
    """The arrays of a `Pattern` on the GPU; `owners` are the samples of its observations."""

    starts: Any
    rounds: Any
    positions: Any
    edges: Any
    owners: Any

    @classmethod
    def of(cls, pattern: Pattern) -> PatternOnGpu:
        """Return the arrays; those of the same pattern are sent once."""
        if pattern not in _PATTERNS:
            owners = np.repeat(np.arange(pattern.n_samples, dtype=np.int32), np.diff(pattern.starts))
            arrays = pattern.starts, pattern.rounds, pattern.positions, pattern.edges, owners
            _PATTERNS[pattern] = cls(*(upload(array) for array in arrays))
        return _PATTERNS[pattern]


_PATTERNS: WeakKeyDictionary[Pattern, PatternOnGpu] = WeakKeyDictionary()


def _per_sample(rank: int) -> int:
    """Return how many numbers the threads of a block share for each sample that they solve for."""
    return rank * (rank + 1) // 2 + rank + 1


@dataclass(kw_only=True)
class GpuSolver(CompiledSolver):
    """Alternating least squares whose loops over uploads run on a GPU; rounds are solved for by the processor.

    `values`, (observations, classes), are in the order of `pattern`.
    """

    pattern: Pattern
    values: Array

    def __post_init__(self) -> None:
        self._arrays, self._on_gpu = PatternOnGpu.of(self.pattern), upload(self.values)
        pieces = [piece for part in self.observations.parts for piece in part.pieces()]
        held_out = np.concatenate([piece.is_held_out for piece in pieces])
        self._held_out = {False: upload(held_out), True: upload(np.zeros_like(held_out))}
        self._kept: tuple[Equations, Any] | None = None

    def solve(self, fit: Fit) -> Floats:
        return np.asarray(self._solved(fit.equations).copy_to_host())

    def _sum_squares(self) -> Floats:
        nothing = zeros(self.pattern.n_samples, 1)
        rounds = np.zeros((self.pattern.n_rounds, self.observations.n_classes, 1))
        return self._errors_of(rounds, nothing, uses_all=False)[:, 1]

    def _sum_errors(self, fit: Fit) -> Floats:
        return self._errors_of(fit.rounds, self._solved(fit.equations), uses_all=fit.equations.uses_all)

    def _errors_of(self, rounds: Floats, samples: Any, *, uses_all: bool) -> Floats:
        n_blocks, n_threads = (2, 2) if IS_SIMULATED else (264, 128)
        parts = cuda.device_array((n_blocks * n_threads, 6), np.float64)
        arrays, held_out = self._arrays, self._held_out[uses_all]
        _sum_errors_of[n_blocks, n_threads](
            arrays.starts, arrays.rounds, held_out, self._on_gpu, upload(rounds), samples, parts
        )
        found = parts.copy_to_host().reshape(-1, 2, 3)
        return np.concatenate([found[:, :, :2].sum(axis=0), found[:, :, 2:].max(axis=0)], axis=1)

    def _typical(self, equations: Equations) -> Floats:
        samples = np.asarray(self._solved(equations).copy_to_host())
        total = np.zeros((equations.rank, equations.rank))
        sweeps.sum_moment(samples, total)
        return total / max(1, int(np.count_nonzero(samples.any(axis=1))))

    def _solved(self, equations: Equations) -> Any:
        """Return the factors of the samples on the GPU."""
        if self._kept is None or self._kept[0] is not equations:
            n_samples, rank = self.pattern.n_samples, equations.rank
            if _per_sample(rank) > SHARED_NUMBERS:  # from rank 90 on, the processor solves
                self._kept = equations, upload(np.concatenate(list(self._map(partial(solve, equations=equations)))))
                return self._kept[1]
            samples = cuda.device_array((n_samples, rank), np.float64)
            together = min(N_THREADS, SHARED_NUMBERS // _per_sample(rank))
            n_blocks = max(-(-n_samples // together), one_each(1)[0])
            rounds = sweeps.from_lines(equations.lines, self.observations.n_classes, rank)
            _sweep_samples[n_blocks, N_THREADS](
                self._arrays.starts,
                self._arrays.rounds,
                self._held_out[equations.uses_all],
                self._on_gpu,
                upload(equations.by_round),
                upload(rounds),
                equations.regularization,
                samples,
                together,
            )
            self._kept = equations, samples
        return self._kept[1]

    def _sum_equations(self, equations: Equations, n_classes: int) -> tuple[Floats, Floats]:
        n_rounds, rank = self.pattern.n_rounds, equations.rank
        size = rank * (rank + 1) // 2
        n_outputs = size + n_classes * rank
        sums = cuda.device_array((n_rounds, N_SLICES, n_outputs), np.float64)
        grid = n_rounds, N_SLICES, -(-n_outputs // N_THREADS)
        in_tile = min(TILE, SHARED_NUMBERS // (rank + n_classes))
        arrays, held_out = self._arrays, self._held_out[equations.uses_all]
        samples = self._solved(equations)
        _sum_rounds[grid, N_THREADS](
            arrays.edges, arrays.positions, arrays.owners, held_out, self._on_gpu, samples, in_tile, sums
        )
        found = cuda.device_array((n_rounds, n_outputs), np.float64)
        _add_slices[one_each(found.size)](sums, found)
        both = found.copy_to_host()
        target = both[:, size:].reshape(n_rounds, n_classes, rank)
        return np.ascontiguousarray(both[:, :size]), np.ascontiguousarray(target)


@kernel
def _sweep_samples(
    starts: Any,
    rounds: Any,
    is_held_out: Any,
    values: Any,
    by_round: Any,
    rounds_factor: Any,
    regularization: float,
    samples_factor: Any,
    together: int,
) -> None:
    """Solve for `together` samples in a block: first a thread for each number of their equations, then for each."""
    space = cuda.shared.array(SHARED_NUMBERS, float64)
    rank, n_classes = samples_factor.shape[1], values.shape[1]
    size = rank * (rank + 1) // 2
    stride = (size + rank) | 1
    first = cuda.blockIdx.x * together
    n = min(together, len(samples_factor) - first)
    for item in range(cuda.threadIdx.x, n * (size + rank), cuda.blockDim.x):
        i, j = item // (size + rank), item % (size + rank)
        total = 0.0
        for p in range(starts[first + i], starts[first + i + 1]):
            if not is_held_out[p]:
                t = rounds[p]
                if j < size:
                    total += by_round[t, j]
                else:
                    for c in range(n_classes):
                        total += float64(values[p, c]) * rounds_factor[t, c, j - size]
        space[i * stride + j] = total
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        matrix = space[i * stride : i * stride + size]
        h = space[i * stride + size : i * stride + size + rank]
        _factorise(matrix, rank, regularization)
        _substitute(matrix, h, rank)
        for a in range(rank):
            samples_factor[first + i, a] = h[a]


@kernel
def _sum_rounds(
    edges: Any,
    positions: Any,
    owners: Any,
    is_held_out: Any,
    values: Any,
    samples_factor: Any,
    in_tile: int,
    sums: Any,
) -> None:
    """Write the sums of h h' and x h over a slice of the observations of a round, a thread for each number."""
    space = cuda.shared.array(SHARED_NUMBERS, float64)
    rank, n_classes = samples_factor.shape[1], values.shape[1]
    size, width = rank * (rank + 1) // 2, rank + n_classes
    t, part = cuda.blockIdx.x, cuda.blockIdx.y
    output = cuda.blockIdx.z * cuda.blockDim.x + cuda.threadIdx.x
    # The two numbers of an observation that are multiplied.
    left, right = 0, 0
    if output < size:
        while (left + 1) * (left + 2) // 2 <= output:
            left += 1
        right = output - left * (left + 1) // 2
    elif output < sums.shape[2]:
        left, right = rank + (output - size) // rank, (output - size) % rank
    n = edges[t + 1] - edges[t]
    begin, end = edges[t] + n * part // sums.shape[1], edges[t] + n * (part + 1) // sums.shape[1]
    total, lost = 0.0, 0.0
    for first in range(begin, end, in_tile):
        n_tile = min(in_tile, end - first)
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_tile * width, cuda.blockDim.x):
            p, j = positions[first + item // width], item % width
            x = samples_factor[owners[p], j] if j < rank else float64(values[p, j - rank])
            space[item] = 0.0 if is_held_out[p] else x
        cuda.syncthreads()
        of_tile = 0.0
        for i in range(n_tile):
            of_tile += space[i * width + left] * space[i * width + right]
        total, lost = _add(total, lost, of_tile)
    if output < sums.shape[2]:
        sums[t, part, output] = total


@kernel
def _add_slices(sums: Any, result: Any) -> None:
    """Write the sums over slices; one thread for each number."""
    at = cuda.grid(1)
    n_outputs = result.shape[1]
    if at < len(result) * n_outputs:
        total = 0.0
        for part in range(sums.shape[1]):
            total += sums[at // n_outputs, part, at % n_outputs]
        result[at // n_outputs, at % n_outputs] = total


@device
def _error(values: Any, p: int, c: int, rounds_factor: Any, t: int, samples_factor: Any, i: int) -> Any:
    error = float64(values[p, c])
    for a in range(samples_factor.shape[1]):
        error -= rounds_factor[t, c, a] * samples_factor[i, a]
    return error


@kernel
def _sum_errors_of(
    starts: Any, rounds: Any, is_held_out: Any, values: Any, rounds_factor: Any, samples_factor: Any, parts: Any
) -> None:
    """Write what `sweeps.sum_errors` does, for the samples of each thread."""
    own = cuda.local.array(6, float64)
    lost = cuda.local.array(2, float64)
    for j in range(6):
        own[j] = 0.0
    lost[0], lost[1] = 0.0, 0.0
    thread, n_classes = cuda.grid(1), values.shape[1]
    for i in range(thread, len(samples_factor), cuda.gridsize(1)):
        for p in range(starts[i], starts[i + 1]):
            kind = 1 if is_held_out[p] else 0
            squares = 0.0
            for c in range(n_classes):
                error = _error(values, p, c, rounds_factor, rounds[p], samples_factor, i)
                squares += error * error
                own[3 * kind + 2] = max(own[3 * kind + 2], abs(error))
            own[3 * kind + 1], lost[kind] = _add(own[3 * kind + 1], lost[kind], squares)
            own[3 * kind] += n_classes
    for j in range(6):
        parts[thread, j] = own[j]
