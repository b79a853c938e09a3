import numpy as np
import pyarrow as pa
import pytest

from tests.transcript import forgeries
from verfedsv.transcript.framing import UNREADABLE
from verfedsv.transcript.messages import RecordMessage
from verfedsv.transcript.rows import read_rows


def message_of(rng, with_state):
    """Return the bytes of a synchronous round of three clients, one of them absent, with random numbers."""
    uploads = [(rng.permutation(9)[:4].astype(np.uint32), rng.normal(size=(4, 1))) for _ in range(2)]
    state = [rng.bytes(32), rng.bytes(32)] if with_state else None
    kinds, clients = ("upload", "absent", "upload", "stamp"), ("a", "b", "c", None)
    rows = [uploads[0], None, uploads[1], None]
    message, _ = RecordMessage(kinds, clients, float(rng.normal()), rows, rng.normal(size=4), state).build(
        "float64", b""
    )
    return bytes(memoryview(message))


def as_pyarrow(rows):
    """Return rows as pyarrow would."""
    last = len(rows) - 1
    return [
        {
            "kind": rows.kinds[row],
            "client": rows.clients[row],
            "time": rows.times[row],
            "offset": None if row < last or rows.offset is None else rows.offset.tolist(),
            "state": rows.state if row == last else None,
            "digest": rows.digest(row) if row in rows.uploads else None,
            "samples": rows.samples.row(row).tolist(),
            "embeddings": rows.embeddings.row(row).tolist(),
        }
        for row in range(len(rows))
    ]


@pytest.mark.parametrize("with_state", [False, True])
def test_rows_are_what_pyarrow_reads_whichever_message_was_read_before(with_state):
    """Messages of one shape, which is read once, and messages that differ from them in one bit anywhere."""
    rng = np.random.default_rng(0)
    n_read = 0
    for trial in range(600):
        content = bytearray(message_of(rng, with_state))
        if trial % 10:
            bit = int(rng.integers(8 * len(content)))
            content[bit // 8] ^= 1 << bit % 8
        try:
            rows = read_rows(pa.py_buffer(bytes(content)), "float64")
        except UNREADABLE:
            assert trial % 10
            continue
        n_read += 1
        np.testing.assert_equal(as_pyarrow(rows), forgeries.read(bytes(content)).to_pylist())
    assert n_read > 200
