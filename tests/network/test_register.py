import json
import threading
from datetime import UTC, datetime

import pytest

from tests.network.parties import DAY, authority_of, make, revoked_list
from verfedsv import InputError
from verfedsv.network.register import REGISTER, Entry, open_register
from verfedsv.network.revocations import parse_lists


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an empty register."""
    (tmp_path / REGISTER).touch()
    return tmp_path


def add(folder, *names):
    """Add certificates of these names to the register."""
    for name in names:
        with open_register(folder) as register, register.adding(Entry.of(make(name).says)):
            pass


def names_in(folder):
    """Return the names in a register."""
    with open_register(folder) as register:
        return [entry.name for entry in register.entries]


def test_entries_are_kept_as_lines_of_json(folder):
    """In the order in which they were added, with all that is needed to revoke them."""
    telco = make("telco Zürich").says
    with open_register(folder) as register, register.adding(Entry.of(telco)):
        pass
    add(folder, "bank")
    first, second = map(json.loads, (folder / REGISTER).read_text().splitlines())
    assert (first["name"], second["name"]) == ("telco Zürich", "bank")
    assert int(first["serial"], 16) == telco.serial
    with open_register(folder) as register:
        assert register.entries[0] == Entry.of(telco)


def test_an_entry_is_taken_back_if_its_certificate_is_not_written(folder):
    """However that fails."""
    add(folder, "bank")
    before = (folder / REGISTER).read_bytes()
    for end in (OSError, KeyboardInterrupt):
        with pytest.raises(end), open_register(folder) as register, register.adding(Entry.of(make("telco").says)):
            raise end
        assert (folder / REGISTER).read_bytes() == before


def test_what_a_killed_process_began_to_write_is_replaced(folder):
    """Its certificate was not written either."""
    add(folder, "bank")
    with (folder / REGISTER).open("ab") as file:
        file.write(b'{"name": "tel')
    assert names_in(folder) == ["bank"]
    add(folder, "shop")
    assert names_in(folder) == ["bank", "shop"]


def test_a_second_process_waits(folder):
    """Otherwise two certificates could be approved for one name at the same time."""
    other = threading.Thread(target=add, args=(folder, "second"))
    with open_register(folder) as register, register.adding(Entry.of(make("first").says)):
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join(10)
    assert names_in(folder) == ["first", "second"]


def test_an_entry_is_live_until_it_expires_or_is_revoked(tmp_path):
    """Both are seen at their time."""
    _, signer = authority_of(tmp_path / "ca")
    telco = make("telco", issuer=signer).says
    now = datetime.now(UTC)
    none, some = [], [telco.serial]
    lists = []
    for serials in (none, some):
        (tmp_path / "x.crl").write_bytes(revoked_list(signer, serials))
        lists += parse_lists(tmp_path / "x.crl")
    entry = Entry.of(telco)
    assert entry.is_live(lists[0], now)
    assert not entry.is_live(lists[0], now + 2 * DAY)
    assert not entry.is_live(lists[1], now)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.pop("serial"), "must be an object with"),
        (lambda entry: entry.update(more=1), "must be an object with"),
        (lambda entry: entry.update(serial="xyz"), "line 1 of .*approved.jsonl is damaged"),
        (lambda entry: entry.update(end="soon"), "is damaged"),
        (lambda entry: entry.update(end="2026-01-01"), "is damaged"),
        (lambda entry: entry.update(hosts=None), "is damaged"),
        (lambda entry: entry.update(hosts=[1]), "is damaged"),
        (lambda entry: entry.update(name=1), "is damaged"),
    ],
)
def test_a_damaged_register_is_refused(folder, change, message):
    """Rather than that one organisation gets two certificates."""
    add(folder, "bank")
    entry = json.loads((folder / REGISTER).read_text())
    change(entry)
    (folder / REGISTER).write_text(json.dumps(entry) + "\n")
    with pytest.raises(InputError, match=message):
        names_in(folder)


def test_a_missing_register_is_refused(tmp_path):
    """It is not taken for an empty one."""
    with pytest.raises(InputError, match=r"there is no .*approved.jsonl.*restore it from a backup"):
        names_in(tmp_path)
