"""What docs/deployment.md prints is what its commands print, each on its machine."""

import io
import re
import shlex
import shutil
import sys
import time
import tomllib
from pathlib import Path

import numpy as np

import verfedsv
from tests.cli.inprocess import call
from tests.network.machines import Machines
from verfedsv.runs.extent import planned_rounds
from verfedsv.runs.reading import parse_config

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


def steps_of(title: str) -> list[tuple[str, str, str]]:
    """Return the commands of a section: the machine, the command, and what it is said to print.

    The command `...` is the last one of the machine, which prints more.
    """
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL))
    steps = list[tuple[str, str, str]]()
    for machine, command, shown in re.findall(r"^(\w+)\$ (.*)\n((?:(?!\w+\$ ).*\n)*)", blocks, re.MULTILINE):
        if command == "...":
            last = max(k for k, step in enumerate(steps) if step[0] == machine)
            steps[last] = machine, steps[last][1], steps[last][2] + shown
        else:
            steps.append((machine, command, shown))
    return steps


def test_commands_of_keys_print_what_the_page_shows(tmp_path, monkeypatch):
    """Requests, certificates and lists travel between three folders, and no key does."""
    steps = steps_of("Keys and certificates")
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


PARTIES = {"bank": [f"x{k}" for k in range(7)], "telco": [f"z{k}" for k in range(7)]}
PARTIES["shop"] = ["z7", "z8", "z9", *(f"x{k}" for k in range(7, 13))]


def write_files(folder):
    """Write the files of the example with fewer people, and new ones to predict."""
    rng = np.random.default_rng(0)
    for file, ids in (("{}.csv", np.arange(600)), ("new_{}.csv", np.arange(1000, 1100))):
        columns = {name: rng.standard_normal(len(ids)).round(6) for names in PARTIES.values() for name in names}
        y = (columns["x0"] + columns["z0"] + columns["z8"] > 0).astype(int)
        for party, names in PARTIES.items():
            rows = rng.choice(len(ids), round(0.9 * len(ids)), replace=False)
            chosen = {"customer_id": ids, "y": y} if party == "bank" and file == "{}.csv" else {"customer_id": ids}
            chosen |= {name: columns[name] for name in names}
            lines = [",".join(chosen), *(",".join(str(column[row]) for column in chosen.values()) for row in rows)]
            (folder / party / file.format(party)).write_text("\n".join(lines) + "\n", encoding="utf-8")


def shape(text: str) -> list[str]:
    """Return the words of a text without numbers and bars, sorted: lines wrap elsewhere, and some change places."""
    lines = [line for line in text.splitlines() if not line.startswith("note: The loss was still falling")]
    text = re.sub(r"head [0-9a-f]+", "head HEX", plain("\n".join(lines)))
    text = re.sub(r"[█▉▊▋▌▍▎▏]+", "BAR", text).replace("closed-form+exact", "closed-form")
    return sorted(re.sub(r"[-\u2212<]?\d[\d.,:]*( \u00d7 10\S+)?", "N", text).split())


def configurations() -> list[str]:
    """Return the configuration of the page, and the table that makes it an asynchronous one."""
    return re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_asynchronous_training_has_as_many_rounds_as_said():
    """In place of the other [training], it makes a configuration that can be used."""
    config, table = configurations()
    text = re.sub(r"\[training\]\n.*?\n\n", table + "\n", config, flags=re.DOTALL)
    found = parse_config(text, PAGE)
    (said,) = re.findall(r"here (\d+) rounds", table)
    assert found.training.clock == "real"
    assert planned_rounds(found.training, 1000) == int(said)


class Walk:
    """Runs the commands of the page on three machines; `printed` has what each printed, in their order."""

    def __init__(self, machines):
        self.machines, self.printed = machines, []
        self._running = []

    def take(self, machine, command):
        """Run a command; one that waits for others is only started, and its output added when it ends."""
        name, *arguments = shlex.split(command)
        if name == "scp":
            *names, target = arguments
            for each in names:
                folder = self.machines.folder
                shutil.copy(folder / machine / each, folder / target.removesuffix(":"))
            self.printed.append("")
        elif arguments[0] == "join" or "serve" in arguments or "--serve" in arguments:
            self._start(machine, arguments)
        else:
            if arguments[0] != "doctor":
                self.finish()
            code, text = self.machines.run(machine, *arguments)
            assert code == 0, text
            self.printed.append(text)

    def _start(self, machine, arguments):
        if arguments[0] != "join":
            self.finish()
        log = self.machines.folder / f"{len(self.printed)}.log"
        with log.open("wb") as output:
            process = self.machines.start(machine, *arguments, output=output)
        self._running.append((process, log, len(self.printed)))
        self.printed.append("")
        end = time.monotonic() + 60
        while not re.search("connected to the|listening on", log.read_text(encoding="utf-8")):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < end
            time.sleep(0.05)

    def finish(self):
        """Wait until all that was started has ended."""
        for process, log, place in self._running:
            assert process.wait(120) == 0, log.read_text(encoding="utf-8")
            self.printed[place] = log.read_text(encoding="utf-8")
        self._running.clear()


def test_three_machines(tmp_path):
    """All commands of the walk, each in the network of its machine, print what the page shows, and work."""
    steps = steps_of("Three machines")
    config, _ = configurations()
    with Machines(tmp_path, ("bank", "telco", "shop")) as machines:
        write_files(tmp_path)
        (tmp_path / "bank" / "consortium.toml").write_text(config, encoding="utf-8")
        walk = Walk(machines)
        for machine, command, _ in steps:
            walk.take(machine, command)
        walk.finish()
    for (machine, command, shown), printed in zip(steps, walk.printed, strict=True):
        assert shape(shown) == shape(printed), (machine, command)
    assert verfedsv.Transcript.open(tmp_path / "bank" / "run").n_rounds == tomllib.loads(config)["training"]["rounds"]
    for client in ("telco", "shop"):
        there = {path.name for path in (tmp_path / client).rglob("*")}
        assert {f"{client}.key", "value.json", "uploads.extract", "statement.json", "model.npz"} <= there
        assert not {"bank-server.key", "ca.key", "consortium.key", "bank.csv"} & there
    assert not [*(tmp_path / "bank").rglob("telco.key"), *(tmp_path / "bank").rglob("telco.csv")]
