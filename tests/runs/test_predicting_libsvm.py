"""Predictions for new rows in LIBSVM files, which have no ids and no names of columns."""

import gzip

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

from tests.cli.inprocess import call
from tests.runs.credit import train as train_credit
from tests.runs.test_execute import finish, make
from tests.runs.test_files import RUN, client, samples
from verfedsv import InputError
from verfedsv.errors import DataError

FEATURES, LABELS = samples()
ALIGNED = RUN.replace("SETTINGS", 'aligned = true\nlabel_client = "a"')
OWN = ALIGNED + client("a", "a.svm.gz") + client("b", "b.svm")
MIXED = ALIGNED + client("a", "a.svm.gz") + client("b", "b.csv")
SPLIT = RUN.replace("SETTINGS", 'file = "whole.svm"\nclients = 2')


@pytest.fixture(params=[False, True], ids=["from one", "from zero"])
def folder(request, tmp_path):
    """Return a folder with the features in one file, and in one for each of two clients, by any numbering."""
    dump_svmlight_file(FEATURES, LABELS, str(tmp_path / "whole.svm"), zero_based=request.param)
    dump_svmlight_file(FEATURES[:, 4:], LABELS * 0, str(tmp_path / "b.svm"), zero_based=request.param)
    dump_svmlight_file(FEATURES[:, :4], LABELS, str(tmp_path / "a.svm"), zero_based=request.param)
    (tmp_path / "a.svm.gz").write_bytes(gzip.compress((tmp_path / "a.svm").read_bytes()))
    columns = pd.DataFrame(FEATURES[:, 4:].toarray(), columns=list("stuv"))
    columns.to_csv(tmp_path / "b.csv", index=False)
    return tmp_path


def scores_in_training(run):
    """Return the scores of all rows, by the models of a finished run, in the order of the files."""
    training = run._prepare()
    training.restore({"live": np.zeros(2)})
    order = np.argsort(run.data.is_test, kind="stable")
    scores = np.empty((len(order), 1))
    scores[order] = training.predict(np.arange(len(order)))
    return scores


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (OWN, {"a": "a.svm.gz", "b": "b.svm"}),
        (MIXED, {"a": "a.svm.gz", "b": "b.csv"}),
        (SPLIT, {"client 1": "whole.svm", "client 2": "whole.svm"}),
    ],
    ids=["own files", "with CSV", "split"],
)
def test_rows_of_the_training_files_are_predicted_as_in_training(folder, text, files):
    """Rows are matched by their order, and numbered."""
    run = make(folder, text)
    finish(run)
    result = run.predict({name: folder / file for name, file in files.items()})
    np.testing.assert_allclose(result.predictions.scores, scores_in_training(run), rtol=1e-12, atol=1e-13)
    table = result.to_table()
    assert table.column_names[0] == "row"
    assert table.column("row").to_pylist() == [*range(1, 121)]
    is_split = "client 1" in files
    assert [len(source.ignored) for source in result.sources] == ([4, 4] if is_split else [0, 0])


def test_new_rows_may_lack_features(folder):
    """Indices mean the same as in training, also if the new file has no feature 0, and further ones are ignored."""
    run = make(folder, OWN)
    finish(run)
    first = 0 if "0:" in (folder / "a.svm").read_text() else 1
    (folder / "new.svm").write_text(f"0 {first + 2}:1.5 9:3\n0 {first + 1}:2\n")
    new = run.predict({"a": folder / "new.svm"})
    dense = pd.DataFrame({f"column {first + k}": [[0, 0, 1.5, 0][k], [0, 2, 0, 0][k]] for k in range(4)})
    dense.assign(id=[1, 2]).to_csv(folder / "new.csv", index=False)
    same = run.predict({"a": folder / "new.csv"}, id_column="id")
    np.testing.assert_array_equal(new.predictions.scores, same.predictions.scores)
    assert new.sources[0].ignored == ("feature 9",)


def test_rows_that_cannot_be_matched_are_refused(folder):
    """Files of different lengths, and a column of ids, which LIBSVM files do not have."""
    run = make(folder, OWN)
    finish(run)
    (folder / "new.svm").write_text("0 1:1\n")
    with pytest.raises(DataError, match=r"the same number of rows: 1 in .*new\.svm, 120 in .*b\.svm"):
        run.predict({"a": folder / "new.svm", "b": folder / "b.svm"})
    with pytest.raises(InputError, match=r"LIBSVM files have no ids; rows are numbered, without .*--id"):
        run.predict({"a": folder / "new.svm"}, id_column="id")
    arguments = ["predict", run.folder, "--features", f"a={folder / 'new.txt'}", "-o", folder / "p.csv"]
    (folder / "new.txt").write_text("0 1:1\n")
    done = call(*arguments)
    assert done.returncode == 2
    assert "must end in .csv, .parquet, .svm or .libsvm; after .csv, .svm and .libsvm, .gz or .bz2 may" in done.stderr


def test_clients_with_named_columns_need_tables(tmp_path):
    """A LIBSVM file has no names to find their columns by."""
    run = train_credit(tmp_path)
    (tmp_path / "new.svm").write_text("0 1:1\n")
    with pytest.raises(InputError, match=r"'bank' was trained with columns that have names, such as '.*'.* \.csv"):
        run.predict({"bank": tmp_path / "new.svm"})
