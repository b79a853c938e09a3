"""A user's functions are recognised by what they compute."""

from tests.trainings import train
from tests.valuation.test_partitioned import Scaled
from verfedsv import Recorder, Transcript
from verfedsv.valuation.fingerprints import fingerprints
from verfedsv.valuation.trainings import RecordedTraining


def test_rounding_is_no_difference(tmp_path):
    """Another processor gives other last digits; what differs by more is another loss, and so is another constant."""
    training = train(n_samples=20, batch=10, n_epochs=1)
    with Recorder(tmp_path, training.labels, training.clients, Scaled()) as recorder:
        batch = training.batches[0]
        recorder.log(batch, {name: training.embeddings[0, m, batch] for m, name in enumerate(training.clients)})

    def digest(loss):
        return fingerprints(RecordedTraining(Transcript.open(tmp_path), loss), None)["loss"]

    class Bound(Scaled):
        smoothness = 0.26

    assert digest(Scaled(1 + 1e-13)) == digest(Scaled())
    assert len({digest(Scaled()), digest(Scaled(1.0001)), digest(Bound())}) == 3
