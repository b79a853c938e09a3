import ast
import os
import signal
import subprocess
import sys

import pytest

import verfedsv


@pytest.mark.parametrize("module", ["numpy", "pyarrow.lib", "numba", "verfedsv.cli.output"])
def test_ctrl_c_during_imports_is_quiet(module):
    """Whichever module was imported last: exit code 130, and nothing is printed."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "verfedsv", "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    for line in process.stderr:  # a line for each module, as it has been imported
        if line.split("|")[-1].strip() == module:
            break
    process.send_signal(signal.SIGINT)
    output, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert output == ""
    assert all(line.startswith("import time:") for line in rest.splitlines()), rest


def test_what_ctrl_c_does_is_said_before_anything_is_imported():
    """But for what Python has to import to say it."""
    code = (
        "import os, signal, sys; before = set(sys.modules); import verfedsv.__main__; print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)  # noqa: S603
    assert ast.literal_eval(done.stdout) == {"verfedsv", "verfedsv.__main__"}


def test_ctrl_c_is_quiet_once_the_handler_is_set():
    """An interrupt in main itself, before the command line is imported, ends with exit code 130."""
    code = "import verfedsv.__main__ as m, os, signal; os.kill(os.getpid(), signal.SIGINT); print('went on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_is_public_is_found_in_the_package():
    """All of it, by name and by star; nothing else, except submodules that somebody imported."""
    from verfedsv import public

    assert set(public.__all__) <= set(dir(verfedsv))
    for name in public.__all__:
        assert getattr(verfedsv, name) is getattr(public, name)
    with pytest.raises(AttributeError, match="module 'verfedsv' has no attribute 'nothing'"):
        _ = verfedsv.nothing
