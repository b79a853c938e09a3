"""Draw the terminal after `verfedsv demo` as docs/images/demo.svg, for the README."""

import io
import os
import re
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from verfedsv.cli.demo import show

WIDTH = 80


def main() -> None:
    """Run the demo in a virtual terminal, and save what it shows."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, force_interactive=False)
    # As in an activated environment.
    activated = patch.dict(os.environ, {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"})
    with tempfile.TemporaryDirectory() as folder, chdir(folder), activated:
        show(console, Path("verfedsv-demo"))
    picture = console.export_svg(title="verfedsv demo")
    # Use the viewer's fonts, so that the picture needs no network.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    found = re.findall(r"/(?:home|root|tmp|usr|work|Users|private|var)/[^\s<]*", picture)
    if found:
        raise SystemExit(f"the picture shows paths of this machine: {', '.join(found)}")
    (Path(__file__).parents[1] / "docs" / "images" / "demo.svg").write_text(picture)


if __name__ == "__main__":
    main()
