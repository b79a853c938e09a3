"""What clients claim in an alignment, and disks without room."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from verfedsv.alignment import Party, make_ids
from verfedsv.errors import InputError
from verfedsv.federation.messages import Refusal
from verfedsv.network import messages as net
from verfedsv.network.aligning import Blinding, answer_for
from verfedsv.network.common_ids import CommonIds

IDS = make_ids([str(number) for number in range(20)])


class Telco:
    """A hub whose only client says, from one question to the next, that it has so many ids."""

    def __init__(self, folder, *claims):
        self._party, self._claims, self.asked = Party("telco", IDS, folder), [*claims], []

    def connected(self):
        return {"telco": SimpleNamespace(session="one", alignment="")}

    def exchange(self, requests, _):
        (message,) = requests
        self.asked.append(type(message))
        try:
            answer = answer_for(self._party, message)
        except InputError as error:
            return [Refusal("telco", 0, message.sequence, str(error))]
        if isinstance(answer, net.Introduction) and self._claims:
            answer.numbers[0] = self._claims.pop(0)
        return [answer]


def find(folder, hub):
    common = CommonIds(hub, "bank", IDS, folder, ["telco"], rule="once", notify=[].append, check=lambda: None)
    try:
        common.find(None, lambda: False, is_begun=False)
    finally:
        common.party.close()
    return common.aligned


def test_a_client_says_once_how_many_ids_it_has(tmp_path):
    """What it says then is what is checked: a later answer cannot raise it."""
    hub = Telco(tmp_path, 20, 60_000_000)
    assert sorted(find(tmp_path, hub).rows) == [*range(20)]
    assert hub.asked.count(net.Introduce) == 1


@pytest.mark.parametrize("claim", [20_000_001, 60_000_000])
def test_too_many_ids_are_not_believed(tmp_path, claim):
    """Nor is anything written for them."""
    hub = Telco(tmp_path, claim)
    with pytest.raises(InputError, match=r"'telco' says that it has .* at most 20,000,000 are believed"):
        find(tmp_path, hub)
    assert net.StartAlignment not in hub.asked
    assert not [*tmp_path.iterdir()]


def test_a_server_without_room_does_not_begin(tmp_path, monkeypatch):
    """It needs 81 bytes for each id of all parties, and leaves half of its disk free."""
    for free, works in ((2 * 40 * 81, True), (2 * 40 * 81 - 2, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        if works:
            assert find(tmp_path, Telco(tmp_path)).n_common == 20
        else:
            with pytest.raises(InputError, match="an alignment of 40 ids would take more than half of the free disk"):
                find(tmp_path, Telco(tmp_path))


def test_a_full_disk_ends_the_alignment_with_a_reason(tmp_path, monkeypatch):
    """That of a client in a refusal, that of the server in an error."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hub = Telco(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(hub._party, "blind", fail)
        with pytest.raises(InputError, match="a file of the alignment cannot be used: No space left"):
            find(tmp_path, hub)
    assert not [*tmp_path.iterdir()]
    with monkeypatch.context() as patch:
        patch.setattr("verfedsv.alignment.coordinator.Intersection", fail)
        with pytest.raises(InputError, match=r"ids cannot be aligned in .*: No space left"):
            find(tmp_path, hub)
    assert sorted(find(tmp_path, hub).rows) == [*range(20)]


def test_a_client_sees_how_far_an_alignment_is(tmp_path):
    """Its own points and those of others count once each, up to the end; a new alignment begins anew."""
    seen, blinding = [], Blinding()

    class Watched(Telco):
        def exchange(self, requests, timeout):
            answers = super().exchange(requests, timeout)
            assert blinding.count(requests[0], answers[0])
            seen.append((blinding.n_done, blinding.n_all))
            return answers

    find(tmp_path, Watched(tmp_path))
    assert sorted(seen) == seen
    assert {(0, 40), (20, 40), (40, 40)} <= {*seen}
    assert not blinding.count(net.Deliver("telco", 0, 1, "value.json", b""), None)
