"""Train and value a run with progress bars, for `run` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.markup import escape

from verfedsv.arrays import Floats
from verfedsv.cli.progress import follow, interrupts, progress_bar
from verfedsv.federation import Evaluation
from verfedsv.federation.evaluation import MEASURES
from verfedsv.runs import Run
from verfedsv.texts import digits, number
from verfedsv.valuation import Valuation


def train_with_bar(
    console: Console,
    run: Run,
    *,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    description: str = "training",
) -> None:
    """Train, showing round, what is measured and shares so far."""
    with progress_bar(console) as bar:
        task = bar.add_task(description, total=None)
        for update in run.train(resume=resume, should_stop=should_stop):
            if resume:
                done = update.n_rounds - 1
                console.print(f"Continuing from round {done:,} of {update.n_planned:,}.", highlight=False)
                resume = False
            bar.update(task, completed=update.n_rounds, total=update.n_planned)
            if update.evaluation is not None and update.shares is not None:
                bar.update(task, description=_describe(update.evaluation, run.data.names, update.shares))


def value_with_bar(console: Console, run: Run) -> Valuation:
    """Value what was recorded, showing progress."""
    with interrupts() as check, progress_bar(console) as bar:
        task = bar.add_task("valuing", total=None)
        return run.value(follow(bar, task, check))


def _describe(evaluation: Evaluation, clients: tuple[str, ...], shares: Floats) -> str:
    """Return what was measured on training samples and the three largest shares so far in one line."""
    largest = (-shares).argsort(kind="stable")[:3]
    shown = ", ".join(f"{escape(clients[m])} {number(100 * shares[m], 0)}%" for m in largest)
    return f"{listed_measures(evaluation.train)}; {shown}"


def listed_measures(measures: Mapping[str, float], *, with_names: bool = True) -> str:
    """Return measures in a line; without their names, only the numbers.

    >>> listed_measures({"loss": 0.32491, "accuracy": 0.8491})
    'loss 0.3249, accuracy 84.91%'
    """
    parts = {MEASURES[name].title: _measured(name, amount) for name, amount in measures.items()}
    return ", ".join(f"{title} {text}" if with_names else text for title, text in parts.items())


def _measured(name: str, amount: float) -> str:
    return f"{amount:.2%}" if MEASURES[name].is_fraction else digits(amount, 4)
