"""What clients keep is of one training, and on their machines: other trainings and the server do not get it."""

import shutil

import pytest

from tests.cli.inprocess import call
from tests.network.consortium import Consortium
from tests.network.rehearsal import Rehearsal
from tests.network.wiring import hello_of
from verfedsv.errors import InputError, RefusedError
from verfedsv.network.belonging import check_hello, training_of
from verfedsv.network.consortium import Consortium as Parties
from verfedsv.network.joining import Joining
from verfedsv.network.messages import PROTOCOL, End, Welcome
from verfedsv.network.predicting import NetworkPrediction
from verfedsv.network.rows_member import NewRowsMember
from verfedsv.network.serving import NetworkRun

SHORT = {"rounds": 6, "evaluate_every": 3, "batch_size": 240}


def trained(folder, rate):
    """Return a finished training."""
    whole = Rehearsal(folder, training=SHORT | {"rate": rate})
    whole.join()
    assert not whole.serve(timeout=60.0), (whole.log, {name: party.log for name, party in whole.parties.items()})
    whole.wait_for_parties()
    return whole


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two finished trainings of the same clients, with the same number of rounds."""
    return trained(tmp_path_factory.mktemp("a"), 0.2), trained(tmp_path_factory.mktemp("b"), 0.01)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def welcome_of(training):
    return Welcome("shop", 0, 0, PROTOCOL, "0", "shop", 0.0, "training of bank, telco, shop", training)


def refusal(run, **options):
    """Return what a client is told by the server of a run."""
    port = run.open(lambda _: None, None)
    try:
        joining = Joining(
            f"127.0.0.1:{port}", options.pop("features", None), "id", name="shop", patience=5.0, **options
        )
        with pytest.raises(RefusedError) as raised:
            joining.run(print, print)
    finally:
        run.close(End("", 0, 0, "over", is_finished=True))
    return str(raised.value)


def test_a_second_training_does_not_get_the_folder_of_the_first(both, tmp_path):
    """It is refused before anything in it changes, and says what to do; the server says who was refused."""
    before = content(both[0].folder / "of-shop")
    shutil.copytree(both[0].folder / "of-shop", tmp_path / "of-shop")
    second = Consortium(tmp_path, ("shop",), training=SHORT)
    run, log = NetworkRun.of_file(second.config), []
    run.notify = log.append
    told = refusal(run, features=both[0].folder / "shop.csv", folder=tmp_path / "of-shop", aligned=True)
    assert "the folder of 'shop' holds the model of another training" in told
    assert "--folder OTHER" in told
    assert any("refused: the folder of 'shop'" in line for line in log)
    assert content(tmp_path / "of-shop") == before


def test_the_client_looks_for_itself(both):
    """At the first message of the server; that of its own training is let in, as is any if there is no model yet."""
    first, second = both
    own, other = (training_of(whole.folder / "of-shop") for whole in both)
    assert own == (first.run / "identity.txt").read_text()
    assert other == (second.run / "identity.txt").read_text() != own
    member = NewRowsMember("shop", first.folder / "shop.csv", "id", first.folder / "of-shop", print)
    try:
        assert member.hello().training == own
        member.welcome(welcome_of(own))
        with pytest.raises(InputError, match=r"of-shop holds the model of another training.*--folder OTHER"):
            member.welcome(welcome_of(other))
    finally:
        member.close()
    check_hello(hello_of("shop"), own)
    with pytest.raises(InputError, match="another training"):
        check_hello(hello_of("shop", training=other), own)


def test_a_folder_that_does_not_say_is_of_another_training(both, tmp_path):
    """Such as one of an earlier version; without a model, it is nobody's."""
    shutil.copytree(both[0].folder / "of-shop", tmp_path / "shop")
    (tmp_path / "shop" / "training.txt").unlink()
    assert training_of(tmp_path / "shop") == "unknown"
    for path in (tmp_path / "shop").glob("client-*"):
        path.unlink()
    assert training_of(tmp_path / "shop") == ""


def test_predictions_refuse_the_model_of_another_training(both):
    """Of as many rounds: only the name of the training tells."""
    first, second = both
    run = NetworkPrediction.of_file(first.config)
    run.prepare((), first.folder / "bank.csv", "id")
    told = refusal(run, folder=second.folder / "of-shop", predict=second.folder / "shop.csv")
    assert "holds the model of another training" in told


def test_predictions_need_to_know_the_training(both, tmp_path):
    """The run says so if its name is gone."""
    run = NetworkPrediction.of_file(both[0].config)
    kept = (both[0].run / "identity.txt").rename(tmp_path / "kept")
    try:
        with pytest.raises(InputError, match=r"identity\.txt is gone"):
            run.prepare((), both[0].folder / "bank.csv", "id")
    finally:
        kept.rename(both[0].run / "identity.txt")


def test_the_server_does_not_have_the_models_of_others(both, tmp_path):
    """It says where they are, and how to predict with them; nothing is damaged."""
    run, bank = both[0].run, both[0].folder / "bank.csv"
    commands = [["model", run, "--client", "telco", "-o", tmp_path / "telco.npz"]]
    commands += [["predict", run, "--features", f"telco={bank}", "-o", tmp_path / "predictions.csv"]]
    for command in commands:
        done = call(*command)
        assert done.returncode == 2
        assert "'telco' was on another machine, and its model is there, as model.npz" in done.stderr
        assert "verfedsv predict --serve" in done.stderr
        assert "damaged" not in done.stderr
        assert "elete" not in done.stderr


def test_a_client_says_that_nothing_was_predicted(both, monkeypatch):
    """If the server ends before; its exit code is that of a missing party."""

    class Ended:
        def __init__(self, *_, **__):
            pass

        def run(self):
            return End("", 0, 0, "the server stopped", is_finished=False)

    monkeypatch.setattr("verfedsv.network.joining.Link", Ended)
    own = ["--predict", both[0].folder / "shop.csv", "--folder", both[0].folder / "of-shop", "--name", "shop"]
    done = call("join", "127.0.0.1:1", *own, "--insecure")
    assert done.returncode == 3
    assert "error: no predictions: the server stopped" in done.stderr


def test_up_says_that_a_run_is_gone_whose_clients_are_there(both):
    """Which would be refused by the server of a new one."""
    run = NetworkRun.of_file(both[0].config)
    shutil.copytree(both[0].folder / "of-shop", run.private / "shop")
    Parties(both[0].config, run)._check_folders()
    other = NetworkRun.of_file(both[1].config)
    shutil.copytree(both[0].folder / "of-shop", other.private / "shop")
    with pytest.raises(InputError, match=r"models of clients of a run that is not in .*: put that back, or delete"):
        Parties(both[1].config, other)._check_folders()


def test_predictions_take_the_passphrase_from_a_file(both, tmp_path, monkeypatch):
    """As serve and join do."""
    named = []
    monkeypatch.setattr("verfedsv.cli.predict.existing_passphrase", named.append)
    options = ["--serve", both[0].config, "--passphrase-file", tmp_path / "secret", "-o", tmp_path / "p.csv"]
    assert "--serve needs --ids" in call("predict", both[0].run, *options).stderr
    assert named == [tmp_path / "secret"]


def test_the_doctor_sees_a_folder_of_another_training(both):
    """Before the day, and with what to do; that of the training is all right."""
    run = NetworkRun.of_file(both[0].config)
    address = f"127.0.0.1:{run.open(lambda _: None, None)}"
    try:
        options = ["--name", "shop", "--insecure", "--features", both[0].folder / "shop.csv", "--folder"]
        own, other = (call("doctor", address, *options, whole.folder / "of-shop") for whole in both)
    finally:
        run.close(End("", 0, 0, "over", is_finished=True))
    assert (own.returncode, other.returncode) == (0, 1), own.stdout
    assert "bad  training" in other.stdout
    assert "--folder OTHER" in other.stdout
