import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor

from verfedsv import InputError
from verfedsv.federation.messages import Embed, Embeddings, Gradients, Predict, Refusal, Save
from verfedsv.network import consortium_pb2 as pb
from verfedsv.network import messages as net
from verfedsv.network.wire import (
    _KINDS,
    LARGEST_FRAME,
    Assembly,
    answer_from_bytes,
    frames,
    request_from_bytes,
    to_bytes,
)

ROOT = Path(__file__).parent.parent.parent

LEARNING = net.Learning("perceptron", 32, 8, 2**63 - 1, 0.1, "inverse", "adam", 0.9, "unit-rows")
REQUESTS = [
    Embed("a", 1, 2, np.array([3, 1])),
    Embed("a", 2, 7, np.array([3]), Gradients("a", 1, 7, None, np.array([[0.5], [1 / 3]]))),
    Gradients("Zürich", 2**60, 3, np.array([0]), np.array([[0.1, -np.inf]])),
    Gradients("a", 1, 3, None, np.array([[5e-324]])),
    Predict("a", 0, 4, None),
    Save("a", 1, 5, -1),
    net.Begin("a", 0, 1, "start", np.arange(3), np.array([0, 1, 0], np.uint8), LEARNING, 10),
    net.Blind("a", 0, 1, "owner", 2, np.arange(64, dtype=np.uint8).reshape(2, 32)),
    net.Open("a", 0, 1, "owner", 2, np.array([2**32 - 1], np.uint32)),
    net.StartAlignment("a", 0, 1, bytes(32), ["a", "b"], [1, 2**40], 4096),
    net.Deliver("a", 0, 9, "value.json", b"\0\xff"),
]
ANSWERS = [
    Embeddings("a", 1, 2, np.zeros((0, 3), np.float32)),
    Refusal("a", 1, 6, "\x1b[2J"),
    net.Introduction("a", 0, 1, [10, 0, 2]),
]


def check_same(found, message):
    assert type(found) is type(message)
    for field in fields(message):
        ours, theirs = getattr(found, field.name), getattr(message, field.name)
        if isinstance(theirs, Gradients):
            check_same(ours, theirs)
            continue
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_is_read_as_it_was_written(message):
    """All of its fields, to the last bit; its receiver is who reads it."""
    check_same(request_from_bytes(to_bytes(message), message.client), message)


@pytest.mark.parametrize("message", ANSWERS, ids=lambda message: type(message).__name__)
def test_an_answer_is_read_as_it_was_written(message):
    """All of its fields, to the last bit; its sender is who the connection belongs to."""
    check_same(answer_from_bytes(to_bytes(message), message.client), message)


def test_the_definition_has_the_fields_of_the_classes():
    """Every message and every field of either is in the other."""
    for whole in (pb.ToClient, pb.FromClient):
        for field in whole.DESCRIPTOR.oneofs_by_name["content"].fields:
            names = [own.name for own in field.message_type.fields]
            assert names == [own.name for own in fields(_KINDS[field.name])][3:]
    assert [own.name for own in pb.Learning.DESCRIPTOR.fields] == [own.name for own in fields(net.Learning)]
    assert [own.name for own in pb.Step.DESCRIPTOR.fields] == ["samples", "values", "round"]
    n_messages = sum(len(whole.DESCRIPTOR.oneofs_by_name["content"].fields) for whole in (pb.ToClient, pb.FromClient))
    assert n_messages == len(_KINDS)


def test_the_generated_code_is_that_of_the_definition(tmp_path):
    """Generating it again changes nothing."""
    pytest.importorskip("grpc_tools")
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import generate_protocol as g, pathlib"
    command = [sys.executable, "-c", f"{code}; g.generate(pathlib.Path({str(tmp_path)!r}))"]
    subprocess.run(command, check=True)  # noqa: S603
    for name in ("consortium_pb2.py", "consortium_pb2.pyi"):
        found = (tmp_path / "verfedsv" / "network" / name).read_text(encoding="utf-8")
        assert found == (ROOT / "src" / "verfedsv" / "network" / name).read_text(encoding="utf-8")


def embeddings(**array):
    whole = pb.FromClient(sequence=1)
    whole.embeddings.SetInParent()
    if array:
        whole.embeddings.embeddings.MergeFrom(pb.Array(**array))
    return whole.SerializeToString()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 70_000,
        pb.FromClient(sequence=1).SerializeToString(),
        embeddings(),
        embeddings(shape=[1], content=bytes(9)),
        embeddings(shape=[2**63], content=bytes(8)),
        embeddings(shape=[2**62, 4], content=bytes(8)),
        embeddings(shape=[0, 2**63]),
        embeddings(shape=[1, 1, 1, 1], content=bytes(8)),
        embeddings(shape=[1] * 100_000, content=bytes(8)),
        embeddings(type=7, shape=[1], content=bytes(8)),
    ],
)
def test_bytes_that_are_no_message_are_refused(content):
    """With InputError, even if lengths and shapes overflow."""
    with pytest.raises(InputError):
        answer_from_bytes(content, "a")


def test_damaged_messages_are_refused_or_read():
    """Whatever the bytes are, there is a message or an InputError, and nothing else."""
    rng, n_refused = random.Random(0), 0  # noqa: S311
    for number in range(3000):
        content = bytearray(to_bytes(ANSWERS[number % len(ANSWERS)]))
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        try:
            answer_from_bytes(bytes(content[: rng.randint(0, len(content))]), "a")
        except InputError:
            n_refused += 1
    assert 0 < n_refused < 3000


@pytest.mark.parametrize("size", [0, 1, LARGEST_FRAME, LARGEST_FRAME + 1, 3 * LARGEST_FRAME])
def test_frames_are_put_together_again(size):
    """To the same bytes, and none is larger than allowed."""
    content, assembly = bytes(size), Assembly(size)
    cut = [*frames(content)]
    assert max(map(len, cut)) <= LARGEST_FRAME + 16
    assert [assembly.add(frame) for frame in cut] == [None] * (len(cut) - 1) + [content]


def test_what_is_too_large_is_refused_before_it_is_complete():
    """The frame that exceeds the limit is refused, and none is kept that has no end."""
    assembly = Assembly(100)
    assert assembly.add(pb.Frame(part=bytes(60), more=True).SerializeToString()) is None
    with pytest.raises(InputError, match="120 bytes or more, where at most 100"):
        assembly.add(pb.Frame(part=bytes(60), more=True).SerializeToString())
    with pytest.raises(InputError, match="empty frame"):
        Assembly(100).add(pb.Frame(more=True).SerializeToString())
    with pytest.raises(InputError, match="not a frame"):
        Assembly(100).add(b"\xff\xff")


def test_no_message_names_its_sender():
    """A client is who its certificate says: no field of an answer but Hello's has a name of its own."""
    for field in pb.FromClient.DESCRIPTOR.oneofs_by_name["content"].fields:
        texts = [own.name for own in field.message_type.fields if own.type == FieldDescriptor.TYPE_STRING]
        assert field.name == "hello" or texts in ([], ["reason"], ["checksum"])


def test_the_page_on_security_lists_every_message():
    """By the name of its class."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    listed = page.partition("## What crosses the wire")[2].partition("\n## ")[0]
    assert [kind.__name__ for kind in _KINDS.values() if f"`{kind.__name__}`" not in listed] == []
