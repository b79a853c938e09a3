import time

from verfedsv.federation import RealClock
from verfedsv.federation.clocks import Actor


def test_a_clock_that_begins_late_leaves_out_what_was_due_before():
    """Going on at 100.5 s, an actor of period 1 s that has done 3 steps goes on every second, without 97 in a burst."""
    acts, clock = [], RealClock(speed=20, begin=100.5)
    rounds = clock.run([Actor(1.0, acts.append)], [3], 104.0, 1)
    next(rounds)
    rounds.close()
    assert acts == list(range(3, 3 + len(acts)))
    assert 1 <= len(acts) <= clock.now() - 100.5 + 3


def test_an_actor_that_is_late_leaves_out_what_it_missed():
    """One that takes ten periods for each of two steps acts again at once, and then in its periods."""
    acts, clock = [], RealClock(speed=20)

    def act(step):
        acts.append(clock.now())
        if step < 2:
            time.sleep(0.5)

    rounds = clock.run([Actor(1.0, act)], [0], 30.0, 1)
    next(rounds)
    rounds.close()
    # At 1, 11, 21, 22, ..., 30; to catch up would have been 30 of them.
    assert acts[1] >= 11
    assert acts[2] >= 21
    assert 4 <= len(acts) - 2 <= clock.now() - 21 + 3
