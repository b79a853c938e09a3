"""Audits: whether statements, runs and extracts are true; if not, one line tells what differs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError, TranscriptError, VerfedsvError
from verfedsv.runs.config import Config
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement import extract as extracts
from verfedsv.settlement.agreement import options_of, say_agreed, say_others
from verfedsv.settlement.books import say_books
from verfedsv.settlement.comparisons import (
    Check,
    Claim,
    Difference,
    Finding,
    Reservation,
    check_payouts,
    check_same_run,
    check_sums,
    compare_exactly,
    compare_files,
    compare_rounds,
    compare_valuation,
)
from verfedsv.settlement.documents import read_bytes
from verfedsv.settlement.explanation import cautions
from verfedsv.settlement.extract import Extract
from verfedsv.settlement.keys import fingerprint
from verfedsv.settlement.statement import Statement, fields_of
from verfedsv.shapley import Progress
from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, listed, printable, shortened
from verfedsv.transcript import Transcript
from verfedsv.transcript.verification import Verified
from verfedsv.valuation import Valuation, value


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the checks that passed, in order; what differs, or None; and notes for the reader.

    `reservations` are differences that another version of this package or another processor may explain; the reader has
    to judge whether it does.
    """

    checks: tuple[Check, ...]
    difference: str | None
    reservations: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether everything is as stated, without reservation."""
        return self.difference is None and not self.reservations

    def to_json(self) -> str:
        """Return the audit as JSON."""
        return json.dumps({"passes": self.passes, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def audit(
    path: Path,
    *,
    run: Path | None = None,
    statement_path: Path | None = None,
    public_key: bytes | None = None,
    accept_settings: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Return the audit of a statement, an extract, or the folder of a run.

    A folder is checked against the statement in it, or the one at `statement_path`. Values that were not computed with
    the agreed settings differ, unless `accept_settings`.
    """
    options = _Options(public_key, accept_settings, progress)
    if path.is_dir():
        _refuse_unused("the folder of a run", run=run)
        folder = RunFolder(path)
        there = statement_path or (folder.statement_path if folder.statement_path.exists() else None)
        if there is not None:
            return _collect(_of_statement(_Signed.read(there), folder, options))
        _refuse_unused("a run without a statement", public_key=public_key)
        return _collect(_of_run(folder, options))
    text = read_bytes(path)
    if text.startswith(extracts.MAGIC):
        _refuse_unused("an extract", run=run)
        if public_key is not None and statement_path is None:
            raise InputError("an extract is not signed; add --statement FILE to check it by the key")
        signed = None if statement_path is None else _Signed.read(statement_path)
        return _collect(_of_extract(Extract.from_bytes(text), signed, options))
    signed = _Signed.read(path)
    _refuse_unused("a statement", statement=statement_path)
    return _collect(_of_statement(signed, None if run is None else RunFolder(run), options))


@dataclass(frozen=True)
class _Options:
    """The key that must have signed, if any; whether other settings are accepted; and what is told the progress."""

    public_key: bytes | None
    accept_settings: bool
    progress: Progress | None


@dataclass(frozen=True)
class _Signed:
    """A statement, and the file that it was read from."""

    path: Path
    text: bytes
    statement: Statement

    @classmethod
    def read(cls, path: Path) -> _Signed:
        text = read_bytes(path)
        return cls(path, text, Statement.from_json(text))


def _collect(findings: Iterable[Finding]) -> Audit:
    checks: list[Check] = []
    reservations: list[str] = []
    notes: list[str] = []
    difference = None
    try:
        # Received numbers may overflow when they are added up: that is a difference, not a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            for finding in findings:
                if isinstance(finding, Check):
                    checks.append(Check(finding.name, _one_line(finding.said)))
                elif isinstance(finding, Reservation):
                    reservations.append(_one_line(finding.said))
                else:
                    notes.append(_one_line(finding))
    except Difference as found:
        difference = _one_line(str(found))
    return Audit(tuple(checks), difference, tuple(reservations), tuple(notes))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _of_statement(signed: _Signed, run: RunFolder | None, options: _Options) -> Iterator[Finding]:
    """Yield that a statement is signed, and true of the run's files, chain, values and payouts.

    Without `run`, the run is looked for at the path in the statement, and in the statement's folder.
    """
    stated = signed.statement
    yield from _check_signature(signed, options.public_key)
    folder = run if run is not None else _find_run(stated, signed.path)
    if not folder.path.is_dir():
        raise InputError(f"there is no folder {folder}")
    with _as_difference(InputError):
        found = folder.hash_files(leave_out=signed.path)
    if not found.keys() & stated.content["files"].keys():
        raise InputError(f"none of the files that the statement lists is in {folder}; name its run with --run FOLDER")
    check_same_run(stated, found)
    # Before the other files: this can name the round and the client of a change, and recognizes another run.
    evidence = _Evidence.of(folder)
    transcript = evidence.transcript
    _check_head(transcript, stated)
    yield from evidence.say_chain()
    yield from compare_files(stated, found)
    compare_exactly(stated, {"agreed": transcript.description.agreed}, "the transcript says")
    yield from evidence.say_agreed()
    rest = {"configuration": folder.config_text(), "n_planned": evidence.extent.n_planned}
    compare_exactly(stated, rest, "the run gives")
    written = evidence.valuation
    written = written if written is not None and written.head == transcript.head else None
    if written is not None:
        # Sums are computed when they are needed, and are compared with the values.
        right = {name: said for name, said in fields_of(written).items() if name not in ("shares", "books")}
        compare_exactly(stated, right, f"{folder.valuation_name} says")
    yield from _check_values(Claim.of_statement(stated), evidence, written, options)
    yield from check_payouts(stated)
    yield from cautions(stated.settlement or stated.basis)


def _of_run(folder: RunFolder, options: _Options) -> Iterator[Finding]:
    """Yield that a run without a statement is consistent: its chain, and its valuation."""
    if not folder.holds_run:
        raise InputError(f"there is no run in {folder}: nothing was recorded there")
    evidence = _Evidence.of(folder)
    transcript, written = evidence.transcript, evidence.valuation
    if not transcript.n_rounds:
        raise InputError(f"no round was recorded in {folder}, so there is nothing to audit")
    yield from evidence.say_chain()
    yield from evidence.say_agreed()
    if evidence.extent.is_unfinished:
        yield f"the training was stopped after {evidence.extent}"
    if written is None:
        yield f"there is no {folder.valuation_name}, so there are no values to compare"
    else:
        if written.head != transcript.head:
            grown = transcript.contains(written.head)
            why = "the transcript has grown since" if grown else "it was cut off, or is another one"
            raise Difference(f"{folder.valuation_name} is not of this transcript: {why}")
        yield from _check_values(Claim.of_file(written), evidence, written, options)
    yield (
        "without a statement nobody vouches for the head of the chain: rounds cut off at its end, a chain written "
        "anew, or changes in other files of the folder are not found"
    )


@dataclass(frozen=True)
class _Evidence:
    """A run whose chain holds. Whatever else is in its folder differs if it cannot be read or contradicts that."""

    folder: RunFolder
    transcript: Transcript
    verified: Verified

    @classmethod
    def of(cls, folder: RunFolder) -> _Evidence:
        """Return the run in a folder; raise Difference, naming round and client, if its transcript was changed."""
        if folder.is_running:
            raise InputError(
                "the training is still running, so it is not audited yet: wait until it has ended, or stop it"
            )
        with _as_difference(TranscriptError):
            transcript = folder.open()
            return cls(folder, transcript, transcript.verify())

    @cached_property
    def config(self) -> Config | None:
        with _as_difference(InputError):
            return self.folder.config_of(self.transcript)

    @property
    def extent(self) -> Extent:
        with _as_difference(InputError):
            return self.folder.extent(self.transcript)

    @property
    def valuation(self) -> Valuation | None:
        with _as_difference(InputError):
            return self.folder.read_valuation()

    def say_chain(self) -> Iterator[Finding]:
        """Yield how long the chain is, and what a reader should ask about: only the server's records show it."""
        yield _chain(self.transcript.n_rounds, self.transcript.head)
        if absences := self.verified.absences.most_common():
            who = listed([f"{shortened(name, LONGEST_NAME)!r} from {n_rounds:,}" for name, n_rounds in absences], 10)
            yield f"declared absent, of {count(self.verified.n_rounds, 'round')}: {who}; ask them whether they were"
        if self.verified.offset_varies:
            yield (
                "the server's own part differs between samples: it is more than an intercept, and the value of each "
                "client's changes depends on it. Make sure that this was agreed"
            )

    def say_agreed(self) -> Iterator[Finding]:
        yield Check("agreed", say_agreed(self.transcript.description))
        if self.config is None:
            yield "there is no config.toml, so what was agreed is what the transcript says"


def _check_values(claim: Claim, evidence: _Evidence, written: Valuation | None, options: _Options) -> Iterator[Finding]:
    """Yield that values were computed as agreed, and are what the transcript gives; `written` is valuation.json."""
    transcript, has_offset = evidence.transcript, evidence.verified.has_offset
    others = say_others(claim.settings, transcript.description, evidence.config, lambda: has_offset)
    yield from _judge_settings(others, options)
    again = value(transcript, progress=options.progress, like=written, **options_of(claim.settings))
    yield from compare_valuation(claim, again)
    if written is not None:
        yield from compare_rounds(written, again)


def _judge_settings(others: Iterable[str], options: _Options) -> Iterator[Finding]:
    """Raise Difference if a run is not as was agreed, and the reader does not accept that."""
    for other in others:
        if not options.accept_settings:
            raise Difference(f"{other}; to accept that, add --accept-settings")
        yield f"{other}; accepted, as asked"


def _of_extract(extract: Extract, signed: _Signed | None, options: _Options) -> Iterator[Finding]:
    """Yield that an extract is consistent, and is of the transcript of a signed statement, if there is one."""
    if signed is not None:
        yield from _check_signature(signed, options.public_key)
    with _as_difference(TranscriptError):
        verified = extract.verify()
    about, n_rounds = verified.description, verified.n_rounds
    if signed is not None:
        if signed.statement.content["head"] != verified.head:
            raise Difference("the extract is of another transcript than the statement: their heads differ")
        shown: dict[str, Any] = {"clients": [*verified.clients], "n_rounds": n_rounds, "agreed": about.agreed}
        shown |= {name: said for name in ("loss", "mode", "n_planned") if (said := getattr(about, name)) is not None}
        compare_exactly(signed.statement, shown, "the transcript says")
    yield _chain(n_rounds, verified.head)
    if signed is None:
        yield f"not tied to a statement: pass --statement, or compare the head {verified.head}"
    yield Check("uploads", f"{count(len(verified.uploads), 'upload')} of client {extract.client!r}, all that there are")
    if verified.n_absent:
        rounds = f"{verified.n_absent:,} of {count(n_rounds, 'round')}"
        yield f"client {extract.client!r} was declared absent from {rounds}: if it took part, its uploads are missing"
    yield Check("agreed", say_agreed(about))
    if verified.has_offset and about.intercept is None:
        yield "the server has a part of its own (offset), and the transcript does not say whether that was agreed"
    if signed is not None:
        settings = Claim.of_statement(signed.statement).settings
        yield from _judge_settings(say_others(settings, about, None, lambda: verified.has_offset), options)
        yield from _say_own_part(signed.statement, extract.client)


def _say_own_part(stated: Statement, client: str) -> Iterator[Finding]:
    """Yield what a statement says of a client; only payouts follow from the rest of it."""
    check_sums(Claim.of_statement(stated))
    yield from check_payouts(stated)
    basis, m = stated.basis, stated.clients.index(client)
    if stated.settlement is not None:
        currency, payout = stated.settlement.currency, stated.settlement.payouts[m]
        yield Check("own payout", f"{currency.shown(payout)} {currency.code}")
    share = stated.content["shares"][m]
    error = "unknown" if math.isnan(basis.errors[m]) else f"{basis.errors[m] * basis.n_rounds:.0e}"
    said = f"value {basis.values[m] * basis.n_rounds:.4g} over the training, error {error}"
    said += "" if share is None else f", share {share:.2%}"
    yield (
        f"the statement says of client {client!r}: {said}. That was not computed again: values depend on the uploads "
        "of all clients, so for that the whole run is needed"
    )
    yield f"the statement says: {say_books(basis.books)}"
    yield from cautions(stated.settlement or basis)


def _check_signature(signed: _Signed, public_key: bytes | None) -> Iterator[Finding]:
    stated = signed.statement
    if not stated.is_signed():
        raise Difference("the signature is not that of the statement: it was changed after it was signed")
    if signed.text != stated.to_json():
        raise Difference("the statement was changed: its file is not written as it was when it was signed")
    known = fingerprint(stated.public_key)
    if public_key is not None and public_key != stated.public_key:
        raise Difference(f"the statement is signed with another key: {known}, not {fingerprint(public_key)}")
    yield Check("signature", f"key {known}, {stated.content['created'][:10]}")
    if public_key is None:
        yield "the statement does not prove whose key that is: compare the fingerprint, or pass --public-key"


def _find_run(stated: Statement, path: Path) -> RunFolder:
    """Return the folder of a statement's run; it is searched only in the folder of the statement and below."""
    here = path.parent.resolve()
    for relative in (stated.content["run"] or ".", "."):
        try:
            found = here.joinpath(relative).resolve()
            if found.is_relative_to(here) and any((found / name).exists() for name in stated.content["files"]):
                return RunFolder(found)
        except OSError:
            continue  # a name that no file can have
    raise InputError(f"the run of {path} is neither in its folder nor below it; say where it is with --run FOLDER")


def _check_head(transcript: Transcript, stated: Statement) -> None:
    """Raise Difference unless a transcript is the one that was signed."""
    head, signed, found = stated.content["head"], stated.content["n_rounds"], transcript.n_rounds
    if transcript.head != head and transcript.contains(head):
        raise Difference(f"the transcript has grown since the statement, by {count(found - signed, 'round')}")
    if transcript.head != head:
        raise Difference(
            f"the transcript is not the one that was signed: rounds were cut off or replaced; signed are "
            f"{count(signed, 'round')}, found {count(found, 'round')}"
        )
    if (found, transcript.clients) != (signed, stated.clients):
        raise Difference("the transcript has other clients, or another number of rounds, than the statement says")


def _chain(n_rounds: int, head: str) -> Check:
    return Check("chain", f"{count(n_rounds, 'round')}, head {head[:16]}…")


@contextmanager
def _as_difference(kind: type[VerfedsvError]) -> Iterator[None]:
    """Turn errors of a kind into a Difference: evidence that cannot be read differs."""
    try:
        yield
    except kind as error:
        raise Difference(str(error)) from None


def _refuse_unused(what: str, **options: Any) -> None:
    """Raise InputError if an option was given that has no effect."""
    for name, given in options.items():
        if given is not None:
            raise InputError(f"--{name.replace('_', '-')} is not for {what}")
