"""How often a line is printed on how far a training is, where no bar is shown."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_OF_A_LINE = 10.0


def every(seconds: float) -> Callable[[], bool]:
    """Return a function that returns True once in so many seconds, from now on."""
    last = time.monotonic()

    def is_due() -> bool:
        nonlocal last
        if (now := time.monotonic()) - last < seconds:
            return False
        last = now
        return True

    return is_due
