import bz2
import gzip

import numpy as np
import pytest
from scipy.sparse import random_array
from sklearn.datasets import dump_svmlight_file

from verfedsv import InputError
from verfedsv.data.libsvm import read_libsvm, read_samples
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import join_tables
from verfedsv.data.vertical import split_features
from verfedsv.errors import DataError

RNG = np.random.default_rng(0)
FEATURES = random_array((30, 7), density=0.4, rng=RNG).tocsr()
LABELS = RNG.integers(0, 2, 30)


def dump(path, features=FEATURES, labels=LABELS, **options):
    """Write a LIBSVM file with scikit-learn; return its path."""
    dump_svmlight_file(features, labels, str(path), zero_based=False, **options)
    return path


@pytest.mark.parametrize("ending", [".svm", ".libsvm", ".svm.gz", ".LIBSVM.bz2"])
def test_samples_of_a_file(tmp_path, ending):
    """Features stay sparse, and are those that were written, whatever the compression."""
    plain = dump(tmp_path / "plain", comment="three lines\nof a\ncomment")
    path = tmp_path / f"mine{ending}"
    compress = {"gz": gzip.compress, "bz2": bz2.compress}.get(ending.rpartition(".")[2], bytes)
    path.write_bytes(compress(plain.read_bytes()))
    samples = read_samples(path)
    np.testing.assert_allclose(samples.features.toarray(), FEATURES.toarray(), rtol=1e-15)
    assert samples.labels.tolist() == LABELS.tolist()
    assert (samples.classes, samples.n_test, samples.name) == (("0", "1"), 0, path.name)
    data = split_features(samples, 3, test=0.2)
    assert [client.numeric.shape[1] for client in data.clients] == [2, 2, 3]
    assert data.notes == (f"labels of all samples: 0 ({(LABELS == 0).sum()}), 1 ({LABELS.sum()})",)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([3, 1, 2], ("1", "2", "3"), [2, 0, 1]),
        ([0.5, 1.5, 0.5], ("0.5", "1.5"), [0, 1, 0]),
    ],
)
def test_classes_of_a_file(tmp_path, labels, classes, expected):
    """They are numbered in order, and keep their names."""
    samples = read_samples(dump(tmp_path / "a.svm", np.eye(3), labels))
    assert (samples.classes, samples.labels.tolist()) == (classes, expected)


def test_amounts_of_a_file(tmp_path):
    """Under squared loss labels stay numbers; many numbers are refused otherwise."""
    amounts = RNG.normal(100, 20, 30)
    path = dump(tmp_path / "a.svm", labels=amounts)
    np.testing.assert_allclose(read_samples(path, loss="squared").labels, amounts, rtol=1e-12)
    with pytest.raises(DataError, match=r'the file has 30 different numbers, .*set loss = "squared" in \[training\]'):
        read_samples(path)


def test_a_test_file(tmp_path):
    """Its samples come last and are held out; it may be narrower than the training file."""
    train, test = dump(tmp_path / "a.svm", FEATURES[:20], LABELS[:20]), tmp_path / "b.svm"
    samples = read_samples(train, dump(test, FEATURES[20:, :5], LABELS[20:]))
    assert (samples.features.shape, samples.n_test, samples.cautions) == ((30, 7), 10, ())
    assert samples.features[20:, 5:].nnz == 0
    data = split_features(samples, 2)
    assert data.is_test.tolist() == [False] * 20 + [True] * 10


def test_a_test_file_does_not_change_who_has_which_features(tmp_path):
    """They are those of the training file; others are left out, with a caution, for all clients or for one."""
    train, test = tmp_path / "a.svm", tmp_path / "b.svm"
    train.write_text("-1 1:1 8:2\n1 2:1\n" * 5)
    test.write_text("-1 1:3 49:1\n1 0:5 8:4\n")
    samples = read_samples(train, test)
    assert (samples.features.shape, samples.first_feature) == ((12, 8), 1)
    assert samples.features[10:].toarray()[:, [0, 7]].tolist() == [[3, 0], [0, 4]]
    wide, shifted = samples.cautions
    assert wide.startswith(
        f"{test}: its features above 8, up to 49, are left out, as {train} has none of them. Make sure"
    )
    assert shifted.startswith(f"{test}: its feature 0 is left out, as {train} has none. If only this file")
    assert [client.numeric.shape[1] for client in split_features(samples, 3).clients] == [2, 3, 3]
    data = join_tables({"bank": ClientFile(train, None, None, test)}, ("bank", None))
    assert data.clients[0].columns == tuple(f"column {k}" for k in range(1, 9))
    assert data.cautions[:2] == (f"bank: {wide}", f"bank: {shifted}")


def test_a_client_without_anything_to_learn_from_is_named(tmp_path):
    """If its features are zero in all training samples, of a split or in a file of its own."""
    train, test = tmp_path / "a.svm", tmp_path / "b.svm"
    train.write_text("-1 1:1 8:0\n1 2:1\n" * 5)
    test.write_text("-1 1:3 8:1\n1 2:4\n")
    says = "all its features are 0 in the training samples, so nothing is learnt from them"
    assert split_features(read_samples(train, test), 4).cautions == tuple(f"client {k}: {says}" for k in (2, 3, 4))
    (tmp_path / "zeros.svm").write_text("0 3:0\n" * 10)
    (tmp_path / "ones.svm").write_text("0 3:1\n" * 2)
    files = {"bank": ClientFile(train, None, None, test)}
    files["telco"] = ClientFile(tmp_path / "zeros.svm", None, None, tmp_path / "ones.svm")
    assert join_tables(files, ("bank", None)).cautions == (f"telco: {says}",)


def test_labels_that_only_a_test_file_has_are_refused(tmp_path):
    """They would make more classes; the number of classes, if it is given, allows them, with a caution."""
    train = dump(tmp_path / "a.svm", FEATURES[:20], 2 * LABELS[:20] - 1)
    test = dump(tmp_path / "b.svm", FEATURES[20:], np.array([0, 2, 2, *LABELS[23:]]))
    with pytest.raises(
        DataError,
        match=r"b\.svm has labels that no training sample has: 0 \(\d\), 2 \(2\)\. .* set classes = 4 in \[data\]",
    ):
        read_samples(train, test)
    data = split_features(read_samples(train, test, n_classes=4), 2)
    assert "labels: no training sample has 0 (" in data.cautions[-1]
    assert read_samples(train, dump(test, FEATURES[20:], np.ones(10))).n_classes == 2  # fewer are fine


def test_files_that_count_from_zero(tmp_path):
    """If the training file has a feature 0, the test file counts from 0 too."""
    (tmp_path / "a.svm").write_text("1 0:5 2:1\n0 1:1\n")
    (tmp_path / "b.svm").write_text("1 1:7\n")
    rows = read_libsvm([tmp_path / "a.svm", tmp_path / "b.svm"])
    assert rows.features.toarray().tolist() == [[5, 0, 1], [0, 1, 0], [0, 7, 0]]
    assert rows.sizes == (2, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,a,b\n1,2,3\n", "is not in LIBSVM format: line 1 begins with 'id,a,b'; expected are lines of a label and"),
        (b"1 1:2\n\n# text\n0 2:1 -3:1\n", "line 4 has '-3:1'; expected are .*INDEX:NUMBER.* whole indices that inc"),
        (b"1 1:2\n1,3 2:1\n", "line 2 begins with '1,3'"),
        (b"1 3:1 2:1\n", "the indices of line 1 do not increase"),
        (b"1 2:1 2:1\n", "the indices of line 1 do not increase"),
        (b"1 1.5:1\n", "line 1 has '1.5:1'"),
        (b"1 1:\n", "line 1 has '1:'"),
        (b"1 99999999999:2\n", "line 1 has a feature 99999999999, and at most 100,000,000 are allowed"),
        (b"1 2000000000:2\n", "has a feature 2,000,000,000; at most 100,000,000 are allowed"),
        (
            b"1 3000000:1\n0 1:1\n",
            "has a feature 3,000,000 and only 2 numbers; above 1,048,576, at most 10 features for each number in",
        ),
        (b"1 5:1_0\n", "is not in LIBSVM format: line 1 has '5:1_0'"),
        (b"1 1:1\n1 1_0:1\n", "line 2 has '1_0:1'"),
        (b"1_0 1:1\n", "line 1 begins with '1_0'"),
        (b"\xff\xfe1\x00", "is not in LIBSVM format: line 1 begins with"),
        (b"1 1:2\n0 1:1 2:nan\n", "row 2 has the number nan; numbers must be finite"),
        (b"1 1:inf\n", "row 1 has the number inf"),
        (b"1 1:1\nnan 1:1\n", "row 2 has the label nan"),
        (b"", "has no rows"),
        (b"1 1:2\n1 2:2\n", "labels need 2 to 1,000 different values; there are 1"),
    ],
)
def test_files_in_another_format(tmp_path, content, message):
    """The error names the file and the line."""
    path = tmp_path / "mine.svm"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}.*{message}"):
        read_samples(path)


def test_many_features(tmp_path):
    """High numbers are allowed up to a limit, above it if files have enough numbers; the file is named."""
    few, many = tmp_path / "few.svm", tmp_path / "many.svm"
    few.write_text("1 1048576:1\n0 1:1\n")
    assert read_libsvm([few]).features.shape == (2, 1_048_576)
    many.write_text("1 1200000:1 # a_comment\n" * 120_000)
    assert read_libsvm([many, few]).features.shape == (120_002, 1_200_000)
    many.write_text("1 1200000:1\n" * 119_997)
    with pytest.raises(DataError, match=r"many\.svm has a feature 1,200,000 and only 119,999 numbers"):
        read_libsvm([many, few])


BOMBS = {
    "a line": (b"1" * 2**24, 9, bz2.open, "line 1 has more than 67,108,864 bytes"),
    "a comment": (b"1 1:1 #" + b"x" * 2**24, 9, bz2.open, "line 1 has more than 67,108,864 bytes"),
    "not a number": (b"a" * 2**24, 9, bz2.open, "line 1 has more than 67,108,864 bytes"),
    "empty rows": (b"1\n" * 2**21, 3, gzip.open, "expands to more than .* bytes, 250 times its size"),
    "comments": (b"#\n" * 2**21, 3, bz2.open, "expands to more than .* bytes, 250 times its size"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_small_files_that_expand_are_not_read_to_their_end(tmp_path, kind):
    """Neither their lines nor the whole may take memory or time out of proportion."""
    chunk, n_chunks, opening, message = BOMBS[kind]
    path = tmp_path / f"mine.svm.{'gz' if opening is gzip.open else 'bz2'}"
    with opening(path, "wb") as file:
        for _ in range(n_chunks):
            file.write(chunk)
    assert path.stat().st_size < 2**16
    with pytest.raises(DataError, match=message):
        read_libsvm([path])


def test_data_that_are_much_alike_are_read(tmp_path):
    """Up to 4 MiB of any content, and beyond that what shrinks to a 250th; data of the paper do to a 26th at most."""
    path = tmp_path / "mine.svm.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d 1:1 2:%d\n" % (k % 2, k % 7) for k in range(10**5))))
    assert path.stat().st_size * 30 < 10**6
    assert read_libsvm([path]).features.shape == (10**5, 2)


@pytest.mark.parametrize("ending", ["bz2", "gz"])
def test_compressed_files_that_are_damaged(tmp_path, ending):
    """They are named, also the second of two."""
    path = tmp_path / f"mine.svm.{ending}"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=f"{path} cannot be read"):
        read_samples(dump(tmp_path / "good.svm"), path)


def test_names_of_files(tmp_path):
    """Another ending, or a file that is missing."""
    with pytest.raises(InputError, match=r"a\.txt: the name must end in \.svm or \.libsvm, perhaps with"):
        read_samples(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"there is no file .*a\.svm"):
        read_samples(tmp_path / "a.svm")


def aligned(folder, **contents):
    """Write a LIBSVM file for each client; return the clients."""
    for name, (features, labels) in contents.items():
        dump(folder / f"{name}.svm", features, labels)
    return {name: ClientFile(folder / f"{name}.svm", None) for name in contents}


def test_aligned_files_of_clients(tmp_path):
    """Each has its sparse features of the same rows; the labels are those of one."""
    files = aligned(tmp_path, bank=(FEATURES[:, :3], LABELS), telco=(FEATURES[:, 3:], np.zeros(30)))
    data = join_tables(files, ("bank", None), test=0)
    joined = np.hstack([client.numeric.toarray() for client in data.clients])
    np.testing.assert_allclose(joined, FEATURES.toarray(), rtol=1e-15)
    assert data.labels.tolist() == LABELS.tolist()
    assert "30 samples are in all files, row by row" in data.notes
    filled = f"{FEATURES[:, :3].nnz / 90:.1%}"
    assert f"bank: 30 rows in bank.svm; 3 features, {filled} of them not zero" in data.notes


def test_sparse_files_beside_tables(tmp_path):
    """A CSV file without ids goes with LIBSVM files, and may have the labels."""
    table = tmp_path / "shop.csv"
    table.write_text(
        "y,colour\n" + "".join(f"{'yes' if y else 'no'},{'red' if k % 3 else 'blue'}\n" for k, y in enumerate(LABELS))
    )
    files = {"shop": ClientFile(table, None), **aligned(tmp_path, bank=(FEATURES, LABELS))}
    data = join_tables(files, ("shop", "y"), test=0)
    assert (data.classes, data.labels.tolist()) == (("no", "yes"), LABELS.tolist())
    assert data.clients[0].categorical.shape == (30, 1)
    assert data.clients[1].numeric.shape == (30, 7)
    data = join_tables(files, ("bank", None), test=0)
    assert data.classes == ("0", "1")
    assert data.clients[0].categorical.shape == (30, 2)  # a column 'y' is a feature of this client


def test_a_sparse_file_with_labels_only(tmp_path):
    """Its client is not valued."""
    files = aligned(tmp_path, judge=(np.zeros((30, 1)), LABELS), bank=(FEATURES, np.ones(30)))
    data = join_tables(files, ("judge", None), test=0)
    assert data.names == ("bank",)
    assert data.notes[0] == "judge: 30 rows in judge.svm; holds only the labels, and is not valued"


def test_rows_of_other_samples_are_noticed(tmp_path):
    """By their number, or by labels that differ, if there are some."""
    files = aligned(tmp_path, bank=(FEATURES, LABELS), telco=(FEATURES[:20], LABELS[:20]))
    with pytest.raises(
        DataError, match=r"same number of rows: 30 in .*bank\.svm, 20 in .*telco\.svm\. .*column of ids"
    ):
        join_tables(files, ("bank", None))
    files = aligned(tmp_path, bank=(FEATURES, LABELS), telco=(FEATURES, np.roll(LABELS, 1)))
    with pytest.raises(DataError, match=r"telco\.svm: its labels are not those that are learnt.*write 0 at the begin"):
        join_tables(files, ("bank", None))
    same = aligned(tmp_path, bank=(FEATURES, LABELS), telco=(FEATURES, 2 * LABELS - 1))
    assert join_tables(same, ("bank", None)).names == ("bank", "telco")


def test_clients_that_do_not_go_together(tmp_path):
    """Ids for some files only, ids or columns of LIBSVM files, a column of labels in one."""
    files = aligned(tmp_path, bank=(FEATURES, LABELS))
    table = tmp_path / "shop.csv"
    table.write_text("id,x\n1,2\n")
    with pytest.raises(InputError, match="either all clients have a column of ids or none"):
        join_tables({**files, "shop": ClientFile(table, "id")}, ("bank", None))
    with pytest.raises(InputError, match="LIBSVM files have no ids"):
        ClientFile(tmp_path / "a.svm", "id")
    with pytest.raises(InputError, match="columns of LIBSVM files have no names"):
        ClientFile(tmp_path / "a.svm", None, ("x",))
    with pytest.raises(InputError, match="the labels of a LIBSVM file begin its lines; received the column 'y'"):
        join_tables(files, ("bank", "y"))
    with pytest.raises(InputError, match=r"the column of the labels in .*shop\.csv must be named"):
        join_tables({"shop": ClientFile(table, "id")}, ("shop", None))
