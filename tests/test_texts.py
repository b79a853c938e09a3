import pytest

from verfedsv.texts import misleading, spreadsheet_text


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["bank", "b\u0430nk"], "look alike"),
        (["bank", "Bank"], "look alike"),
        (["Z\u00fcrich", "Zurich"], "look alike"),
        (["client 1", "client l"], "look alike"),
        (["client I", "client i"], "look alike"),
        (["bank", "\uff42ank"], "look alike"),
        (["bank", "ban k"], "look alike"),
        (["bank", "\u0412ANK"], "look alike"),
        (["bank\u200b"], "invisible"),
        (["ba\u3164nk"], "invisible"),
        (["bank\ufe0f"], "invisible"),
        (["bank "], "invisible"),
        (["two  spaces"], "invisible"),
        (["p\u0430ypal"], "mixes Cyrillic and Latin letters"),
    ],
)
def test_names_that_mislead_are_named(names, said):
    """With what is wrong spelt out: letters that look alike, and characters that nobody sees."""
    lines = list(misleading(names))
    assert any(said in line for line in lines)
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_ordinary_names_are_left_alone():
    """In whatever script, numbered or not, with accents or without."""
    names = [
        "bank",
        "Z\u00fcrich",
        "\u0431\u0430\u043d\u043a",
        "\u5317\u4eac",
        "client 1",
        "client 2",
        "constructor",
    ]
    assert list(misleading([*names, *(f"client {m}" for m in range(3, 200))])) == []


@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u207a\u208c\ufb29\u2a75")
def test_no_cell_begins_with_a_sign_of_formulas(sign):
    """Neither the text nor what follows a semicolon in it, whatever the width of both and the spaces between."""
    assert spreadsheet_text(f"{sign}1") == f"'{sign}1"
    assert spreadsheet_text(f" {sign}1") == f"' {sign}1"
    assert spreadsheet_text(f"\xa0{sign}1") == f"'\ufffd{sign}1"
    assert spreadsheet_text(f";;{sign}1;{sign}1") == f";;'{sign}1;'{sign}1"
    for separator in (";", "\uff1b", "\ufe54", "; ", ";  "):
        assert spreadsheet_text(f"a{separator}{sign}1;{sign}") == f"a{separator}'{sign}1;'{sign}"
    assert spreadsheet_text(f"a;\u3000{sign}1") == f"a;\ufffd'{sign}1"
    assert spreadsheet_text(f"a{sign}1; b{sign}") == f"a{sign}1; b{sign}"
