"""Audits: whether statements, runs and extracts are what they say; if not, one line says what differs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from verfedsv._version import __version__
from verfedsv.errors import InputError, TranscriptError
from verfedsv.runs.folders import VALUATION
from verfedsv.settlement import extract as extracts
from verfedsv.settlement.comparisons import (
    Check,
    Difference,
    check_nothing_is_missing,
    check_payouts,
    compare_files,
    compare_valuations,
    compare_values,
    compare_with_file,
    say_what_is_odd,
)
from verfedsv.settlement.documents import format_of, read_bytes
from verfedsv.settlement.extract import Extract
from verfedsv.settlement.folders import hash_files, options_of, read_valuation
from verfedsv.settlement.keys import fingerprint
from verfedsv.settlement.statement import STATEMENT, Statement
from verfedsv.shapley import Progress
from verfedsv.shapley.result import count
from verfedsv.texts import printable
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER
from verfedsv.valuation import value


@dataclass(frozen=True)
class Audit:
    """What an audit found: the checks that passed, in order; what differs, or None; what else a reader should know."""

    checks: tuple[Check, ...]
    difference: str | None
    notes: tuple[str, ...]

    @property
    def passes(self) -> bool:
        return self.difference is None

    def to_json(self) -> str:
        """Return the audit as JSON."""
        return json.dumps({"passes": self.passes, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


Finding = Check | str
"""A check that passed, or a note."""


def audit(
    path: Path,
    *,
    run: Path | None = None,
    statement_path: Path | None = None,
    public_key: bytes | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Return the audit of whatever is there: a statement, an extract, or the folder of a run.

    A folder that has a statement in it is audited by that; another can be given.
    """
    if path.is_dir():
        _refuse_unused("the folder of a run", run=run)
        there = statement_path or (path / STATEMENT if (path / STATEMENT).exists() else None)
        if there is not None:
            return audit_statement(there, path, public_key, progress)
        _refuse_unused("a run without a statement", public_key=public_key)
        return audit_run(path, progress)
    if format_of(path) == extracts.FORMAT:
        _refuse_unused("an extract", run=run, public_key=public_key if statement_path is None else None)
        return audit_extract(path, statement_path, public_key)
    _refuse_unused("a statement", statement=statement_path)
    return audit_statement(path, run, public_key, progress)


def audit_statement(
    path: Path, run: Path | None = None, public_key: bytes | None = None, progress: Progress | None = None
) -> Audit:
    """Return whether a statement is signed and true: of the run's files, chain, values and payouts.

    Without `run`, it is where the statement says, from where it lies, or the statement's own folder.
    """
    text = read_bytes(path)
    return _collect(_of_statement(text, Statement.from_json(text), path, run, public_key, progress))


def audit_run(folder: Path, progress: Progress | None = None) -> Audit:
    """Return whether a run without a statement fits together: its chain, and its valuation."""
    return _collect(_of_run(folder, progress))


def audit_extract(path: Path, statement_path: Path | None = None, public_key: bytes | None = None) -> Audit:
    """Return whether an extract fits together and belongs to the transcript of a signed statement."""
    extract = Extract.from_json(read_bytes(path))
    signed = None
    if statement_path is not None:
        text = read_bytes(statement_path)
        signed = text, Statement.from_json(text)
    return _collect(_of_extract(extract, signed, public_key))


def _collect(findings: Iterable[Finding]) -> Audit:
    checks: list[Check] = []
    notes: list[str] = []
    difference = None
    try:
        for finding in findings:
            if isinstance(finding, Check):
                checks.append(Check(finding.name, _one_line(finding.said)))
            else:
                notes.append(_one_line(finding))
    except Difference as found:
        difference = _one_line(str(found))
    return Audit(tuple(checks), difference, tuple(notes))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _of_statement(
    text: bytes, stated: Statement, path: Path, run: Path | None, public_key: bytes | None, progress: Progress | None
) -> Iterator[Finding]:
    yield from _check_signature(text, stated, public_key)
    folder = _find_run(stated, path, run)
    found = hash_files(folder, leave_out=path)
    check_nothing_is_missing(stated, found)
    # Before the files as a whole, as this can tell the round and the client of a change.
    transcript = _open(folder)
    yield _check_chain(transcript, stated)
    yield compare_files(stated, found, folder)
    later = [name for name in found if name not in stated.content["files"]]
    if later:
        yield f"not covered by the statement: {', '.join(map(repr, later))}"
    again = value(transcript, progress=progress, **options_of(stated.settings))
    written = read_valuation(folder)
    if written is not None and written.head == again.head:
        compare_valuations(written, again)
        compare_with_file(stated, written)
    yield compare_values(stated, again)
    yield from say_what_is_odd(np.array(stated.values), again)
    yield from check_payouts(stated)
    if stated.content["package"] != f"verfedsv {__version__}":
        yield f"the statement was made by {stated.content['package']}, and audited by verfedsv {__version__}"


def _of_run(folder: Path, progress: Progress | None) -> Iterator[Finding]:
    if not any((place / fmt.DESCRIPTION).exists() for place in (folder, folder / FOLDER)):
        raise InputError(f"there is no run in {folder}: it has no {fmt.DESCRIPTION}")
    transcript = _open(folder)
    yield Check("chain", f"{count(transcript.n_rounds, 'round')}, head {transcript.head[:16]}…")
    try:
        written = read_valuation(folder)
    except InputError as error:
        raise Difference(f"{VALUATION}: {error}") from None
    if written is None:
        yield f"there is no {VALUATION}, so there are no values to compare"
    else:
        if written.head != transcript.head:
            grown = transcript.contains(written.head)
            why = "the transcript has grown since" if grown else "it was cut off, or is another one"
            raise Difference(f"{VALUATION} is not of this transcript: {why}")
        again = value(transcript, progress=progress, **options_of(written.settings))
        yield compare_valuations(written, again)
        yield from say_what_is_odd(written.values, again)
    yield (
        "without a statement nobody vouches for the head of the chain: rounds cut off at its end, a chain written "
        "anew, or changes in other files of the folder are not found"
    )


def _of_extract(
    extract: Extract, signed: tuple[bytes, Statement] | None, public_key: bytes | None
) -> Iterator[Finding]:
    if signed is not None:
        yield from _check_signature(*signed, public_key)
    try:
        verified = extract.verify()
    except TranscriptError as error:
        raise Difference(str(error)) from None
    yield Check("chain", f"{count(verified.n_rounds, 'round')}, head {verified.head[:16]}…")
    if signed is None:
        yield f"not tied to a statement: pass --statement, or compare the head {verified.head}"
    elif signed[1].content["head"] != verified.head:
        raise Difference("the extract is of another transcript than the statement: their heads differ")
    yield Check("uploads", f"{count(verified.n_uploads, 'upload')} of client {extract.client!r}, all that there are")
    if signed is not None:
        yield from _say_own_part(signed[1], extract.client)


def _say_own_part(stated: Statement, client: str) -> Iterator[Finding]:
    """Yield what a statement says of a client."""
    if client not in stated.clients:
        raise Difference(f"the statement does not know client {client!r}")
    m = stated.clients.index(client)
    share = stated.content["shares"][m]
    error = "unknown" if math.isnan(stated.errors[m]) else f"{stated.errors[m]:.0e}"
    said = f"value {stated.values[m]:.4e}, error {error}"
    yield Check("own value", said + ("" if share is None else f", share {share:.2%}"))
    yield from check_payouts(stated)
    settlement = stated.settlement
    if settlement is not None:
        yield Check("own payout", f"{settlement.currency.shown(settlement.payouts[m])} {settlement.currency.code}")
    yield "values depend on the uploads of all clients; to compute them again, the whole run is needed"


def _check_signature(text: bytes, stated: Statement, public_key: bytes | None) -> Iterator[Finding]:
    if not stated.is_signed():
        raise Difference("the signature is not that of the statement: it was changed after it was signed")
    if text != stated.to_json():
        raise Difference("the statement was changed: its file is not written as it was when it was signed")
    known = fingerprint(stated.public_key)
    if public_key is not None and public_key != stated.public_key:
        raise Difference(f"the statement is signed with another key: {known}, and not {fingerprint(public_key)}")
    yield Check("signature", f"key {known}, {stated.content['created'][:10]}")
    if public_key is None:
        yield "whose key that is, the statement cannot say: compare the fingerprint, or pass --public-key"


def _find_run(stated: Statement, path: Path, run: Path | None) -> Path:
    if run is not None:
        if not run.is_dir():
            raise InputError(f"there is no folder {run}")
        return run
    way = stated.content.get("run")
    places = [path.parent / way] if isinstance(way, str) and not Path(way).is_absolute() else []
    for place in [*places, path.parent]:
        if any((place / name).exists() for name in stated.content["files"]):
            return place
    raise InputError(f"the run of this statement is not where it says; pass its folder with --run. Statement: {path}")


def _open(folder: Path) -> Transcript:
    """Return a transcript whose chain holds; raise Difference, naming round and client, if it does not."""
    try:
        transcript = Transcript.open(folder)
        transcript.verify()
        _ = transcript.n_rounds
    except TranscriptError as error:
        raise Difference(str(error)) from None
    except (ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException) as error:
        raise Difference(f"the transcript was changed: it cannot be read ({error})") from None
    return transcript


def _check_chain(transcript: Transcript, stated: Statement) -> Check:
    head = stated.content["head"]
    if transcript.head != head:
        if transcript.contains(head):
            more = transcript.n_rounds - stated.content["n_rounds"]
            raise Difference(f"the transcript has grown since the statement, by {count(more, 'round')}")
        raise Difference("the transcript is not that of the statement: the head of its chain differs")
    if transcript.n_rounds != stated.content["n_rounds"]:
        raise Difference(f"the statement is of {stated.content['n_rounds']} rounds; there are {transcript.n_rounds}")
    if transcript.description.clients != stated.clients:
        raise Difference("the clients of the statement are not those of the transcript")
    return Check("chain", f"{count(transcript.n_rounds, 'round')}, head {head[:16]}…")


def _refuse_unused(what: str, **options: Any) -> None:
    """Raise InputError if an option was given that would do nothing."""
    for name, given in options.items():
        if given is not None:
            raise InputError(f"--{name.replace('_', '-')} is not for {what}")
