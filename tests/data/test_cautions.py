import numpy as np
import pytest

from verfedsv.data.cautions import caution

N = 400
RNG = np.random.default_rng(0)
LABELS = (RNG.random(N) < 0.4).astype(np.intp)
NOISE = RNG.normal(size=N)


def caution_of(labels=LABELS, empty=(), **columns):
    """Return the warnings about a bank with these columns."""
    kinds = [{name: c for name, c in columns.items() if (c.dtype == object) == text} for text in (False, True)]
    return caution("bank", *kinds, list(empty), labels)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (LABELS.astype(float), "sorted by it, 400 labels change only once"),
        (-100.0 * LABELS + 0.1 * NOISE, "sorted by it, 400 labels change only once"),
        (np.where(LABELS, np.nan, NOISE), "sorted by it, 400 labels change only once"),  # missing where it is yes
        (np.where(np.arange(N) == 200, 1 - LABELS, LABELS).astype(float), "400 labels change only 3 times"),
        (np.array(["no", "yes"], object)[LABELS], "its 2 categories predict 400 of 400 labels"),
        (np.array([None, "yes"], object)[LABELS], "its 2 categories predict 400 of 400 labels"),
    ],
)
def test_a_column_that_gives_the_label_away_is_named(column, says):
    """A copy, a translation, or a column that is present only for some labels, even with a few exceptions."""
    lines = caution_of(x=column, other=NOISE)
    assert any(line.startswith("bank: column 'x' gives the label away") and says in line for line in lines)
    assert not any("'other'" in line for line in lines)


AMOUNTS = RNG.lognormal(10, 1, N)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (np.log(AMOUNTS), "its rank correlation with the labels is 1.000"),
        (np.where(NOISE > 0, np.nan, -AMOUNTS), "its rank correlation with the labels is -1.000"),
        (AMOUNTS * np.exp(0.02 * NOISE), "its rank correlation with the labels is 1.000"),
        (
            np.array([f"group {k}" for k in range(20)], object)[(AMOUNTS.argsort().argsort() * 20) // N],
            "its 20 categories put 400 labels almost in order",
        ),
    ],
)
def test_a_column_that_gives_amounts_away_is_named(column, says):
    """A function of the label, with gaps or a little noise, or its rank in words."""
    lines = caution_of(AMOUNTS, x=column, other=NOISE)
    assert any(line.startswith("bank: column 'x' gives the label away") and says in line for line in lines)
    assert not any("'other'" in line for line in lines)


@pytest.mark.parametrize(
    "column",
    [
        AMOUNTS * np.exp(0.5 * NOISE),
        np.full(N, 3.0),
        np.array([f"row {i}" for i in range(N)], object),
        np.array(["low", "high"], object)[(np.median(AMOUNTS) < AMOUNTS).astype(int)],
    ],
)
def test_a_column_that_is_good_for_amounts_is_not_suspected(column):
    """Nor one that is constant or differs in each row."""
    assert caution_of(AMOUNTS, x=column) == []


def test_classes_in_order_are_given_away_too():
    """Also with several classes."""
    labels = RNG.integers(0, 5, N)
    assert "labels change only 4 times" in caution_of(labels, x=labels * 2.0)[0]
    assert caution_of(labels, x=labels + 3 * NOISE) == []


@pytest.mark.parametrize(
    "column",
    [
        LABELS + NOISE,
        np.array([f"row {i}" for i in range(N)], object),  # one category a row tells nothing of others
        np.where(NOISE > 1, 1 - LABELS, LABELS).astype(float),
    ],
)
def test_a_good_column_is_not_suspected(column):
    """Nor one that merely differs in each row."""
    assert caution_of(x=column) == []


def test_rare_labels_are_not_taken_for_given_away():
    """Guessing the largest class is nearly always right, and reveals nothing."""
    labels = np.zeros(N, np.intp)
    labels[:4] = 1
    assert caution_of(labels, x=np.arange(N, dtype=float)) == []


def test_missing_numbers_are_counted():
    """By column; what is empty is named."""
    some, most = NOISE.copy(), NOISE.copy()
    some[:7], most[7:] = np.nan, np.nan
    assert caution_of(some=some, most=most, none=np.full(N, np.nan), blank=np.full(N, None), empty=["typeless"]) == [
        "bank: no values in 'typeless', 'none', 'blank', so nothing is learnt from them",
        "bank: missing numbers become the mean of their column: 7 of 400 in 'some', 393 of 400 in 'most'",
    ]


def test_many_columns_are_not_all_listed():
    """Only the first five and the number of the others."""
    column = np.where(np.arange(N) == 3, np.nan, NOISE)
    (line,) = caution_of(**{f"x{i}": column for i in range(9)})
    assert line.endswith("1 of 400 in 'x4' and 4 more columns")


def with_dashes(n_dashes, n=N):
    """Return a text column of numbers with dashes instead of the first of them."""
    return np.array(["-"] * n_dashes + [f"{k % 30}.5" for k in range(n - n_dashes)], object)


def test_text_that_is_nearly_all_numbers_is_named():
    """With the number of other cells, of those that are not missing, but without what they say."""
    column = with_dashes(12)
    column[-100:] = None
    (line,) = caution_of(x=column, other=NOISE)
    assert line.startswith("bank: column 'x' is text, as 12 of its 300 filled cells are not a plain number")
    assert "leave them blank" in line
    assert "'-'" not in line


@pytest.mark.parametrize("labels", [LABELS, None])
def test_a_tenth_of_other_cells_is_the_limit(labels):
    """Text with more of them is taken for categories, with or without labels to compare with."""
    assert len(caution_of(labels, x=with_dashes(N // 10))) == 1
    assert caution_of(labels, x=with_dashes(N // 10 + 1)) == []


def test_text_of_numbers_alone_is_not_suspected():
    """Such as codes in Parquet, which somebody stored as text on purpose."""
    assert caution_of(x=with_dashes(0)) == []
