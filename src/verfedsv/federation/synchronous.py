"""FedSGD: in each round every client uploads the same batch, and all learn from the same gradients (appendix A)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verfedsv.arguments import as_positive, as_whole
from verfedsv.errors import InputError
from verfedsv.federation.federation import Federation, Moment
from verfedsv.federation.schedules import batch_of_round


@dataclass(frozen=True)
class SynchronousPlan:
    """How many rounds to train, on batches of which size; the paper's batch is no larger than any client's tau."""

    batch_size: int
    n_rounds: int
    seed: int = 0

    def __post_init__(self) -> None:
        as_whole("batch_size", self.batch_size, at_least=1)
        as_whole("n_rounds", self.n_rounds, at_least=1)
        as_whole("seed", self.seed, at_least=0)

    @classmethod
    def of_epochs(cls, n_epochs: float, batch_size: int, n_samples: int, seed: int = 0) -> SynchronousPlan:
        """Return the plan of a number of epochs."""
        n_batches = -(-as_whole("n_samples", n_samples, at_least=1) // as_whole("batch_size", batch_size, at_least=1))
        n_rounds = round(as_positive("n_epochs", n_epochs) * n_batches)
        if n_rounds < 1:
            raise InputError(
                f"epochs = {n_epochs:g} is less than one round of {batch_size:,} out of {n_samples:,} samples; allow "
                "more epochs, or say how many rounds"
            )
        return cls(batch_size, n_rounds, seed)


def synchronous_rounds(federation: Federation, plan: SynchronousPlan, first_round: int = 0) -> Iterator[Moment]:
    """Train, yielding after each round; whoever iterates decides when to stop."""
    for t in range(as_whole("first_round", first_round, at_least=0), plan.n_rounds):
        batch = batch_of_round(t, federation.n_train, plan.batch_size, plan.seed)
        uploads = {client.name: federation.upload(client, batch) for client in federation.clients}
        federation.tape.log(batch, uploads, federation.offset(len(batch)))
        for client in federation.clients:
            federation.learn(client, batch)
        yield Moment(t + 1, float(t + 1))
