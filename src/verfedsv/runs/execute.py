"""Carry out a run: read the data, train, record, evaluate and value, and write the results to one folder.

config.toml         the configuration as it was given
transcript/         who uploaded what (docs/transcript.md)
metrics.jsonl       loss and other measures, a line for each evaluation
notes.json          notes on the data and the training, a list of sentences
identity.txt        over a network, the name of the training
checkpoints/        where an interrupted training continues, a file per party; at the end, the trained models
valuation.json      what each client contributed
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.data.catalogue import Samples, get_data_set, load
from verfedsv.data.libsvm import read_samples
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import TEST, join_tables
from verfedsv.data.vertical import VerticalData, noisy_copy, random_client, split_features, take_rows
from verfedsv.errors import DivergedError, InputError, TranscriptError
from verfedsv.federation import (
    AsynchronousSchedule,
    Evaluation,
    Rate,
    RealClock,
    Server,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.heads import Head
from verfedsv.federation.models import build_model
from verfedsv.federation.optimizers import build_optimizer
from verfedsv.federation.roster import Roster
from verfedsv.files import write_whole
from verfedsv.runs import writing
from verfedsv.runs.config import ClientSection, Config
from verfedsv.runs.extent import agreed_by, agreed_step, planned_roster, planned_rounds
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.live import LiveShares
from verfedsv.runs.metrics import MEMBERS_SINCE, Patience, add_metrics, cut_metrics, read_metrics, sync_metrics
from verfedsv.runs.models import build_head, loss_at_start, weigh_classes
from verfedsv.runs.predicting import PredictedRows, predict
from verfedsv.runs.reading import parse_config, read_text, resolve
from verfedsv.runs.real_time import describe_idle_rounds, rehearse
from verfedsv.runs.resume import Saver, resume_server
from verfedsv.shapley import Progress
from verfedsv.texts import quoted
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

    again = "--resume"
    """How a person continues it, for messages."""

    def __init__(self, config: Config, text: str) -> None:
        self.config, self._text = config, text
        self.folder = config.output.folder
        self._files = RunFolder(self.folder)

    @classmethod
    def of_file(cls, path: Path) -> Self:
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
            elif client.name not in data.names and client.settings_of_columns:
                raise InputError(
                    f"client {client.name!r} holds only the labels and uploads nothing; leave out its "
                    f"{' and '.join(client.settings_of_columns)}"
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
        with self._record(self._files.recording_path, training.server.head, resume=resume) as recorder:
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
        if self._ended_early:
            return f"To train longer, set patience in [training] to more than {section.patience}, or leave it out."
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
        before = [each for each in self._measured() if each["n_rounds"] <= n_before]
        is_repeating = server.tape.is_repeating
        if not is_repeating:
            self._bring_up_to_date(n_before, server, saver)
        for done in () if self._is_over(before) else rounds:
            is_last, stopped = done >= n_planned, should_stop()
            update = Update(done, n_planned)
            if done % self.config.training.evaluate_every == 0 or is_last:
                evaluation = training.evaluate()
                own = self._members_since(done)
                measured.append({**evaluation.metrics(), **own})
                before.append({"test_loss": evaluation.test_loss, **own})
                is_last = is_last or self._is_over(before)
                update = Update(done, n_planned, evaluation, live.after(evaluation))
            if is_repeating and not server.tape.is_repeating:
                is_repeating = False
                self._bring_up_to_date(n_before, server, saver)
            if not is_repeating:
                add_metrics(self._files.metrics_path, measured)
                measured.clear()
                if stopped or is_last or saver.is_due():
                    sync_metrics(self._files.metrics_path)
                    saver.save()
            yield update
            if stopped:
                return
            if is_last:
                break
        if server.tape.is_repeating:
            raise TranscriptError(
                "the transcript has more records than the whole training: it belongs to another one, or was extended"
            )

    def _rounds(self, training: Training, begin: float) -> Iterator[int]:
        schedule = self._schedule(training.server.n_train)
        if isinstance(schedule, SynchronousSchedule):
            return synchronous_rounds(training, schedule)
        if self.config.training.clock == "virtual":
            return asynchronous_rounds(training, schedule, VirtualClock())
        self._rehearse(schedule)
        return asynchronous_rounds(training, schedule, RealClock(begin=begin))

    def _prepare(self) -> Training:
        """Return the training before its first round; raise an error if it cannot be carried out or valued."""
        training = self._connect()
        # A recorder refuses names that it cannot write and valuations that cannot be computed, and a schedule less than
        # one round.
        with self._record(None, training.server.head) as recorder:
            for name in self.data.names:
                if name not in recorder.members:
                    recorder.join(name)
        self._schedule(training.server.n_train)
        self._check_patience()
        return training

    def _connect(self) -> Training:
        """Return the server and what connects it to its clients: all of them are in this process."""
        return self._build(self.data, self._files.checkpoints_path)

    def _rehearse(self, schedule: AsynchronousSchedule) -> None:
        """Let everything be loaded and compiled before the clock starts."""
        rehearse(self._build, self.data, schedule)

    def _build(self, data: VerticalData, checkpoints: Path) -> Training:
        """Return the training on these data, before its first round."""
        section = self.config.training
        optimizer = build_optimizer(section.optimizer, section.momentum)
        return Training.in_process(
            data,
            rate=Rate(section.rate, section.decay),
            rates={own.name: Rate(own.rate, section.decay) for own in self.config.client if own.rate is not None},
            scale=self.config.data.used_scale,
            scales={own.name: own.scale for own in self.config.client if own.scale is not None},
            model=build_model(self.config.model.kind, self.config.model.hidden, section.seed, optimizer),
            intercept=section.intercept,
            head=build_head(self.config, self.data),
            optimizer=optimizer,
            class_weights=weigh_classes(section.class_weights, self.data),
            checkpoints=checkpoints,
            members=self.roster.founders,
        )

    def _check_patience(self) -> None:
        """Raise InputError if nothing could end the training early, although it should."""
        section = self.config.training
        if section.patience is None:
            return
        if not self.data.is_test.any():
            raise InputError(
                "training.patience needs test samples, whose loss it watches, and there are none; set test in [data] "
                "to a fraction such as 0.2, or leave out patience"
            )
        n_planned = planned_rounds(section, int((~self.data.is_test).sum()))
        n_evaluations = -(-n_planned // section.evaluate_every)
        if section.patience >= n_evaluations - 1:
            most = n_evaluations - 2
            less = f"Set it to at most {most}, lower evaluate_every" if most > 0 else "Lower evaluate_every"
            raise InputError(
                f"training.patience = {section.patience} has no effect: {n_planned:,} rounds have only {n_evaluations} "
                f"evaluations, one every {section.evaluate_every:,}. {less}, or leave patience out"
            )

    def _record(self, path: Path | None, head: Head, *, resume: bool | None = None) -> Recorder:
        """Return a recorder of the training, in memory if there is no path."""
        agreed = agreed_by(self.config, self.data.names, int((~self.data.is_test).sum()))
        own = {**head.recorded(), **agreed}
        return record_training(path, self.data, resume=resume, clients=self.roster.founders, **own)

    @cached_property
    def roster(self) -> Roster:
        """Who takes part in which round."""
        return planned_roster(self.config, self.data.names, int((~self.data.is_test).sum()))

    def _bring_up_to_date(self, n_rounds: int, server: Server, saver: Saver) -> None:
        """Write what is missing in the folder, and remove metrics of rounds that will be trained again."""
        writing.remove_leftovers(self.folder)
        if read_text(self._files.config_path) != self._text:
            write_whole(self._files.config_path, self._text.encode())
        if server.saved_round < 0:
            saver.save()
        cut_metrics(self._files.metrics_path, n_rounds)
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
        last, start = self.last_metrics(), loss_at_start(self.data, build_head(self.config, self.data))
        rose = last is not None and not last["train_loss"] <= start  # also if it is NaN
        lines = [f"the loss is larger than at the start: {self.advice}"] if rose else []
        lines += self._notes_on_settings()
        lines += self._notes_on_time()
        writing.write_notes(self._files.notes_path, [*self.data.cautions, *lines])
        return lines

    def _notes_on_settings(self) -> Iterator[str]:
        """Yield what readers of the values should know about how it was trained."""
        section = self.config.training
        # Who left after the last round of a training that ended early did not leave it.
        measured = self._measured() if self._ended_early else []
        last = int(measured[-1]["n_rounds"]) if measured else self.roster.n_rounds
        present = self.roster.members(last)
        if gone := [name for name in self.data.names if name not in present]:
            yield (
                f"{quoted(gone)} left before the end: since then, measures on test samples are without their "
                "embeddings; predictions take their mean, or their new rows"
            )
        if section.class_weights is not None:
            yield (
                "classes were weighted in training (class_weights): the clients followed weighted gradients, but all "
                "losses and values are those of the unweighted loss"
            )
        if section.patience is not None:
            if self._ended_early:
                yield (
                    f"training ended early, as agreed: the test loss did not fall in {section.patience} evaluations in "
                    "a row. The model is that of the last round, not that of the least test loss"
                )
            yield "the test samples could end the training (patience), so measures on them are slightly too good"

    def _notes_on_time(self) -> Iterator[str]:
        """Yield a note if clients often uploaded late on the real clock."""
        measured = self._measured()
        schedule = self._schedule(int((~self.data.is_test).sum()))
        if self.config.training.clock == "virtual" or isinstance(schedule, SynchronousSchedule) or not measured:
            return
        n_uploads = self._files.open(for_values=False).n_uploads_of_rounds
        if note := describe_idle_rounds(schedule, self.data.names, n_uploads, int(measured[-1]["n_rounds"])):
            yield note

    def last_metrics(self) -> dict[str, float] | None:
        """Return the numbers of the last evaluation, None if there is none; NaN without test samples."""
        measured = self._measured()
        return measured[-1] if measured else None

    def _measured(self) -> list[dict[str, float]]:
        return read_metrics(self._files.metrics_path)

    def _members_since(self, number: int) -> dict[str, float]:
        """Return what is written beside the measures after a round: nothing if all clients take part in all rounds."""
        if not self.roster.stays:
            return {}
        # In asynchronous training, who misses a round leaves before it, and measures are without its embeddings.
        is_asynchronous = self.config.training.mode == "asynchronous"
        return {MEMBERS_SINCE: self.roster.unchanged_since(number, counts_misses=is_asynchronous)}

    def _is_over(self, measured: Sequence[Mapping[str, float]]) -> bool:
        """Return whether these measurements end the training early."""
        patience = Patience.agreed_in(agreed_step(self.config))
        return patience is not None and patience.ends(measured)

    @property
    def _ended_early(self) -> bool:
        """Whether the test loss ended the training, before its last planned round."""
        measured, n_train = self._measured(), int((~self.data.is_test).sum())
        if not measured or measured[-1]["n_rounds"] >= planned_rounds(self.config.training, n_train):
            return False
        return self._is_over(measured)

    def _schedule(self, n_train: int) -> SynchronousSchedule | AsynchronousSchedule:
        section = self.config.training
        n_rounds = planned_rounds(section, n_train)
        if section.mode == "synchronous":
            return SynchronousSchedule(section.batch_size, n_rounds, section.seed, self.roster)
        by_name = {client.name: client for client in self.config.client}
        clients = [by_name.get(name) or ClientSection(name=name) for name in self.data.names]
        return AsynchronousSchedule(
            [client.period or section.period for client in clients],
            [client.batch_size or section.batch_size for client in clients],
            section.stamp_every,
            n_rounds,
            section.seed,
            self.roster,
        )


def record_training(
    path: Path | None, data: VerticalData, *, clients: Sequence[str] | None = None, **options: Any
) -> Recorder:
    """Return a recorder of a training on vertically split data, in memory if there is no path.

    `clients` are those that take part from the start, None for all.
    """
    # Rare classes may be among the test rows only.
    options |= {"n_classes": data.n_classes if data.loss == "softmax" else None, "classes": data.classes}
    founders = data.names if clients is None else clients
    return Recorder(path, data.targets[~data.is_test], founders, data.loss, **options)
