"""Runs on the files that people have: with test files, sparse ones, and labels of any kind."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import random_array
from sklearn.datasets import dump_svmlight_file

from tests.cli.inprocess import call
from tests.runs.test_execute import finish, make
from verfedsv import InputError, Transcript
from verfedsv.report.markdown import to_markdown
from verfedsv.report.reading import summarise

RUN = """[data]
SETTINGS

[training]
batch_size = 40
rate = 0.5
rounds = 8
evaluate_every = 4

[output]
folder = "out"
"""


def client(name, file, **more):
    """Return the table of a client with a file."""
    lines = [f'{key} = "{value}"' for key, value in {"name": name, "file": file, **more}.items()]
    return "\n[[client]]\n" + "\n".join(lines) + "\n"


def samples(n_samples=120, n_features=8):
    """Return sparse features, and classes 0 and 1 that depend on them."""
    rng = np.random.default_rng(0)
    features = random_array((n_samples, n_features), density=0.5, rng=rng).tocsr()
    return features, (features @ rng.normal(size=n_features) > 0).astype(int)


def test_a_run_with_test_files(tmp_path):
    """What is measured on test samples is measured on those of the test files."""
    rng = np.random.default_rng(0)
    for name, ids, sign in (("train", range(100), 1), ("test", range(100, 140), -1)):
        x = rng.normal(size=len(ids))
        label = np.where(sign * x > 0, "yes", "no")  # in the test files, the model is wrong
        pd.DataFrame({"id": ids, "y": label}).to_csv(tmp_path / f"judge-{name}.csv", index=False)
        pd.DataFrame({"id": ids, "x": x}).to_parquet(tmp_path / f"bank-{name}.parquet")
    text = RUN.replace("SETTINGS", 'label = "y"\nlabel_client = "judge"')
    text += client("judge", "judge-train.csv", test_file="judge-test.csv")
    text += client("bank", "bank-train.parquet", test_file="bank-test.parquet")
    run = make(tmp_path, text)
    finish(run)
    last = run.last_metrics()
    assert last["train_accuracy"] > 0.9
    assert last["test_accuracy"] < 0.1
    assert Transcript.open(tmp_path / "out").description.n_samples == 100
    assert run.value().clients == ("bank",)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in tmp_path.glob("*-*.*"):
        path.rename(moved / path.name)
    for name in ("judge-train.csv", "judge-test.csv", "bank-train.parquet", "bank-test.parquet"):
        text = text.replace(f'"{name}"', f'"moved/{name}"')
    assert finish(make(tmp_path, text), resume=True) == []  # the same data in another place


def test_a_libsvm_file_is_split_between_clients(tmp_path):
    """Into contiguous blocks of its features, with the test samples of another file."""
    features, labels = samples()
    dump_svmlight_file(features[:90], 2 * labels[:90] - 1, str(tmp_path / "mine.svm"), zero_based=False)
    dump_svmlight_file(features[90:], 2 * labels[90:] - 1, str(tmp_path / "mine-t.svm"), zero_based=False)
    (tmp_path / "run.toml").write_text(
        RUN.replace("SETTINGS", 'file = "mine.svm"\ntest_file = "mine-t.svm"\nclients = 2')
    )
    done = call("run", tmp_path / "run.toml")
    assert done.returncode == 0, done.stderr
    assert "mine.svm: 2 clients of 4 features each" in done.stdout
    assert "90 samples to train on, 30 to test on" in done.stdout
    assert f"labels of all samples: -1 ({(labels == 0).sum()}), 1 ({labels.sum()})" in done.stdout
    about = Transcript.open(tmp_path / "out").description
    assert (about.loss, about.classes, about.clients) == ("logistic", ("-1", "1"), ("client 1", "client 2"))
    assert call("report", tmp_path / "out", "-o", tmp_path / "report.md").returncode == 0


def test_aligned_libsvm_files_of_clients(tmp_path):
    """They train to the same embeddings as one file split between them."""
    features, labels = samples()
    dump_svmlight_file(features, labels, str(tmp_path / "whole.svm"), zero_based=False)
    dump_svmlight_file(features[:, :4], labels, str(tmp_path / "bank.svm"), zero_based=False)
    dump_svmlight_file(features[:, 4:], np.zeros(120), str(tmp_path / "telco.svm"), zero_based=False)
    whole = make(tmp_path, RUN.replace("SETTINGS", 'file = "whole.svm"\nclients = 2').replace('"out"', '"whole"'))
    text = RUN.replace("SETTINGS", 'aligned = true\nlabel_client = "bank"')
    run = make(tmp_path, text + client("bank", "bank.svm") + client("telco", "telco.svm"), "parts.toml")
    finish(whole)
    finish(run)
    assert run.data.names == ("bank", "telco")
    np.testing.assert_array_equal(run.value().values, whole.value().values)


FILES = RUN.replace("SETTINGS", 'label = "y"\nlabel_client = "a"') + client("a", "a.csv")
SPLIT = RUN.replace("SETTINGS", 'file = "a.svm"\nclients = 2')
ALIGNED = RUN.replace("SETTINGS", 'aligned = true\nlabel_client = "a"') + client("a", "a.svm")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPLIT.replace("\nclients = 2", ""), "data.clients: is required with file"),
        (
            SPLIT.replace("a.svm", "a.csv"),
            r"data.file: should be a LIBSVM file, ending in .svm or .libsvm, .*\[\[client",
        ),
        (SPLIT.replace("[training]", "test_file = 'b.csv'\n[training]"), "data.test_file: should be a LIBSVM file"),
        (SPLIT.replace("[training]", "test_file = 'b.svm'\ntest = 0.1\n[training]"), "data.test: is the fraction"),
        (
            SPLIT.replace("[training]", "name = 'adult'\n[training]"),
            "data.file: is for files of your own, and data has",
        ),
        (SPLIT.replace("[training]", "label = 'y'\n[training]"), "data.label: is for a file per client"),
        (SPLIT.replace("[training]", "aligned = true\n[training]"), "data.aligned: is for a file per client"),
        (
            SPLIT + client("b", "b.csv"),
            "client '[^']+'.file: data has a file and clients have files; use only one of the two",
        ),
        (FILES.replace("[training]", "test_file = 'b.svm'\n[training]"), r"data.test_file: goes with file in \[data\]"),
        (
            FILES + client("b", "b.csv", test_file="c.csv"),
            "client '[^']+'.test_file: is required, since 'b' has one: either all files come with a test_file or none",
        ),
        (
            FILES.replace("[training]", "test = 0.5\n[training]") + "test_file = 'b.csv'\n",
            "data.test: is the fraction of test samples, and clients have a test_file; leave one of them out",
        ),
        (FILES + "test_file = 'b.svm'\n", "client '[^']+'.test_file: should be of the same kind as file"),
        (
            FILES + client("b", "b.svm"),
            r"client '[^']+'.file: is a LIBSVM file, whose rows have no ids\. If .*aligned = true",
        ),
        (
            FILES + "[[client]]\nname = 'b'\nrandom_level = 1\ntest_file = 'x.csv'\n",
            "client '[^']+'.test_file: is for clients",
        ),
        (FILES.replace('label = "y"\n', ""), "data: data.label must name the column of the labels in a.csv"),
        (ALIGNED + "id = 'key'\n", "client '[^']+'.id: has no effect where rows are matched by their order"),
        (
            ALIGNED + "columns = ['x']\n",
            "client '[^']+'.columns: is for CSV and Parquet: columns of LIBSVM files have no names",
        ),
        (ALIGNED.replace("aligned", "label = 'y'\naligned"), "data.label: is for CSV and Parquet: the lines of LIBSVM"),
    ],
)
def test_settings_of_files_that_do_not_go_together(tmp_path, text, message):
    """Each is named, before anything is read."""
    with pytest.raises(InputError, match=f"run.toml: {message}"):
        make(tmp_path, text)


LABELS = {
    "text": (["no", "yes"], ("no", "yes")),
    "booleans": ([False, True], ("False", "True")),
    "numbers": ([1, 5], ("1", "5")),
    "categories": (pd.Categorical(["low", "high"], ["low", "high"], ordered=True), ("low", "high")),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_of_classes_stay_with_the_run(tmp_path, kind, suffix):
    """Notes, transcript and report have the classes as written, also for a class that no training sample has."""
    written, classes = LABELS[kind]
    if suffix == ".csv":
        classes = tuple(sorted(classes))  # CSV has no ordered categories
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"id": range(60), "x": x, "y": np.array(written)[(x > 0).astype(int)]})
    if kind == "categories":
        frame["y"] = pd.Categorical(frame["y"], written.categories, ordered=True)
    elif kind == "text":
        frame.loc[59, "y"] = "perhaps"
        classes = ("no", "perhaps", "yes")
    for name, rows in (("a", slice(0, 50)), ("b", slice(50, 60))):
        part = frame[rows]
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        part.to_parquet(tmp_path / f"{name}.parquet")
    text = FILES.replace("a.csv", f"a{suffix}") + f"test_file = 'b{suffix}'\n"
    text = text.replace("[data]", f"[data]\nclasses = {len(classes)}")
    run = make(tmp_path, text)
    finish(run)
    run.value()
    transcript = Transcript.open(tmp_path / "out")
    assert transcript.description.classes == classes
    expected = [classes.index(str(label)) for label in frame["y"][:50]]
    assert transcript.labels.tolist() == expected
    assert all(f"{name} (" in run.data.notes[-1] for name in classes)
    summary = summarise(tmp_path / "out")
    assert summary.classes == classes
    assert json.loads(summary.to_json())["classes"] == list(classes)
    listed = f"{', '.join(classes[:-1])} and {classes[-1]}"
    assert f"| run | labels | classes {listed} |" in to_markdown(summary)
