"""What attacks from the literature learn from what crosses the wire in our own trainings.

`python -m benchmarks.leakage` writes "What was measured" in docs/security.md, in two minutes. Like `attacks` and
`wire`, it needs nothing of the extra `bench`, so that tests can import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from benchmarks import attacks
from benchmarks.attacks import Floats, Labels, Numbers
from benchmarks.wire import CASES, DIABETES, EVERY, LETTER, PARTIES, SUM, Case, Parties, View, watch
from experiments.experiment import Table
from experiments.page import markdown

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
BEGIN, END = "<!-- written by python -m benchmarks.leakage -->", "<!-- end of what it writes -->"

SEEDS = 3
N_LABELLED, N_DRAWS = 40, 5
"""Samples whose labels the attacker knows, and how often they are drawn."""


# How well each attack does, in the order of the columns of its table


def rate_gradients(view: View, parties: Parties, seed: int) -> list[float]:
    """Return how well gradients tell the labels of training samples: accuracies and AUC.

    Of guessing; by sign under a sum, by direction under a network, from the first epoch and from all; by length.
    """
    y = view.labels[: view.n_train]
    positive = int(np.random.default_rng([attacks.OF_ATTACKS, seed]).choice(np.flatnonzero(y == 1)))

    def score(gradients: Floats) -> Floats:
        by_sign = parties.head == "sum"
        return attacks.score_by_sign(gradients)[:, 0] if by_sign else attacks.score_by_direction(gradients, positive)

    first, every, length = score(view.gradients[:1]), score(view.gradients), attacks.score_by_length(view.gradients)
    known = draw(y, seed, 0)
    threshold = attacks.choose_threshold(length[known], y[known])
    right = [np.mean((first > 0) == y), np.mean((every > 0) == y), roc_auc_score(y, every)]
    return [largest_class(y), *right, np.mean((length > threshold) == y), roc_auc_score(y, length)]


def rate_models(view: View, seed: int) -> list[tuple[float, float]]:
    """Return accuracy and AUC on test samples, of which no gradients were ever sent.

    Of guessing; of the client's columns and of its completed model with few labels; of its columns with all labels.
    """
    n, y = view.n_train, view.labels

    def rate(scores: Floats) -> tuple[float, float]:
        return np.mean((scores[n:] > 0) == y[n:]), roc_auc_score(y[n:], scores[n:])

    draws = [draw(y[:n], seed, number) for number in range(N_DRAWS)]
    columns, completed = (
        np.median([rate(attacks.fit_few(inputs, known, y[known])) for known in draws], axis=0)
        for inputs in (view.columns, view.evaluations[-1])
    )
    own = LogisticRegression(max_iter=3000).fit(view.columns[:n], y[:n])
    return [(largest_class(y[n:]), 0.5), tuple(columns), tuple(completed), rate(own.decision_function(view.columns))]


def rate_embeddings(view: View, parties: Parties, seed: int) -> list[tuple[float, int]]:
    """Return how well embeddings tell a client's columns: the median R2, and how many are above 0.99.

    From the last evaluation; from all evaluations, with half of the samples known and with few; from all uploads.
    """
    columns, evaluations = view.columns[: view.n_train], np.hstack([*view.evaluations])
    if parties.model == "linear":
        of_uploads = attacks.r2_by_solving(view.uploads, view.rounds, columns, seed)
    else:
        of_uploads = attacks.r2_by_regression(np.hstack([*view.uploads]), columns, seed)
    found = [
        attacks.r2_by_regression(view.evaluations[-1], view.columns, seed),
        attacks.r2_by_regression(evaluations, view.columns, seed),
        attacks.r2_from_few(evaluations, view.columns, seed),
        of_uploads,
    ]
    return [(float(np.median(r2)), int((r2 > 0.99).sum())) for r2 in found]


def rate_others(view: View) -> float:
    """Return the largest error of the others' embeddings, summed, as a part of the largest of them."""
    off = attacks.embeddings_of_others(view.gradients, view.uploads) - view.others
    return float(np.abs(off).max() / np.abs(view.others).max())


def rate_classes(seed: int) -> list[float]:
    """Return the accuracy of guessing one of Letter's 26 classes; by sign, from the first epoch and from all."""
    view = watch(LETTER.load(seed), LETTER, SUM, seed)
    y = view.labels[: view.n_train]
    scores = (attacks.score_by_sign(gradients) for gradients in (view.gradients[:1], view.gradients))
    return [largest_class(y), *(np.mean(each.argmax(axis=1) == y) for each in scores)]


def rate_amounts(seed: int) -> tuple[float, float]:
    """Return the largest error of Diabetes' labels in the first batch, and the R2 of all labels, by first gradients."""
    view = watch(DIABETES.load(seed), DIABETES, SUM, seed)
    found, y, is_first = -view.gradients[0, :, 0], view.labels[: view.n_train], view.rounds[0] == 1
    return float(np.abs(found - y)[is_first].max()), float(1 - np.mean((found - y) ** 2) / np.var(y))


def draw(y: Labels, seed: int, number: int) -> Numbers:
    """Return the samples whose labels the attacker knows, with the classes in proportion."""
    options = {"train_size": N_LABELLED, "stratify": y, "random_state": 1000 * seed + number}
    return np.asarray(train_test_split(np.arange(len(y)), **options)[0])


def largest_class(y: Labels) -> float:
    """Return the accuracy of guessing the largest class."""
    return float(np.bincount(y).max() / len(y))


# The page

TEXT = """
Attacks from the literature, on synchronous trainings of our own, each with the view of one party only: {seeds} seeds,
medians. Adult has four clients, of which the second attacks or is attacked (31 of 123 columns, such as marital status
and occupation). Credit and breast have two, and it is the one without labels. All train with Adam, and with an
intercept under a sum; a network has 64 units and takes 8 numbers from each client. All samples are evaluated every
{every} rounds, the default. Batches and epochs are in `benchmarks/wire.py`, the attacks in `benchmarks/attacks.py`;
`python -m benchmarks.leakage` measures again, in two minutes, with the data in `$VERFEDSV_DATA`.

### Labels of training samples, from gradients

**Under a sum, the sign of a gradient is the label.** The gradient of the logistic loss is p - y. In every round, that
of every sample in the batch gives its label away, whatever the data, models, optimizer and class weights: the direct
attack of Fu et al. [2]. Of the gradient of softmax, only the number of the label is negative. In asynchronous training,
gradients have the same signs (`test_the_sign_of_a_gradient_is_the_label_under_a_sum`).

**A network at the server does not hide it.** The two classes get gradients of opposite directions, and one sample that
is known to be positive tells which is which: the attack by direction of Li et al. [1]. One epoch is enough.

Accuracy and AUC, beside guessing the largest class. "By length" is the attack by norm of [1], which uses only the
length of the gradients, with a threshold that suits {n_labelled} labelled samples.

{labels}

**The size of a gradient is the score.** A client that knows the sign can compute the score of each training sample in
each round. Less its own embedding, that is the sum of all other clients' embeddings and the intercept (largest error:
{error} of the largest sum). With two clients, each has the embeddings of the other, up to the intercept, and can do
with them what the server can ([below](#features-from-embeddings)).

**Amounts.** The gradient of the squared loss is the score minus the standardised label. Linear models start at zero, so
the first batch gets exactly its labels (Diabetes: largest error {first}). Minus the first gradient of each sample had
an R² of {epoch} with its label.

### Labels of test samples

Test samples never get gradients, and no score of theirs is sent to a client. What a client can say of them comes from
its columns and its model. Accuracy on test samples, AUC in brackets: by logistic regression on its columns; by its
model, completed by one more layer (the passive attack of [2]), both with {n_labelled} labelled training samples (median
of {n_draws} draws); by logistic regression on its columns with all labels of training samples, which it has from the
gradients; and by the consortium.

{models}

With {n_labelled} labels, the trained model says more than the columns on Adult and credit, and less on breast. But a
client has all training labels, and with these its columns alone say at least as much, by AUC.

### Features, from embeddings

An embedding of a linear model is one equation in the client's columns, or as many as it has numbers. Models move, so
each round and each evaluation adds equations. Median R² over the client's columns, and in brackets how many of them are
above 0.99, for a server that knows the columns of half of the samples and fits a linear regression on embeddings of
the last evaluation, or of all; for one that knows as many samples as the client has columns, plus one ("few known");
and for one that uses training uploads only (for linear models, it solves for the weights of each round, then for the
columns). "Evaluations" and "uploads" are how many a sample took part in, times the width of an embedding.

{columns}

**Once a sample has sent as many numbers as its client has columns, a linear model hides nothing.** On credit and
breast, 11 and 21 known samples are enough. On Adult, 32 are not: they lack rare categories, as do the known samples of
some batches. Before that, the server has as many combinations of the columns as numbers
(`test_a_linear_model_that_sends_less_hides_something`). Of perceptrons, a linear regression learns less; stronger
attacks were not measured. Test samples send embeddings in evaluations, like training samples.
"""

LABELS = ["data, models, head", "guessing", "first epoch", "all epochs", "AUC", "by length", "AUC by length"]
MODELS = [
    "data, models, head",
    "guessing",
    "own columns, 40 labels",
    "completed, 40 labels",
    "own columns, all labels",
    "consortium",
]
COLUMNS = ["data, models, head", "columns", "evaluations", "last", "all", "all, few known", "uploads", "all uploads"]


def run(cases: Sequence[Case] = CASES, n_seeds: int = SEEDS) -> str:
    """Measure, and return the text of the page."""
    labels, models, columns, errors = [], [], [], []
    for case in cases:
        for parties in PARTIES:
            views = [watch(case.load(seed), case, parties, seed) for seed in range(n_seeds)]
            errors += [rate_others(view) for view in views if parties is SUM]
            title = f"{case.name.capitalize()}, {parties.title}"
            labels.append(
                [title, *as_cells(np.median([rate_gradients(v, parties, s) for s, v in enumerate(views)], 0))]
            )
            of_models = np.median([rate_models(view, seed) for seed, view in enumerate(views)], axis=0)
            accuracy = percent(np.median([view.accuracy for view in views]))
            models.append([title, *(f"{percent(right)} ({auc:.2f})" for right, auc in of_models), accuracy])
            of_columns = np.median([rate_embeddings(view, parties, seed) for seed, view in enumerate(views)], axis=0)
            *of_evaluations, of_uploads = (f"{round(r2, 2) + 0.0:.2f} ({n:.0f})" for r2, n in of_columns)
            width = views[0].uploads.shape[2]
            n_evaluations, n_uploads = (f"{len(sent)} x {width}" for sent in (views[0].evaluations, views[0].uploads))
            n_columns = str(views[0].columns.shape[1])
            columns.append([title, n_columns, n_evaluations, *of_evaluations, n_uploads, of_uploads])
            print(f"  {labels[-1]}\n  {models[-1]}\n  {columns[-1]}")
    of_classes = np.median([rate_classes(seed) for seed in range(n_seeds)], axis=0)
    labels.append(["Letter, linear, sum", *map(percent, of_classes), *[""] * 3])
    first, epoch = np.median([rate_amounts(seed) for seed in range(n_seeds)], axis=0)
    tables = {"labels": (LABELS, labels), "models": (MODELS, models), "columns": (COLUMNS, columns)}
    return TEXT.format(
        **{name: markdown(Table(*content)) for name, content in tables.items()},
        error=f"{max(errors):.0e}",
        first="0" if first == 0 else f"{first:.0e}",
        epoch=f"{epoch:.2f}",
        seeds=n_seeds,
        every=EVERY,
        n_labelled=N_LABELLED,
        n_draws=N_DRAWS,
    )


def as_cells(found: Floats) -> list[str]:
    """Return a row of the first table: accuracies in percent, AUC as fractions."""
    return [f"{x:.2f}" if "AUC" in name else percent(x) for name, x in zip(LABELS[1:], found, strict=True)]


def percent(x: float) -> str:
    """Return a fraction in percent; 100 % means all."""
    return "100 %" if x == 1 else f"{100 * x:.1f} %" if x < 0.9995 else f"{100 * x:.3f} %"


def main() -> None:
    """Measure, and write the part of the page between the two comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{run()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
