"""What an audit compares: files, values and payouts with what was stated. Each comparison raises `Difference`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.runs.folders import FILES, VALUATION
from verfedsv.settlement import extract, result, statement
from verfedsv.settlement.documents import format_of, is_close, is_same
from verfedsv.settlement.payouts import find_difference, pay
from verfedsv.settlement.statement import Statement, content_of, fields_of
from verfedsv.shapley.result import count
from verfedsv.valuation import Valuation

REPORT = "report.html"
"""How a report in the folder of its run is called."""


class Difference(Exception):  # noqa: N818  # it is what an audit looks for, and ends here
    """What differs, in one line."""


@dataclass(frozen=True)
class Check:
    """One thing that was found to be as stated, and what there is to know about it."""

    name: str
    said: str


def check_nothing_is_missing(stated: Statement, found: Mapping[str, str]) -> None:
    """Raise Difference if a file that the statement lists is not in the run; `found` are hashes by path."""
    for name in stated.content["files"]:
        if name not in found:
            raise Difference(f"{name!r} is missing")


def compare_files(stated: Statement, found: Mapping[str, str], folder: Path) -> Check:
    """Raise Difference if a file of the run was changed, or added."""
    expected = stated.content["files"]
    for name, digest in found.items():
        if name not in expected and not _is_about(folder / name, folder):
            raise Difference(f"{name!r} was added: it is not in the statement")
        if expected.get(name, digest) != digest:
            raise Difference(f"{name!r} was changed")
    return Check("files", f"{count(len(expected), 'file')} as they were")


def _is_about(path: Path, folder: Path) -> bool:
    """Return whether a file is no part of a run, but made from one by this package: it may come after the statement."""
    if path.parent != folder or path.name in FILES:
        return False
    return path.name == REPORT or format_of(path) in (statement.FORMAT, result.FORMAT, extract.FORMAT)


def compare_valuations(written: Valuation, again: Valuation) -> Check:
    """Raise Difference, naming round and client, unless a written valuation is what the transcript gives."""
    if written.clients != again.clients:
        raise Difference(f"the clients of {VALUATION} are not those of the transcript")
    _compare_rounds(VALUATION, written.per_round, _allowed(written.errors, again), again)
    return _compare(VALUATION, fields_of(written), fields_of(again), again)


def compare_content(stated: Statement, folder: Path, again: Valuation) -> Check:
    """Raise Difference, naming field or client, unless a statement says what one of the same run would say now.

    Files and payouts are compared apart; `again` is the valuation computed now.
    """
    expected = content_of(folder, again, None, {})
    apart = {"files", "settlement"}
    return _compare("the statement", stated.content, {name: expected[name] for name in expected.keys() - apart}, again)


def check_shares(stated: Statement) -> None:
    """Raise Difference unless the shares of a statement are those of its values."""
    _compare_shares("the statement", stated.content)


def _compare(who: str, fields: Mapping[str, Any], expected: Mapping[str, Any], again: Valuation) -> Check:
    """Raise Difference unless fields, as JSON has them, are those expected of a valuation: numbers within their errors.

    Where an error is unknown, a millionth of the largest value is allowed. An error may not be stated twice as large
    as it is: that would let values pass that are not the transcript's.
    """
    _compare_exactly(who, fields, expected)
    values, errors = _floats(fields["values"]), _floats(fields["errors"])
    allowed = _allowed(errors, again)
    for m, client in enumerate(again.clients):
        if not abs(values[m] - again.values[m]) <= allowed[m]:
            gives = f"{who} says {values[m]:.6g} ± {allowed[m]:.1g}, the transcript gives {again.values[m]:.6g}"
            raise Difference(f"value of client {client!r}: {gives}")
    for name, called in _ERRORS.items():
        _compare_errors(f"{who} says", called, _floats(fields[name]), getattr(again, name), again)
    _compare_shares(who, fields)
    largest = float(np.abs(values - again.values).max())
    known = errors[~np.isnan(errors)]
    error = f"errors up to {known.max():.1g}" if len(known) else "errors unknown"
    return Check("values", f"computed again, differ by {largest:.1g} at most ({error})")


_ERRORS = {"errors": "error", "estimator_errors": "estimator error", "completion_errors": "completion error"}
_WITHIN_ERRORS = {"values", "shares", *_ERRORS}


def _compare_exactly(who: str, fields: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise Difference at the first field that is another and may not be: all but numbers of clients."""
    if fields["clients"] != expected["clients"]:
        raise Difference(f"the clients of {who} are not those of the transcript")
    for name in sorted(expected.keys() - _WITHIN_ERRORS):
        if not is_same(fields[name], expected[name]):
            said, right = (json.dumps(value, ensure_ascii=False) for value in (fields[name], expected[name]))
            is_short = len(said) + len(right) <= 100
            more = f"{who} says {said}, the run gives {right}" if is_short else f"{who} has another than the run"
            raise Difference(f"{name}: {more}")


def _compare_errors(says: str, called: str, stated: Floats, true: Floats, again: Valuation) -> None:
    slack = 1e-12 * float(np.abs(again.values).max())
    known = ~np.isnan(true)
    is_right = (true / 2 - slack <= stated) & (stated <= 2 * true + slack)
    for m in np.flatnonzero(np.where(known, ~is_right, ~np.isnan(stated))):
        gives = f"{says} {stated[m]:.2g}, the transcript gives {true[m]:.2g}"
        raise Difference(f"{called} of client {again.clients[m]!r}: {gives}")


def _compare_shares(who: str, fields: Mapping[str, Any]) -> None:
    total = float(np.sum(fields["values"]))
    for client, share, value in zip(fields["clients"], fields["shares"], fields["values"], strict=True):
        expected = value / total if total else None
        if not is_close(share, expected):
            raise Difference(f"share of client {client!r}: {who} says {share}, its values give {expected}")


def _allowed(errors: Floats, again: Valuation) -> Floats:
    """Return how far values may be from those of a valuation."""
    return np.where(np.isnan(errors), 1e-6 * float(np.abs(again.values).max()), errors)


def _floats(column: Any) -> Floats:
    """Return numbers of JSON as an array, NaN for null."""
    return np.array(column, np.float64)


def _compare_rounds(who: str, per_round: Floats, allowed: Floats, again: Valuation) -> None:
    """Raise Difference at the first value of a round that is further off than the values of rounds may be."""
    if len(per_round) != again.n_rounds:
        raise Difference(f"{who} is of {len(per_round)} rounds; there are {again.n_rounds}")
    may_differ = again.per_round_errors + np.maximum(allowed, 1e-12 * np.abs(again.per_round).max())
    for t, m in np.argwhere(~(np.abs(per_round - again.per_round) <= may_differ)):
        gives = f"{who} says {per_round[t, m]:.6g}, the transcript gives {again.per_round[t, m]:.6g}"
        raise Difference(f"round {t + 1}, client {again.clients[m]!r}: {gives}")


def say_what_is_odd(values: Floats, again: Valuation) -> Iterator[str]:
    """Yield a note if values are within their errors, but further off than another machine would explain.

    Most of an error is often that of completion: how far values are from those of embeddings that nobody has, and not
    how far from each other two computations from the same uploads.
    """
    largest = float(np.abs(again.values).max())
    off = np.abs(values - again.values) - again.estimator_errors
    m = int(off.argmax())
    if off[m] > 1e-3 * largest:
        by = f"{abs(values[m] - again.values[m]):.1g}"
        yield (
            f"value of client {again.clients[m]!r} differs by {by} from that of the transcript: within its error, but "
            "more than computing it on another machine explains; ask which version and settings it is from"
        )


def compare_with_file(stated: Statement, written: Valuation) -> None:
    """Raise Difference unless what a statement says of the values is what valuation.json says."""
    for name, expected in fields_of(written).items():
        # Shares are computed when they are needed, and are compared with the values.
        said = stated.content[name]
        if name == "shares" or is_same(said, expected):
            continue
        if name in _ERRORS or name == "values":
            m = next(m for m, pair in enumerate(zip(said, expected, strict=True)) if not is_same(*pair))
            both = f"the statement says {said[m]}, {VALUATION} {expected[m]}"
            raise Difference(f"{name} of client {written.clients[m]!r}: {both}")
        raise Difference(f"{name}: the statement does not say what {VALUATION} says")


def check_payouts(stated: Statement) -> Iterator[Check]:
    """Yield that the settlement is what its terms give for the values of the statement, if there is one."""
    try:
        settlement = stated.settlement
        if settlement is None:
            return
        again = pay(settlement.terms, stated.clients, stated.values, stated.errors, stated.content["head"])
    except InputError as error:
        raise Difference(f"the settlement in the statement cannot be: {error}") from None
    difference = find_difference(stated.content["settlement"], again)
    if difference is not None:
        raise Difference(f"the settlement in the statement: {difference}")
    amount = f"{again.currency.shown(again.terms.budget)} {again.currency.code}"
    yield Check("payouts", f"{amount}, rule {again.terms.rule!r}")
