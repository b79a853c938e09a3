import pytest

from benchmarks import __main__ as command
from benchmarks import sections
from benchmarks.sections import Found


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with two sections, of which one cannot be measured here."""
    (tmp_path / "template.md").write_text("{ratios}\n\n{text}\n\n{other}\n\n{where}\n")
    monkeypatch.setattr(command, "TEMPLATE", tmp_path / "template.md")
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    made = iter("ab")
    found = {"first": lambda: Found({"text": f"measured {next(made)}"}, {"how fast": 12.0}), "second": lambda: None}
    monkeypatch.setattr(command, "SECTIONS", found)
    return tmp_path / "page.md"


def test_a_section_is_measured_again_alone(page, monkeypatch):
    """The page has what was measured last of each, when and where, and what never was."""
    for name in ("first", "first", "second"):
        monkeypatch.setattr("sys.argv", ["benchmarks", name])
        command.main()
    text = page.read_text()
    assert "measured b\n\n(not measured yet)" in text
    assert "| how fast | 12 |" in text
    assert "- first: 20" in text
    assert list(sections.read(command.RESULTS)) == ["first"]


def test_unknown_sections_are_refused(page, monkeypatch, capsys):
    """Before anything is measured."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "first", "thrid"])
    with pytest.raises(SystemExit):
        command.main()
    assert "unknown section 'thrid'; allowed are first, second" in capsys.readouterr().err
    assert not page.exists()


def test_the_committed_page_is_that_of_the_committed_results(tmp_path):
    """Nothing in it was edited by hand."""
    command.write_page(sections.read(command.RESULTS), tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == command.PAGE.read_text()
