"""What docs/settlement.md prints is what its commands print."""

import re
import shlex
from pathlib import Path

from tests.cli.inprocess import call

PAGE = Path(__file__).parents[1] / "docs" / "settlement.md"


def plain(text: str) -> str:
    """Return printed text without what is another one each time: keys, heads, and when it was."""
    text = re.sub(r"(?:[0-9a-f]{4}-){7}[0-9a-f]{4}", "KEY", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)
    text = re.sub(r"[0-9a-f]{16}…", "HEAD…", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_commands_print_what_the_page_shows(tmp_path, monkeypatch):
    """From recording to the audit of an extract, in a folder of their own; and the signature is checked without us."""
    monkeypatch.chdir(tmp_path)
    n_commands = 0
    for language, content in re.findall(r"```(python|console)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if language == "python":
            exec(compile(content, PAGE.name, "exec"), {})  # noqa: S102  # our own example
            continue
        for block in content.split("$ verfedsv ")[1:]:
            command, _, shown = block.partition("\n")
            done = call(*shlex.split(command))
            assert done.returncode == 0, done.stderr
            notes = plain(done.stderr)  # printed first
            assert "\n".join([*notes.splitlines(), *plain(done.stdout).splitlines()]) == plain(shown)
            n_commands += 1
    assert n_commands == 6
