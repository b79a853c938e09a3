"""The command `verfedsv`, also as `python -m verfedsv`."""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C is quiet even while its modules are imported, which takes a second or two."""
    signal.signal(signal.SIGINT, _end)
    from verfedsv.cli import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
