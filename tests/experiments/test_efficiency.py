import numpy as np
import pytest

from experiments import efficiency
from experiments.efficiency import Axis, Sweep, fit_exponent, is_linear, is_stable, times_of_completion
from experiments.experiment import Exponent
from experiments.lab import Settings, split, train_synchronously, uploads_of
from verfedsv import Transcript, complete
from verfedsv.data import take_rows


def trained():
    """Return a short training of three clients on 200 samples of Adult."""
    settings = Settings(clients=3, batch_size=50, rate=0.5, rounds=20, rank=2, regularization=0.1)
    return train_synchronously(take_rows(split("adult", settings), np.arange(200)), settings)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
def test_a_client_completes_from_its_uploads_as_in_a_valuation():
    """What is timed is the completion that the values are computed from."""
    example = trained()
    batches, uploads = uploads_of(Transcript.open(example.path))
    known = example.value().factorisation
    for m, of_client in enumerate(uploads):
        found = complete(batches, of_client, 200, 2, 0.1, n_threads=1)
        np.testing.assert_allclose(found.embeddings(7), known.completions[m].embeddings(7), atol=1e-12)
    assert times_of_completion(example, 2).shape == (2, 3)


def test_exponents_are_those_of_long_times():
    """Sizes up to the last one below the floor have fixed costs, and are left out; too few are not fitted."""
    sizes = np.array([1.0, 2, 4, 8, 16])
    seconds = np.array([[0.2, 0.04, *(0.1 * sizes[2:] ** power)] for power in (1.4, 1.5, 1.6)])
    found = fit_exponent(sizes, seconds)
    assert found.middle == pytest.approx(1.5)
    assert found.low < 1.4 < 1.6 < found.high
    assert fit_exponent(sizes[:4], seconds[:, :4]) is None


def test_the_size_on_all_axes_is_measured_once():
    """Eight clients, 360 rounds and all samples are a point of every axis."""
    sweep = Sweep(clients=Axis(sizes=(2, 8)), rounds=Axis(sizes=(90, 360)), samples=Axis(sizes=(500, 48_842)))
    found = efficiency._axes_of_sizes(sweep)
    assert found[8, 360, 48_842] == ["clients", "rounds", "samples"]
    assert len(found) == 4


def fake(clients_power, rounds_power):
    """Return findings with known times."""
    parts = {}
    for axis, sizes in {"clients": (2, 4, 8, 16), "rounds": (45, 90, 180, 360), "samples": (500, 1000, 2000)}.items():
        for n in sizes:
            size = {"clients": 8, "rounds": 90, "samples": 1000, axis: n, "axes": [axis]}
            seconds = size["rounds"] ** rounds_power * size["samples"]
            sampled = (size["clients"] ** 2 * np.log(size["clients"])) ** clients_power * seconds
            parts[f"ours, {axis} {n}"] = {
                **size,
                "slowest": [seconds] * 3,
                "median": [seconds],
                "sum": [seconds],
                "valuation": [1.0],
            }
            parts[f"sampling, {axis} {n}"] = {**size, "valuation": [sampled]}
    return {"adult": parts}


def test_claims_compare_with_what_the_paper_says():
    """Times that grow as stated are reproduced, if timed repeatedly, and those that grow otherwise are not."""
    assert [claim.verdict for claim in efficiency.claims(fake(1, 1))] == ["yes"] * 3 + ["in trend"] * 3
    found = {claim.what: claim.verdict for claim in efficiency.claims(fake(0.6, 1.5))}
    assert found["time against M² ln M"] == "in trend"
    assert found["slowest client against rounds"] == found["time against rounds"] == "no"
    assert found["slowest client against samples"] == "yes"


def test_times_that_are_too_short_are_not_judged():
    """The claim stays, and says so."""
    results = fake(1, 1)
    for part in results["adult"].values():
        part.update({step: [0.001] for step in ("slowest", "valuation") if step in part})
    claims = efficiency.claims(results)
    assert [(claim.ours, claim.verdict) for claim in claims] == [("too short to tell", None)] * 6


def verdicts(judge, *middles, half=0.0):
    """Return the verdicts on exponents with intervals of some half width."""
    return [judge(Exponent(x, x - half, x + half)) for x in middles]


def test_verdicts_are_two_sided():
    """Faster growth than linear is no reproduction of linear growth, and a fall is not stable."""
    assert verdicts(is_linear, 0.4, 0.5, 0.8, 1.0, 1.2, 1.3) == ["no", "in trend", "yes", "yes", "yes", "no"]
    stable = verdicts(is_stable, -0.6, -0.3, -0.2, 0.0, 0.2, 0.4)
    assert stable == ["no", "in trend", "yes", "yes", "yes", "in trend"]


def test_the_whole_interval_decides():
    """A mean exponent within the band is not enough; what was timed once has no interval, and is in trend at best."""
    assert verdicts(is_stable, -0.12, 0.0, half=0.15) == ["in trend", "yes"]
    assert verdicts(is_linear, 0.7, 0.9, 1.0, 1.1, 1.3, half=0.15) == ["in trend", "in trend", "yes", "in trend", "no"]
    assert verdicts(is_linear, 1.0, half=np.inf) == ["in trend"]
