"""Trainings in which clients join, leave, miss rounds and upload samples of their own are valued by the definition."""

import dataclasses
import math

import numpy as np
import pytest

from tests.games import LOSSES, mean_loss
from tests.trainings import train
from tests.valuation.definition import Round, Story, tell
from verfedsv import Transcript, value
from verfedsv.completion.observations import Pattern
from verfedsv.transcript import Join, Leave, Stamp, Upload
from verfedsv.transcript.format import Description


class Recorded(Transcript):
    """A story as a transcript."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.description = Description(
            tuple(story.clients), story.loss, story.n_samples, "", "", story.mode, story.n_classes, "float64"
        )

    labels = property(lambda self: self.story.labels)
    receives_gradient = property(lambda self: np.ones(self.story.n_samples, bool))
    n_rounds = property(lambda self: len(self.story.rounds))
    n_messages = property(lambda self: 1 + len(list(self._all())))
    head = "00"

    def contains(self, head):
        return True

    def records(self, first=1):
        yield from list(self._all())[first - 1 :]

    def _all(self):
        for t, r in enumerate(self.story.rounds):
            yield from (Join(name, t) for name in r.joins)
            yield from (Leave(name, t) for name in r.leaves)
            yield from (Upload(name, t, s.astype(np.uint32), e) for name, s, e in r.uploads)
            yield Stamp(t, r.offset, r.absent)


def record(story: Story):
    return Recorded(story)


MISSED = [(1, "c"), (2, "c"), (7, "c"), (0, "d"), (3, "d"), (6, "d"), (8, "b"), (9, "b")]
"""Rounds of `tell` and clients that are not there, or not yet, or no more."""


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("offset", [None, "constant", "by sample"])
@pytest.mark.parametrize("kind", ["full", "gaps", "mixed"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_values_are_those_of_the_definition(mode, kind, offset):
    """In either mode: who is absent keeps its embeddings, and is worth exactly 0 in that round."""
    story = tell(mode, kind=kind, offset=offset)
    expected = story.values(rank=2)
    for method in ("exact", "closed-form", "permutation"):
        result = value(record(story), method, rank=2, n_permutations=40 if method == "permutation" else None)
        found = np.column_stack([result.per_round, result.per_round_server])
        errors = np.column_stack([result.per_round_errors, result.per_round_server_errors])
        assert (np.abs(found - expected) <= errors + 1e-11).all()
        assert [result.per_round[t, story.clients.index(name)] for t, name in MISSED] == [0.0] * len(MISSED)
        assert (result.completion is None) == (mode == "asynchronous" or kind == "full")
    assert (result.n_samples, result.n_unseen) == ((50, 5) if mode == "synchronous" else (55, 5))


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_values_of_all_losses(mode, loss):
    """With a constant offset of the server, whose rounds without one leave it where it was."""
    story = tell(mode, loss, offset="constant", seed=1)
    result = value(record(story), "exact", rank=2)
    found = np.column_stack([result.per_round, result.per_round_server])
    np.testing.assert_allclose(found, story.values(rank=2), atol=1e-11)
    assert (result.per_round_server[[5, 9]] == 0).all()


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("kind", ["full", "gaps", "mixed"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_transcript_is_read_once(monkeypatch, mode, kind):
    """One pass over the records serves everything: gaps, completion, rounds, refinement."""
    calls, records = [], Recorded.records
    monkeypatch.setattr(Recorded, "records", lambda self, *rest: (calls.append(rest), records(self, *rest))[1])
    value(record(tell(mode, kind=kind, offset="constant")), "auto", tolerance=1e-9)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("method", ["auto", "permutation"])
@pytest.mark.parametrize("kind", ["full", "gaps", "mixed"])
def test_segments_change_no_bit(monkeypatch, kind, method):
    """How many rounds are valued together is nobody's business, also where some embeddings are completed."""
    transcript = record(tell("synchronous", kind=kind, offset="constant"))
    options = {"rank": 2, "tolerance": 1e-5}
    expected = value(transcript, method, **options)
    monkeypatch.setattr("verfedsv.valuation.replay.SEGMENT_ELEMENTS", 100)
    result = value(transcript, method, **options)
    np.testing.assert_array_equal(result.per_round, expected.per_round)
    np.testing.assert_array_equal(result.errors, expected.errors)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
def test_a_refined_round_of_many():
    """Rounds before it that are sure enough are passed over, and their changes are not lost."""
    story = tell("synchronous", kind="mixed", offset="constant")
    for r in story.rounds[:6] + story.rounds[7:]:
        r.uploads = [(name, samples, 1e-3 * embeddings) for name, samples, embeddings in r.uploads]
        r.offset = None if r.offset is None else 1e-3 * r.offset
    result = value(record(story), "auto", rank=2)
    assert "exact" in result.method
    assert "closed-form" in result.method
    found = np.column_stack([result.per_round, result.per_round_server])
    errors = np.column_stack([result.per_round_errors, result.per_round_server_errors])
    assert (np.abs(found - story.values(rank=2)) <= errors + 1e-11).all()


def test_players_with_the_same_samples_share_a_pattern(monkeypatch):
    """Sorting uploads by sample is half the memory of completion: it is done once for those that are alike."""
    made, build = [], Pattern.from_batches.__func__
    monkeypatch.setattr(Pattern, "from_batches", classmethod(lambda *args: (made.append(1), build(*args))[1]))
    value(train(n_samples=60, batch=20, n_epochs=4).record(), rank=2)
    assert len(made) == 1
    value(record(tell("synchronous", kind="mixed")), rank=2)
    assert len(made) == 1 + 3


def test_who_needs_no_completion_has_no_error_of_its_own():
    """Its report says that nothing was fitted; what is missed of others still counts, and the guarantee is known."""
    result = value(record(tell("synchronous", kind="mixed")), rank=2)
    assert [report.rank for report in result.completion] == [0, 2, 2, 2]
    assert [report.n_unseen for report in result.completion] == [25, 25, 25, 25]
    assert result.completion[0].n_observations == 12 * 30
    assert 0 < result.completion_errors[0] < math.inf
    assert 0 < result.guarantee < math.inf


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("kind", ["full", "gaps"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_valuation_is_continued_across_a_join(mode, kind):
    """Clients and samples that are new make other games of earlier rounds: then all are valued again."""
    story, result = tell(mode, kind=kind), None
    for last in (3, 5, 6, 12):
        until = dataclasses.replace(story, rounds=story.rounds[:last], clients=story.clients[: 3 if last < 5 else 4])
        result = value(record(until), "exact", rank=2, since=result)
        expected = value(record(until), "exact", rank=2)
        np.testing.assert_allclose(result.per_round, expected.per_round, atol=1e-15 if kind == "full" else 0.1)
        assert (result.n_samples, result.n_unseen) == (expected.n_samples, expected.n_unseen)


def test_a_client_that_leaves_for_good_keeps_its_embeddings():
    """The loss at the end is that of everybody's last embeddings, of those who left too."""
    story = tell("asynchronous")
    story.rounds = [*story.rounds[:4], Round([("a", np.arange(5), np.ones((5, 1)))], leaves=("b", "c"))]
    result = value(record(story), "exact")
    table = sum(story.table_of_uploads(name)[-1] for name in story.clients)
    assert result.losses[-1] == pytest.approx(mean_loss("logistic", table[:, 0], story.labels), abs=1e-12)
