"""`settle`: what each client is paid, to the cent, and the range that the errors of the values allow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from verfedsv.errors import InputError
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import find_run
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.agreement import check_is_of, refuse_others
from verfedsv.settlement.books import refuse_rejected
from verfedsv.settlement.documents import find_difference
from verfedsv.settlement.ranges import outward, ranges_of_parts, ranges_with_deduction
from verfedsv.settlement.result import Settlement
from verfedsv.settlement.rules import as_whole_numbers, round_to_cents, split
from verfedsv.settlement.terms import Terms
from verfedsv.texts import listed
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import Books


def settle(
    valuation: Valuation,
    terms: Terms,
    *,
    run: str | os.PathLike[str] | RunFolder | None = None,
    even_if_the_loss_rose: bool = False,
    accept_settings: bool = False,
) -> Settlement:
    """Return what each client of a valuation is paid on some terms.

    `run` is the folder of the run that was valued, also in an object store. A training that is still running is
    refused, and a settlement of one that was stopped early states its plan. Values are refused if they were not
    computed with the settings agreed for the run (without `run`, the defaults), unless `accept_settings` is true. A
    training in which the loss rose, or which the clients together did not improve, is refused unless
    `even_if_the_loss_rose` is true.

    >>> from verfedsv import Recorder, value
    >>> with Recorder(None, labels=[0, 1, 1, 0], clients=["bank", "telco"]) as recorder:
    ...     recorder.log([0, 1, 2, 3], {"bank": [-1.0, 1.0, 1.0, -1.0], "telco": [-0.5, 0.0, 0.0, 0.0]})
    >>> [str(amount) for amount in settle(value(recorder), Terms.of(1000, "EUR")).amounts]
    ['898.58', '101.42']
    """
    if not isinstance(valuation, Valuation) or not isinstance(terms, Terms):
        raise InputError(
            "settle takes a Valuation and Terms, such as settle(value(run), Terms.of(1000, 'EUR')); received "
            f"{type(valuation).__name__} and {type(terms).__name__}"
        )
    n_planned, took_part = None, dict[str, str]()
    if run is not None:
        folder = run if isinstance(run, RunFolder) else find_run(run)
        transcript = folder.open(for_values=False)  # it was valued, by a loss of the user's own if need be
        extent = folder.extent(transcript)
        refuse_running(extent, "settled")
        took_part = transcript.verify(is_growing=True).attendances()
        check_is_of(valuation, transcript)
        refuse_others(folder, transcript, valuation.settings, accepted=accept_settings)
        n_planned = extent.n_planned
    elif not accept_settings and (others := valuation.settings.differences(ValuationSettings())):
        raise InputError(
            "without the folder of the run the agreed settings are unknown, and these differ from the defaults: "
            f"{', '.join(others)}; settle the run by its folder, or add accept_settings=True (--accept-settings)"
        )
    refuse_rejected(valuation, "settled", accepted=even_if_the_loss_rose)
    return pay(terms, Basis.of(valuation, n_planned, took_part))


@dataclass(frozen=True)
class Basis:
    """What payouts are computed from: the numbers of a valuation, its transcript, and its plan.

    `n_planned` is the number of planned rounds (None if unknown), `took_part` in which rounds clients took part that
    missed any.
    """

    clients: tuple[str, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    server_value: float
    server_error: float
    books: Books
    head: str
    n_rounds: int
    n_planned: int | None = None
    took_part: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, valuation: Valuation, n_planned: int | None = None, took_part: Mapping[str, str] | None = None
    ) -> Basis:
        return cls(
            valuation.clients,
            tuple(valuation.values.tolist()),
            tuple(valuation.errors.tolist()),
            valuation.server_value,
            valuation.server_error,
            valuation.books,
            valuation.head,
            valuation.n_rounds,
            n_planned,
            took_part or {},
        )


def check_settlement(settlement: Settlement, valuation: Valuation) -> None:
    """Raise InputError unless a settlement is exactly what its terms give for a valuation."""
    if settlement.head != valuation.head:
        raise InputError("the settlement is of another transcript, or the run has grown since; settle this run")
    again = pay(settlement.terms, Basis.of(valuation, settlement.n_planned, settlement.took_part))
    if settlement.values != again.values:
        raise InputError("the settlement is of another valuation of this run; settle it again")
    difference = first_difference(settlement.to_fields(), again)
    if difference is not None:
        raise InputError(f"the settlement was changed: {difference}; settle again")


def first_difference(fields: Mapping[str, Any], again: Settlement) -> str | None:
    """Return the first difference between the JSON fields of a settlement and another one; None if there is none."""
    expected = again.to_fields()
    for names, rounding in (([name for name in expected if name not in _SUMS], 0.0), (_SUMS, 1e-9)):
        said, right = ({_CALLED.get(name, name): found[name] for name in names} for found in (fields, expected))
        difference = find_difference(said, right, again.clients, rounding=rounding)
        if difference is not None:
            where, *both = difference
            stated, computed = ("none" if entry in (None, "") else str(entry)[:60] for entry in both)
            return f"{where} is {stated}, but the terms and values give {computed}"
    return None


_SUMS = ("shares", "books")
"""Sums, which another processor may round differently."""

_CALLED = {"lowest": "lowest payout", "highest": "highest payout"}


def pay(terms: Terms, basis: Basis) -> Settlement:
    """Return the settlement of values on terms. If the server is paid, it comes last."""
    clients, values, errors = basis.clients, basis.values, basis.errors
    if terms.pay_server is not None:
        if terms.pay_server in clients:
            raise InputError(f"the server cannot have the name of client {terms.pay_server!r}; choose another")
        clients, values = (*clients, terms.pay_server), (*values, basis.server_value)
        errors = (*errors, basis.server_error)
    _check(terms, clients, values)
    if not all(map(math.isfinite, basis.books)):
        raise InputError("payouts cannot be computed: losses or sums of values are not finite")
    (weights,) = as_whole_numbers(values if terms.negative == "deduct" else [max(0.0, value) for value in values])
    fixed = terms.fixed_for_each(len(clients))
    parts = split(weights, terms.budget - fixed * len(clients), terms.limits_above(fixed))
    if parts.left:
        raise InputError(_explain_what_is_left(terms, weights, parts.left))
    payouts = round_to_cents([fixed + parts.part(weight) for weight in weights])
    notes = [
        _note(terms, value, payout, parts.limit_of(weight))
        for value, payout, weight in zip(values, payouts, weights, strict=True)
    ]
    ranges = _ranges(terms, values, errors)
    return Settlement(
        terms=terms,
        clients=clients,
        values=values,
        errors=errors,
        payouts=tuple(payouts),
        lowest=tuple(low for low, _ in ranges),
        highest=tuple(high for _, high in ranges),
        notes=tuple(notes),
        books=basis.books,
        head=basis.head,
        n_rounds=basis.n_rounds,
        n_planned=basis.n_planned,
        took_part=basis.took_part,
    )


def _ranges(
    terms: Terms, values: Sequence[float], errors: Sequence[float]
) -> Sequence[tuple[int, int] | tuple[None, None]]:
    """Return the lowest and highest payouts that the errors allow, in cents; None where that is unknown.

    Each payout depends on all values. So where an error is unknown, the ranges of the others assume that this value is
    exact; if no error is known, all ranges are unknown.
    """
    fixed = terms.fixed_for_each(len(values))
    pot = terms.budget - fixed * len(values)
    if pot == 0:
        return [outward(fixed, fixed)] * len(values)
    is_known = [math.isfinite(error) and error >= 0 for error in errors]
    known = [error if is_there else 0.0 for error, is_there in zip(errors, is_known, strict=True)]
    whole_values, whole_errors = as_whole_numbers(values, known)
    if terms.negative == "deduct":
        ranges = ranges_with_deduction(whole_values, whole_errors, pot)
    else:
        ranges = [*ranges_of_parts(whole_values, whole_errors, pot, terms.limits_above(fixed))]
    return [
        outward(bounds[0] + fixed, bounds[1] + fixed) if is_there and bounds is not None else (None, None)
        for bounds, is_there in zip(ranges, is_known, strict=True)
    ]


def _check(terms: Terms, clients: Sequence[str], values: Sequence[float]) -> None:
    """Raise InputError if these values cannot be settled on these terms."""
    unknown = [client for client, value in zip(clients, values, strict=True) if not math.isfinite(value)]
    if unknown:
        raise InputError(f"the value of client {unknown[0]!r} is not a number")
    terms.check_for(len(clients))
    below = [client for client, value in zip(clients, values, strict=True) if value < 0]
    if below and terms.negative in (None, "refuse"):
        who = listed([*map(repr, below)], 5)
        what = f"{'values' if len(below) > 1 else 'the value'} of {who} {'are' if len(below) > 1 else 'is'} negative"
        if terms.negative == "refuse":
            raise InputError(f"refused: {what}")
        raise InputError(
            f"{what}; choose what happens to negative values with the argument negative (--negative): 'zero' counts "
            "them as zero and shares the budget among the others, 'deduct' makes these clients pay in, 'refuse' does "
            "not settle"
        )


def _explain_what_is_left(terms: Terms, weights: Sequence[int], left: Fraction) -> str:
    if not any(weight > 0 for weight in weights):
        return (
            "no client has a positive value, so there is no basis for shares; only a fixed part of 100% can be paid: "
            "fixed_part='100%' (--fixed-part 100%)"
        )
    if terms.negative == "deduct":
        return (
            "the values add up to no more than 0, so there is nothing to deduct from; choose another option for "
            "negative (--negative)"
        )
    amount = f"{terms.currency.shown(int(left))} {terms.currency.code}"
    fixed = "fixed_part (--fixed-part)"
    remedy = f"raise the cap or {fixed}" if terms.fixed_part else f"raise the cap, or add {fixed}"
    return (
        f"all clients with a positive value are at the cap of {terms.currency.shown(terms.cap or 0)}, and {amount} of "
        f"the budget would be left; {remedy}"
    )


def _note(terms: Terms, value: float, payout: int, limit: str | None) -> str:
    """Return a short note on what the rule did to a client."""
    parts = []
    if value < 0:
        parts.append("negative value deducted" if terms.negative == "deduct" else "negative value counted as zero")
    if limit is not None:
        parts.append("raised to the floor" if limit == "floor" else "held at the cap")
    if payout < 0:
        parts.append("pays in")
    return "; ".join(parts)
