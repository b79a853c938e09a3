import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.cli.inprocess import call
from tests.runs.credit import make_rows, train, write_csv
from verfedsv.cli.predict import parse_files


@pytest.fixture(scope="module")
def credit(tmp_path_factory):
    """Return the folder that holds a finished run and its files."""
    folder = tmp_path_factory.mktemp("credit")
    train(folder)
    return folder


def predict(credit, output, *arguments, bank=None):
    """Call the command with the bank's file."""
    file = credit / "bank.csv" if bank is None else bank
    return call("predict", credit / "runs" / "credit", "--features", f"bank={file}", "-o", output, *arguments)


def test_predictions_are_written_and_described(credit, tmp_path):
    """How many of which class, which clients are absent, which rows they lack, and which columns are ignored."""
    shop = write_csv(tmp_path / "shop.csv", [{"id": "p003", "spent": 1}, {"id": "p999", "spent": 2}])
    done = predict(credit, tmp_path / "p.csv", "--features", f"shop={shop}")
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith(f"wrote {tmp_path / 'p.csv'}: 161 rows; no (")
    assert lines == [
        "bank: 160 rows of bank.csv; its mean embedding counts in 1 row that it lacks",
        "bank: ignored 1 column not used in training: y",
        "telco: absent; its mean embedding counts in all rows",
        "shop: 2 rows of shop.csv; its mean embedding counts in 159 rows that it lacks",
    ]
    written = (tmp_path / "p.csv").read_text().splitlines()
    assert written[0] == '"id","prediction","probability_no","probability_yes"'
    assert len(written) == 162
    assert written[-1].startswith('"p999",')


def test_predictions_as_json_and_parquet(credit, tmp_path):
    """The summary is all that is printed."""
    done = predict(credit, tmp_path / "p.parquet", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["output"] == str(tmp_path / "p.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    counts = table.group_by("prediction").aggregate([("prediction", "count")]).to_pylist()
    assert summary["classes"] == {row["prediction"]: row["prediction_count"] for row in counts}
    assert [client["n_mean_embeddings"] for client in summary["clients"]] == [0, 160, 160]
    assert [client["file"] is None for client in summary["clients"]] == [False, True, True]


def test_a_column_of_ids_by_name(credit, tmp_path):
    """--id is for files whose ids are elsewhere than in training."""
    rows = [{"number": row["id"], **row} for row in make_rows()["bank"][:3]]
    path = write_csv(tmp_path / "new.csv", [{k: v for k, v in row.items() if k != "id"} for row in rows])
    assert "has no column of ids 'id'" in predict(credit, tmp_path / "p.csv", bank=path).stderr
    assert predict(credit, tmp_path / "p.csv", "--id", "number", bank=path).returncode == 0
    assert (tmp_path / "p.csv").read_text().startswith('"number","prediction",')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--features", "telco"], "--features takes a client and its file, NAME=FILE; received 'telco'"),
        (["--features", "telco="], "received 'telco='"),
        (["--features", "=x.csv"], "received '=x.csv'"),
        (["--features", "bank=x.csv"], "--features has two files for 'bank'"),
        (["--features", "judge=x.csv"], "'judge' is not a client with a model in"),
        (["--features", "telco=nothing.csv"], "there is no file nothing.csv"),
    ],
)
def test_options_that_cannot_be_used(credit, tmp_path, arguments, says):
    """They end with code 2 and one line; nothing is written."""
    done = predict(credit, tmp_path / "p.csv", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert says in done.stderr
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"age,owner,country\n1,true,7\n", "has no column of ids 'id'; it has 'age', 'owner', 'country'"),
        (b"id,age,owner,country\na,1,true,7\na,2,true,7\n", "ids must be unique; 1 id repeated"),
        (b"id,age,owner,country\na,x,true,7\n", "column 'age' held numbers in training, and here it is text"),
        (b"id,age,owner,country\na,1e400,true,7\n", "column 'age' has infinite numbers"),
        (b"id,age,owner,country\na,1e308,true,7\n", "bank: embeddings must be finite and below 1e+12 in size"),
        (b"id,age,owner,country\na\0b,1,true,7\n", "some ids in column 'id' have NUL characters in them"),
        (b"id,age,owner,country\na,1\0,true,7\n", "column 'age' held numbers in training, and here it is text"),
        (b"id,age,owner,country\n", "has no rows"),
        (b"", "cannot be read: Empty CSV file"),
        (b"id,age,age\na,1,2\n", "column names must be unique; repeated: 'age'"),
    ],
)
def test_hostile_files(credit, tmp_path, content, says):
    """They end with code 2 and one line; nothing is written."""
    path = tmp_path / "new.csv"
    path.write_bytes(content)
    done = predict(credit, tmp_path / "p.csv", bank=path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert says in done.stderr
    assert not (tmp_path / "p.csv").exists()


def test_columns_in_another_order(credit, tmp_path):
    """They are found by name; others are ignored."""
    predictions = []
    for text in ("id,age,owner,country\na,31,true,7\n", "country,more,age,id,owner\n7,x,31,a,true\n"):
        path, output = tmp_path / "new.csv", tmp_path / f"{len(predictions)}.csv"
        path.write_text(text)
        assert predict(credit, output, bank=path).returncode == 0
        predictions.append(output.read_text())
    assert predictions[0] == predictions[1]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.zeros((1, 0)), "weights is empty, of shape (1, 0)"),
        (np.full((1, 1), 1e308), "weights must be finite and below 1e+12 in size"),
        (np.zeros((1, 2)), "is damaged: the embeddings of 'shop' have 2 numbers, and the server takes 1"),
    ],
)
def test_a_model_that_is_nonsense_is_not_written(credit, tmp_path, weights, says):
    """A checkpoint that was changed gives one line, and no file."""
    run = shutil.copytree(credit / "runs" / "credit", tmp_path / "run")
    (path,) = (run / "checkpoints").glob("client-2-12.npz")
    with np.load(path) as arrays:
        content = {**arrays, "weights": weights}
    np.savez(path, **content)
    done = call("model", run, "--client", "shop", "-o", tmp_path / "m.npz")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert says in done.stderr
    assert not (tmp_path / "m.npz").exists()


@pytest.mark.parametrize("command", ["predict", "model"])
def test_output_files_that_cannot_be_written(credit, tmp_path, command):
    """Existing ones, even if empty, other endings, and parts of the run: before any work, and they stay as they are."""
    run = credit / "runs" / "credit"
    name, option = (
        ("p.csv", f"--features=bank={credit / 'bank.csv'}") if command == "predict" else ("m.npz", "--client=bank")
    )
    (tmp_path / name).write_text("")
    for output, says in (
        (tmp_path / name, "it exists; name another file with -o, or delete it"),
        (tmp_path, "it is a folder; name a file"),
        (tmp_path / "p.txt", "its name must end in .csv or .parquet" if command == "predict" else "must end in .npz"),
        (tmp_path / "nowhere" / name, "there is no folder"),
        (run / "transcript" / name, "in the folder of a transcript any other file would fail the audit"),
    ):
        done = call(command, run, option, "-o", output)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    assert (tmp_path / name).read_text() == ""


def test_a_model_is_written_and_described(credit, tmp_path):
    """In one line, or, as JSON, with all its arrays."""
    done = call("model", credit / "runs" / "credit", "--client", "telco", "-o", tmp_path / "telco.npz")
    assert done.returncode == 0, done.stderr
    about = "the linear model of 'telco', of 2 columns (5 features), from the checkpoint after round 12"
    assert done.stdout == f"wrote {tmp_path / 'telco.npz'}: {about}\n"
    done = call("model", credit / "runs" / "credit", "--client", "telco", "-o", tmp_path / "again.npz", "--json")
    content = json.loads(done.stdout)
    with np.load(tmp_path / "again.npz") as arrays:
        assert {name: {"type": str(a.dtype), "shape": [*a.shape]} for name, a in arrays.items()} == content["arrays"]
    assert (content["client"], content["width"], content["columns"]) == ("telco", 1, ["calls", "plan"])
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "telco.npz").read_bytes()


def test_a_model_of_nobody(credit, tmp_path):
    """The error lists the clients."""
    done = call("model", credit / "runs" / "credit", "--client", "judge", "-o", tmp_path / "m.npz")
    assert done.returncode == 2
    assert "'judge' is not a client with a model in" in done.stderr
    assert "the clients are 'bank', 'telco', 'shop'" in done.stderr


def test_a_name_with_an_equals_sign():
    """The client is the one that is known, wherever the first sign is."""
    clients = ("a", "a=b", "c")
    assert parse_files(["a=b=x=1.csv", "c=y.csv"], clients) == {"a=b": Path("x=1.csv"), "c": Path("y.csv")}
    assert parse_files(["a=x.csv", "other=y=1.csv"], clients) == {"a": Path("x.csv"), "other": Path("y=1.csv")}
