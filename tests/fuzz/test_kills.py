"""A run killed again and again, wherever that hits it, ends as one that was left alone."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS
from verfedsv import Transcript

N_KILLS = int(os.environ.get("VERFEDSV_KILLS", "20"))
COMMAND = [sys.executable, "-m", "verfedsv", "run"]
TEXTS = {
    "synchronous": SYNCHRONOUS.replace("rounds = 30", "rounds = 400"),
    "asynchronous": ASYNCHRONOUS.replace("duration = 1.2", "duration = 8"),
}


@pytest.mark.soak
@pytest.mark.parametrize("mode", TEXTS)
def test_kills_at_random_moments_lose_nothing(tmp_path, mode):
    """After each SIGKILL the transcript verifies, no record is gone, and in the end all values are the same."""
    (tmp_path / "run.toml").write_text(TEXTS[mode])
    (tmp_path / "whole.toml").write_text(TEXTS[mode].replace('"out"', '"whole"'))
    whole = subprocess.run([*COMMAND, str(tmp_path / "whole.toml"), "--json"], capture_output=True, check=True)  # noqa: S603
    chain = tmp_path / "out" / "transcript" / "chain-00001.bin"
    rng = random.Random(0)  # noqa: S311  # no secret
    n_before = 0
    for _ in range(N_KILLS):
        process = subprocess.Popen(  # noqa: S603
            [*COMMAND, str(tmp_path / "run.toml"), *["--resume"] * (tmp_path / "out").exists()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Once it has got further than before, at any moment: of its start, its training or its valuation.
        while process.poll() is None and (chain.stat().st_size if chain.exists() else 0) <= n_before:
            time.sleep(0.01)
        time.sleep(rng.expovariate(4))
        process.kill()
        process.wait()
        if process.returncode == 0:
            break
        assert process.returncode == -9
        n_now = Transcript.open(tmp_path / "out").n_records * 48
        assert n_now >= n_before
        n_before = n_now
    last = subprocess.run(  # noqa: S603
        [*COMMAND, str(tmp_path / "run.toml"), "--resume", "--json"], capture_output=True, check=True
    )
    Transcript.open(tmp_path / "out").verify()
    expected, found = json.loads(whole.stdout), json.loads(last.stdout)
    assert found["values"] == expected["values"]
    assert found["n_rounds"] == expected["n_rounds"]
