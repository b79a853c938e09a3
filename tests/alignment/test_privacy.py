"""What parties see in an alignment is no more than docs/security.md says.

Without the key, a blinded point is a random one (the decisional Diffie-Hellman assumption). So all that a party can see
in points is which of them are equal, after it has taken out its own key.
"""

from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import rbcl

from tests.alignment.parties import Recording, aligned_ids
from verfedsv.alignment import Party, align, make_ids
from verfedsv.alignment.points import hash_ids, multiply, random_scalar
from verfedsv.alignment.shuffles import StoredArray, store_permutation

KEYS = {name: random_scalar() for name in "abc"}

COMMON = [f"c{number}" for number in range(6)]
WITH_B = [f"ab{number}" for number in range(20)]
"""Ids of a and b that c does not have."""
OWN = [f"a{number}" for number in range(20)]
SETS = {
    "a": [*OWN, *WITH_B, *COMMON],
    "b": [*COMMON, *WITH_B, *(f"b{number}" for number in range(9))],
    "c": [*COMMON, *OWN[:2], *(f"c-{number}" for number in range(9))],
}


class WithKey(Party):
    """Has the same key in all sessions."""

    def begin(self, session):
        super().begin(session)
        self._work.key = KEYS[self.name]


class Shuffling:
    """Stands in for secret permutations; those of a party are named by its folder, and the same each time."""

    def __init__(self, seed=0, swapped=(), is_on=True):
        self.seed, self.swapped, self.is_on = seed, swapped, is_on

    def __call__(self, path, n_rows, *_):
        party, name = path.parts[-3], path.stem
        stored = StoredArray(path, n_rows, np.uint32)
        order = np.arange(n_rows)
        if self.is_on:
            order = np.random.default_rng([self.seed, *party.encode(), *name.encode()]).permutation(n_rows)
        if self.swapped and (party, name) == ("b", "0"):  # the set of a, as b shuffles it
            first, second = self.swapped
            order[[first, second]] = order[[second, first]]
        stored.write(slice(None), order)
        return stored


def see(sets, folder, monkeypatch, shuffling):
    """Align, and return the calls that each party answered, and the order of the ids."""
    for module in ("party", "lists"):
        monkeypatch.setattr(f"verfedsv.alignment.{module}.store_permutation", shuffling or store_permutation)
    monkeypatch.setattr("verfedsv.alignment.coordinator.os", SimpleNamespace(urandom=bytes))  # the session is the same
    with ExitStack() as stack:
        parties = []
        for name, ids in sets.items():
            (folder / name).mkdir(parents=True)
            parties.append(Recording(stack.enter_context(WithKey(name, make_ids(ids), folder / name))))
        align(parties, part_size=16)
        return {party.name: sorted_calls(party.calls) for party in parties}, aligned_ids(parties[0].party)


def sorted_calls(calls):
    """Return calls in an order that does not depend on threads: by name, owner and part."""
    return sorted(calls, key=lambda call: [call[0], *map(str, call[1][:2])])


def blinded_by(calls, taker, owner):
    """Return the points of a set as a party passes them on."""
    return np.concatenate([answer for method, (whose, *_), answer in of(calls[taker], "blinded") if whose == owner])


def of(calls, method):
    return [call for call in calls if call[0] == method]


def test_the_server_cannot_link_its_ids(tmp_path, monkeypatch):
    """Which of its other ids b has: all found if nobody shuffles, and with shuffling no more than by guessing."""

    def attack(calls):
        # Positions of a's set, fully blinded, that are also in b's, taken for positions in a's own list.
        sets = {"a": blinded_by(calls, "c", "a"), "b": blinded_by(calls, "a", "b")}
        shared = {row.tobytes() for row in sets["b"]}
        return {SETS["a"][row] for row, point in enumerate(sets["a"]) if point.tobytes() in shared} - {*COMMON}

    calls, _ = see(SETS, tmp_path / "off", monkeypatch, Shuffling(is_on=False))
    assert attack(calls) == {*WITH_B}
    found = 0
    for seed in range(3):
        calls, _ = see(SETS, tmp_path / str(seed), monkeypatch, None)
        guessed = attack(calls)
        found += len(guessed & {*WITH_B})
    # 60 ids, each found with probability 0.43 or so: 26 are expected, 45 or more have a probability below 1e-6.
    assert found < 45


def server_view(sets, folder, monkeypatch, shuffling):
    """Return all that the server a sees, each point replaced by the number of the first one that equals it."""
    calls, order = see(sets, folder, monkeypatch, shuffling)
    without_own_key = rbcl.crypto_core_ristretto255_scalar_invert(KEYS["a"])
    numbers, view = {}, [order]

    def numbered(points, is_with_own_key):
        plain = multiply(points, without_own_key) if is_with_own_key else points
        return [numbers.setdefault(row.tobytes(), len(numbers)) for row in plain]

    own_points = hash_ids(make_ids(sets["a"]).values, b"")
    view.append(numbered(own_points, is_with_own_key=False))
    for name in "abc":
        for method, arguments, answer in calls[name]:
            if method == "own_points":
                view.append([name, method, *arguments, numbered(answer, name == "a")])
            elif method == "blinded":
                is_with_own_key = (arguments[0], name) != ("b", "c")  # b's set passes c before a
                view.append([name, method, *arguments, numbered(answer, is_with_own_key)])
            elif method in ("open", "collect"):
                view.append([name, method, *map(str, arguments), str(answer)])
            elif method in ("introduce", "begin_opening", "finish"):
                view.append([name, method, str(arguments), str(answer)])
    return view


def test_the_server_sees_only_counts_of_other_ids(tmp_path, monkeypatch):
    """Its view is the same, whichever of its other ids b has, for some permutation of b's: all are equally likely.

    The two differ in which of two ids of a is in b's set. The spellings of both are the same.
    """
    missing, present = SETS["a"].index("a19"), SETS["a"].index("ab3")
    changed = {**SETS, "b": ["a19" if name == "ab3" else name for name in SETS["b"]]}
    first = server_view(SETS, tmp_path / "first", monkeypatch, Shuffling(1))
    # Positions in the list that a sends to b, which a shuffled.
    monkeypatch.undo()
    own = Shuffling(1)(make_folder(tmp_path / "a" / "x") / "own.origin", len(SETS["a"])).read(slice(None)).tolist()
    swapped = own.index(missing), own.index(present)
    again = server_view(changed, tmp_path / "same", monkeypatch, Shuffling(1))
    assert again != first
    again = server_view(changed, tmp_path / "again", monkeypatch, Shuffling(1, swapped))
    assert again == first


def make_folder(path):
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("name", ["b", "c"])
def test_a_client_sees_only_sizes(tmp_path, monkeypatch, name):
    """All points that it receives differ, also those of the same id, and its own are never among them."""
    calls, order = see(SETS, tmp_path, monkeypatch, None)
    received = np.concatenate([points for _, (_, _, points), _ in of(calls[name], "blind")])
    sizes = {owner: len(ids) for owner, ids in SETS.items()}
    assert len(received) == sum(sizes.values()) - sizes[name]
    assert len(np.unique(received, axis=0)) == len(received)
    own = np.concatenate([answer for _, _, answer in of(calls[name], "own_points")])
    assert not {row.tobytes() for row in own} & {row.tobytes() for row in received}
    # Of each set, only the common positions are opened, by the server's wish, one each.
    opened = [asked for _, (_, _, asked), _ in of(calls[name], "open")]
    assert {len(asked) for asked in opened} == {len(order)} == {len(COMMON)}


def test_positions_of_common_ids_only_are_opened(tmp_path, monkeypatch):
    """Each party learns, of its own rows, those of common ids and no others."""
    calls, order = see(SETS, tmp_path, monkeypatch, None)
    assert {*order} == {*COMMON}
    for name, ids in SETS.items():
        traced = [asked for _, (_, asked), _ in of(calls[name], "collect")]
        assert sum(map(len, traced)) == len(COMMON)
        assert len(ids) > len(COMMON)
