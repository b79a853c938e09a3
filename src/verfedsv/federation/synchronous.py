"""FedSGD: in each round every client uploads the same batch, and all learn from the same gradients (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator

from verfedsv.federation.schedules import SynchronousSchedule, batch_of_round
from verfedsv.federation.training import Training


def synchronous_rounds(training: Training, schedule: SynchronousSchedule) -> Iterator[int]:
    """Train from the server's current round, yielding the number of each round; the caller may stop at any."""
    server = training.server
    roster = schedule.roster
    while server.n_rounds < schedule.n_rounds:
        absent = frozenset[str]()
        if roster is not None:
            training.set_members(roster.members(server.n_rounds + 1))
            absent = roster.missing(server.n_rounds + 1)
        batch = batch_of_round(server.n_rounds, server.n_train, schedule.batch_size, schedule.seed)
        training.train_round(batch, absent)
        yield server.n_rounds
