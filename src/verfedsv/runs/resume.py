"""Where an interrupted training continues: its checkpoints, and whether they match the transcript."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from verfedsv.errors import InputError, TranscriptError
from verfedsv.federation import Server, Training
from verfedsv.federation.checkpoints import REMEDY
from verfedsv.runs.config import Config
from verfedsv.runs.extent import planned_roster, planned_rounds, skipped_rounds
from verfedsv.runs.live import LiveShares
from verfedsv.texts import count
from verfedsv.transcript import Recorder, Stamp, Transcript, Upload
from verfedsv.transcript.records import Record

SAVE_COST = 20
"""A checkpoint is due when training has run this many times as long as the last one took to write."""


class Saver:
    """Writes checkpoints, in a small fraction of the training time, and restores the last one."""

    def __init__(self, training: Training, live: LiveShares) -> None:
        self._training, self._live = training, live
        self._took, self._last = 0.5, time.monotonic()

    def restore(self) -> None:
        """Restore the last checkpoint, if there is one."""
        kept = self._training.restore({"live": self._live.values()})
        if kept is not None:
            self._live.restore(kept["live"])

    def is_due(self) -> bool:
        """Return whether it is time for another checkpoint."""
        return time.monotonic() - self._last > SAVE_COST * self._took

    def save(self) -> None:
        """Write the training as it is now."""
        begin = time.monotonic()
        self._training.save({"live": self._live.values()})
        self._last = time.monotonic()
        self._took = self._last - begin


def resume_server(server: Server, recorder: Recorder, config: Config) -> float:
    """Bring a server from its checkpoint to where its training continues; return the time of the last record.

    A repeatable training continues from its checkpoint: what it recorded later is computed again and compared with the
    transcript. One on the real clock, or one that went on without a client, continues from the last record, with models
    that may be older. Raises an error if transcript, checkpoint and configuration do not match.
    """
    transcript = recorder.transcript
    _check_fit(server, transcript, config)
    server.record(recorder)
    if not config.training.is_repeatable or _went_on_without_a_client(server, transcript, config):
        server.catch_up()
    return max([0.0, *(record.time for record in transcript.records(max(1, transcript.n_records)))])


def _went_on_without_a_client(server: Server, transcript: Transcript, config: Config) -> bool:
    """Return whether a client may have missed something after the checkpoint that it should not have missed.

    It may not be seen in the transcript: a client that did not answer may have taken its last step or not.
    """
    if server.tape.n_records == transcript.n_records:
        return False
    if config.server is not None and config.server.if_missing == "continue":
        return True
    if config.training.mode == "asynchronous":
        return False
    roster, number = planned_roster(config, server.clients, transcript.description.n_samples), server.n_rounds
    for record in transcript.records(1 + server.tape.n_records):
        if isinstance(record, Stamp):
            number += 1
            if roster.missing(number) != {*record.absent}:
                return True
    return False


def _check_fit(server: Server, transcript: Transcript, config: Config) -> None:
    section, n_there = config.training, transcript.n_records
    if n_there < server.tape.n_records:
        raise TranscriptError(
            f"the checkpoint was written after {server.tape.n_records} records, of which the transcript has only "
            f"{n_there}: the others were lost, as in a power failure. {REMEDY}, and lost ones are recorded again"
        )
    recorded, after = (_count(transcript.records(1 + first)) for first in (0, server.tape.n_records))
    n_planned = planned_rounds(section, transcript.description.n_samples)
    n_skipped = skipped_rounds(config, server.clients) if section.is_repeatable else 0
    n_rounds = recorded[None] - after[None]
    if n_rounds:
        n_rounds += n_skipped
    is_timed = server.n_rounds == n_rounds
    if not section.is_repeatable:  # an unknown number of rounds before the first upload was not recorded
        is_timed = n_rounds <= server.n_rounds <= n_planned
    if not is_timed or any(server.n_uploads[name] != recorded[name] - after[name] for name in server.clients):
        raise InputError(
            f"the checkpoint does not match the transcript: it counts {count(server.n_rounds, 'round')} in "
            f"{count(server.tape.n_records, 'record')}, where the transcript has {n_rounds:,}, or other numbers "
            f"of uploads. {REMEDY}"
        )


def _count(records: Iterable[Record]) -> Counter[str | None]:
    """Return the number of uploads of each client, and, for None, of rounds."""
    ends = (record for record in records if isinstance(record, Upload | Stamp))
    return Counter(record.client if isinstance(record, Upload) else None for record in ends)
