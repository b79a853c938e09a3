"""How far a training is: rounds recorded and planned, and whether it is running."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousSchedule
from verfedsv.runs.config import Config, TrainingSection
from verfedsv.shapley.result import count
from verfedsv.transcript import Description


@dataclass(frozen=True)
class Extent:
    """The numbers of recorded and planned rounds; `n_planned` is None without a plan.

    `is_running` is whether a recorder is open on the transcript, here or in another process; always False on Windows.
    """

    n_recorded: int
    n_planned: int | None
    is_running: bool

    @property
    def is_unfinished(self) -> bool:
        """Whether fewer rounds were recorded than planned; False without a plan."""
        return self.n_planned is not None and self.n_recorded < self.n_planned

    @property
    def is_finished(self) -> bool | None:
        """Whether all planned rounds are recorded and nothing is running; None if nothing runs and no plan is known."""
        if self.is_running:
            return False
        return None if self.n_planned is None else not self.is_unfinished

    def __str__(self) -> str:
        """Return the rounds in words.

        >>> str(Extent(442, 4000, False)), str(Extent(1, None, False))
        ('442 of 4,000 rounds', '1 round')
        """
        if self.n_planned is None or not self.is_unfinished:
            return count(self.n_recorded, "round")
        return f"{self.n_recorded:,} of {count(self.n_planned, 'round')}"


def refuse_running(extent: Extent, what: str) -> None:
    """Raise InputError if a training is still running; `what` is not done then, such as 'settled'."""
    if extent.is_running:
        raise InputError(
            f"the training is still running, {extent} so far, so it is not {what} yet: wait until it ends, stop it, "
            "or close its recorder"
        )


def planned_rounds(section: TrainingSection, n_train: int) -> int:
    """Return the number of rounds of a complete training on that many samples."""
    if section.mode == "asynchronous":
        return section.n_stamps
    if section.rounds is not None:
        return section.rounds
    return SynchronousSchedule.of_epochs(section.epochs or 1, section.batch_size, n_train).n_rounds


def skipped_rounds(config: Config, clients: Sequence[str]) -> int:
    """Return how many rounds end before the shortest period of a client: nothing is uploaded or recorded in them."""
    section = config.training
    if section.mode == "synchronous":
        return 0
    own = {client.name: client.period for client in config.client}
    shortest = min(own.get(name) or section.period for name in clients)
    n_ended = math.ceil(shortest / section.stamp_every - 1e-9) - 1
    return max(0, min(n_ended, section.n_stamps - 1))


def agreed_by(config: Config, clients: Sequence[str], n_train: int) -> dict[str, Any]:
    """Return what a run records as agreed, as arguments of the recorder."""
    section = config.training
    return {
        "valuation": config.valuation.settings,
        "step": {"kind": "gradient descent", "rate": section.rate, "decay": section.decay},
        "n_planned": planned_rounds(section, n_train) - skipped_rounds(config, clients),
        "intercept": section.intercept,
    }


def contradictions(config: Config, about: Description) -> Iterator[str]:
    """Yield how a configuration contradicts a transcript, as far as both state it: 'n_planned is 1 and not 2'."""
    own = {"mode": config.training.mode, **agreed_by(config, about.clients, about.n_samples)}
    for name in ("mode", "step", "n_planned", "intercept"):
        if getattr(about, name) not in (None, own[name]):
            yield f"{name} is {own[name]} and not {getattr(about, name)}"
    named = {client.name for client in config.client}
    unknown = named - {*about.clients, config.data.label_client}
    if not config.data.is_split:
        unknown |= {*about.clients} - named
    if unknown:
        yield f"client {min(unknown)!r} is in only one of the two"
    loss = config.used_loss
    if loss not in ("auto", about.loss):
        yield f"loss is {loss} and not {about.loss}"
