"""`RunFolder`: what lies in the folder of a run, which valuation of it counts, how far it is, and what is evidence."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

from verfedsv.errors import InputError
from verfedsv.files import read_whole
from verfedsv.runs.config import Config
from verfedsv.runs.extent import Extent, agreed_by, contradictions
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.result import count
from verfedsv.texts import shortened
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER, folder_of
from verfedsv.transcript.storage import LOCK, is_being_written
from verfedsv.untrusted import read_json
from verfedsv.valuation import Valuation

CONFIG, METRICS, NOTES = "config.toml", "metrics.jsonl", "notes.json"
CHECKPOINTS, VALUATION, STATEMENT = "checkpoints", "valuation.json", "statement.json"
FILES = (CONFIG, METRICS, NOTES, CHECKPOINTS, VALUATION)
"""What `verfedsv run` writes, beside the transcript; checkpoints are a folder, with a file for each party."""

_MOST_NOTES, _LONGEST_NOTE = 20, 500
_DEEPEST = 3
"""So many folders may be above a file of a run, the run's own among them."""


class RunFolder:
    """The folder of a run: of `verfedsv run`, or of a `Recorder` alone, which holds a transcript and nothing else.

    Nobody else knows the names of its files. Reading is lazy: a folder that is not there, or holds no run, can be asked
    for its paths and whether it `holds_run`. Methods that need the transcript take it as an argument, so that it is
    opened once, and so that they answer for the part of it that the caller has seen.
    """

    valuation_name = VALUATION
    """What the valuation is called, for messages."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_path, self.metrics_path = self.path / CONFIG, self.path / METRICS
        self.notes_path, self.checkpoints_path = self.path / NOTES, self.path / CHECKPOINTS
        self.valuation_path, self.statement_path = self.path / VALUATION, self.path / STATEMENT

    @classmethod
    def around(cls, path: Path) -> RunFolder | None:
        """Return the run whose folder a file lies, or would lie, in; None if that is no run's folder."""
        for place in path.resolve().parents[:_DEEPEST]:
            # A recorder's own folder may have the name that a run gives to that of its transcript.
            is_within = place.name == FOLDER and cls(place.parent).config_path.exists()
            if cls(place).holds_run and not is_within:
                return cls(place)
        return None

    def __str__(self) -> str:
        return str(self.path)

    # The transcript

    @property
    def transcript_path(self) -> Path:
        """The folder of the transcript: one within the run's, or, of a bare `Recorder`, the run's folder itself."""
        return folder_of(self.path)

    @property
    def recording_path(self) -> Path:
        """The folder that `verfedsv run` records into."""
        return self.path / FOLDER

    @property
    def transcript_files(self) -> list[Path]:
        """The files of the transcript that are there, ordered by name."""
        return fmt.files_of(self.transcript_path)

    @property
    def growing_files(self) -> list[Path]:
        """Those of them that grow with each record."""
        return [path for path in self.transcript_files if fmt.segment_of(path.name) is not None]

    @property
    def holds_run(self) -> bool:
        """Whether anything was recorded here, if only who the clients are."""
        return (self.transcript_path / fmt.DESCRIPTION).exists()

    @property
    def is_running(self) -> bool:
        """Whether a recorder is open on the transcript, here or in another process; on Windows always False."""
        return is_being_written(self.transcript_path)

    def open(self, *, for_values: bool = True) -> Transcript:
        """Return the transcript; raise InputError if a file of the run is a link or a pipe, say.

        With `for_values`, also if the training has a loss of the user's own, which can be passed only in Python.
        """
        self.refuse_irregular()
        transcript = Transcript.open(self.path)
        if for_values:
            transcript.description.check_can_be_valued()
        return transcript

    # How it was planned, and how far it is

    def config_text(self) -> str | None:
        """Return the text of the configuration; None if there is none."""
        if not self.config_path.exists():
            return None
        if not self.config_path.is_file():
            raise InputError(f"{self.config_path} is not a regular file; move it away to go by the transcript alone")
        return read_text(self.config_path)

    def config(self) -> Config | None:
        """Return the configuration; None if there is none.

        One that cannot be read is an error wherever it is asked for: without it, everybody would go by defaults, which
        may not be the settings that were agreed on.
        """
        text = self.config_text()
        if text is None:
            return None
        try:
            return parse_config(text, self.config_path)
        except InputError as error:
            raise InputError(
                f"{error}\nCorrect {self.config_path}, or move it away to go by the transcript and default settings"
            ) from None

    def config_of(self, transcript: Transcript) -> Config | None:
        """Return the configuration, None if there is none; raise InputError if it is not that of the transcript."""
        config, mode = self.config(), transcript.description.mode
        if config is not None and mode not in (None, config.training.mode):
            raise InputError(
                f"{self.config_path} is of {_article(config.training.mode)} training, and the transcript of "
                f"{_article(mode)} one: it is of another run. Bring the right one back, or move it away to go by the "
                "transcript alone"
            )
        agreed = transcript.description.valuation
        if config is not None and (others := config.valuation.settings.differences(agreed)):
            raise InputError(
                f"[valuation] in {self.config_path} is not what was agreed, which the transcript says: "
                f"{', '.join(others)}. Change it back; to value the run in another way, use verfedsv value"
            )
        for other in contradictions(config, transcript.description) if config is not None else ():
            raise InputError(
                f"{self.config_path} is not the configuration of this transcript: {other}. Bring the right one back, "
                "or move it away to go by the transcript alone"
            )
        return config

    def agreed_settings(self, transcript: Transcript) -> ValuationSettings:
        """Return how the run is to be valued: as its transcript says, in which that was written before the first round.

        Statements and audits are held to it. With settings chosen after the fact, values can be moved: a rank, a lambda
        or a seed that favours a client can always be found. So a configuration that says something else is an error.
        """
        self.config_of(transcript)
        return transcript.description.valuation

    def extent(self, transcript: Transcript) -> Extent:
        """Return how far the training is; the plan is that of the transcript, or else of the configuration."""
        config, about = self.config_of(transcript), transcript.description
        n_planned = about.n_planned
        if n_planned is None and config is not None:
            n_planned = agreed_by(config, about.clients, about.n_samples)["n_planned"]
        return Extent(transcript.n_rounds, n_planned, self.is_running)

    def notes(self) -> tuple[str, ...]:
        """Return the sentences that the run left on its data and training; none if there are none."""
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

    # Which valuation counts

    def read_valuation(self) -> Valuation | None:
        """Return the valuation in the folder, of whatever transcript; None if there is none."""
        if not self.valuation_path.exists():
            return None
        try:
            return Valuation.from_json(read_whole(self.valuation_path))
        except OSError as error:
            why = str(error.strerror)
        except InputError as error:
            why = str(error).split(";")[0]  # what follows is for those who call from_json
        raise InputError(f"{self.valuation_path} cannot be used: {why}. Delete it, and the run is valued again")

    def valuation_of(self, transcript: Transcript) -> Valuation | None:
        """Return the valuation in the folder if it is of the whole transcript; None if there is none, or an older one.

        Raises InputError if it is of rounds that the transcript does not have: those were lost, or it is another one.
        """
        found = self.read_valuation()
        if found is None:
            return None
        about = transcript.description
        if found.head == transcript.head:
            said = found.clients, found.mode, found.loss, found.n_rounds
            if said != (transcript.clients, about.mode, about.loss, transcript.n_rounds):
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
                f"lost, or one of the two is of another run. Bring the right one back, or delete {VALUATION} to go by "
                "the transcript"
            )
        return None

    # Evidence

    def refuse_irregular(self) -> None:
        """Raise InputError if a file of the run is a link, or a pipe, say, which would block its reader.

        Links within a transcript are refused where that is opened.
        """
        own = self.config_path, self.metrics_path, self.notes_path, self.valuation_path
        for path in own:
            if path.is_symlink():
                raise InputError(
                    f"{path} is a link, and may lead to files of others; copy what it leads to, or delete it"
                )
        places = self.path, self.recording_path
        inner = [path for place in places for path in (*fmt.files_of(place), place / LOCK)]
        for path in (*own, *inner):
            if path.exists() and not path.is_file():
                raise InputError(f"{path} is not a regular file; move it away, it is not part of a run")

    def find_files(self) -> dict[str, Path]:
        """Return every file in the folder, by its path from there.

        Raises InputError if there is anything but files and folders: what a link leads to may change unseen. So does a
        name that is not UTF-8, as no JSON can have it.
        """
        result = {}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InputError(f"{name!r} is a link or not a regular file; put a copy of the file there")
            if not _is_text(name):
                raise InputError(f"{name!a} has a name that is not UTF-8, which no statement can list: rename it")
            if path.is_file():
                result[name] = path
        return result

    def hash_files(self, *, leave_out: Path | None = None) -> dict[str, str]:
        """Return the SHA-256 of every file in the folder, by its path from there, but of one and of empty locks."""
        skipped = None if leave_out is None else leave_out.resolve()
        result = {}
        for name, path in self.find_files().items():
            if path.resolve() == skipped or (path.name == LOCK and path.stat().st_size == 0):
                continue
            with path.open("rb") as file:
                result[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return result

    @classmethod
    def is_kept(cls, path: Path) -> bool:
        """Return whether a file is part of a run, which nobody could bring back."""
        run = cls.around(path)
        return run is not None and cls.is_evidence(path.resolve().relative_to(run.path).as_posix())

    @classmethod
    def is_in_transcript(cls, path: Path) -> bool:
        """Return whether a file lies, or would lie, in the folder that a run has for its transcript alone."""
        run = cls.around(path)
        return run is not None and run.recording_path in path.resolve().parents

    @staticmethod
    def is_evidence(name: str) -> bool:
        """Return whether a file, by its path from the folder, is what a run or a recorder writes itself.

        So is all that lies in the folder of a transcript.

        >>> [RunFolder.is_evidence(name) for name in ("transcript/notes.txt", "valuation.json", "report.html")]
        [True, True, False]
        """
        first, *more = PurePosixPath(name).parts
        if more:
            return first in (FOLDER, CHECKPOINTS, fmt.TENSORS)
        return first in (*FILES, LOCK) or fmt.is_file_of_transcript(first)

    @staticmethod
    def is_origin(name: str) -> bool:
        """Return whether a file, by its path from the folder, never changes, also where a training is resumed."""
        return PurePosixPath(name).name in (fmt.DESCRIPTION, fmt.LABELS)


def _article(mode: str | None) -> str:
    return f"{'an' if mode == 'asynchronous' else 'a'} {mode}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
