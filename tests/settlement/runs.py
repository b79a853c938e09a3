"""A small run with everything in its folder."""

import json
from pathlib import Path

import numpy as np
from scipy.special import expit

from verfedsv import Recorder, value
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement import Terms, settle
from verfedsv.settlement.keys import new_keys, read_private_key
from verfedsv.settlement.statement import make_statement
from verfedsv.transcript import Transcript

CLIENTS = ["bank", "telco", "shop"]
CONFIG = """[data]
name = "adult"
clients = 3

[training]
batch_size = 40
rate = 0.5
rounds = 6

[output]
folder = "out"
"""
ASYNCHRONOUS = 'mode = "asynchronous"\nintercept = true\nstamp_every = 1\nduration = 6'
"""In place of the rounds there, for a training whose server has an intercept."""


def record(
    folder: Path,
    n_rounds=6,
    seed=0,
    mode="synchronous",
    n_samples=40,
    precision=np.float64,
    recorder=None,
    **agreed,
):
    """Record rounds in which bank's embeddings grow fastest, and shop's the wrong way; return the recorder, closed."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_samples) % 2
    data = (2 * labels - 1)[:, None] * [1.0, 0.5, -0.1] + 0.3 * rng.normal(size=(n_samples, 3))
    everybody = np.arange(n_samples)
    with recorder or Recorder(folder, labels, CLIENTS, **agreed) as recorder:
        for t in range(1, n_rounds + 1):
            uploads = {name: (0.2 * t * data[:, m]).astype(precision) for m, name in enumerate(CLIENTS)}
            if mode == "synchronous":
                recorder.log(everybody, uploads)
                continue
            for m, name in enumerate(CLIENTS):
                mine = np.sort(rng.permutation(n_samples)[: 20 + m])
                recorder.update(name, mine, uploads[name][mine], time=t)
            recorder.stamp(np.full(n_samples, 0.1 * t).astype(precision), time=t)
    return recorder


def make_run(folder: Path, **options) -> Path:
    """Return a folder with what a run leaves there; what valuing does not need is made up."""
    record(folder / "transcript", **options)
    is_asynchronous = options.get("mode") == "asynchronous"
    config = CONFIG.replace("rounds = 6", ASYNCHRONOUS) if is_asynchronous else CONFIG
    agreed = "".join(f"{name} = {json.dumps(setting)}\n" for name, setting in options.get("valuation", {}).items())
    (folder / "config.toml").write_text(f"{config}[valuation]\n{agreed}" if agreed else config)
    (folder / "metrics.jsonl").write_text('{"n_rounds": 6, "train_loss": 0.5}\n')
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "server.npz").write_bytes(np.random.default_rng(0).bytes(300))
    (folder / "valuation.json").write_text(value(folder).to_json())
    return folder


def sign(folder: Path, place: Path | None = None, change=None, **terms) -> Path:
    """Sign a statement of a run, with payouts; return where it lies. The key is beside the run."""
    name = folder.parent / "consortium"
    if not name.with_name("consortium.key").exists():
        new_keys(name)
    valuation = value(folder)
    paid = settle(
        valuation,
        Terms.of(1000, "EUR", **({"negative": "zero"} | terms)),
        even_if_the_loss_rose=True,
        accept_settings=True,
    )
    if change is not None:
        valuation, paid = change(valuation, paid)
    place = place or folder / "statement.json"
    key = read_private_key(name.with_name("consortium.key"))
    place.write_bytes(make_statement(RunFolder(folder), Transcript.open(folder), valuation, key, place, paid).to_json())
    return place


def diverge(folder: Path) -> Path:
    """Record a training that diverges: at a rate of 1,000 the intercept jumps, and the clients partly undo the harm."""
    rng = np.random.default_rng(8)
    labels = (rng.random(60) < 0.3).astype(int)
    features = rng.normal(size=(2, 60)) + 0.3 * (2 * labels - 1)
    weights, intercept = np.zeros(2), 0.0
    with Recorder(folder / "transcript", labels, ["bank", "telco"]) as recorder:
        for _ in range(7):
            slopes = expit(weights @ features + intercept) - labels
            weights, intercept = weights - 1000 * features @ slopes / 60, intercept - 1000 * slopes.mean()
            uploads = dict(zip(["bank", "telco"], weights[:, None] * features, strict=True))
            recorder.log(np.arange(60), uploads, np.full(60, intercept))
    return folder


def without_derived(fields):
    """Return the fields of a valuation without those that follow from the others, so that any can be changed."""
    return {name: field for name, field in fields.items() if name not in ("method", "shares", "errors", "books")}
