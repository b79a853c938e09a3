import numpy as np
import pytest

from verfedsv.federation.messages import Embed, Save
from verfedsv.network.journal import Journal


def messages_of(journal):
    return [(type(message).__name__, message.sequence) for message in journal]


def test_messages_come_back_in_order(tmp_path):
    """After `begin`, only what it wrote and what came later."""
    journal = Journal(tmp_path / "journal", "a")
    journal.add(Embed("a", 1, 2, np.arange(3)))
    journal.begin(Save("a", 1, 3, -1))
    journal.add(Embed("a", 2, 4, np.arange(3)))
    assert messages_of(Journal(tmp_path / "journal", "a")) == [("Save", 3), ("Embed", 4)]


@pytest.mark.parametrize("n_lost", [1, 9, 30])
def test_what_follows_a_message_cut_short_is_not_lost(tmp_path, n_lost):
    """A kill in the middle of a write leaves a part of a message, which the next one replaces."""
    path = tmp_path / "journal"
    journal = Journal(path, "a")
    journal.add(Embed("a", 1, 2, np.arange(3)))
    journal.add(Embed("a", 2, 4, np.arange(3)))
    path.write_bytes(path.read_bytes()[:-n_lost])
    journal = Journal(path, "a")
    assert messages_of(journal) == [("Embed", 2)]
    journal.add(Embed("a", 2, 5, np.arange(3)))
    assert messages_of(Journal(path, "a")) == [("Embed", 2), ("Embed", 5)]


def test_what_a_failed_write_left_is_replaced(tmp_path):
    """As on a full disk, by the same process."""
    path = tmp_path / "journal"
    journal = Journal(path, "a")
    journal.add(Embed("a", 1, 2, np.arange(3)))
    with path.open("ab") as file:
        file.write(b"part of a message")
    journal.add(Embed("a", 2, 4, np.arange(3)))
    assert messages_of(Journal(path, "a")) == [("Embed", 2), ("Embed", 4)]
