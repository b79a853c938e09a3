import numpy as np
import pytest

from experiments.lab import Settings, build, split, train_asynchronously, train_synchronously
from tests.games import Game, values_by_definition
from verfedsv.data import VerticalData, take_rows
from verfedsv.federation import SynchronousSchedule, synchronous_rounds
from verfedsv.transcript import Transcript, Upload

SETTINGS = Settings(
    clients=3, batch_size=40, rate=0.5, rounds=6, duration=0.08, scale="standardise", intercept=True, seeds=1
)


@pytest.fixture(scope="module")
def data() -> VerticalData:
    """A hundred samples of Adult, of three clients."""
    return take_rows(split("adult", SETTINGS), np.arange(100))


def test_the_truth_is_the_definition(data):
    """Values from embeddings of all samples are those of games built by hand, including the server's intercept."""
    trained = train_synchronously(data, SETTINGS, with_truth=True)
    training = build(data, SETTINGS)

    def embed():
        return training.evaluate().embeddings[:, :, 0]

    games, previous, current = [], np.zeros((4, 100)), np.concatenate([embed(), np.zeros((1, 100))])
    for _ in synchronous_rounds(training, SynchronousSchedule(40, 6)):
        games.append(Game(previous, current, data.labels, "logistic"))
        intercept = np.full((1, 100), training.server.state()["intercept"][0])
        previous, current = current, np.concatenate([embed(), intercept])
    expected = np.mean([values_by_definition(game) for game in games], axis=0)
    np.testing.assert_allclose(trained.truth, expected[:3], atol=1e-14)
    assert expected[3] != 0


def test_full_batches_are_valued_as_the_truth(data):
    """Nothing is completed, so `value` and the truth are the same."""
    trained = train_synchronously(data, SETTINGS.but(batch_size=100), with_truth=True)
    np.testing.assert_allclose(trained.value(method="exact").values, trained.truth, atol=1e-14)


def test_slow_clients_upload_less(data):
    """The last clients have a multiple of the period."""
    trained = train_asynchronously(data, SETTINGS, [2, 4])
    uploads = [record.client for record in Transcript.open(trained.path) if isinstance(record, Upload)]
    assert [uploads.count(name) for name in data.names] == [8, 4, 2]


def test_the_folder_goes_with_the_training(data):
    """Nothing is left on disk."""
    trained = train_synchronously(data, SETTINGS)
    path = trained.path
    assert path.exists()
    del trained
    assert not path.exists()


def test_training_rows_come_first_and_test_rows_are_others():
    """Rows are drawn once: the same for any number of clients."""
    chosen = [split("adult", SETTINGS.but(train=300, test=50, clients=n)) for n in (3, 8)]
    assert chosen[0].is_test.tolist() == [False] * 300 + [True] * 50
    np.testing.assert_array_equal(chosen[0].labels, chosen[1].labels)
    whole = split("adult", SETTINGS)
    assert not whole.is_test.any()
    assert len(whole.labels) == 48_842


def test_variants_change_settings_and_are_checked():
    """The settings themselves have an empty name; a misspelt change is an error."""
    settings = SETTINGS.but(variants={"more": {"clients": 5}})
    assert {name: each.clients for name, each in settings.with_variants().items()} == {"": 3, "more": 5}
    with pytest.raises(ValueError, match="client_count"):
        SETTINGS.but(variants={"more": {"client_count": 5}}).with_variants()
