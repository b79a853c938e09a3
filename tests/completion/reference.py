"""Completion in plain NumPy, to hold the compiled solver to: a dense matrix with gaps, one equation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion.complete import REGULARIZATIONS, Completion, Start, complete_with
from verfedsv.completion.factors import Factors, FitErrors, has_settled, refit_short_rounds
from verfedsv.completion.observations import Pattern


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
    n_classes = np.asarray(embeddings[0]).reshape(len(numbers[0]), -1).shape[1]
    matrix = np.full((len(numbers), n_classes, n_samples), np.nan)
    for t, (batch, values) in enumerate(zip(numbers, embeddings, strict=True)):
        matrix[t, :, batch] = np.asarray(values).reshape(len(batch), n_classes)
    solver = PlainSolver(pattern, matrix, REGULARIZATIONS[0], tolerance, max_sweeps)
    return complete_with(solver, rank, regularization, start, seed)


@dataclass
class PlainSolver:
    """`matrix` is (rounds, classes, samples), NaN where nothing was uploaded."""

    pattern: Pattern
    matrix: Floats
    regularization: float
    tolerance: float
    max_sweeps: int
    fit_sweeps: list[int] = field(default_factory=list)

    @property
    def n_classes(self) -> int:
        return self.matrix.shape[1]

    def start(self, is_held_out: NDArray[np.bool_], rank: int) -> Floats:
        n_rounds, n_classes, n_samples = self.matrix.shape
        is_used = self._marks(~is_held_out)
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

    def fit(self, rounds: Floats, is_held_out: NDArray[np.bool_], n_sweeps: int | None = None) -> Factors:
        n_rounds, _, n_samples = self.matrix.shape
        rank = rounds.shape[2]
        penalty = self.regularization * np.eye(rank)
        is_used = self._marks(~is_held_out)
        w, h = rounds.copy(), np.zeros((n_samples, rank))
        before = np.inf
        size = float(np.square(np.moveaxis(self.matrix, 1, 2)[is_used]).sum())
        for sweep in range(1, self.max_sweeps + 1):
            for i in range(n_samples):
                seen = w[is_used[:, i]].reshape(-1, rank)
                h[i] = np.linalg.solve(seen.T @ seen + penalty, seen.T @ self.matrix[is_used[:, i], :, i].ravel())
            for t in range(n_rounds):
                seen = h[is_used[t]]
                w[t] = np.linalg.solve(seen.T @ seen + penalty, seen.T @ self.matrix[t][:, is_used[t]].T).T
            left = float(np.square(self._residuals(w, h)[is_used]).sum())
            if has_settled(before, left, size, self.tolerance, None if n_sweeps is None else sweep >= n_sweeps):
                break
            before = left
        self.fit_sweeps.append(sweep)

        def used(t: int) -> tuple[Array, Array]:
            return np.flatnonzero(is_used[t]), self.matrix[t][:, is_used[t]].T

        refit_short_rounds(Factors(w, h), np.diff(self.pattern.edges), used)
        return Factors(w, h)

    def errors(self, factors: Factors, is_held_out: NDArray[np.bool_]) -> tuple[FitErrors, FitErrors]:
        residuals = self._residuals(*factors)
        used, held = (residuals[self._marks(mark)].ravel() for mark in (~is_held_out, is_held_out))
        return _summarise(used), _summarise(held)

    def _residuals(self, w: Floats, h: Floats) -> Floats:
        """Return the errors with the classes last, (rounds, samples, classes); NaN where nothing was uploaded."""
        return np.moveaxis(self.matrix - w @ h.T, 1, 2)

    def _marks(self, mark: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return marks of observations as a matrix, (rounds, samples)."""
        n_rounds, _, n_samples = self.matrix.shape
        result = np.zeros((n_rounds, n_samples), bool)
        of_sample = np.repeat(np.arange(n_samples), np.diff(self.pattern.starts))
        result[self.pattern.rounds[mark], of_sample[mark]] = True
        return result


def _summarise(residuals: Floats) -> FitErrors:
    if residuals.size == 0:
        return FitErrors(0, np.nan, 0.0)
    return FitErrors(residuals.size, float(np.sqrt(np.square(residuals).mean())), float(np.abs(residuals).max()))
