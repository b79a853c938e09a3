"""What a party answers to calls, and what it refuses; whole alignments are in test_coordinator.py."""

import numpy as np
import pytest

from tests.alignment.parties import parties_of
from verfedsv.alignment import Party, Session, make_ids
from verfedsv.alignment.digests import prefix_for
from verfedsv.alignment.points import hash_ids, multiply, random_scalar
from verfedsv.errors import InputError

SIZES = {"a": 5, "b": 3}


def session_of(sizes=None, **options):
    return Session(bytes(32), sizes or SIZES, **{"part_size": 2, **options})


@pytest.fixture(name="party")
def make_party(tmp_path):
    """Return party a, which has begun a session with b, in parts of 2 points."""
    with Party("a", make_ids(["k", "l", "m", "n", "o"]), tmp_path, n_threads=1) as party:
        party.begin(session_of())
        yield party


@pytest.fixture(name="points")
def make_points():
    """Return the three points of party b, blinded by its key."""
    with Party("b", make_ids(["k", "l", "x"])) as other:
        other.begin(session_of())
        return np.concatenate([other.own_points(0), other.own_points(1)])


def positions(*numbers):
    return np.array(numbers, np.uint32)


def send(party, points):
    party.blind("b", 0, points[:2])
    party.blind("b", 1, points[2:])


def receive(party):
    return np.concatenate([party.blinded("b", 0), party.blinded("b", 1)])


def test_calls_may_be_repeated(party, points):
    """Each gets the same answer again, also between others and after the last."""
    own = [party.own_points(part) for part in (2, 0, 1, 2)]
    assert [len(part) for part in own] == [1, 2, 2, 1]
    assert own[0].tobytes() == own[3].tobytes()
    send(party, points)
    party.begin(session_of())
    send(party, points)
    blinded = receive(party)
    np.testing.assert_array_equal(receive(party), blinded)
    for _ in range(2):
        party.begin_opening(3)
    opened = [
        party.open("b", part, asked)
        for part, asked in ((1, [1]), (0, [2, 0]), (1, [1]))
        for asked in [positions(*asked)]
    ]
    assert sorted(np.concatenate(opened[:2]).tolist()) == [0, 1, 2]
    assert opened[2].tolist() == opened[0].tolist()
    for part, asked in ((0, [4, 1]), (1, [0]), (0, [4, 1])):
        party.collect(part, positions(*asked))
    checksum = party.finish()
    for _ in range(2):
        assert party.finish() == checksum
        party.agree({"a": checksum, "b": checksum})
    assert party.aligned.n_common == 3
    for call in (lambda: party.open("b", 1, positions(1)), lambda: party.own_points(0)):
        with pytest.raises(InputError, match="the session has ended for a; begin a new one"):
            call()


def test_sets_are_blinded_and_shuffled(party, points):
    """What comes back are the points times the party's key, in the order that `open` reveals."""
    send(party, points)
    blinded = receive(party)
    np.testing.assert_array_equal(np.unique(blinded, axis=0), np.unique(multiply(points, party._work.key), axis=0))
    key = party._work.key
    party.begin_opening(3)
    origin = np.concatenate([party.open("b", 0, positions(0, 1)), party.open("b", 1, positions(2))])
    np.testing.assert_array_equal(multiply(points[origin], key), blinded)


def test_own_ids_are_shuffled():
    """The points of a party's own ids are not in the order of its file."""
    ids = [str(number) for number in range(50)]
    with parties_of(ids) as (party,):
        party.begin(session_of({"a": 50, "b": 3}, part_size=50))
        sent = party.own_points(0)
        in_order = multiply(hash_ids(party.ids.values, prefix_for("point", bytes(32))), party._work.key)
    np.testing.assert_array_equal(np.unique(sent, axis=0), np.unique(in_order, axis=0))
    assert (sent == in_order).all(axis=1).sum() < 15  # one is expected; 15 have a probability below 10^-12


def test_each_session_has_its_own_key(party):
    """A new session, or one whose ring has another order, begins anew: no point comes again."""
    seen = [party.own_points(0)]
    for session in (session_of({"b": 3, "a": 5}), Session(b"x" * 32, SIZES, 2), session_of()):
        party.begin(session)
        assert party.session is session
        seen.append(party.own_points(0))
    assert len(np.unique(np.concatenate(seen), axis=0)) == 8


def test_files_are_deleted(party, tmp_path):
    """What a session needs is in a private folder, which a new session, `agree` and `close` delete."""
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    party.begin(session_of(part_size=5))
    (other,) = tmp_path.iterdir()
    assert other != folder
    party.close()
    assert not [*tmp_path.iterdir()]


def test_files_have_the_stated_size(party, points, tmp_path):
    """40 bytes for each id of another, and 4 or 5 of its own; less when nothing is blinded any more."""

    def size():
        return sum(path.stat().st_size for path in tmp_path.glob("*/*"))

    assert size() == 3 * 40 + 5 * 4
    send(party, points)
    party.begin_opening(1)
    assert size() == 3 * 5 + 5 * 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda party, _: party.blinded("b", 0), "only 0 of 2 parts of the points of 'b' have come yet"),
        (lambda party, _: party.begin_opening(2), "only 0 of 2 parts of the points of 'b' have come yet"),
        (lambda party, _: party.open("b", 0, positions(0)), "was asked for positions before the opening began"),
        (lambda party, _: party.collect(0, positions(0)), "was asked for positions before the opening began"),
        (lambda party, _: party.finish(), "was asked for positions before the opening began"),
        (lambda party, _: party.own_points(3), "there is no part 3: 5 rows are sent in 3 parts"),
        (lambda party, _: party.own_points(-1), "there is no part -1"),
        (lambda party, points: party.blind("b", 2, points[:2]), "there is no part 2: 3 rows are sent in 2 parts"),
        (lambda party, points: party.blind("b", 1, points[:2]), r"a part must be bytes of shape \(1, 32\)"),
        (lambda party, points: party.blind("a", 0, points[:2]), "'a' is not another party of this session"),
        (lambda party, points: party.blind("c", 0, points[:2]), "'c' is not another party of this session"),
        (lambda party, _: party.open("c", 0, positions(0)), "'c' is not another party of this session"),
        (lambda party, _: party.blind("b", 0, np.zeros((2, 32), np.uint8)), "point 1 of the part is none of"),
        (lambda party, _: party.begin(session_of({"a": 4, "b": 3})), "a has 5 ids, and the session says 4"),
        (lambda party, _: party.begin(session_of({"c": 4, "b": 3})), "a has 5 ids, and the session does not have it"),
    ],
)
def test_calls_out_of_order_or_range_are_refused(party, points, call, message):
    """The error says why; afterwards the session continues as if nothing had happened."""
    with pytest.raises(InputError, match=message):
        call(party, points)
    send(party, points)
    assert receive(party).shape == (3, 32)


def test_another_content_for_a_part_is_refused(party, points):
    """Nobody has more points multiplied by the key than the set has, or more positions opened than are common."""
    send(party, points)
    with pytest.raises(InputError, match="part 0 of the points of 'b' has come with another content"):
        party.blind("b", 0, points[1:])
    party.begin_opening(2)
    party.open("b", 0, positions(0, 2))
    with pytest.raises(InputError, match="part 0 of the positions of 'b' has come with another content"):
        party.open("b", 0, positions(0, 1))


@pytest.mark.parametrize(
    ("part", "asked", "message"),
    [
        (1, positions(0), "part 1 has positions that are repeated"),
        (1, positions(3), "position 3 does not exist: there are 3 points"),
        (1, positions(1, 2), r"a part must be uint32 of shape \(1,\)"),
        (2, positions(1), "there is no part 2: 3 rows are sent in 2 parts"),
    ],
)
def test_positions_are_checked(party, points, part, asked, message):
    """They must exist, each is opened once, and there are as many as are common; others can still be opened."""
    send(party, points)
    party.begin_opening(3)
    party.open("b", 0, positions(0, 1))
    with pytest.raises(InputError, match=message):
        party.open("b", part, asked)
    with pytest.raises(InputError, match="part 0 has positions that are repeated"):
        party.collect(0, positions(4, 4))
    assert len(party.open("b", 1, positions(2))) == 1


def test_nothing_is_blinded_after_the_opening_began(party, points):
    """The key is gone, and so is the way to ask for other numbers of common ids."""
    send(party, points)
    with pytest.raises(InputError, match="4 ids cannot be common: a party has 3"):
        party.begin_opening(4)
    party.begin_opening(2)
    assert party._work.key == b""
    for call in (
        lambda: party.own_points(0),
        lambda: party.blinded("b", 0),
        lambda: party.blind("b", 0, points[:2]),
        lambda: party.begin_opening(3),
    ):
        with pytest.raises(InputError, match="a was asked for points after the opening began; begin a new session"):
            call()


def test_checksums_of_all_must_be_equal(party, points):
    """A party keeps nothing until it knows that all have the same ids in the same order."""
    send(party, points)
    party.begin_opening(2)
    with pytest.raises(InputError, match="only 0 of 1 parts of the positions of 'a' have come yet"):
        party.finish()
    party.collect(0, positions(2, 3))
    own = party.finish()
    for checksums, message in [
        ({"a": own}, "not those of all parties"),
        ({"a": own, "c": own}, "not those of all parties"),
        ({"a": "1", "b": "1"}, "or not a's own"),
        ({"a": own, "b": "1"}, "the rows of 'b' are not the samples of 'a'"),
    ]:
        with pytest.raises(InputError, match=message):
            party.agree(checksums)
        assert party.aligned is None


def test_a_party_needs_a_session():
    """Before `begin`, it says how many ids it has, and nothing more."""
    with parties_of(["a", "b"]) as (party,):
        assert party.session is None
        assert party.introduce().n_ids == 2
        with pytest.raises(InputError, match="a was asked before a session began"):
            party.own_points(0)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (lambda: Session(b"", SIZES), "must have 32 bytes, and has 0"),
        (lambda: session_of({"a": 5}), "between 2 and 1,000 parties; received 1"),
        (lambda: session_of({"a": 0, "b": 1}), "'a' must have 1 to 4,294,967,295 ids; received 0"),
        (lambda: session_of({"a": 1, "b": 2**32}), "'b' must have 1 to 4,294,967,295 ids; received 4,294,967,296"),
        (lambda: session_of(part_size=0), "a part must have 1 to 65,536 points; received 0"),
        (lambda: session_of(part_size=2**16 + 1), "a part must have 1 to 65,536 points; received 65,537"),
    ],
)
def test_sessions_are_checked(session, message):
    """What a coordinator announces is within limits."""
    with pytest.raises(InputError, match=message):
        session()


def test_the_ring():
    """The set of each party passes the others in their order, beginning after its owner."""
    session = session_of({"a": 1, "b": 1, "c": 1})
    assert [session.ring(name) for name in "abc"] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_secret_numbers_are_not_those_of_others():
    """Two parties with the same ids in the same session send different points."""
    with parties_of(["k", "l"], ["k", "l"]) as parties:
        for party in parties:
            party.begin(session_of({"a": 2, "b": 2}))
        sent = np.concatenate([party.own_points(0) for party in parties])
        assert len(np.unique(sent, axis=0)) == 4
        assert len(random_scalar()) == 32
