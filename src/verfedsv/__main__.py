"""The command `verfedsv`, also as `python -m verfedsv`."""

import os
import signal

EXIT_INTERRUPTED = 130


def _end(*_: object) -> None:
    os._exit(EXIT_INTERRUPTED)


# Before anything else, so that Ctrl-C never prints a traceback.
signal.signal(signal.SIGINT, _end)


def main() -> None:
    """Run the command line. Ctrl-C is quiet even while modules are imported, which takes about a second."""
    from verfedsv.cli import app

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:
        _end()
    finally:
        signal.signal(signal.SIGINT, _end)


if __name__ == "__main__":
    main()
