import json
import time

import numpy as np
import pytest

from verfedsv import InputError
from verfedsv.federation.messages import Embed, Gradients, Predict, Refusal, Save, from_bytes, to_bytes

ABOUT = {"client": "a", "round": 1, "sequence": 1}


def pack(kind, plain, shapes, body=b""):
    """Return bytes that look like a message."""
    header = json.dumps([kind, plain, shapes]).encode()
    return len(header).to_bytes(4, "little") + header + body


@pytest.mark.parametrize(
    "message",
    [
        Embed("a", 1, 2, np.array([3, 1])),
        Gradients("Zürich", 2**60, 3, np.array([0]), np.array([[0.1, -np.inf]])),
        Predict("a", 0, 4, None),
        Save("a", 1, 5, -1),
        Refusal("a", 1, 6, "\x1b[2J"),
    ],
)
def test_a_message_is_read_as_it_was_written(message):
    """All of its fields, to the last bit."""
    found = from_bytes(to_bytes(message))
    assert type(found) is type(message)
    for name in message.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(message, name))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xff\0\0" + b"[" * 70_000,
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [10**30]]}),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [0, 10**30]]}),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [2**62, 4]]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [1e400]]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [10**4000] * 800]}),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [-1]]}, bytes(16)),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [1] * 65]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [1] * 4]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": ["|O", [1]]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": [["<f8"], [1]]}, bytes(8)),
        pack("Embeddings", ABOUT, {"embeddings": ["<f8", [1]]}, bytes(9)),
        pack("Embeddings", ABOUT, [1]),
        pack("Embeddings", ABOUT, {}),
        pack("Save", {**ABOUT, "keep": "1"}, {}),
        pack("Save", {**ABOUT, "keep": 1, "more": 1}, {}),
        pack("Save", {**ABOUT, "keep": 1}, {"client": ["<f8", [1]]}, bytes(8)),
        pack(["Save"], ABOUT, {}),
        pack("Recorder", ABOUT, {}),
    ],
)
def test_bytes_that_are_no_message_are_refused(content):
    """With InputError, even if lengths and shapes overflow."""
    with pytest.raises(InputError, match=f"^{len(content):,} bytes are not a message"):
        from_bytes(content)


def test_many_dimensions_take_no_time():
    """Products of 100,000 lengths took seconds, quadratic in their number."""
    content = pack("Embeddings", ABOUT, {"embeddings": ["<f8", [4_000_000] * 100_000]})
    begin = time.process_time()
    with pytest.raises(InputError, match="are not a message"):
        from_bytes(content)
    assert time.process_time() - begin < 1
