"""What one pass over the records of a transcript shows: who was absent, and the server's own part of the prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, listed, shortened
from verfedsv.transcript import Stamp, Transcript


@dataclass(frozen=True)
class Survey:
    """`absences` has the number of rounds from which each client was declared absent, for those that ever were.

    `has_offset` says whether the server has a part of its own in any round, `offset_varies` whether that differs
    between samples, which makes it more than an intercept.
    """

    n_rounds: int
    absences: Mapping[str, int]
    has_offset: bool
    offset_varies: bool

    @classmethod
    def of(cls, transcript: Transcript) -> Survey:
        n_rounds, absences, has_offset, offset_varies = 0, Counter[str](), False, False
        for record in transcript:
            if isinstance(record, Stamp):
                n_rounds += 1
                absences.update(record.absent)
                if (offset := record.offset) is not None:
                    has_offset = True
                    offset_varies |= offset.ndim == 2 and bool((offset != offset[:1]).any())
        return cls(n_rounds, absences, has_offset, offset_varies)

    def notes(self) -> Iterator[str]:
        """Yield what a reader of an audit should ask about: only the server's records show it."""
        if self.absences:
            most = sorted(self.absences.items(), key=lambda item: -item[1])
            who = listed([f"{shortened(name, LONGEST_NAME)!r} from {n_rounds:,}" for name, n_rounds in most], 10)
            yield f"declared absent, of {count(self.n_rounds, 'round')}: {who}; ask them whether they were"
        if self.offset_varies:
            yield (
                "the server's own part differs between samples: it is more than an intercept, and the value of each "
                "client's changes depends on it. Make sure that this was agreed"
            )
