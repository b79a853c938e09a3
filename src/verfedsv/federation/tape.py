"""What the server records of a training, if anything."""

from __future__ import annotations

from collections.abc import Mapping

from verfedsv.arguments import as_whole
from verfedsv.losses import Array, Floats
from verfedsv.transcript import Recorder


class Tape:
    """Writes to a recorder; the first `n_skipped` records are taken to be there already.

    A training that was killed goes on from its last checkpoint, and does again what came after; the transcript, which
    loses nothing, already has it. `n_records` counts all records of the training, from those before this tape on.
    """

    def __init__(self, recorder: Recorder | None, n_skipped: int = 0, *, n_records: int = 0) -> None:
        self._recorder, self._n_skipped = recorder, as_whole("n_skipped", n_skipped, at_least=0)
        self.n_records = n_records

    def log(self, batch: Array, embeddings: Mapping[str, Floats], offset: Floats | None) -> None:
        """Record a synchronous round."""
        recorder = self._next()
        if recorder is not None:
            recorder.log(batch, embeddings, offset)

    def update(self, client: str, samples: Array, embeddings: Floats, time: float) -> None:
        """Record an asynchronous upload."""
        recorder = self._next()
        if recorder is not None:
            recorder.update(client, samples, embeddings, time=time)

    def stamp(self, offset: Floats | None, time: float) -> None:
        """Record a time of valuation."""
        recorder = self._next()
        if recorder is not None:
            recorder.stamp(offset, time=time)

    def sync(self) -> None:
        """Bring what was recorded to the disk."""
        if self._recorder is not None:
            self._recorder.sync()

    def _next(self) -> Recorder | None:
        self.n_records += 1
        if self._n_skipped:
            self._n_skipped -= 1
            return None
        return self._recorder
