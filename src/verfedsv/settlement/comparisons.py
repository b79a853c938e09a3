"""What an audit compares: files, values and payouts with what was stated. Each comparison raises `Difference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.runs.folders import FILES, VALUATION
from verfedsv.settlement import extract, result, statement
from verfedsv.settlement.documents import format_of
from verfedsv.settlement.payouts import pay
from verfedsv.settlement.statement import Statement
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
    said = _compare(VALUATION, written.clients, written.values, written.errors, again, written.per_round)
    _compare_sizes(written.n_rounds, written.error_kind, again, VALUATION)
    return said


def compare_values(stated: Statement, again: Valuation) -> Check:
    """Raise Difference, naming the client, unless the values of a statement are what the transcript gives."""
    said = _compare("the statement", stated.clients, np.array(stated.values), np.array(stated.errors), again, None)
    _compare_sizes(stated.content["n_rounds"], stated.content["error_kind"], again, "the statement")
    total = float(np.sum(stated.values))
    for client, share, value in zip(stated.clients, stated.content["shares"], stated.values, strict=True):
        expected = value / total if total else None
        # Sums may be rounded otherwise on another machine.
        if (share is None) != (expected is None) or not np.isclose(share or 0, expected or 0, rtol=1e-9, atol=0):
            raise Difference(f"share of client {client!r}: the statement says {share}, its values give {expected}")
    return said


def _compare_sizes(n_rounds: int, error_kind: str, again: Valuation, who: str) -> None:
    if n_rounds != again.n_rounds:
        raise Difference(f"{who} is of {n_rounds} rounds; there are {again.n_rounds}")
    if error_kind != again.error_kind:
        raise Difference(f"{who} calls its errors {error_kind!r}; they are {again.error_kind!r}")


def _compare(
    who: str, clients: tuple[str, ...], values: Floats, errors: Floats, again: Valuation, per_round: Floats | None
) -> Check:
    """Raise Difference unless values are those of another valuation within their errors, and the errors are its too.

    Where an error is unknown, a millionth of the largest value is allowed. An error may not be stated twice as large
    as it is: that would let values pass that are not the transcript's.
    """
    if clients != again.clients:
        raise Difference(f"the clients of {who} are not those of the transcript")
    size = float(np.abs(again.values).max())
    allowed = np.where(np.isnan(errors), 1e-6 * size, errors)
    if per_round is not None:
        _compare_rounds(who, per_round, allowed, again)
    for m, client in enumerate(clients):
        if not abs(values[m] - again.values[m]) <= allowed[m]:
            gives = f"{who} says {values[m]:.6g} ± {allowed[m]:.1g}, the transcript gives {again.values[m]:.6g}"
            raise Difference(f"value of client {client!r}: {gives}")
        stated, true = errors[m], again.errors[m]
        slack = 1e-12 * size
        if np.isnan(stated) != np.isnan(true) or not (np.isnan(true) or true / 2 - slack <= stated <= 2 * true + slack):
            raise Difference(f"error of client {client!r}: {who} says {stated:.2g}, the transcript gives {true:.2g}")
    largest = float(np.abs(values - again.values).max())
    known = errors[~np.isnan(errors)]
    error = f"errors up to {known.max():.1g}" if len(known) else "errors unknown"
    return Check("values", f"computed again, differ by {largest:.1g} at most ({error})")


def _compare_rounds(who: str, per_round: Floats, allowed: Floats, again: Valuation) -> None:
    """Raise Difference at the first value of a round that is further off than the values of rounds may be."""
    if per_round.shape != again.per_round.shape:
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
    """Raise Difference unless the values of a statement are those of valuation.json."""
    for client, one, other in zip(written.clients, stated.values, written.values, strict=True):
        if one != other:
            raise Difference(f"value of client {client!r}: the statement says {one:.6g}, {VALUATION} {other:.6g}")


def check_payouts(stated: Statement) -> Iterator[Check]:
    """Yield that the payouts are what their terms give for the values of the statement, if there are any."""
    try:
        settlement = stated.settlement
        if settlement is None:
            return
        again = pay(settlement.terms, stated.clients, stated.values, stated.errors, stated.content["head"])
    except InputError as error:
        raise Difference(f"the settlement in the statement cannot be: {error}") from None
    shown, code = settlement.currency.shown, settlement.currency.code
    if settlement.clients != again.clients:
        raise Difference("the clients of the settlement are not those of the statement")
    for client, payout, expected in zip(again.clients, settlement.payouts, again.payouts, strict=True):
        if payout != expected:
            raise Difference(f"payout of client {client!r}: {shown(payout)} {code}, its terms give {shown(expected)}")
    if any(getattr(settlement, name) != getattr(again, name) for name in ("lowest", "highest", "values", "head")):
        raise Difference("the settlement in the statement is not of its values and errors")
    yield Check("payouts", f"{shown(sum(again.payouts))} {code}, rule {settlement.terms.rule!r}")
