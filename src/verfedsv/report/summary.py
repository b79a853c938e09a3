"""A report as plain data. HTML, Markdown and the terminal render it and compute nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv._version import __version__
from verfedsv.errors import InputError
from verfedsv.report.curves import MOST_CURVES, Curve, curve
from verfedsv.report.metrics import metrics_of
from verfedsv.report.ranking import overlapping_groups, possible_places
from verfedsv.shapley.result import ErrorKind
from verfedsv.texts import LONGEST_NAME, shortened
from verfedsv.transcript.description import Mode
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import Books
from verfedsv.valuation.verdict import NO_FACTS, NumericalError, RunFacts, Verdict, judge, numerical_error

FORMAT, VERSION = "verfedsv report", 1

_MOST_GROUPS = 50

_ABSURD = 1e100


@dataclass(frozen=True)
class UploadCounts:
    """What a client sent to the server: uploads, embeddings in them, and bytes of numbers and sample ids.

    `n_missed` counts the rounds in which it was absent or not a member, and `took_part` says in which it was there;
    empty if in all.
    """

    n_uploads: int
    n_embeddings: int
    n_bytes: int
    n_missed: int = 0
    took_part: str = ""


@dataclass(frozen=True)
class CompletionSummary:
    """How well the embeddings that a client did not upload were completed.

    `relative_error` is `held_out_rmse` as a fraction of the size of the embeddings; both are None if nothing could be
    held out.
    """

    rank: int
    held_out_rmse: float | None
    relative_error: float | None
    n_held_out: int
    n_unseen: int


@dataclass(frozen=True)
class ClientSummary:
    """One client. Shares are fractions, and None where they mean nothing; errors are None where they are unknown.

    `value` and the errors are those of the valuation, means per round. `decrease` is the value times the rounds: how
    much the client lowered the loss in all. It lies between `decrease_low` and `decrease_high`, by which clients are
    ranked, from `best_place` to `worst_place`. `quarters` is the decrease after each quarter of the rounds.
    `n_negative_rounds` counts rounds with a negative value. Only the 200 clients with the largest absolute
    values have curves, and only if their uploads are known.
    """

    name: str
    best_place: int
    worst_place: int
    value: float
    decrease: float
    decrease_low: float | None
    decrease_high: float | None
    share: float | None
    share_low: float | None
    share_high: float | None
    error: float | None
    estimator_error: float | None
    completion_error: float | None
    n_negative_rounds: int
    quarters: tuple[float, ...]
    cumulative: Curve | None
    per_round: Curve | None
    completion: CompletionSummary | None
    uploads: UploadCounts

    @property
    def share_contains_zero(self) -> bool:
        """Whether zero lies strictly within the range of the share."""
        return self.share_low is not None and self.share_high is not None and self.share_low < 0 < self.share_high


@dataclass(frozen=True)
class Payout:
    """What a client is paid, as text, and the range that the errors allow, None where that is unknown.

    `share` is its percentage of the values, "" where there are no shares, and `part` that of the budget.
    """

    client: str
    amount: str
    lowest: str | None
    highest: str | None
    note: str
    share: str = ""
    part: str = ""


@dataclass(frozen=True)
class SettlementSummary:
    """How a budget was settled: in sentences, and the payouts in descending order."""

    budget: str
    currency: str
    sentences: tuple[str, ...]
    payouts: tuple[Payout, ...]


@dataclass(frozen=True)
class Setting:
    """A setting as text."""

    part: str
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything a report says of a run. `clients` are sorted by descending value.

    `books` say where the loss went over all rounds, and `losses` how it changed, from before the first round on, on the
    embeddings that were valued. `server_error` is a mean per round, like the errors of clients. Values are means over
    `n_samples`; `n_recorded` samples are in the transcript, and of these `n_unseen` were never uploaded. `groups` are
    indices of clients of which no two can be ranked: the first 50 of `n_groups`. `metrics` are None where nothing was
    measured.

    `classes` are the names of the classes, None if they have none. `are_labels_standardised` tells that labels are
    amounts in units of their standard deviation, as those of `verfedsv run` are.

    `n_games` is the number of valued games: less than `n_rounds` where several rounds were valued as one. `n_planned`
    is the planned number of rounds, None if unknown. `verdict` is whether the values can be trusted, and why not.
    `estimator_error_kind` is of the estimator's errors alone, `numerical_error` of all.
    """

    run: str = ""
    package: str = f"verfedsv {__version__}"
    recorded: str = ""
    recorded_by: str = ""
    head: str
    mode: Mode
    loss: str
    n_rounds: int
    n_games: int
    n_planned: int | None
    n_samples: int
    n_unseen: int
    n_recorded: int = 0
    n_classes: int = 1
    classes: tuple[str, ...] | None = None
    are_labels_standardised: bool = False
    numerical_error: NumericalError
    books: Books
    server_error: float | None
    estimator_error_kind: ErrorKind
    method: str
    semivalue: str
    guarantee: float | None
    verdict: Verdict
    clients: tuple[ClientSummary, ...]
    groups: tuple[tuple[int, ...], ...]
    n_groups: int
    losses: Curve
    metrics: Mapping[str, Curve | None]
    quarters: tuple[int, ...]
    settings: tuple[Setting, ...] = ()
    settlement: SettlementSummary | None = None

    @property
    def has_shares(self) -> bool:
        """Whether there are shares: the clients together lowered the loss."""
        return self.books.has_shares

    @property
    def has_intervals(self) -> bool:
        """Whether the clients whose errors are known have intervals of their shares."""
        return self.has_shares and self.numerical_error in ("proven", "confident", "assumed", "estimated")

    @property
    def was_completed(self) -> bool:
        """Whether embeddings that were not uploaded were completed."""
        return self.clients[0].completion is not None

    @property
    def is_unfinished(self) -> bool:
        """Whether fewer rounds are recorded than planned."""
        return self.n_planned is not None and self.n_rounds < self.n_planned

    @property
    def unknown(self) -> list[str]:
        """The names of the clients whose errors are unknown."""
        return [client.name for client in self.clients if client.error is None]

    def total(self, per_round: float | None) -> float | None:
        """Return the sum over all rounds of a mean per round; None stays None."""
        return None if per_round is None else per_round * self.n_games

    def with_short_names(self) -> Summary:
        """Return the summary with names of bounded length."""
        clients = tuple(replace(client, name=shortened(client.name, LONGEST_NAME)) for client in self.clients)
        settlement = self.settlement
        if settlement is not None:
            lines = (replace(line, client=shortened(line.client, LONGEST_NAME)) for line in settlement.payouts)
            settlement = replace(settlement, payouts=tuple(lines))
        return replace(self, run=shortened(self.run, LONGEST_NAME), clients=clients, settlement=settlement)

    def to_json(self) -> str:
        """Return the summary as JSON; what is unknown is null."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        content |= {"books": self.books._asdict(), "verdict": self.verdict.to_fields()}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def build(
    valuation: Valuation,
    facts: RunFacts = NO_FACTS,
    uploads: Mapping[str, UploadCounts] | None = None,
    metrics: Mapping[str, Curve] | None = None,
    rounds: Sequence[int] | None = None,
) -> Summary:
    """Return the summary of a valuation, without reading anything. Fields with defaults are left to the caller.

    The values are judged by `facts`. `uploads` is what each client sent; without it, clients have no curves, which is
    enough for a table of values. `metrics` are those that were measured, of `metrics_of` the loss. If several rounds
    were valued as one, `rounds` has the number of the last round of each valued game.
    """
    at = np.arange(1, valuation.n_rounds + 1) if rounds is None else np.array(rounds)
    order = np.argsort(-valuation.values, kind="stable")
    groups = overlapping_groups(valuation.values[order], valuation.errors[order])
    quarters = _quarters(valuation.n_rounds)
    return Summary(
        head=valuation.head,
        mode=valuation.mode,
        loss=valuation.loss,
        n_rounds=int(at[-1]),
        n_games=valuation.n_rounds,
        n_planned=facts.n_planned,
        n_samples=valuation.n_samples,
        n_unseen=valuation.n_unseen,
        numerical_error=numerical_error(valuation),
        books=valuation.books,
        server_error=finite_or_none(valuation.server_error),
        estimator_error_kind=valuation.error_kind,
        method=valuation.method,
        semivalue=valuation.settings.semivalue,
        guarantee=finite_or_none(valuation.guarantee),
        verdict=judge(valuation, facts),
        clients=tuple(_clients(valuation, order, quarters, uploads, at)),
        groups=tuple(groups[:_MOST_GROUPS]),
        n_groups=len(groups),
        losses=curve(valuation.losses, rounds=np.concatenate([[0], at])),
        metrics={name: (metrics or {}).get(name) for name in metrics_of(valuation.loss)},
        quarters=quarters,
    )


def refuse_absurd(valuation: Valuation) -> None:
    """Raise InputError if numbers are so large that their sums may overflow: the file is damaged."""
    numbers = (
        *(valuation.per_round, valuation.estimator_errors, valuation.completion_errors, valuation.losses),
        *(valuation.per_round_server, np.array([valuation.server_error, valuation.guarantee or 0.0])),
    )
    if any(np.nanmax(np.abs(each), initial=0) > _ABSURD for each in numbers):
        raise InputError(f"a valuation with numbers above {_ABSURD:g} is damaged; value the run again")


def _clients(
    valuation: Valuation,
    order: NDArray[np.intp],
    quarters: Sequence[int],
    uploads: Mapping[str, UploadCounts] | None,
    at: NDArray[np.intp],
) -> Iterator[ClientSummary]:
    n_clients, n_rounds = len(valuation.clients), valuation.n_rounds
    values, errors = valuation.values, valuation.errors
    shares = np.full((n_clients, 3), np.nan)
    if valuation.books.has_shares:
        shares = np.column_stack([valuation.shares, valuation.share_bounds])
    places = possible_places(values, errors)
    n_curves = 0 if uploads is None else MOST_CURVES
    drawn = set(np.argsort(-np.abs(values), kind="stable")[:n_curves].tolist())
    for m in order.tolist():
        per_round = valuation.per_round[:, m]
        cumulative = np.cumsum(per_round)
        yield ClientSummary(
            name=valuation.clients[m],
            best_place=places[m][0],
            worst_place=places[m][1],
            value=float(values[m]),
            decrease=float(values[m] * n_rounds),
            decrease_low=finite_or_none((values[m] - errors[m]) * n_rounds),
            decrease_high=finite_or_none((values[m] + errors[m]) * n_rounds),
            share=finite_or_none(shares[m, 0]),
            share_low=finite_or_none(shares[m, 1]),
            share_high=finite_or_none(shares[m, 2]),
            error=finite_or_none(errors[m]),
            estimator_error=finite_or_none(valuation.estimator_errors[m]),
            completion_error=finite_or_none(valuation.completion_errors[m]),
            n_negative_rounds=int((per_round < 0).sum()),
            quarters=tuple(float(cumulative[number - 1]) for number in quarters),
            cumulative=curve(cumulative, n_clients, at) if m in drawn else None,
            per_round=curve(per_round, n_clients, at) if m in drawn else None,
            completion=_completion(valuation, m),
            uploads=UploadCounts(0, 0, 0) if uploads is None else uploads[valuation.clients[m]],
        )


def _completion(valuation: Valuation, m: int) -> CompletionSummary | None:
    if valuation.completion is None:
        return None
    report = valuation.completion[m]
    rmse = finite_or_none(report.held_out_rmse) if report.n_held_out else None
    relative = rmse / report.held_out_size if rmse is not None and report.held_out_size > 0 else None
    return CompletionSummary(report.rank, rmse, relative, report.n_held_out, report.n_unseen)


def _quarters(n_rounds: int) -> tuple[int, ...]:
    """Return the last round of each quarter, halves rounded up.

    >>> _quarters(30), _quarters(6), _quarters(1)
    ((8, 15, 23, 30), (2, 3, 5, 6), (1,))
    """
    return tuple(sorted({max(1, (n_rounds * part + 2) // 4) for part in range(1, 5)}))


def finite_or_none(number: float | None) -> float | None:
    """Return a number, or None if it is None, NaN or infinite."""
    return None if number is None or not np.isfinite(number) else float(number)
