import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from verfedsv import InputError
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import join_tables
from verfedsv.errors import DataError


def write(path, **columns):
    """Write a CSV or Parquet file."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        pa.csv.write_csv(table, path)
    return ClientFile(path, "id")


def two(folder, suffix=".csv", **changes):
    """Return the files of a bank, with labels, and a telco that has other rows in another order."""
    bank = {"id": [3, 1, 2, 9], "y": ["no", "yes", "no", "yes"], "age": [30, 10, 20, 90], "city": ["x", "y", None, "x"]}
    telco = {"id": [1, 2, 3, 7], "calls": [1.5, 2.5, 3.5, 7.5]}
    return {
        "bank": write(folder / f"bank{suffix}", **(bank | changes.get("bank", {}))),
        "telco": write(folder / f"telco{suffix}", **(telco | changes.get("telco", {}))),
    }


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_are_joined_on_ids(tmp_path, suffix):
    """Rows in another order are matched; those that a client lacks are left out and counted."""
    data = join_tables(two(tmp_path, suffix), ("bank", "y"), test=0)
    assert data.names == ("bank", "telco")
    assert data.clients[0].numeric.ravel().tolist() == [30, 10, 20]
    assert data.clients[1].numeric.ravel().tolist() == [3.5, 1.5, 2.5]
    assert data.clients[0].categorical.ravel().tolist() == ["x", "y", None]
    assert [client.columns for client in data.clients] == [("age", "city"), ("calls",)]
    assert data.labels.tolist() == [0, 1, 0]
    assert data.classes == ("no", "yes")
    said = "; ".join(data.notes)
    for part in (
        f"bank: 4 rows in bank{suffix}; 1 numeric column, 1 of text with 2 categories",
        f"telco: 4 rows in telco{suffix}; 1 numeric column",
        "3 samples are in all files",
        "labels of all samples: no (2), yes (1)",
    ):
        assert part in said


def test_samples_without_a_label_are_left_out(tmp_path):
    """And counted."""
    files = two(tmp_path, ".parquet", bank={"y": [1.0, None, 0.0, 1.0]})
    data = join_tables(files, ("bank", "y"), test=0)
    assert data.clients[1].numeric.ravel().tolist() == [3.5, 2.5]
    assert "1 of them have no label" in "; ".join(data.notes)


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_label_is_none(tmp_path, blank):
    """In a column of text too."""
    data = join_tables(two(tmp_path, bank={"y": ["no", blank, "yes", "no"]}), ("bank", "y"), test=0)
    assert data.labels.tolist() == [0, 1]
    assert data.n_classes == 2
    assert "1 of them have no label" in "; ".join(data.notes)


@pytest.mark.parametrize("ordered", [True, False])
def test_classes_are_in_the_order_of_ordered_categories(tmp_path, ordered):
    """As pandas writes them to Parquet, and as notes show; others are in alphabetical order."""
    pd = pytest.importorskip("pandas")
    files = two(tmp_path, ".parquet")
    levels = pd.Categorical([" low", "high", "mid", "low"], [" low", "low", "never", "mid", "high"], ordered=ordered)
    frame = pd.DataFrame({"id": [3, 1, 2, 9], "y": levels, "age": [30, 10, 20, 90]})
    frame.to_parquet(files["bank"].path, row_group_size=2)
    data = join_tables(files, ("bank", "y"), test=0)
    assert data.labels.tolist() == ([0, 2, 1] if ordered else [1, 0, 2])
    expected = "low (1), mid (1), high (1)" if ordered else "high (1), low (1), mid (1)"
    assert f"labels of all samples: {expected}" in data.notes


def test_missing_categories_stay_missing(tmp_path):
    """In dictionary columns, as pandas writes categories: of labels and of features."""
    bank = {
        "y": pa.array(["yes", "no", None, "no"]).dictionary_encode(),
        "city": pa.array(["x", None, "z", "x"]).dictionary_encode(),
    }
    data = join_tables(two(tmp_path, ".parquet", bank=bank), ("bank", "y"), test=0)
    assert data.labels.tolist() == [1, 0]
    assert data.clients[0].categorical.ravel().tolist() == ["x", None]
    assert "1 of them have no label" in "; ".join(data.notes)


def test_labels_of_whole_numbers_stay_whole(tmp_path):
    """Also where some are missing."""
    data = join_tables(two(tmp_path, bank={"y": [2**60, None, 2**60 + 1, 5]}), ("bank", "y"), test=0)
    assert data.labels.tolist() == [0, 1]
    assert f"labels of all samples: {2**60} (1), {2**60 + 1} (1)" in data.notes


def test_large_whole_numbers(tmp_path):
    """Those that are no exact float become the nearest one, as if the file had floats."""
    data = join_tables(two(tmp_path, telco={"calls": [2**53 + 1, 2**62 + 1, 7, None]}), ("bank", "y"), test=0)
    assert data.clients[1].numeric.ravel().tolist() == [7.0, 2.0**53, 2.0**62]


def many(folder, labels):
    """Return the file of one client with these labels."""
    return {"bank": write(folder / "bank.csv", id=range(len(labels)), y=labels, x=range(len(labels)))}


@pytest.mark.parametrize("step", [1, 0.25])
def test_many_numbers_are_classes_only_if_that_is_said(tmp_path, step):
    """Even whole ones may be amounts; the error says what to do with those."""
    with pytest.raises(
        DataError,
        match=r"column 'y' has 21 different numbers, such as 0.*set classes = 21 in \[data\].*amounts, set "
        r'loss = "squared" in \[training\]',
    ):
        join_tables(many(tmp_path, [i * step for i in range(21)]), ("bank", "y"))
    assert join_tables(many(tmp_path, [i * step for i in range(21)]), ("bank", "y"), n_classes=21).n_classes == 21
    assert join_tables(many(tmp_path, [i * step for i in range(20)]), ("bank", "y")).n_classes == 20
    assert join_tables(many(tmp_path, [f"c{i}" for i in range(21)]), ("bank", "y")).n_classes == 21


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_that_are_amounts(tmp_path, suffix):
    """Under squared loss they stay numbers, samples without one are left out, and a note describes them."""
    data = join_tables(
        two(tmp_path, suffix, bank={"y": [2.5, None, 100.0, 7.0]}), ("bank", "y"), test=0, loss="squared"
    )
    assert data.labels.tolist() == [2.5, 100.0]
    assert (data.n_classes, data.classes, data.loss) == (1, None, "squared")
    assert "1 of them have no label and are left out" in data.notes
    said = "labels of all samples: 2 amounts from 2.5 to 100, with mean 51.25 and standard deviation 48.75"
    assert data.notes[-1] == said
    assert data.cautions[0] == "labels: only two different numbers, 2.5 and 100. If they are classes, leave out loss"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["1.5", "-", "2"],
            "column 'y' is text; the first that is not a number is '-'. Leave cells without a label em",
        ),
        ([True, False, True], "column 'y' is true or false; leave out loss, as these are classes"),
        ([1.0, np.inf, 2.0], "labels must be finite and below 1e\\+60 in size; column 'y' has inf"),
        ([3, 3, 3], "labels need 2 or more different values; there are 1"),
        ([None] * 3, "labels need 2 or more different values; there are 0"),
    ],
)
def test_labels_that_are_no_amounts(tmp_path, labels, message):
    """Text, booleans, infinity and a constant are refused under squared loss."""
    with pytest.raises(DataError, match=message):
        join_tables(many(tmp_path, labels), ("bank", "y"), loss="squared")


def test_several_labels_are_refused(tmp_path):
    """A column of lists is not one label per sample."""
    files = two(tmp_path, ".parquet", bank={"y": [[1.0, 2.0]] * 4})
    with pytest.raises(DataError, match=r"column 'y' is of type list.* Only one label per sample is supported"):
        join_tables(files, ("bank", "y"), loss="squared")


def test_a_loss_that_the_labels_do_not_have(tmp_path):
    """The error names the file."""
    with pytest.raises(DataError, match=r"bank\.csv: loss 'logistic' takes two classes, and the labels are 3 classes"):
        join_tables(many(tmp_path, ["a", "b", "c"] * 3), ("bank", "y"), loss="logistic")


def test_another_number_of_classes_than_was_said(tmp_path):
    """The rarest are named, as likely mistakes."""
    with pytest.raises(DataError, match=r"have 2 classes and has 3; the rarest are yes \(1\), 0 \(30\), 1 \(60\)"):
        join_tables(many(tmp_path, ["0", "1", "1"] * 30 + ["yes"]), ("bank", "y"), n_classes=2)


def test_labels_are_stripped(tmp_path):
    """Blanks around a label do not make another class."""
    data = join_tables(many(tmp_path, ["yes", "no", "Yes ", " no", "Yes"]), ("bank", "y"), test=0)
    assert data.labels.tolist() == [2, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            ["0", "1"] * 50 + ["yes"],
            "labels: few of 101 samples have yes (1), which makes 3 classes. If it is a mistake",
        ),
        (["Yes", "yes", "no"] * 30, "labels: 'Yes', 'yes' differ in capitals only, and are different classes"),
        (["a", "b", "NA"] * 30, "labels: 'NA' is a class here; leave the cell empty if there is no label"),
        (["a", "b"] * 50 + ["b"] * 50, None),
        ([0] * 2000 + [1] * 12, None),  # rare, but too many to be mistyped
    ],
)
def test_labels_that_may_be_mistakes_are_named(tmp_path, labels, says):
    """With their number of samples."""
    rng = np.random.default_rng(0)
    file = write(tmp_path / "bank.csv", id=range(len(labels)), y=labels, x=rng.normal(size=len(labels)))
    cautions = join_tables({"bank": file}, ("bank", "y")).cautions
    assert [said.startswith(says) for said in cautions] == [True] if says else cautions == ()


def test_numbers_with_a_dash_for_missing_ones_are_named(tmp_path):
    """A file may have them by the hundred; blank cells are none of them."""
    amounts = ["-" if k % 40 == 1 else "" if k % 40 == 2 else str(k % 30) for k in range(400)]
    file = write(tmp_path / "bank.csv", id=range(400), y=["a", "a", "b", "b"] * 100, x=amounts)
    (said,) = join_tables({"bank": file}, ("bank", "y")).cautions
    assert said.startswith("bank: column 'x' is text, as 10 of its 390 filled cells are not a plain number")


def test_a_path_may_be_text(tmp_path):
    """Anything but text or a path is refused."""
    file = two(tmp_path)["bank"]
    assert join_tables({"bank": ClientFile(str(file.path), "id")}, ("bank", "y")).n_classes == 2
    with pytest.raises(InputError, match="must be a path or text; received 3"):
        ClientFile(3, "id")


def test_chosen_columns(tmp_path):
    """Only those named are features."""
    files = two(tmp_path)
    files["bank"] = ClientFile(files["bank"].path, "id", ("city",))
    data = join_tables(files, ("bank", "y"), test=0)
    assert data.clients[0].numeric.shape == (3, 0)
    assert data.clients[0].categorical.shape == (3, 1)


def test_clients_that_share_a_file(tmp_path):
    """Each has the columns it names; the labels in the file are nobody's feature."""
    path = two(tmp_path)["bank"].path
    files = {"first": ClientFile(path, "id", ("age",)), "second": ClientFile(path, "id")}
    data = join_tables(files, ("first", "y"), test=0)
    assert data.clients[0].categorical is None
    assert data.clients[1].numeric.shape == (4, 1)
    assert data.clients[1].categorical.ravel().tolist() == ["x", "y", None, "x"]


def test_numbers_booleans_and_missing_values(tmp_path):
    """Booleans are numbers, a missing number is NaN, an empty column is ignored."""
    files = two(tmp_path, telco={"calls": [1.5, None, 3.5, 7.5], "vip": [True, False, True, False], "none": [None] * 4})
    data = join_tables(files, ("bank", "y"), test=0)
    np.testing.assert_array_equal(data.clients[1].numeric, [[3.5, 1], [1.5, 1], [np.nan, 0]])


def test_ids_of_text(tmp_path):
    """Any text can be an id."""
    files = two(tmp_path, bank={"id": ["c", "a", "b", "z"]}, telco={"id": ["a", "b", "c", "y"]})
    assert join_tables(files, ("bank", "y"), test=0).clients[1].numeric.ravel().tolist() == [3.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"telco": {"id": [1, 1, 2, 3]}}, "ids must be unique; 1 id repeated, for example 1"),
        (
            {"telco": {"id": ["a", "b", "c", "d"]}},
            r"ids must be written in the same way .*bank\.csv has numbers \(3\); .*text \(a\)",
        ),
        ({"telco": {"id": [11, 12, 13, 14]}}, "no sample is in all files. The first ids are: .*11, 12, 13"),
        ({"telco": {"id": [1.5, 2.5, 3.5, 4.5]}}, "ids must be whole numbers or text; column 'id' has decimal numbers"),
        ({"bank": {"y": ["a", "a", "a", "a"]}}, "labels need 2 to 1,000 different values; there are 1"),
        ({"telco": {"when": pa.array([0, 1, 2, 3], pa.timestamp("s"))}}, "column 'when' is of type timestamp"),
        (
            {"telco": {"when": ["2024-01-01"] * 4}},
            "'when' is of type date.*Write dates and times as numbers, .*columns",
        ),
        ({"telco": {"calls": [1.0, 2.0, np.inf, 3.0]}}, "column 'calls' has infinite numbers"),
        ({"telco": {"id": ["1", " ", "3", "7"]}}, "1 row without an id in column 'id'"),
        ({"telco": {"id": ["a", "", "c", "d"]}, "bank": {"id": ["a", "", "e", "f"]}}, "1 row without an id in column"),
        ({"bank": {"y": [None] * 4}}, "labels need 2 to 1,000 different values; there are 0"),
    ],
)
def test_files_that_do_not_fit(tmp_path, changes, message):
    """Each error names the file."""
    with pytest.raises(DataError, match=message):
        join_tables(two(tmp_path, **changes), ("bank", "y"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bank": {"y": [{"a": 1}] * 4}}, "labels must be numbers, booleans or text; column 'y' is of type struct"),
        ({"bank": {"y": [[1], [2], [1], [2]]}}, "labels must be numbers, booleans or text; column 'y' is of type list"),
        ({"bank": {"y": pa.array([0, 1, 0, 1], pa.date32())}}, "column 'y' is of type date32.*Write dates and times"),
        ({"telco": {"calls": [[1], [2], [1], [2]]}}, "column 'calls' is of type list.*Write it as columns of numbers"),
        ({"telco": {"calls": [b"a", b"b", b"a", b"b"]}}, "column 'calls' is of type binary.*save the file in UTF-8"),
        ({"telco": {"id": [[1], [2], [3], [4]]}}, "ids must be whole numbers or text; column 'id' is of type list"),
        ({"telco": {"id": pa.array([1, 2, 3, 4], pa.date32())}}, "ids must be whole .* column 'id' is of type date32"),
    ],
)
def test_kinds_of_columns_that_cannot_be_used(tmp_path, changes, message):
    """The error lists those that can."""
    with pytest.raises(DataError, match=message):
        join_tables(two(tmp_path, ".parquet", **changes), ("bank", "y"))


def test_columns_that_are_not_needed_may_be_of_any_kind(tmp_path):
    """Only the chosen columns are checked."""
    files = two(tmp_path, ".parquet", telco={"when": pa.array([0, 1, 2, 3], pa.timestamp("s"))})
    files["telco"] = ClientFile(files["telco"].path, "id", ("calls",))
    assert join_tables(files, ("bank", "y"), test=0).clients[1].numeric.shape == (3, 1)


def test_text_that_is_not_utf_8(tmp_path):
    """The column is named."""
    files = two(tmp_path)
    files["telco"].path.write_bytes("id,town\n1,Köln\n2,Bonn\n3,Ulm\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"column 'town' is of type binary.*If it is text, save the file in UTF-8"):
        join_tables(files, ("bank", "y"))


def test_ids_that_are_missing(tmp_path):
    """They are counted."""
    files = two(tmp_path, ".parquet", telco={"id": [1, None, 3, 7]})
    with pytest.raises(DataError, match="1 row without an id in column 'id'"):
        join_tables(files, ("bank", "y"))


def test_a_client_with_labels_only(tmp_path):
    """It is not a player, and there must be another."""
    judge = write(tmp_path / "judge.csv", id=[1, 2, 3], y=[0, 1, 0])
    files = {"judge": judge, **two(tmp_path)}
    data = join_tables(files, ("judge", "y"), test=0)
    assert data.names == ("bank", "telco")
    assert data.labels.tolist() == [0, 1, 0]
    assert "judge: 3 rows in judge.csv; holds only the labels, and is not valued" in data.notes
    with pytest.raises(DataError, match=r"judge\.csv has labels only; at least one client with features is needed"):
        join_tables({"judge": judge}, ("judge", "y"))
    with pytest.raises(DataError, match="client 'judge' has no features"):
        join_tables({**files, "judge": ClientFile(judge.path, "id", ())}, ("bank", "y"))


def texts(folder, values, **more):
    """Return the file of one client with a column of text."""
    n_rows = len(values)
    return {"shop": write(folder / "shop.csv", id=range(n_rows), y=[0, 1] * (n_rows // 2), spend=values, **more)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [f"{i}.5" for i in range(190)] + ["-"] * 10,
            (
                r"text with 191 different values in 200 training rows, such as '0\.5', '1\.5', .* Most of its "
                r"values are numbers; the first that is not is '-'\. Clean the column, or leave it out .*columns"
            ),
        ),
        ([f"1,{i:03}.50 EUR" for i in range(200)], r"'1,000\.50 EUR'.*look like numbers with a unit or separators"),
        ([f"about the weather on day {i}" for i in range(200)], r"memorise rows\. Clean the column"),
    ],
)
def test_text_that_is_different_in_nearly_every_row(tmp_path, values, message):
    """It is refused, with examples: with such features a model memorises rows."""
    with pytest.raises(DataError, match=message):
        join_tables(texts(tmp_path, values), ("shop", "y"), test=0)
    files = texts(tmp_path, values, sold=range(200))
    files["shop"] = ClientFile(files["shop"].path, "id", ("sold",))
    assert join_tables(files, ("shop", "y"), test=0).clients[0].categorical is None


def test_text_with_many_categories(tmp_path):
    """Half as many as training rows are allowed, or fifty; those of test rows do not count."""
    for values in ([f"town {i % 100}" for i in range(200)], [f"town {i}" for i in range(50)] * 2):
        data = join_tables(texts(tmp_path, values), ("shop", "y"), test=0)
        assert f"1 column of text with {len(set(values))} categories" in data.notes[0]
    with pytest.raises(DataError, match="101 different values in 200 training rows"):
        join_tables(texts(tmp_path, [f"town {i % 101}" for i in range(200)]), ("shop", "y"), test=0)
    with pytest.raises(DataError, match="in 150 training rows"):
        join_tables(texts(tmp_path, [f"town {i % 100}" for i in range(200)]), ("shop", "y"), test=0.25)


def test_names_that_are_not_there(tmp_path):
    """Missing files, columns and clients, and unknown types of files: the error lists what there is."""
    files = two(tmp_path)
    bank = files["bank"].path
    with pytest.raises(InputError, match="must be one of bank, telco; received 'shop'"):
        join_tables(files, ("shop", "y"))
    with pytest.raises(DataError, match="has no column 'z'; it has id, y, age, city"):
        join_tables(files, ("bank", "z"))
    with pytest.raises(DataError, match="has no column 'key'"):
        join_tables({"bank": ClientFile(bank, "key")}, ("bank", "y"))
    with pytest.raises(DataError, match="has no column 'wealth'"):
        join_tables({"bank": ClientFile(bank, "id", ("wealth",))}, ("bank", "y"))
    with pytest.raises(InputError, match="'y' is the column of ids or labels"):
        join_tables({"bank": ClientFile(bank, "id", ("age", "y"))}, ("bank", "y"))
    with pytest.raises(DataError, match="there is no file"):
        join_tables({"bank": ClientFile(tmp_path / "nothing.csv", "id")}, ("bank", "y"))
    (tmp_path / "bank.xlsx").write_bytes(b"")
    with pytest.raises(InputError, match=r"must end in \.csv"):
        join_tables({"bank": ClientFile(tmp_path / "bank.xlsx", "id")}, ("bank", "y"))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match="cannot be read"):
        join_tables({"bank": ClientFile(tmp_path / "bad.parquet", "id")}, ("bank", "y"))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match="cannot be read"):
        join_tables({"bank": ClientFile(tmp_path / "empty.csv", "id")}, ("bank", "y"))
