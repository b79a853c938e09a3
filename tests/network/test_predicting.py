"""Predictions of new rows by clients on other machines."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit

from tests.network.consortium import Consortium, free_port, write_csv

ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished training, with new rows of each party: 30 in common, and 10 of its own."""
    whole = Consortium(tmp_path_factory.mktemp("trained"), training={"rounds": 60})
    whole.start_all()
    try:
        assert {*whole.finish().values()} == {0}
    finally:
        whole.stop()
    for number, name in enumerate(("bank", *whole.clients)):
        rng = np.random.default_rng(number)
        ids = rng.permutation([*range(1000, 1030), *range(2000 + 100 * number, 2010 + 100 * number)])
        (whole.folder / "new").mkdir(exist_ok=True)
        write_csv(whole.folder / "new" / f"{name}.csv", ids, 3, rng)
    return whole


def predict(whole, output, *options, clients=("telco", "shop")):
    """Return what the server and the clients did, in processes of their own."""
    command, address = [sys.executable, "-m", "verfedsv"], f"127.0.0.1:{free_port()}"
    server = [*command, "predict", whole.run, "--serve", whole.config, "--ids", whole.folder / "new" / "bank.csv"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": ENVIRONMENT}
    server += ["--address", address, "--insecure", "-o", output, *options]
    processes = [subprocess.Popen([*map(str, server)], **pipes)]  # noqa: S603
    for name in clients:
        own = ["--folder", whole.folder / f"of-{name}", "--name", name, "--insecure", "--patience", "30"]
        join = [*command, "join", address, "--predict", whole.folder / "new" / f"{name}.csv", *own]
        processes.append(subprocess.Popen([*map(str, join)], **pipes))  # noqa: S603
    said = [process.communicate(timeout=90)[0] for process in processes]
    return [process.returncode for process in processes], said


def embeddings(model, path):
    """Return what a linear model makes of each row of a file, by id, as in docs/training.md."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in rows[0] if name != "id"]
    x = np.array([[float(row[name]) for name in columns] for row in rows])
    with np.load(model) as arrays:
        found = (x - arrays["centre"]) / arrays["divisor"] @ arrays["weights"]
    return {row["id"]: own for row, own in zip(rows, found[:, 0], strict=True)}


def test_common_rows_are_predicted_by_the_models_of_all(trained, tmp_path):
    """Probabilities are those of the sum of all embeddings, by the models that the clients hold themselves."""
    codes, said = predict(trained, tmp_path / "predictions.csv")
    assert codes == [0, 0, 0], said
    with (tmp_path / "predictions.csv").open(encoding="utf-8") as file:
        found = {row["id"]: float(row["probability_1"]) for row in csv.DictReader(file)}
    assert sorted(found) == [str(own) for own in range(1000, 1030)]
    models = {name: trained.folder / f"of-{name}" / "model.npz" for name in trained.clients}
    models["bank"] = trained.run / "checkpoints" / "client-0-60.npz"
    scores = [embeddings(model, trained.folder / "new" / f"{name}.csv") for name, model in models.items()]
    for own, probability in found.items():
        assert probability == pytest.approx(expit(sum(each[own] for each in scores)), abs=1e-12)
    assert "telco: 30 rows of the file of telco" in said[0]


def test_a_client_that_does_not_take_part_counts_with_its_mean(trained, tmp_path):
    """As in one process; the summary says so."""
    codes, said = predict(trained, tmp_path / "predictions.csv", "--client", "telco", clients=("telco",))
    assert codes == [0, 0], said
    assert "shop: absent; its mean embedding counts in all rows" in said[0]


def test_a_model_of_another_training_is_refused(trained, tmp_path):
    """A client whose folder is of another round than the server's."""
    folder = trained.folder / "of-shop"
    newest = folder / "client-0-60.npz"
    newest.rename(tmp_path / "kept")
    try:
        codes, said = predict(trained, tmp_path / "predictions.csv")
    finally:
        (tmp_path / "kept").rename(newest)
    assert codes[0] == 2
    assert "they are of different trainings" in said[0]
    assert not (tmp_path / "predictions.csv").exists()


def test_what_is_missing_is_said(trained, tmp_path):
    """Ids, an unknown client, a client that has not trained."""
    command = [sys.executable, "-m", "verfedsv"]

    def run(*arguments):
        done = subprocess.run([*map(str, (*command, *arguments))], capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 2, done.stdout
        return done.stderr

    output, ids = ["-o", tmp_path / "p.csv"], ["--ids", trained.folder / "new" / "bank.csv"]
    serve = ["predict", trained.run, "--serve", trained.config, *output, "--insecure"]
    assert "needs --ids" in run(*serve)
    assert "'nobody' is not a client on another machine; these are telco, shop" in run(
        *serve, *ids, "--client", "nobody"
    )
    other = run("predict", tmp_path, "--serve", trained.config, *output, *ids)
    assert "is the configuration of" in other
    new = ["--predict", trained.folder / "new" / "shop.csv", "--folder", tmp_path / "empty", "--name", "shop"]
    assert "no trained model" in run("join", "127.0.0.1:1", *new, "--insecure")
