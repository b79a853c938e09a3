"""VAFL: every client uploads and learns at its own pace; the server answers from the embeddings it has (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from verfedsv.errors import InputError
from verfedsv.federation.clocks import Actor, Clock
from verfedsv.federation.schedules import AsynchronousSchedule, batch_of_client
from verfedsv.federation.training import Training


def asynchronous_rounds(training: Training, schedule: AsynchronousSchedule, clock: Clock) -> Iterator[int]:
    """Train from the server's current round, yielding the number of each round that is recorded.

    Round k ends after k * `stamp_every` seconds, and training with round `n_rounds`. Rounds that end before the first
    upload is due are neither recorded nor yielded; the others are, so that as many are recorded as planned: where that
    upload is late, they wait for it. The caller may stop at any round.

    Nobody waits for a client that misses rounds, so it leaves before them and joins again after them.
    """
    server = training.server
    if len(schedule.periods) != len(server.clients):
        raise InputError(f"there are {len(server.clients)} clients; the schedule has {len(schedule.periods)}")
    if server.n_rounds >= schedule.n_rounds:
        return

    def act(m: int, _: int) -> None:
        name = server.clients[m]
        step = server.n_uploads[name]
        batch = batch_of_client(m, step, server.n_train, schedule.batch_sizes[m], schedule.seed)
        # The first upload of a client covers all samples.
        samples = np.arange(server.n_train) if step == 0 else batch
        training.train_client(name, samples, batch, clock.now)

    def is_due(number: int) -> bool:
        return number < first_upload - 1e-9 or any(server.n_uploads.values())

    def update_members() -> None:
        roster, number = schedule.roster, server.n_rounds + 1
        # A transcript begins with an upload: until then, nobody can be recorded as joining or leaving.
        if roster is not None and any(server.n_uploads.values()):
            missing = roster.missing(number)
            training.set_members([name for name in roster.members(number) if name not in missing])

    update_members()
    periods = dict(zip(server.clients, schedule.periods, strict=True))
    first_upload = min(periods[name] for name in server.present) / schedule.stamp_every
    actors = [Actor(period, partial(act, m)) for m, period in enumerate(schedule.periods)]
    first_steps = [server.n_uploads[name] for name in server.clients]
    # Held until after `end`: when it is closed, it waits for steps that are under way.
    stamps = clock.run(actors, first_steps, schedule.stamp_every, server.n_rounds + 1, is_due)
    try:
        for k in stamps:
            if server.stamp(k, clock.now):
                yield k
            if k >= schedule.n_rounds:
                return
            update_members()
    finally:
        training.end()
