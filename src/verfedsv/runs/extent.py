"""How far a training is: rounds recorded and planned, and whether it is running."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousSchedule
from verfedsv.federation.optimizers import OPTIMIZERS
from verfedsv.federation.roster import Roster
from verfedsv.head_layers import describe_layers, mlp_layers
from verfedsv.runs.config import Config, TrainingSection
from verfedsv.texts import count
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


def planned_roster(config: Config, clients: Sequence[str], n_train: int) -> Roster:
    """Return who takes part in which round; raise InputError if that cannot be carried out."""
    stays = {client.name: client.stay for client in config.client if client.stay is not None}
    section = config.training
    if stays and skipped_rounds(config, clients):
        raise InputError(
            f"client {min(stays)!r} joins, leaves or misses rounds, so a client that takes part from the start must "
            f"upload in the first round, which ends after {section.stamp_every:g} s; set a shorter period for one of "
            "them, or a longer stamp_every"
        )
    return Roster(tuple(clients), planned_rounds(section, n_train), stays, section.seed)


def skipped_rounds(config: Config, clients: Sequence[str]) -> int:
    """Return how many rounds end before the first upload: nothing is recorded in them.

    That is after the shortest period of a client that takes part from the start.
    """
    section = config.training
    if section.mode == "synchronous":
        return 0
    own = {client.name: client.period for client in config.client}
    later = {client.name for client in config.client if client.joins_after}
    shortest = min(own.get(name) or section.period for name in clients if name not in later)
    n_ended = math.ceil(shortest / section.stamp_every - 1e-9) - 1
    return max(0, min(n_ended, section.n_stamps - 1))


def agreed_step(config: Config) -> dict[str, str | float]:
    """Return how clients are to train, as it is recorded; only what differs from plain gradient descent is added.

    Rates of single clients and weights of classes are JSON, since names may contain anything.
    """
    section = config.training
    kind = OPTIMIZERS[section.optimizer].kind
    step: dict[str, str | float] = {"kind": kind, "rate": section.rate, "decay": section.decay}
    if section.optimizer == "momentum":
        step["momentum"] = section.momentum
    if config.model.head == "mlp":
        step |= {"optimizer of the head": config.head.optimizer, "rate of the head": config.head.rate}
    if rates := {client.name: client.rate for client in config.client if client.rate is not None}:
        step["rates of clients"] = json.dumps(rates, ensure_ascii=False)
    if section.class_weights is not None:
        weights = section.class_weights
        step["class weights"] = weights if isinstance(weights, str) else json.dumps(weights, ensure_ascii=False)
    if section.patience is not None:
        step |= {"patience": section.patience, "min improvement": section.min_improvement}
        step["evaluate every"] = section.evaluate_every
    return step


def agreed_by(config: Config, clients: Sequence[str], n_train: int) -> dict[str, Any]:
    """Return what a run records as agreed, as arguments of the recorder."""
    section = config.training
    return {
        "valuation": config.valuation.settings,
        "step": agreed_step(config),
        "n_planned": planned_rounds(section, n_train) - skipped_rounds(config, clients),
        "intercept": section.intercept,
    }


def contradictions(config: Config, about: Description) -> Iterator[str]:
    """Yield how a configuration contradicts a transcript, as far as both state it: 'n_planned is 1 and not 2'."""
    yield from _other_head(config, about)
    own = {"mode": config.training.mode, **agreed_by(config, about.clients, about.n_samples)}
    for name in ("mode", "step", "n_planned", "intercept"):
        if getattr(about, name) not in (None, own[name]):
            yield f"{name} is {own[name]} and not {getattr(about, name)}"
    # The transcript describes who takes part from the start.
    named = {client.name for client in config.client if not client.joins_after}
    later = {client.name for client in config.client} - named
    unknown = (named - {*about.clients, config.data.label_client}) | (later & {*about.clients})
    if not config.data.is_split:
        unknown |= {*about.clients} - named
    if unknown:
        yield f"client {min(unknown)!r} is in only one of the two, or joins later in only one"
    loss = config.used_loss
    if loss not in ("auto", about.loss):
        yield f"loss is {loss} and not {about.loss}"


def _other_head(config: Config, about: Description) -> Iterator[str]:
    """Yield how the head of a configuration is another than that of a transcript."""
    head, section = about.head, config.model
    if (section.head == "sum") != (head.kind == "sum"):
        yield f"head is {section.head} and not {'sum' if head.kind == 'sum' else 'mlp'}"
    if section.head == "sum" or head.kind == "sum":
        return
    # Those that join later, too, and without the holder of the labels, if that uploads nothing.
    members = {*about.clients, *(client.name for client in config.client if client.joins_after)}
    if odd := members ^ {*head.clients}:
        yield f"client {min(odd)!r} is known to only one of the configuration and the head"
    own = {client.name: client.width for client in config.client}
    widths = [own.get(name) or section.width for name in head.clients]
    if widths != [*head.widths]:
        yield f"width of the head is {widths} and not {[*head.widths]}"
    if head.layers is None:
        yield "head is mlp and not a function of another kind, of which no layers are recorded"
    elif about.n_classes is not None:  # as in all trainings with a loss of this package
        layers = mlp_layers(sum(widths), config.head.hidden, about.n_classes, config.head.activation)
        if head.layers != layers:
            yield f"head is {describe_layers(layers)} and not {describe_layers(head.layers)}"
