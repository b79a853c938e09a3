"""Checkpoints of a run: when they are written, and what is kept with them."""

from __future__ import annotations

import time

from verfedsv.federation import Training
from verfedsv.runs.live import LiveShares

SAVE_COST = 20
"""A checkpoint is written when training has run for this many times as long as the last one took to write."""


class Saver:
    """Writes checkpoints, at a small fraction of the training time, and restores the last one."""

    def __init__(self, training: Training, live: LiveShares) -> None:
        self._training, self._live = training, live
        self._took, self._last = 0.5, time.monotonic()

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of this training."""
        return self._training.server.is_saved

    def restore(self) -> None:
        """Restore the last checkpoint, if there is one."""
        kept = self._training.restore({"live": self._live.values()})
        if kept is not None:
            self._live.restore(kept["live"])

    def is_due(self) -> bool:
        """Return whether it is time for another one."""
        return time.monotonic() - self._last > SAVE_COST * self._took

    def save(self) -> None:
        """Write the training as it is now."""
        begin = time.monotonic()
        self._training.save({"live": self._live.values()})
        self._last = time.monotonic()
        self._took = self._last - begin
