"""Messages as bytes, as consortium.proto defines them, and in frames of limited size.

Nothing is unpickled. A message does not name its sender: who reads it knows from whom it came.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto
from google.protobuf.unknown_fields import UnknownFieldSet

from verfedsv.arrays import Array
from verfedsv.errors import InputError
from verfedsv.federation.messages import Answer, Gradients, Message, Request
from verfedsv.network import consortium_pb2 as pb
from verfedsv.network.messages import (
    PROTOCOL,
    AlignmentAnswer,
    AlignmentRequest,
    Begin,
    Deliver,
    End,
    Hello,
    Learning,
    Welcome,
)

LARGEST_FRAME = 1 << 20
"""Bytes in a frame; gRPC refuses messages above 4 MiB unless told otherwise."""

METHOD = "/verfedsv.v1.Consortium/Attend"

OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # otherwise gRPC 1.85 waits a minute for the answer to a ping
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 2 * LARGEST_FRAME),
    ("grpc.max_metadata_size", 16_384),
    ("grpc.so_reuseport", 0),
)
"""What gRPC is told at both ends: a peer that is silent for half a minute is gone, and frames are small."""

CLIENT_OPTIONS = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""What a client is told besides: a connection is for one call, also if other clients are in this process."""

SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.max_concurrent_streams", 1),  # of one connection
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 30_000),  # without a call
    ("grpc.max_connection_age_ms", 10_000),  # then no new call; the present one goes on
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a few bytes may unpack to many
)
"""What the server is told besides: who says nothing is hung up on."""

_MOST_DIMENSIONS = 3
_NUMBERS = tuple(map(np.dtype, ("<f8", "<f4", "<i8", "u1", "<u4")))
"""The types of arrays, in the order of their numbers in the definition."""

_TO_CLIENT: tuple[type[Message], ...] = (*get_args(Request), *get_args(AlignmentRequest), Welcome, Begin, Deliver, End)
_FROM_CLIENT: tuple[type[Message], ...] = (*get_args(Answer), *get_args(AlignmentAnswer), Hello)


def _field_of(kind: type) -> str:
    """Return a message's name in the definition.

    >>> _field_of(Begin)
    'begin'
    """
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS = {_field_of(kind): kind for kind in (*_TO_CLIENT, *_FROM_CLIENT)}


def to_bytes(message: Message) -> bytes:
    """Return a message as bytes."""
    whole = pb.ToClient() if isinstance(message, _TO_CLIENT) else pb.FromClient()
    whole.round, whole.sequence = message.round, message.sequence
    content = getattr(whole, _field_of(type(message)))
    content.SetInParent()
    _fill(content, message, leave_out=_OF_ALL)
    return bytes(whole.SerializeToString())


def request_from_bytes(content: bytes, client: str) -> Message:
    """Return a message to a client; raise InputError if it is none."""
    return _parse(pb.ToClient(), content, client)


def answer_from_bytes(content: bytes, client: str) -> Message:
    """Return a message of a client; raise InputError if it is none."""
    return _parse(pb.FromClient(), content, client)


def frames(content: bytes) -> Iterator[bytes]:
    """Yield the frames of a message."""
    if len(content) <= LARGEST_FRAME:
        yield pb.Frame(part=content).SerializeToString()
        return
    view = memoryview(content)
    for start in range(0, len(content), LARGEST_FRAME):
        part = bytes(view[start : start + LARGEST_FRAME])
        yield pb.Frame(part=part, more=start + LARGEST_FRAME < len(content)).SerializeToString()


class Assembly:
    """Puts frames together again; one message at a time, of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._content = bytearray()  # not a list of parts: each of these may be a single byte

    def add(self, frame: bytes) -> bytes | None:
        """Return the message that a frame completes, None if more follow; raise InputError if it is too large."""
        try:
            found = pb.Frame.FromString(frame)
        except DecodeError:
            raise InputError(f"{len(frame):,} bytes are not a frame of this protocol") from None
        if len(UnknownFieldSet(found)):
            raise InputError("a frame with fields that this version does not know")
        size = len(self._content) + len(found.part)
        if size > self.limit:
            raise InputError(f"a message of {size:,} bytes or more, where at most {self.limit:,} are allowed")
        if found.more and not found.part:
            raise InputError("an empty frame")
        if not found.more and not self._content:
            return found.part
        self._content += found.part
        if found.more:
            return None
        whole = bytes(self._content)
        self._content.clear()
        return whole


async def next_message(frames_in: AsyncIterator[bytes], assembly: Assembly) -> bytes | None:
    """Return the next message, None if the other side hung up; raise InputError if it cannot be read."""
    async for frame in frames_in:
        if (whole := assembly.add(frame)) is not None:
            return whole
    return None


_OF_ALL = ("client", "round", "sequence")


def _fill(proto: Any, source: Any, leave_out: tuple[str, ...] = ()) -> None:
    for field in fields(source):
        value = getattr(source, field.name)
        if field.name in leave_out or value is None:
            continue
        if isinstance(value, np.ndarray):
            _fill_array(getattr(proto, field.name), value)
        elif isinstance(value, Message):
            _fill(getattr(proto, field.name), value, leave_out=("client", "sequence"))
        elif is_dataclass(value):
            _fill(getattr(proto, field.name), value)
        elif isinstance(value, list):
            getattr(proto, field.name).extend(value)
        else:
            setattr(proto, field.name, value)


def _fill_array(proto: pb.Array, array: Array) -> None:
    array = np.ascontiguousarray(array)
    try:
        proto.type = _NUMBERS.index(array.dtype.newbyteorder("<"))  # type: ignore[assignment]
    except ValueError:
        raise InputError(f"arrays of {array.dtype} cannot be sent") from None
    proto.shape.extend(array.shape)
    proto.content = array.tobytes()


def _parse(whole: Any, content: bytes, client: str) -> Message:
    what = f"{len(content):,} bytes are not a message of this version"
    try:
        whole.ParseFromString(content)
    except DecodeError:
        raise InputError(what) from None
    name = whole.WhichOneof("content")
    if name is None:
        raise InputError(what)
    message = getattr(whole, name)
    kind = _KINDS[name]
    found = _made(kind, message, client, whole.round, whole.sequence)
    if _has_unknown(whole) and not (isinstance(found, Hello) and found.protocol != PROTOCOL):
        raise InputError(f"{kind.__name__} has fields that this version does not know")
    return found


def _made(kind: type[Message], proto: Any, *about: Any) -> Message:
    """Return a message with this content; `about` is client, round and sequence number."""
    values = {field.name: _read(proto, field.name, str(field.type)) for field in fields(kind)[len(_OF_ALL) :]}
    if isinstance(step := values.get("gradients"), pb.Step):
        values["gradients"] = _made(Gradients, step, about[0], step.round, about[2])
    return kind(*about, **values)


def _has_unknown(message: Proto) -> bool:
    """Return whether a message, or one in it, has fields that are not in the definition."""
    parts = (value for field, value in message.ListFields() if field.message_type is not None)
    return bool(len(UnknownFieldSet(message))) or any(map(_has_unknown, parts))


def _read(proto: Proto, name: str, annotation: str) -> Any:
    value = getattr(proto, name)
    if isinstance(value, pb.Array | pb.Step) and not proto.HasField(name):
        if annotation.endswith("| None"):
            return None
        raise InputError(f"a message has no {name}")
    if isinstance(value, pb.Array):
        return _read_array(value, name)
    if annotation == Learning.__name__:
        return Learning(**{field.name: getattr(value, field.name) for field in fields(Learning)})
    return list(value) if annotation.startswith("list") else value


def _read_array(proto: pb.Array, name: str) -> Array:
    shape = tuple(proto.shape)
    if len(shape) > _MOST_DIMENSIONS or not 0 <= proto.type < len(_NUMBERS):
        raise InputError(f"{name} is not an array of this version")
    number = _NUMBERS[proto.type]
    if math.prod(shape) * number.itemsize != len(proto.content):
        raise InputError(f"{name} has {len(proto.content):,} bytes and should be of shape {shape}")
    try:
        return np.frombuffer(proto.content, number).reshape(shape)
    except ValueError:  # an empty array of huge dimensions
        raise InputError(f"{name} cannot be of shape {shape}") from None
