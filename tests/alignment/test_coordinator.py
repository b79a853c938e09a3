import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.alignment.parties import Between, Changing, Recording, aligned_ids, parties_of
from verfedsv.alignment import align, aligned_checksum
from verfedsv.errors import InputError

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=3)


@st.composite
def sets_of_ids(draw):
    """Return 2 to 5 lists of unique ids, drawn from few, so that some are common."""
    # Framed, as Arrow and Python strip different characters.
    universe = [f"<{text}>" for text in draw(st.lists(TEXT, min_size=2, max_size=12, unique=True))]
    one = st.lists(st.sampled_from(universe), min_size=1, unique=True)
    return draw(st.lists(one, min_size=2, max_size=5))


def run(parties, **options):
    return align(parties, **{"part_size": 3, **options})


@settings(max_examples=40)
@given(sets_of_ids())
def test_the_intersection_is_that_of_plain_sets(sets):
    """For any ids in any order, all parties get the rows of the common ids in one order, and the same checksum."""
    expected = set.intersection(*map(set, sets))
    with parties_of(*sets) as parties:
        try:
            result = run(parties)
        except InputError as error:
            assert "no id can be common" in str(error)  # noqa: PT017  # it may also be no error
            assert not expected
            return
        orders = [aligned_ids(party) for party in parties]
    assert all(order == orders[0] for order in orders)
    assert set(orders[0]) == expected
    assert result.n_common == len(orders[0]) == len(expected)
    for party, ids in zip(parties, sets, strict=True):
        assert result.rates[party.name] == party.aligned.rates[party.name] == len(expected) / len(ids)
        assert (party.aligned.session, party.aligned.checksum) == (result.session, result.checksum)
        assert dict(party.aligned.sizes) == result.sizes
    assert result.checksum == aligned_checksum(orders[0], bytes.fromhex(result.session))


@pytest.mark.parametrize("n_parties", [2, 3, 5])
@pytest.mark.parametrize("n_in_flight", [1, 4])
def test_everything_in_common(n_parties, n_in_flight):
    """All rows are aligned; the order is that of no file, and differs from session to session."""
    ids, rng = [str(number) for number in range(30)], np.random.default_rng(n_parties)
    sets = [rng.permutation(ids).tolist() for _ in range(n_parties)]
    orders = []
    for _ in range(2):
        with parties_of(*sets) as parties:
            assert run(parties, n_in_flight=n_in_flight).n_common == 30
            orders.append(aligned_ids(parties[0]))
            assert all(aligned_ids(party) == orders[-1] for party in parties)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(ids)


def test_nothing_in_common():
    """It is no error: who needs common samples asks for `n_common`."""
    with parties_of(["1", "2", "3", "4"], ["5", "6"], ["7"]) as parties:
        assert run(parties).n_common == 0
        assert [len(party.aligned.rows) for party in parties] == [0, 0, 0]


class Repeating(Between):
    """Makes each call twice, as after a lost answer, and once more later."""

    def call(self, method, *arguments):
        super().call(method, *arguments)
        answer = super().call(method, *arguments)
        if method in ("own_points", "blind", "open"):
            timer = threading.Thread(target=super().call, args=(method, *arguments))
            timer.start()
            timer.join()
        return answer


def test_repeated_calls_change_nothing():
    """A message may come again."""
    with parties_of(list("abcdefgh"), list("hgfedc"), list("xcayeh")) as parties:
        assert run([Repeating(party) for party in parties]).n_common == 3
        assert {*aligned_ids(parties[1])} == {"c", "e", "h"}


def test_progress_is_shown():
    """It counts all blinded points, up to the total: each set once for each party."""
    shown = []
    with parties_of(list("abcdefgh"), list("hgfedc"), list("xcayeh")) as parties:
        run(parties, progress=lambda *counts: shown.append(counts))
    done = [count for count, _ in shown]
    assert done == sorted(done)
    assert len(set(done)) == len(done) == 3 * (3 + 2 + 2)
    assert shown[-1] == (60, 60)


def test_files_are_deleted(tmp_path):
    """Nothing is left of an alignment, nor of one that failed."""
    with parties_of(list("abc"), list("bcd")) as parties:
        run(parties, folder=tmp_path)
        assert not [*tmp_path.iterdir()]
        with pytest.raises(InputError):
            run([parties[0], Changing(parties[1], "finish", lambda _: "1")], folder=tmp_path)
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("own_points", lambda points: points[:-1], r"'b': a part must be bytes of shape"),
        ("own_points", lambda points: points | 1, r"^'b': point 1 of the part is none of Ristretto255"),
        ("own_points", lambda points: points[[0] * len(points)], "the set of 'b' has a point twice"),
        ("blinded", lambda points: points[[0] * len(points)], "the set of '[ac]' has a point twice"),
        ("blinded", lambda points: points.astype(np.int64), "'b': a part must be bytes of shape"),
        ("open", lambda positions: positions[:-1], "'b': a part must be uint32 of shape"),
        ("open", lambda positions: positions + np.uint32(10), "'[ac]': position 1[0-9] does not exist"),
        ("open", lambda positions: positions[[0] * len(positions)], "'[ac]': part 0 has positions that are repeated"),
        ("open", lambda positions: positions[::-1], "^the rows of 'b' are not the samples of 'a' in the same order"),
        ("finish", lambda _: "1", "^the rows of 'b' are not the samples of 'a' in the same order"),
    ],
)
def test_wrong_answers_are_found(method, change, message):
    """The error names the party that noticed or that sent it, and nobody takes the result."""
    with parties_of(list("abcdef"), list("bcdefg"), list("fedcbx")) as parties:
        first, second, third = parties
        with pytest.raises(InputError, match=message):
            run([first, Changing(second, method, change), third])
        assert [party.aligned for party in parties] == [None] * 3


def test_an_error_stops_the_others():
    """When a call fails, the sets of other parties are not passed on to their end."""

    class Slow(Recording):
        def call(self, method, *arguments):
            time.sleep(0.002)
            return super().call(method, *arguments)

    ids = [str(number) for number in range(300)]
    with parties_of(ids, ids, ids) as (first, second, third):
        others = [Slow(first), Slow(third)]
        bad = Changing(second, "own_points", lambda points: points[:0])
        with pytest.raises(InputError, match="'b': a part must be bytes"):
            run([others[0], bad, others[1]], part_size=1)
        assert sum(len(other.calls) for other in others) < 400


def test_doubtful_spellings_are_reported():
    """What may have kept ids from matching is said beside the result, or before, if nothing can match."""
    with parties_of(["001", "2", "3"], ["1", "2", "3"]) as parties:
        result = run(parties)
        assert result.n_common == 2
        (doubt,) = result.doubts
        assert doubt.startswith("1 ids of 'a' are or have numbers with leading zeros or a plus sign, none of 'b'; 0012")
    with parties_of(["001", "002"], ["1", "2"]) as parties, pytest.raises(InputError, match="no id can be common"):
        run([*map(Recording, parties)])


def test_parties_need_different_names():
    """One party alone, or two of the same name, cannot be aligned."""
    with parties_of(["1", "2"], ["1", "2"]) as parties:
        for some in (parties[:1], [parties[0], parties[0]]):
            with pytest.raises(InputError, match=r"two or more parties with different names; received \['a'\]"):
                run(some)
