"""`summarise`: a run's folder as a summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv._version import __version__
from verfedsv.errors import InputError
from verfedsv.report.curves import Curve
from verfedsv.report.metrics import GrowingMetrics
from verfedsv.report.summary import About, Payout, Setting, SettlementSummary, Summary, Uploads, build
from verfedsv.runs.config import ClientSection, Config, Section
from verfedsv.runs.extent import find_extent
from verfedsv.runs.folders import CONFIG, METRICS, NOTES, VALUATION
from verfedsv.runs.notes import read_notes
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.runs.valuations import options_for, read_valuation
from verfedsv.settlement import Settlement
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.payouts import check_settlement
from verfedsv.shapley import Progress
from verfedsv.shapley.result import count
from verfedsv.texts import printable
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Description
from verfedsv.transcript.reader import FOLDER, Verified
from verfedsv.transcript.storage import LOCK
from verfedsv.valuation import Valuation, value

_BYTES_OF_AN_ID = 4


def summarise(
    run: str | os.PathLike[str], progress: Progress | None = None, settlement: Settlement | None = None
) -> Summary:
    """Return what there is to say of a run: a folder of `verfedsv run`, or of a `Recorder`.

    The hash chain of the transcript is checked. Values are those of the folder's valuation.json if that is of this very
    transcript; if not, the run is valued, as its config.toml says where it has one, or as it was valued before, and
    nothing is written. If it is of a transcript that this one never was, a caution says so. A `settlement` of these
    values comes into the report too.
    """
    folder = Path(run)
    refuse_irregular(folder)
    recorded = Transcript.open(folder)
    verified = recorded.verify_on()
    transcript = recorded.up_to(verified)
    config = _read_config(folder / CONFIG)
    before = read_valuation(folder)
    if before is not None and before.head == transcript.head:
        refuse_misfit(before, transcript)
    valuation = (
        before
        if before is not None and before.head == transcript.head
        else value(transcript, progress=progress, **options_for(folder))
    )
    about = about_run(
        folder,
        transcript,
        _settings(config, valuation),
        None if settlement is None else _settlement(settlement, valuation),
        () if before is None or transcript.contains(before.head) else (_lost(before, valuation),),
        read_notes(folder),
    )
    metrics = _read_metrics(folder / METRICS, valuation.n_rounds)
    return build(valuation, uploads_of(transcript.description, verified), metrics, about)


def refuse_irregular(folder: Path) -> None:
    """Raise InputError if what should be a file of the run is a pipe, say, which would be waited for forever."""
    names = (CONFIG, METRICS, NOTES, VALUATION)
    inner = [path for place in (folder, folder / FOLDER) for path in (*fmt.files_of(place), place / LOCK)]
    for path in [*(folder / name for name in names), *inner]:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file; move it away, it is not part of a run")


def refuse_misfit(valuation: Valuation, transcript: Transcript) -> None:
    """Raise InputError if a valuation has the hash of a transcript, and says other things of it."""
    description = transcript.description
    stated = valuation.clients, valuation.mode, valuation.loss, valuation.n_rounds
    if stated != (transcript.clients, description.mode, description.loss, transcript.n_rounds):
        raise InputError(
            f"{VALUATION} is damaged: it names this transcript, but other clients, rounds, mode or loss. Delete it, "
            "and the run is valued again"
        )


def about_run(
    folder: Path,
    transcript: Transcript,
    settings: tuple[Setting, ...] = (),
    settlement: SettlementSummary | None = None,
    cautions: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> About:
    """Return where the values of the run in a folder come from."""
    description = transcript.description
    return About(
        run=printable(folder.resolve().name),
        package=f"verfedsv {__version__}",
        recorded=description.created,
        n_recorded=description.n_samples,
        n_classes=description.n_classes or 1,
        settings=settings,
        settlement=settlement,
        n_planned=find_extent(folder, transcript).n_planned,
        cautions=cautions,
        notes=notes,
    )


def _lost(before: Valuation, now: Valuation) -> str:
    """Return what it means that a valuation is of a transcript that this one never was."""
    return (
        f"The files of this run do not fit each other: its {VALUATION} is of {count(before.n_rounds, 'round')}, and "
        f"what is recorded now is not the same, and has {count(now.n_rounds, 'round')}. Part of the record was lost or "
        "replaced, or that file is of another run. This report is of what is recorded now."
    )


def _settlement(settlement: Settlement, valuation: Valuation) -> SettlementSummary:
    """Return what a report says of a settlement; raise InputError if it is not of this valuation."""
    check_settlement(settlement, valuation)
    texts = [
        [None if cents is None else settlement.currency.shown(cents) for cents in column]
        for column in (settlement.payouts, settlement.lowest, settlement.highest)
    ]
    lines = [
        Payout(client, amount or "", low, high, note)
        for client, amount, low, high, note in zip(settlement.clients, *texts, settlement.notes, strict=True)
    ]
    return SettlementSummary(
        budget=settlement.currency.shown(settlement.terms.budget),
        currency=settlement.currency.code,
        sentences=tuple(explain(settlement, valuation)),
        payouts=tuple(lines[m] for m in np.argsort(-np.array(settlement.values), kind="stable")),
    )


def _read_metrics(path: Path, n_rounds: int) -> dict[str, Curve]:
    """Return what was measured up to a round; lines that cannot be read are left out."""
    metrics = GrowingMetrics(path)
    try:
        metrics.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return metrics.curves(n_rounds)


def uploads_of(description: Description, verified: Verified) -> dict[str, Uploads]:
    """Return what each client uploaded, by name."""
    size = _BYTES_OF_AN_ID + np.dtype(description.precision or "float64").itemsize * (description.n_classes or 1)
    counts = {name: (verified.n_uploads[name], verified.n_embeddings[name]) for name in verified.roster.clients}
    return {name: Uploads(*numbers, numbers[1] * size) for name, numbers in counts.items()}


def _read_config(path: Path) -> Config | None:
    return parse_config(read_text(path), path) if path.exists() else None


def _settings(config: Config | None, valuation: Valuation) -> tuple[Setting, ...]:
    """Return the settings of data, clients, model and training that were given, and those of the valuation."""
    parts: list[tuple[str, Mapping[str, Any]]] = []
    if config is not None:
        clients = {f"client {client.name}": client for client in config.client}
        sections: dict[str, Section] = {"data": config.data, **clients, "model": config.model}
        sections["training"] = config.training
        parts = [(part, _given(section)) for part, section in sections.items()]
    parts.append(("valuation", asdict(valuation.settings)))
    return tuple(
        Setting(part, name.replace("_", " "), _as_text(content))
        for part, settings in parts
        for name, content in settings.items()
        if content is not None
    )


def _given(section: Section) -> dict[str, Any]:
    """Return the settings of a section that were given, but for a client's name: its part is called so."""
    known = section.model_fields_set - ({"name"} if isinstance(section, ClientSection) else set())
    return {name: content for name, content in section if name in known}


def _as_text(content: Any) -> str:
    """Return a setting as text; of a file, its name alone: where it lay is nobody's business."""
    if isinstance(content, Path):
        return content.name
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, list | tuple):
        return ", ".join(map(str, content))
    return f"{content:g}" if isinstance(content, float) else str(content)
