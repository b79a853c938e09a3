"""How much memory a process takes, as Linux says."""

from pathlib import Path

import pytest


def resident(process="self", what="VmRSS"):
    """Return the resident bytes of a process; with `what` VmHWM, the most that it ever had."""
    path = Path(f"/proc/{process}/status")
    if not path.exists():
        pytest.skip("needs /proc")
    line = next(line for line in path.read_text().splitlines() if line.startswith(what))
    return 1024 * int(line.split()[1])
