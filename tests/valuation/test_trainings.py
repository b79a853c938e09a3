"""Trainings in which clients join, leave, miss rounds and upload samples of their own are valued by the definition."""

import math

import numpy as np
import pytest

from tests.games import LOSSES, LogCosh, mean_loss
from tests.trainings import train, values_of_rounds
from tests.valuation.definition import Round, Story, tell
from verfedsv import InputError, Recorder, Transcript, Valuation, complete, shapley_values, value
from verfedsv.completion.observations import Pattern
from verfedsv.losses import get_loss


def record(story: Story, recorder: Recorder | None = None, first: int = 0, last: int | None = None) -> Recorder:
    """Record rounds of a story, in memory."""
    if recorder is None:
        n_classes = story.n_classes if story.loss == "softmax" else None
        recorder = Recorder(None, story.labels, ["a", "b", "c"], story.loss, n_classes=n_classes)
    for t, r in list(enumerate(story.rounds))[first:last]:
        for name in r.joins:
            recorder.join(name, time=float(t))
        for name in r.leaves:
            recorder.leave(name, time=float(t))
        if story.mode == "synchronous":
            batches = {name: samples for name, samples, _ in r.uploads}
            uploads = {name: embeddings for name, _, embeddings in r.uploads}
            recorder.log(batches, uploads, r.offset, absent=r.absent, time=float(t))
        else:
            for name, samples, embeddings in r.uploads:
                recorder.update(name, samples, embeddings, time=float(t))
            recorder.stamp(r.offset, time=float(t))
    return recorder


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
    calls, records = [], Transcript.records
    monkeypatch.setattr(Transcript, "records", lambda self, *rest: (calls.append(rest), records(self, *rest))[1])
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
    monkeypatch.setattr("verfedsv.valuation.chunks.MOST_ELEMENTS", 100)
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
    recorder = record(tell("synchronous", kind="mixed"))
    result = value(recorder, rank=2)
    assert [report.rank for report in result.completion] == [0, 2, 2, 2]
    assert [report.n_unseen for report in result.completion] == [25, 25, 25, 25]
    assert result.completion[0].n_observations == 12 * 30
    assert 0 < result.completion_errors[0] < math.inf
    assert 0 < result.guarantee < math.inf
    assert Valuation.from_json(result.to_json()).completion == result.completion
    np.testing.assert_array_equal(value(recorder, rank=2, like=result).per_round, result.per_round)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
def test_only_the_offset_is_completed():
    """If b misses a round, the server's part by sample is known for the samples of a only, and nothing else misses."""
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(8, 30)) for name in "ab"}
    own = np.outer(np.arange(1, 9), rng.normal(size=30))
    recorder = Recorder(None, rng.integers(0, 2, 30), ["a", "b"])
    batches = [(np.arange(20), np.arange(10, 30)) if t % 3 else (np.arange(20),) for t in range(8)]
    for t, given in enumerate(batches):
        there = dict(zip("ab", given, strict=False))
        offset = own[t] if len(there) == 2 else own[t, :20]
        uploads = {name: data[name][t, samples] for name, samples in there.items()}
        batch = there if len(there) == 2 else given[0]
        recorder.log(batch, uploads, offset, absent=[name for name in "ab" if name not in there])
    result = value(recorder, "exact", rank=1)
    assert [report.rank for report in result.completion] == [0, 0]
    assert result.guarantee is None
    seen = [np.arange(30) if len(given) == 2 else given[0] for given in batches]
    server = complete(seen, [own[t, samples] for t, samples in enumerate(seen)], 30, 1)
    tables = np.zeros((9, 2, 30, 1))
    for t, given in enumerate(batches):
        tables[t + 1] = tables[t]
        for m, samples in enumerate(given):
            tables[t + 1, m, samples, 0] = data["ab"[m]][t, samples]
    offsets = np.array([server.embeddings(t) for t in range(8)])
    expected = values_of_rounds(tables[1:], recorder.transcript.labels, "logistic", offsets)
    np.testing.assert_allclose(np.column_stack([result.per_round, result.per_round_server]), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize(
    ("mode", "kind", "is_same"),
    [("synchronous", "full", True), ("synchronous", "gaps", False), ("asynchronous", "gaps", True)],
)
def test_a_valuation_is_continued_across_a_join(mode, kind, is_same):
    """Clients and samples that are new make other games of earlier rounds: then all are valued again."""
    story, recorder, result = tell(mode, kind=kind), None, None
    for first, last in ((0, 3), (3, 5), (5, 6), (6, 12)):
        recorder = record(story, recorder, first, last)
        result = value(recorder, "exact", rank=2, since=result)
        expected = value(recorder, "exact", rank=2)
        np.testing.assert_allclose(result.per_round, expected.per_round, atol=1e-15 if is_same else 0.1)
        assert (result.clients, result.n_samples) == (expected.clients, expected.n_samples)
        assert (result.n_unseen, len(result.clients)) == (expected.n_unseen, 3 if last < 5 else 4)


def test_a_client_that_leaves_for_good_keeps_its_embeddings():
    """The loss at the end is that of everybody's last embeddings, of those who left too."""
    story = tell("asynchronous")
    story.rounds = [*story.rounds[:4], Round([("a", np.arange(5), np.ones((5, 1)))], leaves=("b", "c"))]
    result = value(record(story), "exact")
    table = sum(story.table_of_uploads(name)[-1] for name in story.clients)
    assert result.losses[-1] == pytest.approx(mean_loss("logistic", table[:, 0], story.labels), abs=1e-12)


def test_a_loss_of_ones_own_is_passed_again():
    """A training that was recorded with one is valued with it, and with no other."""
    rng = np.random.default_rng(0)
    labels, tables = rng.normal(size=40), np.cumsum(0.2 * rng.normal(size=(4, 3, 40)), axis=0)
    recorder = Recorder(None, labels, ["a", "b", "c"], LogCosh(), n_classes=1)
    for table in tables:
        recorder.log(range(40), dict(zip("abc", table, strict=True)))
    result = value(recorder, "exact", loss=LogCosh())
    before = np.zeros_like(tables[0])
    for t, table in enumerate(tables):
        expected = shapley_values(before, table, labels, LogCosh(), "exact").values
        np.testing.assert_allclose(result.per_round[t], expected, atol=1e-14)
        before = table
    with pytest.raises(InputError, match="a loss of your own, 'log-cosh', so only value"):
        value(recorder)
    with pytest.raises(InputError, match="a loss of your own named 'log-cosh'; received 'squared'"):
        value(recorder, loss="squared")


def test_a_loss_of_the_package_needs_not_be_passed():
    """If it is, it must be the one that was recorded."""
    recorder = record(tell("asynchronous"))
    np.testing.assert_array_equal(value(recorder, loss="logistic").values, value(recorder).values)
    with pytest.raises(InputError, match="the package's loss 'logistic'; received 'log-cosh'"):
        value(recorder, loss=LogCosh())


def test_a_head_whose_function_nobody_recorded_cannot_be_valued():
    """One sentence says so, and what to pass."""

    class Head:
        def state_dict(self):
            return {"weight": np.ones((2, 1))}

    recorder = Recorder(None, [0, 1, 1], ["a", "b"], head=Head())
    recorder.log([0, 1, 2], {"a": np.ones((3, 2)), "b": np.ones((3, 4))})
    with pytest.raises(InputError, match=r"was not recorded, so only value\(run, head=module\)"):
        value(recorder)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
def test_an_offset_by_sample_that_is_constant_in_some_rounds():
    """It is recorded as a constant there, and completed with the others from the samples of each round."""
    training = train(n_samples=60, batch=20, n_epochs=6)
    names, own = training.clients[:2], training.embeddings[:, 2]
    assert (own[0] == 0).all()  # models start at zero, so the first is a constant
    recorder = Recorder(None, training.labels, names)
    for t, batch in enumerate(training.batches):
        uploads = {name: training.embeddings[t, m, batch] for m, name in enumerate(names)}
        recorder.log(batch, uploads, own[t, batch])
    result = value(recorder, "exact", rank=2)
    players = [complete(training.batches, training.uploads(m), 60, 2) for m in range(3)]
    tables = np.array([[player.embeddings(t) for player in players] for t in range(len(own))])
    expected = values_of_rounds(tables[:, :2], training.labels, "logistic", tables[:, 2])
    np.testing.assert_allclose(np.column_stack([result.per_round, result.per_round_server]), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["full", "gaps"])
def test_an_intercept_in_rounds_of_one_sample(kind, loss):
    """The offset moves all samples, also where each round, or one of several, has a single sample."""
    rng = np.random.default_rng(0)
    n_classes = 3 if loss == "softmax" else 1
    labels = rng.normal(size=4) if loss == "squared" else np.array([0, 1, 1, 0])
    rounds = []
    for t in range(6):
        name = "abc"[t % 3]
        samples = np.array(["abc".index(name)] if kind == "full" else [t % 2, 2][: 1 + (t == 4)])
        uploads = [(name, samples, rng.normal(size=(len(samples), n_classes)))]
        rounds.append(Round(uploads, rng.normal(size=n_classes), absent=tuple(set("abc") - {name})))
    story = Story("synchronous", loss, labels, ["a", "b", "c"], rounds, n_classes)
    result = value(record(story), "exact", rank=1)
    found = np.column_stack([result.per_round, result.per_round_server])
    np.testing.assert_allclose(found, story.values(rank=1), atol=1e-12)
    if kind == "full":
        assert result.completion is None
        assert result.server_error <= 1e-12


def test_value_takes_the_agreed_settings():
    """Options that are not given are those of the transcript; those that are given take their place."""
    agreed = {"semivalue": "banzhaf", "method": "exact", "seed": 3}
    with Recorder(None, [0, 1, 1], ["a", "b"], valuation=agreed) as recorder:
        recorder.log([0, 1, 2], {"a": [0.1, 0.2, 0.3], "b": [1.0, 0.0, 0.0]})
    assert value(recorder).settings == recorder.transcript.description.valuation
    other = value(recorder, "auto", semivalue="shapley").settings
    assert (other.method, other.semivalue, other.seed) == ("auto", "shapley", 3)


def test_an_own_loss_does_not_replace_that_of_the_package():
    """A loss of one's own is refused for a training that was recorded with the package's loss of the same name."""
    with Recorder(None, [0, 1, 1], ["a", "b"]) as recorder:
        recorder.log([0, 1, 2], {"a": [0.1, 0.2, 0.3], "b": [1.0, 0.0, 0.0]})
    value(recorder, loss=get_loss("logistic"))
    with pytest.raises(InputError, match="the package's loss 'logistic'"):
        value(recorder, loss=type("Own", (type(get_loss("logistic")),), {})())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_held_out_zeros_are_no_evidence():
    """Where all uploads that were held out are zero and others are not, the error of completion is unknown."""
    n_found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        with Recorder(None, rng.integers(0, 2, 12), ["a", "b"]) as recorder:
            for t in range(4):
                batch = rng.permutation(12)[:4]
                recorder.log(batch, {name: t * rng.normal(size=4) for name in ("a", "b")})
        result = value(recorder)
        for report, error in zip(result.completion, result.completion_errors, strict=True):
            if report.rank and report.n_held_out and report.held_out_size == 0:
                n_found += 1
                assert np.isnan(error)
    assert n_found > 2


def test_uploads_of_fewer_samples_than_the_first_leave_gaps():
    """A client whose later uploads have only some samples of its first is completed; one that repeats them is not."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 1))
    with Recorder(None, rng.integers(0, 2, 30), ["all", "some"]) as recorder:
        for t in range(1, 9):
            batches = {"all": np.arange(30), "some": np.arange(30) if t == 1 else np.sort(rng.permutation(30)[:20])}
            recorder.log(batches, {name: 0.1 * t * features[batch, 0] for name, batch in batches.items()})
    reports = dict(zip(["all", "some"], value(recorder).completion, strict=True))
    assert reports["all"].rank == 0
    assert reports["some"].rank > 0
