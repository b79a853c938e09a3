"""How well `verfedsv run` learns, beside scikit-learn on the columns of all clients side by side."""

from __future__ import annotations

import bz2
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from benchmarks.measure import table
from benchmarks.trainings import has
from verfedsv.data.catalogue import FOLDER_VARIABLE
from verfedsv.data.preparation import prepare
from verfedsv.runs import Run

PENALTIES = (1.0, 100.0)
"""Of scikit-learn's C; the better one on the test samples counts, which favours scikit-learn."""

UNITS, WIDTH, OF_HEAD, RATE = 64, 16, 128, 0.002

FILES = """
label = "y"
label_client = "guest"
[[client]]
name = "guest"
file = "guest.csv"
[[client]]
name = "host"
file = "host.csv"
"""
CONFIG = """[data]
seed = {seed}
{data}
[model]
{model}
[training]
batch_size = {batch}
epochs = {epochs}
optimizer = "adam"
evaluate_every = 1000000
{training}
[output]
folder = "{folder}"
"""
LINEAR = "", "rate = 0.02\nintercept = true"
NETWORK = (
    f"""kind = "perceptron"
hidden = {UNITS}
head = "mlp"
width = {WIDTH}
[head]
hidden = [{OF_HEAD}]
rate = {RATE}
""",
    f"rate = {RATE}",
)


@dataclass(frozen=True)
class Case:
    """A data set, and how it is split and scaled; epochs of linear models and of networks; seeds of the test split."""

    name: str
    clients: int
    data: str
    batch: int
    epochs: tuple[int, int]
    seeds: int = 1

    def write_files(self, folder: Path) -> bool:
        """Write the files of the clients, if it is one in files; return whether the data are on this machine."""
        if self.data != FILES:
            return has(self.name)
        for client in ("guest", "host"):
            found = [*(Path(os.environ.get(FOLDER_VARIABLE, "nowhere")) / self.name).glob(f"*_{client}.csv*")]
            if not found:
                return False
            content = found[0].read_bytes()
            (folder / f"{client}.csv").write_bytes(bz2.decompress(content) if found[0].suffix == ".bz2" else content)
        return True

    def train(self, folder: Path, settings: tuple[str, str], epochs: int, seed: int) -> tuple[Run, float]:
        """Carry out a run, without its valuation; return it and its test accuracy."""
        path, (model, training) = folder / "run.toml", settings
        options = {"model": model, "training": training, "batch": self.batch, "epochs": epochs, "seed": seed}
        out = "linear" if settings == LINEAR else "network"
        path.write_text(CONFIG.format(data=self.data, folder=f"{out} {seed}", **options), encoding="utf-8")
        run = Run.of_file(path)
        for _ in run.train():
            pass
        return run, (run.last_metrics() or {})["test_accuracy"]


CASES = [
    Case("adult", 4, 'name = "adult"\nclients = 4', 1000, (20, 5)),
    Case("credit", 2, FILES, 500, (20, 10), seeds=3),
    Case("breast", 2, FILES, 50, (40, 20), seeds=10),
    Case("letter", 4, 'name = "letter"\nclients = 4\nscale = "standardise"', 250, (40, 30)),
]


def joined(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of all clients side by side, prepared as in the run: of training and of test samples."""
    data, scale = run.data, run.config.data.used_scale
    columns = [prepare(client, scale, ~data.is_test) for client in data.clients]
    x = np.hstack([own if isinstance(own, np.ndarray) else own.toarray() for own in columns])
    return x[~data.is_test], x[data.is_test]


def measure(case: Case, folder: Path, seed: int) -> list[float]:
    """Return accuracies: linear models, scikit-learn's, a network at the server, and scikit-learn's network."""
    run, linear = case.train(folder, LINEAR, case.epochs[0], seed)
    _, network = case.train(folder, NETWORK, case.epochs[1], seed)
    (x, new), labels, is_test = joined(run), run.data.labels, run.data.is_test
    sizes = UNITS * case.clients, WIDTH * case.clients, OF_HEAD
    options = {"batch_size": case.batch, "learning_rate_init": RATE, "alpha": 0.0, "max_iter": case.epochs[1]}
    models = [
        *(LogisticRegression(C=c, max_iter=3000) for c in PENALTIES),
        MLPClassifier(sizes, random_state=seed, **options),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as many epochs as the run has
        *regressions, peer = (model.fit(x, labels[~is_test]).score(new, labels[is_test]) for model in models)
    return [linear, max(regressions), network, peer]


def run() -> str:
    """Measure, and return the table in Markdown."""
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            if not case.write_files(Path(name)):
                continue
            found = np.mean([measure(case, Path(name), seed) for seed in range(case.seeds)], axis=0)
        print(f"  {case.name}: {', '.join(f'{each:.1%}' for each in found)}")
        rows.append([case.name.capitalize(), str(case.clients), *(f"{each:.1%}" for each in found)])
    header = ["data", "clients", "linear", "logistic regression", "network at the server", "network of all columns"]
    return table(header, rows)
