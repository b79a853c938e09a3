"""Where a training that was stopped or killed continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from verfedsv.errors import InputError, TranscriptError
from verfedsv.federation import Server
from verfedsv.federation.checkpoints import REMEDY
from verfedsv.runs.config import Config
from verfedsv.runs.extent import planned_rounds, skipped_rounds
from verfedsv.shapley.result import count
from verfedsv.transcript import Recorder, Stamp, Transcript, Upload
from verfedsv.transcript.records import Record


def resume_server(server: Server, recorder: Recorder, config: Config) -> float:
    """Bring a server from its checkpoint to where its training continues; return the time there.

    A training that can be repeated continues from its checkpoint: what it recorded after that is computed again and
    compared with the transcript. One on the real clock, which never repeats itself, continues from the last record,
    with models that may be older. Raises an error if transcript, checkpoint and configuration do not match.
    """
    transcript = recorder.transcript
    _check_fit(server, transcript, config)
    server.record(recorder)
    if not config.training.is_repeatable:
        server.catch_up()
    return max([0.0, *(record.time for record in transcript.records(max(1, transcript.n_records)))])


def _check_fit(server: Server, transcript: Transcript, config: Config) -> None:
    section, n_there = config.training, transcript.n_records
    if n_there < server.n_records:
        raise TranscriptError(
            f"the checkpoint was written after {server.n_records} records, of which the transcript has only "
            f"{n_there}: others were lost, as in a power failure. {REMEDY}, and what it lost is recorded again"
        )
    whole, after = (_count(transcript.records(1 + first)) for first in (0, server.n_records))
    n_planned = planned_rounds(section, transcript.description.n_samples)
    n_skipped = skipped_rounds(config, server.clients) if section.is_repeatable else 0
    if whole[None] + n_skipped > n_planned:
        raise TranscriptError(
            f"the transcript has {count(whole[None], 'round')}, and the configuration plans "
            f"{n_planned - n_skipped:,}: it is of another training, or was added to"
        )
    n_rounds = whole[None] - after[None]
    if n_rounds:
        n_rounds += n_skipped
    is_timed = server.n_rounds == n_rounds
    if not section.is_repeatable:  # rounds before the first upload are not recorded, nor is their number known
        is_timed = n_rounds <= server.n_rounds <= n_planned
    if not is_timed or any(server.n_uploads[name] != whole[name] - after[name] for name in server.clients):
        raise InputError(
            f"the checkpoint does not fit the transcript: it counts {count(server.n_rounds, 'round')} in "
            f"{count(server.n_records, 'record')}, where the transcript has {n_rounds:,}, or other uploads of "
            f"clients. {REMEDY}"
        )


def _count(records: Iterable[Record]) -> Counter[str | None]:
    """Return how many uploads of each client there are, and, for None, how many rounds ended."""
    ends = (record for record in records if isinstance(record, Upload | Stamp))
    return Counter(record.client if isinstance(record, Upload) else None for record in ends)
