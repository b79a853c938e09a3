import os
from pathlib import Path

import pytest

from verfedsv import InputError
from verfedsv.network.passphrases import VARIABLE, passphrase_from, read_passphrase

KEY = Path("telco.key")


def private(path, content):
    """Write a file for its owner alone."""
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_file_comes_before_the_environment_and_that_before_a_prompt(tmp_path, monkeypatch):
    """Each is used only if what comes before it is not there; the prompt names the key."""
    file = private(tmp_path / "secret", b"from the file\n")
    asked = []

    def ask(prompt):
        asked.append(prompt)
        return "typed ü"

    monkeypatch.delenv(VARIABLE, raising=False)
    assert passphrase_from(None, ask)(KEY) == "typed ü".encode()
    assert asked == ["Passphrase of telco.key"]
    monkeypatch.setenv(VARIABLE, "from the environment")
    assert passphrase_from(None, ask)(KEY) == passphrase_from()(KEY) == b"from the environment"
    assert passphrase_from(file, ask)(KEY) == b"from the file"
    assert len(asked) == 1


def test_without_any_of_them_there_is_an_error(monkeypatch):
    """It names the key, and all ways."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"telco\.key is encrypted.*set VERFEDSV_PASSPHRASE.*--passphrase-file"):
        passphrase_from()(KEY)


@pytest.mark.parametrize("content", [b" a b ", b" a b \n", b" a b \r\n", b" a b \nmore\n"])
def test_a_passphrase_is_the_first_line_of_its_file(tmp_path, content):
    """With the spaces around it, without the line break."""
    assert read_passphrase(private(tmp_path / "secret", content)) == b" a b "


def test_a_file_that_others_can_read_or_that_is_missing_is_refused(tmp_path):
    """As a key would be."""
    file = private(tmp_path / "secret", b"x")
    if os.name == "posix":
        file.chmod(0o644)
        with pytest.raises(InputError, match=r"can read the passphrase in .*secret \(mode 644\), and could use the"):
            read_passphrase(file)
    with pytest.raises(InputError, match=r"cannot read the passphrase in .*none: No such file"):
        read_passphrase(tmp_path / "none")
