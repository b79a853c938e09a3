"""VAFL: every client uploads, asks and learns at its own times; the server answers from what it has (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from verfedsv.federation.clocks import Actor, Clock
from verfedsv.federation.federation import Federation, Moment
from verfedsv.federation.schedules import batch_of_client


@dataclass(frozen=True)
class AsynchronousPlan:
    """For each client the seconds between two uploads and the samples of one (tau); when and how often to stamp."""

    periods: Sequence[float]
    batch_sizes: Sequence[int]
    stamp_every: float
    n_stamps: int
    seed: int = 0


@dataclass
class Steps:
    """How far an asynchronous training is: the steps that each client has done, and the time stamps."""

    of_clients: list[int]
    n_stamps: int = 0


def asynchronous_rounds(
    federation: Federation, plan: AsynchronousPlan, clock: Clock, steps: Steps | None = None
) -> Iterator[Moment]:
    """Train, yielding after each time stamp; whoever iterates decides when to stop.

    `steps` is brought up to date: given again, with the federation's state at that time, training goes on from there.
    """
    steps = steps or Steps([0] * len(federation.clients))

    def act(m: int, step: int) -> None:
        client = federation.clients[m]
        batch = batch_of_client(m, step, federation.n_train, plan.batch_sizes[m], plan.seed)
        # The first upload of a client covers all samples.
        samples = np.arange(federation.n_train) if step == 0 else batch
        embeddings = client.embed(samples)
        with federation.lock:
            federation.receive(client, samples, embeddings)
            federation.tape.update(client.name, samples, embeddings, clock.now())
        federation.learn(client, batch)
        steps.of_clients[m] = step + 1

    if steps.n_stamps >= plan.n_stamps:
        return
    actors = [Actor(period, partial(act, m)) for m, period in enumerate(plan.periods)]
    for k in clock.run(actors, list(steps.of_clients), plan.stamp_every, steps.n_stamps + 1):
        with federation.lock:
            federation.tape.stamp(federation.offset(federation.n_train), clock.now())
        steps.n_stamps = k
        yield Moment(k, clock.now())
        if k >= plan.n_stamps:
            return
