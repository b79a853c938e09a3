"""The messages between the server side and the client sides. Nothing else crosses.

    the server asks             the client answers
    Embed(samples)              Embeddings(embeddings)      for training; the server records it
    Gradients(samples, values)  Done                        the client takes a step
    Predict(samples)            Prediction(embeddings)      for evaluation; nothing is recorded or learnt
    Save, Restore               Done                        the client's own checkpoint of a round
    any of these                Refusal(reason)             it cannot be done; nothing was changed

A message holds arrays and plain values only, and `to_bytes` writes it without pickling. An answer has the client, the
round and the sequence number of its request. Sequence numbers increase. A request with the number of the last one is a
repetition: it gets the same answer and is not carried out again, so a server that lost an answer can ask again.

Messages and their arrays must not be changed. (Frozen classes would take 0.6 instead of 0.2 microseconds each.)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import get_args

import numpy as np

from verfedsv.errors import AnswerError, InputError
from verfedsv.losses import Array, Floats
from verfedsv.texts import shortened
from verfedsv.untrusted import MOST_JSON_BYTES


@dataclass(eq=False, slots=True)
class Message:
    """What all messages have; `client` is the sender or the receiver, the other party is the server."""

    client: str
    round: int
    sequence: int


@dataclass(eq=False, slots=True)
class Embed(Message):
    """Upload the embeddings of some training samples."""

    samples: Array


@dataclass(eq=False, slots=True)
class Embeddings(Message):
    """The embeddings that were asked for, (samples, classes)."""

    embeddings: Floats


@dataclass(eq=False, slots=True)
class Gradients(Message):
    """Take a step; `values`, (samples, classes), are gradients of the loss with respect to the embeddings."""

    samples: Array
    values: Floats


@dataclass(eq=False, slots=True)
class Predict(Message):
    """Send the embeddings of these samples; if None, of all, training samples first, or of all new rows."""

    samples: Array | None


@dataclass(eq=False, slots=True)
class Prediction(Message):
    """The embeddings that were asked for, (samples, classes)."""

    embeddings: Floats


@dataclass(eq=False, slots=True)
class Save(Message):
    """Write a checkpoint of this round and keep that of round `keep`; others may be deleted."""

    keep: int


@dataclass(eq=False, slots=True)
class Restore(Message):
    """Restore the checkpoint of this round. Sequence numbers continue from that of this message."""


@dataclass(eq=False, slots=True)
class Done(Message):
    """It was done."""


@dataclass(eq=False, slots=True)
class Refusal(Message):
    """It cannot be done; nothing was changed."""

    reason: str


Request = Embed | Gradients | Predict | Save | Restore
Answer = Embeddings | Prediction | Done | Refusal

ANSWERS = {Embed: Embeddings, Gradients: Done, Predict: Prediction, Save: Done, Restore: Done}
_LONGEST_REASON = 1000
_MOST_DIMENSIONS = 3
"""One more than valid arrays have, so that the server can still say which shape it received."""

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (*get_args(Request), *get_args(Answer))}
_NUMBERS = {number: np.dtype(number) for number in ("<f8", "<f4", "<i8")}
_TYPES = {"str": str, "int": int, "Array": np.ndarray, "Floats": np.ndarray, "Array | None": np.ndarray | None}


def check_kind(answer: Answer, request: Request) -> None:
    """Raise AnswerError if an answer is a refusal, or not of the kind that the request asks for."""
    if isinstance(answer, Refusal):
        raise AnswerError(shortened(answer.reason, _LONGEST_REASON))
    if not isinstance(answer, ANSWERS[type(request)]):
        raise AnswerError(f"{type(request).__name__} was answered with {type(answer).__name__}")


def to_bytes(message: Message) -> bytes:
    """Return a message as bytes: the length of a JSON header, the header, the content of its arrays."""
    content = {field.name: getattr(message, field.name) for field in fields(message)}
    arrays = {name: np.ascontiguousarray(value) for name, value in content.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in content.items() if name not in arrays}
    shapes = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    header = json.dumps([type(message).__name__, plain, shapes]).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, *(array.tobytes() for array in arrays.values())])


def from_bytes(content: bytes) -> Message:
    """Return the message that `to_bytes` wrote; raise InputError for any other content."""
    try:
        start = 4 + int.from_bytes(content[:4], "little")
        name, plain, shapes = json.loads(content[4:start] if start <= MOST_JSON_BYTES else b"")
        kind, values = _KINDS[name], dict(plain)
        for field, (number, shape) in shapes.items():
            # Capped, because multiplying many or huge dimensions is slow.
            sizes = shape[:_MOST_DIMENSIONS]
            n_numbers = math.prod(min(n, len(content) + 1) for n in sizes)
            values[field] = np.frombuffer(content, _NUMBERS[number], n_numbers, start).reshape(sizes)
            start += values[field].nbytes
        is_typed = all(isinstance(values[field.name], _TYPES[str(field.type)]) for field in fields(kind))
        is_shaped = all(list(values[field].shape) == shape for field, (_, shape) in shapes.items())
        if is_typed and is_shaped and start == len(content) and len(values) == len(fields(kind)):
            return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        pass
    raise InputError(f"{len(content):,} bytes are not a message of this version")
