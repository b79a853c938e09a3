"""`Replay`: the state of the server's table, from which a later valuation continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Floats
from verfedsv.transcript import Upload
from verfedsv.valuation.budget import Budget, HeadBudget
from verfedsv.valuation.chunks import Round, SampleFactors, State
from verfedsv.valuation.trainings import RecordedTraining


@dataclass(eq=False)
class Replay:
    """The server's table after some rounds, from which a later valuation continues without reading earlier records.

    `table` is (players, rows, width), zero at the start; `is_seen` marks the rows that were ever uploaded; `state` is
    that of the head. `next_record` is the number of the record to read next; `unstamped` are uploads that no time stamp
    has followed yet.
    """

    table: Floats
    is_seen: NDArray[np.bool_]
    budget: Budget | HeadBudget
    n_rounds: int = 0
    state: State = ()
    next_record: int = 1
    unstamped: list[Upload] = field(default_factory=list)

    @classmethod
    def begin(cls, training: RecordedTraining, rows: NDArray[np.intp], tolerance: float) -> Replay:
        """Return the table before the first round."""
        shape = len(training.clients) + 1, len(rows), training.width
        budget = Budget(tolerance) if training.head is None else HeadBudget(tolerance)
        return cls(np.zeros(shape), np.zeros(len(rows), bool), budget, state=training.first_state)

    def follow(self, rounds: Iterable[Round]) -> Iterator[Round]:
        """Yield rounds, counting them and marking the rows that clients uploaded."""
        server = len(self.table) - 1
        for each in rounds:
            for player, samples, _ in each.changes:
                if player != server and samples is not None:
                    self.is_seen[samples] = True
            self.n_rounds += 1
            yield each

    @property
    def factors(self) -> SampleFactors:
        """The factors of changes of all samples: the server's intercept is multiplied by 1."""
        return {len(self.table) - 1: np.ones((self.table.shape[1], 1))}

    def copy(self) -> Replay:
        """Return a copy that can be advanced independently."""
        own = replace(self, budget=replace(self.budget), unstamped=list(self.unstamped))
        own.table, own.is_seen = self.table.copy(), self.is_seen.copy()
        return own
