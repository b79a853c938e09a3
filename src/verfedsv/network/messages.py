"""The messages of a network beside those of training: a connection's beginning and end, the terms, files for clients.

    client: Hello                               server: Welcome, or the connection is refused with a reason
    server: Begin(terms)                        client: Done, with a new model
    server: Deliver(name, content)              client: Done
    server: End(reason)

In between are the messages of training (`federation.messages`), and before it those of an alignment, which ask for what
the methods of `alignment.Party` do:

    Introduce                                   Introduction(how many ids, and how they are written)
    StartAlignment(value, parties, sizes)       Done
    OwnPoints(part)                             Points
    Blind(owner, part, points)                  Done
    Blinded(owner, part)                        Points
    BeginOpening(n_common)                      Done
    Open(owner, part, positions)                Positions
    Collect(part, positions)                    Done
    Finish                                      Checksum
    Agree(parties, checksums)                   Done
    CheckAligned(value)                         Checksum    of ids that are aligned already
"""

from __future__ import annotations

from dataclasses import dataclass

from verfedsv.arrays import Array
from verfedsv.federation.messages import Message

PROTOCOL = 3
"""The version of the protocol that this package speaks; parties with another one are refused."""


@dataclass(eq=False, slots=True)
class Hello(Message):
    """The first message of a client; see consortium.proto for its fields."""

    protocol: int
    version: str
    name: str
    session: str
    time: float
    purpose: str
    start: str
    alignment: str
    training: str


@dataclass(eq=False, slots=True)
class Welcome(Message):
    """The server's answer to Hello; `about` says in words what will be trained, and `training` is its name."""

    protocol: int
    version: str
    name: str
    time: float
    about: str
    training: str


@dataclass(eq=False, slots=True)
class End(Message):
    """The server ends the connection; if the training is not finished, the client may come back."""

    reason: str
    is_finished: bool


@dataclass(frozen=True)
class Learning:
    """How a client learns: its model, with embeddings of `width` numbers, the optimiser, the scale of its columns."""

    model: str
    hidden: int
    width: int
    seed: int
    rate: float
    decay: str
    optimizer: str
    momentum: float
    scale: str


@dataclass(eq=False, slots=True)
class Begin(Message):
    """Begin a training, named `start`, anew; what was learnt before is forgotten, but for checkpoints.

    `samples` are those of the aligned samples that are used, in this order, and `is_test` marks, (samples,), those that
    nobody trains on. `n_planned` rounds are planned.
    """

    start: str
    samples: Array
    is_test: Array
    learning: Learning
    n_planned: int


DELIVERED = "value.json", "uploads.extract", "statement.json"
"""The files that a client may get."""


@dataclass(eq=False, slots=True)
class Deliver(Message):
    """A file for the client, one of `DELIVERED`."""

    name: str
    content: bytes


@dataclass(eq=False, slots=True)
class Introduce(Message):
    """Say how many ids there are; `purpose` is train or predict."""

    purpose: str


@dataclass(eq=False, slots=True)
class Introduction(Message):
    """The numbers of a `Spelling`, in the order of its fields."""

    numbers: list[int]


@dataclass(eq=False, slots=True)
class StartAlignment(Message):
    """Begin a session: its public value, the parties in the order of the ring, and how many ids each has."""

    value: bytes
    parties: list[str]
    sizes: list[int]
    part_size: int


@dataclass(eq=False, slots=True)
class OwnPoints(Message):
    """Send a part of one's own ids, blinded and shuffled."""

    part: int


@dataclass(eq=False, slots=True)
class Blind(Message):
    """Blind a part of another party's set; points are (points, 32)."""

    owner: str
    part: int
    points: Array


@dataclass(eq=False, slots=True)
class Blinded(Message):
    """Send a part of a set that was blinded, in the order in which it was shuffled."""

    owner: str
    part: int


@dataclass(eq=False, slots=True)
class Points(Message):
    """Blinded points, (points, 32)."""

    points: Array


@dataclass(eq=False, slots=True)
class BeginOpening(Message):
    """So many ids are common; nothing is blinded any more."""

    n_common: int


@dataclass(eq=False, slots=True)
class Open(Message):
    """Trace positions in a set that was shuffled back to those before."""

    owner: str
    part: int
    positions: Array


@dataclass(eq=False, slots=True)
class Positions(Message):
    """Positions before the shuffle."""

    positions: Array


@dataclass(eq=False, slots=True)
class Collect(Message):
    """Positions in one's own set, in the common order."""

    part: int
    positions: Array


@dataclass(eq=False, slots=True)
class Finish(Message):
    """Send the checksum of the ids in the common order."""


@dataclass(eq=False, slots=True)
class Checksum(Message):
    """The checksum of ids in their order."""

    checksum: str


@dataclass(eq=False, slots=True)
class Agree(Message):
    """The checksums of all parties; if they are equal, the alignment counts."""

    parties: list[str]
    checksums: list[str]


@dataclass(eq=False, slots=True)
class CheckAligned(Message):
    """Send the checksum of the ids in the order of the file, which is said to be common; `value` is public."""

    value: bytes


AlignmentRequest = (
    Introduce
    | StartAlignment
    | OwnPoints
    | Blind
    | Blinded
    | BeginOpening
    | Open
    | Collect
    | Finish
    | Agree
    | CheckAligned
)
AlignmentAnswer = Introduction | Points | Positions | Checksum
