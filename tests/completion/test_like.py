"""Completion repeated as it was: where rounding decides, the earlier one does, and nowhere else."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.trainings import train
from verfedsv import InputError, Recorder, value
from verfedsv.completion.complete import Completion, _is_below, fit_with
from verfedsv.completion.factors import CompiledSolver, has_settled
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Observations


def completion(training, like=None, rank="auto", regularization="auto"):
    """Return the completion of the first client."""
    pattern = Pattern.from_batches(training.batches, len(training.labels))
    values = pattern.sort(training.uploads(0), training.embeddings.shape[3], 2)
    solver = CompiledSolver(Observations.in_memory(pattern, values, 0.05, 0), 0.1, 1e-3, 100, 1)
    fit, report = fit_with(solver, rank, regularization, "spectral", 0, like)
    return Completion(fit.rounds, solver.solve(fit), report)


@pytest.fixture(scope="module")
def training():
    """Return a training whose rank and lambda are both chosen."""
    return train("softmax", n_samples=200, batch=40, n_epochs=8, rate=0.05)


def test_what_was_chosen_is_chosen_again(training):
    """An honest report changes nothing, to the last bit."""
    first = completion(training)
    again = completion(training, first.report)
    assert again.report == first.report
    np.testing.assert_array_equal(again.rounds, first.rounds)


@pytest.mark.parametrize(
    "claim",
    [
        {"rank": 1},
        {"rank": 32},
        {"regularization": 0.1},
        {"regularization": 1e-6},
        {"fit_sweeps": (1,) * 100},
        {"fit_sweeps": ()},
    ],
)
def test_a_claim_has_no_say_where_rounding_does_not_decide(training, claim):
    """Another rank, lambda or number of sweeps is not taken over."""
    first = completion(training)
    claimed = replace(first.report, **claim)
    assert claimed != first.report
    again = completion(training, claimed)
    assert again.report == first.report
    np.testing.assert_array_equal(again.samples, first.samples)


def test_close_choices_follow_the_claim(training, monkeypatch):
    """If every choice counts as close, the claim decides rank and lambda: that is how a tie is broken."""
    first = completion(training)
    monkeypatch.setattr(sys.modules[fit_with.__module__], "TIE", 1e9)
    claimed = replace(first.report, rank=2, regularization=1e-2)
    again = completion(training, claimed)
    assert (again.report.rank, again.report.regularization) == (2, 1e-2)


def test_every_fit_ends_as_claimed_where_rounding_decides(training, monkeypatch):
    """Also those that were not chosen, as a fit starts from one of a lower rank: if every end counts as close."""
    first = completion(training)
    monkeypatch.setattr(sys.modules[fit_with.__module__], "TIE", 1e9)
    monkeypatch.setattr(sys.modules[has_settled.__module__], "CLOSE", 1e9)
    claimed = replace(first.report, rank=3, regularization=0.1, fit_sweeps=(5, 2, 4, 3))
    assert completion(training, claimed).report.fit_sweeps == (5, 2, 4, 3)


def test_a_tie_is_a_matter_of_rounding():
    """Within a millionth of the limit the claim decides; beyond it, the numbers do."""
    assert _is_below(1.0, 1.0 + 1e-9, if_close=False) is False
    assert _is_below(1.0, 1.0 + 1e-9, if_close=None) is True
    assert _is_below(1.0 + 1e-9, 1.0, if_close=True) is True
    assert _is_below(1.0, 1.1, if_close=False) is True
    assert _is_below(1.1, 1.0, if_close=True) is False


def test_sweeps_end_as_claimed_only_where_rounding_decides():
    """A change of the squared error that is a rounding away from the tolerance, or an error that is all rounding."""
    change, rounding = 2e-3, 1e-14
    assert has_settled(1 + change - rounding, 1.0, 1.0, 1e-3, None)
    assert not has_settled(1 + change - rounding, 1.0, 1.0, 1e-3, if_close=False)
    assert has_settled(1 + change + rounding, 1.0, 1.0, 1e-3, if_close=True)
    assert not has_settled(1 + 2 * change, 1.0, 1.0, 1e-3, if_close=True)
    assert has_settled(1 + change / 2, 1.0, 1.0, 1e-3, if_close=False)
    assert not has_settled(1.0, 1e-14, 1.0, 1e-3, if_close=False)


def test_a_valuation_is_repeated_to_the_last_bit():
    """Through `value`, with completion of several clients."""
    recorder = train(n_samples=100, batch=25, n_epochs=4).record()
    first = value(recorder, regularization=1e-3)
    again = value(recorder, regularization=1e-3, like=first)
    np.testing.assert_array_equal(again.per_round, first.per_round)
    assert again.completion == first.completion


def test_sweeps_of_an_exact_fit_are_not_for_the_claim_to_choose():
    """Where squared errors are nearly all rounding, a claim of more or fewer sweeps moves no value."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(2, 24))
    with Recorder(None, rng.integers(0, 2, 24), ["a", "b"]) as recorder:
        for t in range(1, 13):
            batch = rng.permutation(24)[:8]
            recorder.log(batch, dict(zip("ab", 30.0 * t * data[:, batch], strict=True)))
    first = value(recorder, regularization=1e-6)
    for sweeps in ((1,) * 9, (100,) * 9, (100, 1) * 9):
        claim = replace(first, completion=tuple(replace(report, fit_sweeps=sweeps) for report in first.completion))
        np.testing.assert_array_equal(value(recorder, regularization=1e-6, like=claim).per_round, first.per_round)


def test_a_valuation_of_another_transcript_is_refused():
    """Its fits say nothing of these uploads."""
    ours, other = (train(n_samples=60, batch=20, n_epochs=4, seed=seed).record() for seed in (0, 1))
    with pytest.raises(InputError, match="like is not a valuation of this transcript"):
        value(ours, like=value(other))
    with pytest.raises(InputError, match="like must be an earlier Valuation; received str"):
        value(ours, like="valuation.json")
