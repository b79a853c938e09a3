"""SECURITY.md names the tests that hold its promises."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tests_that_hold_the_promises_exist():
    """Under the names in the page."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    found = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 10
    assert named <= found
