"""The memory formula of docs/security.md, by the peak of a process of its own."""

import subprocess
import sys

import pytest

pytest.importorskip("resource", reason="peak memory is read through the resource module")

SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import verfedsv.alignment.party
from verfedsv.alignment import Party, align
from verfedsv.alignment.digests import digests
from verfedsv.data.ids import Ids

# Stands in for the group: also bijective and commutative, and takes no time.
verfedsv.alignment.party.multiply = lambda points, key, n_threads: points ^ np.frombuffer(key, np.uint8)
verfedsv.alignment.party.hash_ids = lambda ids, prefix, n_threads: (
    np.frombuffer(digests(ids, prefix), np.uint8).reshape(-1, 32)
)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def measure(n_ids):
    numbers = [pa.array(np.arange(n_ids) + start).cast(pa.large_string()) for start in (0, n_ids // 2)]
    parties = [Party(name, Ids(Path(name), ids, True)) for name, ids in zip("ab", numbers)]
    before = peak()
    with parties[0], parties[1]:
        assert align(parties).n_common == n_ids // 2
    return peak() - before

measure(20_000)
print(measure(int(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_ids", [200_000, 600_000])
def test_memory_hardly_grows(n_ids):
    """Two parties and the coordinator in one process, whose files take 150 bytes for each id of a party."""
    command = [sys.executable, "-c", SCRIPT, str(n_ids)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own script
    assert int(done.stdout) < 60_000_000 + 30 * n_ids
