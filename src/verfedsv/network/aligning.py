"""An alignment of ids over messages: a party on another machine, and how that one answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from verfedsv.alignment import Party, Session, Spelling, aligned_checksum
from verfedsv.alignment.points import Points as PointArray
from verfedsv.alignment.shuffles import Rows
from verfedsv.errors import AnswerError, InputError
from verfedsv.federation.messages import Done, Message
from verfedsv.network import messages as net

_PARTY_BYTES = 45
"""Bytes on the disk of a party for each id of all parties, while ids are aligned."""


class RemoteParty:
    """A party on another machine; a `Participant` of `align`.

    `ask` sends a message and returns the answer, or raises InputError. One message at a time is under way; a party
    uses all of its cores for each.
    """

    def __init__(self, name: str, ask: Callable[[Message], Any], numbers: count[int], purpose: str = "train") -> None:
        self.name, self._purpose = name, purpose
        self._ask_party, self._numbers, self._lock = ask, numbers, Lock()

    def introduce(self) -> Spelling:
        numbers = self._ask(net.Introduction, net.Introduce, self._purpose).numbers
        try:
            return Spelling(*numbers)
        except TypeError:
            raise AnswerError("it did not say how its ids are written") from None

    def begin(self, session: Session) -> None:
        about = session.value, [*session.sizes], [*session.sizes.values()], session.part_size
        self._ask(Done, net.StartAlignment, *about)

    def own_points(self, part: int) -> PointArray:
        return self._points(net.OwnPoints, part)

    def blind(self, owner: str, part: int, points: PointArray) -> None:
        self._ask(Done, net.Blind, owner, part, points)

    def blinded(self, owner: str, part: int) -> PointArray:
        return self._points(net.Blinded, owner, part)

    def begin_opening(self, n_common: int) -> None:
        self._ask(Done, net.BeginOpening, n_common)

    def open(self, owner: str, part: int, positions: Rows) -> Rows:
        found = self._ask(net.Positions, net.Open, owner, part, positions).positions
        if found.dtype != np.uint32:
            raise AnswerError(f"positions must be whole numbers; received {found.dtype}")
        return np.asarray(found)

    def collect(self, part: int, positions: Rows) -> None:
        self._ask(Done, net.Collect, part, positions)

    def finish(self) -> str:
        return str(self._ask(net.Checksum, net.Finish).checksum)

    def agree(self, checksums: Mapping[str, str]) -> None:
        self._ask(Done, net.Agree, [*checksums], [*checksums.values()])

    def check_aligned(self, value: bytes) -> str:
        """Return the checksum of ids that are said to be aligned already."""
        return str(self._ask(net.Checksum, net.CheckAligned, value).checksum)

    def _points(self, kind: type[Message], *content: Any) -> PointArray:
        points = self._ask(net.Points, kind, *content).points
        if points.dtype != np.uint8:
            raise AnswerError(f"points must be bytes; received {points.dtype}")
        return np.asarray(points)

    def _ask(self, answer: type[Message], kind: type[Message], *content: Any) -> Any:
        with self._lock:
            found = self._ask_party(kind(self.name, 0, next(self._numbers), *content))
        if not isinstance(found, answer):
            raise AnswerError(f"{kind.__name__} was answered with {type(found).__name__}")
        return found


class Blinding:
    """How many points a party has multiplied in an alignment, of how many."""

    def __init__(self) -> None:
        self.n_done = self.n_all = 0

    def count(self, message: object, answer: object) -> bool:
        """Count what a message asked for; return whether it was of an alignment."""
        match message, answer:
            case net.StartAlignment(), Done():
                self.n_done, self.n_all = 0, sum(message.sizes)
            case (net.OwnPoints(), net.Points(points=points)) | (net.Blind(points=points), Done()):
                self.n_done = min(self.n_done + len(points), self.n_all)
        return type(message) in _CALLS


def check_room(folder: Path, n_ids: int, size: int = _PARTY_BYTES) -> None:
    """Raise InputError if so many ids, of `size` bytes each, take more than half of the free disk of a folder."""
    if n_ids * size > shutil.disk_usage(folder).free // 2:
        raise InputError(f"an alignment of {n_ids:,} ids would take more than half of the free disk")


def answer_for(party: Party, message: Message) -> Message:
    """Do what a message asks a party for; raise InputError if it cannot be done."""
    try:
        kind, content = _CALLS[type(message)](party, message)
    except OSError as error:
        why = f"a file of the alignment cannot be used: {error.strerror}"
        party.close(why)
        raise InputError(why) from error
    return kind(message.client, message.round, message.sequence, *content)


def _start(party: Party, message: net.StartAlignment) -> None:
    if len({*message.parties}) < len(message.parties) or len(message.parties) != len(message.sizes):
        raise InputError("an alignment must have different parties, with a number of ids each")
    sizes = dict(zip(message.parties, message.sizes, strict=True))
    party.begin(Session(message.value, sizes, message.part_size))


_Call = Callable[[Party, Any], tuple[type[Message], tuple[Any, ...]]]


def _done(call: Callable[[Party, Any], None]) -> _Call:
    """Return a call that is answered with Done."""

    def carry_out(party: Party, message: Any) -> tuple[type[Message], tuple[Any, ...]]:
        call(party, message)
        return Done, ()

    return carry_out


_CALLS: Mapping[type[Message], _Call] = {
    net.Introduce: lambda party, _: (net.Introduction, ([*astuple(party.introduce())],)),
    net.StartAlignment: _done(_start),
    net.OwnPoints: lambda party, message: (net.Points, (party.own_points(message.part),)),
    net.Blind: _done(lambda party, message: party.blind(message.owner, message.part, message.points)),
    net.Blinded: lambda party, message: (net.Points, (party.blinded(message.owner, message.part),)),
    net.BeginOpening: _done(lambda party, message: party.begin_opening(message.n_common)),
    net.Open: lambda party, message: (
        net.Positions,
        (party.open(message.owner, message.part, message.positions),),
    ),
    net.Collect: _done(lambda party, message: party.collect(message.part, message.positions)),
    net.Finish: lambda party, _: (net.Checksum, (party.finish(),)),
    net.Agree: _done(lambda party, message: party.agree(dict(zip(message.parties, message.checksums, strict=False)))),
    net.CheckAligned: lambda party, message: (net.Checksum, (aligned_checksum(party.ids.values, message.value),)),
}
