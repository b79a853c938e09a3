"""Errors of completion: held to the values of all embeddings, which a valuation does not see."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.trainings import train
from tests.valuation.small_trainings import values_against_truth
from verfedsv import CompletionWarning, Recorder, value
from verfedsv.valuation import completion_errors
from verfedsv.valuation.result import FEWEST_HELD_OUT
from verfedsv.valuation.verdict import judge

HARD = [21, 35, 46, 48, 51, 63, 113, 114, 122, 123, 135, 154, 160, 213, 214, 220, 245, 254, 256, 264]
"""Of 500 random trainings the first in which errors from held-out uploads alone were too small."""


def test_errors_hold_where_held_out_uploads_say_too_little(monkeypatch):
    """Values of trainings with few uploads, late joins and own samples are within their errors, and need the margin."""
    off = np.concatenate([values_against_truth(seed)[1] for seed in HARD])
    assert np.isfinite(off).sum() > 30
    assert np.nanmax(off) <= 1
    monkeypatch.setattr(completion_errors, "SAFETY", 1.0)
    off = np.concatenate([values_against_truth(seed)[1] for seed in HARD])
    assert (off > 1).sum() >= 2


RANDOM_START = [(0.5, 30), (2.0, 46), (2.0, 105)]
"""Sizes of random weights, and seeds: of 300 trainings those in which errors by size of embeddings were too small."""


def test_errors_hold_for_embeddings_that_start_far_from_zero(monkeypatch):
    """What is missed counts as a fraction of the movement, as values are of changes; of the size it is too little."""
    off = np.concatenate([values_against_truth(seed, start)[1] for start, seed in RANDOM_START])
    assert np.isfinite(off).any()
    assert np.nanmax(off) <= 1
    monkeypatch.setattr(completion_errors, "NEAR_ZERO", np.inf)
    for start, seed in RANDOM_START:
        assert np.nanmax(values_against_truth(seed, start)[1]) > 1


def test_a_class_of_zeros_changes_no_error():
    """Errors are of the whole embedding of a sample, however many classes it is counted by."""
    rng, n_rounds = np.random.default_rng(0), 40
    data, steps = rng.normal(size=(2, 60, 2)), np.cumsum(0.3 * rng.normal(size=(n_rounds, 2, 2)), axis=0)
    labels, batches = rng.normal(size=60), [rng.permutation(60)[:30] for _ in range(n_rounds)]
    table = np.einsum("mnf,tmf->tmn", data, steps) + 0.5 * rng.normal(size=(n_rounds, 2, 60))
    found = []
    for n_classes in (1, 3):
        wide, targets = np.zeros((n_rounds, 2, 60, n_classes)), np.zeros((60, n_classes))
        wide[..., 0], targets[:, 0] = table, labels
        with Recorder(None, targets if n_classes > 1 else labels, ["a", "b"], "squared") as recorder:
            for batch, embeddings in zip(batches, wide, strict=True):
                recorder.log(batch, dict(zip("ab", embeddings[:, batch], strict=True)))
        found.append(value(recorder, rank=2, regularization=0.1))
        # The expected errors depend on how noise is spread over classes: here they do not count.
        assert all(report.expected_rmse < report.held_out_rmse for report in found[-1].completion)
    np.testing.assert_allclose(found[1].values, found[0].values, rtol=1e-9)
    np.testing.assert_allclose(found[1].completion_errors, found[0].completion_errors, rtol=1e-6)


def late(n_rounds, n_samples=40, batch=20, joins=3):
    """Return a training that a client joins late; its weights are zero in its first round, so are its uploads."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, n_samples))
    with Recorder(None, (x.sum(axis=0) > 0).astype(int), ["a"]) as recorder:
        for t in range(n_rounds):
            if t == joins:
                recorder.join("late")
            names = ["a", "late"][: 1 + (t >= joins)]
            samples = rng.permutation(n_samples)[:batch]
            weights = 0.1 * t, 0.1 * (t - joins)
            recorder.log(samples, {name: w * h[samples] for name, w, h in zip(names, weights, x, strict=False)})
    return recorder


def test_too_few_held_out_uploads_are_no_evidence():
    """The error is unknown, the warning says why, and the values are not called sound."""
    recorder = late(n_rounds=6)
    with pytest.warns(CompletionWarning, match=r"fewer than 3 embeddings of 'late' could be held out"):
        result = value(recorder)
    assert 0 < result.completion[1].n_held_out < FEWEST_HELD_OUT
    assert np.isnan(result.errors).all()
    verdict = judge(result)
    assert verdict.word == "doubtful"
    assert any("because fewer than 3 embeddings of 'late' could be held out" in text for text in verdict.texts("doubt"))


def test_held_out_zeros_are_no_evidence():
    """A client that uploads zeros except for one sample, of which nothing is held out, makes every error unknown."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 40))
    with Recorder(None, (x.sum(axis=0) > 0).astype(int), ["a", "rare"]) as recorder:
        for t in range(12):
            samples = rng.permutation(40)[:20]
            recorder.log(samples, {"a": 0.1 * t * x[0][samples], "rare": 0.5 * (t > 2) * (samples == 7)})
    with pytest.warns(CompletionWarning, match="all embeddings of 'rare' that were held out as a check are zero"):
        result = value(recorder)
    assert np.isnan(result.errors).all()


def test_too_few_held_out_offsets_are_no_evidence():
    """Nor does that blame a client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 40))
    with Recorder(None, (x.sum(axis=0) > 0).astype(int), ["a", "b"]) as recorder:
        for t in range(12):
            samples = rng.permutation(40)[:20]
            offset = 0.1 * x[2][samples] if t in (5, 8) else None
            recorder.log(samples, {"a": 0.1 * t * x[0][samples], "b": 0.1 * t * x[1][samples]}, offset=offset)
    with pytest.warns(CompletionWarning, match="because too few of the server's offsets could be held out as a check"):
        result = value(recorder)
    assert np.isnan(result.errors).all()


def withholding(k, n_samples=200, n_rounds=12):
    """Return a training in which one client uploads k samples a round, after all of them in the first."""
    rng = np.random.default_rng(1)
    labels, everything = rng.integers(0, 2, n_samples), np.arange(n_samples)
    with Recorder(None, labels, ["honest", "evil"]) as recorder:
        for t in range(n_rounds):
            mine = everything if t == 0 else rng.permutation(n_samples)[:k]
            sign = 2 * labels - 1
            uploads = {"honest": 0.2 * (t + 1) * sign, "evil": 0.02 * (1 + 29 * t) * sign[mine]}
            recorder.log({"honest": everything, "evil": mine}, uploads)
    return recorder


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
@pytest.mark.parametrize(("k", "weight"), [(40, "doubt"), (150, "note"), (200, None)])
def test_a_client_that_leaves_samples_out_is_named(k, weight):
    """It is paid for embeddings that it never uploaded: a doubt if these are most of them."""
    result = value(withholding(k))
    reasons = [reason for reason in judge(result).reasons if reason.kind == "withheld"]
    assert [reason.weight for reason in reasons] == ([weight] if weight else [])
    assert all("'evil' did not upload" in reason.text and "honest" not in reason.text for reason in reasons)
    assert [report.n_withheld for report in result.completion or ()] == ([0, 11 * (200 - k)] if weight else [])


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_samples_of_missed_rounds_are_not_withheld():
    """Who is absent from a round, or joins late, leaves nothing out in the rounds in which it takes part."""
    for recorder in (late(n_rounds=20), train(n_samples=60, batch=20, n_epochs=4).record()):
        assert {report.n_withheld for report in value(recorder).completion} == {0}


def test_errors_do_not_depend_on_the_executor():
    """They are computed from all players, whoever completed them."""
    recorder = train(n_samples=60, batch=20, n_epochs=6).record()
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(value(recorder, executor=pool).errors, value(recorder).errors)
