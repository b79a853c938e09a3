import dataclasses
import json
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from tests.games import LOSSES, mean_loss
from tests.trainings import train, values_of_rounds
from verfedsv import (
    CompletionWarning,
    InputError,
    Recorder,
    ToleranceWarning,
    TooManyClientsError,
    Transcript,
    TranscriptError,
    Valuation,
    complete,
    shapley_values,
    value,
)
from verfedsv.transcript.streams import SegmentReader

ROOT = Path(__file__).parents[2]


class Asynchronous:
    """An asynchronous training of random uploads, recorded, with its table at each time stamp known."""

    def __init__(self, loss="logistic", n_clients=3, n_samples=40, n_rounds=6, step=0.5, offset=False, seed=0):
        rng = np.random.default_rng(seed)
        self.loss, self.n_samples = loss, n_samples
        self.n_classes = 3 if loss == "softmax" else 1
        labels = rng.integers(0, 3 if loss == "softmax" else 2, n_samples)
        self.labels = rng.normal(size=n_samples) if loss == "squared" else labels
        self.clients = [f"client {m + 1}" for m in range(n_clients)]
        self.events, tables, offsets = [], [], []
        table = np.zeros((n_clients, n_samples, self.n_classes))
        for t in range(n_rounds):
            for m in range(n_clients):
                for _ in range(rng.integers(0, 3)):
                    batch = rng.permutation(n_samples)[: rng.integers(1, n_samples)]
                    table[m, batch] += step * rng.normal(size=(len(batch), self.n_classes))
                    self.events.append((m, batch, table[m, batch].copy()))
            own = rng.normal(size=(n_samples, self.n_classes)) if offset else None
            self.events.append((None, t, own))
            tables.append(table.copy())
            offsets.append(own)
        self.tables, self.offsets = np.array(tables), np.array(offsets) if offset else None

    def record(self, path=None, last=None, recorder=None, first=0):
        """Record the first stamps of the training, from `first` on; the recorder stays open."""
        n_classes = self.n_classes if self.loss == "softmax" else None
        recorder = recorder or Recorder(path, self.labels, self.clients, self.loss, n_classes=n_classes)
        n_stamps = 0
        for m, batch, values in self.events:
            if m is not None and n_stamps >= first:
                recorder.update(self.clients[m], batch, values, time=float(n_stamps))
            elif m is None:
                if n_stamps >= first:
                    recorder.stamp(values, time=float(n_stamps))
                n_stamps += 1
                if n_stamps == last:
                    break
        return recorder

    def by_definition(self):
        """Return the values of all rounds by the definition, (rounds, players)."""
        return values_of_rounds(self.tables, self.labels, self.loss, self.offsets)


def split_server(values, result):
    """Return the values of the clients and of the server, which is zero if it is not the last player."""
    n_clients = len(result.clients)
    server = values[:, n_clients] if values.shape[1] > n_clients else np.zeros(len(values))
    return values[:, :n_clients], server


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_asynchronous_values_are_those_of_the_definition(loss, offset, method):
    """Embeddings are what the server had at each time stamp, and each round's values those of all coalitions."""
    training = Asynchronous(loss, offset=offset)
    result = value(training.record(), method)
    expected, server = split_server(training.by_definition(), result)
    assert (np.abs(result.per_round - expected) <= result.per_round_errors + 1e-12).all()
    assert (np.abs(result.values - expected.mean(axis=0)) <= result.estimator_errors + 1e-12).all()
    assert (np.abs(result.per_round_server - server) <= result.per_round_server_errors + 1e-12).all()
    assert abs(result.server_value - server.mean()) <= result.server_error + 1e-12
    assert result.estimator_errors.max() <= 1e-3 * np.abs(result.values).max()
    assert (result.completion_errors == 0).all()
    assert result.error_kind == "certified"
    assert (result.mode, result.n_rounds, result.n_samples, result.loss) == ("asynchronous", 6, 40, loss)


@pytest.mark.parametrize("loss", LOSSES)
def test_full_batches_need_no_completion(loss):
    """Synchronous training with all samples in every batch is valued exactly, by the definition."""
    training = train(loss, n_samples=30, batch=30, n_epochs=5, intercept=True)
    result = value(training.record())
    offsets = np.repeat(training.intercepts[:, None], 30, axis=1)
    expected, server = split_server(values_of_rounds(training.embeddings, training.labels, loss, offsets), result)
    np.testing.assert_allclose(result.per_round_server, server, atol=result.per_round_server_errors.max() + 1e-12)
    np.testing.assert_allclose(result.per_round, expected, atol=result.per_round_errors.max() + 1e-12)
    assert result.completion is None
    assert result.guarantee is None
    assert (result.completion_errors == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_synchronous_values_are_those_of_the_completed_embeddings(loss, intercept):
    """Each client completed on its own, and each round valued on its own, lead to the same numbers."""
    training = train(loss, n_samples=100, batch=25, n_epochs=4, intercept=intercept)
    result = value(training.record(), rank=2)
    completions = [complete(training.batches, training.uploads(m), 100, 2) for m in range(3)]
    previous = np.zeros((3, 100, training.embeddings.shape[3]))
    own_before = np.zeros(previous.shape[1:]) if intercept else None
    for t in range(len(training.batches)):
        current = np.stack([completion.embeddings(t) for completion in completions])
        own = np.tile(training.intercepts[t], (100, 1)) if intercept else None
        offsets = {"offset": own, "previous_offset": own_before}
        expected = shapley_values(previous, current, training.labels, loss, method="closed-form", **offsets)
        np.testing.assert_allclose(result.per_round[t], expected.values, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(result.per_round_server[t], expected.server_value, rtol=1e-9, atol=1e-15)
        previous, own_before = current, own
    assert result.completion == tuple(completion.report for completion in completions)


@pytest.mark.parametrize("loss", LOSSES)
def test_synchronous_values_are_close_to_the_true_ones(loss):
    """The shares are within 2 % of those of embeddings that were all known, and the estimated errors are honest."""
    training = train(loss, n_samples=600, batch=60, n_epochs=20)
    result = value(training.record(), regularization=0.01)
    true = values_of_rounds(training.embeddings, training.labels, loss).mean(axis=0)
    shares = true / true.sum()
    assert np.mean(np.abs(result.shares - shares) / shares) < 0.02
    assert (np.abs(result.values - true) <= 2 * result.errors).all()
    assert result.guarantee is None if loss == "squared" else result.guarantee >= np.abs(result.values - true).max()


def test_an_offset_that_differs_between_samples_is_completed_too():
    """The server's own part is known for the batch only; completed, it leads close to the true values."""
    training = train(n_samples=400, batch=40, n_epochs=20)
    recorder = Recorder(None, training.labels, training.clients[:2])
    for t, batch in enumerate(training.batches):
        uploads = {name: training.embeddings[t, m, batch] for m, name in enumerate(training.clients[:2])}
        recorder.log(batch, uploads, training.embeddings[t, 2, batch])
    result = value(recorder, regularization=0.01)
    true = values_of_rounds(training.embeddings[:, :2], training.labels, "logistic", training.embeddings[:, 2])
    np.testing.assert_allclose([*result.values, result.server_value], true.mean(axis=0), rtol=0.05)


@pytest.mark.parametrize("loss", LOSSES)
def test_values_add_up_to_the_decrease_of_the_loss(loss):
    """Balance: over all rounds the values sum to the loss at zero less the loss at the end."""
    training = Asynchronous(loss)
    result = value(training.record())
    end = training.tables[-1].sum(axis=0)
    x = end if loss == "softmax" else end[:, 0]
    decrease = mean_loss(loss, np.zeros_like(x), training.labels) - mean_loss(loss, x, training.labels)
    assert result.values.sum() * result.n_rounds == pytest.approx(decrease, rel=1e-9)
    assert result.shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("method", ["auto", "closed-form", "exact", "permutation"])
def test_equal_clients_get_equal_values(method):
    """Symmetry, to the last bit, also through completion."""
    training = train(n_samples=100, batch=25, n_epochs=4)
    training.embeddings[:, 1] = training.embeddings[:, 0]
    result = value(training.record(), method)
    assert result.values[0] == result.values[1]


def test_a_client_that_never_uploads_gets_exactly_nothing():
    """In asynchronous training its embeddings stay zero; its value and its error are 0."""
    training = Asynchronous()
    recorder = Recorder(None, training.labels, [*training.clients, "silent"])
    for m, batch, values in training.events:
        if m is None:
            recorder.stamp(time=0.0)
        else:
            recorder.update(training.clients[m], batch, values, time=0.0)
    result = value(recorder)
    assert result.values[3] == 0
    assert result.errors[3] == 0
    np.testing.assert_allclose(result.values[:3], training.by_definition().mean(axis=0), atol=1e-4)


def test_additivity_over_periods():
    """The values of a training are the means of those of its parts, weighted by their numbers of rounds."""
    training = Asynchronous(n_rounds=9)
    whole = value(training.record())
    early = value(training.record(last=4))
    np.testing.assert_allclose(whole.per_round[:4], early.per_round, rtol=1e-12)
    np.testing.assert_allclose(whole.values * 9, early.values * 4 + whole.per_round[4:].sum(axis=0), rtol=1e-9)


def test_methods_agree():
    """Closed form, enumeration and permutations are within each other's errors."""
    training = train(n_samples=200, batch=50, n_epochs=3)
    recorder = training.record()
    exact = value(recorder, "exact")
    for method in ("auto", "closed-form", "permutation"):
        result = value(recorder, method, n_permutations=300)
        assert (np.abs(result.values - exact.values) <= result.estimator_errors + exact.estimator_errors).all()
        assert result.method == {"auto": "closed-form"}.get(method, method)
    assert result.error_kind == "confidence"


def test_rounds_beyond_the_closed_form_are_refined():
    """Where jumps are too large for the third order, hard samples are enumerated, and the tolerance is kept."""
    training = Asynchronous(step=4.0, n_clients=5)
    closed, result = value(training.record(), "closed-form"), value(training.record())
    expected = training.by_definition().mean(axis=0)
    assert closed.estimator_errors.max() > 1e-3 * np.abs(expected).max()
    assert result.method == "closed-form+exact"
    assert result.tolerance_met
    assert (np.abs(result.values - expected) <= result.estimator_errors + 1e-12).all()


def test_many_clients_are_refined_by_sampling():
    """More clients than can be enumerated are sampled; the bound holds, and a warning tells if it is too wide."""
    training = Asynchronous(step=2.0, n_clients=26, n_samples=400, n_rounds=2)
    with pytest.warns(ToleranceWarning, match="allow more than n_permutations=500"):
        result = value(training.record(), n_permutations=500)
    assert result.method == "closed-form+sampling"
    assert result.error_kind == "confidence"
    reference = sum(
        shapley_values(
            before[..., 0], after[..., 0], training.labels, tolerance=1e-2, n_permutations=4000, seed=1
        ).values
        for before, after in zip(
            [np.zeros_like(training.tables[0]), *training.tables[:-1]], training.tables, strict=True
        )
    )
    assert (np.abs(result.values - reference / 2) <= 2 * result.estimator_errors).all()


class SerialExecutor(Executor):
    """Runs everything at once in the calling thread, and counts it."""

    def __init__(self):
        self.n_calls = 0

    def submit(self, fn, /, *args, **kwargs):
        self.n_calls += 1
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # whatever it is, the future holds it
            future.set_exception(error)
        return future


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_any_executor_gives_the_same_numbers(mode, monkeypatch):
    """Threads, processes and an executor of one's own agree to the last bit with the default.

    Also if processes multiply matrices in one thread, as workers of a cluster do.
    """
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    if mode == "synchronous":
        recorder = train(n_samples=26_000, batch=2600, n_epochs=2).record()
    else:
        recorder = Asynchronous(n_samples=26_000, n_rounds=3).record()
    settings = {"rank": 2, "regularization": 0.1}
    expected = value(recorder, **settings)
    serial = SerialExecutor()
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        for executor in (threads, processes, serial):
            result = value(recorder, executor=executor, **settings)
            np.testing.assert_array_equal(result.per_round, expected.per_round)
            np.testing.assert_array_equal(result.errors, expected.errors)
    assert serial.n_calls > 3


def test_a_running_asynchronous_training_can_be_watched():
    """Valued three times as it grows, it has the values and errors of valuing it once at its end."""
    training = Asynchronous(n_rounds=12, step=1.5, offset=True)
    recorder, result = None, None
    for first, last in ((0, 3), (3, 4), (4, 12)):
        recorder = training.record(recorder=recorder, first=first, last=last)
        result = value(recorder, since=result)
        assert result.n_rounds == last
    at_once = value(recorder)
    np.testing.assert_array_equal(result.per_round, at_once.per_round)
    np.testing.assert_array_equal(result.errors, at_once.errors)
    assert result.method == at_once.method
    assert value(recorder, since=result).per_round.shape == (12, 3)


def test_only_new_rounds_are_valued_again():
    """What was valued before is taken over, not computed."""
    training = Asynchronous(n_rounds=8)
    recorder = training.record(last=5)
    earlier = value(recorder)
    marked = dataclasses.replace(earlier, per_round=earlier.per_round + 1000.0)
    training.record(recorder=recorder, first=5)
    result = value(recorder, since=marked)
    np.testing.assert_array_equal(result.per_round[:5], marked.per_round)
    assert np.abs(result.per_round[5:]).max() < 10


def test_a_training_is_valued_on_from_any_record(monkeypatch):
    """Also from between an upload and its time stamp; and only what is new is read."""
    recorder = Asynchronous(n_rounds=6).record()
    transcript, result, read = recorder.transcript, None, []
    verified = transcript.verify_more(most=10)
    message = SegmentReader.message
    monkeypatch.setattr(SegmentReader, "message", lambda self, index: (read.append(index), message(self, index))[1])
    first = 2
    while True:
        result = value(transcript.up_to(verified), since=result)
        assert result.n_rounds == verified.n_rounds
        assert read == list(range(first, verified.n_entries))
        first = verified.n_entries
        if verified.n_records == transcript.n_records:
            break
        verified = transcript.verify_more(verified, 3)
        read.clear()
    np.testing.assert_array_equal(result.per_round, value(recorder).per_round)
    assert (result.n_unseen, result.head) == (value(recorder).n_unseen, transcript.head)


def test_a_valuation_read_from_json_can_be_continued(tmp_path):
    """Asynchronous: to the same numbers. Synchronous: completion then starts cold, to the same numbers as at once."""
    training = Asynchronous(n_rounds=8)
    with training.record(tmp_path / "run", last=5) as recorder:
        earlier = Valuation.from_json(value(recorder).to_json())
        training.record(recorder=recorder, first=5)
        np.testing.assert_array_equal(value(tmp_path / "run", since=earlier).per_round, value(recorder).per_round)
    sync = train(n_samples=100, batch=25, n_epochs=4)
    recorder = sync.record(last=10)
    earlier = Valuation.from_json(value(recorder).to_json())
    sync.record(recorder=recorder, first=10)
    np.testing.assert_array_equal(value(recorder, since=earlier).per_round, value(recorder).per_round)


def test_a_running_synchronous_training_can_be_watched():
    """Completion starts from the earlier factors; values differ from a cold start by less than their errors."""
    training = train(n_samples=500, batch=50, n_epochs=20)
    recorder = training.record(last=160)
    earlier = value(recorder)
    training.record(recorder=recorder, first=160)
    warm, cold = value(recorder, since=earlier), value(recorder)
    assert (np.abs(warm.values - cold.values) <= cold.errors).all()
    assert sum(r.n_sweeps for r in warm.completion) < sum(r.n_sweeps for r in cold.completion)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "exact"}, "other settings"),
        ({"seed": 3}, "other settings"),
        ({"rows": [1, 2]}, "other settings"),
        ({"since": "before"}, "earlier Valuation; received str"),
    ],
)
def test_a_valuation_made_differently_cannot_be_continued(change, message):
    """Nor one of another training: its hash chain is another."""
    recorder = Asynchronous().record()
    earlier = value(recorder)
    with pytest.raises(InputError, match=message):
        value(recorder, **({"since": earlier} | change))
    with pytest.raises(InputError, match="not a valuation of this training"):
        value(Asynchronous(seed=1).record(), since=earlier)


def test_chosen_rows():
    """The mean runs over the rows asked for: by mark, by number, by mask."""
    training = Asynchronous()
    marked = np.arange(0, 40, 4)
    recorder = Recorder(None, training.labels, training.clients, no_gradient=marked)
    for m, batch, values in training.events:
        if m is None:
            recorder.stamp(time=0.0)
        else:
            recorder.update(training.clients[m], batch, values, time=0.0)
    mask = np.zeros(40, bool)
    mask[marked] = True
    expected = values_of_rounds(training.tables[:, :, mask], training.labels[mask], "logistic").mean(axis=0)
    for rows in ("no-gradient", marked, marked[::-1], mask):
        result = value(recorder, "exact", rows=rows)
        np.testing.assert_allclose(result.values, expected, atol=1e-12)
        assert result.n_samples == 10
    others, everything = value(recorder, "exact", rows="gradient"), value(recorder, "exact")
    np.testing.assert_allclose(others.values * 30 + result.values * 10, everything.values * 40, atol=1e-10)


def test_chosen_rows_of_a_synchronous_training():
    """Completion still learns from all samples; only the mean is restricted."""
    training = train(n_samples=200, batch=50, n_epochs=5)
    first, second = (value(training.record(), rows=range(a, a + 100)) for a in (0, 100))
    whole = value(training.record())
    np.testing.assert_allclose(first.values + second.values, 2 * whole.values, rtol=1e-9)


def test_samples_never_uploaded_are_left_out_of_a_synchronous_mean():
    """They are counted; the values are those of a training that never had them."""
    training = train(n_samples=200, batch=50, n_epochs=5)
    more = dataclasses.replace(training, labels=np.concatenate([training.labels, np.zeros(50, int)]))
    with_unseen, without = value(more.record()), value(training.record())
    assert (with_unseen.n_samples, with_unseen.n_unseen) == (200, 50)
    np.testing.assert_allclose(with_unseen.values, without.values, rtol=0.05)
    with pytest.raises(InputError, match="no client uploaded any of the selected rows"):
        value(more.record(), rows=[220, 230])


def test_a_transcript_of_one_round():
    """It is valued from zero to that round, exactly, on the samples of its batch."""
    training = train(n_samples=100, batch=100, n_epochs=2)
    training.batches = [batch[:40] for batch in training.batches]
    result = value(training.record(first=1))
    assert (result.n_rounds, result.n_samples, result.n_unseen) == (1, 40, 60)
    batch = training.batches[1]
    expected = values_of_rounds(training.embeddings[1:, :, batch], training.labels[batch], "logistic")[0]
    np.testing.assert_allclose(result.values, expected, atol=1e-9)
    with pytest.raises(InputError, match="no client uploaded any of the selected rows"):
        value(training.record(first=1), rows=[np.setdiff1d(np.arange(100), batch)[0]])


def test_a_transcript_of_one_epoch():
    """Every sample is uploaded once: how far completion is off cannot be said, and a warning tells."""
    training = train(n_samples=100, batch=20, n_epochs=1)
    with pytest.warns(CompletionWarning, match="uploaded no sample more than once"):
        result = value(training.record())
    assert np.isnan(result.completion_errors).all()
    assert result.guarantee is None
    assert json.loads(result.to_json())["errors"] == [None, None, None]


def test_progress_is_told():
    """It rises to the whole, in both modes."""
    for recorder in (train(n_samples=100, batch=50, n_epochs=3).record(), Asynchronous().record()):
        steps = []
        value(recorder, progress=lambda done, total, steps=steps: steps.append((done, total)))
        done = [d for d, _ in steps]
        assert done == sorted(done)
        assert steps[-1][0] == steps[-1][1] > 0


def test_a_valuation_goes_to_json_and_back():
    """Everything but what a later valuation could go on from survives; the contract's names are there."""
    for recorder in (train(n_samples=100, batch=50, n_epochs=3).record(), Asynchronous().record()):
        result = value(recorder)
        content = json.loads(result.to_json())
        for name in ("clients", "values", "shares", "errors", "method", "n_rounds"):
            assert name in content
        back = Valuation.from_json(result.to_json())
        for field in dataclasses.fields(Valuation):
            if field.name not in ("factorisation", "replay"):
                np.testing.assert_equal(getattr(back, field.name), getattr(result, field.name))
        assert back.to_json() == result.to_json()
    assert "6 rounds" in repr(result)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a valuation"),
        ("[1]", "not a valuation"),
        ("nonsense", "the valuation is not valid JSON"),
        ('{"format": "verfedsv valuation", "version": true}', "of version 2; received 'verfedsv valuation', True"),
        ('{"format": "verfedsv valuation", "version": 99}', "reads 'verfedsv valuation' of version 2"),
        ('{"format": "verfedsv valuation", "version": 2}', "is damaged"),
    ],
)
def test_other_json_is_refused(text, message):
    """With what is wrong with it."""
    with pytest.raises(InputError, match=message):
        Valuation.from_json(text)


def test_a_valuation_goes_to_a_frame():
    """One row for each client."""
    pytest.importorskip("pandas")
    result = value(Asynchronous().record())
    frame = result.to_frame()
    assert list(frame.index) == ["client 1", "client 2", "client 3"]
    np.testing.assert_array_equal(frame["value"], result.values)
    np.testing.assert_array_equal(frame["error"], result.errors)


def test_a_valuation_is_frozen():
    """Neither its fields nor its arrays can be changed."""
    result = value(Asynchronous().record())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.n_rounds = 3
    with pytest.raises(ValueError, match="read-only"):
        result.values[0] = 1.0


def test_a_run_can_be_given_in_four_ways(tmp_path):
    """As a folder, its name, a transcript, or the recorder."""
    training = Asynchronous()
    with training.record(tmp_path / "run") as recorder:
        runs = (tmp_path / "run", str(tmp_path / "run"), Transcript.open(tmp_path / "run"), recorder)
        first, *others = [value(run) for run in runs]
    for other in others:
        np.testing.assert_array_equal(first.per_round, other.per_round)


def test_single_precision_uploads():
    """Transcripts in float32 are valued like the same numbers in float64."""
    training = Asynchronous()
    narrow = Recorder(None, training.labels, training.clients)
    wide = Recorder(None, training.labels, training.clients)
    for m, batch, values in training.events:
        if m is None:
            narrow.stamp(time=0.0)
            wide.stamp(time=0.0)
        else:
            narrow.update(training.clients[m], batch, values.astype(np.float32), time=0.0)
            wide.update(training.clients[m], batch, values.astype(np.float32).astype(np.float64), time=0.0)
    np.testing.assert_array_equal(value(narrow).per_round, value(wide).per_round)


def test_nothing_to_value():
    """An empty transcript, and one without time stamps, are refused with what to do."""
    empty = Recorder(None, [0, 1], ["a", "b"])
    with pytest.raises(InputError, match=r"no rounds yet, so there is nothing to value$"):
        value(empty)
    unstamped = Recorder(None, [0, 1], ["a", "b"])
    unstamped.update("a", [0, 1], [0.1, 0.2], time=0.0)
    with pytest.raises(InputError, match=r"record times of valuation with Recorder\.stamp"):
        value(unstamped)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; allowed are 'auto'"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"rank": "low"}, "rank must be a whole number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"rows": "some"}, "rows must be 'all', 'gradient', 'no-gradient'"),
        ({"rows": []}, "selects no sample"),
        ({"rows": "no-gradient"}, "selects no sample"),
        ({"rows": [0, 0]}, "rows must not repeat samples; sample 0 is repeated"),
        ({"rows": [40]}, "from 0 to 39"),
        ({"rows": [0.5]}, "rows must be a list of sample numbers"),
        ({"tolerance": 0}, "tolerance must be a positive number"),
        ({"regularization": -1}, "regularization must be a positive number"),
        ({"n_permutations": 0}, "n_permutations must be at least 1"),
        ({"executor": 4}, r"executor must be a concurrent\.futures\.Executor; received 4"),
        ({"progress": 1}, "progress must be a function"),
        ({"run": 7}, "run must be a folder, a Transcript or a Recorder; received int"),
    ],
)
def test_bad_input(change, message):
    """Each mistake is named, with what was received."""
    with pytest.raises(InputError, match=message):
        value(**({"run": Asynchronous().record()} | change))


def test_too_many_clients_to_enumerate():
    """Enumeration of 26 clients is refused before any work."""
    with pytest.raises(TooManyClientsError, match="up to 25 clients, the server included if it moves; received 26"):
        value(Asynchronous(n_clients=26).record(), "exact")


def test_no_transcript_there(tmp_path):
    """A folder that holds none is named."""
    with pytest.raises(TranscriptError, match="there is no transcript in"):
        value(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("batch", [10, 30])
def test_the_largest_embeddings_that_are_recorded_can_be_valued(batch):
    """One that is almost too large leaves finite values and errors, whether others are completed or not."""
    training = train(n_samples=30, batch=batch, n_epochs=6)
    training.embeddings[4, 0, training.batches[4][0]] = 9e11
    result = value(training.record())
    assert np.isfinite(result.values).all()
    assert np.isfinite(result.estimator_errors).all()


@pytest.mark.parametrize("rate", [5e-4, 2e-3])
def test_small_embeddings_are_not_shrunk_away(rate):
    """Where the paper's lambda would leave nothing of them, a smaller one is taken; the errors hold."""
    training = train(n_samples=300, batch=50, n_epochs=20, rate=rate)
    result = value(training.record())
    true = values_of_rounds(training.embeddings, training.labels, "logistic").mean(axis=0)
    np.testing.assert_allclose(result.values, true, rtol=0.1)
    assert (np.abs(result.values - true) <= result.errors).all()
    with pytest.warns(CompletionWarning, match="completed little better than by zeros"):
        shrunk = value(training.record(), regularization=0.1)
    assert np.isnan(shrunk.completion_errors).any()


@pytest.mark.parametrize("size", [1e-30, 1e-100])
def test_embeddings_that_vanish_have_an_unknown_error(size):
    """Lambda shrinks those of one client until their squares are zero, or they are: not to a value that is exact."""
    training = train(n_samples=60, batch=20, n_epochs=6)
    training.embeddings[:, 1] *= size
    with pytest.warns(CompletionWarning, match="'client 2' were completed little better than by zeros"):
        result = value(training.record(), rank=1, regularization=0.1)
    assert np.isnan(result.completion_errors[1])
    assert np.isfinite(result.completion_errors[0])


@pytest.mark.parametrize(("batch", "n_epochs"), [(50, 2), (100, 5), (100, 20)])
@pytest.mark.parametrize("seed", range(4))
def test_estimated_errors_of_completion_hold(batch, n_epochs, seed):
    """Also with few uploads of each sample, and for a client whose columns are of no use."""
    training = train(n_clients=4, n_samples=1000, batch=batch, n_epochs=n_epochs, seed=seed)
    result = value(training.record())
    true = values_of_rounds(training.embeddings, training.labels, "logistic").mean(axis=0)
    assert (np.abs(result.values - true) <= result.errors).all()


@pytest.mark.parametrize("noise", [0.2, 1.0, 3.0])
@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_a_client_pays_for_what_is_missed_of_others(noise):
    """Its embeddings complete perfectly, those of the other are noise: its value is off, and its error says so."""
    rng = np.random.default_rng(1)
    n_samples, n_rounds = 300, 30
    labels = rng.integers(0, 2, n_samples)
    signal = (2 * labels - 1) + 0.5 * rng.normal(size=(2, n_samples))
    full, part = (Recorder(None, labels, ["clear", "noisy"]) for _ in range(2))
    for t in range(n_rounds):
        clear, noisy = 2 * (t + 1) / n_rounds * signal
        noisy = noisy + noise * rng.normal(size=n_samples)
        batch = rng.choice(n_samples, 75, replace=False)
        full.log(np.arange(n_samples), {"clear": clear, "noisy": noisy})
        part.log(batch, {"clear": clear[batch], "noisy": noisy[batch]})
    true, found = value(full), value(part)
    off = abs(found.values[0] - true.values[0])
    own = found.completion[0].held_out_rmse / found.completion[0].held_out_size
    assert off > 3 * own / (1 - own) * np.abs(found.per_round[:, 0]).mean() or noise < 1
    assert off <= found.errors[0]


def test_the_same_samples_in_every_batch_need_no_completion():
    """Nothing is missing of those that were uploaded, and nothing is known of the others."""
    training = train(n_samples=60, batch=60, n_epochs=6)
    training.batches = [np.arange(10, 50) for _ in training.batches]
    result = value(training.record())
    expected = values_of_rounds(training.embeddings[:, :, 10:50], training.labels[10:50], "logistic")
    np.testing.assert_allclose(result.per_round, expected, atol=1e-6)
    assert result.completion is None
    assert (result.n_samples, result.n_unseen) == (40, 20)


def test_rows_are_the_same_however_they_are_written():
    """Numbers of any type and order continue a valuation; a mask of other samples does not."""
    recorder = Recorder(None, [0, 1], ["a"])
    recorder.update("a", [0, 1], [0.1, 0.2], time=0.0)
    recorder.stamp(time=0.0)
    earlier = value(recorder, rows=np.array([0, 1], np.uint8))
    for rows in ([0, 1], [1, 0], np.array([1, 0], np.int32), [True, True]):
        assert value(recorder, rows=rows, since=earlier).n_samples == 2
    with pytest.raises(InputError, match=r"rows is 2 chosen .* and not 1 chosen"):
        value(recorder, rows=np.array([False, True]), since=earlier)


def test_the_method_is_the_one_asked_for_if_nothing_changed():
    """Also when the valuation is continued."""
    recorder = Recorder(None, [0, 1], ["a"])
    recorder.update("a", [1], [0.1], time=0.0)
    recorder.stamp(time=0.0)
    earlier = value(recorder, "exact", rows=[0])
    recorder.update("a", [0], [0.2], time=1.0)
    recorder.stamp(time=1.0)
    assert earlier.method == value(recorder, "exact", rows=[0], since=earlier).method == "exact"


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")
def test_a_rank_higher_than_any_matrix_of_that_size_can_have():
    """It is taken as the highest there can be."""
    training = train(n_samples=30, batch=10, n_epochs=2)
    assert {report.rank for report in value(training.record(), rank=10**12).completion} == {6}


def test_completion_that_breaks_down():
    """A regularisation that is too small is named."""
    training = train(n_samples=30, batch=10, n_epochs=2)
    with pytest.raises(InputError, match=r"broke down at regularization 1e-300"):
        value(training.record(), rank=6, regularization=1e-300)


def test_the_warning_does_not_advise_more_draws_where_none_were_drawn():
    """What remains is rounding then."""
    recorder = Recorder(None, [0.0, 0.0], ["a", "b"], "squared")
    for value_of_a in (1e8, 0.0):
        recorder.log([0, 1], {"a": [value_of_a] * 2, "b": [-value_of_a] * 2})
    with pytest.warns(ToleranceWarning, match="allow a larger tolerance"):
        value(recorder)


def test_offsets_are_part_of_what_is_held_at_a_time(monkeypatch):
    """Rounds with an offset for all samples are valued in segments, like rounds with many uploads."""
    training = Asynchronous(n_rounds=12, offset=True)
    expected = value(training.record())
    monkeypatch.setattr("verfedsv.valuation.chunks.MOST_ELEMENTS", 50)
    steps = []
    result = value(training.record(), progress=lambda done, total: steps.append((done, total)))
    np.testing.assert_array_equal(result.per_round, expected.per_round)
    assert len(steps) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [1.0]}, r"values has shape \(1,\) instead of \(3,\)"),
        ({"per_round": [[1.0, 2.0, 3.0]]}, "per_round has shape"),
        ({"per_round": [[1.0], [2.0, 3.0]]}, "rows of per_round differ in length"),
        ({"n_rounds": "x"}, "damaged: n_rounds: Input should be a valid integer"),
        ({"n_rounds": -3}, "damaged: n_rounds: Input should be greater"),
        ({"error_kind": "sure"}, "damaged: error_kind"),
        ({"clients": ["a", "a", "a"]}, "names of the clients must differ; repeated: a"),
        ({"completion": [5]}, "damaged: completion.0"),
        ({"completion": []}, "completion must have a report for each of 3 clients"),
        ({"methods": None}, "damaged: methods"),
        ({"methods": ["magic"]}, "damaged: methods.0"),
        ({"losses": [0.7]}, "losses has shape"),
        ({"server_value": 5.0}, "not the means over its rounds"),
        ({"values": [1.7e308, 1.7e308, 1.0]}, "its values are too large to be added up"),
        ({"settings": {"seed": "x"}}, "damaged: settings"),
        ({"head": "zz"}, "damaged: head"),
    ],
)
def test_json_whose_parts_do_not_fit(change, message):
    """It is refused, with what does not fit."""
    content = json.loads(value(Asynchronous().record()).to_json())
    with pytest.raises(InputError, match=message):
        Valuation.from_json(json.dumps(content | change))
    del content["head"]
    with pytest.raises(InputError, match="head: Field required"):
        Valuation.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": [0.1, 0.8, 0.1]}, "its shares does not follow from its values"),
        ({"method": "magic"}, "its method does not follow"),
        ({"approved by": "the auditor"}, "it has a field 'approved by', which no valuation has"),
    ],
)
def test_json_that_contradicts_itself_is_refused(change, message):
    """Shares, errors, books and method are written for other readers, who would believe them."""
    fields = json.loads(value(Asynchronous(n_rounds=3).record()).to_json())
    assert Valuation.from_json(json.dumps(fields | {"finished": True, "verdict": {}})).n_rounds == 3
    with pytest.raises(InputError, match=message):
        Valuation.from_json(json.dumps(fields | change))
    with pytest.raises(InputError, match="its books does not follow"):
        Valuation.from_json(json.dumps(fields | {"books": fields["books"] | {"clients": 99.0}}))
