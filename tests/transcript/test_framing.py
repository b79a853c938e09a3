import subprocess
import sys

SCRIPT = """
import numpy as np, pyarrow as pa
from verfedsv.transcript.framing import UNREADABLE, find_extent, read_file_of_one_batch
from verfedsv.transcript.inputs import as_labels

honest = as_labels([0, 1, 1], "logistic", None).file(np.ones(3, bool))
assert read_file_of_one_batch(pa.py_buffer(honest)).num_rows == 3
damaged = honest.replace(b"\\5\\0\\0\\0label", b"\\xff\\xff\\xff\\x7flabel", 1)
schema = find_extent(memoryview(honest)[8:]).size
for content in (honest, damaged):
    for start, own in ((8, 1), (8 + schema, 3)):
        root = start + 8 + int.from_bytes(honest[start + 8 : start + 12], "little")
        fields = root - int.from_bytes(honest[root : root + 4], "little", signed=True)
        position = root + honest[fields + 6]
        assert honest[position] == own
        for other in {*range(256)} - {own}:
            changed = bytearray(content)
            changed[position] = other
            try:
                read_file_of_one_batch(pa.py_buffer(bytes(changed)))
            except UNREADABLE:
                continue
            raise AssertionError(f"read a message of type {other}")
"""


def test_a_message_of_another_type_does_not_reach_arrow():
    """Arrow checks nothing in a message of unknown type: to read it as a schema ends the process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)  # noqa: S603  # our own script
    assert done.returncode == 0, done.stderr
