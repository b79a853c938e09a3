"""What an audit compares: files, values and payouts with what was stated. What differs raises `Difference`.

Computed again from the same transcript with the same settings, values are the same but for rounding, which passes.
Their errors say how far they may be from the values of embeddings that nobody has: that leaves no room for others.
Another version of this package, or rounding on another processor that tips a choice of the estimator, may change values
within the error of the estimator; that is a `Reservation`, which a reader has to judge. What is further off differs,
whatever errors and whatever version a statement claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from verfedsv.completion import CompletionReport
from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.runs.folders import VALUATION
from verfedsv.settlement.books import say_books
from verfedsv.settlement.documents import is_alike, is_close, is_same
from verfedsv.settlement.folders import is_evidence
from verfedsv.settlement.payouts import find_difference, pay
from verfedsv.settlement.statement import Statement, fields_of, says_plan
from verfedsv.shapley.result import count
from verfedsv.transcript import format as fmt
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import PACKAGE

ROUNDING = 1e-9
"""By so much of its size in single rounds a value may differ between two processors. Measured: 1e-15, completion by 140
sweeps included. The size is a client's own: nobody's value may be off because another's is large."""

OTHERWISE_COMPUTED = 1e-6
"""By so much of that, and the error of the estimator, another version may differ."""


class Difference(Exception):  # noqa: N818  # it is what an audit looks for, and ends here
    """What differs, in one line."""


@dataclass(frozen=True)
class Check:
    """One thing that was found to be as stated, and what there is to know about it."""

    name: str
    said: str


@dataclass(frozen=True)
class Reservation:
    """What is not as it is computed now, but may be so by another version of this package or on another processor."""

    said: str


Finding = Check | Reservation | str
"""A check that passed, with or without reservation, or a note."""


def check_same_run(stated: Statement, found: Mapping[str, str]) -> None:
    """Raise Difference if a file that the statement lists is missing, or what a transcript begins with is another.

    `found` are hashes by path. The description and the labels never change, also where a training goes on.
    """
    for name, digest in stated.content["files"].items():
        if name not in found:
            raise Difference(f"{name!r} is missing")
        if PurePosixPath(name).name in (fmt.DESCRIPTION, fmt.LABELS) and found[name] != digest:
            raise Difference(f"{name!r} was changed, or is that of another run")


def compare_files(stated: Statement, found: Mapping[str, str]) -> Iterator[Finding]:
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


@dataclass(frozen=True)
class Claim:
    """What `who` says of a valuation, in fields as JSON has them, and the version that is said to have computed it."""

    who: str
    fields: Mapping[str, Any]
    package: str

    @classmethod
    def of_statement(cls, stated: Statement) -> Claim:
        return cls("the statement", stated.content, stated.content["package"])

    @classmethod
    def of_file(cls, written: Valuation) -> Claim:
        return cls(VALUATION, fields_of(written), written.package)

    @property
    def is_of_another_version(self) -> bool:
        return self.package != PACKAGE

    @property
    def advice(self) -> str:
        """What to do if the claim does not hold here: the version that computed it may say more."""
        return f"; it says it was computed by {self.package}: audit it with that" if self.is_of_another_version else ""


def compare_valuation(claim: Claim, again: Valuation) -> Iterator[Finding]:
    """Yield that a claim is what the transcript gives; raise Difference, naming client or field, if it is not.

    `again` is the valuation computed now. Values come first, as they are what is paid by.
    """
    expected = fields_of(again)
    if claim.fields["clients"] != expected["clients"]:
        raise Difference(f"the clients of {claim.who} are not those of the transcript")
    stated = _floats(claim.fields["values"])
    names = [f"value of client {client!r}" for client in again.clients]
    room = _Room.of(np.abs(again.per_round).mean(axis=0), again.estimator_errors)
    yield from _compare_values(claim, names, stated, again.values, room, again.n_rounds)
    yield from _compare_server(claim, again)
    check_sums(claim)
    for name, called in _ERRORS.items():
        names = [f"{called} of client {client!r}" for client in again.clients]
        yield from _compare_errors(claim, names, _floats(claim.fields[name]), getattr(again, name), room, again)
    yield from _compare_exactly(claim, {name: expected[name] for name in expected.keys() - _NUMBERS})
    off = f"{np.abs(stated - again.values).max() * again.n_rounds:.1g}"
    yield Check("values", f"computed again, over the training they differ by {off} at most")
    yield Check("books", say_books(again.books))
    if claim.is_of_another_version:
        yield f"{claim.who} was made with {claim.package}, this is {PACKAGE}; values agree within {off}"


def _compare_server(claim: Claim, again: Valuation) -> Iterator[Reservation]:
    """Raise Difference unless the server's value, and the losses at both ends, are what the transcript gives."""
    books, n_rounds = claim.fields["books"], again.n_rounds
    stated, true = _floats([claim.fields["server_value"]]), _floats([again.server_value])
    moved = _floats([np.abs(again.per_round_server).mean()])
    room = _Room.of(moved, _floats([again.per_round_server_errors.mean()]))
    yield from _compare_values(claim, ["value of the server"], stated, true, room, n_rounds)
    error = _floats([claim.fields["server_error"]])
    yield from _compare_errors(
        claim, ["error of the server's value"], error, _floats([again.server_error]), room, again
    )
    losses = _Room.of(np.full(2, np.abs(again.losses).max()), np.zeros(2))
    names, amounts = ["loss at the start", "loss at the end"], ["start", "end"]
    yield from _compare_values(claim, names, *_books_of(books, again, amounts), losses, 1)
    names, amounts = ["what the clients moved", "what the server moved"], ["clients_moved", "server_moved"]
    errors = [again.per_round_errors.sum(), again.per_round_server_errors.sum()]
    moves = _Room.of(_floats([np.abs(again.per_round).sum(), moved[0] * n_rounds]), _floats(errors))
    yield from _compare_values(claim, names, *_books_of(books, again, amounts), moves, 1)


def _books_of(books: Mapping[str, float], again: Valuation, names: list[str]) -> tuple[Floats, Floats]:
    """Return some numbers of the books, as stated and as computed now."""
    return _floats([books[name] for name in names]), _floats([getattr(again.books, name) for name in names])


@dataclass(frozen=True)
class _Room:
    """How far numbers may be off, (numbers,) each: by rounding, and if they were computed otherwise."""

    rounding: Floats
    otherwise: Floats

    @classmethod
    def of(cls, sizes: Floats, errors: Floats) -> _Room:
        """Return the room of numbers of these sizes, that the estimator computed with these errors."""
        return cls(ROUNDING * sizes, OTHERWISE_COMPUTED * sizes + errors)


_ERRORS = {"errors": "error", "estimator_errors": "estimator error", "completion_errors": "completion error"}
_OF_CLIENTS = {"values", "shares", *_ERRORS}
_NUMBERS = {*_OF_CLIENTS, "server_value", "server_error", "books"}
_OF_A_VERSION = {"method", "error_kind"}
"""What another version may have computed otherwise, with the same settings."""


def _compare_values(
    claim: Claim, names: list[str], stated: Floats, true: Floats, room: _Room, factor: int
) -> Iterator[Reservation]:
    """Raise Difference at a number that is too far from what it is, yield a reservation if it is so within the error.

    All are (numbers,), and are multiplied by `factor` where they are shown.
    """
    off = np.abs(stated - true)

    def say(number: int) -> str:
        both = f"{claim.who} says {stated[number] * factor:.6g}, the transcript gives {true[number] * factor:.6g}"
        return f"{names[number]}: {both}"

    for number in np.flatnonzero(~(off <= room.otherwise)):
        raise Difference(say(int(number)) + claim.advice)
    if (off > room.rounding).any():
        why = "by less than the error of the estimator, but more than rounding on this or another processor explains"
        yield Reservation(f"{say(int((off - room.rounding).argmax()))}: {why}")


def _compare_errors(
    claim: Claim, names: list[str], stated: Floats, true: Floats, room: _Room, again: Valuation
) -> Iterator[Reservation]:
    """Raise Difference at an error below half or above twice what it is: payouts would look surer, or less so.

    Of another version that is a reservation, unless an error is unknown to one of the two alone.
    """
    off = np.where(np.isnan(stated) & np.isnan(true), 0.0, np.abs(stated - true))
    near = ~(off > room.rounding + OTHERWISE_COMPUTED * true) & (np.isnan(stated) == np.isnan(true))
    slack = 1e3 * room.rounding
    alike = near | ((true / 2 - slack <= stated) & (stated <= 2 * true + slack))
    for m in np.flatnonzero(~near):
        both = f"{claim.who} says {_shown(stated[m], again)}, the transcript gives {_shown(true[m], again)}"
        text = f"{names[m]}: {both}"
        if not alike[m] and (not claim.is_of_another_version or np.isnan(off[m])):
            raise Difference(text + claim.advice)
        yield Reservation(f"{text}; the ranges of payouts go by the former")
        return


def _shown(error: float, valuation: Valuation) -> str:
    return "unknown" if np.isnan(error) else f"{error * valuation.n_rounds:.2g}"


def _compare_exactly(claim: Claim, expected: Mapping[str, Any]) -> Iterator[Reservation]:
    """Raise Difference at the first field that is another; another version may have used another method."""
    for name in sorted(expected):
        if is_same(claim.fields[name], expected[name]):
            continue
        text = f"{name}: {_say_both(claim.who, claim.fields[name], 'the run gives', expected[name])}"
        if not (claim.is_of_another_version and name in _OF_A_VERSION):
            raise Difference(text)
        yield Reservation(text)


def _say_both(who: str, said: Any, other: str, right: Any) -> str:
    """Return what is said and what is right, cut where they are long."""
    texts = [text if len(text) <= 60 else f"{text[:60]}…" for text in (json.dumps(said), json.dumps(right))]
    return f"{who} says {texts[0]}, {other} {texts[1]}"


def compare_rest(stated: Statement, expected: Mapping[str, Any]) -> None:
    """Raise Difference at a field of a statement that is none of a valuation and is not what the run gives."""
    for _ in _compare_exactly(Claim.of_statement(stated), expected):
        pass  # none of these may be another


def check_sums(claim: Claim) -> None:
    """Raise Difference unless shares, and what clients and server changed, are those of the values beside them."""
    stated = claim.fields
    total = float(np.sum(stated["values"]))
    for client, share, value in zip(stated["clients"], stated["shares"], stated["values"], strict=True):
        expected = value / total if total else None
        if not is_close(share, expected):
            raise Difference(f"share of client {client!r}: {claim.who} says {share}, its values give {expected}")
    n_rounds, server = stated["n_rounds"], stated["server_value"]
    right = {**stated["books"], "clients": total * n_rounds, "server": float(server * n_rounds)}
    if not is_alike(stated["books"], right):
        raise Difference(f"books: {_say_both(claim.who, stated['books'], 'its values give', right)}")


def compare_rounds(written: Valuation, again: Valuation) -> Iterator[Reservation]:
    """Raise Difference at the first value of a round in valuation.json that is not what the transcript gives."""
    if len(written.per_round) != again.n_rounds:
        raise Difference(f"{VALUATION} is of {len(written.per_round)} rounds; there are {again.n_rounds}")
    rounds = range(1, again.n_rounds + 1)
    names = [f"round {number}, client {client!r}" for number in rounds for client in again.clients]
    claim = Claim.of_file(written)
    sizes = np.tile(np.abs(again.per_round).mean(axis=0), again.n_rounds)
    room = _Room.of(sizes, again.per_round_errors.ravel())
    yield from _compare_values(claim, names, written.per_round.ravel(), again.per_round.ravel(), room, 1)
    names = [f"round {number}, the server" for number in rounds]
    sizes = np.full(again.n_rounds, np.abs(again.per_round_server).mean())
    room = _Room.of(sizes, again.per_round_server_errors)
    yield from _compare_values(claim, names, written.per_round_server, again.per_round_server, room, 1)
    names = [f"loss after round {number}" for number in (0, *rounds)]
    room = _Room.of(np.full(len(names), np.abs(again.losses).max()), np.zeros(len(names)))
    yield from _compare_values(claim, names, written.losses, again.losses, room, 1)


def compare_reports(written: Valuation, again: Valuation) -> Iterator[Reservation]:
    """Raise Difference unless what valuation.json says of errors and completion is what the transcript gives.

    Nothing is paid by it, but reports show it.
    """
    claim, rounds = Claim.of_file(written), range(1, again.n_rounds + 1)
    names = [f"error of round {number}, client {client!r}" for number in rounds for client in again.clients]
    sizes = np.tile(np.abs(again.per_round).mean(axis=0), again.n_rounds)
    room = _Room.of(sizes, np.zeros(len(sizes)))
    stated, true = written.per_round_errors.ravel(), again.per_round_errors.ravel()
    yield from _compare_errors(claim, names, stated, true, room, again)
    for name, said, right in _reported(written, again):
        are_numbers = isinstance(said, float) and isinstance(right, float)
        if is_same(said, right) or (are_numbers and np.isclose(said, right, rtol=1e-6, equal_nan=True)):
            continue
        text = f"{name}: {_say_both(claim.who, _plain(said), 'the transcript gives', _plain(right))}"
        if not claim.is_of_another_version:
            raise Difference(text)
        yield Reservation(text)


def _reported(written: Valuation, again: Valuation) -> Iterator[tuple[str, Any, Any]]:
    """Yield what else a valuation says, of both: numbers of sweeps depend on the processor, and nothing on them."""
    yield "tolerance_met", written.tolerance_met, again.tolerance_met
    yield "guarantee", written.guarantee, again.guarantee
    if written.completion is None or again.completion is None:
        yield "completed", written.completion is not None, again.completion is not None
        return
    for client, one, other in zip(again.clients, written.completion, again.completion, strict=True):
        for name in _OF_COMPLETION:
            yield f"completion of client {client!r}, {name}", getattr(one, name), getattr(other, name)


_OF_COMPLETION = [field.name for field in fields(CompletionReport) if not field.name.endswith("sweeps")]


def _plain(number: Any) -> Any:
    return None if isinstance(number, float) and not np.isfinite(number) else number


def compare_with_file(stated: Statement, written: Valuation) -> None:
    """Raise Difference unless what a statement says of the values is what valuation.json says."""
    for name, right in fields_of(written).items():
        said = stated.content[name]
        # Sums are computed when they are needed, and are compared with the values.
        if name in ("shares", "books") or is_same(said, right):
            continue
        if name in _OF_CLIENTS:
            m = next(m for m, pair in enumerate(zip(said, right, strict=True)) if not is_same(*pair))
            raise Difference(
                f"{name} of client {stated.clients[m]!r}: {_say_both('the statement', said[m], VALUATION, right[m])}"
            )
        raise Difference(f"{name}: {_say_both('the statement', said, VALUATION, right)}")


def _floats(column: Any) -> Floats:
    """Return numbers of JSON as an array, NaN for null."""
    return np.array(column, np.float64)


def check_payouts(stated: Statement) -> Iterator[Check]:
    """Yield that the settlement is what its terms give for the values of the statement, if there is one."""
    try:
        settlement = stated.settlement
        if settlement is None:
            return
        n_rounds, n_planned = stated.content["n_rounds"], stated.content["n_planned"]
        if not says_plan(settlement, n_rounds, n_planned):
            raise Difference(f"the settlement in the statement does not say that {n_planned} rounds were planned")
        again = pay(settlement.terms, replace(stated.basis, n_planned=settlement.n_planned))
    except InputError as error:
        raise Difference(f"the settlement in the statement cannot be: {error}") from None
    difference = find_difference(stated.content["settlement"], again)
    if difference is not None:
        raise Difference(f"the settlement in the statement: {difference}")
    amount = f"{again.currency.shown(again.terms.budget)} {again.currency.code}"
    yield Check("payouts", f"{amount}, rule {again.terms.rule!r}")
