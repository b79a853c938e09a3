"""What an audit compares: files, values and payouts with what was stated. Each comparison raises `Difference`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.runs.folders import VALUATION
from verfedsv.settlement.documents import is_close, is_same
from verfedsv.settlement.folders import is_evidence
from verfedsv.settlement.payouts import find_difference, pay
from verfedsv.settlement.statement import Statement, content_of, fields_of, says_plan
from verfedsv.shapley.result import count
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import PACKAGE


class Difference(Exception):  # noqa: N818  # it is what an audit looks for, and ends here
    """What differs, in one line."""


@dataclass(frozen=True)
class Check:
    """One thing that was found to be as stated, and what there is to know about it."""

    name: str
    said: str


def check_nothing_is_missing(stated: Statement, found: Mapping[str, str], *, only: Collection[str] = ()) -> None:
    """Raise Difference if a file that the statement lists is not in the run; `found` are hashes by path.

    With `only`, files of other names than these are not looked for.
    """
    for name in stated.content["files"]:
        if name not in found and (not only or PurePosixPath(name).name in only):
            raise Difference(f"{name!r} is missing")


def compare_files(stated: Statement, found: Mapping[str, str]) -> Iterator[Check | str]:
    """Raise Difference if a file that the statement lists was changed, or a file of the evidence was added.

    Evidence is all that is in the folder of the transcript, and what a run itself writes. Other files, such as reports
    and payouts, may come after the statement, and are named.
    """
    expected = stated.content["files"]
    for name, digest in found.items():
        if name not in expected and is_evidence(name):
            raise Difference(f"{name!r} was added: it is not in the statement")
        if expected.get(name, digest) != digest:
            raise Difference(f"{name!r} was changed")
    yield Check("files", f"{count(len(expected), 'file')} as they were")
    later = [name for name in found if name not in expected]
    if later:
        more = f" and {len(later) - _MOST_NAMED} more" if len(later) > _MOST_NAMED else ""
        yield f"not part of the statement: {', '.join(map(repr, later[:_MOST_NAMED]))}{more}"


_MOST_NAMED = 10


def compare_valuations(written: Valuation, again: Valuation, *, may_be_older: bool = True) -> Check:
    """Raise Difference, naming round and client, unless a written valuation is what the transcript gives.

    If it `may_be_older`, errors and methods of another version of this package need not be those of this one.
    """
    if written.clients != again.clients:
        raise Difference(f"the clients of {VALUATION} are not those of the transcript")
    claim = _Claim(VALUATION, fields_of(written), may_be_older and written.package != PACKAGE)
    _compare_values(claim, again)
    _compare_rounds(claim, written, again)
    return _compare(claim, fields_of(again), again)


def compare_content(stated: Statement, folder: Path, again: Valuation, n_planned: int | None) -> Check:
    """Raise Difference, naming field or client, unless a statement says what one of the same run would say now.

    Files and payouts are compared apart; `again` is the valuation computed now.
    """
    expected = content_of(folder, again, n_planned, None, {})
    apart = {"files", "settlement"}
    claim = _claim_of(stated)
    return _compare(claim, {name: expected[name] for name in expected.keys() - apart}, again)


def check_shares(stated: Statement) -> None:
    """Raise Difference unless the shares of a statement are those of its values."""
    _compare_shares(_claim_of(stated))


@dataclass(frozen=True)
class _Claim:
    """What `who` says of a valuation, in fields as JSON has them; it may have been computed by another version."""

    who: str
    fields: Mapping[str, Any]
    is_of_another_version: bool

    @property
    def values(self) -> Floats:
        return _floats(self.fields["values"])

    @property
    def errors(self) -> Floats:
        return _floats(self.fields["errors"])


def _claim_of(stated: Statement) -> _Claim:
    return _Claim("the statement", stated.content, stated.content["package"] != PACKAGE)


def _compare(claim: _Claim, expected: Mapping[str, Any], again: Valuation) -> Check:
    """Raise Difference unless a claim is what is expected of a valuation: numbers within their errors.

    Values come first, as they are what is paid by: where they differ, so may all that follows from them.
    """
    if claim.fields["clients"] != expected["clients"]:
        raise Difference(f"the clients of {claim.who} are not those of the transcript")
    _compare_values(claim, again)
    _compare_shares(claim)
    for name, called in _ERRORS.items():
        _compare_errors(claim, name, called, again)
    _compare_exactly(claim, expected)
    largest = float(np.abs(claim.values - again.values).max())
    known = claim.errors[~np.isnan(claim.errors)]
    error = f"errors up to {known.max():.1g}" if len(known) else "errors unknown"
    return Check("values", f"computed again, differ by {largest:.1g} at most ({error})")


_ERRORS = {"errors": "error", "estimator_errors": "estimator error", "completion_errors": "completion error"}
_WITHIN_ERRORS = {"values", "shares", *_ERRORS}
_OF_A_VERSION = {"method", "error_kind"}
"""What another version may have computed otherwise, with the same settings."""


def _compare_values(claim: _Claim, again: Valuation) -> None:
    """Raise Difference at a value that is further from that of a valuation than both errors together explain."""
    off, allowed = np.abs(claim.values - again.values), _allowed(claim.errors, again, claim.is_of_another_version)
    for m in np.flatnonzero(~(off <= allowed)):
        gives = f"{claim.who} says {claim.values[m]:.6g}, the transcript gives {again.values[m]:.6g} ± {allowed[m]:.1g}"
        raise Difference(f"value of client {again.clients[m]!r}: {gives}")


def _allowed(errors: Floats, again: Valuation, is_of_another_version: bool) -> Floats:
    """Return how far values with such errors may be from those of a valuation: by the errors of both.

    An error that is stated far too large would let anything pass, so it counts only as far as it can be true. Another
    version may have been less exact, but hardly by more than a thousandth of the largest value, the usual tolerance.
    Where an error is unknown, a millionth of that is allowed.
    """
    largest = float(np.abs(again.values).max())
    own = np.where(np.isnan(again.errors), 1e-6 * largest, again.errors)
    stated = np.where(np.isnan(errors), 1e-6 * largest, errors)
    most = 2 * own + (1e-3 if is_of_another_version else _NEGLIGIBLE) * largest
    result: Floats = own + np.minimum(stated, most) + _ROUNDING * largest
    return result


_ROUNDING = 1e-9
"""By so much of the largest value two machines may differ."""

_NEGLIGIBLE = 1e-6
"""An error below so much of the largest value is as good as none."""


def _compare_exactly(claim: _Claim, expected: Mapping[str, Any]) -> None:
    """Raise Difference at the first field that is another and may not be: all but numbers of clients."""
    apart = _WITHIN_ERRORS | (_OF_A_VERSION if claim.is_of_another_version else set())
    for name in sorted(expected.keys() - apart):
        if not is_same(claim.fields[name], expected[name]):
            said, right = (json.dumps(value, ensure_ascii=False) for value in (claim.fields[name], expected[name]))
            is_short = len(said) + len(right) <= 100
            says = f"{claim.who} says {said}, the run gives {right}"
            raise Difference(f"{name}: {says if is_short else f'{claim.who} has another than the run'}")


def _compare_errors(claim: _Claim, name: str, called: str, again: Valuation) -> None:
    """Raise Difference at an error that is not what it should be.

    No error may be too small for how far its value is off. Errors of this version may not be half or twice what they
    are either: that would make payouts look surer than they are, or let values pass that are not the transcript's.
    """
    stated, true = _floats(claim.fields[name]), getattr(again, name)
    if name == "errors":
        off = np.abs(claim.values - again.values) - again.estimator_errors - _ROUNDING * np.abs(again.values).max()
        for m in np.flatnonzero(off > stated):
            gives = f"{claim.who} says {stated[m]:.2g}, but its value is off by {off[m]:.2g}"
            raise Difference(f"{called} of client {again.clients[m]!r}: {gives}")
    if claim.is_of_another_version:
        return
    for m in np.flatnonzero(~_is_alike(stated, true, again)):
        gives = f"{claim.who} says {stated[m]:.2g}, the transcript gives {true[m]:.2g}"
        raise Difference(f"{called} of client {again.clients[m]!r}: {gives}")


def _is_alike(stated: Floats, true: Floats, again: Valuation) -> NDArray[np.bool_]:
    """Return which errors are neither half nor twice what they are, (clients,), but for what is negligible."""
    slack = _NEGLIGIBLE * float(np.abs(again.values).max())
    is_right = (true / 2 - slack <= stated) & (stated <= 2 * true + slack)
    return np.where(np.isnan(true), np.isnan(stated), is_right)


def _compare_shares(claim: _Claim) -> None:
    fields = claim.fields
    total = float(np.sum(fields["values"]))
    for client, share, value in zip(fields["clients"], fields["shares"], fields["values"], strict=True):
        expected = value / total if total else None
        if not is_close(share, expected):
            raise Difference(f"share of client {client!r}: {claim.who} says {share}, its values give {expected}")


def _floats(column: Any) -> Floats:
    """Return numbers of JSON as an array, NaN for null."""
    return np.array(column, np.float64)


def _compare_rounds(claim: _Claim, written: Valuation, again: Valuation) -> None:
    """Raise Difference at the first value of a round that is further off than the values of rounds may be."""
    per_round = written.per_round
    if len(per_round) != again.n_rounds:
        raise Difference(f"{claim.who} is of {len(per_round)} rounds; there are {again.n_rounds}")
    largest = np.abs(again.per_round).max()
    may_differ = again.per_round_errors + _allowed(written.errors, again, claim.is_of_another_version)
    may_differ = may_differ + (1e-3 if claim.is_of_another_version else 1e-12) * largest
    for t, m in np.argwhere(~(np.abs(per_round - again.per_round) <= may_differ)):
        gives = f"{claim.who} says {per_round[t, m]:.6g}, the transcript gives {again.per_round[t, m]:.6g}"
        raise Difference(f"round {t + 1}, client {again.clients[m]!r}: {gives}")


def say_version(who: str, package: str, values: Floats, errors: Floats, again: Valuation) -> Iterator[str]:
    """Yield a note if values were computed by another version of this package, and how well they agree."""
    if package == PACKAGE:
        return
    off = f"{float(np.abs(values - again.values).max()):.1g}"
    text = f"{who} was made with {package}, this is {PACKAGE}; values agree within {off}"
    unlike = np.flatnonzero(~_is_alike(errors, again.errors, again))
    if len(unlike):
        m = unlike[0]
        both = f"that of client {again.clients[m]!r} was {errors[m]:.2g}, and is {again.errors[m]:.2g} by this version"
        text += f". Errors differ: {both}; ranges of payouts go by the former"
    yield text


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
        n_rounds, n_planned = stated.content["n_rounds"], stated.content["n_planned"]
        if not says_plan(settlement, n_rounds, n_planned):
            raise Difference(f"the settlement in the statement does not say that {n_planned} rounds were planned")
        again = pay(
            settlement.terms,
            stated.clients,
            stated.values,
            stated.errors,
            stated.content["head"],
            n_rounds,
            settlement.n_planned,
        )
    except InputError as error:
        raise Difference(f"the settlement in the statement cannot be: {error}") from None
    difference = find_difference(stated.content["settlement"], again)
    if difference is not None:
        raise Difference(f"the settlement in the statement: {difference}")
    amount = f"{again.currency.shown(again.terms.budget)} {again.currency.code}"
    yield Check("payouts", f"{amount}, rule {again.terms.rule!r}")
