"""Commands run in this process, which takes milliseconds where a process of their own takes seconds."""

import io
import sys
from dataclasses import dataclass
from unittest.mock import patch

from verfedsv.cli import app


@dataclass
class Done:
    """What a command returned and printed."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments, **environment: str) -> Done:
    """Run `verfedsv` with these arguments and environment variables."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
    code = 0
    with (
        patch.object(sys, "argv", ["verfedsv", *map(str, arguments)]),
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        patch.dict("os.environ", {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"} | environment),
    ):
        try:
            app()
        except SystemExit as end:
            code = end.code or 0
    for stream in streams:
        stream.flush()
    return Done(code, *(stream.buffer.getvalue().decode() for stream in streams))
