"""Who takes part in which round."""

import pytest

from verfedsv import InputError
from verfedsv.federation.roster import Roster, Stay

CLIENTS = ("a", "b", "c")
PLAN = Roster(CLIENTS, 10, {"b": Stay(joins_after=3, misses=((6, 7),)), "c": Stay(leaves_after=5)})


def test_members_are_those_who_joined_and_have_not_left():
    """A client that misses a round stays a member."""
    assert PLAN.founders == ("a", "c")
    assert [PLAN.members(number) for number in (3, 4, 5, 6, 10)] == [
        ("a", "c"),
        ("a", "b", "c"),
        ("a", "b", "c"),
        ("a", "b"),
        ("a", "b"),
    ]
    assert [PLAN.missing(number) for number in (5, 6, 7, 8)] == [set(), {"b"}, {"b"}, set()]


def test_all_take_part_without_a_plan():
    """In every round, and the members never change."""
    roster = Roster(CLIENTS, 10)
    assert roster.founders == roster.members(10) == CLIENTS
    assert not any(roster.missing(number) for number in range(1, 11))
    assert roster.unchanged_since(10) == roster.unchanged_since(10, counts_misses=True) == 1


@pytest.mark.parametrize("counts_misses", [False, True])
@pytest.mark.parametrize(
    "roster",
    [
        PLAN,
        Roster(CLIENTS, 40, {"a": Stay(misses=0.3), "b": Stay(12, 30, 0.2)}, seed=5),
        Roster(CLIENTS, 9, {"a": Stay(4), "b": Stay(leaves_after=4)}),  # one takes the place of another
        Roster(CLIENTS, 12, {"a": Stay(misses=((3, 4), (6, 6))), "b": Stay(misses=((5, 5),))}),
    ],
)
def test_since_when_the_members_are_the_same(roster, counts_misses):
    """It is the first of the rounds in a row with the same members as this one."""

    def there(number):
        away = roster.missing(number) if counts_misses else frozenset()
        return set(roster.members(number)) - away

    since = 1
    for number in range(1, roster.n_rounds + 1):
        if number > 1 and there(number) != there(number - 1):
            since = number
        assert roster.unchanged_since(number, counts_misses=counts_misses) == since


def test_drawn_misses_follow_from_the_seed():
    """They are about the given fraction, never the first or last round of a client, and others with another seed."""

    def missed(seed):
        roster = Roster(CLIENTS, 2_000, {"a": Stay(100, 1_900, 0.25)}, seed)
        return {number for number in range(1, 2_001) if roster.missing(number)}

    found = missed(1)
    assert found == missed(1) != missed(2)
    assert 102 <= min(found) <= max(found) <= 1_899
    assert len(found) / 1_798 == pytest.approx(0.25, abs=0.04)


def test_two_clients_miss_different_rounds():
    """Draws are independent of each other."""
    roster = Roster(CLIENTS, 500, {"a": Stay(misses=0.5), "b": Stay(misses=0.5)})
    found = [roster.missing(number) for number in range(1, 501)]
    assert {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")} == set(found)


def test_somebody_is_always_there():
    """Draws never leave a round without a client, also if another misses it for certain."""
    stays = {"a": Stay(misses=0.9), "b": Stay(misses=0.9), "c": Stay(misses=((50, 150),))}
    roster = Roster(CLIENTS, 200, stays)
    for number in range(1, 201):
        assert roster.missing(number) < set(roster.members(number))


@pytest.mark.parametrize(
    ("stay", "setting"),
    [
        (Stay(joins_after=10), "joins_after"),
        (Stay(leaves_after=10), "leaves_after"),
        (Stay(joins_after=5, leaves_after=4), "leaves_after"),
        (Stay(misses=((1, 2),)), "misses"),
        (Stay(misses=((9, 10),)), "misses"),
        (Stay(misses=((5, 4),)), "misses"),
        (Stay(joins_after=3, leaves_after=5, misses=0.5), "misses"),
    ],
)
def test_stays_that_cannot_be_carried_out(stay, setting):
    """The fault names the setting, and no roster has it."""
    fault = stay.find_fault(10)
    assert fault is not None
    assert fault.setting == setting
    with pytest.raises(InputError, match=f"client 'a': {setting} "):
        Roster(CLIENTS, 10, {"a": stay})


def test_stays_that_can_be_carried_out():
    """To the last round that has an effect."""
    for stay in (Stay(9), Stay(leaves_after=9), Stay(leaves_after=1), Stay(misses=((2, 9),)), Stay(3, 6, 0.5)):
        assert stay.find_fault(10) is None
    assert Stay(joins_after=10).find_fault(None) is None  # before the number of rounds is known


def test_unknown_clients_and_rounds_without_clients():
    """Both are refused."""
    with pytest.raises(InputError, match="there is no client 'd'; the clients are a, b, c"):
        Roster(CLIENTS, 10, {"d": Stay(1)})
    with pytest.raises(InputError, match="nobody takes part in round 1"):
        Roster(CLIENTS, 10, dict.fromkeys(CLIENTS, Stay(1)))
    with pytest.raises(InputError, match="nobody takes part in round 6"):
        Roster(("a", "b"), 10, {"a": Stay(leaves_after=5), "b": Stay(misses=((6, 6),))})
