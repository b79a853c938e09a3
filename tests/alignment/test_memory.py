"""The memory formula of docs/security.md, by the peak of a process of its own."""

import subprocess
import sys

import pytest

from tests.memory import IS_KNOWN

pytestmark = pytest.mark.skipif(not IS_KNOWN, reason="needs /proc")

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import verfedsv.alignment.party
from tests.memory import resident
from verfedsv.alignment import Party, align
from verfedsv.alignment.digests import digests
from verfedsv.data.ids import Ids

# Stands in for the group: also bijective and commutative, and takes no time.
verfedsv.alignment.party.multiply = lambda points, key, n_threads: points ^ np.frombuffer(key, np.uint8)
verfedsv.alignment.party.hash_ids = lambda ids, prefix, n_threads: (
    np.frombuffer(digests(ids, prefix), np.uint8).reshape(-1, 32)
)

def measure(n_ids):
    numbers = [pa.array(np.arange(n_ids) + start).cast(pa.large_string()) for start in (0, n_ids // 2)]
    parties = [Party(name, Ids(Path(name), ids, True)) for name, ids in zip("ab", numbers)]
    before = resident(what="VmHWM")
    with parties[0], parties[1]:
        assert align(parties).n_common == n_ids // 2
    return resident(what="VmHWM") - before

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
