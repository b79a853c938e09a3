import threading
import time

import numpy as np
import pytest

from tests.federation.textbook import hand_over, make_data, weights_of
from verfedsv import Recorder, value
from verfedsv.federation import (
    AsynchronousSchedule,
    Linear,
    Rate,
    RealClock,
    Training,
    VirtualClock,
    asynchronous_rounds,
)
from verfedsv.federation.clocks import Actor
from verfedsv.transcript import Stamp


def test_a_clock_that_begins_late_leaves_out_what_was_due_before():
    """Starting at 100.5 s, an actor of period 1 s that has taken 3 steps acts once a second, without a burst."""
    acts, clock = [], RealClock(speed=20, begin=100.5)
    rounds = clock.run([Actor(1.0, acts.append)], [3], 0.5, 208)
    while len(acts) < 3:
        next(rounds)
    rounds.close()
    assert acts == list(range(3, 3 + len(acts)))
    assert len(acts) <= clock.now() - 100.5 + 3


def test_an_actor_that_is_late_leaves_out_what_it_missed():
    """If two steps take ten periods each, it acts at once after each, and then in its periods."""
    acts, clock = [], RealClock(speed=50)

    def act(step):
        acts.append(clock.now())
        if step < 2:
            time.sleep(0.2)

    rounds = clock.run([Actor(1.0, act)], [0], 1.0, 30)
    while len(acts) < 6:
        next(rounds)
    rounds.close()
    # At 1, 11, 21, 22, ..., or later; to catch up would have been one for each second.
    assert acts[1] >= 11
    assert acts[2] >= 21
    assert len(acts) - 2 <= clock.now() - 21 + 3


def test_stamps_may_be_late_and_none_is_left_out():
    """Training ends with the last planned stamp, even if the consumer is busy beyond it."""
    training = Training.in_process(make_data(), rate=Rate(0.1))
    schedule = AsynchronousSchedule([0.1] * 3, [30] * 3, 1.0, 5)
    rounds, times = [], []
    for n_rounds in asynchronous_rounds(training, schedule, RealClock(speed=5)):
        rounds.append(n_rounds)
        times.append(training.server.time)
        if len(rounds) == 1:
            time.sleep(0.7)
    assert rounds == [1, 2, 3, 4, 5]
    assert all(at >= n_rounds for at, n_rounds in zip(times, rounds, strict=True))


@pytest.mark.parametrize("stamp", [0.02, 0.05])
def test_rounds_wait_for_a_late_first_upload(stamp):
    """As many are recorded as planned, although the first upload was due some rounds before it came."""

    class Late(Linear):
        def embed(self, features):
            time.sleep(0.3)
            return super().embed(features)

    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    training = Training.in_process(data, rate=Rate(0.1), model=Late, recorder=recorder)
    schedule = AsynchronousSchedule([0.05] * 3, [30] * 3, stamp, 12)
    rounds = [*asynchronous_rounds(training, schedule, RealClock())]
    assert rounds == [*range(3 if stamp == 0.02 else 1, 13)]
    assert sum(isinstance(record, Stamp) for record in recorder.transcript.records()) == len(rounds)


class Slow(Linear):
    """A model whose steps take a while."""

    def learn(self, features, gradient, rate):
        time.sleep(0.001)
        super().learn(features, gradient, rate)


def test_checkpoints_in_wall_time_are_of_whole_steps(tmp_path):
    """Each model has taken as many steps as the server counts uploads; each upload and stamp is a record."""
    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    training = Training.in_process(data, rate=Rate(0.1), model=Slow, recorder=recorder, checkpoints=tmp_path)
    schedule = AsynchronousSchedule([0.005, 0.007, 0.009], [30] * 3, 0.01, 10_000)
    seen = set()
    for n_stamps, n_rounds in enumerate(asynchronous_rounds(training, schedule, RealClock()), 1):
        training.save({})
        with np.load(tmp_path / "server.npz") as server:
            counts = server["n_uploads"].tolist()
            assert server["n_records"] == sum(counts) + n_stamps
        for m, count in enumerate(counts):
            with np.load(tmp_path / f"client-{m}-{n_rounds}.npz") as client:
                assert client["n_steps"] == count
        seen.add(tuple(counts))
        if len(seen) > 20:
            break
    assert len(seen) > 20


def test_evaluation_in_wall_time_is_of_whole_steps():
    """No model is evaluated in the middle of a step."""

    class Halfway(Linear):
        is_learning = False

        def embed(self, features):
            assert not self.is_learning
            return super().embed(features)

        def learn(self, features, gradient, rate):
            self.is_learning = True
            time.sleep(0.001)
            super().learn(features, gradient, rate)
            self.is_learning = False

    training = Training.in_process(make_data(), rate=Rate(0.1), model=Halfway)
    schedule = AsynchronousSchedule([0.002] * 3, [30] * 3, 0.005, 60)
    for _ in asynchronous_rounds(training, schedule, RealClock()):
        training.evaluate()


def test_stamps_before_the_first_upload_are_not_recorded():
    """Later stamps keep their numbers and times."""
    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    schedule = AsynchronousSchedule([0.25, 0.4, 0.3], [30] * 3, 0.1, 6)
    training = Training.in_process(data, rate=Rate(0.1), recorder=recorder)
    assert list(asynchronous_rounds(training, schedule, VirtualClock())) == [3, 4, 5, 6]
    records = list(recorder.transcript)
    assert [r.time for r in records if isinstance(r, Stamp)] == pytest.approx([0.3, 0.4, 0.5, 0.6])
    assert [r.time for r in records if not isinstance(r, Stamp)] == pytest.approx([0.25, 0.3, 0.4, 0.5, 0.6])
    assert value(recorder).values.shape == (3,)


@pytest.mark.parametrize("stop", [3, 4])
def test_continuing_after_stamps_that_were_not_recorded(stop):
    """It leads to the same model and records as an uninterrupted training."""
    data = make_data()
    schedule = AsynchronousSchedule([0.25, 0.4, 0.3], [30] * 3, 0.1, 9)
    recorders = [Recorder(None, data.labels[~data.is_test], data.names) for _ in range(2)]
    whole, first = (Training.in_process(data, rate=Rate(0.1), recorder=recorder) for recorder in recorders)
    for _ in asynchronous_rounds(whole, schedule, VirtualClock()):
        pass
    for n_rounds in asynchronous_rounds(first, schedule, VirtualClock()):
        if n_rounds == stop:
            break
    second = Training.in_process(data, rate=Rate(0.1))
    hand_over(first, second)
    second.server.record(recorders[1])
    for _ in asynchronous_rounds(second, schedule, VirtualClock()):
        pass
    np.testing.assert_array_equal(weights_of(second), weights_of(whole))
    assert [r.time for r in recorders[0].transcript] == [r.time for r in recorders[1].transcript]


def test_a_stamp_at_the_time_of_the_first_upload_in_wall_time():
    """Whichever comes first, training continues, and the transcript begins with an upload."""
    data = make_data(1)
    for _ in range(10):
        recorder = Recorder(None, data.labels[~data.is_test], data.names)
        training = Training.in_process(data, rate=Rate(0.1), recorder=recorder)
        schedule = AsynchronousSchedule([0.01], [30], 0.01, 8)
        n_threads = threading.active_count()
        rounds = list(asynchronous_rounds(training, schedule, RealClock()))
        assert threading.active_count() == n_threads
        assert len(rounds) == recorder.n_rounds
        assert not isinstance(next(iter(recorder.transcript)), Stamp)
