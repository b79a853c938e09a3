"""What every transport must do. A new one is held to it by one more line in TRANSPORTS of test_transports.py.

`connect(clients)` returns a transport to these clients. What is not answered is sent again, up to N_TRIES times.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.textbook import make_data, records_of
from verfedsv import InputError, Recorder
from verfedsv.federation import (
    AsynchronousSchedule,
    Client,
    Linear,
    Rate,
    Server,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.messages import Done, Embed, Embeddings, Gradients, Predict, Prediction, Refusal, Restore, Save

N_TRIES = 60
"""Of a message: one that is lost with probability 0.3 both ways fails in so many tries once in 10^17."""


def make_clients(n_clients=3, **options):
    """Return the clients of a training, and its data."""
    data = make_data(n_clients)
    clients = [
        Client.from_columns(columns, data.is_test, width=1, rate=Rate(0.5), **options) for columns in data.clients
    ]
    return clients, data


def make_server(data, **options):
    """Return the server of a training."""
    labels = data.labels[np.argsort(data.is_test, kind="stable")]
    return Server(labels, data.names, 1, n_train=int((~data.is_test).sum()), **options)


def ask(transport, request):
    """Send a request until it is answered, and return the answer."""
    for _ in range(N_TRIES):
        for answer in transport.exchange([request], 5.0):
            if (answer.client, answer.sequence) == (request.client, request.sequence):
                return answer
    raise AssertionError(f"no answer to {request}")


def weights(client):
    return client.state()["weights"].copy()


class Conformance:
    """The cases; subclasses define `connect`."""

    def connect(self, clients):
        """Return a transport to some clients."""
        raise NotImplementedError

    def test_answers_are_of_their_requests(self):
        """An answer has the client, round and sequence number of its request, and the right kind."""
        clients, _ = make_clients()
        transport = self.connect(clients)
        samples = np.arange(10)
        for request, kind in (
            (Embed("client 2", 1, 7, samples), Embeddings),
            (Gradients("client 2", 1, 8, samples, np.ones((10, 1))), Done),
            (Predict("client 2", 1, 9, None), Prediction),
            (Predict("client 2", 1, 10, samples), Prediction),
            (Save("client 2", 1, 11, 0), Refusal),
        ):
            answer = ask(transport, request)
            assert type(answer) is kind
            assert (answer.client, answer.round, answer.sequence) == (request.client, request.round, request.sequence)

    def test_numbers_arrive_as_they_are(self):
        """To the last bit, both ways, the smallest and the largest included."""
        clients, _ = make_clients(1)
        transport = self.connect(clients)
        samples, values = np.array([5, 3, 99]), np.array([[5e-324], [-1.7e308], [1 / 3]])
        direct = Client("client 1", clients[0]._features, Linear(4, 1), Rate(0.5))
        for request in (Embed("client 1", 1, 1, samples), Gradients("client 1", 1, 2, samples, values / 1e10)):
            ask(transport, request)
            direct.answer(request)
        np.testing.assert_array_equal(weights(clients[0]), weights(direct))
        predicted = ask(transport, Predict("client 1", 1, 3, None)).embeddings
        np.testing.assert_array_equal(predicted, direct.answer(Predict("client 1", 1, 3, None)).embeddings)
        assert (predicted.dtype, predicted.shape) == (np.float64, (120, 1))

    def test_messages_to_a_client_arrive_in_their_order(self):
        """A message that arrives after a later one is refused and changes nothing."""
        clients, _ = make_clients(1)
        transport = self.connect(clients)
        samples = np.arange(4)
        ask(transport, Embed("client 1", 1, 5, samples))
        ask(transport, Gradients("client 1", 1, 6, samples, np.ones((4, 1))))
        before = weights(clients[0])
        for request in (Embed("client 1", 1, 5, samples), Gradients("client 1", 1, 4, samples, np.ones((4, 1)))):
            assert "comes after message 6" in ask(transport, request).reason
        np.testing.assert_array_equal(weights(clients[0]), before)

    def test_a_repeated_request_is_carried_out_once(self):
        """It gets the same answer, even if the client would now answer something else."""
        clients, _ = make_clients(1)
        transport = self.connect(clients)
        samples = np.arange(4)
        embed = Embed("client 1", 1, 1, samples)
        first = ask(transport, embed)
        np.testing.assert_array_equal(ask(transport, embed).embeddings, first.embeddings)
        step = Gradients("client 1", 1, 2, samples, np.ones((4, 1)))
        ask(transport, step)
        once = weights(clients[0])
        for _ in range(3):
            assert isinstance(ask(transport, step), Done)
        np.testing.assert_array_equal(weights(clients[0]), once)
        assert (once != 0).any()
        assert clients[0].state()["n_steps"] == 1

    def test_an_unknown_client(self):
        """It is an error of the transport, and no other client gets a message."""
        clients, _ = make_clients(1)
        transport = self.connect(clients)
        with pytest.raises(InputError, match="unknown client 'nobody'"):
            ask(transport, Predict("nobody", 1, 1, None))

    @pytest.mark.parametrize(
        ("request_of", "says"),
        [
            (lambda samples: Embed("client 1", 1, 3, samples + 1000), "samples must be from 0 to 119; received 1000"),
            (lambda samples: Embed("client 1", 1, 3, samples - 1), "samples must be from 0 to 119; received -1"),
            (lambda samples: Embed("client 1", 1, 3, samples[:, None]), "samples must be a list of whole numbers"),
            (lambda samples: Embed("client 1", 1, 3, samples / 2), "samples must be a list of whole numbers"),
            (lambda samples: Predict("client 1", 1, 3, samples[:0]), "samples must be a list of whole numbers"),
            (lambda samples: Gradients("client 1", 1, 3, samples, np.ones((3, 1))), "gradients must be finite numbers"),
            (lambda samples: Gradients("client 1", 1, 3, samples, np.ones(4)), "gradients must be finite numbers"),
            (lambda samples: Gradients("client 1", 1, 3, samples, np.ones((4, 2))), "gradients must be finite"),
            (lambda samples: Gradients("client 1", 1, 3, samples, np.full((4, 1), np.nan)), "gradients must be finite"),
            (lambda samples: Gradients("client 1", 2, 3, samples, np.ones((4, 1))), "gradients for round 2, but no"),
            (lambda samples: Restore("client 1", 1, 3), "was given no file for checkpoints"),  # noqa: ARG005
        ],
    )
    def test_what_a_client_cannot_do_is_refused(self, request_of, says):
        """Wrong shapes, samples, rounds and numbers: the refusal says why, and nothing changes."""
        clients, _ = make_clients(1)
        transport = self.connect(clients)
        samples = np.arange(4)
        ask(transport, Embed("client 1", 1, 1, samples))
        answer = ask(transport, request_of(samples))
        assert isinstance(answer, Refusal)
        assert says in answer.reason
        assert not weights(clients[0]).any()
        assert isinstance(ask(transport, Gradients("client 1", 1, 4, samples, np.ones((4, 1)))), Done)
        assert weights(clients[0]).any()

    def test_requests_to_several_clients_are_answered_by_each(self):
        """In any order."""
        clients, _ = make_clients(3)
        transport = self.connect(clients)
        requests = {name: Predict(name, 1, 4 + m, None) for m, name in enumerate(c.name for c in clients)}
        answers = {}
        for _ in range(N_TRIES):
            left = [request for name, request in requests.items() if name not in answers]
            answers |= {answer.client: answer for answer in transport.exchange(left, 5.0)} if left else {}
        assert {name: answer.sequence for name, answer in answers.items()} == {
            f"client {m + 1}": 4 + m for m in range(3)
        }

    def test_clients_may_be_asked_by_several_threads(self):
        """One thread per client, as on the real clock."""
        clients, _ = make_clients(3)
        transport, answers = self.connect(clients), {}

        def drive(name):
            for sequence in range(1, 30):
                answers[name, sequence] = ask(transport, Predict(name, 0, sequence, np.arange(sequence)))

        threads = [threading.Thread(target=drive, args=(client.name,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 3 * 29
        for (name, sequence), answer in answers.items():
            assert (answer.client, answer.sequence, len(answer.embeddings)) == (name, sequence, sequence)

    def test_a_step_can_come_with_the_next_request(self):
        """The client takes it once, and then embeds: as if both had come one after the other."""
        clients, _ = make_clients(1)
        transport, samples = self.connect(clients), np.arange(4)
        direct = Client("client 1", clients[0]._features, Linear(4, 1), Rate(0.5))
        step = Gradients("client 1", 1, 2, None, np.array([[1.0], [2.0], [-3.0], [0.5]]))
        ask(transport, Embed("client 1", 1, 1, samples))
        for refused in (
            Embed("client 1", 2, 3, samples + 1000, step),
            Embed("client 1", 2, 3, samples, replace(step, round=2)),
            Embed("client 1", 2, 3, samples, replace(step, values=np.full((4, 1), np.inf))),
        ):
            assert isinstance(ask(transport, refused), Refusal)
            assert not weights(clients[0]).any()
        both = Embed("client 1", 2, 4, samples, step)
        found = [ask(transport, both).embeddings for _ in range(3)]
        for request in (Embed("client 1", 1, 1, samples), step, Embed("client 1", 2, 4, samples)):
            expected = direct.answer(request)
        for each in found:
            np.testing.assert_array_equal(each, expected.embeddings)
        np.testing.assert_array_equal(weights(clients[0]), weights(direct))
        assert clients[0].state()["n_steps"] == 1

    @pytest.mark.parametrize("defers_steps", [False, True])
    @pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
    @pytest.mark.parametrize("intercept", [None, Rate(0.5)])
    def test_a_training_is_that_of_one_process(self, mode, intercept, defers_steps):
        """Transcript, evaluation, and models are the same to the last bit, whatever the transport loses or repeats."""
        found = []
        for is_direct in (True, False):
            clients, data = make_clients()
            recorder = Recorder(None, data.labels[~data.is_test], data.names)
            server = make_server(data, intercept=intercept)
            server.record(recorder)
            if is_direct:
                whole = Training.in_process(data, rate=Rate(0.5), intercept=intercept is not None, recorder=recorder)
            else:
                connection = self.connect(clients)
                whole = Training(server, connection, timeout=5.0, n_tries=N_TRIES, defers_steps=defers_steps)
            if mode == "synchronous":
                rounds = synchronous_rounds(whole, SynchronousSchedule(30, 12))
            else:
                schedule = AsynchronousSchedule([0.01, 0.02, 0.015], [30] * 3, 0.03, 6)
                rounds = asynchronous_rounds(whole, schedule, VirtualClock())
            figures = [whole.evaluate().metrics() for number in rounds if number % 3 == 0]
            found.append((records_of(recorder), figures, whole.predict(np.arange(120)).tolist()))
        assert found[0] == found[1]

    def test_checkpoints(self, tmp_path):
        """Each side writes and restores its own, and the training continues to the same records."""
        clients, data = make_clients()
        recorder = Recorder(None, data.labels[~data.is_test], data.names)
        schedule = SynchronousSchedule(30, 8)
        for _ in synchronous_rounds(Training.in_process(data, rate=Rate(0.5), recorder=recorder), schedule):
            pass
        other = Recorder(None, data.labels[~data.is_test], data.names)
        for last in (3, 8):
            clients = [
                Client.from_columns(columns, data.is_test, width=1, rate=Rate(0.5), checkpoint=tmp_path / f"client-{m}")
                for m, columns in enumerate(data.clients)
            ]
            server = make_server(data, checkpoint=tmp_path / "server.npz")
            training = Training(server, self.connect(clients), timeout=5.0, n_tries=N_TRIES, defers_steps=last == 3)
            kept = training.restore({"extra": np.zeros(2)})
            assert kept is None if last == 3 else kept["extra"].tolist() == [1.0, 2.0]
            server.record(other)
            for n_rounds in synchronous_rounds(training, schedule):
                if n_rounds == last:
                    break
            training.save({"extra": np.array([1.0, 2.0])})
        assert records_of(other) == records_of(recorder)
