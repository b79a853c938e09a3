"""What docs/deployment.md prints is what its commands print, each on its machine."""

import io
import re
import shlex
import shutil
import sys
from pathlib import Path

from tests.cli.inprocess import call

PAGE = Path(__file__).parents[1] / "docs" / "deployment.md"


class Terminal(io.StringIO):
    """Somebody who says yes."""

    def isatty(self):
        return True


def plain(text: str) -> str:
    """Return printed text without what is another one each time: keys, numbers, and when it was."""
    text = re.sub(r"(?:[0-9a-f]{4}-){7}[0-9a-f]{4}", "KEY", text)
    text = re.sub(r"[0-9a-f]{36,64}", "NUMBER", text)
    text = re.sub(r"CA [0-9a-f]{4}-[0-9a-f]{4}", "CA KEY", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)
    text = re.sub(r"\d\d:\d\d UTC", "TIME", text)
    return text.replace("[y/N]: y\n", "[y/N]: ").strip()


def test_commands_of_keys_print_what_the_page_shows(tmp_path, monkeypatch):
    """Requests, certificates and lists travel between three folders, and no key does."""
    section = PAGE.read_text(encoding="utf-8").partition("## Keys and certificates")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL))
    steps = re.findall(r"^(\w+)\$ (.*)\n((?:(?!\w+\$ ).*\n)*)", blocks, re.MULTILINE)
    travelled = set()
    n_commands = 0
    for machine, command, shown in steps:
        folder = tmp_path / machine
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        if command.startswith("scp "):
            *names, target = command.removesuffix(":").split()[1:]
            travelled.update(names)
            for name in names:
                (tmp_path / target).mkdir(exist_ok=True)
                shutil.copy(name, tmp_path / target)
            assert shown == ""
            continue
        monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
        done = call(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        assert plain(done.stderr + done.stdout) == plain(shown)
        n_commands += 1
    assert n_commands == 9
    assert not any(name.endswith(".key") for name in travelled)
    assert {path.name for path in tmp_path.glob("*/*.key")} == {"ca.key", "telco.key", "bank-server.key"}
