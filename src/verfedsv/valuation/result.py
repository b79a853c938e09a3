"""The result of valuing a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from verfedsv._version import __version__
from verfedsv.completion import Completion, CompletionReport
from verfedsv.errors import VerfedsvError, how_to_install
from verfedsv.losses import Floats
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.result import ErrorKind, bounds_of_shares, count, say_totals, shares_of
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.transcript.description import Mode

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from verfedsv.valuation.replay import Replay

PACKAGE = f"verfedsv {__version__}"


@dataclass(frozen=True, eq=False)
class Factorisation:
    """The completed embeddings that a valuation was computed from.

    `completions` has those of each player of which some were missing, over the rounds in which it took part, and an
    intercept of the server; `reports` state for every client how well its embeddings could be completed.
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
    `clients_moved` and `server_moved` are how far they moved it up and down, the sizes of single rounds added up: a
    server that moves back and forth changes nothing in the end, yet decides what the changes of others are worth.
    `unaccounted` is exactly 0 for Shapley values; those of other semivalues do not add up to the decrease of the loss.
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
        """What is left of the loss at the start: the numerical error."""
        return self.start - self.end - self.clients - self.server - self.unaccounted

    @property
    def is_mostly_server(self) -> bool:
        """Whether the server's own part changed the loss, or moved it up and down, by more than all clients did."""
        return abs(self.server) > abs(self.clients) or self.server_moved > self.clients_moved


@dataclass(frozen=True, eq=False)
class Valuation:
    """What each client contributed to a training: its vertical federated Shapley value (definition 3 of the paper).

    `values`, (clients,), are in units of the loss and averages over the rounds: `per_round`, (rounds, clients), has the
    round's own. `server_value`, with `server_error` and `per_round_server`, is the same of the server's own part of the
    sum, such as an intercept; it is 0 without one, and not among values and shares. `losses`, (rounds + 1,), are the
    mean losses of the valued embeddings before the first round, when all are zero, and after each. In every round the
    loss falls by what clients and server together are credited with, and so it does over the training: `books`. This is
    so for Shapley values, and not for other semivalues (`settings.semivalue`).

    Errors are of two kinds. `estimator_errors` bound how far the values are from the Shapley values of the rounds:
    proven if `error_kind` is "certified", with 99.9 % confidence if it is "confidence". `completion_errors` estimate
    what the embeddings that were never uploaded may change, from the error of completion on uploads that were held out;
    0 where nothing was missing, NaN where that cannot be estimated. `errors` is their sum. `per_round_errors` are those
    of the estimator in single rounds; where "auto" sampled they average out over rounds, and `sampled` has what that is
    computed from.

    `share_bounds` says how far a share may be off, which is a part of a sum that has an error too. Two clients are
    ranked for certain if value ± error of one is above that of the other, even if the bounds of their shares overlap.

    `guarantee` is Proposition 2 of the paper evaluated from held-out embeddings, an estimate too, and a very
    pessimistic one; None where nothing was completed. `completion` says how well each client's embeddings could be
    completed. `n_samples` took part in the mean, `n_unseen` were never uploaded. `head` is the last link of the
    transcript's hash chain. `seconds` says what took how long, `package` which version computed it. `factorisation` and
    `replay` are the embeddings from which a later valuation continues, where those were completed and where they were
    not. The arrays are read-only.
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
        """The methods that took part, joined by "+"."""
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
        adds_up = self.settings.semivalue == str(SHAPLEY)
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
        """Between which fractions each share lies, (clients, 2), if every value is off by at most its error.

        NaN where the errors together reach the sum of the values. Clients of unknown error have NaN too, and the
        bounds of the others are for their shares among the clients whose errors are known.
        """
        return bounds_of_shares(self.values, self.errors)

    def plot(self) -> alt.LayerChart:
        """Return the shares with their error bars, the largest first, as an Altair chart: the report's first picture.

        If the sum of the values is not positive, shares mean nothing, and the values over all rounds are drawn.
        """
        # Drawing takes a second to import, and most valuations are never drawn.
        from verfedsv.charts import bars

        if self.values.sum() > 0:
            # Where errors are unknown, bounds are of shares among the other clients, and not of these.
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
        """Return the valuation as JSON, all but the embeddings; NaN is written as null."""
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
            say_totals(self.settings.semivalue, books.clients, books.server),
            f"with errors of up to {self.n_rounds * self.errors.max():.2g}",
        ]
        return f"<Valuation: {', '.join(parts)}>"
