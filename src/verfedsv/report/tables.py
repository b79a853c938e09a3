"""Every table of a report, described once. HTML, Markdown, the terminal and the watch page render any of them.

To add a column, add it here: its heading, its text for a row, and where it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from rich import filesize

from verfedsv.report import wording
from verfedsv.report.amounts import (
    SPACE,
    Amounts,
    error_percent,
    place_text,
    relative_error,
    share_range,
    share_text,
)
from verfedsv.report.curves import Curve
from verfedsv.report.summary import ClientSummary, CompletionSummary, Payout, Setting, SettlementSummary, Summary
from verfedsv.texts import MINUS, error_text, number

Kind = Literal["name", "number", "error", "text", "bar"]
"""What a column holds: the name of the row, a number, the error of the number before it, text, or a bar."""

Medium = Literal["report", "watch", "terminal"]
PAGES: tuple[Medium, ...] = "report", "watch"

Row = TypeVar("Row")


class Heading(NamedTuple):
    """The heading of a column, and what the column holds."""

    text: str
    kind: Kind


class Cell(NamedTuple):
    """A text, and the number in full precision where a reader may need it."""

    text: str
    number: float | None = None


@dataclass(frozen=True)
class Table:
    """A table as plain data; `total` is its last line, if any."""

    id: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()

    def pairs(self, row: Sequence[Cell]) -> Iterator[tuple[Heading, Cell]]:
        """Return the cells of a row, each with its heading."""
        return zip(self.headings, row, strict=True)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its heading, the text and number of a row, and where it is shown."""

    heading: str
    text: Callable[[Row], str] = lambda _row: ""
    kind: Kind = "number"
    number: Callable[[Row], float | None] = lambda _row: None
    on: tuple[Medium, ...] = ("report", "watch", "terminal")


def make_table(
    name: str,
    caption: str,
    rows: Iterable[Row],
    columns: Sequence[Column[Row]],
    medium: Medium = "report",
    total: Mapping[str, str] | None = None,
) -> Table:
    """Return a table of some rows, with the columns that a medium shows; `total` is its last line, by heading."""
    shown = [column for column in columns if medium in column.on]
    return Table(
        name,
        caption,
        tuple(Heading(column.heading, column.kind) for column in shown),
        tuple(tuple(Cell(column.text(row), column.number(row)) for column in shown) for row in rows),
        tuple(Cell(total.get(column.heading, "")) for column in shown) if total else (),
    )


_CLIENT = Column[ClientSummary]("Client", lambda client: client.name, "name")


def contributions(summary: Summary, medium: Medium = "report", most: int | None = None) -> Table:
    """Return the clients' shares and values with errors, largest first; with `most`, only `wording.first` of them.

    In the terminal, which is narrow, errors replace ranges.
    """
    values, shares = Amounts(summary), summary.has_shares
    interval = "Share among clients with known errors" if summary.unknown else "Share lies between"
    columns = [
        _CLIENT,
        Column("Place", lambda client: place_text(client, summary), on=PAGES),
        Column("Share", share_text, number=lambda client: client.share, on=PAGES if shares else ()),
        Column("Share", _short_share, on=("terminal",) if shares else ()),
        Column("± error", lambda client: _share_error(client, summary), "error", on=("terminal",) if shares else ()),
        Column("", kind="bar", number=lambda c: c.decrease if c.share is None else c.share, on=("watch",)),
        Column(interval, share_range, on=PAGES if shares else ()),
        Column("Total value", lambda client: values.value(client.decrease), number=lambda client: client.decrease),
        Column("Value lies between", values.ends, on=PAGES),
        Column("± error", lambda client: f"± {error_text(summary.total(client.error))}", "error", on=("terminal",)),
        Column("Negative rounds", lambda client: _negative_rounds(client, summary), on=("report",)),
        Column("Took part", _took_part, "text", on=("report", "watch", "terminal") if _is_anyone_away(summary) else ()),
        Column("", kind="bar", number=lambda client: client.decrease, on=("terminal",)),
    ]
    caption = (
        f"Contributions in numbers. {wording.VALUE} A place such as 2\N{EN DASH}3 means that the errors leave the "
        "order open. Negative values in single rounds can happen to any client."
    )
    listed = summary.clients if most is None else wording.first(summary, most)
    return make_table("numbers", caption, listed, columns, medium)


def side_by_side(summaries: Mapping[str, Summary]) -> Table:
    """Return shares of the same clients in several trainings, in the order of the first one's values."""
    columns = [_CLIENT]
    for name, summary in summaries.items():
        columns += _shares_of(name, summary)
    return make_table("modes", "", next(iter(summaries.values())).clients, columns, "terminal")


def _shares_of(name: str, summary: Summary) -> list[Column[ClientSummary]]:
    found = {client.name: client for client in summary.clients}
    return [
        Column(name, lambda client: _short_share(found[client.name])),
        Column("± error", lambda client: _share_error(found[client.name], summary), "error"),
        Column("", kind="bar", number=lambda client: found[client.name].share or 0.0),
    ]


def _negative_rounds(client: ClientSummary, summary: Summary) -> str:
    return f"{client.n_negative_rounds:,} of {summary.n_rounds - client.uploads.n_missed:,}"


def _is_anyone_away(summary: Summary) -> bool:
    return any(client.uploads.n_missed for client in summary.clients)


def _took_part(client: ClientSummary) -> str:
    return client.uploads.took_part or "all rounds"


def _short_share(client: ClientSummary) -> str:
    return "-" if client.share is None else f"{number(100 * client.share, 2)}%"


def _share_error(client: ClientSummary, summary: Summary) -> str:
    """Return the error of a share; unknown for all clients if that of one value is, as the sum includes it."""
    if client.share is None:
        return ""
    if client.share_low is None or client.share_high is None or summary.unknown:
        return "± unknown"
    error = max(client.share - client.share_low, client.share_high - client.share)
    return f"± {error_percent(error).replace(SPACE, '')}"


def payouts(summary: SettlementSummary, medium: Medium = "report") -> Table:
    """Return what each client is paid; in the terminal, also its fractions of values and budget."""
    amount = f"Payout, {summary.currency}"
    has_shares, has_notes = any(line.share for line in summary.payouts), any(line.note for line in summary.payouts)
    columns: list[Column[Payout]] = [
        Column("Client", lambda line: line.client, "name"),
        Column("Of values", lambda line: _with_minus(line.share), on=("terminal",) if has_shares else ()),
        Column(amount, lambda line: _with_minus(line.amount)),
        Column("Of budget", lambda line: _with_minus(line.part), on=("terminal",)),
        Column(
            "Range", lambda line: "unknown" if line.lowest is None else _with_minus(f"{line.lowest} to {line.highest}")
        ),
        Column("Note", lambda line: line.note, "text", on=(*PAGES, "terminal") if has_notes else PAGES),
    ]
    caption = "What each client is paid, and the range that the errors of the values allow"
    return make_table("amounts", caption, summary.payouts, columns, medium, {"Client": "Sum", amount: summary.budget})


def _with_minus(text: str) -> str:
    """Return amounts, which have a hyphen in JSON and CSV, with minus signs."""
    return text.replace("-", MINUS)


def quarters(summary: Summary, most: int | None = None) -> Table:
    """Return the value of each client after each quarter of the rounds."""
    values = Amounts(summary)

    def after(quarter: int) -> Callable[[ClientSummary], str]:
        return lambda client: values.value(client.quarters[quarter])

    columns = [_CLIENT, *(Column(f"Round {at:,}", after(k)) for k, at in enumerate(summary.quarters))]
    return _of_clients("quarters", "Value up to a round", summary, columns, most)


def training(summary: Summary) -> Table:
    """Return the first and last metrics of the training."""
    measured = [(name, curve) for name, curve in summary.metrics.items() if curve is not None]
    columns: list[Column[tuple[str, Curve]]] = [
        Column("Measured", lambda row: wording.metric_title(row[0]), "name"),
        Column("From and to", lambda row: wording.from_to(*row), "text"),
    ]
    return make_table("training", "What was measured, first and last", measured, columns)


class Chapter(NamedTuple):
    """A part of a report: a title, sentences, and a table, if any."""

    id: str
    title: str
    text: str
    table: Table | None


def details(summary: Summary, most: int | None = None) -> list[Chapter]:
    """Return the last chapters of a report: errors, completion, uploads and settings."""
    completion = _completion(summary, most) if summary.was_completed else None
    return [
        Chapter("errors", "What the errors consist of", wording.errors(summary), _errors(summary, most)),
        Chapter("completion", "Embeddings that were not sent", wording.completion(summary), completion),
        Chapter("communication", "What was sent", wording.communication(summary), _uploads(summary, most)),
        Chapter("settings", "Data and settings", "", _facts(summary)),
    ]


def _errors(summary: Summary, most: int | None) -> Table:
    values = Amounts(summary)
    columns = [
        _CLIENT,
        Column("Total value", lambda client: values.value(client.decrease)),
        Column("Error of the computation", lambda client: error_text(summary.total(client.estimator_error))),
        Column("Error of completion", lambda client: error_text(summary.total(client.completion_error))),
        Column("Together", lambda client: error_text(summary.total(client.error))),
        Column("Of the value", relative_error),
    ]
    return _of_clients("parts", "Errors of the values, over all rounds", summary, columns, most)


def _completion(summary: Summary, most: int | None) -> Table:
    def of(text: Callable[[CompletionSummary], str]) -> Callable[[ClientSummary], str]:
        return lambda client: "" if client.completion is None else text(client.completion)

    def relative(found: CompletionSummary) -> str:
        return "unknown" if found.relative_error is None else error_percent(found.relative_error)

    columns = [
        _CLIENT,
        Column("Rank", of(lambda found: f"{found.rank}")),
        Column("Typical error", of(lambda found: error_text(found.held_out_rmse))),
        Column("Of their size", of(relative)),
        Column("Held out as a check", of(lambda found: f"{found.n_held_out:,}")),
        Column("Samples never uploaded", of(lambda found: f"{found.n_unseen:,}")),
    ]
    caption = "Completion, and how well it did on embeddings held out as a check"
    return _of_clients("checks", caption, summary, columns, most)


def _uploads(summary: Summary, most: int | None) -> Table:
    has_missing = _is_anyone_away(summary)
    columns = [
        _CLIENT,
        Column("Uploads", lambda client: f"{client.uploads.n_uploads:,}"),
        Column("Rounds missed", lambda client: f"{client.uploads.n_missed:,}", on=PAGES if has_missing else ()),
        Column("Embeddings", lambda client: f"{client.uploads.n_embeddings:,}"),
        Column("Size", lambda client: filesize.decimal(client.uploads.n_bytes)),
    ]
    return _of_clients("uploads", "Uploads of the clients", summary, columns, most)


def _facts(summary: Summary) -> Table:
    columns = [
        Column[Setting]("Part", lambda fact: fact.part, "text"),
        Column[Setting]("Setting", lambda fact: fact.name, "name"),
        Column[Setting]("Was", lambda fact: fact.text, "text"),
    ]
    samples = f"{summary.n_samples:,}"
    if summary.n_samples != summary.n_recorded:
        samples += f" of {summary.n_recorded:,}"
    planned = f" of {summary.n_planned:,} planned" if summary.is_unfinished else ""
    recorded = {
        "recorded": f"{summary.recorded}, by {summary.recorded_by}" if summary.recorded_by else summary.recorded,
        "training": summary.mode,
        "loss": summary.loss,
        "labels": wording.labels(summary),
        "clients": f"{len(summary.clients):,}",
        "rounds": f"{summary.n_rounds:,}{planned}",
        "samples valued": samples,
        "numbers per embedding": f"{summary.n_classes:,}",
        "values computed by": summary.method,
    }
    if summary.guarantee is not None:
        worst = error_text(summary.total(summary.guarantee))
        bound = "the bound of the paper's Proposition 2 over all rounds, estimated; very pessimistic"
        recorded["worst-case error"] = f"{worst} ({bound})"
    rows = [*(Setting("run", name, text) for name, text in recorded.items()), *summary.settings]
    return make_table("facts", "Where this report comes from", rows, columns)


def _of_clients(
    name: str, caption: str, summary: Summary, columns: Sequence[Column[ClientSummary]], most: int | None
) -> Table:
    """Return a table of the first `most` clients, with a caption that says so if there are more."""
    if most is not None and most < len(summary.clients):
        caption += f" (the first {most} clients; all are in the JSON)"
    return make_table(name, caption, summary.clients[:most], columns)
