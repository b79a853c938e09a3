"""What all parties of an alignment are told before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verfedsv.alignment.shuffles import MOST_ROWS
from verfedsv.errors import InputError
from verfedsv.texts import quoted

PART = 4096
"""Points in a message, 128 kB: some 140 ms of one core."""

_MOST_IN_PART = 2**16
_MOST_PARTIES = 1000
_VALUE = 32


@dataclass(frozen=True)
class Session:
    """One alignment: a public random value, the number of ids of each party, and the points in a message.

    The order of the parties is that of the ring: the set of a party passes those after it, then those from the first.
    """

    value: bytes
    sizes: Mapping[str, int]
    part_size: int = PART

    def __post_init__(self) -> None:
        if len(self.value) != _VALUE:
            raise InputError(f"the value of a session must have {_VALUE} bytes, and has {len(self.value):,}")
        if not 2 <= len(self.sizes) <= _MOST_PARTIES:
            raise InputError(f"an alignment is between 2 and {_MOST_PARTIES:,} parties; received {len(self.sizes):,}")
        for name, size in self.sizes.items():
            if not 1 <= size <= MOST_ROWS:
                raise InputError(f"{quoted([name])} must have 1 to {MOST_ROWS:,} ids; received {size:,}")
        if not 1 <= self.part_size <= _MOST_IN_PART:
            raise InputError(f"a part must have 1 to {_MOST_IN_PART:,} points; received {self.part_size:,}")

    def is_same_as(self, other: Session) -> bool:
        """Return whether the two are equal, the order of the parties included."""
        return self == other and [*self.sizes] == [*other.sizes]

    def ring(self, owner: str) -> list[str]:
        """Return the parties that the set of `owner` passes, in their order, `owner` first."""
        names = [*self.sizes]
        at = names.index(owner)
        return names[at:] + names[:at]

    def n_parts(self, n_rows: int) -> int:
        """Return in how many messages so many points or positions are sent."""
        return -(-n_rows // self.part_size)

    def rows(self, part: int, n_rows: int) -> slice:
        """Return which of the rows are in a part, counted from 0; raise InputError if there is no such part."""
        if not 0 <= part < self.n_parts(n_rows):
            raise InputError(f"there is no part {part:,}: {n_rows:,} rows are sent in {self.n_parts(n_rows):,} parts")
        return slice(part * self.part_size, min((part + 1) * self.part_size, n_rows))

    def rows_of(self, owner: str, part: int) -> slice:
        """Return which of the points of a party's set are in a part."""
        return self.rows(part, self.sizes[owner])
