"""Completion in plain NumPy, to hold the compiled solver to: a dense matrix with gaps, one equation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arrays import Floats
from verfedsv.completion.complete import HELD_OUT, REGULARIZATIONS, Completion, Start, fit_with
from verfedsv.completion.factors import (
    CompiledSolver,
    Fit,
    FitErrors,
    find_short_rounds,
    has_settled,
    refit_short_rounds,
)
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Equations, Observations
from verfedsv.completion.sweeps import Observed, from_lines


def complete_plainly(
    batches: Sequence[ArrayLike],
    embeddings: Sequence[ArrayLike],
    n_samples: int,
    rank: int | Literal["auto"] = "auto",
    regularization: float | Literal["auto"] = "auto",
    *,
    start: Start | Completion = "spectral",
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
    seed: int = 0,
    n_threads: int | None = None,  # noqa: ARG001  # the same signature
) -> Completion:
    """Return what `complete` returns, up to rounding, slowly; input is not checked."""
    numbers = [np.asarray(batch) for batch in batches]
    pattern = Pattern.from_batches(numbers, n_samples)
    solver = PlainSolver.of(pattern, embeddings, REGULARIZATIONS[0], tolerance, max_sweeps, HELD_OUT, seed)
    fit, report = fit_with(solver, rank, regularization, start, seed)
    return Completion(fit.rounds, solver.solve(fit), report)


@dataclass
class PlainSolver:
    """`matrix` is (rounds, classes, samples), NaN where nothing was uploaded; `held_out` marks some of the others.

    `observations` are the same uploads as `CompiledSolver` takes them.
    """

    observations: Observations
    matrix: Floats
    held_out: NDArray[np.bool_]
    regularization: float
    tolerance: float
    max_sweeps: int
    fit_sweeps: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        pattern: Pattern,
        embeddings: Sequence[ArrayLike],
        regularization: float,
        tolerance: float,
        max_sweeps: int,
        fraction: float,
        seed: int,
    ) -> PlainSolver:
        """Return a solver of the uploads of a pattern, a fraction of them held out."""
        uploads = [np.asarray(values, np.float64).reshape(len(values), -1) for values in embeddings]
        n_samples, n_classes = pattern.n_samples, uploads[0].shape[1]
        of_sample = np.repeat(np.arange(n_samples), np.diff(pattern.starts))
        matrix = np.full((len(uploads), n_classes, n_samples), np.nan)
        for t, values in enumerate(uploads):
            matrix[t][:, of_sample[pattern.of_round(t)]] = values.T
        is_held_out = pattern.hold_out(fraction, seed)
        held_out = np.zeros((len(uploads), n_samples), bool)
        held_out[pattern.rounds[is_held_out], of_sample[is_held_out]] = True
        observations = Observations.in_memory(pattern, pattern.sort(uploads, n_classes, 1), fraction, seed)
        return cls(observations, matrix, held_out, regularization, tolerance, max_sweeps)

    def start(self, rank: int) -> Floats:
        n_rounds, n_classes, n_samples = self.matrix.shape
        is_used = self._used(uses_all=False)
        filled = np.zeros_like(self.matrix)
        for i in range(n_samples):
            when = np.flatnonzero(is_used[:, i])
            for c in range(n_classes):
                if len(when):
                    filled[:, c, i] = np.interp(np.arange(n_rounds), when, self.matrix[when, c, i])
        left, sizes, _ = np.linalg.svd(filled.reshape(-1, n_samples), full_matrices=False)
        left = left[:, :rank] * np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])[:rank]
        factors: Floats = left * np.sqrt(sizes[:rank])
        return factors.reshape(n_rounds, n_classes, rank)

    def fit(self, rounds: Floats, *, uses_all: bool, n_sweeps: int | None = None) -> Fit:
        n_rounds, rank = len(rounds), rounds.shape[2]
        penalty = self.regularization * np.eye(rank)
        is_used = self._used(uses_all=uses_all)
        w = rounds.copy()
        before = np.inf
        size = float(np.square(np.moveaxis(self.matrix, 1, 2)[is_used]).sum())
        for sweep in range(1, self.max_sweeps + 1):
            equations = Equations.of(w, self.regularization, uses_all=uses_all)
            h, w = self._solve(equations), w.copy()
            for t in range(n_rounds):
                seen = h[is_used[t]]
                w[t] = np.linalg.solve(seen.T @ seen + penalty, seen.T @ self.matrix[t][:, is_used[t]].T).T
            left = float(np.square(self._residuals(w, h)[is_used]).sum())
            if has_settled(before, left, size, self.tolerance, None if n_sweeps is None else sweep >= n_sweeps):
                break
            before = left
        self.fit_sweeps.append(sweep)
        sizes, used = self.observations.sizes, is_used.sum(axis=1)
        short = find_short_rounds(sizes)
        usual = np.setdiff1d(np.flatnonzero(sizes), short)
        gram, target = np.zeros((n_rounds, rank * (rank + 1) // 2)), np.zeros(w.shape)
        for t in short:
            gram[t] = (h[is_used[t]].T @ h[is_used[t]])[np.tril_indices(rank)]
            target[t] = self.matrix[t][:, is_used[t]] @ h[is_used[t]]
        typical = h.T @ h / max(1, np.count_nonzero(h.any(axis=1)))
        refit_short_rounds(w, short, usual, np.median(sizes[sizes > 0]) - used, (gram, target, typical))
        return Fit(w, equations)

    def errors(self, fit: Fit) -> tuple[FitErrors, FitErrors]:
        residuals = self._residuals(fit.rounds, self._solve(fit.equations))
        is_used = self._used(uses_all=fit.equations.uses_all)
        others = self._used(uses_all=True) & ~is_used
        used, held = (_summarise(residuals[mark].ravel()) for mark in (is_used, others))
        return used, held

    def solve(self, fit: Fit) -> Floats:
        return self._solve(fit.equations)

    def gather(self, most: int) -> Observed:
        return CompiledSolver(self.observations, 1.0, 1.0, 1, 1).gather(most)

    def _solve(self, equations: Equations) -> Floats:
        """Return the factors of all samples, (samples, rank)."""
        rank, is_used = equations.rank, self._used(uses_all=equations.uses_all)
        w = from_lines(equations.lines, self.matrix.shape[1], rank)
        penalty = equations.regularization * np.eye(rank)
        h = np.zeros((self.matrix.shape[2], rank))
        for i in range(len(h)):
            seen = w[is_used[:, i]].reshape(-1, rank)
            h[i] = np.linalg.solve(seen.T @ seen + penalty, seen.T @ self.matrix[is_used[:, i], :, i].ravel())
        return h

    def _residuals(self, w: Floats, h: Floats) -> Floats:
        """Return the errors with the classes last, (rounds, samples, classes); NaN where nothing was uploaded."""
        return np.moveaxis(self.matrix - w @ h.T, 1, 2)

    def _used(self, *, uses_all: bool) -> NDArray[np.bool_]:
        """Return which embeddings are used, (rounds, samples)."""
        is_uploaded: NDArray[np.bool_] = ~np.isnan(self.matrix[:, 0])
        return is_uploaded if uses_all else is_uploaded & ~self.held_out


def _summarise(residuals: Floats) -> FitErrors:
    if residuals.size == 0:
        return FitErrors(0, np.nan, 0.0)
    return FitErrors(residuals.size, float(np.sqrt(np.square(residuals).mean())), float(np.abs(residuals).max()))
