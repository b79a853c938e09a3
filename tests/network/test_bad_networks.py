"""Connections that break, are slow, and messages that come twice: the training is the same."""

import os
import random
import threading

import pytest

from tests.network.proxy import Proxy
from tests.network.rehearsal import Rehearsal
from tests.network.test_coming_back import SHORT, VIRTUAL
from verfedsv.network.link import Link

N_ROUNDS = int(os.environ.get("VERFEDSV_BAD_ROUNDS", "30"))
"""Rounds of a training; the soak has many more."""

NETWORKS = {
    "cut": {"chance": 0.01},
    "slow": {"delay": 0.003},
    "split": {"most": 40},
    "all": {"chance": 0.002, "delay": 0.001, "most": 400},
}
TRAININGS = {"synchronous": SHORT | {"rounds": N_ROUNDS}, "virtual": VIRTUAL | {"duration": N_ROUNDS / 10}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of trainings in which nothing happens, by mode."""
    found = {}
    for mode, training in TRAININGS.items():
        whole = Rehearsal(tmp_path_factory.mktemp(mode), training=training)
        whole.join()
        assert not whole.serve()
        whole.wait_for_parties()
        found[mode] = whole.records()
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mode", TRAININGS)
def test_a_bad_network_changes_nothing(tmp_path, undisturbed, monkeypatch, network, mode):
    """Cut connections are made again, and each message is carried out once."""
    monkeypatch.setattr("verfedsv.network.link._PAUSE", 0.02)
    whole = Rehearsal(tmp_path, training=TRAININGS[mode])
    proxy = Proxy(whole.port, **NETWORKS[network])
    whole.join(port=proxy.port)
    assert not whole.serve(timeout=20.0)
    whole.wait_for_parties()
    proxy.close()
    if "chance" in NETWORKS[network]:
        assert proxy.n_cut > 0
    assert whole.records() == undisturbed[mode]
    whole.check_uploads(is_repeated=False)


def test_repeated_messages_change_nothing(tmp_path, undisturbed, monkeypatch):
    """Requests that the hub sends twice, exchanges that are begun again, and connections that it ends meanwhile."""
    monkeypatch.setattr("verfedsv.network.link._PAUSE", 0.02)
    whole = Rehearsal(tmp_path, training=TRAININGS["synchronous"])
    rng, lock, n_repeated = random.Random(0), threading.Lock(), []  # noqa: S311
    original = Link.__init__

    def twice(self, address, credentials, hello, answer, **options):
        """Carry out a request twice, as if it had come twice, and send the last answer."""

        def repeated(message):
            with lock:
                is_repeated = rng.random() < 0.3
            if is_repeated:
                n_repeated.append(type(message))
                answer(message)
            return answer(message)

        original(self, address, credentials, hello, repeated, **options)

    monkeypatch.setattr(Link, "__init__", twice)
    whole.join()
    assert not whole.serve(disconnect_sometimes(whole, rng))
    whole.wait_for_parties()
    assert len({*n_repeated}) >= 4
    assert whole.records() == undisturbed["synchronous"]
    whole.check_uploads(is_repeated=False)


def disconnect_sometimes(whole, rng):
    """Return a tap of the server that asks twice, or ends a connection, before it waits for answers."""

    def tap(messages):
        if rng.random() < 0.3:
            whole.hub_exchange(messages, 0.0)
        if rng.random() < 0.1:
            whole.hub.disconnect(rng.choice(whole.clients), "a test")

    return tap
