"""Whether a transcript is as it was written: its hashes are checked, and the rules of what is valid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.attendance import describe_attendance
from verfedsv.transcript.chain import Chain
from verfedsv.transcript.description import Description
from verfedsv.transcript.format import Kind
from verfedsv.transcript.meaning import Roster, Rules
from verfedsv.transcript.rows import Rows
from verfedsv.transcript.streams import SegmentReader

_BETWEEN_REPORTS = 256
"""Messages verified between two calls of `progress`: some 20 ms."""


@dataclass
class Verified:
    """What was verified of a transcript: `n_entries` entries of the chain that begins at `origin`, up to `link`.

    They hold `n_records` records, of which `n_rounds` end a round, and `n_uploads` uploads of `n_embeddings` samples in
    total by client; `absences` counts the rounds from which a client was declared absent, `outside` those in which it
    was not a member; `first_rounds` and `last_rounds` are the first and the last in which it took part, from 1.
    `roster` and `last_time` are those after the last record. `has_offset` tells whether the server adds an offset in
    any round, `offset_varies` whether that differs between samples, which makes it more than an intercept.
    """

    origin: bytes
    link: bytes
    roster: Roster
    last_time: float = -math.inf
    n_entries: int = 0
    n_records: int = 0
    n_rounds: int = 0
    n_uploads: Counter[str] = field(default_factory=Counter)
    n_embeddings: Counter[str] = field(default_factory=Counter)
    absences: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    first_rounds: dict[str, int] = field(default_factory=dict)
    last_rounds: dict[str, int] = field(default_factory=dict)
    has_offset: bool = False
    offset_varies: bool = False

    def count(self, rows: Rows, n_classes: int, roster: Roster) -> None:
        """Add a record, after which the roster is that."""
        self.n_records += 1
        for name in roster.clients[len(self.roster.clients) :]:  # who joins now was not there before
            self.outside[name] += self.n_rounds
        self.roster = roster
        if rows.kinds[-1] == "stamp":
            self.n_rounds += 1
            if len(roster.members) < len(roster.clients):
                self.outside.update(name for name in roster.clients if name not in roster.members)
            there = roster.members.difference(rows.absent) if rows.absent else roster.members
            for name in there:
                self.last_rounds[name] = self.n_rounds
            if len(self.first_rounds) < len(roster.clients):
                for name in there:
                    self.first_rounds.setdefault(name, self.n_rounds)
        for row in rows.uploads:
            self.n_uploads[str(rows.clients[row])] += 1
            self.n_embeddings[str(rows.clients[row])] += rows.samples.lengths[row]
        self.absences.update(map(str, rows.absent))
        if rows.offset is not None:
            self.has_offset = True
            self.offset_varies |= bool((rows.offset.reshape(-1, n_classes) != rows.offset[:n_classes]).any())

    def n_missed(self, client: str) -> int:
        """Return in how many rounds a client took no part."""
        return self.absences[client] + self.outside[client]

    def attendance(self, client: str) -> str:
        """Return in which rounds a client took part, in words; empty if in all."""
        ends = self.first_rounds.get(client), self.last_rounds.get(client)
        return describe_attendance(*ends, self.n_missed(client), self.n_rounds)

    def attendances(self) -> dict[str, str]:
        """Return in which rounds each client took part that missed any, in words."""
        said = {name: self.attendance(name) for name in self.roster.clients}
        return {name: text for name, text in said.items() if text}

    def is_start_of(self, chain: Chain, origin: bytes) -> bool:
        """Return whether a chain with that origin begins with these entries."""
        if self.origin != origin or not 0 < self.n_entries <= len(chain):
            return False
        return chain.link(self.n_entries - 1) == self.link


def verify(
    reader: SegmentReader,
    description: Description,
    origin: bytes,
    check_tensor: Callable[[str], object],
    since: Verified | None,
    most: int | None,
    progress: Callable[[int, int], None],
) -> Verified:
    """Return what is verified of a transcript after its next `most` messages; see `Transcript.verify_more`.

    `check_tensor` raises TranscriptError if the parameter of the head with that hash is not as it was written.
    """
    checked = set[str]()

    def check_tensors(hashes: Iterable[str]) -> None:
        for digest in {*hashes} - checked:
            check_tensor(digest)
            checked.add(digest)

    chain = reader.chain
    if since is not None and since.is_start_of(chain, origin):
        found = deepcopy(since)
    else:
        found = Verified(origin, origin, Roster.of_founders(description.clients))
        check_tensors(description.head.state)
    rules = Rules(description, found.roster, found.last_time)
    last = len(chain) if most is None else min(len(chain), found.n_entries + most)
    for index in range(found.n_entries, last):
        where = f"round {found.n_rounds + 1}" if chain.kind(index) in fmt.RECORDS else "the beginning or end"
        entry = reader.entry(index, where)
        if entry.rows is not None:
            _check_digests(entry.rows, where)
        if entry.kind is not Kind.START:
            found.link = fmt.next_link(found.link, entry.message, entry.ranges)
        if found.link != entry.link:
            raise TranscriptError(f"the transcript was changed: {_locate(chain, index, where)}")
        if entry.rows is not None:
            rules.check(entry.kind, entry.rows, where)
            check_tensors(digest.hex() for digest in entry.rows.state or ())
            found.count(entry.rows, description.n_classes or 1, rules.roster)
        if index % _BETWEEN_REPORTS == 0:
            progress(index, len(chain))
    found.n_entries = last
    found.last_time = -math.inf if rules.last_time is None else rules.last_time
    return found


def _locate(chain: Chain, index: int, where: str) -> str:
    """Return which file was changed, and where."""
    segment, *_ = chain.extent(index)
    if index < 2:
        return f"{fmt.DESCRIPTION}, {fmt.LABELS} or the head of {fmt.uploads_file(segment)}"
    return f"{where} of {fmt.uploads_file(segment)}, or its entry in {fmt.chain_file(segment)}"


def _check_digests(rows: Rows, where: str) -> None:
    """Raise TranscriptError at an upload whose digest does not match."""
    found = fmt.digests_of((rows.samples.row(row), rows.embeddings.row(row)) for row in rows.uploads)
    for row, digest in zip(rows.uploads, found, strict=True):
        if digest != rows.digest(row):
            raise TranscriptError(f"the transcript was changed: {where}, client {rows.clients[row]!r}")
