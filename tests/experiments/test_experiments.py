import itertools
from pathlib import Path

import numpy as np
import pytest

import experiments
from experiments import EXPERIMENTS, ResultFile, write_page
from experiments.experiment import Exponent, magnitude, spread

MUST_HOLD = {"guarantees", "rank"}
"""Experiments whose claims hold at any size, so also with --quick."""


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_run_quickly_on_adult(name, tmp_path):
    """Everything is measured, shown and drawn."""
    experiment = EXPERIMENTS[name]
    file = ResultFile(tmp_path, experiment, "adult", quick=True)
    for _ in file.measure():
        pass
    found = {"adult": file.found}
    tables = experiment.tables(found)
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    page = write_page(tmp_path, {name: [file]}, quick=True).read_text()
    assert experiment.title in page
    assert (tmp_path / "paper-quick" / f"{name}.svg").exists() == (experiment.draw is not None)
    if name in MUST_HOLD:
        assert all(claim.verdict != "no" for claim in experiment.claims(found)), experiment.claims(found)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_valid(name):
    """For every data set, quick or not; all experiments include Adult, which ships with the package."""
    experiment = EXPERIMENTS[name]
    assert "adult" in experiment.data
    for data, quick in itertools.product(experiment.data, (False, True)):
        experiment.settings(data, quick=quick)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_exact_copies_differ_by_nothing(tmp_path):
    """In the experiment on similar features, a copy without noise has the same value to the last bit."""
    file = ResultFile(tmp_path, EXPERIMENTS["similar-features"], "adult", quick=True)
    for _ in file.measure():
        pass
    assert all(part["paper"]["differences"][0] == 0 for part in file.found.values())


def test_exponents_are_fitted_for_each_seed():
    """The interval is Student's over the slopes of the seeds; values that are not positive have no exponent."""
    sizes = np.array([1.0, 2.0, 4.0])
    found = Exponent.fit(sizes, [sizes**0.95, sizes**1.0, sizes**1.05])
    # 4.302653 is the 97.5 % quantile of Student's distribution with two degrees of freedom; the deviation is 0.05.
    assert found.middle == pytest.approx(1.0)
    assert found.high - found.middle == pytest.approx(4.302653 * 0.05 / np.sqrt(3), rel=1e-6)
    assert found.is_proportional
    assert not Exponent.fit(sizes, [sizes**1.9, sizes**2.0]).is_proportional
    assert not Exponent.fit(sizes, [sizes**0.8, sizes**1.2]).is_proportional  # 1 is inside, but much else too
    assert not Exponent.fit(sizes, [sizes]).is_proportional  # a single seed has no interval
    assert Exponent.fit(sizes, [[1.0, -1.0, 2.0]]) is None


def test_spreads_are_medians_and_quartiles():
    """Fewer than five have a lowest and a highest instead, and a single one neither."""
    assert spread([1.0, 2.0, 4.0], 0) == "2 (1 to 4)"
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0], 1, " %") == "3.0 % (2.0 to 4.0)"
    assert spread([0.123]) == "0.12"


def test_nothing_is_shown_as_less_than_zero():
    """Neither a small negative number, rounded, nor an exact zero has a sign or a power of ten."""
    assert spread([-0.001, 0.001, 0.002]) == "0.00"
    assert spread([-0.006]) == "-0.01"
    assert magnitude(0.0) == "0"
    assert magnitude(3.4e-15) == "3e-15"


def test_every_experiment_names_its_script():
    """The page links to the file that defines an experiment, also where its settings are the protocol's."""
    for experiment in EXPERIMENTS.values():
        text = (Path(experiments.__file__).parent / experiment.script).read_text()
        assert f'name="{experiment.name}"' in text
