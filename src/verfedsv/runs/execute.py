"""Carry a run out: read the data, train, record, evaluate, value, and write it all to one folder.

config.toml         the configuration as it was given
transcript/         who uploaded what (docs/transcript.md)
metrics.jsonl       loss and accuracy, a line for each evaluation
checkpoint.npz      where training goes on after an interruption; removed at the end
valuation.json      what each client contributed
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.data.catalogue import get_entry, load
from verfedsv.data.tables import ClientFile, join_tables
from verfedsv.data.vertical import VerticalData, noisy_copy, random_client, split_features, take_rows
from verfedsv.errors import InputError
from verfedsv.federation import (
    AsynchronousPlan,
    Evaluation,
    Federation,
    Linear,
    Moment,
    Rate,
    RealClock,
    Steps,
    SynchronousPlan,
    Tape,
    VirtualClock,
    asynchronous_rounds,
    federate,
    synchronous_rounds,
)
from verfedsv.federation.federation import BuildModel
from verfedsv.losses import Array, Floats
from verfedsv.runs.config import ClientSection, Config
from verfedsv.runs.live import LiveShares
from verfedsv.shapley import Progress
from verfedsv.transcript import Recorder, Transcript
from verfedsv.transcript.reader import FOLDER
from verfedsv.valuation import Valuation, value

CONFIG, METRICS, CHECKPOINT, VALUATION = "config.toml", "metrics.jsonl", "checkpoint.npz", "valuation.json"

CHECKPOINT_COST = 20
"""A checkpoint is written when training has gone on for so many times as long as the last one took to write."""


@dataclass(frozen=True, eq=False)
class Update:
    """How far a training is. An evaluation, and shares so far, come with some of them.

    The shares are of the games between one evaluation and the next, from all embeddings: close to, but not, those of
    the valuation, whose games are the rounds.
    """

    n_rounds: int
    n_rounds_in_all: int
    evaluation: Evaluation | None = None
    shares: Floats | None = None


class Run:
    """A run of a configuration. `text` is the configuration as it was written."""

    def __init__(self, config: Config, text: str) -> None:
        self.config, self._text = config, text
        self.folder = config.output.folder

    @cached_property
    def data(self) -> VerticalData:
        """The data of all clients, artificial ones included."""
        section = self.config.data
        files = {
            client.name: ClientFile(client.file, client.id, None if client.columns is None else tuple(client.columns))
            for client in self.config.client
            if client.file is not None
        }
        if section.name is not None:
            samples = load(section.name)
            n_clients = section.clients or get_entry(section.name).n_clients
            test = 0.2 if section.test is None and samples.n_test == 0 else section.test
            data = split_features(samples, n_clients, test=test, seed=section.seed)
        else:
            test = 0.2 if section.test is None else section.test
            label = str(section.label_client), str(section.label)
            data = join_tables(files, label, test=test, seed=section.seed)
        if section.samples is not None and section.samples < len(data.labels):
            rng = np.random.default_rng(section.seed)
            data = take_rows(data, np.sort(rng.permutation(len(data.labels))[: section.samples]))
        return self._with_artificial(data)

    def _with_artificial(self, data: VerticalData) -> VerticalData:
        for number, client in enumerate(self.config.client):
            rng = np.random.default_rng([self.config.data.seed, number])
            if client.copy_of is not None:
                names = {known.name: known for known in data.clients}
                if client.copy_of not in names:
                    raise InputError(f"{client.name!r} is to be a copy of {client.copy_of!r}; there are {list(names)}")
                data = data.with_clients(noisy_copy(names[client.copy_of], client.name, client.noise, rng))
            elif client.random_level is not None:
                data = data.with_clients(random_client(data.clients[0], client.name, client.random_level, rng))
            elif client.file is None and client.name not in data.names:
                raise InputError(
                    f"client {client.name!r} has no file, copy_of or random_level, and is none of the clients "
                    f"{', '.join(data.names)}"
                )
        return data

    def train(self, *, resume: bool = False, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Update]:
        """Train and record, yielding how far it is; ends early, at a checkpoint, if told to stop.

        With `resume`, goes on where the run in the folder was. What a killed run recorded after its last checkpoint is
        done again, and found in the transcript.
        """
        saved = self._open_folder(resume)
        data = self.data
        is_train = ~data.is_test
        loss = "logistic" if data.n_classes == 2 else "softmax"
        labels = data.labels[np.flatnonzero(is_train)]
        with Recorder(self.folder / FOLDER, labels, data.names, loss, resume=resume) as recorder:
            n_there = _count_records(recorder.transcript) if saved or recorder.n_rounds else 0
            n_before = int(saved["n_records"]) if saved else 0
            is_real = self.config.training.mode == "asynchronous" and self.config.training.clock == "real"
            tape = Tape(recorder, 0 if is_real else n_there - n_before)
            federation = self._federate(data, tape)
            if saved:
                federation.restore(saved)
                tape.n_records = n_before
            yield from self._follow(federation, saved, recorder, should_stop)

    def _follow(
        self, federation: Federation, saved: dict[str, Array], recorder: Recorder, should_stop: Callable[[], bool]
    ) -> Iterator[Update]:
        """Yield the updates of a training, evaluating and saving on the way."""
        done = int(saved["n_rounds"]) if saved else 0
        steps = Steps([0] * len(federation.clients))
        if saved and "steps" in saved:
            steps = Steps(saved["steps"].tolist(), done)
        in_all = self.n_rounds(federation.n_train)
        live = LiveShares(federation)
        saver = _Saver(self.folder / CHECKPOINT)
        with (self.folder / METRICS).open("a", encoding="utf-8") as metrics:
            for moment in self._rounds(federation, done, steps, recorder):
                done = moment.n_rounds
                is_last, stopped = done >= in_all, should_stop()
                update = Update(done, in_all)
                if done % self.config.training.evaluate_every == 0 or is_last:
                    evaluation = federation.evaluate(*moment)
                    metrics.write(json.dumps(evaluation.metrics()) + "\n")
                    metrics.flush()
                    update = Update(done, in_all, evaluation, live.after(evaluation))
                if stopped or is_last or saver.is_due():
                    saver.save(federation, moment, steps)
                yield update
                if stopped:
                    return

    def _rounds(self, federation: Federation, done: int, steps: Steps, recorder: Recorder) -> Iterator[Moment]:
        section = self.config.training
        if section.mode == "synchronous":
            return synchronous_rounds(federation, self._synchronous_plan(federation.n_train), done)
        begin = max(0.0, recorder.transcript.last_time) if recorder.n_rounds else 0.0
        clock = VirtualClock() if section.clock == "virtual" else RealClock(begin=begin)
        return asynchronous_rounds(federation, self._asynchronous_plan(), clock, steps)

    def value(self, progress: Progress | None = None) -> Valuation:
        """Value what was recorded, and write it down."""
        section = self.config.valuation
        result = value(
            self.folder,
            section.method,
            section.rank,
            section.seed,
            progress=progress,
            tolerance=section.tolerance,
            regularization=section.regularization,
        )
        _write_whole(self.folder / VALUATION, result.to_json().encode())
        return result

    def n_rounds(self, n_train: int) -> int:
        """Return the number of rounds or time stamps of the whole training."""
        if self.config.training.mode == "synchronous":
            return self._synchronous_plan(n_train).n_rounds
        return self._asynchronous_plan().n_stamps

    def _synchronous_plan(self, n_train: int) -> SynchronousPlan:
        section = self.config.training
        if section.rounds is not None:
            return SynchronousPlan(section.batch_size, section.rounds, section.seed)
        return SynchronousPlan.of_epochs(section.epochs or 1, section.batch_size, n_train, section.seed)

    def _asynchronous_plan(self) -> AsynchronousPlan:
        section = self.config.training
        known = {client.name: client for client in self.config.client}
        clients = [known.get(name) or ClientSection(name=name) for name in self.data.names]
        return AsynchronousPlan(
            [client.period or section.period for client in clients],
            [client.batch_size or section.batch_size for client in clients],
            section.stamp_every,
            # A duration that is a multiple of the stamps' distance must not lose one to rounding.
            int((section.duration or 0) / section.stamp_every + 1e-9),
            section.seed,
        )

    def _federate(self, data: VerticalData, tape: Tape) -> Federation:
        section = self.config.training
        return federate(
            data,
            rate=Rate(section.rate, section.decay),
            scale=self.config.data.scale,
            model=_model(self.config),
            intercept=section.intercept,
            tape=tape,
        )

    def _open_folder(self, resume: bool) -> dict[str, Array]:
        """Return the saved state of the run to go on with, empty if it is to begin."""
        if not resume:
            if self.folder.exists() and any(self.folder.iterdir()):
                raise InputError(f"{self.folder} is not empty; go on with --resume, or choose another output folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(self.folder / CONFIG, self._text.encode())
            return {}
        if not (self.folder / CONFIG).exists():
            raise InputError(f"there is no run in {self.folder} to go on with")
        if (self.folder / CONFIG).read_text(encoding="utf-8") != self._text:
            raise InputError(f"the run in {self.folder} has another configuration, see its {CONFIG}")
        path = self.folder / CHECKPOINT
        saved = {}
        if path.exists():
            with np.load(path) as content:
                saved = dict(content)
        _cut_metrics(self.folder / METRICS, int(saved["n_rounds"]) if saved else 0)
        return saved


class _Saver:
    """Writes checkpoints, not more often than is worth it."""

    def __init__(self, path: Path) -> None:
        self._path, self._took, self._last = path, 0.5, time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._last > CHECKPOINT_COST * self._took

    def save(self, federation: Federation, moment: Moment, steps: Steps) -> None:
        begin = time.monotonic()
        part = self._path.with_suffix(".part.npz")
        with federation.lock:
            content: dict[str, Any] = {
                **federation.state(),
                "n_rounds": moment.n_rounds,
                "n_records": federation.tape.n_records,
                "steps": np.array(steps.of_clients),
            }
            np.savez(part, **content)
        part.replace(self._path)
        self._last = time.monotonic()
        self._took = self._last - begin


def _model(config: Config) -> BuildModel:
    if config.model.kind == "linear":
        return Linear
    try:
        from verfedsv.federation.torch_models import perceptron
    except ImportError:
        raise InputError("the perceptron needs torch: pip install 'verfedsv[torch]'") from None
    return partial(perceptron, hidden=config.model.hidden, seed=config.training.seed)


def _count_records(transcript: Transcript) -> int:
    """Return how many rounds, or uploads and time stamps, there are."""
    if transcript.description.mode == "synchronous":
        return transcript.n_rounds
    return sum(1 for _ in transcript)


def _cut_metrics(path: Path, n_rounds: int) -> None:
    """Take off what was measured after a checkpoint: it will be measured again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _round_of(line) <= n_rounds]
        _write_whole(path, "".join(line + "\n" for line in kept).encode())


def _round_of(line: str) -> float:
    try:
        content: dict[str, Any] = json.loads(line)
        return float(content["n_rounds"])
    except (ValueError, KeyError):
        return np.inf  # cut short by a crash


def _write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
