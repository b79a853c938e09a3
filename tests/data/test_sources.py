"""Test files: samples that are held out, in files of their own."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.data.test_libsvm import FEATURES, LABELS, dump
from tests.data.test_tables import write
from verfedsv import InputError
from verfedsv.data.preparation import prepare
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import join_tables
from verfedsv.errors import DataError

TRAIN = {
    "bank": {"id": [3, 1, 2, 9], "y": ["no", "yes", "no", "yes"], "age": [30, 10, 20, 90], "city": list("xyxx")},
    "telco": {"id": [1, 2, 3, 7], "calls": [1.5, 2.5, 3.5, 7.5]},
}
TEST = {
    "bank": {"id": [12, 11, 13], "y": ["yes", "no", "no"], "age": [0.5, 7.0, 8.0], "city": ["z", "x", "y"]},
    "telco": {"calls": [8, 9, 6], "id": [13, 12, 11]},
}


def files(folder, suffix=".csv", *, train=TRAIN, test=TEST, columns=None, **changes):
    """Write the files and test files of a bank, with labels, and a telco; `changes` are of test files."""
    for name in train:
        write(folder / f"{name}{suffix}", **train[name])
        write(folder / f"{name}-test{suffix}", **(test[name] | changes.get(name, {})))
    return {
        name: ClientFile(folder / f"{name}{suffix}", "id", columns, folder / f"{name}-test{suffix}") for name in train
    }


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_test_files_are_joined_among_themselves(tmp_path, suffix):
    """As pandas merges each part; test samples come last."""
    data = join_tables(files(tmp_path, suffix), ("bank", "y"))
    merged = [pd.DataFrame(part["bank"]).merge(pd.DataFrame(part["telco"]), on="id") for part in (TRAIN, TEST)]
    expected = pd.concat(merged)
    assert data.is_test.tolist() == [False] * 3 + [True] * 3
    assert data.classes == ("no", "yes")
    assert [data.classes[label] for label in data.labels] == expected["y"].tolist()
    np.testing.assert_array_equal(data.clients[0].numeric[:, 0], expected["age"])
    np.testing.assert_array_equal(data.clients[1].numeric[:, 0], expected["calls"])
    assert data.clients[0].categorical[:, 0].tolist() == expected["city"].tolist()
    assert "3 samples are in all files and 3 in all test files" in data.notes
    assert data.notes[1] == f"telco: 4 rows in telco{suffix} and 3 rows in telco-test{suffix}; 1 numeric column"
    features = prepare(data.clients[0], "standardise", ~data.is_test)
    np.testing.assert_allclose(features[:3].mean(axis=0), 0, atol=1e-12)


def test_test_samples_without_a_label_are_left_out(tmp_path):
    """As training samples are."""
    data = join_tables(files(tmp_path, bank={"y": ["yes", None, "no"]}), ("bank", "y"))
    assert data.is_test.tolist() == [False] * 3 + [True] * 2
    assert "1 of them have no label and are left out" in data.notes


def test_columns_that_are_empty_or_whole_in_one_file(tmp_path):
    """They go together; only the named columns must be in both files."""
    made = files(tmp_path, bank={"age": [None] * 3, "city": [None] * 3, "more": [1, 2, 3]}, columns=None)
    with pytest.raises(DataError, match=r"bank-test\.csv has a column 'more', which .*bank\.csv has not; remove it"):
        join_tables(made, ("bank", "y"))
    made["bank"] = ClientFile(made["bank"].path, "id", ("age", "city"), made["bank"].test_path)
    data = join_tables(made, ("bank", "y"))
    assert np.isnan(data.clients[0].numeric[3:]).all()
    assert data.clients[0].categorical[3:].tolist() == [[None]] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"telco": {"id": [13, 12, 7]}},
            r"telco-test\.csv: 1 ids are also in .*telco\.csv, for example 7; samples to test on must not be trained",
        ),
        ({"bank": {"age": ["a", "b", "c"]}}, r"column 'age' is of type int64 in .*bank\.csv and of type .*string in"),
        ({"bank": {"id": [21, 22, 23]}}, r"no sample is in all files.*bank-test\.csv: 21, 22, 23"),
        ({"bank": {"id": [11, 11, 12]}}, r"bank-test\.csv: ids must be unique; 1 id repeated, for example 11"),
        ({"telco": {"calls": [1.0, np.inf, 2.0]}}, "column 'calls' has infinite numbers"),
    ],
)
def test_test_files_that_do_not_fit(tmp_path, changes, message):
    """Ids in both files, columns of other types, ids in no other file: each error names the file."""
    with pytest.raises(DataError, match=message):
        join_tables(files(tmp_path, **changes), ("bank", "y"))


def test_a_label_that_only_a_test_file_has(tmp_path):
    """A typo does not make another class, unless their number is given."""
    made = files(tmp_path, bank={"y": [TEST["bank"]["y"][0], "hihg", "hihg"]})
    with pytest.raises(
        DataError, match=r"bank-test\.csv has labels that no training sample has: hihg \(2\)\. Correct or"
    ):
        join_tables(made, ("bank", "y"))
    data = join_tables(made, ("bank", "y"), n_classes=3)
    assert "labels: no training sample has hihg (2), so that cannot be learnt" in data.cautions


@pytest.mark.parametrize("column", ["id", "y", "age"])
def test_columns_that_a_test_file_lacks(tmp_path, column):
    """The error names the file and the column."""
    test = TEST | {"bank": {name: values for name, values in TEST["bank"].items() if name != column}}
    with pytest.raises(DataError, match=rf"bank-test\.csv has no column '{column}'"):
        join_tables(files(tmp_path, test=test), ("bank", "y"))


def test_test_files_of_some_clients_only(tmp_path):
    """Either all have one or none, and then there is no fraction."""
    made = files(tmp_path)
    with pytest.raises(
        InputError, match="test is the fraction of test samples where there are no test files; received 0"
    ):
        join_tables(made, ("bank", "y"), test=0.5)
    made["telco"] = ClientFile(made["telco"].path, "id")
    with pytest.raises(InputError, match="either all clients have a test file or none; without one are telco"):
        join_tables(made, ("bank", "y"))
    with pytest.raises(InputError, match="must be files of the same kind"):
        ClientFile(tmp_path / "a.csv", "id", None, tmp_path / "b.svm")


def test_ordered_categories_of_both_files(tmp_path):
    """The order of the training file holds for both."""
    made = files(tmp_path, ".parquet")
    for name, part in (("bank", TRAIN), ("bank-test", TEST)):
        frame = pd.DataFrame(part["bank"])
        frame["y"] = pd.Categorical(frame["y"], ["yes", "no"], ordered=True)
        frame.to_parquet(tmp_path / f"{name}.parquet")
    assert join_tables(made, ("bank", "y")).classes == ("yes", "no")


def test_aligned_test_files(tmp_path):
    """Each part must have the same number of rows in all files."""
    made = {}
    for name, columns in (("bank", slice(0, 3)), ("telco", slice(3, 7))):
        paths = tmp_path / f"{name}.svm", tmp_path / f"{name}-test.svm"
        for path, rows in zip(paths, (slice(0, 20), slice(20, 30)), strict=True):
            dump(path, FEATURES[rows, columns], LABELS[rows])
        made[name] = ClientFile(paths[0], None, None, paths[1])
    data = join_tables(made, ("bank", None))
    np.testing.assert_array_equal(data.is_test, np.arange(30) >= 20)
    joined = np.hstack([client.numeric.toarray() for client in data.clients])
    np.testing.assert_allclose(joined, FEATURES.toarray(), rtol=1e-15)
    dump(tmp_path / "telco-test.svm", FEATURES[20:29, 3:], LABELS[20:29])
    with pytest.raises(DataError, match=r"10 in .*bank-test\.svm, 9 in .*telco-test\.svm"):
        join_tables(made, ("bank", None))


def test_booleans_are_no_numbers(tmp_path):
    """A column that is true or false in one file and a number in the other is refused."""
    train = TRAIN | {"telco": {"id": [1, 2, 3, 7], "calls": pa.array([True, False, True, True])}}
    with pytest.raises(DataError, match=r"column 'calls' is of type bool in .*telco\.csv and of type int64"):
        join_tables(files(tmp_path, train=train), ("bank", "y"))
