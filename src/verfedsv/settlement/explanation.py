"""What a settlement did, in sentences for those who are paid: in the terminal, and wherever else it is shown."""

from __future__ import annotations

import numpy as np

from verfedsv.settlement.result import Settlement
from verfedsv.valuation import Valuation


def explain(result: Settlement, valuation: Valuation) -> list[str]:
    """Return sentences on the rule, negative values, and what the ranges mean."""
    terms = result.terms
    lines = [_explain_rule(result)]
    below = sum(value < 0 for value in result.values)
    if below:
        what = {"zero": "counted as zero", "deduct": "deducted from what these clients get"}
        lines.append(f"Negative values: {below}, {what[terms.negative or 'zero']}.")
    else:
        lines.append("Negative values: none.")
    if valuation.values.sum() < 0:
        lines.append("The loss ROSE over the training: what is paid is not for a model that became better.")
    if None in result.lowest:
        known = np.isfinite(result.errors).all()
        why = "within the errors the values may add up to nothing" if known else "the error of a value is unknown"
        lines.append(f"Ranges are unknown: {why}.")
    else:
        kind = "proven" if valuation.error_kind == "certified" else "with 99.9 % confidence"
        kind = kind if valuation.completion is None else "estimated"
        lines.append(
            f"Range: what a client would get if the values were off by their errors ({kind}), at worst and at best."
        )
    return lines


def _explain_rule(result: Settlement) -> str:
    terms, amount, code = result.terms, result.currency.shown, result.currency.code
    meaning = {
        "shares": "in proportion to values",
        "shapley-positive": "in proportion to positive values",
        "floor": f"in proportion to values, at least {amount(terms.floor or 0)} {code} for each",
        "cap": f"in proportion to values, at most {amount(terms.cap or 0)} {code} for each",
    }
    text = f"Rule: {terms.rule}, {meaning[terms.rule]}"
    if terms.fixed_part:
        text += f"; {terms.fixed_part:f}% of the budget shared equally first"
    return text + "."
