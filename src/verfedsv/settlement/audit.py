"""Audits: whether a statement, a run or an extract is true; if not, one line says what differs."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError, TranscriptError, VerfedsvError
from verfedsv.gpu.devices import Device
from verfedsv.runs.config import Config
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.metrics import Patience
from verfedsv.runs.stored import find_run
from verfedsv.settlement import extract as extracts
from verfedsv.settlement.agreement import check_is_of, describe_agreement, find_deviations, options_of, server_cautions
from verfedsv.settlement.books import describe_books
from verfedsv.settlement.comparisons import (
    Check,
    Claim,
    Difference,
    Finding,
    Reservation,
    check_payouts,
    check_same_run,
    check_sums,
    compare_attendance,
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
from verfedsv.texts import LONGEST_NAME, count, digits, error_text, listed, number, printable, shortened
from verfedsv.transcript import Description, Transcript
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.verification import Verified
from verfedsv.valuation import Valuation, value
from verfedsv.valuation.verdict import Reason, judge_evaluation


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the checks that passed, in order; what differs, or None; and notes for the reader.

    `reservations` are differences that another version of this package or another processor may explain. `reasons` are
    alarms and doubts, which may speak against paying even if the audit passes.
    """

    checks: tuple[Check, ...]
    difference: str | None
    reservations: tuple[str, ...]
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether everything is as stated, without reservation."""
        return self.difference is None and not self.reservations

    def to_json(self) -> str:
        """Return the audit as JSON."""
        content = {"passes": self.passes, **asdict(self), "reasons": [reason._asdict() for reason in self.reasons]}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def audit(
    path: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    statement_path: str | os.PathLike[str] | None = None,
    public_key: bytes | None = None,
    accept_settings: bool = False,
    trust_head: bool = False,
    device: Device = "cpu",
    progress: Progress | None = None,
) -> Audit:
    """Return the audit of a statement, an extract, or the folder of a run, which may be in an object store.

    A folder is checked against the statement in it, or the one at `statement_path`. Values that were not computed with
    the agreed settings differ, unless `accept_settings`. `trust_head` allows to load the program of a head, which may
    run any code of whoever recorded it. Values are computed again on `device`, whichever they were computed on.
    """
    options = _Options(public_key, accept_settings, trust_head, device, progress)
    place = as_location(path)
    statement_path = None if statement_path is None else Path(statement_path)
    if isinstance(place, str) or place.is_dir():
        _refuse_unused("the folder of a run", run=run)
        folder = find_run(path, trust_head=trust_head)
        there = statement_path or (folder.statement_path if folder.statement_path.exists() else None)
        if there is not None:
            return _collect(_of_statement(there, Statement.read(there), folder, options))
        if public_key is not None:
            raise InputError(f"there is no statement in {folder}, so there is no signature to check by a key")
        return _collect(_of_run(folder, options))
    text = read_bytes(place)
    if text.startswith(extracts.MAGIC):
        _refuse_unused("an extract", run=run)
        if public_key is not None and statement_path is None:
            raise InputError("an extract is not signed; add --statement FILE to check it by the key")
        stated = None if statement_path is None else Statement.read(statement_path)
        return _collect(_of_extract(Extract.from_bytes(text), stated, options))
    if not text.lstrip().startswith(b"{"):
        raise InputError(
            f"{place} is neither a statement nor an extract, nor the folder of a run; only these can be audited"
        )
    stated = Statement.from_json(text)
    _refuse_unused("a statement", statement=statement_path)
    return _collect(
        _of_statement(place, stated, None if run is None else find_run(run, trust_head=trust_head), options)
    )


@dataclass(frozen=True)
class _Options:
    """The key that must have signed, if any; whether other settings and a head's program are accepted; the rest."""

    public_key: bytes | None
    accept_settings: bool
    trust_head: bool
    device: Device
    progress: Progress | None


def _collect(findings: Iterable[Finding]) -> Audit:
    checks: list[Check] = []
    reservations: list[str] = []
    reasons: list[Reason] = []
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
                elif isinstance(finding, Reason):
                    reasons.append(finding._replace(text=_one_line(finding.text)))
                else:
                    notes.append(_one_line(finding))
    except Difference as found:
        difference = _one_line(str(found))
    return Audit(tuple(checks), difference, tuple(reservations), tuple(reasons), tuple(notes))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _of_statement(path: Path, stated: Statement, run: RunFolder | None, options: _Options) -> Iterator[Finding]:
    """Yield that the statement at a path is signed, and true of the run's files, chain, values and payouts.

    Without `run`, the run is searched at the path in the statement, and in the statement's folder.
    """
    yield from _check_signature(stated, options.public_key)
    folder = run if run is not None else _find_run(stated, path, trust_head=options.trust_head)
    if not folder.path.is_dir():
        raise InputError(f"there is no folder {folder}")
    with _as_difference(InputError):
        found = folder.hash_files(stated.content["files"], leave_out=path)
    if not found.keys() & stated.content["files"].keys():
        raise InputError(f"none of the files that the statement lists is in {folder}; name its run with --run FOLDER")
    check_same_run(stated, found)
    # Before the other files: this can name the round and the client of a change, and recognises another run.
    transcript, verified = _verify(folder)
    about = transcript.description
    yield from _check_transcript(stated, transcript.head, verified, about)
    yield from _say_chain(transcript.head, verified)
    yield from compare_files(stated, found)
    with _as_difference(InputError):
        config, written = folder.config_of(transcript), folder.read_valuation()
        rest = {"configuration": folder.config_text(), "n_planned": folder.extent(transcript).n_planned}
    yield from _say_agreed(about, config, verified)
    compare_exactly(stated, rest, "the run gives")
    written = written if written is not None and written.head == transcript.head else None
    if written is not None:
        # Sums are computed when they are needed, and are compared with the values.
        right = {name: said for name, said in fields_of(written).items() if name not in ("shares", "books")}
        compare_exactly(stated, right, f"{folder.valuation_name} says")
    claim = Claim.of_statement(stated)
    yield from _judge_settings(claim, about, config, verified, options)
    again = yield from _check_values(claim, transcript, written, options)
    with _as_difference(InputError):
        if folder.hash_files(stated.content["files"], leave_out=path) != found:
            raise Difference("files were changed during the audit; audit a copy that nobody else can change")
    yield from check_payouts(stated)
    yield from cautions(stated.settlement or stated.basis, again, folder.least_train_loss())


def _of_run(folder: RunFolder, options: _Options) -> Iterator[Finding]:
    """Yield that a run without a statement is consistent: its chain, and its valuation."""
    if not folder.holds_run:
        raise InputError(f"there is no run in {folder}: nothing was recorded there")
    transcript, verified = _verify(folder)
    if not transcript.n_rounds:
        raise InputError(f"no round was recorded in {folder}, so there is nothing to audit")
    yield from _say_chain(transcript.head, verified)
    with _as_difference(InputError):
        config, extent, written = folder.config_of(transcript), folder.extent(transcript), folder.read_valuation()
        if written is not None:
            check_is_of(written, transcript)
    yield from _say_agreed(transcript.description, config, verified)
    if extent.is_unfinished:
        yield f"the training was stopped after {extent}"
    if written is None:
        yield f"there is no {folder.valuation_name}, so there are no values to compare"
    else:
        claim = Claim.of_file(written)
        yield from _judge_settings(claim, transcript.description, config, verified, options)
        again = yield from _check_values(claim, transcript, written, options)
        yield from judge_evaluation(again.books, folder.least_train_loss())
    yield (
        "without a statement nobody vouches for the head of the chain: rounds cut off at its end, a rewritten chain "
        "and changes in other files of the folder are not found"
    )


def _verify(folder: RunFolder) -> tuple[Transcript, Verified]:
    """Return the transcript of a run; raise Difference, naming round and client, if it was changed."""
    if folder.is_running:
        raise InputError("the training is still running, so it is not audited yet: wait until it has ended, or stop it")
    with _as_difference(TranscriptError):
        transcript = folder.open()
        return transcript, transcript.verify()


def _say_chain(head: str, verified: Verified) -> Iterator[Finding]:
    """Yield how long the chain is, and which clients missed rounds: only the server's records show that."""
    yield _chain(head, verified)
    for said, missed in (("declared absent", verified.absences), ("not a member", verified.outside)):
        named = (+missed).most_common()
        if named:
            who = listed([f"{shortened(name, LONGEST_NAME)!r} in {n_rounds:,}" for name, n_rounds in named], 10)
            yield f"{said}: {who} of {count(verified.n_rounds, 'round')}; ask them whether that is so"
    if present := verified.attendances():
        who = listed([f"{shortened(name, LONGEST_NAME)!r}: {said}" for name, said in present.items()], 10)
        yield f"by the record, these took part only in some rounds: {who}"


def _check_values(
    claim: Claim, transcript: Transcript, written: Valuation | None, options: _Options
) -> Generator[Finding, None, Valuation]:
    """Yield that values, and valuation.json if it was `written`, are what the transcript gives; return these."""
    settings = options_of(claim.settings)
    again = value(transcript, progress=options.progress, like=written, device=options.device, **settings)
    yield from compare_valuation(claim, again)
    if written is not None:
        yield from compare_rounds(written, again)
    return again


def _judge_settings(
    claim: Claim, about: Description, config: Config | None, verified: Verified, options: _Options
) -> Iterator[Finding]:
    """Raise Difference if a run was not trained or valued as agreed, unless that is accepted."""
    for other in find_deviations(claim.settings, about, config, lambda: verified.has_offset):
        if not options.accept_settings:
            raise Difference(f"{other}; to accept that, add --accept-settings")
        yield f"{other}; accepted, as asked"


def _of_extract(extract: Extract, stated: Statement | None, options: _Options) -> Iterator[Finding]:
    """Yield that an extract is consistent, and is of the transcript of a signed statement, if there is one."""
    if stated is not None:
        yield from _check_signature(stated, options.public_key)
    with _as_difference(TranscriptError):
        found = extract.verify()
    about, verified = found.description, found.verified
    if stated is not None:
        yield from _check_transcript(stated, extract.head, verified, about)
    yield _chain(extract.head, verified)
    if stated is None:
        yield f"not tied to a statement: pass --statement, or compare the head {extract.head}"
    yield Check("uploads", f"{count(len(found.uploads), 'upload')} of client {extract.client!r}, all that there are")
    for said, missed in (("was declared absent from", verified.absences), ("was not a member in", verified.outside)):
        if n_missed := missed[extract.client]:
            rounds = f"{n_missed:,} of {count(verified.n_rounds, 'round')}"
            yield f"client {extract.client!r} {said} {rounds}: if it took part, its uploads are missing"
    if present := verified.attendance(extract.client):
        yield f"by the record, client {extract.client!r} took part in some rounds only: {present}"
    yield Check("agreed", describe_agreement(about))
    yield from server_cautions(about, None, verified)
    if stated is not None:
        yield from _judge_settings(Claim.of_statement(stated), about, None, verified, options)
        yield from _say_own_part(stated, extract.client)


def _say_own_part(stated: Statement, client: str) -> Iterator[Finding]:
    """Yield what a statement says of a client; of that, only the payouts can be computed again."""
    check_sums(Claim.of_statement(stated))
    yield from check_payouts(stated)
    basis, m = stated.basis, stated.clients.index(client)
    if stated.settlement is not None:
        currency, payout = stated.settlement.currency, stated.settlement.payouts[m]
        yield Check("own payout", f"{currency.shown(payout)} {currency.code}")
    share = stated.content["shares"][m]
    total, error = (amounts[m] * basis.n_rounds for amounts in (basis.values, basis.errors))
    said = f"value {digits(total, 4)} over the training, error {error_text(error)}"
    said += "" if share is None else f", share {number(100 * share, 2)}%"
    yield (
        f"the statement says of client {client!r}: {said}. That was not computed again: values depend on the uploads "
        "of all clients, so the whole run is needed"
    )
    yield f"the statement says: {describe_books(basis.books)}"
    yield from cautions(stated.settlement or basis)


def _check_signature(stated: Statement, public_key: bytes | None) -> Iterator[Finding]:
    if not stated.is_signed():
        raise Difference("the statement was changed after it was signed")
    signer = fingerprint(stated.public_key)
    if public_key is not None and public_key != stated.public_key:
        raise Difference(f"the statement is signed with another key: {signer}, not {fingerprint(public_key)}")
    yield Check("signature", f"key {signer}, {stated.content['created'][:10]}")
    if public_key is None:
        yield "the statement does not prove whose key that is: compare the fingerprint, or pass --public-key"


def _find_run(stated: Statement, path: Path, *, trust_head: bool) -> RunFolder:
    """Return the folder of a statement's run, which is searched only in the statement's folder and below."""
    here = path.parent.resolve()
    names = [name for name in stated.content["files"] if _is_within(name)]
    for relative in filter(_is_within, (stated.content["run"] or ".", ".")):
        try:
            found = here.joinpath(relative).resolve()
            if found.is_relative_to(here) and any((found / name).exists() for name in names):
                return RunFolder(found, trust_head=trust_head)
        except OSError:
            continue  # a name that no file can have
    extract = path.with_name("uploads.extract")
    instead = f". A client that has no run: verfedsv audit {extract} --statement {path}" if extract.exists() else ""
    raise InputError(
        f"the run of {path} is neither in its folder nor below it; say where it is with --run FOLDER{instead}"
    )


def _is_within(name: str) -> bool:
    """Return whether a path leads to something in the folder that it is joined to, by its text alone."""
    return not Path(name).anchor and ".." not in Path(name).parts


def _check_transcript(stated: Statement, head: str, verified: Verified, about: Description) -> Iterator[Finding]:
    """Raise Difference unless a statement is of this transcript, and says of it what the transcript says."""
    if stated.content["head"] != head:
        signed, found = count(stated.content["n_rounds"], "round"), count(verified.n_rounds, "round")
        raise Difference(f"the transcript is not the one that was signed: signed are {signed}, found {found}")
    right = {name: getattr(about, name) for name in ("loss", "mode", "agreed")}
    # The transcript has no test samples, so whether they ended the training is the server's word.
    ended_early = Patience.agreed_in(about.step) is not None and stated.content["n_planned"] == verified.n_rounds
    if about.n_planned is not None and not ended_early:
        right["n_planned"] = about.n_planned
    right |= {"clients": [*verified.roster.clients], "n_rounds": verified.n_rounds}
    compare_exactly(stated, right, "the transcript says")
    yield from compare_attendance(stated, verified.attendances())


def _say_agreed(about: Description, config: Config | None, verified: Verified) -> Iterator[Finding]:
    yield Check("agreed", describe_agreement(about))
    yield from server_cautions(about, config, verified)
    if config is None:
        yield "there is no config.toml, so what was agreed is what the transcript says"


def _chain(head: str, verified: Verified) -> Check:
    return Check("chain", f"{count(verified.n_rounds, 'round')}, head {head[:16]}…")


@contextmanager
def _as_difference(kind: type[VerfedsvError]) -> Iterator[None]:
    """Turn errors of a kind into a Difference, for evidence that cannot be read."""
    try:
        yield
    except kind as error:
        raise Difference(str(error)) from None


def _refuse_unused(what: str, **options: Any) -> None:
    """Raise InputError if an option was given that has no effect."""
    for name, given in options.items():
        if given is not None:
            raise InputError(f"--{name.replace('_', '-')} is not for {what}")
