"""`RunFolder`: the files of a run, its plan and extent, which valuation counts, and what is evidence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from contextlib import suppress
from pathlib import Path, PurePosixPath

from verfedsv.errors import InputError
from verfedsv.files import find_links, read_whole
from verfedsv.runs.config import Config
from verfedsv.runs.extent import Extent, agreed_by, contradictions
from verfedsv.runs.metrics import Patience, least_train_loss, read_metrics
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.settings import ValuationSettings
from verfedsv.texts import count, shortened
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.format import FOLDER
from verfedsv.transcript.reader import folder_of
from verfedsv.transcript.storage import LOCK, is_being_written, refuse_links
from verfedsv.untrusted import read_json
from verfedsv.valuation import Valuation
from verfedsv.valuation.scratch import FOLDER as SCRATCH

CONFIG, METRICS, NOTES, IDENTITY = "config.toml", "metrics.jsonl", "notes.json", "identity.txt"
CHECKPOINTS, VALUATION, STATEMENT = "checkpoints", "valuation.json", "statement.json"
FILES = (CONFIG, METRICS, NOTES, IDENTITY, CHECKPOINTS, VALUATION)
"""What `verfedsv run` and `serve` write beside the transcript; checkpoints are a folder with a file for each party."""

_MOST_NOTES, _LONGEST_NOTE = 20, 500
_DEEPEST = 3
"""How many folders above a file are searched for its run."""
_MOST_NESTED = 16
"""How many folders a file of a run may lie in, below that of the run."""


class RunFolder:
    """The folder of a run: of `verfedsv run`, or of a `Recorder` alone, which holds only a transcript.

    No other class knows the names of its files. Paths and `holds_run` can be read even if the folder does not
    exist. Methods that need the transcript take it as an argument, so that it is opened once and they refer to the part
    that the caller has seen. With `trust_head`, values may be computed with a program that the transcript holds as its
    head, and which may run any code of whoever recorded it.
    """

    valuation_name = VALUATION
    """The name of the valuation, for messages."""

    def __init__(self, path: str | os.PathLike[str], *, trust_head: bool = False) -> None:
        self.path, self._trust_head = Path(path), trust_head
        if self.path.parts[:1] in (("s3:",), ("gs:",), ("gcs:",)):
            raise InputError(
                "a folder on this machine is needed here, not an object store: copy the run, and name the copy"
            )
        self.config_path, self.metrics_path = self.path / CONFIG, self.path / METRICS
        self.notes_path, self.checkpoints_path = self.path / NOTES, self.path / CHECKPOINTS
        self.identity_path = self.path / IDENTITY
        self.valuation_path, self.statement_path = self.path / VALUATION, self.path / STATEMENT

    @classmethod
    def around(cls, path: Path) -> RunFolder | None:
        """Return the run whose folder contains a path, which need not exist; None if there is none."""
        for parent in path.resolve().parents[:_DEEPEST]:
            # The folder of a bare recorder may have the name that a run gives to its transcript.
            is_within = parent.name == FOLDER and cls(parent.parent).config_path.exists()
            if cls(parent).holds_run and not is_within:
                return cls(parent)
        return None

    def __str__(self) -> str:
        return str(self.path)

    # The transcript

    @property
    def transcript_path(self) -> Path:
        """The folder of the transcript: within the run's, or, of a bare `Recorder`, the run's folder itself."""
        return folder_of(self.path)

    @property
    def recording_path(self) -> Path:
        """The folder that `verfedsv run` records into."""
        return self.path / FOLDER

    @property
    def transcript_files(self) -> list[Path]:
        """The existing files of the transcript, sorted by name."""
        return fmt.files_of(self.transcript_path)

    @property
    def growing_files(self) -> list[Path]:
        """The files of the transcript that grow with each record."""
        return [path for path in self.transcript_files if fmt.segment_of(path.name) is not None]

    @property
    def holds_run(self) -> bool:
        """Whether there is a transcript, possibly without records."""
        return (self.transcript_path / fmt.DESCRIPTION).exists()

    @property
    def is_running(self) -> bool:
        """Whether a recorder is open on the transcript, here or in another process; on Windows always False."""
        return is_being_written(self.transcript_path)

    def open(self, *, for_values: bool = True) -> Transcript:
        """Return the transcript; raise InputError if a file of the run is a link.

        With `for_values`, also if the training has a loss or head of the user's own, which can be passed only in
        Python, or a head that is a program, unless that is trusted.
        """
        self.refuse_links()
        transcript = self._open()
        transcript.trusts_head = self._trust_head
        if for_values:
            transcript.description.check_can_be_valued(trusts_head=self._trust_head)
        return transcript

    def _open(self) -> Transcript:
        return Transcript.open(self.path)

    # How it was planned, and how far it is

    def config_text(self) -> str | None:
        """Return the text of the configuration; None if there is none."""
        if not self.config_path.exists():
            return None
        if not self.config_path.is_file():
            raise InputError(f"{self.config_path} is not a regular file; move it away to rely on the transcript alone")
        return read_text(self.config_path)

    def config(self) -> Config | None:
        """Return the configuration; None if there is none.

        Raises InputError if it cannot be read: otherwise, contradictions to the transcript would go unnoticed.
        """
        text = self.config_text()
        if text is None:
            return None
        try:
            return parse_config(text, self.config_path)
        except InputError as error:
            raise InputError(
                f"{error}\nCorrect {self.config_path}, or move it away to rely on the transcript alone"
            ) from None

    def config_of(self, transcript: Transcript) -> Config | None:
        """Return the configuration, None if there is none; raise InputError if it is not that of the transcript."""
        config, about = self.config(), transcript.description
        if config is None:
            return None
        if others := config.valuation.settings.differences(about.valuation):
            raise InputError(
                f"[valuation] in {self.config_path} differs from what the transcript says was agreed: "
                f"{', '.join(others)}. Change it back; to value the run in another way, use verfedsv value"
            )
        for other in contradictions(config, about):
            raise InputError(
                f"{self.config_path} is not the configuration of this transcript: {other}. Restore the right one, "
                "or move it away to rely on the transcript alone"
            )
        return config

    def agreed_settings(self, transcript: Transcript) -> ValuationSettings:
        """Return the settings to value the run with, which its transcript has held since before the first round.

        Statements and audits insist on them: after the fact, a rank, lambda or seed that favours a client can always be
        found. A configuration that contradicts them is an error.
        """
        self.config_of(transcript)
        return transcript.description.valuation

    def extent(self, transcript: Transcript) -> Extent:
        """Return how far the training is; the plan is the transcript's, or else the configuration's.

        If it ended early, as agreed, its last round is that of the plan.
        """
        config, about = self.config_of(transcript), transcript.description
        n_planned = about.n_planned
        if n_planned is None and config is not None:
            n_planned = agreed_by(config, about.clients, about.n_samples)["n_planned"]
        if n_planned is not None and self._ended_early(transcript):
            n_planned = min(n_planned, transcript.n_rounds)
        return Extent(transcript.n_rounds, n_planned, self.is_running)

    def _ended_early(self, transcript: Transcript) -> bool:
        """Return whether the evaluations, one each so many rounds up to the last, ended the training as agreed."""
        patience = Patience.agreed_in(transcript.description.step)
        if patience is None or not self.metrics_path.is_file():
            return False
        measured = read_metrics(self.metrics_path)
        # In asynchronous training, rounds before the first upload count there, and are not recorded.
        rounds, every = [each["n_rounds"] for each in measured], patience.evaluate_every
        is_whole = rounds[:-1] == [*range(every, every * len(rounds), every)] and len(rounds) > patience.n_evaluations
        reaches_end = bool(rounds) and transcript.n_rounds <= rounds[-1] <= every * len(rounds)
        return is_whole and reaches_end and patience.ends(measured)

    def notes(self) -> tuple[str, ...]:
        """Return the notes on data and training: at most 20 sentences, shortened."""
        path = self.notes_path
        if not path.exists():
            return ()
        remedy = "Delete it to continue without notes"
        if not path.is_file():
            raise InputError(f"{path} is not a regular file. {remedy}")
        found = read_json(read_text(path), str(path))
        if not isinstance(found, list) or not all(isinstance(note, str) for note in found):
            raise InputError(f"{path} is damaged: it is not a list of sentences. {remedy}")
        return tuple(shortened(note, _LONGEST_NOTE) for note in found[:_MOST_NOTES])

    def least_train_loss(self) -> float | None:
        """Return the least training loss that the server measured, None if none can be read."""
        with suppress(InputError):
            return least_train_loss(self.metrics_path)
        return None

    def identity(self) -> str:
        """Return the name of a training over a network, by which clients know their folders again; empty without."""
        return read_text(self.identity_path) if self.identity_path.exists() else ""

    # Which valuation counts

    def read_valuation(self) -> Valuation | None:
        """Return the valuation in the folder, even of another transcript; None if there is none."""
        if not self.valuation_path.exists():
            return None
        try:
            return Valuation.from_json(read_whole(self.valuation_path))
        except OSError as error:
            why = str(error.strerror)
        except InputError as error:
            why = str(error).split(";")[0]  # the rest is for callers of from_json
        raise InputError(f"{self.valuation_path} cannot be used: {why}. Delete it, and the run is valued again")

    def valuation_of(self, transcript: Transcript) -> Valuation | None:
        """Return the valuation in the folder if it covers the whole transcript; None if there is none, or an older one.

        Raises InputError if it is of rounds that the transcript does not have.
        """
        found = self.read_valuation()
        if found is None:
            return None
        if found.head == transcript.head:
            if not self.matches(found, transcript):
                raise InputError(
                    f"{self.valuation_path} is damaged: it names this transcript, but other clients, rounds, mode or "
                    "loss. Delete it, and the run is valued again"
                )
            return found
        if not transcript.contains(found.head):
            there = f"{count(found.n_rounds, 'round')} of {count(len(found.clients), 'client')}"
            here = f"{count(transcript.n_rounds, 'round')} of {count(len(transcript.clients), 'client')}"
            raise InputError(
                f"{self.valuation_path} is of {there} that are not in the transcript, which has {here}: rounds were "
                f"lost, or one of the two is of another run. Restore the right one, or delete {VALUATION} to rely "
                "on the transcript"
            )
        return None

    @staticmethod
    def matches(valuation: Valuation, transcript: Transcript) -> bool:
        """Return whether a valuation has the head, clients, rounds, mode and loss of a transcript."""
        stated = valuation.head, valuation.clients, valuation.n_rounds, valuation.mode, valuation.loss
        about = transcript.description
        return stated == (transcript.head, transcript.clients, transcript.n_rounds, about.mode, about.loss)

    # Evidence

    @property
    def _own_files(self) -> tuple[Path, ...]:
        return self.config_path, self.metrics_path, self.notes_path, self.identity_path, self.valuation_path

    def refuse_links(self) -> None:
        """Raise InputError, or TranscriptError, if a file or a folder that `verfedsv run` reads or writes is a link."""
        links = [path for path in self._own_files if path.is_symlink()]
        for path in (*links, *find_links(self.checkpoints_path)):
            raise InputError(
                f"{path} is a symbolic link, which could point outside its folder; replace it with a copy of its "
                "target, or delete it"
            )
        refuse_links(self.recording_path, with_itself=True)

    def refuse_irregular(self) -> None:
        """Raise InputError if a file of the run is a link, or a pipe, say, which would block its reader."""
        self.refuse_links()
        folders = self.path, self.recording_path
        inner = [path for folder in folders for path in (*fmt.files_of(folder), folder / LOCK)]
        for path in (*self._own_files, *inner):
            if path.exists() and not path.is_file():
                raise InputError(f"{path} is not a regular file; move it away, it is not part of a run")

    def find_files(self) -> dict[str, Path]:
        """Return every file in the folder, by its path from there, but for the work of a valuation under way.

        Raises InputError for anything but files and folders, since the target of a link may change unseen, and for
        names that are not UTF-8, which JSON cannot hold.
        """
        result = {}
        for path in sorted(self._find_entries()):
            name = path.relative_to(self.path).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InputError(f"{name!r} is a link or not a regular file; put a copy of the file there")
            if not _is_text(name):
                raise InputError(f"{name!a} has a name that is not UTF-8, which no statement can list: rename it")
            if path.is_file():
                result[name] = path
        return result

    def _find_entries(self) -> list[Path]:
        """Return every file and folder in the folder, without following links; raise InputError if some are too deep.

        Not with `rglob`, which recurses, and leaves out folders that cannot be read.
        """
        found, folders, n_nested = list[Path](), [self.path], 0
        while folders:
            if n_nested > _MOST_NESTED:
                name = shortened(folders[0].relative_to(self.path).as_posix(), 80)
                raise InputError(
                    f"{name!r} is nested too deeply: at most {_MOST_NESTED} levels of folders are allowed; move it away"
                )
            inner = [path for folder in folders for path in folder.iterdir() if path.name != SCRATCH]
            found += inner
            folders, n_nested = [path for path in inner if path.is_dir() and not path.is_symlink()], n_nested + 1
        return found

    def hash_files(self, names: Container[str] | None = None, *, leave_out: Path | None = None) -> dict[str, str]:
        """Return the SHA-256 of every file in the folder, by path, except `leave_out` and empty locks.

        If `names` are given, a file that is neither one of them nor evidence has "" instead: nobody compares it.
        """
        skipped = None if leave_out is None else leave_out.resolve()
        result = {}
        for name, path in self.find_files().items():
            if path.resolve() == skipped or (path.name == LOCK and path.stat().st_size == 0):
                continue
            if names is not None and name not in names and not self.is_evidence(name):
                result[name] = ""
                continue
            with path.open("rb") as file:
                result[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return result

    @classmethod
    def is_kept(cls, path: Path) -> bool:
        """Return whether a file is an irreplaceable part of a run."""
        run = cls.around(path)
        return run is not None and cls.is_evidence(path.resolve().relative_to(run.path).as_posix())

    @classmethod
    def is_in_transcript(cls, path: Path) -> bool:
        """Return whether a path is in the folder that a run keeps for its transcript."""
        run = cls.around(path)
        return run is not None and run.recording_path in path.resolve().parents

    @staticmethod
    def is_evidence(name: str) -> bool:
        """Return whether a file, by its path from the folder, is written by a run or a recorder itself.

        Everything in the folder of a transcript counts, but for the work of a valuation, which no one signs.

        >>> [RunFolder.is_evidence(name) for name in ("transcript/notes.txt", "valuation.json", "report.html")]
        [True, True, False]
        """
        first, *more = PurePosixPath(name).parts
        if SCRATCH in more:
            return False
        if more:
            return first in (FOLDER, CHECKPOINTS, fmt.TENSORS)
        return first in (*FILES, LOCK) or fmt.is_file_of_transcript(first)

    @staticmethod
    def is_origin(name: str) -> bool:
        """Return whether a file, by its path from the folder, never changes, even if a training is resumed."""
        return PurePosixPath(name).name in (fmt.DESCRIPTION, fmt.LABELS)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
