"""Expected errors: held to the errors of least squares on random factors, and of completions."""

import numpy as np

from verfedsv import complete
from verfedsv.completion.expected import expected_errors
from verfedsv.completion.factors import Factors
from verfedsv.completion.observations import Pattern
from verfedsv.completion.sweeps import Observed


def uploads_of(pattern):
    """Return the uploads of all samples, whose values do not matter."""
    n_observations = len(pattern.rounds)
    return Observed(pattern.starts, pattern.rounds, np.zeros(n_observations, bool), np.zeros((n_observations, 1)))


def test_expected_errors_are_those_of_least_squares():
    """Factors of samples are drawn, uploaded with noise and solved for: the mean squared error is the one expected."""
    rng = np.random.default_rng(0)
    n, n_rounds, n_classes, rank, weight, noise = 600, 8, 2, 3, 0.7, 0.2
    rounds = rng.normal(size=(n_rounds, n_classes, rank))
    rounds[:2] = 0  # as before the first step: nothing is learnt of samples that are uploaded only then
    batches = [rng.permutation(n)[: 100 if t > 1 else 400] for t in range(n_rounds)]
    pattern = Pattern.from_batches(batches, n)
    spread = rng.normal(size=(rank, rank))
    squares = np.zeros(2)
    expected = np.zeros(2)
    for _ in range(20):
        true, fitted = rng.normal(size=(n, rank)) @ spread, np.zeros((n, rank))
        for i in np.flatnonzero(pattern.is_seen):
            w = rounds[pattern.rounds[pattern.starts[i] : pattern.starts[i + 1]]].reshape(-1, rank)
            uploads = w @ true[i] + noise * rng.normal(size=len(w))
            fitted[i] = np.linalg.solve(w.T @ w + weight * np.eye(rank), w.T @ uploads)
        seen = pattern.is_seen
        off, size = (np.einsum("tca,ia->tci", rounds, h[seen]) for h in (fitted - true, true))
        squares += np.square(off).mean(), np.square(size).mean()
        expected += np.square(expected_errors(uploads_of(pattern), Factors(rounds, fitted), weight, noise))
    np.testing.assert_allclose(expected / squares, 1, atol=0.1)


def test_samples_uploaded_before_the_first_step_are_missed():
    """They are completed by zeros. No held-out upload shows that, the expected error does."""
    rng = np.random.default_rng(0)
    x, early = rng.normal(size=100), np.arange(30)
    batches = [early, *(30 + rng.permutation(70)[:35] for _ in range(20))]
    uploads = [0.2 * t * x[batch] for t, batch in enumerate(batches)]
    completion = complete(batches, uploads, 100)
    report = completion.report
    true = 0.2 * np.outer(np.arange(21), x)
    off = np.stack([completion.embeddings(t)[:, 0] for t in range(21)]) - true
    missed = np.sqrt(np.square(off).sum() / np.square(true).sum())
    assert missed > 0.4
    assert report.held_out_rmse < 0.02 * report.held_out_size
    assert 0.8 < report.expected_rmse / report.expected_size / missed < 1.25


def test_the_moment_of_true_factors_stays_one():
    """A step of its iteration can overshoot; an error or a size of zero would then call the completion perfect."""
    for seed in (134, 298, 426, 1291):
        rng = np.random.default_rng(seed)
        n, n_rounds, rank = int(rng.integers(10, 60)), int(rng.integers(3, 10)), int(rng.integers(2, 7))
        weight = 10.0 ** rng.uniform(-3, 1)
        rounds = rng.normal(size=(n_rounds, 1, rank)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 3), rank)
        rounds[: int(rng.integers(0, n_rounds - 1))] *= 0.01
        samples = rng.normal(size=(n, rank)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 3), rank)
        batches = [rng.permutation(n)[: int(rng.integers(1, n))] for _ in range(n_rounds)]
        error, size = expected_errors(
            uploads_of(Pattern.from_batches(batches, n)), Factors(rounds, samples), weight, 0.0
        )
        assert min(error, size) > 0.1
