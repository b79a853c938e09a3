"""The settings of a run, and which of them go together. `reading` reads them from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from verfedsv.addresses import check_address
from verfedsv.data.catalogue import CATALOGUE
from verfedsv.data.libsvm import ENDINGS, is_libsvm
from verfedsv.data.preparation import Scale
from verfedsv.data.targets import AskedLoss, choose_loss
from verfedsv.errors import InputError
from verfedsv.federation.roster import Stay
from verfedsv.head_layers import Activation
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Method
from verfedsv.shapley.semivalues import SEMIVALUES, get_semivalue


class Misfit(ValueError):  # noqa: N818  # pydantic collects it; what the user sees is an InputError
    """A setting that does not go with the others; `where` is its path below the table that is being checked."""

    def __init__(self, message: str, *where: str | int) -> None:
        super().__init__(message)
        self.where = where


def _or_auto(what: str) -> WrapValidator:
    """Return a check that a setting is of its type or "auto", with one message for both."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"should be {what}, or 'auto'") from None

    return WrapValidator(check)


def _are_weights(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        kinds = "a list of positive numbers in the order of the classes, or a table of them by the name of the class"
        raise ValueError(f"should be 'balanced', {kinds}") from None


def _one_column(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    raise ValueError("should be the name of one column; several labels at once are not supported")


def _missed(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise ValueError(
            "should be a list of pairs, the first and the last round of each absence, such as [[20, 25]], or the "
            "fraction of rounds to miss at random, more than 0 and less than 1"
        ) from None


def _usable(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path cannot contain NUL characters")
    return path


def _data_set(name: str) -> str:
    if name not in CATALOGUE:
        raise ValueError(f"should be one of {', '.join(CATALOGUE)}")
    return name


def _semivalue(name: str) -> str:
    try:
        return str(get_semivalue(name))
    except InputError:
        raise ValueError(f"should be {', '.join(SEMIVALUES)} or beta(a, b)") from None


# Strict: whole numbers are numbers, True and text are not.
Positive = Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False, strict=True)]
Seconds = Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, lt=2**53, strict=True)]
WIDEST = 2**14
"""Limit of the numbers in an embedding and of the units in a layer of the head."""
MOST_ROUNDS = 10**9
"""Limit of planned rounds and of epochs, so that statements can state the number of planned rounds."""
Place = Annotated[Path, AfterValidator(_usable)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
DataName = Annotated[str, AfterValidator(_data_set)]
CountOrAuto = Annotated[Count | Literal["auto"], _or_auto("a whole number of at least 1")]
ClassWeights = Annotated[
    Literal["balanced"]
    | Annotated[list[Positive], Field(min_length=2)]
    | Annotated[dict[str, Positive], Field(min_length=1)],
    WrapValidator(_are_weights),
]
PositiveOrAuto = Annotated[Positive | Literal["auto"], _or_auto("a positive number")]


Round = Annotated[Count, Field(le=MOST_ROUNDS)]
Fraction = Annotated[float, Field(gt=0, lt=1, strict=True)]
Misses = Annotated[Annotated[list[tuple[Round, Round]], Field(min_length=1)] | Fraction, WrapValidator(_missed)]


class Section(BaseModel):
    """A table of the configuration; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise Misfit if one of these settings was given."""
        for name in names:
            if name in self.model_fields_set:
                raise Misfit(f"{why}; it has no effect here, so leave it out", name)


class DataSection(Section):
    """A data set by name or a file, whose features are split between clients; or labels in the clients' own files."""

    name: DataName | None = None
    file: Place | None = None
    test_file: Place | None = None
    clients: Count | None = None
    aligned: StrictBool = False
    label: Annotated[str, BeforeValidator(_one_column)] | None = None
    label_client: str | None = None
    classes: Annotated[int, Field(ge=2, lt=2**53, strict=True)] | None = None
    test: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = None
    samples: Count | None = None
    scale: Scale | None = None
    seed: Seed = 0

    @property
    def used_scale(self) -> Scale:
        """The scale; by default "none" for data sets whose features have one scale, else "standardise"."""
        return self.scale or ("none" if self.name is not None and CATALOGUE[self.name].is_scaled else "standardise")

    @property
    def n_classes(self) -> int | None:
        """The number of classes, 1 for amounts, as far as it is known before the data are read."""
        return self.classes if self.name is None else CATALOGUE[self.name].n_classes

    @property
    def is_split(self) -> bool:
        """Whether the features of one data set or file are split between clients."""
        return self.name is not None or self.file is not None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.name is not None:
            self.refuse(["file", "test_file", "classes"], "is for files of your own, and data has a name")
        if self.is_split:
            self.refuse(["label", "label_client", "aligned"], "is for a file per client ([[client]] with file)")
        if self.file is None:
            self.refuse(["test_file"], "goes with file in [data]; a [[client]] with a file has its own test_file")
        else:
            self._check_file(self.file)
        return self

    def _check_file(self, file: Path) -> None:
        for name, path in (("file", file), ("test_file", self.test_file)):
            if path is not None and not is_libsvm(path):
                endings = f"ending in {' or '.join(ENDINGS)}, or that and .gz or .bz2"
                other = "for CSV and Parquet, give each [[client]] the file, and its columns"
                raise Misfit(f"should be a LIBSVM file, {endings}; {other}. Received {path.name!r}", name)
        if self.clients is None:
            raise Misfit("is required with file: the number of clients to split the features between", "clients")
        if self.test_file is not None:
            self.refuse(["test"], "is the fraction of test samples, and there is a test_file")


class ClientSection(Section):
    """A client: its file, or what an artificial one is made of, or settings of one of a data set's clients."""

    name: Annotated[str, Field(min_length=1)]
    file: Place | None = None
    test_file: Place | None = None
    id: str = "id"
    columns: list[str] | None = None
    copy_of: str | None = None
    noise: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    random_level: Positive | None = None
    period: Seconds | None = None
    batch_size: Count | None = None
    width: Annotated[Count, Field(le=WIDEST)] | None = None
    scale: Scale | None = None
    rate: Positive | None = None
    joins_after: Round | None = None
    leaves_after: Round | None = None
    misses: Misses | None = None
    certificate: str | list[str] | None = None

    @property
    def settings_of_columns(self) -> list[str]:
        """The names of those settings given that only a client with columns can have."""
        stay = ("joins_after", "leaves_after", "misses")
        names = ("period", "batch_size", "width", "scale", "rate", *stay)
        return [name for name in names if getattr(self, name) is not None]

    @property
    def stay(self) -> Stay | None:
        """The rounds in which it takes part, None for all."""
        if self.joins_after is None and self.leaves_after is None and self.misses is None:
            return None
        misses = tuple(self.misses) if isinstance(self.misses, list) else self.misses or ()
        return Stay(self.joins_after or 0, self.leaves_after, misses)

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.name != self.name.strip() or not self.name.isprintable():
            raise Misfit(f"should be printable, without spaces around it; received {self.name!r}", "name")
        kinds = [self.file is not None, self.copy_of is not None, self.random_level is not None]
        if sum(kinds) > 1:
            raise ValueError("a client takes at most one of file, copy_of and random_level")
        if self.file is None:
            self.refuse(["id", "columns", "test_file"], "is for clients with a file")
        elif is_libsvm(self.file):
            self.refuse(["columns"], "is for CSV and Parquet: columns of LIBSVM files have no names")
        if self.file and self.test_file and is_libsvm(self.file) != is_libsvm(self.test_file):
            raise Misfit("should be of the same kind as file, LIBSVM or a table", "test_file")
        if self.copy_of is None:
            self.refuse(["noise"], "is for copies of another client (copy_of)")
        return self


class ModelSection(Section):
    """What every client's model is, how the server combines embeddings, and how wide these are under a network."""

    kind: Literal["linear", "perceptron"] = "linear"
    hidden: Count = 32
    head: Literal["sum", "mlp"] = "sum"
    width: Annotated[Count, Field(le=WIDEST)] = 8

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.kind == "linear":
            self.refuse(["hidden"], "is for the perceptron, and this model is linear")
        if self.head == "sum":
            self.refuse(["width"], 'is for head = "mlp"; embeddings that are summed are as wide as the loss takes')
        return self


class HeadSection(Section):
    """The network at the server, and how it learns."""

    hidden: Annotated[list[Annotated[Count, Field(le=WIDEST)]], Field(max_length=16)] = [64]
    activation: Activation = "gelu"
    optimizer: Literal["adam", "momentum", "sgd"] = "adam"
    rate: Positive = 0.01


class TrainingSection(Section):
    """How to train."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    loss: AskedLoss = "auto"
    batch_size: Count
    rate: Positive
    decay: Literal["constant", "inverse"] = "constant"
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    momentum: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.9
    class_weights: ClassWeights | None = None
    intercept: StrictBool = False
    seed: Seed = 0
    epochs: Annotated[Positive, Field(le=MOST_ROUNDS)] | None = None
    rounds: Annotated[Count, Field(le=MOST_ROUNDS)] | None = None
    period: Seconds = 0.01
    stamp_every: Seconds = 0.04
    duration: Seconds | None = None
    clock: Literal["virtual", "real"] = "virtual"
    evaluate_every: Count = 20
    patience: Count | None = None
    min_improvement: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.0

    @property
    def is_repeatable(self) -> bool:
        """Whether training again gives the same records, as it does except on the real clock."""
        return self.mode == "synchronous" or self.clock == "virtual"

    @property
    def n_stamps(self) -> int:
        """The number of rounds of a complete asynchronous training."""
        # If the duration is a multiple of stamp_every, rounding must not lose a round.
        return int((self.duration or 0) / self.stamp_every + 1e-9)

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.mode == "synchronous":
            self._check_synchronous()
        else:
            self._check_asynchronous()
        if self.optimizer != "momentum":
            self.refuse(["momentum"], f'is for optimizer = "momentum", and this one is "{self.optimizer}"')
        if self.patience is None:
            self.refuse(["min_improvement"], "is for training that may end early (patience)")
        return self

    def _check_synchronous(self) -> None:
        has_end = self.epochs is not None or self.rounds is not None
        if self.duration is not None and not has_end:
            raise Misfit(
                "is for asynchronous training, and this one is synchronous: replace it with epochs or rounds, or set "
                'mode = "asynchronous"',
                "duration",
            )
        self.refuse(
            ["duration", "period", "stamp_every", "clock"], "is for asynchronous training, and this one is synchronous"
        )
        if (self.epochs is None) == (self.rounds is None):
            raise ValueError("synchronous training takes either epochs or rounds")

    def _check_asynchronous(self) -> None:
        if self.duration is None:
            for name in ("epochs", "rounds"):
                if name in self.model_fields_set:
                    raise Misfit("is for synchronous training; replace it with duration, in seconds", name)
            raise ValueError("asynchronous training takes a duration in seconds")
        self.refuse(["epochs", "rounds"], "is for synchronous training, and this one is asynchronous")
        if self.duration < self.stamp_every:
            raise Misfit(
                f"must not be shorter than stamp_every, the seconds from one round to the next, "
                f"{self.stamp_every:g}; received {self.duration:g}",
                "duration",
            )
        if self.n_stamps > MOST_ROUNDS:
            raise Misfit(
                f"must not be longer than {MOST_ROUNDS:,} rounds of stamp_every seconds, {self.stamp_every:g} each; "
                f"received {self.duration:g}",
                "duration",
            )


class ValuationSection(Section):
    """How to value."""

    method: Method = "auto"
    semivalue: Annotated[str, AfterValidator(_semivalue)] = "shapley"
    rank: CountOrAuto = "auto"
    tolerance: Positive = 1e-3
    regularization: PositiveOrAuto = "auto"
    seed: Seed = 0

    @property
    def settings(self) -> ValuationSettings:
        """The settings of `value`, with defaults for those that cannot be configured."""
        return ValuationSettings.of(dict(self))


class OutputSection(Section):
    """Where the results go."""

    folder: Place


class ServerSection(Section):
    """How clients on other machines reach the server of this training, and what it does if one is missing."""

    address: Annotated[str, AfterValidator(check_address)] = "0.0.0.0:8443"  # the server is to be reached
    certificate: Place | None = None
    key: Place | None = None
    authority: Place | None = None
    revoked: Place | None = None
    signing_key: Place | None = None
    private: Place | None = None
    deadline: Seconds = 600.0
    if_missing: Literal["stop", "continue"] = "stop"


class UpSection(Section):
    """The files of clients that are otherwise on other machines, for `verfedsv up`, which starts all on this one."""

    features: Annotated[dict[str, Place], Field(min_length=1)]
    id: str = "id"


class Config(Section):
    """A run."""

    data: DataSection
    client: list[ClientSection] = []
    model: ModelSection = ModelSection()
    head: HeadSection = HeadSection()
    training: TrainingSection
    valuation: ValuationSection = ValuationSection()
    output: OutputSection
    server: ServerSection | None = None
    up: UpSection | None = None

    @property
    def used_loss(self) -> AskedLoss:
        """The loss; "auto" if it depends on the labels in the users' files."""
        n_classes = self.data.n_classes
        return self.training.loss if n_classes is None else choose_loss(self.training.loss, n_classes)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.server is None:
            if self.up is not None:
                raise Misfit("is for clients on other machines ([server])", "up")
            self._check_data()
        else:
            self._check_network()
        self._check_names()
        self._check_loss()
        self._check_head()
        self._check_stays()
        if self.training.mode == "synchronous":
            self._check_synchronous()
        else:
            self._check_stamps()
        return self

    def _check_data(self) -> None:
        files = {client.name: number for number, client in enumerate(self.client) if client.file is not None}
        data = self.data
        if data.is_split and files:
            both = (
                f"data has a {'file' if data.name is None else 'name'} and clients have files; use only one of the two"
            )
            raise Misfit(both, "client", min(files.values()), "file")
        if data.is_split:
            return
        if not files:
            kinds = f"needs a name ({', '.join(CATALOGUE)}), a LIBSVM file, or clients with a file each ([[client]])"
            raise Misfit(kinds, "data")
        if data.clients is not None:
            raise Misfit("is for a data set or file that is split; here each [[client]] is one", "data", "clients")
        self._check_labels(files)
        self._check_files(files)

    def _check_network(self) -> None:
        """Check a training whose clients are on other machines: only the holder of the labels has a file here."""
        without = "is not for a training over a network ([server]); leave it out"
        for name in ("name", "file", "clients", "samples"):
            if getattr(self.data, name) is not None:
                raise Misfit(without, "data", name)
        for number, client in enumerate(self.client):
            for name in ("copy_of", "random_level", "test_file"):
                if getattr(client, name) is not None:
                    raise Misfit(without, "client", number, name)
            if client.file is not None:
                self._check_own_file(client.file, client.name, number)
        files = {client.name: number for number, client in enumerate(self.client) if client.file is not None}
        if not files:
            raise Misfit("should be a client with a file, the one that holds the labels", "data", "label_client")
        self._check_labels(files)
        others = {client.name for client in self.client if client.file is None}
        if self.up is not None and {*self.up.features} != others:
            raise Misfit(f"must name the files of {', '.join(sorted(others))}, and no others", "up", "features")
        if len(self.client) < 2:
            raise Misfit("needs one more [[client]] at least: those on other machines, by name", "client")

    def _check_own_file(self, file: Path, client: str, number: int) -> None:
        if is_libsvm(file):
            raise Misfit("must be CSV or Parquet, with a column of ids", "client", number, "file")
        if client != self.data.label_client:
            message = (
                "is only for the holder of the labels (label_client in [data]): the others have their files on their "
                "own machines, and name them to verfedsv join"
            )
            raise Misfit(message, "client", number, "file")

    def _check_labels(self, files: Mapping[str, int]) -> None:
        data = self.data
        if data.label_client is None:
            raise Misfit(
                "with files, data.label names the column of the labels, and data.label_client the client whose file "
                "has it",
                "data",
            )
        if data.label_client not in files:
            wanted = f"should be a client with a file, one of {', '.join(map(repr, files))}"
            raise Misfit(f"{wanted}; received {data.label_client!r}", "data", "label_client")
        holder = self.client[files[data.label_client]]
        if holder.file is not None and is_libsvm(holder.file):
            if data.label is not None:
                message = "is for CSV and Parquet: the lines of LIBSVM files begin with their labels; leave it out"
                raise Misfit(message, "data", "label")
        elif data.label is None:
            raise Misfit(f"data.label must name the column of the labels in {holder.file}", "data")

    def _check_files(self, files: Mapping[str, int]) -> None:
        with_test = [name for name, number in files.items() if self.client[number].test_file is not None]
        if with_test and self.data.test is not None:
            message = "is the fraction of test samples, and clients have a test_file; leave one of them out"
            raise Misfit(message, "data", "test")
        for number in files.values():
            client = self.client[number]
            if with_test and client.test_file is None:
                some = f"is required, since {with_test[0]!r} has one: either all files come with a test_file or none"
                raise Misfit(some, "client", number, "test_file")
            if self.data.aligned:
                if "id" in client.model_fields_set:
                    message = (
                        "has no effect where rows are matched by their order (aligned = true in [data]); leave it out"
                    )
                    raise Misfit(message, "client", number, "id")
            elif client.file is not None and is_libsvm(client.file):
                raise Misfit(
                    "is a LIBSVM file, whose rows have no ids. If all files have the same samples in the same order, "
                    "set aligned = true in [data]; if not, use CSV or Parquet with a column of ids",
                    "client",
                    number,
                    "file",
                )

    def _check_names(self) -> None:
        seen = set()
        for number, client in enumerate(self.client):
            if client.name in seen:
                message = f"the names of the clients must differ; received {client.name!r} twice"
                raise Misfit(message, "client", number, "name")
            seen.add(client.name)

    def _check_loss(self) -> None:
        try:
            _ = self.used_loss
        except InputError as error:
            raise Misfit(str(error), "training", "loss") from None
        if self.training.class_weights is not None and self.used_loss == "squared":
            raise Misfit("is for classes, and the labels are amounts; leave it out", "training", "class_weights")

    def _check_head(self) -> None:
        if self.model.head == "mlp":
            if self.training.intercept:
                message = 'is for head = "sum"; the last layer of the network has biases already; leave it out'
                raise Misfit(message, "training", "intercept")
            return
        without = 'is for head = "mlp" in [model], and the head of this run is a sum; leave it out'
        if "head" in self.model_fields_set:
            raise Misfit(without, "head")
        for number, client in enumerate(self.client):
            if client.width is not None:
                raise Misfit(without, "client", number, "width")

    def _check_stays(self) -> None:
        """Check when clients take part, as far as the number of rounds is known before the data are read."""
        training = self.training
        n_rounds = training.rounds if training.mode == "synchronous" else training.n_stamps
        for number, client in enumerate(self.client):
            if client.stay is not None and (fault := client.stay.find_fault(n_rounds)) is not None:
                raise Misfit(fault.why, "client", number, fault.setting)

    def _check_synchronous(self) -> None:
        size = self.training.batch_size
        for number, client in enumerate(self.client):
            if client.period is not None:
                message = "is for asynchronous training, and this one is synchronous; leave it out"
                raise Misfit(message, "client", number, "period")
            if client.batch_size is not None and client.batch_size < size:
                message = f"must be at least training.batch_size ({size}) in synchronous training"
                raise Misfit(f"{message}; received {client.batch_size}", "client", number, "batch_size")

    def _check_stamps(self) -> None:
        training = self.training
        shortest = min([training.period, *(client.period for client in self.client if client.period is not None)])
        if shortest > training.stamp_every:
            raise Misfit(
                f"no client would upload before the end of the first round, after {training.stamp_every:g} s: the "
                f"shortest period is {shortest:g} s, and must not be longer than stamp_every",
                "training",
                "period" if "period" in training.model_fields_set else "stamp_every",
            )
