"""Commands run in a process of their own, for what is not the same in the process of the tests."""

import os
import subprocess
import sys


def run_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m verfedsv` with these arguments and environment variables."""
    return subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "verfedsv", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
