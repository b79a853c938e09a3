import math

import numpy as np
import pytest

from tests.federation.textbook import make_data
from verfedsv import InputError
from verfedsv.federation import (
    AsynchronousSchedule,
    Rate,
    RealClock,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan,), "rate must be a positive number; received nan"),
        ((-1,), "rate must be a positive number; received -1"),
        ((0,), "rate must be a positive number; received 0"),
        ((math.inf,), "rate must be a positive number; received inf"),
        (("0.5",), "rate must be a positive number; received '0.5'"),
        ((0.5, "inverted"), "decay must be 'constant' or 'inverse'; received 'inverted'"),
        ((0.5, None), "decay must be 'constant' or 'inverse'; received None"),
        ((0.5, ["constant"]), "decay must be 'constant' or 'inverse'"),
    ],
)
def test_invalid_rates(arguments, message):
    """A rate is positive, and its decay is one of two."""
    with pytest.raises(InputError, match=message):
        Rate(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "batch_size must be at least 1; received 0"),
        ((2.5, 5), "batch_size must be a whole number; received 2.5"),
        ((30, 0), "n_rounds must be at least 1; received 0"),
        ((30, -2), "n_rounds must be at least 1; received -2"),
        ((30, 5, -1), "seed must be at least 0; received -1"),
    ],
)
def test_invalid_synchronous_schedules(arguments, message):
    """Batches and rounds are at least one."""
    with pytest.raises(InputError, match=message):
        SynchronousSchedule(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 30, 100), "n_epochs must be a positive number; received 0"),
        ((1, 0, 100), "batch_size must be at least 1; received 0"),
        ((1, 30, 0), "n_samples must be at least 1; received 0"),
        ((0.01, 30, 1000), "epochs = 0.01 is less than one round of 30 out of 1,000 samples"),
    ],
)
def test_invalid_epochs(arguments, message):
    """Epochs and samples are positive."""
    with pytest.raises(InputError, match=message):
        SynchronousSchedule.of_epochs(*arguments)


def test_rounds_of_epochs():
    """Enough to go through all samples; the last batch of an epoch may be shorter."""
    assert [SynchronousSchedule.of_epochs(n, 30, 100).n_rounds for n in (1, 2.5, 0.2)] == [4, 10, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.1, 0.0], [30, 30], 1.0, 5), r"periods\[1\] must be a positive number; received 0"),
        (([0.1, math.nan], [30, 30], 1.0, 5), r"periods\[1\] must be a positive number; received nan"),
        (([0.1, 0.1], [0, 30], 1.0, 5), r"batch_sizes\[0\] must be at least 1; received 0"),
        (([0.1, 0.1], [30, 2.5], 1.0, 5), r"batch_sizes\[1\] must be a whole number; received 2.5"),
        ((0.1, [30, 30], 1.0, 5), "periods must hold a number for each client; received 0.1"),
        (([0.1, 0.1], 30, 1.0, 5), "batch_sizes must hold a number for each client; received 30"),
        (([], [], 1.0, 5), r"periods must hold a number for each client; received \[\]"),
        (([0.1, 0.1], [30], 1.0, 5), "periods has 2 clients and batch_sizes 1"),
        (([0.1], [30], 0, 5), "stamp_every must be a positive number; received 0"),
        (([0.1], [30], 1.0, 0), "n_rounds must be at least 1; received 0"),
        (([0.1], [30], 1.0, 5, -1), "seed must be at least 0; received -1"),
        (([6.0, 5.1], [30, 30], 1.0, 5), r"no client uploads before the end of the last round.*5.1 .* 5.0"),
    ],
)
def test_invalid_asynchronous_schedules(arguments, message):
    """Each client has a positive period and batch size, and somebody uploads before the end."""
    with pytest.raises(InputError, match=message):
        AsynchronousSchedule(*arguments)


def test_schedules_keep_what_they_were_given():
    """Even if it was an array, or a list that changes later."""
    periods = [0.1, 0.2]
    schedule = AsynchronousSchedule(periods, np.array([10, 20]), 1.0, 5)
    periods[0] = -1.0
    assert list(schedule.periods) == [0.1, 0.2]
    assert list(schedule.batch_sizes) == [10, 20]


@pytest.mark.parametrize("n_clients", [1, 4])
def test_an_asynchronous_schedule_is_of_all_clients(n_clients):
    """Fewer or more clients than there are is an error."""
    training = Training.in_process(make_data(3), rate=Rate(0.1))
    schedule = AsynchronousSchedule([0.01] * n_clients, [30] * n_clients, 0.1, 2)
    with pytest.raises(InputError, match=f"3 clients.*schedule has {n_clients}"):
        next(asynchronous_rounds(training, schedule, VirtualClock()))


@pytest.mark.parametrize("speed", [0, -1.0, math.nan])
def test_a_real_clock_runs_forwards(speed):
    """Its speed must be positive."""
    with pytest.raises(InputError, match="speed must be a positive number"):
        RealClock(speed=speed)
