"""The result of valuing one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.shapley.estimate import ErrorKind as ErrorKind
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.texts import count


@dataclass(frozen=True, eq=False)
class ShapleyResult:
    """What each client contributed to one round.

    `values`, (clients,), are in units of the loss: how much of the round's decrease each client is credited with.
    `errors`, (clients,), bound their distance from the true values: proven if `error_kind` is "certified", and with
    99.9 % confidence, for all clients together, if it is "confidence"; "confidence on an assumption" if that holds only
    where no draw is far outside those that were seen, which is not proven; "certified but for rounding" if a user's
    loss does not bound its rounding. They are infinite if it is "unknown", as for "closed-form" under a head.
    `standard_errors` are None unless something was sampled. `method` is "exact",
    "permutation", "closed-form", or, for "auto", those that took part. `n_evaluations` counts evaluations of the loss
    on all samples. `tolerance_met` says whether `errors` keep the
    tolerance, and is as reliable as they are; None if there was none. `server_value` is the value of the server, which
    is not in `values` and `shares`, and 0 if its offset did not change. Shapley values and `server_value` add up to the
    decrease of the loss in the round. The arrays are read-only.
    """

    values: Floats
    errors: Floats
    error_kind: ErrorKind
    method: str
    semivalue: str
    n_evaluations: int
    standard_errors: Floats | None = None
    tolerance_met: bool | None = None
    server_value: float = 0.0
    server_error: float = 0.0

    def __post_init__(self) -> None:
        for array in (self.values, self.errors, self.standard_errors):
            if array is not None:
                array.flags.writeable = False

    @property
    def shares(self) -> Floats:
        """Values as fractions of their sum, as in the paper. They can be negative; all are NaN if the sum is 0.

        If the clients raised the loss, the sum is negative and these are shares of the damage.
        """
        return shares_of(self.values)

    def __repr__(self) -> str:
        parts = [
            count(len(self.values), "client"),
            self.semivalue,
            self.method,
            describe_totals(self.semivalue, float(self.values.sum()), self.server_value),
            "errors unknown"
            if self.error_kind == "unknown"
            else f"errors up to {self.errors.max():.2g} ({self.error_kind})",
        ]
        if self.tolerance_met is False:
            parts.append("tolerance not met")
        return f"<ShapleyResult: {', '.join(parts)}>"


def describe_totals(semivalue: str, clients: float, server: float) -> str:
    """Return a text with the sum of the values; for Shapley's, by how much clients and server changed the loss.

    >>> describe_totals("shapley", 0.25, -0.125), describe_totals("banzhaf", 0.25, 0.0)
    ('the clients lowered the loss by 0.25, the server RAISED it by 0.125', "the clients' values add up to 0.25")
    """
    if semivalue != str(SHAPLEY):
        return f"the clients' values add up to {clients:.6g}" + (f", the server's is {server:.6g}" if server else "")
    change = f"the clients {'lowered' if clients >= 0 else 'RAISED'} the loss by {abs(clients):.6g}"
    if server:
        change += f", the server {'lowered' if server > 0 else 'RAISED'} it by {abs(server):.6g}"
    return change


def shares_of(values: Floats) -> Floats:
    """Return values as fractions of their sum; NaN if that is 0."""
    total = values.sum()
    return np.full(len(values), np.nan) if total == 0 else np.asarray(values / total)


def bounds_of_shares(values: Floats, errors: Floats) -> Floats:
    """Return the smallest and largest share of each client, (clients, 2), if every value is within its error.

    A share is v / (v + rest), where the rest is off by all other errors together: the ends are among the four corners.
    Clients of unknown error have NaN and do not count in the sum. All are NaN if the errors reach the summed values.
    """
    bounds = np.full((len(values), 2), np.nan)
    known = np.isfinite(errors)
    values, errors = values[known], errors[known]
    total, total_error = values.sum(), errors.sum()
    if total_error < abs(total):
        rest, rest_error = total - values, total_error - errors
        corners = [
            own / (own + others)
            for own in (values - errors, values + errors)
            for others in (rest - rest_error, rest + rest_error)
        ]
        bounds[known] = np.stack([np.min(corners, axis=0), np.max(corners, axis=0)], axis=1)
    return bounds
