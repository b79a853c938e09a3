"""A settlement in sentences, for those who are paid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from verfedsv.settlement.books import describe_books
from verfedsv.settlement.payouts import Basis
from verfedsv.settlement.result import Settlement
from verfedsv.settlement.rules import Rule
from verfedsv.shapley.estimate import MEANING
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.texts import LONGEST_NAME, listed, quoted, shortened
from verfedsv.valuation import Valuation
from verfedsv.valuation.verdict import Reason, RunFacts, judge

SHARED: Mapping[Rule, str] = {
    "shares": "in proportion to values",
    "floor": "in proportion to values",
    "cap": "in proportion to values",
    "floor-and-cap": "in proportion to values",
    "shapley-positive": "in proportion to positive values",
}
"""How each rule shares a budget, before floor and cap. A rule that is not here is an error, not "in proportion"."""


def explain(result: Settlement, valuation: Valuation) -> list[str]:
    """Return sentences on reasons not to pay, the semivalue, the books, the rule, negative values, and the ranges."""
    semivalue = valuation.settings.semivalue
    return [
        *(reason.text for reason in cautions(result, valuation)),
        *([] if semivalue == str(SHAPLEY) else [f"Values: {semivalue}, not Shapley values."]),
        f"Books: {describe_books(result.books)}.",
        f"Rule: {_say_rule(result)}.",
        *_explain_negative(result),
        _explain_range(result, valuation),
    ]


def cautions(
    paid_by: Settlement | Basis, valuation: Valuation | None = None, evaluated: float | None = None
) -> list[Reason]:
    """Return what to check before paying: alarms and doubts; only the valuation itself shows everything.

    `evaluated` is the least training loss that the server measured, if the run is at hand.
    """
    facts = RunFacts(paid_by.n_planned, evaluated=evaluated)
    reasons = judge(paid_by, facts).reasons
    if valuation is not None:
        kinds = {reason.kind for reason in reasons}
        reasons += tuple(reason for reason in judge(valuation, facts).reasons if reason.kind not in kinds)
    return [reason for reason in reasons if reason.weight != "note"]


def describe_terms(result: Settlement) -> str:
    """Return all terms that move money, for those who did not choose them."""
    negative = {
        None: "",
        "zero": "; negative values count as zero",
        "deduct": "; negative values are deducted",
        "refuse": "; nothing is paid if a value is negative",
    }
    return _say_rule(result) + negative[result.terms.negative]


def _say_rule(result: Settlement) -> str:
    terms, amount, code = result.terms, result.currency.shown, result.currency.code
    text = f"{terms.rule}, {SHARED[terms.rule]}"
    bounds = {"at least": terms.floor, "at most": terms.cap}
    limits = [f"{which} {amount(limit)}" for which, limit in bounds.items() if limit is not None]
    if limits:
        text += f", {' and '.join(limits)} {code} for each"
    if terms.pay_server is not None:
        name, payout = shortened(terms.pay_server, LONGEST_NAME), result.payouts[-1]
        verb = "pays in" if payout < 0 else "is paid"
        text += f"; the server {verb} {amount(abs(payout))} {code} for its own part, as {name!r}"
    if terms.fixed_part:
        text += f"; {terms.fixed_part:f}% of the budget shared equally first"
    return text


def _explain_negative(result: Settlement) -> Iterator[str]:
    """Yield how many values are negative, or may be, what the terms do with them, and who pays in."""
    negative = result.terms.negative
    below = sum(value < 0 for value in result.values)
    if below:
        what = {"zero": "counted as zero", "deduct": "deducted from what these clients get"}
        yield f"Negative values: {below}, {what[negative or 'zero']}."
    else:
        yield "Negative values: none."
    pays_in = [
        f"{shortened(result.clients[m], LONGEST_NAME)} {result.currency.shown(-result.payouts[m])}"
        for m in reversed(result.order)
        if result.payouts[m] < 0
    ]
    if pays_in:
        yield f"To be paid in, in {result.currency.code}: {listed(pays_in, len(pays_in))}."
    columns = zip(result.clients, result.values, result.errors, strict=True)
    unsure = [client for client, value, error in columns if 0 <= value < error]
    if unsure and negative in (None, "refuse"):
        subject = "Value of" if len(unsure) == 1 else "Values of"
        why = "choose --negative zero or deduct to include it" if negative is None else "nothing would then be settled"
        yield f"{subject} {quoted(unsure)} may be negative within the error, which the ranges ignore: {why}."


def _explain_range(result: Settlement, valuation: Valuation) -> str:
    unknown = [client for client, low in zip(result.clients, result.lowest, strict=True) if low is None]
    if len(unknown) == len(result.clients):
        known = np.isfinite(result.errors).any()
        why = "within the errors the values may add up to nothing" if known else "no error is known"
        return f"Ranges are unknown: {why}."
    kind = MEANING[valuation.error_kind] if valuation.completion is None else "estimated"
    text = f"Range: the lowest and the highest payout if the values are off by their numerical errors ({kind})."
    if unknown:
        text += f" Unknown for {quoted(unknown)}, whose error is unknown; the others' ranges take that value as exact."
    return text
