import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_file_has_what_its_format_requires():
    """Version, message, title and authors, each person with both names; the license is that of the package."""
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)
    assert CITATION["cff-version"] == "1.2.0"
    assert all(author["name"] for author in CITATION["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITATION["license"] == project["license"]


def test_the_paper_is_cited_by_the_title_that_the_pages_give():
    """README and the page of experiments name the paper as the citation file does, with its year."""
    (paper,) = CITATION["references"]
    assert paper["type"] == "conference-paper"
    assert all(author["family-names"] and author["given-names"] for author in paper["authors"])
    for page in ("README.md", "docs/paper.md"):
        text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
        assert paper["title"] in text
        assert f"ICLR {paper['year']}" in text
