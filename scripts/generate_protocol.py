"""Generate the Python modules of consortium.proto: python scripts/generate_protocol.py."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).parent.parent / "src"
DEFINITION = "verfedsv/network/consortium.proto"


def generate(folder: Path) -> None:
    """Write the modules below a folder, by the path of their package."""
    code = protoc.main(["protoc", f"-I{SOURCES}", f"--python_out={folder}", f"--pyi_out={folder}", DEFINITION])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    generate(SOURCES)
