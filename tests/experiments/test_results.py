import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import EXPERIMENTS, Experiment, ResultFile, Table, results, write_page
from experiments.command import known_results
from experiments.experiment import Claim
from experiments.lab import Settings
from experiments.results import commit
from verfedsv import InputError


class Counted:
    """A fake experiment that counts how often its parts are measured, and can fail."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.fails_at = ""
        self.experiment = Experiment("frequency", "Title", "About.", CountedSettings, self.parts, self.tables)

    def parts(self, name, _settings):
        def measure(part):
            if part == self.fails_at:
                raise KeyboardInterrupt
            self.measured.append(part)
            return {"found": float("nan") if part == "a" else len(part), "name": name}

        return {part: lambda part=part: measure(part) for part in ("a", "bb", "ccc")}

    def tables(self, results):
        return [Table(["part", "found"], [[name, str(part["found"])] for name, part in results["adult"].items()])]


class CountedSettings(Settings):
    """The settings in `frequency.toml`."""

    slowness: tuple[int, ...] = ()


def measure(counted, folder, **options):
    """Measure everything, and return the file."""
    file = ResultFile(folder, counted.experiment, "adult", **options)
    for _ in file.measure():
        pass
    return file


def test_a_stopped_experiment_continues_where_it_was(tmp_path):
    """What was measured before the stop is not measured again."""
    counted = Counted()
    counted.fails_at = "bb"
    with pytest.raises(KeyboardInterrupt):
        measure(counted, tmp_path)
    counted.fails_at = ""
    file = measure(counted, tmp_path)
    assert counted.measured == ["a", "bb", "ccc"]
    assert list(file.found) == ["a", "bb", "ccc"]
    assert measure(counted, tmp_path).found == file.found
    assert len(counted.measured) == 3


def test_other_settings_are_measured_anew(tmp_path):
    """Those of --quick are kept apart from full ones; what does not count any more is kept under another name."""
    counted = Counted()
    before = measure(counted, tmp_path)
    measure(counted, tmp_path, quick=True)
    assert len(counted.measured) == 6
    assert not before.why_discarded
    text = before.path.read_text()
    before.path.write_text(text.replace('"batch_size": 2837', '"batch_size": 1'))
    changed = ResultFile(tmp_path, counted.experiment, "adult")
    assert changed.why_discarded == "3 of 3 do not count any more: batch_size was 1 and is 2837"
    kept = changed.set_aside()
    assert '"batch_size": 1,' in kept.read_text()
    assert not ResultFile(tmp_path, counted.experiment, "adult").found
    measure(counted, tmp_path)
    assert len(counted.measured) == 9


def test_another_version_of_an_experiment_is_measured_anew(tmp_path):
    """Results of an earlier one do not count any more; all of them can be set aside, too."""
    counted = Counted()
    measure(counted, tmp_path)
    newer = ResultFile(tmp_path, replace(counted.experiment, version=2), "adult")
    assert "the experiment was changed" in newer.why_discarded
    assert not newer.found
    ResultFile(tmp_path, counted.experiment, "adult").set_aside(everything=True)
    assert not ResultFile(tmp_path, counted.experiment, "adult").found


def test_a_new_variant_keeps_other_results(tmp_path, monkeypatch):
    """Only what a changed variant or setting concerns is measured again."""
    measured = []

    def parts(_name, settings):
        return {
            f"{label and label + ', '}seed 0": lambda label=label: measured.append(label) or {"found": 0}
            for label in settings.with_variants()
        }

    experiment = Experiment("frequency", "Title", "About.", CountedSettings, parts, Counted().tables)
    plain = CountedSettings(clients=3, batch_size=10, rate=0.1)
    for variants, expected in (
        ({}, [""]),
        ({"more": {"clients": 5}}, ["more"]),
        ({"more": {"clients": 6}, "fast": {"rate": 1.0}}, ["more", "fast"]),
        ({"fast": {"rate": 1.0, "seeds": 3}}, []),
    ):
        monkeypatch.setattr(Experiment, "settings", lambda *_, x=variants, **__: plain.but(variants=x))
        measured.clear()
        list(ResultFile(tmp_path, experiment, "adult").measure())
        assert measured == expected


def test_results_are_plain_json(tmp_path):
    """NaN becomes null; settings, machine, commit and time are included."""
    content = json.loads(measure(Counted(), tmp_path).path.read_text())
    assert content["parts"]["a"]["found"]["found"] is None
    assert content["settings"]["clients"] == 3
    assert " core" in content["parts"]["bb"]["machine"]
    assert content["parts"]["bb"]["commit"] == commit()
    assert content["parts"]["bb"]["seconds"] >= 0


def test_the_commit_says_whether_the_code_was_changed(tmp_path, monkeypatch):
    """Changed documents do not count; outside a checkout there is none."""

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)  # noqa: S603, S607

    def found():
        commit.cache_clear()
        return commit()

    monkeypatch.setattr(results, "REPOSITORY", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert found() is None
    for folder in ("src", "docs", "experiments"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("a")
    git("init")
    git("add", ".")
    git("commit", "-m", "Begin")
    (tmp_path / "docs" / "file").write_text("b")
    assert re.fullmatch("[0-9a-f]{10}", found())
    (tmp_path / "src" / "file").write_text("b")
    assert found().endswith(" changed")
    commit.cache_clear()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"settings": 1}', '{"settings": {}, "parts": []}'])
def test_a_damaged_file_is_measured_anew(tmp_path, text):
    """An unreadable result file is not an error, and is named."""
    counted = Counted()
    path = measure(counted, tmp_path).path
    path.write_text(text)
    assert measure(counted, tmp_path).why_discarded == "the file is damaged"
    assert len(counted.measured) == 6


def _parts_of(stem):
    """Return the experiment and the data set of a result file; names of both may contain hyphens."""
    [found] = [
        (name, data) for name, experiment in EXPERIMENTS.items() for data in experiment.data if stem == f"{name}-{data}"
    ]
    return found


def test_the_published_page_is_that_of_the_published_results(tmp_path):
    """`make paper` with nothing left to measure changes no byte of the page or the results."""
    docs = Path(__file__).parents[2] / "docs"
    shutil.copytree(docs / "paper", tmp_path / "paper")
    page = write_page(tmp_path, known_results(tmp_path), quick=False)
    # Links to scripts are relative to the page.
    ours, published = (re.sub(r"\(\S*/experiments/", "(", x.read_text()) for x in (page, docs / "paper.md"))
    assert ours == published
    for published in (docs / "paper").glob("*.json"):
        name, data = _parts_of(published.stem)
        list(ResultFile(tmp_path, EXPERIMENTS[name], data).measure(0))
        assert (tmp_path / "paper" / published.name).read_bytes() == published.read_bytes()


def test_the_same_results_make_the_same_page(tmp_path):
    """Byte by byte; incomplete results are left out."""
    file = measure(Counted(), tmp_path)
    pages = [write_page(tmp_path, {"frequency": [file]}, quick=False).read_bytes() for _ in range(2)]
    assert pages[0] == pages[1]
    assert b"| bb | 2 |" in pages[0]
    counted = Counted()
    counted.fails_at = "bb"
    with pytest.raises(KeyboardInterrupt):
        measure(counted, tmp_path / "stopped")
    other = ResultFile(tmp_path / "stopped", file.experiment, "adult")
    assert b"Title" not in write_page(tmp_path, {"frequency": [other]}, quick=True).read_bytes()


def test_more_seeds_are_added_later(tmp_path):
    """What was measured with fewer is kept, and the page appears with two."""
    counted = Counted()
    counted.parts = lambda _name, _settings: {
        f"seed {seed}": lambda seed=seed: counted.measured.append(seed) or {"found": seed} for seed in range(4)
    }
    experiment = Experiment("frequency", "Title", "About.", CountedSettings, counted.parts, counted.tables)
    for seeds, expected in ((1, [0]), (2, [0, 1]), (None, [0, 1, 2, 3])):
        file = ResultFile(tmp_path, experiment, "adult")
        list(file.measure(seeds))
        assert counted.measured == expected
        assert file.is_complete == (len(expected) > 1)
        page = write_page(tmp_path, {"frequency": [file]}, quick=False).read_text(encoding="utf-8")
        assert ("Not measured yet with this protocol: frequency (Adult)." in page) == (len(expected) == 1)
        assert ("Fewer seeds than planned so far: frequency (Adult)." in page) == (len(expected) == 2)
    list(ResultFile(tmp_path, experiment, "adult").measure(1))
    assert list(ResultFile(tmp_path, experiment, "adult").found) == ["seed 0", "seed 1", "seed 2", "seed 3"]


def test_links_of_the_published_page_lead_somewhere():
    """To scripts, results and figures in the repository, and from the summary to sections."""
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "paper.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    sections = [link for link in links if link.startswith("#")]
    local = [link for link in links if not link.startswith(("https:", "#"))]
    assert len(sections) > 10
    assert len(local) > 20
    assert [link for link in local if not (docs / link).exists()] == []
    # GitHub drops punctuation from headings, and joins words by hyphens.
    headings = ["".join(x for x in line if x.isalnum() or x in " -_") for line in re.findall("^## (.*)$", text, re.M)]
    assert {link[1:] for link in sections} <= {heading.lower().replace(" ", "-") for heading in headings}


def test_only_statements_of_the_paper_count_as_reproduced(tmp_path):
    """Variants, checks that could hardly fail, and false statements apart; of an item, the worst verdict counts."""
    made = [
        Claim("Figure 1", "adult", "", "", "", "yes"),
        Claim("Lemma", "adult", "", "", "", "yes", "false"),
        Claim("Table 1", "adult", "", "", "", "yes", "check"),
        Claim("Figure 1, other", "adult", "", "", "", "no", "variant"),
        Claim("Figure 2", "adult", "", "", "", "in trend"),
        Claim("Figure 2", "adult", "", "", "", "no", is_open=True),
        Claim("Figure 3", "adult", "", "", "", None),
    ]
    counted = Counted()
    counted.experiment = replace(counted.experiment, claims=lambda _: made)
    page = write_page(tmp_path, {"frequency": [measure(counted, tmp_path)]}, quick=False).read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(\w+).*:\*\* (.*)\.$", page, re.M) == [
        ("Statements", "1 yes, 0 in trend, 1 no"),
        ("The", "0 yes, 0 in trend, 1 no"),
        ("Checks", "1 yes, 0 in trend, 0 no"),
        ("Statements", "1 yes, 0 in trend, 0 no"),
    ]
    assert "[Figure 2](#title) | no\\* |" in page  # stated errors would allow another
    assert "are examined for that: Figure 2. " in page
    assert page.index("[Figure 3](#title) | - |") < page.index("[Lemma](#title) | yes |")


def test_the_page_names_what_is_not_measured(tmp_path):
    """An experiment without results is neither shown nor passed over."""
    page = write_page(tmp_path, known_results(tmp_path), quick=False).read_text(encoding="utf-8")
    assert "Not measured yet with this protocol: metadata (Adult, Web, Covtype, RCV1); rank (Adult, Web" in page
    assert "efficiency (Adult)" in page


def test_a_broken_settings_file_is_named(tmp_path, monkeypatch):
    """One sentence instead of a traceback."""
    monkeypatch.setattr("experiments.experiment.__file__", str(tmp_path / "experiment.py"))
    (tmp_path / "protocol.toml").write_text("[all\n")
    with pytest.raises(InputError, match=r"experiments/protocol\.toml is not TOML: "):
        EXPERIMENTS["rank"].settings("adult")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quik.all]\n", r"experiments/protocol\.toml: unknown section quik; allowed are notes, all"),
        ("[data.adult]\n[quick.adlut]\n", r"unknown section quick\.adlut; allowed are quick\.all, quick\.adult"),
        ("[data.adlut]\n", r"unknown section data\.adlut; allowed are data\.adult, data\.web"),
        ("[data.adult]\nepoch = 5\n", "settings for adult in .*: unknown setting 'epoch'; allowed are clients, batch"),
        ("[data.adult]\nclients = 3\n", "settings for adult in .*: batch_size: Field required"),
    ],
)
def test_misspelt_settings_are_named(text, message, tmp_path, monkeypatch):
    """Sections, data sets and settings that nobody reads are errors."""
    experiment = replace(Counted().experiment, name="other")
    monkeypatch.setattr("experiments.experiment.__file__", str(tmp_path / "experiment.py"))
    (tmp_path / "protocol.toml").write_text(text)
    (tmp_path / "other.toml").write_text("[data.adult]\n")
    with pytest.raises(InputError, match=message):
        experiment.settings("adult")
