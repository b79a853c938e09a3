"""`Description`: the content of transcript.json, which is part of the first link of the chain."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from verfedsv.errors import InputError, TranscriptError
from verfedsv.head_layers import check_layers, digest_of_layers
from verfedsv.losses import LOSSES
from verfedsv.names import check_names, is_readable
from verfedsv.settings import ROWS, ValuationSettings
from verfedsv.texts import printable
from verfedsv.untrusted import MOST_JSON_BYTES, read_json

NAME, VERSION = "verfedsv transcript", 3
DESCRIPTION = "transcript.json"

Mode = Literal["synchronous", "asynchronous"]
Precision = Literal["float32", "float64"]
Step = str | Mapping[str, str | float | bool | None]
"""The step that clients should take: a text, or settings such as `{"rate": 0.2}`."""

_HASH = re.compile("[0-9a-f]{64}")
_MOST_SETTINGS, _LONGEST_TEXT = 32, 10_000

WIDEST = 2**17
"""Numbers that a head takes for each sample, of all clients together."""


@dataclass(frozen=True)
class Head:
    """How the server combines embeddings: a sum, or a function with parameters.

    If it has parameters, `architecture` is the SHA-256 of its layers, or else of another text that describes it, and
    `state` has the hash of each parameter when the recorder was created. Whoever values the training gets the function
    from `layers`, plain data (`head_layers`), or else from a program that torch exported, whose file has the hash
    `program`; or must supply it.
    It takes the embeddings of `clients`, `widths` numbers of each, in this order; if these are empty, of all clients
    in the order of joining.
    """

    kind: Literal["sum", "parametric"] = "sum"
    architecture: str | None = None
    layers: list[Any] | None = None
    program: str | None = None
    clients: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """What is known of a training before its first record.

    `clients` take part from the start; `Transcript.clients` has all that ever took part. `is_own_loss` tells that the
    loss is not from this package: whoever values the training must supply it. `classes` are the names of classes 0, 1,
    ..., if labels were text. A segment ends after `segment_rounds` rounds. `mode` and `precision` are None until the
    first upload; so is `n_classes` under a loss of the user's own, unless it was given.

    Agreed, or None: `step` (prescribed to the clients), `n_planned` (rounds), `intercept` (whether the server may add
    an offset). `valuation` has the agreed settings of the valuation.
    """

    clients: tuple[str, ...]
    loss: str
    n_samples: int
    created: str
    package: str
    segment_rounds: int
    is_own_loss: bool = False
    mode: Mode | None = None
    n_classes: int | None = None
    precision: Precision | None = None
    classes: tuple[str, ...] | None = None
    head: Head = field(default_factory=Head)
    valuation: ValuationSettings = field(default_factory=ValuationSettings)
    step: Step | None = None
    n_planned: int | None = None
    intercept: bool | None = None

    @property
    def agreed(self) -> dict[str, Any]:
        """What was agreed before the first round, ready for JSON: statements sign it, audits compare it."""
        return {
            "valuation": self.valuation.as_dict(),
            "head": {"kind": self.head.kind, "architecture": self.head.architecture},
            "step": self.step,
            "n_planned": self.n_planned,
            "intercept": self.intercept,
        }

    def __post_init__(self) -> None:
        try:
            _check(self)
        except ValueError as error:
            raise TranscriptError(f"{DESCRIPTION} is not valid: {printable(str(error))}") from None

    def check_can_be_valued(self, *, has_loss: bool = False, has_head: bool = False, trusts_head: bool = False) -> None:
        """Raise InputError if the loss or the head is the user's own and not at hand, or a program is not trusted."""
        if self.head.kind != "sum" and self.head.layers is None and not has_head:
            if self.head.program is None:
                raise InputError(
                    "the function of the head was not recorded, so only value(run, head=module) in Python can compute "
                    "values; verfedsv settle takes their JSON, but they cannot be signed or audited"
                )
            if not trusts_head:
                raise InputError(
                    "the head is recorded as a program, and loading one can run any code of whoever recorded it; if "
                    "you trust them, add --trust-head (in Python trust_head=True, or pass the module as head=)"
                )
        if self.is_own_loss and not has_loss:
            raise InputError(
                f"the training was recorded with a loss of your own, {self.loss!r}, so only value(run, loss=...) in "
                "Python can compute its values; verfedsv settle takes their JSON, but they cannot be signed or audited"
            )

    def check_continues_with(self, given: Description) -> None:
        """Raise InputError unless a recorder with the `given` description can continue this transcript.

        Defaults and None match any setting.
        """
        if (self.clients, self.loss, self.n_samples) != (given.clients, given.loss, given.n_samples):
            raise InputError(
                f"the folder holds a transcript of clients {list(self.clients)}, loss {self.loss!r} and "
                f"{self.n_samples} samples, which cannot be continued with clients {list(given.clients)}, loss "
                f"{given.loss!r} and {given.n_samples} samples; choose another folder"
            )
        others = []
        if self.is_own_loss != given.is_own_loss or given.n_classes not in (None, self.n_classes):
            others.append("another loss or number of classes")
        heads = [(head.kind, head.architecture, head.parameters) for head in (self.head, given.head)]
        widths = [(head.clients, head.widths) for head in (self.head, given.head)]
        if heads[0] != heads[1] or widths[1] not in (((), ()), widths[0]):
            others.append("another head, or other widths")
        if given.valuation != ValuationSettings():
            others += [f"other settings: {each}" for each in given.valuation.differences(self.valuation)]
        for name in ("step", "n_planned", "intercept"):
            one, other = getattr(given, name), getattr(self, name)
            if one not in (None, other):
                others.append(f"another {name}: {one!r} and not {other!r}")
        if others:
            raise InputError(f"the folder holds a transcript that cannot be continued with {others[0]}")

    def to_json(self) -> bytes:
        """Return the bytes of transcript.json; raise InputError if they are too many to be read."""
        content = {"format": NAME, "version": VERSION, **asdict(self)}
        text = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
        if len(text) > MOST_JSON_BYTES:
            raise InputError(
                f"{DESCRIPTION} would have {len(text):,} bytes, and at most {MOST_JSON_BYTES:,} are read; shorten the "
                "names of clients and classes"
            )
        return text

    @classmethod
    def from_json(cls, text: bytes) -> Description:
        """Return the description in transcript.json; raise TranscriptError if this package cannot read it."""
        try:
            content = read_json(text, DESCRIPTION)
        except InputError as error:
            raise TranscriptError(f"the transcript is damaged: {error}") from None
        if not isinstance(content, dict) or content.get("format") != NAME:
            raise TranscriptError(f"{DESCRIPTION} is damaged, or not the description of a transcript")
        version = content.get("version")
        if type(version) is not int or version != VERSION:
            raise TranscriptError(
                f"the transcript has format version {printable(str(version)[:20])}; this verfedsv reads version "
                f"{VERSION}: use the version of verfedsv that wrote it (see 'package' there)"
            )
        values = {name: value for name, value in content.items() if name not in ("format", "version")}
        try:
            own = values["head"]
            head = Head(**_as_tuples(own) | {"layers": own["layers"]})
            settings = ValuationSettings.of(values["valuation"])
            found = cls(**_as_tuples(values) | {"head": head, "valuation": settings})
        except (InputError, LookupError, TypeError, AttributeError) as error:
            raise TranscriptError(f"{DESCRIPTION} is not valid: {printable(str(error))}") from None
        if json.dumps(asdict(found), sort_keys=True) != json.dumps(values, sort_keys=True):
            raise TranscriptError(f"{DESCRIPTION} is not valid: it must have every field, written as this package does")
        return found


def _as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _check(about: Description) -> None:
    """Raise ValueError unless a recorder could have written every field."""
    check_names(about.clients)
    if type(about.is_own_loss) is not bool or not isinstance(about.loss, str) or not is_readable(about.loss):
        raise ValueError(f"loss must be a name, and is_own_loss true or false; received {str(about.loss)[:60]!a}")
    if about.is_own_loss is (about.loss in LOSSES):
        why = "is not the name of a loss of your own" if about.is_own_loss else "is unknown"
        raise ValueError(f"loss {about.loss[:60]!a} {why}; this package has {', '.join(map(repr, LOSSES))}")
    _check_whole("n_samples", about.n_samples, 1, 2**32)
    _check_whole("segment_rounds", about.segment_rounds, 1, 2**32)
    if not all(isinstance(text, str) for text in (about.created, about.package)):
        raise ValueError("created and package must be texts")
    _check_first_upload(about)
    _check_class_names(about)
    _check_head(about.head)
    if about.head.clients and (unknown := set(about.clients) - set(about.head.clients)):
        raise ValueError(f"the head has no width for client {min(unknown)!r}")
    _check_step(about.step)
    if about.n_planned is not None:
        _check_whole("n_planned", about.n_planned, 1, 2**63 - 1)
    if about.intercept is not None and type(about.intercept) is not bool:
        raise ValueError(f"intercept must be true, false or null; received {str(about.intercept)[:60]!a}")
    if about.valuation.rows not in ROWS:
        raise ValueError(f"rows of the valuation must be one of {', '.join(map(repr, ROWS))}")


def _check_first_upload(about: Description) -> None:
    """Check mode, precision and the number of classes, which may be unknown before the first upload."""
    if (about.mode, about.precision) != (None, None):
        for value, allowed in ((about.mode, get_args(Mode)), (about.precision, get_args(Precision))):
            if value not in allowed:
                raise ValueError(f"mode or precision is {str(value)[:60]!a}, which is not one of {', '.join(allowed)}")
    if about.n_classes is not None or not about.is_own_loss or about.mode is not None:
        kind = None if about.is_own_loss else about.loss
        _check_whole("n_classes", about.n_classes, 2 if kind == "softmax" else 1, 1 if kind == "logistic" else 2**31)


def _check_class_names(about: Description) -> None:
    names = about.classes
    if names is None:
        return
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise ValueError("classes must be a list of names")
    if len(set(names)) < len(names) or len(names) < 2:
        raise ValueError("classes must be two or more different names")
    if about.is_own_loss:
        return
    if about.loss == "squared":
        raise ValueError("squared loss has no classes that have names")
    if len(names) > (2 if about.loss == "logistic" else about.n_classes or 0):
        raise ValueError(f"there are {len(names)} names of classes, more than there are classes")


def _check_head(head: Head) -> None:
    if head == Head():
        return
    names, hashes = head.parameters, head.state
    is_valid = (
        head.kind == "parametric"
        and isinstance(names, tuple)
        and isinstance(hashes, tuple)
        and all(isinstance(name, str) for name in names)
        and 0 < len(set(names)) == len(names) == len(hashes)
        and all(isinstance(text, str) and _HASH.fullmatch(text) for text in (head.architecture, *hashes))
        and (head.program is None or (isinstance(head.program, str) and bool(_HASH.fullmatch(head.program))))
    )
    if not is_valid:
        raise ValueError("head must be a sum, or have an architecture, and a name and a hash for each parameter")
    if head.layers is not None:
        check_layers(head.layers)
        if head.architecture != digest_of_layers(head.layers):
            raise ValueError("the architecture of the head is not the SHA-256 of its layers")
    are_lists = isinstance(head.clients, tuple) and isinstance(head.widths, tuple)
    if not are_lists or len(head.clients) != len(head.widths):
        raise ValueError("the head must have a list of clients and a list of as many widths")
    if head.clients:
        check_names(head.clients)
    for width in head.widths:
        _check_whole("a width of the head", width, 1, WIDEST)
    if head.widths:
        _check_whole("the width of all embeddings together", sum(head.widths), 1, WIDEST)


def _check_step(step: object) -> None:
    if step is None or (isinstance(step, str) and len(step) <= _LONGEST_TEXT):
        return
    if not isinstance(step, dict) or len(step) > _MOST_SETTINGS or not all(isinstance(name, str) for name in step):
        raise ValueError("step must be a short text, or a few settings by name")
    for value in step.values():
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | bool | int | float | None) or not is_finite or len(str(value)) > _LONGEST_TEXT:
            raise ValueError("settings of the step must be short texts, finite numbers, true, false or null")


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        shown = value if type(value) is int else ascii(str(value)[:60])
        raise ValueError(f"{name} must be a whole number from {least} to {most}; received {shown}")
