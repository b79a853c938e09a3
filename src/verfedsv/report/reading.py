"""`summarise`: a run's folder as a summary."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv._version import __version__
from verfedsv.report.summary import About, Payout, Setting, SettlementSummary, Summary, Uploads, build
from verfedsv.runs.config import ClientSection, Config, Section
from verfedsv.runs.folders import CONFIG, METRICS
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.settlement import Settlement
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.folders import find_valuation, options_for
from verfedsv.settlement.payouts import check_settlement
from verfedsv.shapley import Progress
from verfedsv.transcript import Transcript
from verfedsv.transcript.reader import Upload
from verfedsv.valuation import Valuation, value

_BYTES_OF_AN_ID = 4


def summarise(
    run: str | os.PathLike[str], progress: Progress | None = None, settlement: Settlement | None = None
) -> Summary:
    """Return what there is to say of a run: a folder of `verfedsv run`, or of a `Recorder`.

    The hash chain of the transcript is checked. Values are those of the folder's valuation.json if that is of this very
    transcript; if not, the run is valued, as its config.toml says where it has one, or as it was valued before, and
    nothing is written. A `settlement` of these values comes into the report too.
    """
    folder = Path(run)
    transcript = Transcript.open(folder)
    transcript.verify(may_go_on=True)
    config = _read_config(folder / CONFIG)
    valuation = find_valuation(folder, transcript) or value(transcript, progress=progress, **options_for(folder))
    about = About(
        run=folder.resolve().name,
        package=f"verfedsv {__version__}",
        recorded=transcript.description.created,
        n_recorded=transcript.description.n_samples,
        n_classes=transcript.description.n_classes or 1,
        settings=_settings(config, valuation),
        settlement=None if settlement is None else _settlement(settlement, valuation),
    )
    return build(valuation, count_uploads(transcript), read_metrics(folder / METRICS, valuation.n_rounds), about)


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
        payouts=tuple(lines[m] for m in np.argsort(-valuation.values, kind="stable")),
    )


def read_metrics(path: Path, n_rounds: int) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl up to a round; a last one that is cut short is left out."""
    if not path.exists():
        return []
    lines = []
    for text in read_text(path).splitlines():
        try:
            line = json.loads(text)
            if 0 < float(line["n_rounds"]) <= n_rounds:
                lines.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # cut short by a crash, or being written
    return lines


def count_uploads(transcript: Transcript) -> dict[str, Uploads]:
    """Return what each client uploaded, by name."""
    n_uploads, n_embeddings = Counter[str](), Counter[str]()
    for record in transcript:
        if isinstance(record, Upload):
            n_uploads[record.client] += 1
            n_embeddings[record.client] += len(record.samples)
    about = transcript.description
    size = _BYTES_OF_AN_ID + np.dtype(about.precision or "float64").itemsize * (about.n_classes or 1)
    return {name: Uploads(n_uploads[name], n_embeddings[name], n_embeddings[name] * size) for name in about.clients}


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
