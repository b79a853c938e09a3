"""VAFL: every client uploads, asks and learns at its own times; the server answers from what it has (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from verfedsv.arguments import as_positive, as_whole
from verfedsv.errors import InputError
from verfedsv.federation.clocks import Actor, Clock
from verfedsv.federation.federation import Federation, Moment
from verfedsv.federation.schedules import batch_of_client


@dataclass(frozen=True)
class AsynchronousPlan:
    """For each client the seconds between two uploads and the samples of one (tau); the rounds' length and number."""

    periods: Sequence[float]
    batch_sizes: Sequence[int]
    stamp_every: float
    n_stamps: int
    seed: int = 0

    def __post_init__(self) -> None:
        periods, sizes = _as_list("periods", self.periods), _as_list("batch_sizes", self.batch_sizes)
        if len(periods) != len(sizes):
            raise InputError(f"periods has {len(periods)} clients and batch_sizes {len(sizes)}")
        for m, (period, size) in enumerate(zip(periods, sizes, strict=True)):
            as_positive(f"periods[{m}]", period)
            as_whole(f"batch_sizes[{m}]", size, at_least=1)
        as_whole("seed", self.seed, at_least=0)
        end = as_positive("stamp_every", self.stamp_every) * as_whole("n_stamps", self.n_stamps, at_least=1)
        if min(periods) > end + 1e-9:
            raise InputError(
                f"no client uploads before the end of the last round: the shortest period is {min(periods)} seconds, "
                f"and {self.n_stamps} rounds of {self.stamp_every} seconds end after {end}"
            )
        object.__setattr__(self, "periods", tuple(periods))
        object.__setattr__(self, "batch_sizes", tuple(sizes))


def _as_list(name: str, values: Any) -> list[Any]:
    try:
        result = list(values)
    except TypeError:
        result = []
    if not result:
        raise InputError(f"{name} must hold a number for each client; received {values!r}")
    return result


@dataclass
class Steps:
    """How far an asynchronous training is: the steps that each client has done, and the rounds."""

    of_clients: list[int]
    n_stamps: int = 0


def asynchronous_rounds(
    federation: Federation, plan: AsynchronousPlan, clock: Clock, steps: Steps | None = None
) -> Iterator[Moment]:
    """Train, yielding after each round that is recorded; whoever iterates decides when to stop.

    Round k ends at k * `stamp_every` seconds, and training with round `n_stamps`. Rounds that end before the first
    upload of anybody are neither recorded nor yielded.

    `steps` is brought up to date: given again, with the federation's state at that time, training goes on from there.
    Whoever reads both while clients are threads holds `federation.lock`, and finds them after whole steps.
    """
    steps = steps or Steps([0] * len(federation.clients))
    _check_numbers(len(federation.clients), plan, steps)

    def act(m: int, step: int) -> None:
        client = federation.clients[m]
        batch = batch_of_client(m, step, federation.n_train, plan.batch_sizes[m], plan.seed)
        # The first upload of a client covers all samples.
        samples = np.arange(federation.n_train) if step == 0 else batch
        embeddings = client.embed(samples)
        # One at a time, each as a whole: whoever saves a state must not find a model that is ahead of its count.
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
            now, is_recorded = clock.now(), any(steps.of_clients)
            if is_recorded:
                federation.tape.stamp(federation.offset(federation.n_train), now)
            steps.n_stamps = k
        if is_recorded:
            yield Moment(k, now)
        if k >= plan.n_stamps:
            return


def _check_numbers(n_clients: int, plan: AsynchronousPlan, steps: Steps) -> None:
    if len(plan.periods) != n_clients:
        raise InputError(f"there are {n_clients} clients; the plan has {len(plan.periods)}")
    if len(steps.of_clients) != n_clients:
        raise InputError(f"there are {n_clients} clients; the steps are of {len(steps.of_clients)}")
