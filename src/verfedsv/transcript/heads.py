"""Parameters of the server's head, as they are recorded and read back."""

from __future__ import annotations

import hashlib
import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verfedsv.arguments import as_numpy, as_whole
from verfedsv.arrays import Array
from verfedsv.errors import InputError, TranscriptError, TranscriptWarning, warn
from verfedsv.head_layers import digest_of, digest_of_layers, from_layers, to_layers
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Head
from verfedsv.transcript.storage import Storage


class RecordedHead:
    """A head whose state is recorded at each time stamp; equal parameters share one file.

    `widths` are those of the embeddings it takes, by client, if they are known before the first record.
    """

    def __init__(self, head: Any, widths: Mapping[str, int] | None = None) -> None:
        if not (isinstance(head, str) and head == "sum") and not callable(getattr(head, "state_dict", None)):
            raise InputError(f"head must be 'sum', or an object with state_dict(); received {head!r}")
        self._head: Any = None if isinstance(head, str) else head
        self.description = Head()
        if self._head is None:
            if widths is not None:
                raise InputError("widths are for heads with parameters; under a sum, all embeddings have one width")
            return
        tensors = self._read()
        if not tensors:
            raise InputError("the head has no parameters; pass head='sum', or a head whose state_dict() has some")
        layers = to_layers(head) if self._is_module else None
        if widths is not None and not isinstance(widths, Mapping):
            raise InputError(
                "widths must map each client to the width of its embeddings, such as {'bank': 8}; received "
                f"{type(widths).__name__}"
            )
        given = {name: as_whole(f"width of {name!r}", width, at_least=1) for name, width in (widths or {}).items()}
        self.description = Head(
            "parametric",
            digest_of(head) if layers is None else digest_of_layers(layers),
            layers,
            None,
            (*given,),
            (*given.values(),),
            (*tensors,),
            tuple(_digest(content) for content in tensors.values()),
        )
        self._shapes = {name: content[:128] for name, content in tensors.items()}  # type and shape are in the header
        self._written = set[str]()

    def begin(self, uploaded: Mapping[str, int], founders: Sequence[str], n_classes: int, storage: Storage) -> Head:
        """Return the description with the widths of all clients, having tried the head on embeddings of these widths.

        The widths are those that were given, or else `uploaded`, which the first record shows. If the head is not made
        of common layers, it is written as a program. Raises InputError, having written nothing, if it does not give
        `n_classes` numbers for each sample, or if the width of some founder is unknown.
        """
        about = self.description
        widths = dict(zip(about.clients, about.widths, strict=True)) or uploaded
        missing = [name for name in founders if name not in widths]
        if not self._is_module:
            widths = {} if missing else widths
            return replace(about, clients=(*widths,), widths=(*widths.values(),))
        if missing:
            raise InputError(
                "the head must be tried on the embeddings of all clients before anything is recorded, and the first "
                f"record has none of {', '.join(missing)}: create the recorder with the widths of all, "
                "widths={client: width, ...}"
            )
        from verfedsv.heads import Head as Function
        from verfedsv.heads import WidthError

        self._checked()
        own, width = Function(self._head), sum(widths.values())
        try:
            own.check(width, n_classes)
        except InputError as error:
            hint = "; if it is also for clients that join later, pass the widths of all: widths={client: width, ...}"
            is_wider = isinstance(error, WidthError) and not about.clients
            raise InputError(f"{error}{hint if is_wider else ''}") from None
        if about.layers is not None and not own.agrees_with(from_layers(about.layers), width):
            about = replace(about, architecture=digest_of(self._head), layers=None)  # somebody changed what layers do
        program = None if about.layers is not None else self._write_program(width, storage)
        return replace(about, program=program, clients=(*widths,), widths=(*widths.values(),))

    def _write_program(self, width: int, storage: Storage) -> str | None:
        """Write the head as a program and return its hash; None if torch cannot export it. Warn in either case."""
        from verfedsv.heads import export

        try:
            content = export(self._head, width)
        except InputError as error:
            warn(
                f"{error}, so commands cannot value this training; verfedsv.value(run, head=module) can",
                TranscriptWarning,
            )
            return None
        storage.write(fmt.PROGRAM, content)
        warn(
            "the head is not made of common layers, so it is recorded as a program, which may run any code: "
            "commands on this run will need --trust-head, and value in Python trust_head=True or head=module",
            TranscriptWarning,
        )
        return _digest(content)

    @property
    def module(self) -> Any:
        """The head, if it is a torch module; else None."""
        return self._head if self._is_module else None

    @property
    def _is_module(self) -> bool:
        torch = sys.modules.get("torch")  # not imported for a head of something else
        return torch is not None and isinstance(self._head, torch.nn.Module)

    def write(self, storage: Storage) -> tuple[bytes, ...] | None:
        """Write the parameters that have no file yet; return the hashes of all, None if the head is a sum."""
        if self._head is None:
            return None
        hashes = []
        for content in self._checked().values():
            digest = _digest(content)
            if digest not in self._written:
                if not storage.exists(fmt.tensor_file(digest)):
                    storage.write(fmt.tensor_file(digest), content)
                self._written.add(digest)
            hashes.append(bytes.fromhex(digest))
        return tuple(hashes)

    def _checked(self) -> dict[str, bytes]:
        """Return the content of the file of each parameter; raise InputError if names, types or shapes changed."""
        tensors = self._read()
        if (*tensors,) != self.description.parameters:
            raise InputError("the parameters of the head have other names than when the recorder was created")
        for name, content in tensors.items():
            if content[:128] != self._shapes[name]:
                raise InputError(f"parameter {name!r} of the head has another type or shape than at the start")
        return tensors

    def _read(self) -> dict[str, bytes]:
        """Return the content of the file of each parameter, by name."""
        state = self._head.state_dict() if self._head is not None else {}
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise InputError("state_dict() of the head must map names to arrays")
        return {name: _as_file(name, values) for name, values in state.items()}


def _as_file(name: str, values: Any) -> bytes:
    array = as_numpy(f"parameter {name!r} of the head", values)
    if array.dtype.kind not in "biuf" or array.nbytes > fmt.LARGEST_TENSOR - 2**16:
        limit = f"at most {fmt.LARGEST_TENSOR:,} bytes of them"
        raise InputError(f"parameter {name!r} of the head must hold real numbers, {limit}; received {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"parameter {name!r} of the head has NaN or infinite numbers: the training diverged")
    return _serialize(array)


def _serialize(array: Array) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, version=(1, 0), allow_pickle=False)
    return sink.getvalue()


@dataclass(frozen=True)
class StateReader:
    """Reads the states of a head from the files of a transcript; it can be sent to another process."""

    storage: Storage
    names: tuple[str, ...]

    def __call__(self, hashes: Sequence[str]) -> dict[str, Array]:
        """Return the parameters that have these hashes, by name."""
        if len(hashes) != len(self.names):
            raise TranscriptError(f"a state has {len(self.names)} hashes; received {len(hashes)}")
        return {name: read_tensor(self.storage, digest) for name, digest in zip(self.names, hashes, strict=True)}


def read_program(storage: Storage, digest: str) -> bytes:
    """Return the program of the head; raise TranscriptError unless its file has that hash."""
    content = storage.read(fmt.PROGRAM, fmt.LARGEST_PROGRAM)
    if _digest(content) != digest:
        why = "is missing" if not content else "was changed"
        raise TranscriptError(f"the transcript was changed: {fmt.PROGRAM} {why}")
    return content


def read_tensor(storage: Storage, digest: str) -> Array:
    """Return the parameter with this hash; raise TranscriptError unless its file is as a recorder wrote it."""
    name = fmt.tensor_file(digest)
    if not storage.exists(name):
        raise TranscriptError(f"{name} is missing")
    content = storage.read(name, fmt.LARGEST_TENSOR)
    if _digest(content) != digest:
        raise TranscriptError(f"the transcript was changed: {name}")
    try:
        with warnings.catch_warnings(action="ignore"):
            array: Array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy evaluates the header: errors of tokens, syntax, recursion, overflow, ...
        raise TranscriptError(f"{name} is not valid: it is not a NumPy file: {error}") from None
    if array.dtype.kind not in "biuf" or _serialize(array) != content:
        raise TranscriptError(f"{name} is not valid: it is not written as a recorder writes it")
    return array


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
