"""Who takes part in which round: clients that join later, leave, or miss rounds, as planned before a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from verfedsv.errors import InputError

_DRAWS = 0x6D697373
"""Keeps the draws of missed rounds apart from those of batches, which come from the same seed."""


class Fault(NamedTuple):
    """What is wrong with a stay: the setting, and why it cannot be carried out."""

    setting: str
    why: str


@dataclass(frozen=True)
class Stay:
    """The rounds of one client: those after `joins_after` up to `leaves_after`, None for the end of the training.

    `misses` are rounds in between that it misses: pairs of the first and the last, or a fraction to be drawn. Rounds
    count from 1. A client misses neither its first round nor its last: it would join later, or leave earlier.
    """

    joins_after: int = 0
    leaves_after: int | None = None
    misses: tuple[tuple[int, int], ...] | float = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The missed rounds that are not drawn."""
        return () if isinstance(self.misses, float) else self.misses

    def includes(self, number: int) -> bool:
        """Return whether the client is a member in a round, even if it misses that one."""
        return self.joins_after < number and (self.leaves_after is None or number <= self.leaves_after)

    def misses_for_certain(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def find_fault(self, n_rounds: int | None = None) -> Fault | None:
        """Return what cannot be carried out, or has no effect, in that many rounds, None if they are not known yet."""
        if self.leaves_after is not None and self.leaves_after <= self.joins_after:
            return Fault(
                "leaves_after",
                f"must be more than joins_after, {self.joins_after:,}, or the client never takes part; received "
                f"{self.leaves_after:,}",
            )
        for setting, number in (("joins_after", self.joins_after), ("leaves_after", self.leaves_after)):
            if n_rounds is not None and number is not None and number >= max(1, n_rounds):
                what = f"must be less than the number of rounds, {n_rounds:,}, to have an effect"
                return Fault(setting, f"{what}; received {number:,}")
        first, last = self.joins_after + 1, n_rounds if self.leaves_after is None else self.leaves_after
        if isinstance(self.misses, float) and last is not None and last - first < 2:
            return Fault("misses", f"has no effect, as no round lies between the client's first, {first:,}, and last")
        for begin, end in self.ranges:
            if end < begin:
                return Fault("misses", f"must be pairs of a first and a last round; received {[begin, end]}")
            if begin <= first:
                what = f"must begin after the client's first round, {first:,}"
                return Fault("misses", f"{what}; received {[begin, end]}. To begin later, set joins_after = {end}")
            if last is not None and end >= last:
                what = f"must end before the client's last round, {last:,}"
                return Fault(
                    "misses", f"{what}; received {[begin, end]}. To end earlier, set leaves_after = {begin - 1}"
                )
        return None


@dataclass(frozen=True)
class Roster:
    """The stays of those of the `clients` that do not take part in all of `n_rounds` rounds; the seed is of draws."""

    clients: tuple[str, ...]
    n_rounds: int
    stays: Mapping[str, Stay] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, stay in self.stays.items():
            if name not in self.clients:
                raise InputError(f"there is no client {name!r}; the clients are {', '.join(self.clients)}")
            if (fault := stay.find_fault(self.n_rounds)) is not None:
                raise InputError(f"client {name!r}: {fault.setting} {fault.why}")
        self._check_every_round()

    def _check_every_round(self) -> None:
        """Raise InputError if nobody takes part in some round: in the first, or after somebody leaves or is away."""
        stays = [self.stays.get(name, Stay()) for name in self.clients]
        begins = {1, *(stay.leaves_after + 1 for stay in stays if stay.leaves_after is not None)}
        begins |= {first for stay in stays for first, _ in stay.ranges}
        for number in sorted(begins):
            if all(not stay.includes(number) or stay.misses_for_certain(number) for stay in stays):
                raise InputError(
                    f"nobody takes part in round {number:,}, and every round needs at least one client; change "
                    "joins_after, leaves_after or misses of one of them"
                )

    @property
    def founders(self) -> tuple[str, ...]:
        """Those that take part from the start."""
        return self.members(1)

    def members(self, number: int) -> tuple[str, ...]:
        """Return who has joined and not left in a round."""
        return tuple(name for name in self.clients if name not in self.stays or self.stays[name].includes(number))

    def missing(self, number: int) -> frozenset[str]:
        """Return the members that miss a round.

        A drawn miss does not count where nobody else would be left: every round needs at least one client.
        """
        if not self.stays:
            return frozenset()
        members = self.members(number)
        missing = {name for name in members if name in self.stays and self.stays[name].misses_for_certain(number)}
        for name in members:
            if len(missing) < len(members) - 1 and self._draw(name, number):
                missing.add(name)
        return frozenset(missing)

    def unchanged_since(self, number: int, *, counts_misses: bool = False) -> int:
        """Return the first of the rounds up to this one in which the members are the same.

        With `counts_misses`, those that miss a round are no members in it.
        """
        last = [each for stay in self.stays.values() for each in (stay.joins_after, stay.leaves_after or 0)]
        begin = max((each + 1 for each in last if each < number), default=1)
        if not counts_misses:
            return begin
        missing = self.missing(number)
        while number > begin and self.missing(number - 1) == missing:
            number -= 1
        return number

    def _draw(self, name: str, number: int) -> bool:
        """Return whether a client misses a round by chance: a function of the seed, for a training that resumes."""
        stay = self.stays.get(name)
        if stay is None or not isinstance(stay.misses, float):
            return False
        last = self.n_rounds if stay.leaves_after is None else stay.leaves_after
        if number in (stay.joins_after + 1, last):
            return False
        rng = np.random.default_rng([self.seed, _DRAWS, self.clients.index(name), number])
        return bool(rng.random() < stay.misses)
