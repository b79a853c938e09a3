import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from scipy.special import expit, softmax

from tests.cli.inprocess import call
from tests.runs.credit import make_rows, train, write_csv
from tests.runs.test_resume import stop_at
from verfedsv import InputError, Recorder, TranscriptError
from verfedsv.errors import DataError
from verfedsv.federation.messages import Predict
from verfedsv.federation.predictions import Predictions
from verfedsv.losses import get_loss
from verfedsv.runs import Run, RunFolder, predict, predicting
from verfedsv.runs.predicting import PredictedRows, read_model, read_predictor

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
THREE = ("high", "low", "mid")


@pytest.fixture(scope="module")
def credit(tmp_path_factory):
    """Return a finished run of linear models, two classes."""
    return train(tmp_path_factory.mktemp("credit"))


@pytest.fixture(scope="module")
def perceptrons(tmp_path_factory):
    """Return a finished run of perceptrons on unit rows, three classes."""
    return train(tmp_path_factory.mktemp("perceptrons"), "perceptron", "standardise-unit-rows", classes=THREE)


@pytest.fixture
def both(request):
    """Return the run that a test is parametrised with."""
    return request.getfixturevalue(request.param)


def files_of(run, *names):
    """Return the files that some clients were trained on."""
    return {name: run.folder.parents[1] / f"{name}.csv" for name in names or ("bank", "telco", "shop")}


def restored(run):
    """Return the training of a finished run, and its data in their order at the parties."""
    training = run._prepare()
    training.restore({"live": np.zeros(3)})
    return training, np.argsort(run.data.is_test, kind="stable")


@pytest.mark.parametrize("both", ["credit", "perceptrons"], indirect=True)
def test_rows_of_the_training_files_are_predicted_as_in_training(both):
    """Scores are those of `Training.predict`, accuracy that of the last evaluation; the output has names of classes."""
    training, order = restored(both)
    result = both.predict(files_of(both))
    scores = np.empty_like(result.predictions.scores)
    scores[order] = training.predict(np.arange(len(order)))
    np.testing.assert_allclose(result.predictions.scores, scores, rtol=1e-12, atol=1e-13)
    assert result.ids.to_pylist() == [f"p{i:03}" for i in range(160)]
    labels = np.array([row["y"] for row in make_rows(classes=result.predictions.classes)["bank"]])
    is_right = np.array(result.predictions.values) == labels
    evaluation = training.evaluate().metrics()
    assert is_right[~both.data.is_test].mean() == pytest.approx(evaluation["train_accuracy"], abs=1e-12)
    assert is_right[both.data.is_test].mean() == pytest.approx(evaluation["test_accuracy"], abs=1e-12)
    assert [source.n_means for source in result.sources] == [0, 0, 0]


@pytest.mark.parametrize("both", ["credit", "perceptrons"], indirect=True)
def test_predictions_do_not_depend_on_the_parts(both, tmp_path, monkeypatch):
    """Rows are predicted in parts of limited memory; in some parts, a client has no row."""
    files = files_of(both)
    files["shop"] = write_csv(tmp_path / "shop.csv", make_rows()["shop"][50:52])
    whole = both.predict(files)
    monkeypatch.setattr(predicting, "PART_BYTES", 2 * 500)
    parts = both.predict(files)
    np.testing.assert_allclose(parts.predictions.scores, whole.predictions.scores, rtol=1e-12, atol=1e-13)
    assert (parts.ids, parts.sources) == (whole.ids, whole.sources)


def embed_by_script(run, client, path, folder):
    """Run the documented script, without this package, on what `verfedsv model` wrote; return what it prints."""
    code = re.search(r"<!-- embed.py -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    script, archive = folder / "embed.py", folder / f"{client}.npz"
    script.write_text(f"import sys\nsys.modules['verfedsv'] = None\n{code}", encoding="utf-8")
    written = call("model", run, "--client", client, "-o", archive)
    assert written.returncode == 0, written.stderr
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, script, archive, path], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return np.array([[float(cell) for cell in line.split(",")] for line in done.stdout.splitlines()])


@pytest.mark.parametrize("both", ["credit", "perceptrons"], indirect=True)
def test_models_can_be_used_without_this_package(both, tmp_path):
    """The script of the documentation embeds rows as the client does, and plain NumPy then has the probabilities."""
    total, ids = 0, [f"p{i:03}" for i in range(160)]
    training, order = restored(both)
    for name, path in files_of(both).items():
        found = embed_by_script(both.folder, name, path, tmp_path)
        with path.open(encoding="utf-8") as file:
            place = {row.get("id", row.get("key")): number for number, row in enumerate(csv.DictReader(file))}
        found = found[[place[key] for key in ids]]
        own = training.transport.clients[name].answer(Predict(name, 12, 1000, None)).embeddings
        np.testing.assert_allclose(found[order], own, rtol=0, atol=1e-12)
        total = total + found
    with np.load(both.folder / "checkpoints" / "server.npz") as server:
        total = total + server["intercept"]
    expected = softmax(total, axis=1) if total.shape[1] > 1 else np.hstack([1 - expit(total), expit(total)])
    result = predict(both.folder, files_of(both))
    np.testing.assert_allclose(result.predictions.probabilities, expected, rtol=0, atol=1e-12)
    chosen = np.array(result.predictions.classes)[expected.argmax(axis=1)]
    assert result.predictions.values == chosen.tolist()


def test_an_exported_model_is_plain(credit):
    """No pickles, no word of others, and a description in JSON."""
    folder = RunFolder(credit.folder)
    content = read_model(folder, read_predictor(folder, "used"), "telco").to_bytes()
    path = credit.folder.parent / "telco.npz"
    path.write_bytes(content)
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
        assert set(arrays) == {"about", "columns", "means", "centre", "divisor", "unit_rows", "weights"}
        columns = json.loads(arrays["columns"].tobytes())
    assert about["format"] == "verfedsv model"
    assert (about["client"], about["model"], about["n_rounds"]) == ("telco", "linear", 12)
    assert columns == [{"name": "calls"}, {"name": "plan", "categories": ["12", "A", "Ü, x", None]}]
    for other in (b"bank", b"shop", b"yes", b"age", b"spent"):
        assert other not in content


def features_of(run, name):
    """Return what the model of a client sees of all samples, and its weights."""
    with np.load(run.folder / "checkpoints" / f"client-{['bank', 'telco', 'shop'].index(name)}-12.npz") as kept:
        weights = kept["weights"]
    training, order = restored(run)
    features = np.empty((160, len(weights)))
    features[order] = training.transport.clients[name]._features
    return features, weights


def test_an_absent_client_counts_with_its_mean_embedding(credit):
    """That of the trained model over the training samples, not of what it uploaded on the way."""
    means = {}
    for name in ("bank", "telco", "shop"):
        features, weights = features_of(credit, name)
        means[name] = (features[~credit.data.is_test] @ weights).mean(axis=0)
    every = predict(credit.folder, files_of(credit)).predictions.scores
    features, weights = features_of(credit, "telco")
    result = predict(credit.folder, files_of(credit, "bank", "shop"))
    np.testing.assert_allclose(result.predictions.scores, every - features @ weights + means["telco"], atol=1e-12)
    assert [(s.client, s.path is None, s.n_means) for s in result.sources] == [
        ("bank", False, 0),
        ("telco", True, 160),
        ("shop", False, 0),
    ]
    assert np.abs(features @ weights - means["telco"]).max() > 0.1


def test_rows_that_a_client_lacks(credit, tmp_path):
    """They count with its mean embedding; ids are those of all files, the first file's first."""
    rows = make_rows()
    bank = write_csv(tmp_path / "bank.csv", [rows["bank"][i] for i in (5, 2)])
    by_key = {row["key"]: row for row in rows["telco"]}
    telco = write_csv(tmp_path / "telco.csv", [by_key[key] for key in ("p007", "p005")])
    result = predict(credit.folder, {"bank": bank, "telco": telco})
    assert result.ids.to_pylist() == ["p005", "p002", "p007"]
    scores = []
    for key, names in (("p005", ("bank", "telco")), ("p002", ("bank",)), ("p007", ("telco",))):
        every = predict(credit.folder, files_of(credit, *names))
        scores.append(every.predictions.scores[every.ids.to_pylist().index(key)])
    np.testing.assert_allclose(result.predictions.scores, scores, atol=1e-12)
    assert [(s.n_rows, s.n_means) for s in result.sources] == [(2, 1), (2, 1), (0, 3)]


def test_new_values_and_gaps(credit, tmp_path):
    """An unknown category is zeros, a missing one that of training, a missing number the mean of the training rows."""
    rows = [
        {"key": "a", "calls": "1.5", "plan": "nobody has it"},
        {"key": "b", "calls": "", "plan": " "},
        {"key": "c", "calls": "0", "plan": "12"},
    ]
    path = write_csv(tmp_path / "telco.csv", rows)
    folder = RunFolder(credit.folder)
    model = read_model(folder, read_predictor(folder, "used"), "telco")
    train_rows = [
        row
        for row, is_test in zip(sorted(make_rows()["telco"], key=lambda r: r["key"]), credit.data.is_test, strict=True)
        if not is_test
    ]
    calls = np.array([row["calls"] for row in train_rows])
    plans = np.array([row["plan"] for row in train_rows])
    one_hot = np.array([plans == plan for plan in ("12", "A", "Ü, x", "")]).T.astype(float)
    known = np.hstack([calls[:, None], one_hot])
    new = np.array([[1.5, 0, 0, 0, 0], [calls.mean(), 0, 0, 0, 1], [0, 1, 0, 0, 0]])
    expected = (new - known.mean(axis=0)) / known.std(axis=0) @ model.weights["weights"]
    alone = predict(credit.folder, {"telco": path}).predictions.scores
    np.testing.assert_allclose(np.diff(alone, axis=0), np.diff(expected, axis=0), atol=1e-12)
    np.testing.assert_allclose(embed_by_script(credit.folder, "telco", path, tmp_path), expected, atol=1e-12)


def test_the_output(credit, tmp_path):
    """CSV and Parquet have the same columns; probabilities add up to 1, and all digits are written."""
    result = predict(credit.folder, files_of(credit, "bank"))
    (tmp_path / "p.csv").write_bytes(result.to_csv())
    (tmp_path / "p.parquet").write_bytes(result.to_parquet())
    from_csv, from_parquet = pa_csv(tmp_path / "p.csv"), pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert from_csv.column_names == ["id", "prediction", "probability_no", "probability_yes"]
    assert from_csv.to_pylist() == from_parquet.to_pylist() == result.to_table().to_pylist()
    first = from_csv.to_pylist()[0]
    assert first["probability_no"] + first["probability_yes"] == pytest.approx(1, abs=1e-15)
    assert first["prediction"] == ("yes" if first["probability_yes"] > 0.5 else "no")
    summary = result.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert sum(summary["classes"].values()) == summary["n_rows"] == 160
    assert summary["clients"][0]["ignored_columns"] == ["y"]


def pa_csv(path):
    """Return the table in a CSV file."""
    return pyarrow.csv.read_csv(path)


def test_formulas_in_ids_and_names_are_harmless_in_csv():
    """As in the CSV of a settlement; numbers, also negative ones in text, stay numbers; Parquet has all as it is."""
    ids = ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", "-12", "p1"]
    predictions = Predictions(get_loss("logistic"), np.linspace(-4, 3, 8)[:, None], ("=HYPERLINK()", "-1"))
    result = PredictedRows(pyarrow.array(ids), "@id", predictions, ())
    header, *rows = csv.reader(io.StringIO(result.to_csv().decode(), newline=""))
    assert header == ["'@id", "prediction", "probability_=HYPERLINK()", "probability_-1"]
    assert [row[0] for row in rows] == ["'=1+1", "'+cmd", "'-x", "'@SUM(A1)", "'\ufffd=1", "'\ufffd=1", "-12", "p1"]
    assert [row[1] for row in rows] == ["'=HYPERLINK()"] * 5 + ["-1"] * 3
    assert [float(row[3]) for row in rows] == result.predictions.probabilities[:, 1].tolist()
    assert result.to_table().column("@id").to_pylist() == ids


def test_negative_amounts_stay_numbers_in_csv():
    """They begin with a minus, and are no formulas."""
    predictions = Predictions(get_loss("squared"), np.array([[-1.5], [-1e-9]]), None)
    result = PredictedRows(pyarrow.array([-3, 4]), "id", predictions, ())
    assert result.to_csv() == b'"id","prediction"\n-3,-1.5\n4,-1e-09\n'


def test_text_is_quoted_in_csv():
    """A spreadsheet that separates cells by semicolons takes the whole text for one cell."""
    predictions = Predictions(get_loss("logistic"), np.array([[-1.0], [0.0]]), ("a;=1", "b"))
    lines = PredictedRows(pyarrow.array(["x;\uff1d1", "7"]), "id", predictions, ()).to_csv().decode().splitlines()
    assert lines[0] == '"id","prediction","probability_a;\'=1","probability_b"'
    assert [line.split(",")[:2] for line in lines[1:]] == [['"x;\'\uff1d1"', '"a;\'=1"'], ['"7"', '"a;\'=1"']]


def test_ids_of_parquet_files_stay_whole_numbers(credit, tmp_path):
    """So that predictions can be joined with the files they are for; the column has the name of the first file's."""
    table = pyarrow.table({"number": [3, 1], "spent": [1.0, 2.0], "more": [0, 0]})
    pyarrow.parquet.write_table(table, tmp_path / "shop.parquet")
    result = predict(credit.folder, {"shop": tmp_path / "shop.parquet"}, id_column="number")
    assert result.to_table().select(["number"]).to_pydict() == {"number": [3, 1]}
    assert result.sources[2].ignored == ("more",)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"id": "a", "age": 1, "country": 7}], r"lacks a column that 'bank' was trained with: 'owner'\. It has 'id'"),
        ([{"id": "a", "country": 7}], r"lacks columns that 'bank' was trained with: 'age', 'owner'"),
        ([{"number": "a", "age": 1}], r"has no column of ids 'id'; it has 'number', 'age'"),
        (
            [{"id": "a", "age": "old", "owner": "true", "country": 7}],
            r"column 'age' held numbers in training, and here it is text, such as 'old'",
        ),
        (
            [{"id": "a", "age": "2020-01-01", "owner": "true", "country": 7}],
            r"column 'age' held numbers in training, and here it is of type date32.* Write dates and times as numbers",
        ),
        ([{"id": "a", "age": "inf", "owner": 1, "country": 7}], "column 'age' has infinite numbers"),
        ([{"id": "a", "age": 1, "owner": 1, "country": 7}] * 2, "ids must be unique; 1 id repeated, for example a"),
        ([{"id": " ", "age": 1, "owner": 1, "country": 7}], "1 row without an id in column 'id'"),
    ],
)
def test_files_that_cannot_be_used(credit, tmp_path, rows, says):
    """The error names the file and what is wrong with it."""
    path = write_csv(tmp_path / "new.csv", rows)
    with pytest.raises(DataError, match=says) as caught:
        predict(credit.folder, {"bank": path})
    assert str(path) in str(caught.value)


def test_text_in_training_and_numbers_now(credit, tmp_path):
    """In CSV files they are read as written; in Parquet files, which state types, they are refused."""
    rows = [{"key": "a", "calls": 1, "plan": "12"}]
    assert predict(credit.folder, {"telco": write_csv(tmp_path / "telco.csv", rows)}).predictions.values
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**rows[0], "plan": 12}]), tmp_path / "telco.parquet")
    with pytest.raises(
        DataError, match=r"column 'plan' held text in training, and here it is of type int64\. Write it as text"
    ):
        predict(credit.folder, {"telco": tmp_path / "telco.parquet"})


def test_ids_that_do_not_match(credit, tmp_path):
    """A file without any id of the others is most likely a mistake, as is one with numbers where others have text."""
    bank = {"age": 1, "owner": 1, "country": 7}
    for keys, says in ((("x", "y"), r"no id of .*bank\.csv is in another file\. The first ids are: .*x, \.\.\."),
                       (("1", "p001"), "ids must be written in the same way in all files")):  # fmt: skip
        files = {
            "bank": write_csv(tmp_path / "bank.csv", [{"id": keys[0], **bank}]),
            "shop": write_csv(tmp_path / "shop.csv", [{"id": keys[1], "spent": 1}]),
        }
        with pytest.raises(DataError, match=says):
            predict(credit.folder, files)


def test_a_column_of_ids_with_the_name_of_an_output(credit, tmp_path):
    """It is refused, rather than overwritten."""
    path = write_csv(tmp_path / "shop.csv", [{"prediction": "a", "spent": 1}])
    with pytest.raises(InputError, match="the column of ids cannot be called 'prediction'"):
        predict(credit.folder, {"shop": path}, id_column="prediction").to_table()


def test_runs_and_clients_that_cannot_be_used(credit, tmp_path):
    """Unknown clients, no files, unfinished runs, runs without checkpoints, and folders without a run."""
    bank = files_of(credit, "bank")
    with pytest.raises(InputError, match=r"'bnk' is not a client with a model in .*; the clients are 'bank', 'telco'"):
        predict(credit.folder, {"bnk": bank["bank"]})
    with pytest.raises(InputError, match="name the new file of at least one client; the clients are bank, telco"):
        predict(credit.folder, {})
    with pytest.raises(TranscriptError, match="there is no transcript in"):
        predict(tmp_path / "nothing", bank)
    shutil.copytree(credit.folder.parents[1], tmp_path / "copy")
    folder = tmp_path / "copy" / "runs" / "credit"
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(InputError, match=r"there are no models in .*, as it has no checkpoints/server\.npz"):
        predict(folder, bank)
    with Recorder(tmp_path / "bare", labels=[0, 1], clients=["bank"]) as recorder:
        recorder.log([0, 1], {"bank": [-1.0, 1.0]})
        with pytest.raises(
            InputError, match=r"the training is still running, .* so it is not used for predictions yet"
        ):
            predict(tmp_path / "bare", bank)
    with pytest.raises(InputError, match="it was only recorded"):
        predict(tmp_path / "bare", bank)


def test_an_unfinished_run(credit, tmp_path):
    """It says how far it is and how to continue; also if only the last checkpoint is missing."""
    source = credit.folder.parents[1]
    for name in ("bank.csv", "telco.csv", "shop.csv", "run.toml"):
        shutil.copy(source / name, tmp_path)
    run = Run.of_file(tmp_path / "run.toml")
    for _ in run.train(should_stop=stop_at(5)):
        pass
    kept = shutil.copytree(run.folder / "checkpoints", tmp_path / "kept")
    unfinished = "is not finished, {} so far, so it is not used for predictions yet: continue it with verfedsv run"
    with pytest.raises(InputError, match=unfinished.format("5 of 12 rounds")):
        run.predict(files_of(credit))
    for _ in Run.of_file(tmp_path / "run.toml").train(resume=True):
        pass
    np.testing.assert_array_equal(
        run.predict(files_of(credit)).predictions.scores, credit.predict(files_of(credit)).predictions.scores
    )
    shutil.rmtree(run.folder / "checkpoints")
    kept.rename(run.folder / "checkpoints")
    with pytest.raises(InputError, match=unfinished.format("12 rounds")):
        run.predict(files_of(credit))


def test_the_training_files_are_not_needed(credit, tmp_path):
    """Nor the configuration, if ids are in a column called id or it is named."""
    shutil.copytree(credit.folder, tmp_path / "copy")
    expected = credit.predict(files_of(credit, "bank", "shop")).predictions.scores
    for path in (None, tmp_path / "copy" / "config.toml"):
        if path is not None:
            path.unlink()
        found = predict(tmp_path / "copy", files_of(credit, "bank", "shop")).predictions.scores
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(DataError, match=r"telco\.csv has no column of ids 'id'"):
        predict(tmp_path / "copy", files_of(credit, "telco"))
    assert len(predict(tmp_path / "copy", files_of(credit, "telco"), id_column="key").ids) == 160


def test_a_data_set_by_name(tmp_path):
    """Its columns are numbered features, and its classes the labels of its files."""
    text = '[data]\nname = "adult"\nclients = 4\nsamples = 300\n[training]\nbatch_size = 100\nrate = 0.5\nrounds = 3\n'
    (tmp_path / "run.toml").write_text(text + '[output]\nfolder = "out"\n')
    run = Run.of_file(tmp_path / "run.toml")
    for _ in run.train():
        pass
    client = run.data.clients[1]
    rows = [
        {"id": i, **dict(zip(client.columns, row, strict=True))}
        for i, row in enumerate(client.numeric.toarray().tolist())
    ]
    result = run.predict({"client 2": write_csv(tmp_path / "new.csv", rows)})
    assert result.to_table().column_names == ["id", "prediction", "probability_-1", "probability_1"]
    training = run._prepare()
    training.restore({"live": np.zeros(4)})
    order = np.argsort(run.data.is_test, kind="stable")
    own = training.transport.clients["client 2"].answer(Predict("client 2", 3, 99, None)).embeddings
    np.testing.assert_allclose(np.diff(result.predictions.scores[order], axis=0), np.diff(own, axis=0), atol=1e-12)


def test_the_example_in_python(credit, tmp_path, monkeypatch):
    """That of docs/training.md runs as printed."""
    shutil.copytree(credit.folder, tmp_path / "runs" / "credit")
    for name in ("bank", "telco"):
        shutil.copy(files_of(credit)[name], tmp_path / f"new_{name}.csv")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(next(block for block in blocks if "import predict" in block), names)  # noqa: S102  # our own example
    assert len(names["result"].to_table()) == 160
