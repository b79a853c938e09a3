"""The result of valuing a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from verfedsv._version import __version__
from verfedsv.arrays import Floats
from verfedsv.completion import Completion, CompletionReport
from verfedsv.errors import VerfedsvError, how_to_install
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.result import ErrorKind, bounds_of_shares, describe_totals, shares_of
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.texts import count, quoted
from verfedsv.transcript.description import Mode

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from verfedsv.valuation.replay import Replay

PACKAGE = f"verfedsv {__version__}"

FEWEST_HELD_OUT = 3
"""With fewer held-out embeddings of a client, the error of its completed embeddings is unknown, and so is that of every
value."""

HOPELESS = 0.95
"""If completion misses this fraction of a client's embeddings or more, the error of its value is unknown."""


@dataclass(frozen=True, eq=False)
class Factorisation:
    """The completed embeddings that a valuation was computed from.

    `completions` has one for each player with missing embeddings, over the rounds in which it took part, and one for an
    intercept of the server; without the factors of samples if the training was cut into pieces. `reports` state for
    every client how well its embeddings could be completed.
    """

    completions: Mapping[int, Completion]
    reports: tuple[CompletionReport, ...]

    def start_of(self, player: int) -> Completion | None:
        """Return the completion of a player, if a later one can start from it."""
        completion = self.completions.get(player)
        return completion if completion is not None and completion.report.n_sweeps > 0 else None


class Books(NamedTuple):
    """Where the loss went in a training: start = end + clients + server + unaccounted, up to the stated errors.

    `start` and `end` are the mean losses of the valued embeddings, zeros before the first round. `clients` and `server`
    are how much of the decrease their changes account for, over all rounds; negative if they raised the loss.
    `clients_moved` and `server_moved` are the sums of the absolute changes in single rounds: a server that moves back
    and forth changes nothing in the end, yet determines what the changes of others are worth.
    `unaccounted` is exactly 0 for Shapley values of known error; others, and those of other semivalues, do not add up
    to the decrease of the loss.
    """

    start: float
    end: float
    clients: float
    server: float
    clients_moved: float = 0.0
    server_moved: float = 0.0
    unaccounted: float = 0.0

    @property
    def loss_rose(self) -> bool:
        """Whether the model was worse at the end than with all embeddings zero, by more than rounding."""
        return self.end > self.start + 1e-12 * abs(self.start)

    @property
    def has_shares(self) -> bool:
        """Whether the clients together lowered the loss, by more than rounding, so that there is something to share."""
        return self.clients > 1e-12 * abs(self.start)

    @property
    def remainder(self) -> float:
        """The part of the decrease that nothing accounts for: the numerical error."""
        return self.start - self.end - self.clients - self.server - self.unaccounted

    @property
    def is_mostly_server(self) -> bool:
        """Whether the server's own part changed the loss, or moved it up and down, by more than all clients did."""
        return abs(self.server) > abs(self.clients) or self.server_moved > self.clients_moved


@dataclass(frozen=True, eq=False)
class Valuation:
    """What each client contributed to a training: its vertical federated Shapley value (definition 2 of the paper).

    `values`, (clients,), are in units of the loss and means over rounds; `per_round`, (rounds, clients), has those of
    single rounds. `server_value`, `server_error` and `per_round_server` are the same for the server's own part of the
    sum, such as an intercept; the value is 0 without one, and never among values and shares. `losses`, (rounds + 1,),
    are the mean losses of the valued embeddings before the first round, when all are zero, and after each round.
    Shapley values of clients and server add up to the decrease of the loss, in every round and over the training (see
    `books`); other semivalues (`settings.semivalue`) do not.

    There are two kinds of errors. `estimator_errors` bound the distance to the Shapley values of the rounds: proven if
    `error_kind` is "certified", except for the rounding of a user's loss if it is "certified but for rounding", with
    99.9 % confidence if it is "confidence", and if it is "confidence on an assumption" only where no draw is far
    outside those that were seen; `tolerance_met` is as reliable as they are. They are infinite, in JSON null, if it is
    "unknown": by the closed form under a head. `completion_errors` estimate the effect of embeddings that were never
    uploaded, from uploads that were held out and from how well uploads determine the rest; 0 where nothing was missing,
    NaN where the effect is unknown. `errors` is their sum. `per_round_errors` are those of the estimator in single
    rounds; where "auto" sampled, they average out over rounds, and `sampled` has what their mean is computed from.

    `share_bounds` are bounds on shares, whose denominator has an error too. Two clients are ranked for certain if value
    ± error of one is above that of the other, even if the bounds of their shares overlap.

    `guarantee` is the paper's Proposition 2 evaluated on held-out embeddings, a pessimistic estimate; None if nothing
    was completed. `completion` reports how well each client's embeddings could be completed. `n_samples` took part in
    the mean, `n_unseen` were never uploaded. `head` is the last link of the transcript's hash chain. `seconds` has the
    time by step, `package` the version. A later valuation continues from `factorisation` where embeddings were
    completed, else from `replay`. The arrays are read-only.
    """

    clients: tuple[str, ...]
    values: Floats
    estimator_errors: Floats
    completion_errors: Floats
    error_kind: ErrorKind
    per_round: Floats
    per_round_errors: Floats
    server_value: float
    server_error: float
    per_round_server: Floats
    per_round_server_errors: Floats
    losses: Floats
    methods: tuple[str, ...]
    mode: Mode
    loss: str
    n_rounds: int
    n_samples: int
    n_unseen: int
    tolerance_met: bool | None
    completion: tuple[CompletionReport, ...] | None
    guarantee: float | None
    head: str
    settings: ValuationSettings
    seconds: Mapping[str, float]
    package: str = PACKAGE
    sampled: Estimate | None = None
    factorisation: Factorisation | None = None
    replay: Replay | None = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def method(self) -> str:
        """The methods that were used, joined by "+"."""
        return "+".join(self.methods) or self.settings.method

    @property
    def rounds(self) -> Estimate:
        """The values of all rounds, (rounds, clients and server), from which a later valuation continues."""
        if self.sampled is not None:
            return self.sampled
        values = np.column_stack([self.per_round, self.per_round_server])
        errors = np.column_stack([self.per_round_errors, self.per_round_server_errors])
        return Estimate(values, errors, -np.diff(self.losses), frozenset(self.methods), self.error_kind)

    @property
    def books(self) -> Books:
        """Where the loss went over the whole training: totals, not means over rounds."""
        clients, server = self.values.sum() * self.n_rounds, self.server_value * self.n_rounds
        moved = [np.abs(changes).sum() for changes in (self.per_round.sum(axis=1), self.per_round_server)]
        start, end = self.losses[0], self.losses[-1]
        adds_up = self.settings.semivalue == str(SHAPLEY) and self.error_kind != "unknown"
        unaccounted = 0.0 if adds_up else start - end - clients - server
        return Books(*map(float, (start, end, clients, server, *moved, unaccounted)))

    @property
    def errors(self) -> Floats:
        """The errors of the estimator and of completion together, (clients,)."""
        result: Floats = self.estimator_errors + self.completion_errors
        return result

    @property
    def shares(self) -> Floats:
        """Fractions of the sum of the values, as in the paper. They can be negative; all are NaN if the sum is 0.

        If the clients raised the loss, the sum is negative and these are shares of the damage.
        """
        return shares_of(self.values)

    @property
    def share_bounds(self) -> Floats:
        """Lower and upper bounds of the shares, (clients, 2), if every value is off by at most its error.

        NaN where the errors together reach the sum of the values, and for clients whose error is unknown; the bounds of
        the others are then for shares among the clients whose errors are known.
        """
        return bounds_of_shares(self.values, self.errors)

    def plot(self) -> alt.LayerChart:
        """Return an Altair chart of the shares with error bars, the largest first: the report's first chart.

        If the sum of the values is not positive, shares mean nothing, and values summed over rounds are drawn.
        """
        # Altair takes a second to import, and most valuations are never drawn.
        from verfedsv.charts import bars

        if self.values.sum() > 0:
            # Where an error is unknown, the bounds are for other shares: those among the other clients.
            is_known = np.isfinite(self.errors).all()
            return bars(self.clients, self.shares, np.where(is_known, self.share_bounds, np.nan))
        totals, errors = self.values * self.n_rounds, self.errors * self.n_rounds
        return bars(self.clients, totals, np.stack([totals - errors, totals + errors], axis=1), as_shares=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each client."""
        try:
            import pandas as pd
        except ImportError:
            raise VerfedsvError(f"to_frame needs pandas: {how_to_install('frame')}; or use to_json") from None
        columns = {
            "value": self.values,
            "share": self.shares,
            "error": self.errors,
            "estimator_error": self.estimator_errors,
            "completion_error": self.completion_errors,
        }
        return pd.DataFrame(columns, index=pd.Index(self.clients, name="client"))

    def to_json(self) -> str:
        """Return the valuation as JSON, without embeddings; NaN is written as null."""
        from verfedsv.valuation.document import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Valuation:
        """Return the valuation that `to_json` wrote."""
        from verfedsv.valuation.document import from_json

        return from_json(text)

    def __repr__(self) -> str:
        books = self.books
        parts = [
            f"{count(len(self.clients), 'client')}, {count(self.n_rounds, 'round')}",
            f"{count(self.n_samples, 'sample')}, {self.mode}",
            self.method,
            describe_totals(self.settings.semivalue, books.clients, books.server),
            f"with errors of up to {self.n_rounds * self.errors.max():.2g}"
            if np.isfinite(self.errors).all()
            else "with unknown errors",
        ]
        return f"<Valuation: {', '.join(parts)}>"


def why_unknown(valuation: Valuation) -> str:
    """Return why the error of completion is unknown for some clients, as a clause; empty if it is known."""
    if not np.isnan(valuation.completion_errors).any():
        return ""
    reports = dict(zip(valuation.clients, valuation.completion or (), strict=False))
    completed = {
        name: report
        for name, report in reports.items()
        if report.rank and (report.expected_size or report.held_out_size)
    }
    if names := [name for name, report in completed.items() if not report.n_held_out]:
        return f"{quoted(names)} uploaded no sample more than once, or hardly any: nothing could be held out as a check"
    if names := [name for name, report in completed.items() if report.n_held_out < FEWEST_HELD_OUT]:
        return f"fewer than {FEWEST_HELD_OUT} embeddings of {quoted(names)} could be held out as a check"
    if names := [name for name, report in completed.items() if not report.held_out_size]:
        return f"all embeddings of {quoted(names)} that were held out as a check are zero"
    if names := [name for name, report in completed.items() if missed_fraction(report) >= HOPELESS]:
        return f"held-out embeddings of {quoted(names)} were completed little better than by zeros"
    unknown = [name for name in completed if np.isnan(valuation.completion_errors[valuation.clients.index(name)])]
    if len(unknown) < len(valuation.clients):
        return f"completion misses nearly as much of the embeddings of {quoted(unknown)} as they changed in training"
    return "too few of the server's offsets could be held out as a check, or all of these are zero"


def missed_fraction(report: CompletionReport) -> float:
    """Return the larger of the measured and the expected fraction of the embeddings missed, by root mean squares."""
    measured = report.held_out_rmse / report.held_out_size
    # If lambda shrinks all embeddings away, their squares vanish; then all of what was held out is missed.
    return max(measured, report.expected_rmse / report.expected_size) if report.expected_size else measured
