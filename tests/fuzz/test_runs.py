"""Files of a run as others might leave them: reading them ends in a result or in an error of our own."""

import gzip
import json
import warnings
from contextlib import suppress
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.fuzz.mutations import count_of_inputs, mutations_of_bytes, mutations_of_json, mutations_of_toml
from verfedsv.data import ClientData, ClientFile, VerticalData, join_tables, prepare, split_features
from verfedsv.data.libsvm import read_samples
from verfedsv.errors import InputError, VerfedsvError
from verfedsv.federation import Rate, Training
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.messages import Gradients, Predict, Refusal, Save
from verfedsv.federation.predictions import Predictor
from verfedsv.network.wire import answer_from_bytes, request_from_bytes, to_bytes
from verfedsv.runs import EXAMPLE, Run
from verfedsv.runs.extent import planned_rounds
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.metrics import cut_metrics, read_metrics

FILES = """[data]
label = "y"
label_client = "bank"
classes = 2
test = 0.2
[[client]]
name = "bank"
file = "bank.csv"
columns = ["age", "city"]
[[client]]
name = "copy"
copy_of = "bank"
noise = 0.5
period = 0.02
[model]
kind = "perceptron"
hidden = 8
[training]
mode = "asynchronous"
batch_size = 10
rate = 0.5
duration = 2.0
stamp_every = 0.05
[valuation]
rank = 3
tolerance = 0.01
[output]
folder = "out"
"""


@pytest.mark.parametrize("text", [FILES, EXAMPLE], ids=["files", "example"])
def test_configurations(tmp_path, text):
    """Whatever is in one, it is read or refused; what is read has a plan."""
    path = tmp_path / "config.toml"
    n_read = 0
    for content in islice(mutations_of_toml(text.encode()), count_of_inputs(400)):
        path.write_bytes(content)
        with suppress(VerfedsvError):
            Run.of_file(path)
            config = RunFolder(tmp_path).config()
            planned_rounds(config.training, 1000)
            n_read += 1
    assert n_read > 0


@pytest.mark.parametrize("name", ["bank.csv", "bank.parquet"])
def test_files_of_clients(tmp_path, name):
    """Joined and prepared, or refused."""
    table = pa.table(
        {
            "id": range(40),
            "y": ["yes", "no"] * 20,
            "age": [*range(39), None],
            "city": ["north", None, "south", "west"] * 10,
            "part": [0.5, -1e10, 1e-300, 2.0] * 10,
        }
    )
    path = tmp_path / name
    pa.csv.write_csv(table, path) if name.endswith("csv") else pa.parquet.write_table(table, path)
    content, n_read = path.read_bytes(), 0
    for changed in islice(mutations_of_bytes(content), count_of_inputs(300)):
        path.write_bytes(changed)
        with suppress(VerfedsvError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers that overflow when they are scaled
            data = join_tables({"bank": ClientFile(path, "id")}, ("bank", "y"))
            for client in data.clients:
                prepare(client, "standardise", ~data.is_test)
            n_read += 1
    assert n_read > 0


@pytest.mark.parametrize("name", ["mine.svm", "mine.svm.gz"])
def test_sparse_files(tmp_path, name):
    """Read and prepared, or refused."""
    path, n_read = tmp_path / name, 0
    content = b"".join(b"%d %d:0.5 12:-1e3 # row\n" % (k % 2, 1 + k % 9) for k in range(20))
    content = gzip.compress(content) if name.endswith("gz") else content
    for changed in islice(mutations_of_bytes(content), count_of_inputs(200)):
        path.write_bytes(changed)
        with suppress(VerfedsvError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers that overflow when they are scaled
            samples = read_samples(path, loss="squared")
            if samples.features.shape[1] < 10**6:  # more take memory, which is not what is tested
                for client in split_features(samples, 1, test=0.0).clients:
                    prepare(client, "standardise", np.ones(len(client), bool))
            n_read += 1
    assert n_read > 0


def test_checkpoints(tmp_path):
    """Read and taken up, or refused."""
    rng = np.random.default_rng(0)
    clients = tuple(ClientData(name, rng.normal(size=(8, 3))) for name in ("bank", "telco"))
    data = VerticalData(clients, np.arange(8) % 2, 2, np.zeros(8, bool))
    training = Training.in_process(data, rate=Rate(0.5), intercept=True, checkpoints=tmp_path)
    training.save({"live": np.zeros(2)})
    for path in (tmp_path / "server.npz", tmp_path / "client-1-0.npz"):
        content, n_read = path.read_bytes(), 0
        for changed in islice(mutations_of_bytes(content), count_of_inputs(200)):
            path.write_bytes(changed)
            with suppress(VerfedsvError), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of names that are in an archive twice
                n_read += training.restore({"live": np.zeros(2)}) is not None
        path.write_bytes(content)
        assert n_read > 0


def test_checkpoints_for_predictions(tmp_path):
    """Read, or refused; what is read can predict."""
    rng = np.random.default_rng(0)
    text = np.array([["north"], [None]] * 4, object)
    data = VerticalData((ClientData("bank", rng.normal(size=(8, 3)), text),), np.arange(8) % 2, 2, np.zeros(8, bool))
    training = Training.in_process(data, rate=Rate(0.5), intercept=True, checkpoints=tmp_path)
    training.save({})

    def predict():
        model = ClientModel.read(tmp_path / "client-0-0.npz", "bank")
        predictor = Predictor.read(tmp_path / "server.npz")
        scores = predictor.predict({"bank": model.embed(data.clients[0])}, {"bank": np.arange(8)}, 8).scores
        return len(scores)

    for path in (tmp_path / "server.npz", tmp_path / "client-0-0.npz"):
        content, n_read = path.read_bytes(), 0
        for changed in islice(mutations_of_bytes(content), count_of_inputs(200)):
            path.write_bytes(changed)
            with suppress(VerfedsvError), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of names that are in an archive twice
                n_read += predict()
        path.write_bytes(content)
        assert n_read > 0


def test_messages():
    """Read, or refused; what is read can be written again."""
    samples = np.arange(3)
    messages = [
        Gradients("bank", 1, 2, samples, np.ones((3, 2))),
        Predict("bank", 1, 2, None),
        Save("bank", 4, 5, keep=3),
        Refusal("bank", 4, 5, "no"),
    ]
    n_read = 0
    for message in messages:
        read = answer_from_bytes if isinstance(message, Refusal) else request_from_bytes
        for changed in islice(mutations_of_bytes(to_bytes(message)), count_of_inputs(300)):
            with suppress(InputError):
                found = read(changed, "bank")
                assert to_bytes(read(to_bytes(found), "bank")) == to_bytes(found)
                n_read += 1
    assert n_read > 0


def test_metrics(tmp_path):
    """What cannot be read is left out."""
    path = tmp_path / "metrics.jsonl"
    figures = {"n_rounds": 20, "time": 1.0, "train_loss": 0.5, "train_accuracy": 0.8}
    line = json.dumps({**figures, "test_loss": None, "test_accuracy": 0.7}).encode()
    n_read = 0
    for number, changed in enumerate(islice(mutations_of_json(line), count_of_inputs(400))):
        path.write_bytes(line + b"\n" + changed + b"\n" + line.replace(b"20", b"40"))
        known = read_metrics(path)
        if number % 20 == 0:  # written to the disk, which takes its time
            cut_metrics(path, 20)
            assert 1 <= len(read_metrics(path)) <= len(known)
        n_read += len(known) == 3
    assert n_read > 0
