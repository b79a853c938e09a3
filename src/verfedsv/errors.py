"""The exceptions and warnings of this package.

    VerfedsvError
    ├── InputError (also a ValueError)      an argument or a file cannot be used
    │   ├── AnswerError                     a client refused a request, or answered something else
    │   ├── DivergedError                   embeddings or an intercept have grown too large
    │   └── RefusedError                    the certificate of a party is not accepted
    ├── TooManyClientsError                 the method cannot enumerate that many coalitions
    ├── TranscriptError                     a transcript is damaged, of another version, or in use
    ├── DataError                           a data set cannot be found, fetched or read
    ├── MissingClientError                  a client on another machine did not answer in time
    └── UnreachableError                    the server on another machine could not be reached for a time

    ToleranceWarning (a UserWarning)        the result is valid, but its error exceeds the tolerance
    TranscriptWarning (a UserWarning)       what is recorded is valid, but should be checked
    ClientWarning (a UserWarning)           a client's answer cannot be used; training continues without it
    CompletionWarning (a UserWarning)       the error of completed embeddings cannot be estimated
    DeviceWarning (a UserWarning)           no GPU can be used, so the processor computes

Every message says what was received, what is allowed, and, where there is one, what to do instead.
"""

import sys
import warnings
from typing import Literal


class VerfedsvError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(VerfedsvError, ValueError):
    """An argument has a wrong shape, range, type or name, or a file cannot be used."""


class AnswerError(InputError):
    """In a training, a client refused a request, or answered something else."""


class DivergedError(InputError):
    """In a training, embeddings or an intercept are too large to compute with, or not finite."""


Refusal = Literal[
    "unreadable",
    "other authority",
    "not yet valid",
    "expired",
    "wrong usage",
    "revoked",
    "no revocation list",
    "not listed",
]
"""Why a certificate is not accepted."""


class RefusedError(InputError):
    """The certificate of a party is not accepted; `reason` says why in a word, for programs."""

    def __init__(self, message: str, reason: Refusal = "unreadable") -> None:
        super().__init__(message)
        self.reason: Refusal = reason


class TooManyClientsError(VerfedsvError):
    """Exact enumeration was asked for with more clients than can be enumerated."""


class TranscriptError(VerfedsvError):
    """A transcript cannot be read, or was changed after it was written."""


class DataError(VerfedsvError):
    """A data set cannot be found, fetched or read."""


class MissingClientError(VerfedsvError):
    """In a training over a network, a client did not answer in time."""


class UnreachableError(VerfedsvError):
    """In a training over a network, the server could not be reached for a time."""


class ToleranceWarning(UserWarning):
    """The requested tolerance was not reached; the reported errors are what remains."""


class TranscriptWarning(UserWarning):
    """A recorder found an earlier transcript, an unfinished record, doubtful names or classes, or a clock set back."""


class ClientWarning(UserWarning):
    """A client's answer cannot be used; the training continues without it."""


class CompletionWarning(UserWarning):
    """The error of completion cannot be estimated, because no sample was uploaded in two rounds."""


class DeviceWarning(UserWarning):
    """A GPU was to be used if there is one, and there is none."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra. The package is not on an index yet, so it needs the checkout."""
    return f"pip install '.[{extra}]' in the checkout of verfedsv"


def warn(message: str, category: type[UserWarning]) -> None:
    """Issue a warning for the line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "verfedsv":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, level)
