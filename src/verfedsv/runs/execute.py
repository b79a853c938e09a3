"""Carry out a run: read the data, train, record, evaluate and value, and write the results to one folder.

config.toml         the configuration as it was given
transcript/         who uploaded what (docs/transcript.md)
metrics.jsonl       loss and other measures, a line for each evaluation
notes.json          notes on the data and the training, a list of sentences
checkpoints/        where an interrupted training continues, a file per party; at the end, the trained models
valuation.json      what each client contributed
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verfedsv.data.catalogue import Samples, get_data_set, load
from verfedsv.data.libsvm import read_samples
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import TEST, join_tables
from verfedsv.data.vertical import VerticalData, noisy_copy, random_client, split_features, take_rows
from verfedsv.errors import DivergedError, InputError, TranscriptError
from verfedsv.federation import (
    AsynchronousSchedule,
    Evaluation,
    Linear,
    Perceptron,
    Rate,
    RealClock,
    Server,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.clients import BuildModel
from verfedsv.files import write_whole
from verfedsv.losses import Floats, get_loss
from verfedsv.runs import writing
from verfedsv.runs.config import ClientSection, Config
from verfedsv.runs.extent import agreed_by, planned_rounds
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.live import LiveShares
from verfedsv.runs.predicting import PredictedRows, predict
from verfedsv.runs.reading import parse_config, read_text, resolve
from verfedsv.runs.resume import Saver, resume_server
from verfedsv.shapley import Progress
from verfedsv.transcript import Recorder
from verfedsv.valuation import Valuation, value


@dataclass(frozen=True, eq=False)
class Update:
    """The progress of a training; some updates come with an evaluation and the shares so far.

    Shares are computed from one evaluation to the next, with the embeddings of all samples: close to those of the
    valuation, which go from round to round.
    """

    n_rounds: int
    n_planned: int
    evaluation: Evaluation | None = None
    shares: Floats | None = None


class Run:
    """A run of a configuration; `text` is the configuration as written."""

    def __init__(self, config: Config, text: str) -> None:
        self.config, self._text = config, text
        self.folder = config.output.folder
        self._files = RunFolder(self.folder)

    @classmethod
    def of_file(cls, path: Path) -> Run:
        """Return the run of the configuration in a file."""
        text = read_text(path)
        return cls(resolve(parse_config(text, path), path.parent), text)

    @cached_property
    def data(self) -> VerticalData:
        """The data of all clients, artificial ones included."""
        section, loss = self.config.data, self.config.training.loss
        samples: Samples | None = None
        if section.name is not None:
            samples = load(section.name)
        elif section.file is not None:
            samples = read_samples(section.file, section.test_file, n_classes=section.classes, loss=loss)
        if samples is not None:
            n_clients = section.clients or get_data_set(samples.name).n_clients
            test = TEST if section.test is None and samples.n_test == 0 else section.test
            data = split_features(samples, n_clients, test=test, seed=section.seed, loss=loss)
        else:
            label = str(section.label_client), section.label
            options: dict[str, Any] = {"n_classes": section.classes, "loss": loss}
            data = join_tables(self._files_of_clients(), label, test=section.test, seed=section.seed, **options)
        if section.samples is not None and section.samples < len(data.labels):
            rng = np.random.default_rng(section.seed)
            data = take_rows(data, np.sort(rng.permutation(len(data.labels))[: section.samples]))
        return self._with_artificial(data)

    def _files_of_clients(self) -> dict[str, ClientFile]:
        return {
            client.name: ClientFile(
                client.file,
                None if self.config.data.aligned else client.id,
                None if client.columns is None else tuple(client.columns),
                client.test_file,
            )
            for client in self.config.client
            if client.file is not None
        }

    def _with_artificial(self, data: VerticalData) -> VerticalData:
        for number, client in enumerate(self.config.client):
            rng = np.random.default_rng([self.config.data.seed, number])
            if client.copy_of is not None:
                names = {other.name: other for other in data.clients}
                if client.copy_of not in names:
                    raise InputError(
                        f"{client.name!r} cannot be a copy of {client.copy_of!r}; the clients are {', '.join(names)}"
                    )
                data = data.with_clients(noisy_copy(names[client.copy_of], client.name, client.noise, rng))
            elif client.random_level is not None:
                data = data.with_clients(random_client(data.clients[0], client.name, client.random_level, rng))
            elif client.file is None and client.name not in data.names:
                raise InputError(
                    f"client {client.name!r} has no file, copy_of or random_level, and is not one of the clients "
                    f"{', '.join(data.names)}"
                )
            elif client.name not in data.names and (client.period or client.batch_size):
                raise InputError(
                    f"client {client.name!r} holds only the labels and uploads nothing; leave out its period and "
                    "batch_size"
                )
        return data

    def check_folder(self, *, resume: bool) -> None:
        """Check, without reading data, that the run can begin or be resumed in its folder; raise InputError if not."""
        if resume:
            writing.check_same(self.folder, self.config)
        else:
            writing.check_free(self.folder, self._text)

    def train(self, *, resume: bool = False, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Update]:
        """Train and record, yielding the progress; ends early, at a checkpoint, if `should_stop` returns True.

        With `resume`, continues the run in the folder. What a killed run recorded after its last checkpoint is
        computed again and compared with the transcript. Nothing is written before all input was checked, and nothing is
        overwritten before that comparison is done.
        """
        self.check_folder(resume=resume)
        training = self._prepare()
        live = LiveShares(training)
        saver = Saver(training, live)
        if resume:
            saver.restore()
        else:
            writing.begin(self.folder, self._text)
        # The recorder verifies an existing transcript before continuing it.
        with self._record(self._files.recording_path, resume=resume) as recorder:
            begin = resume_server(training.server, recorder, self.config)
            try:
                yield from self._follow(training, self._rounds(training, begin), live, saver, should_stop)
            except DivergedError as error:
                raise DivergedError(f"{error}: {self.advice}") from None

    @property
    def advice(self) -> str:
        """What to do if the loss rose."""
        is_standardised = self.config.data.used_scale.startswith("standardise")
        return "training diverged; try a smaller rate" + ("" if is_standardised else ', or scale = "standardise"')

    @property
    def how_to_train_longer(self) -> str:
        """What to do if the loss was still falling."""
        section = self.config.training
        name = "epochs" if section.rounds is None else "rounds"
        name = "duration" if section.mode == "asynchronous" else name
        return (
            f"To train longer, set {name} in [training] to more than {getattr(section, name):g}, and choose another "
            "output folder."
        )

    def _follow(
        self,
        training: Training,
        rounds: Iterator[int],
        live: LiveShares,
        saver: Saver,
        should_stop: Callable[[], bool],
    ) -> Iterator[Update]:
        """Yield the updates of a training, evaluating and saving meanwhile.

        While it repeats rounds that the transcript already has, nothing is written: they may be of another training.
        """
        server, n_planned = training.server, planned_rounds(self.config.training, training.server.n_train)
        n_before, measured = server.n_rounds, list[dict[str, float | None]]()
        is_repeating = server.tape.is_repeating
        if not is_repeating:
            self._bring_up_to_date(n_before, server, saver)
        for done in rounds:
            is_last, stopped = done >= n_planned, should_stop()
            update = Update(done, n_planned)
            if done % self.config.training.evaluate_every == 0 or is_last:
                evaluation = training.evaluate()
                measured.append(evaluation.metrics())
                update = Update(done, n_planned, evaluation, live.after(evaluation))
            if is_repeating and not server.tape.is_repeating:
                is_repeating = False
                self._bring_up_to_date(n_before, server, saver)
            if not is_repeating:
                writing.add_metrics(self._files.metrics_path, measured)
                measured.clear()
                if stopped or is_last or saver.is_due():
                    saver.save()
            yield update
            if stopped:
                return
        if server.tape.is_repeating:
            raise TranscriptError(
                "the transcript has more records than the whole training: it belongs to another one, or was extended"
            )

    def _rounds(self, training: Training, begin: float) -> Iterator[int]:
        schedule = self._schedule(training.server.n_train)
        if isinstance(schedule, SynchronousSchedule):
            return synchronous_rounds(training, schedule)
        clock = VirtualClock() if self.config.training.clock == "virtual" else RealClock(begin=begin)
        return asynchronous_rounds(training, schedule, clock)

    def _prepare(self) -> Training:
        """Return the training before its first round; raise an error if it cannot be carried out or valued."""
        section = self.config.training
        training = Training.in_process(
            self.data,
            rate=Rate(section.rate, section.decay),
            scale=self.config.data.used_scale,
            model=build_model(self.config.model.kind, self.config.model.hidden, section.seed),
            intercept=section.intercept,
            checkpoints=self._files.checkpoints_path,
        )
        # A recorder refuses names that it cannot write and valuations that cannot be computed, and a schedule less than
        # one round.
        self._record(None).close()
        self._schedule(training.server.n_train)
        return training

    def _record(self, path: Path | None, *, resume: bool | None = None) -> Recorder:
        """Return a recorder of the training, in memory if there is no path."""
        agreed = agreed_by(self.config, self.data.names, int((~self.data.is_test).sum()))
        return record_training(path, self.data, resume=resume, **agreed)

    def _bring_up_to_date(self, n_rounds: int, server: Server, saver: Saver) -> None:
        """Write what is missing in the folder, and remove metrics of rounds that will be trained again."""
        writing.remove_leftovers(self.folder)
        if read_text(self._files.config_path) != self._text:
            write_whole(self._files.config_path, self._text.encode())
        if server.saved_round < 0:
            saver.save()
        writing.cut_metrics(self._files.metrics_path, n_rounds)
        writing.write_notes(self._files.notes_path, self.data.cautions)

    def value(self, progress: Progress | None = None) -> Valuation:
        """Value what was recorded, and write the valuation to the folder."""
        result = value(self.folder, progress=progress, **self.config.valuation.settings.as_dict())
        write_whole(self._files.valuation_path, result.to_json().encode())
        return result

    def predict(self, features: Mapping[str, str | os.PathLike[str]], *, id_column: str | None = None) -> PredictedRows:
        """Return predictions for new rows of some clients, by the trained models; see `predicting.predict`."""
        return predict(self._files, features, id_column=id_column)

    def known_valuation(self) -> Valuation | None:
        """Return the valuation in the folder if it covers all records and has the settings of the configuration."""
        try:
            stored = self._files.valuation_of(self._files.open())
        except InputError:
            return None
        return stored if stored is not None and stored.settings == self.config.valuation.settings else None

    def note_progress(self) -> list[str]:
        """Return notes on the finished training, and write them to the folder with those on the data."""
        last, start = self.last_metrics(), loss_at_zero(self.data)
        rose = last is not None and not last["train_loss"] <= start  # also if it is NaN
        lines = [f"the loss is larger than at the start: {self.advice}"] if rose else []
        writing.write_notes(self._files.notes_path, [*self.data.cautions, *lines])
        return lines

    def last_metrics(self) -> dict[str, float] | None:
        """Return the numbers of the last evaluation, None if there is none; NaN without test samples."""
        measured = writing.read_metrics(self._files.metrics_path)
        return measured[-1] if measured else None

    def _schedule(self, n_train: int) -> SynchronousSchedule | AsynchronousSchedule:
        section = self.config.training
        n_rounds = planned_rounds(section, n_train)
        if section.mode == "synchronous":
            return SynchronousSchedule(section.batch_size, n_rounds, section.seed)
        by_name = {client.name: client for client in self.config.client}
        clients = [by_name.get(name) or ClientSection(name=name) for name in self.data.names]
        return AsynchronousSchedule(
            [client.period or section.period for client in clients],
            [client.batch_size or section.batch_size for client in clients],
            section.stamp_every,
            n_rounds,
            section.seed,
        )


def record_training(path: Path | None, data: VerticalData, **options: Any) -> Recorder:
    """Return a recorder of a training on vertically split data, in memory if there is no path."""
    # Rare classes may be among the test rows only.
    options |= {"n_classes": data.n_classes if data.loss == "softmax" else None, "classes": data.classes}
    return Recorder(path, data.targets[~data.is_test], data.names, data.loss, **options)


def loss_at_zero(data: VerticalData) -> float:
    """Return the mean loss on training samples if all embeddings are zero, as before the first round."""
    loss, labels = get_loss(data.loss), data.targets[~data.is_test]
    return float(loss.value(np.zeros((len(labels), data.width)), loss.encode(labels, data.width)).mean())


def build_model(kind: Literal["linear", "perceptron"], hidden: int, seed: int) -> BuildModel:
    """Return a factory for the model of each client."""
    return Linear if kind == "linear" else partial(Perceptron, hidden=hidden, seed=seed)
