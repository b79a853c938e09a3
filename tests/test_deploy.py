"""The files in deploy/ fit the commands, and keep what they start contained."""

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cli.inprocess import call

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = ("verfedsv-server.service", "verfedsv-client@.service")


def read_unit(name):
    """Return [Service] of a unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read(DEPLOY / name, encoding="utf-8")
    return parser["Service"]


def commands():
    """Return each command that is started, as a list of words."""
    for name in UNITS:
        words = shlex.split(read_unit(name)["ExecStart"])
        assert words[0] == "/opt/verfedsv/bin/verfedsv"
        yield words[1:]
    for service in read_compose()["services"].values():
        yield service["command"]


def read_compose():
    return yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))


def instructions():
    """Return the instructions of the Containerfile: their names and what follows."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_commands_and_options_exist():
    """In the help of this version."""
    found = [*commands()]
    assert [words[0] for words in found] == ["serve", "join", "serve", "join"]
    for command, *words in found:
        shown = call(command, "--help").stdout
        for word in words:
            if word.startswith("--"):
                assert re.search(rf"{word}\b", shown), (command, word)


@pytest.mark.parametrize("name", UNITS)
def test_units_restart_what_can_be_repeated_and_contain_it(name):
    """Exit code 2 needs a person, 130 is a stop, and everything else begins again; nothing else can be written."""
    unit = read_unit(name)
    expected = {
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
        "SuccessExitStatus": "130",
        "KillSignal": "SIGINT",
        "NoNewPrivileges": "true",
        "PrivateTmp": "true",
        "ProtectSystem": "strict",
        "User": "verfedsv",
        "UMask": "0077",
    }
    assert {key: unit.get(key) for key in expected} == expected
    assert unit["ReadWritePaths"] == unit["WorkingDirectory"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name, tmp_path):
    """With a program that exists here, and an instance of the template."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("/opt/verfedsv/bin/verfedsv", "/usr/bin/env")
    path = tmp_path / name.replace("@", "@telco")
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_is_pinned_has_no_secrets_and_no_root():
    """Its base has a full version; it copies what the package is made of, and nothing else."""
    found = instructions()
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", dict(found)["FROM"])
    assert found.index(("USER", "10001")) < found.index(("ENTRYPOINT", '["verfedsv"]'))
    copied = [word for name, text in found if name in ("COPY", "ADD") for word in text.split()[:-1]]
    assert copied == ["pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src"]
    assert all((ROOT / name).exists() for name in copied)
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert "[net]" in text
    assert not re.search(r"passphrase|\.key\b|\.crt\b", text, re.IGNORECASE)
    kinds = {"FROM", "COPY", "RUN", "USER", "WORKDIR", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in found} == kinds


def test_containers_can_do_little():
    """They write to the folder that is mounted and to memory, and the server's port is that of the configuration."""
    content = read_compose()
    assert (DEPLOY / content["x-party"]["build"]["context"] / content["x-party"]["build"]["dockerfile"]).exists()
    for service in content["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "environment" not in service
    assert content["services"]["server"]["ports"] == ["8443:8443"]


def test_sources_have_the_folder():
    """So that a source distribution can be deployed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "deploy" in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
