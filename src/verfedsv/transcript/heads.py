"""Parameters of the server's head, as they are recorded and read back."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from verfedsv.arguments import as_numpy
from verfedsv.errors import InputError, TranscriptError
from verfedsv.losses import Array
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Head
from verfedsv.transcript.storage import Storage


class RecordedHead:
    """A head whose state is recorded at each time stamp; equal parameters share one file."""

    def __init__(self, head: Any) -> None:
        if not (isinstance(head, str) and head == "sum") and not callable(getattr(head, "state_dict", None)):
            raise InputError(f"head must be 'sum', or an object with state_dict(); received {head!r}")
        self._head = None if isinstance(head, str) else head
        self.description = Head()
        if self._head is not None:
            tensors = self._read()
            if not tensors:
                raise InputError("the head has no parameters; pass head='sum', or a head whose state_dict() has some")
            text = repr(head)
            if text == object.__repr__(head):  # contains an address
                text = f"{type(head).__module__}.{type(head).__qualname__}"
            hashes = tuple(_digest(content) for content in tensors.values())
            self.description = Head("parametric", hashlib.sha256(text.encode()).hexdigest(), (*tensors,), hashes)
        self._written = set[str]()

    def write(self, storage: Storage) -> tuple[bytes, ...] | None:
        """Write the parameters that have no file yet; return the hashes of all, None if the head is a sum."""
        if self._head is None:
            return None
        tensors = self._read()
        if (*tensors,) != self.description.parameters:
            raise InputError("the parameters of the head have other names than when the recorder was created")
        hashes = []
        for content in tensors.values():
            digest = _digest(content)
            if digest not in self._written:
                if not storage.exists(fmt.tensor_file(digest)):
                    storage.write(fmt.tensor_file(digest), content)
                self._written.add(digest)
            hashes.append(bytes.fromhex(digest))
        return tuple(hashes)

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
    return _serialize(array)


def _serialize(array: Array) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, version=(1, 0), allow_pickle=False)
    return sink.getvalue()


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
