"""`summarise`: a run's folder as a summary."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError, TranscriptError
from verfedsv.report.curves import Curve
from verfedsv.report.metrics import GrowingMetrics
from verfedsv.report.summary import (
    Payout,
    Setting,
    SettlementSummary,
    Summary,
    UploadCounts,
    build,
    refuse_absurd,
)
from verfedsv.runs.config import Config, Section
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import find_run
from verfedsv.settlement import Settlement
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.payouts import check_settlement
from verfedsv.shapley import Progress
from verfedsv.texts import LONGEST_NAME, count, printable, shortened
from verfedsv.transcript import Transcript
from verfedsv.transcript.description import Description
from verfedsv.transcript.verification import Verified
from verfedsv.valuation import Valuation, value
from verfedsv.valuation.verdict import RunFacts

_BYTES_OF_AN_ID = 4


def summarise(
    run: str | os.PathLike[str] | RunFolder, progress: Progress | None = None, settlement: Settlement | None = None
) -> Summary:
    """Return the summary of a run: a folder of `verfedsv run`, or of a `Recorder`, or its URI in an object store.

    The hash chain of the transcript is checked. Values come from the folder's valuation.json if it is of this very
    transcript; otherwise the run is valued as agreed, and nothing is written. A `settlement` of these values becomes
    part of the summary.
    """
    folder = run if isinstance(run, RunFolder) else find_run(run)
    folder.refuse_irregular()
    recorded = folder.open()
    verified = recorded.verify_more()
    transcript = recorded.up_to(verified)
    config = folder.config()
    stored, faults = find_valuation(folder, transcript)
    faults += find_fault_at_end(folder, recorded)
    valuation = stored or value(transcript, progress=progress, **folder.agreed_settings(transcript).as_dict())
    if settlement is not None:
        check_settlement(settlement, valuation)
    metrics = _read_metrics(folder.metrics_path, valuation.n_rounds)
    return replace(
        summarise_valuation(valuation, folder, transcript, verified, metrics, faults=faults),
        settings=_settings(config, valuation),
        settlement=None if settlement is None else summarise_settlement(settlement, valuation),
    )


def summarise_valuation(
    valuation: Valuation,
    folder: RunFolder,
    transcript: Transcript,
    verified: Verified,
    metrics: Mapping[str, Curve] | None = None,
    rounds: Sequence[int] | None = None,
    faults: tuple[str, ...] = (),
) -> Summary:
    """Return the summary of a valuation of the verified transcript in a folder; see `build` for the arguments."""
    refuse_absurd(valuation)
    description = transcript.description
    return replace(
        build(valuation, facts_of(folder, transcript, faults), count_uploads(description, verified), metrics, rounds),
        run=printable(folder.path.resolve().name),
        recorded=description.created,
        recorded_by=shortened(printable(description.package), LONGEST_NAME),
        n_recorded=description.n_samples,
        n_classes=description.n_classes or 1,
        classes=description.classes,
        are_labels_standardised=description.loss == "squared" and folder.config_path.exists(),
    )


def find_valuation(folder: RunFolder, transcript: Transcript) -> tuple[Valuation | None, tuple[str, ...]]:
    """Return the valuation in a folder if it is of the complete transcript, and sentences on what is wrong with it.

    A valuation of rounds that the transcript does not have is such a fault: what is recorded can still be valued.
    """
    try:
        return folder.valuation_of(transcript), ()
    except InputError:
        before = folder.read_valuation()
        if before is None or transcript.contains(before.head):
            raise
    fault = (
        f"The files of this run do not match: its {folder.valuation_path.name} is of "
        f"{count(before.n_rounds, 'round')}, and the transcript, which has {count(transcript.n_rounds, 'round')}, does "
        "not contain them. Part of the record was lost or replaced, or the file is of another run. These values are of "
        "what is recorded now."
    )
    return None, (fault,)


def find_fault_at_end(folder: RunFolder, transcript: Transcript) -> tuple[str, ...]:
    """Return a sentence if something follows the last complete record, although nothing is recording."""
    if not folder.is_running:
        try:
            transcript.check_end()
        except TranscriptError as error:
            text = str(error).rstrip(".")
            return (f"{text[:1].upper()}{text[1:]}.",)
    return ()


def facts_of(folder: RunFolder, transcript: Transcript, faults: tuple[str, ...] = ()) -> RunFacts:
    """Return the facts by which a run is judged, besides its values."""
    extent = folder.extent(transcript)
    # While it is running, its file of measurements is followed, not read again and again.
    evaluated = None if extent.is_running else folder.least_train_loss()
    return RunFacts(extent.n_planned, extent.is_running, faults, folder.notes(), evaluated)


def summarise_settlement(settlement: Settlement, valuation: Valuation) -> SettlementSummary:
    """Return the part of a report on a settlement of this valuation."""
    shown, shares, parts = settlement.currency.shown, settlement.shares, settlement.parts

    def payout(m: int) -> Payout:
        low, high = settlement.lowest[m], settlement.highest[m]
        return Payout(
            settlement.clients[m],
            shown(settlement.payouts[m]),
            None if low is None else shown(low),
            None if high is None else shown(high),
            settlement.notes[m],
            "" if math.isnan(shares[m]) else f"{shares[m]:.2%}",
            f"{parts[m]:.2%}",
        )

    return SettlementSummary(
        budget=shown(settlement.terms.budget),
        currency=settlement.currency.code,
        sentences=tuple(explain(settlement, valuation)),
        payouts=tuple(map(payout, settlement.order)),
    )


def _read_metrics(path: Path, n_rounds: int) -> dict[str, Curve]:
    """Return the metrics up to a round; unreadable lines are skipped."""
    metrics = GrowingMetrics(path)
    try:
        metrics.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return metrics.curves(n_rounds)


def count_uploads(description: Description, verified: Verified) -> dict[str, UploadCounts]:
    """Return what each client uploaded, by name."""
    size = _BYTES_OF_AN_ID + np.dtype(description.precision or "float64").itemsize * (description.n_classes or 1)

    def counts(name: str) -> UploadCounts:
        n_embeddings, n_missed = verified.n_embeddings[name], verified.n_missed(name)
        sent = verified.n_uploads[name], n_embeddings, n_embeddings * size
        return UploadCounts(*sent, n_missed, verified.attendance(name))

    return {name: counts(name) for name in verified.roster.clients}


def _settings(config: Config | None, valuation: Valuation) -> tuple[Setting, ...]:
    """Return the settings of data, clients, model and training that were given, and those of the valuation."""
    parts: list[tuple[str, Mapping[str, Any]]] = []
    if config is not None:
        clients = [(f"client {client.name}", client) for client in config.client]
        sections: list[tuple[str, Section]] = [("data", config.data), *clients]
        for part, section in [*sections, ("model", config.model), ("training", config.training)]:
            # The name of a client is the name of its part.
            given = section.model_fields_set - ({"name"} if section in config.client else set())
            parts.append((part, {name: content for name, content in section if name in given}))
    parts.append(("valuation", asdict(valuation.settings)))
    return tuple(
        Setting(part, name.replace("_", " "), _as_text(content))
        for part, settings in parts
        for name, content in settings.items()
        if content is not None
    )


def _as_text(content: Any) -> str:
    """Return a setting as text; for a file, its name without the folder."""
    if isinstance(content, Path):
        return content.name
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, list | tuple):
        return ", ".join(map(str, content))
    return f"{content:g}" if isinstance(content, float) else str(content)
