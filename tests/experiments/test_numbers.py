"""Numbers that were typed into texts are those of the published results."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from experiments.shap import kendalls_tau

ROOT = Path(__file__).parents[2]


def parts(name, start=""):
    """Return the findings of the published parts of a result whose names start so."""
    content = json.loads((ROOT / "docs" / "paper" / f"{name}.json").read_text(encoding="utf-8"))
    return [part["found"] for label, part in content["parts"].items() if label.startswith(start)]


def text_of(path):
    """Return a text, or the notes of an experiment, with single spaces."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return " ".join((tomllib.loads(text)["notes"] if path.endswith(".toml") else text).split())


def ends(values, digits=0):
    """Return the smallest and the largest value."""
    return f"{np.min(values):,.{digits}f} to {np.max(values):,.{digits}f}"


def introduction():
    """Yield accuracies, and sizes of the largest classes."""
    [adult], [web] = (parts(f"metadata-{data}") for data in ("adult", "web"))
    adult_part, web_part = (100 * x["rows of the largest class"] / x["rows"] for x in (adult, web))
    yield f"right for {adult_part:.1f} % on Adult and for {web_part:.1f} % on Web"
    plain = [part["accuracy"]["synchronous"] for part in parts("shap-rcv1", "seed ")]
    three = [part["accuracy"] for part in parts("ablation-rcv1", "truth")]
    yield f"({100 * np.median(plain):.0f} % test accuracy with 14 clients, {100 * np.median(three):.0f} % with 3)"
    scaled = [part["accuracy"] for name in ("similar-features", "random-features") for part in parts(f"{name}-rcv1")]
    scaled += [part["accuracy"]["synchronous"] for part in parts("shap-rcv1", "rows of norm 1")]
    scaled = 100 * np.array(scaled)
    yield f"({ends(scaled)} %, median {np.median(scaled):.0f} %; the paper has 83 %)"


def similar_features():
    """Yield the largest stated errors."""
    largest = {
        data: max(
            max(part["paper"]["errors"])
            for part in parts(f"similar-features-{data}", "seed ")
            if "errors" in part["paper"]
        )
        for data in ("adult", "web", "covtype", "rcv1")
    }
    yield f"up to {100 * largest['adult']:.0f} % of client 1's value on Adult"
    yield f"{largest['covtype']:.0f} times this value on Covtype, and {round(largest['rcv1'], -2):,.0f} times on RCV1"
    yield f"on Web, where they are {np.ceil(100 * largest['web']):.0f} %"


def random_features():
    """Yield shares on raw columns, true ones, and their errors."""
    raw = [part["artificial"] for part in parts("random-features-adult", "raw columns")]
    yield f"single artificial clients are from {ends(raw)} percent"
    true = np.median([sum(part["truth"]) for part in parts("random-features-adult", "seed ") if "truth" in part])
    yield f"the artificial clients get {true:.2f} %, more than in the paper"
    errors = {
        data: max(max(part["truth, errors"]) for part in parts(f"random-features-{data}") if "truth, errors" in part)
        for data in ("web", "covtype")
    }
    yield f"up to {errors['web']:.2f} % on Web and {errors['covtype']:.2f} % on Covtype"
    above = [max(part["artificial"]) - min(part["regular"]) for part in parts("random-features-web", "seed ")]
    low, high = sorted(x for x in above if x > 0)
    yield f"in two of ten seeds, by {low:.3f} and {high:.3f} percentage points"


def random_features_async():
    """Yield the shares that are in the wrong order on Adult."""
    found = parts("random-features-async-adult", "8 + 5 clients")
    yield (
        f"in every seed: {min(min(part['regular']) for part in found):.3f} % against up to "
        f"{max(max(part['artificial']) for part in found):.3f} %"
    )


def frequency():
    """Yield stated errors as parts of shares, and exponents in the size of batches."""
    covtype, rcv1 = (
        np.array([np.divide(part["errors"], np.abs(part["shares"])) for part in parts(f"frequency-{data}", "seed ")])
        for data in ("covtype", "rcv1")
    )
    yield f"are {ends(100 * covtype)} % of the shares on Covtype"
    middle = [f"{x:.1f}" for x in np.median(rcv1, axis=0)]
    yield f"On RCV1 they are {', '.join(middle[:-1])} and {middle[-1]} times the shares"
    yield f"and up to {rcv1.max():.0f} times"


def ablation():
    """Yield how far longer fits get."""
    [found] = parts("ablation-adult", "to convergence")
    [ours], [longer] = found["our start"], found["our start, longer"]
    starts, others = found["random start"], found["random start, longer"]
    objectives = np.transpose([part["objectives"] for part in others])
    assert max(ours["sweeps"]) == 2
    yield (
        f"{ends(objectives[0])} against {ours['objectives'][0]:.0f} and {ends(objectives[1])} against "
        f"{ours['objectives'][1]:,.0f}"
    )
    yield f"falls to {objectives[2].max():.1f} in every seed, from 10⁷ and more in three of the five"
    assert sum(part["objectives"][2] > 1e7 for part in starts) == 3
    assert sum(n == 3000 for part in others for n in part["sweeps"]) == 1
    yield "of 15, one takes all 3,000 sweeps"
    falls = 100 * (1 - np.divide(longer["objectives"], ours["objectives"]))
    assert f"{falls[0]:.1f}" == f"{falls[1]:.1f}"
    yield (
        f"{ends(longer['sweeps'])} sweeps lower the objectives of clients 1 and 2 by {falls[0]:.1f} % each and "
        f"client 3's by {falls[2]:.1f} %, from {ours['objectives'][2]:.1f} to {longer['objectives'][2]:.1f}, and the "
        f"deviation from {ours['deviation']:.2f} to {longer['deviation']:.2f} %"
    )


def readme():
    """Yield deviations on Adult."""
    [auto], [ours] = parts("ablation-adult", "auto"), parts("ablation-adult", "ours")
    random = [part["rank"][2][1] for part in parts("ablation-adult", "random, ")]
    yield f"it is {auto['deviation']:.2f} % with an automatic rank and λ"
    yield f"give {ours['rank'][2][1]:.2f} % from our start, and {np.median(random):.1f} % from random ones"


def decisions():
    """Yield shares on raw columns, and errors of standardised ones."""
    raw = [part["artificial"] for part in parts("random-features-adult", "raw columns")]
    yield f"true shares of {ends(raw)} %"
    web, covtype = (
        max(max(part["errors"]) for part in parts(f"random-features-async-{data}", "standardised"))
        for data in ("web", "covtype")
    )
    yield f"errors are up to {web:.0f} and {covtype:.1f} % of all values"


def shap():
    """Yield shares on the documents of RCV1 as they are."""
    shares = [part["scores"]["synchronous"] for part in parts("shap-rcv1", "seed ")]
    yield f"their shares range from {ends(100 * np.array(shares))} %"


def baselines():
    """Yield the mean agreement with retraining, and the share that is largest in size."""
    found = {data: parts(f"baselines-{data}") for data in ("adult", "web", "covtype")}

    def mean(kind):
        return np.mean([kendalls_tau(part["retraining"], part[kind]) for of in found.values() for part in of])

    yield (
        f"mean τ is {mean('synchronous'):.2f} and {mean('asynchronous'):.2f} for VerFedSV, synchronous and "
        f"asynchronous, {mean('leave-one-out'):.2f} for leave-one-out and {mean('shap'):.2f} for SHAP"
    )
    six = parts("baselines-covtype", "6 clients")
    learnt, retrained = (
        100 * np.median([part[kind][0] / sum(part[kind]) for part in six]) for kind in ("synchronous", "retraining")
    )
    yield f"client 1 of six gets {learnt:.0f} % of what one training learnt and {retrained:.0f} % of what retraining"


def guarantees():
    """Yield the bounds of Proposition 2."""
    bounds = [
        part["stated"] for data in ("adult", "web", "covtype") for part in parts(f"guarantees-{data}", "completion")
    ]
    yield f"because it is {min(bounds):.0f} to {round(max(bounds), -2):,.0f} times the largest value"


def theory():
    """Yield by how much the total grows with a third copy."""
    totals = [[part[more]["total"] for more in ("0 more", "3 more")] for part in parts("theory-adult", "identical")]
    yield f"but by {np.median([100 * (last / first - 1) for first, last in totals]):.1f} %"


TEXTS = {
    "experiments/introduction.md": introduction,
    "experiments/similar_features.toml": similar_features,
    "experiments/random_features.toml": random_features,
    "experiments/random_features_async.toml": random_features_async,
    "experiments/frequency.toml": frequency,
    "experiments/ablation.toml": ablation,
    "experiments/shap.toml": shap,
    "experiments/baselines.toml": baselines,
    "experiments/guarantees.toml": guarantees,
    "experiments/theory.toml": theory,
    "README.md": readme,
    "docs/decisions.md": decisions,
}


@pytest.mark.parametrize("path", TEXTS)
def test_numbers_in_texts_are_those_of_the_results(path):
    """Each phrase with its numbers, as computed from the published JSON, is in the text."""
    text = text_of(path)
    missing = [phrase for phrase in TEXTS[path]() if phrase not in text]
    assert missing == []
