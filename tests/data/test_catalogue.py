import bz2
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_svmlight_file

from verfedsv import InputError
from verfedsv.data.catalogue import CATALOGUE, FOLDER_VARIABLE, fetch, get_data_set, load, locate, read
from verfedsv.errors import DataError


def needs(name):
    """Return a mark that skips a test if a data set is not on this machine."""
    there = locate(CATALOGUE[name]) is not None
    return pytest.mark.skipif(not there, reason=f"{name} is not on this machine; set ${FOLDER_VARIABLE} to its folder")


def test_adult_is_in_the_package():
    """Labels and features are those of its two files, read by hand, the test part last."""
    samples = load("adult")
    texts = [bz2.decompress(path.read_bytes()).decode() for path in locate(CATALOGUE["adult"])]
    rows = [line.split() for text in texts for line in text.splitlines()]
    np.testing.assert_array_equal(samples.labels, [float(label) > 0 for label, *_ in rows])
    np.testing.assert_array_equal(
        samples.features.indices, [int(cell.split(":")[0]) - 1 for _, *cells in rows for cell in cells]
    )
    np.testing.assert_array_equal(np.diff(samples.features.indptr), [len(row) - 1 for row in rows])
    assert samples.n_test == 16_281
    assert samples.classes == ("-1", "1")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in CATALOGUE if name != "rcv1"])
def test_data_sets_have_the_sizes_that_the_catalogue_says(name):
    """Samples, features, classes."""
    entry, samples = CATALOGUE[name], load(name)
    assert samples.features.shape == (entry.n_samples, entry.n_features)
    assert samples.n_classes == entry.n_classes
    assert entry.n_classes == 1 or set(np.unique(samples.labels)) == set(range(entry.n_classes))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in CATALOGUE if CATALOGUE[name].sources]
)
def test_files_are_those_that_would_be_downloaded(name):
    """Their SHA-256, after decompression where the site has them uncompressed, is the pinned one."""
    known = CATALOGUE[name]
    for (source, digest), path in zip(known.sources.items(), locate(known), strict=True):
        content = path.read_bytes()
        if path.name != Path(source).name:
            content = bz2.decompress(content)
        assert hashlib.sha256(content).hexdigest() == digest


def test_diabetes_comes_with_scikit_learn(monkeypatch, tmp_path):
    """Amounts and unscaled features as scikit-learn has them, without files of its own or a network."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    samples, expected = load("diabetes"), load_diabetes(scaled=False)
    np.testing.assert_array_equal(samples.features.toarray(), expected.data)
    np.testing.assert_array_equal(samples.labels, expected.target)
    assert (samples.n_classes, samples.n_test) == (1, 0)
    assert list(CATALOGUE["diabetes"].attributes) == expected.feature_names
    assert fetch("diabetes") == locate(CATALOGUE["diabetes"])


def test_rcv1_is_read_from_a_file_of_its_form(tmp_path, monkeypatch):
    """Sparse rows with labels from 1, compressed, found in the folder of the environment variable."""
    lines = ["1 5:0.25 47236:0.5", "3 1:1.0", "2 7:0.125 9:0.5"]
    path = tmp_path / "rcv1_train.multiclass.bz2"
    path.write_bytes(bz2.compress("\n".join(lines).encode()))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    samples = load("rcv1")
    assert samples.features.shape == (3, 47_236)
    assert samples.features[0, 47_235] == 0.5
    assert samples.labels.tolist() == [0, 2, 1]
    assert samples.n_test == 0


def test_offline_without_the_files(tmp_path, monkeypatch):
    """The error says what to get, and where to put it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(
        DataError,
        match=r"cannot be downloaded.* Download https:.*/binary/w8a and https:.*/binary/w8a\.t on .*VERFEDSV_DATA",
    ):
        fetch("web")


def test_a_file_that_no_site_has(tmp_path, monkeypatch):
    """The error says what is in it, and tries no download."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(
        DataError, match=r"on no site; its file rcv1\.second-level\.bz2 has the documents .*VERFEDSV_DATA"
    ):
        fetch("rcv1-second-level")


@pytest.mark.parametrize("text", ["this is not\na data set\n", "1 3:1 4\n", "1 3:1\n3:1 7:1\n", "1 301:1\n", "1 0:1"])
def test_damaged_files(text, tmp_path):
    """They are named."""
    path = tmp_path / "w8a"
    path.write_text(text)
    with pytest.raises(DataError, match="'web' cannot be read from"):
        read(CATALOGUE["web"], [path])


def test_binary_features_are_those_that_scikit_learn_reads(tmp_path):
    """Of Adult, and of lines without features, with spaces at the end, or empty."""
    path = tmp_path / "binary"
    path.write_text("+1 1:1 300:1 \n-1\n\n-1 7:1\n")
    for file, data_set in (*((file, "adult") for file in fetch("adult")), (path, "web")):
        read_here = read(replace(CATALOGUE[data_set], sources={}), [file])
        features, labels = load_svmlight_file(str(file), n_features=CATALOGUE[data_set].n_features)
        assert (read_here.features != features).nnz == 0
        np.testing.assert_array_equal(read_here.labels, labels > 0)


def test_an_unknown_name():
    """The error lists the known ones."""
    with pytest.raises(
        InputError,
        match="unknown data set 'mnist'; allowed are adult, web, covtype, rcv1, rcv1-second-level, sector, letter, dia",
    ):
        load("mnist")


def test_capitals_do_not_matter():
    """Adult is adult."""
    assert get_data_set("Adult").name == "adult"


def test_the_folder_of_the_variable_comes_first(tmp_path, monkeypatch):
    """Before the user's cache."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for name in ("w8a", "w8a.t"):
        (tmp_path / name).write_text("")
    assert [Path(path).parent for path in locate(CATALOGUE["web"])] == [tmp_path, tmp_path]
    assert os.environ[FOLDER_VARIABLE] == str(tmp_path)
