"""What an audit compares: files, values and payouts with what was stated. What differs raises `Difference`.

The same transcript and settings give the same values, up to rounding. Stated errors do not widen this: they bound the
distance from the values of the complete embeddings, which nobody has. Another version of this package, or another
processor whose rounding changes a choice of the estimator, may change values within the error of the estimator: that is
a `Reservation`, for the reader to judge. Anything further off differs, whatever errors and version a statement claims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.errors import InputError
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.books import describe_books
from verfedsv.settlement.documents import find_difference
from verfedsv.settlement.explanation import describe_terms
from verfedsv.settlement.payouts import first_difference, pay
from verfedsv.settlement.statement import Statement, fields_of, says_attendance, says_plan
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.texts import count, listed
from verfedsv.valuation import Valuation
from verfedsv.valuation.document import as_json
from verfedsv.valuation.result import PACKAGE
from verfedsv.valuation.verdict import Reason

ROUNDING = 1e-9
"""How far a value may differ between two processors, relative to its size. Measured: 1e-15 of the size in single
rounds, including completion by 140 sweeps. The size is the client's own: a large value of another client excuses
nothing. Nor do large changes that are taken back later: these allow at most the error of the estimator."""

OTHERWISE_COMPUTED = 1e-6
"""How far another version may differ, relative to the same size, in addition to the error of the estimator."""


class Difference(Exception):  # noqa: N818  # it is the result of an audit, and never leaves it
    """What differs, in one line."""


@dataclass(frozen=True)
class Check:
    """A check that passed, and details."""

    name: str
    said: str


@dataclass(frozen=True)
class Reservation:
    """A difference that another version of this package or another processor may explain."""

    said: str


Finding = Check | Reservation | Reason | str
"""A check that passed, with or without reservation, a reason not to pay yet, or a note."""


def check_same_run(stated: Statement, found: Mapping[str, str]) -> None:
    """Raise Difference if a file that the statement lists is missing, or the beginning of its transcript differs.

    `found` are hashes by path.
    """
    for name, digest in stated.content["files"].items():
        if name not in found:
            raise Difference(f"{name!r} is missing")
        if RunFolder.is_origin(name) and found[name] != digest:
            raise Difference(f"{name!r} was changed, or is that of another run")


def compare_files(stated: Statement, found: Mapping[str, str]) -> Iterator[Finding]:
    """Raise Difference if a file that the statement lists was changed, or a file of the evidence was added.

    Evidence is everything in the folder of the transcript, and what a run itself writes. Other files, such as reports
    and payouts, may be added after the statement; a note names them.
    """
    expected = stated.content["files"]
    for name, digest in found.items():
        if name not in expected and RunFolder.is_evidence(name):
            raise Difference(f"{name!r} was added: it is not in the statement")
        if expected.get(name, digest) != digest:
            raise Difference(f"{name!r} was changed")
    yield Check("files", f"{count(len(expected), 'file')} unchanged")
    if later := [repr(name) for name in found if name not in expected]:
        yield f"not part of the statement: {listed(later, 10)}"


def compare_exactly(stated: Statement, right: Mapping[str, Any], source: str) -> None:
    """Raise Difference at the first field in which a statement differs from `right`, which `source` introduces."""
    said = {name: stated.content[name] for name in right}
    if (found := find_difference(said, right, stated.clients)) is not None:
        raise Difference(_say_both("the statement", source, *found))


def compare_attendance(stated: Statement, present: Mapping[str, str]) -> Iterator[Reservation]:
    """Raise Difference unless a statement says of all clients in which rounds they took part, as they are `present`.

    If it says nothing, and another version is said to have written it, yield a reservation: early ones did not say it.
    """
    found = find_difference({"took_part": stated.content.get("took_part", {})}, {"took_part": present})
    claim = Claim.of_statement(stated)
    yield from _judge(claim, found, "took_part" not in stated.content and claim.is_of_another_version)


@dataclass(frozen=True)
class Claim:
    """A valuation as stated by `who`, in JSON fields, and the version that is said to have computed it."""

    who: str
    fields: Mapping[str, Any]
    package: str

    @classmethod
    def of_statement(cls, stated: Statement) -> Claim:
        return cls("the statement", stated.content, stated.content["package"])

    @classmethod
    def of_file(cls, written: Valuation) -> Claim:
        return cls(RunFolder.valuation_name, fields_of(written), written.package)

    @property
    def settings(self) -> ValuationSettings:
        return ValuationSettings(**self.fields["settings"])

    @property
    def is_of_another_version(self) -> bool:
        return self.package != PACKAGE

    @property
    def advice(self) -> str:
        """What to do if the claim does not hold here."""
        return f"; it was computed by {self.package}: audit it with that version" if self.is_of_another_version else ""


def compare_valuation(claim: Claim, again: Valuation) -> Iterator[Finding]:
    """Compare a claim with `again`, the valuation computed now: yield the checks that pass, reservations and notes.

    Raises Difference, naming client or field, at the first check that fails. Values come first: payouts depend on them.
    """
    expected = fields_of(again)
    if claim.fields["clients"] != expected["clients"]:
        raise Difference(f"the clients of {claim.who} are not those of the transcript")
    for numbers in _numbers(claim, again):
        yield from numbers.compare(claim)
    check_sums(claim)
    for name in sorted(expected.keys() - _NUMBERS):
        may_be_another = claim.is_of_another_version and name in _OF_A_VERSION
        found = find_difference({name: claim.fields[name]}, {name: expected[name]})
        yield from _judge(claim, found, may_be_another)
    off = f"{np.abs(np.array(claim.fields['values']) - again.values).max() * again.n_rounds:.1g}"
    yield Check("values", f"recomputed; totals differ by at most {off}")
    yield Check("books", describe_books(again.books))
    if claim.is_of_another_version:
        yield f"{claim.who} was made with {claim.package}, this is {PACKAGE}; values agree within {off}"


_NUMBERS = {
    *("values", "shares", "errors", "estimator_errors", "completion_errors", "server_value", "server_error", "books")
}
_OF_A_VERSION = {"method", "error_kind"}
"""What another version may compute differently with the same settings."""


@dataclass(frozen=True)
class _Numbers:
    """Numbers of one kind, (numbers,), as stated and as computed now; `called` names each by its index.

    Values may be off by an amount that depends on their `size`, by `rounding` beyond that, and with reservation by the
    `error` of the estimator. If `error` is None, the numbers are stated errors. They may be half or twice as large,
    since rounding may change a choice of the estimator. In another version any size passes, unless only one of the two
    is unknown. Messages show the numbers multiplied by `factor`.
    """

    called: Callable[[int], str]
    stated: Floats
    true: Floats
    size: Floats | float
    error: Floats | float | None
    factor: int = 1
    rounding: Floats | float = 0.0

    def compare(self, claim: Claim) -> Iterator[Reservation]:
        """Raise Difference at a number that is too far off; yield a reservation if one is off by less."""
        rounding, off = ROUNDING * self.size + self.rounding, np.abs(self.stated - self.true)
        if self.error is not None:
            is_equal = off <= rounding
            is_near = is_equal | (off <= OTHERWISE_COMPUTED * self.size + _known(np.asarray(self.error)))
        else:
            # An unknown error is infinite where it is computed, and null where it is written.
            is_unknown, slack = ~np.isfinite(self.stated) & ~np.isfinite(self.true), 1e3 * rounding
            is_equal = is_unknown | (off <= rounding + OTHERWISE_COMPUTED * self.true)
            is_near = (self.true / 2 - slack <= self.stated) & (self.stated <= 2 * self.true + slack)
            is_near |= is_equal | (claim.is_of_another_version & ~np.isnan(off))
        for index in np.flatnonzero(~is_near)[:1]:
            raise Difference(self._say(claim, index) + claim.advice)
        for index in np.flatnonzero(~is_equal)[:1]:
            yield Reservation(self._say(claim, index))

    def _say(self, claim: Claim, index: int) -> str:
        digits = ".2g" if self.error is None else ".6g"
        said, right = (
            "unknown" if not np.isfinite(number) else f"{number * self.factor:{digits}}"
            for number in (self.stated[index], self.true[index])
        )
        return f"{self.called(index)}: {claim.who} says {said}, the transcript gives {right}"


def _numbers(claim: Claim, again: Valuation) -> Iterator[_Numbers]:
    """Yield all numbers of a claim with those computed now: values, losses and errors, of clients and server."""
    said, books, n_rounds = claim.fields, claim.fields["books"], again.n_rounds
    who = _players(again)

    def named(kind: str) -> Callable[[int], str]:
        return lambda m: f"{kind} of {who[m]}"

    rounds, errors = _rounds_of(again)
    size, moved = np.abs(rounds).mean(axis=0), np.abs(rounds).sum(axis=0)
    stated, true = _floats([*said["values"], said["server_value"]]), np.append(again.values, again.server_value)
    left = np.append(again.estimator_errors, errors[:, -1].mean())
    net, rounding = np.minimum(size, np.abs(true)), np.minimum(ROUNDING * size, _known(left))
    yield _Numbers(named("value"), stated, true, net, left, n_rounds, rounding)
    stated, ends = _floats([books["start"], books["end"]]), ["loss at the start", "loss at the end"]
    yield _Numbers(ends.__getitem__, stated, again.losses[[0, -1]], np.abs(again.losses).max(), 0.0)
    stated = _floats([books["clients_moved"], books["server_moved"]])
    true = _floats([again.books.clients_moved, again.books.server_moved])
    sizes, room = (_floats([part[:-1].sum(), part[-1]]) for part in (moved, errors.sum(axis=0)))
    yield _Numbers(["what the clients moved", "what the server moved"].__getitem__, stated, true, sizes, room)
    stated, true = _floats([books["unaccounted"]]), _floats([again.books.unaccounted])
    yield _Numbers(["what is unaccounted for"].__getitem__, stated, true, sizes.sum(), room.sum())
    stated, true = _floats([*said["errors"], said["server_error"]]), np.append(again.errors, again.server_error)
    yield _Numbers(named("error"), stated, true, size, None, n_rounds)
    for kind in ("estimator", "completion"):
        stated, true = _floats(said[f"{kind}_errors"]), getattr(again, f"{kind}_errors")
        yield _Numbers(named(f"{kind} error"), stated, true, size[:-1], None, n_rounds)


def compare_rounds(written: Valuation, again: Valuation) -> Iterator[Reservation]:
    """Raise Difference unless valuation.json has the rounds and the reports of completion that were computed now."""
    claim = Claim.of_file(written)
    if written.per_round.shape != again.per_round.shape:
        raise Difference(f"{claim.who} covers {count(written.n_rounds, 'round')}, but there are {again.n_rounds:,}")
    (said, said_errors), (true, true_errors) = _rounds_of(written), _rounds_of(again)
    # The median: a few large rounds, taken back later, must not excuse differences in the others.
    sizes = (np.median(np.abs(true), axis=0) + np.abs(true)).ravel()
    who = _players(again)

    def called(index: int) -> str:
        t, m = divmod(int(index), len(who))
        return f"round {t + 1}, {who[m]}"

    yield from _Numbers(called, said.ravel(), true.ravel(), sizes, true_errors.ravel()).compare(claim)
    largest = np.abs(again.losses).max()
    yield from _Numbers("loss after round {}".format, written.losses, again.losses, largest, 0.0).compare(claim)
    errors = _Numbers(lambda i: f"error of {called(i)}", said_errors.ravel(), true_errors.ravel(), sizes, None)
    yield from errors.compare(claim)
    # Where completion is exact only rounding is left: ignore differences below 1e-8.
    reports = _report_of(written), _report_of(again)
    found = find_difference(*reports, rounding=OTHERWISE_COMPUTED, least=1e-8)
    yield from _judge(claim, found, claim.is_of_another_version)


def _players(valuation: Valuation) -> list[str]:
    return [*(f"client {client!r}" for client in valuation.clients), "the server"]


def _rounds_of(valuation: Valuation) -> tuple[Floats, Floats]:
    """Return values and errors of all rounds, the server's last, (rounds, clients + 1)."""
    values = np.column_stack([valuation.per_round, valuation.per_round_server])
    return values, np.column_stack([valuation.per_round_errors, valuation.per_round_server_errors])


def _report_of(valuation: Valuation) -> dict[str, Any]:
    """Return what reports show beside the values, in JSON fields; numbers of sweeps depend on the processor."""
    completion = {
        f"completion of client {client!r}": {
            name: as_json(part) for name, part in asdict(report).items() if not name.endswith("sweeps")
        }
        for client, report in zip(valuation.clients, valuation.completion or (), strict=False)
    }
    return {"tolerance_met": valuation.tolerance_met, "guarantee": as_json(valuation.guarantee), **completion}


def _judge(claim: Claim, found: tuple[str, Any, Any] | None, may_be_another: bool) -> Iterator[Reservation]:
    """Raise Difference at what `find_difference` found, if anything; yield a reservation if it `may_be_another`."""
    if found is None:
        return
    text = _say_both(claim.who, "the transcript gives", *found)
    if not may_be_another:
        raise Difference(text)
    yield Reservation(text)


def _say_both(who: str, other: str, where: str, said: Any, right: Any) -> str:
    """Return what is stated and what is right, shortened if necessary."""
    texts = [text if len(text) <= 60 else f"{text[:60]}…" for text in (json.dumps(said), json.dumps(right))]
    return f"{where}: {who} says {texts[0]}, {other} {texts[1]}"


def check_sums(claim: Claim) -> None:
    """Raise Difference unless shares and books follow from the values beside them."""
    said, total = claim.fields, float(np.sum(claim.fields["values"]))
    sums = {"clients": total * said["n_rounds"], "server": float(said["server_value"] * said["n_rounds"])}
    right = {
        "shares": [value / total if total else None for value in said["values"]],
        "books": {**said["books"], **sums},
    }
    stated = {name: said[name] for name in right}
    if (found := find_difference(stated, right, said["clients"], rounding=ROUNDING)) is not None:
        raise Difference(_say_both(claim.who, "its values give", *found))
    books, adds_up = said["books"], said["settings"]["semivalue"] == str(SHAPLEY) and said["error_kind"] != "unknown"
    rest = books["start"] - books["end"] - books["clients"] - books["server"]
    stated, least = books["unaccounted"], ROUNDING * max(abs(books["start"]), abs(books["end"]))
    if adds_up:
        errors = said["n_rounds"] * _known(_floats([*said["estimator_errors"], said["server_error"]])).sum()
        least += min(ROUNDING * (books["clients_moved"] + books["server_moved"]), errors)
    if (adds_up and stated) or not math.isclose(stated, rest, rel_tol=ROUNDING, abs_tol=least):
        raise Difference(_say_both(claim.who, "its books give", "what is unaccounted for", stated, rest))


def _floats(column: Any) -> Floats:
    """Return numbers of JSON as an array, NaN for null."""
    return np.array(column, np.float64)


def _known(errors: Floats) -> Floats:
    """Return errors, zero where they are unknown: they excuse nothing."""
    return np.where(np.isfinite(errors), errors, 0.0)


def check_payouts(stated: Statement) -> Iterator[Check]:
    """Yield payouts and terms of the settlement, if any; raise Difference unless terms and values give the payouts."""
    try:
        settlement = stated.settlement
        if settlement is None:
            return
        n_rounds, n_planned = stated.content["n_rounds"], stated.content["n_planned"]
        if not says_plan(settlement, n_rounds, n_planned):
            raise Difference(f"the settlement in the statement does not say that {n_planned} rounds were planned")
        if not says_attendance(settlement, stated.content.get("took_part", {})):
            raise Difference("the settlement in the statement says otherwise who took part when")
        basis = replace(stated.basis, n_planned=settlement.n_planned, took_part=settlement.took_part)
        again = pay(settlement.terms, basis)
    except InputError as error:
        raise Difference(f"the settlement in the statement is not valid: {error}") from None
    difference = first_difference(stated.content["settlement"], again)
    if difference is not None:
        raise Difference(f"the settlement in the statement: {difference}")
    budget, code = again.currency.shown(again.terms.budget), again.currency.code
    yield Check("payouts", f"{budget} {code}, rule {again.terms.rule!r}")
    yield Check("terms", describe_terms(settlement))
