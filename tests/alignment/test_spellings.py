import pytest

from verfedsv.alignment import Spelling, make_ids
from verfedsv.alignment.spellings import compare_spellings, describe_spelling
from verfedsv.errors import DataError, InputError


def doubts_of(**sets):
    return compare_spellings({name: describe_spelling(make_ids(ids)) for name, ids in sets.items()})


def test_spellings_are_counted():
    """Each way of writing ids is counted apart; lengths are in characters."""
    ids = [" 12", "-7", "0", "0012", "+12", "AB", "ab", "Ab-1", "x y", "e\u0301", "ﬁ", "北京", "-012", "00"]
    assert describe_spelling(make_ids(ids)) == Spelling(
        n_ids=14, stripped=1, whole=3, zeros=4, capitals=2, small=4, marks=5, composed=2, shortest=1, longest=4
    )


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (["12", "13"], ["A1", "A2"], "all ids of 'bank', and none of 'telco', are or have plain whole numbers"),
        (["0012", "0013"], ["12", "13"], "of 'telco', and none of 'bank', are or have plain whole numbers"),
        (["A1", "B2"], ["a1", "b2"], "of 'bank', and none of 'telco', are or have capital letters"),
        (["A-1", "B-2"], ["A1", "B2"], "of 'bank', and none of 'telco', are or have spaces or punctuation"),
        (["123", "1234"], ["12345", "1"], None),
        (["123", "1234"], ["12345", "123456"], "ids of 'telco' have at least 5 characters, those of 'bank' at most 4"),
    ],
)
def test_ids_that_cannot_match_are_refused(first, second, why):
    """If all ids of one party are written in a way in which no id of another is, the intersection is empty."""
    if why is None:
        assert doubts_of(bank=first, telco=second) == []
        return
    with pytest.raises(InputError, match=f"no id can be common, .*{why}. Write them in one way"):
        doubts_of(bank=first, telco=second)


@pytest.mark.parametrize(
    ("first", "second", "doubt"),
    [
        (["012", "13"], ["12", "13"], "1 ids of 'bank' are or have numbers with leading zeros or a plus sign, none of"),
        (["A1", "2"], ["a1", "2"], "1 ids of 'bank' are or have capital letters, none of 'telco'; A12 and a12 are"),
        (["A1", "2"], ["a1", "2"], "1 ids of 'telco' are or have small letters, none of 'bank'; A12 and a12 are"),
        (["A-1", "2"], ["A1", "2"], "1 ids of 'bank' are or have spaces or punctuation, none of 'telco'; A-12, A 12"),
        ([" 1", "2 "], ["1", "2"], "blanks around 2 ids of 'bank' were removed"),
        (["e\u0301", "x"], ["\u00e9", "x"], "characters that Unicode writes in several ways, none of 'telco'; they"),
    ],
)
def test_spellings_that_may_not_match_are_reported(first, second, doubt):
    """If only one party has ids of some spelling, a sentence says how many."""
    assert any(doubt in sentence for sentence in doubts_of(bank=first, telco=second))


def test_usual_differences_are_no_doubts():
    """Two files with the same mixture of spellings give no sentence, and neither do numbers beside other ids."""
    assert doubts_of(bank=["A-1", "b", "001"], telco=["C-1", "d", "002"], shop=["E-1", "f", "003", "7"]) == []


@pytest.mark.parametrize(("ids", "message"), [(["a", " "], "1 row without an id"), (["a", "b", " a"], "1 id repeated")])
def test_blank_and_repeated_ids_are_refused(ids, message):
    """As for files: the error counts them."""
    with pytest.raises(DataError, match=f"bank: .*{message}"):
        make_ids(ids, "bank")
