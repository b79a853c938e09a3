"""The configuration of a run: a TOML file, checked before any work, with the line of a mistake in the message."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from verfedsv.data.catalogue import CATALOGUE
from verfedsv.data.preparation import Scale
from verfedsv.errors import InputError
from verfedsv.shapley import Method

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
DataName = Literal["adult", "web", "covtype", "rcv1", "sector"]


class Section(BaseModel):
    """A table of the configuration; unknown names are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(Section):
    """A data set by name, its features split between clients; or files of the user's own, see `client`."""

    name: DataName | None = None
    clients: Count | None = None
    label: str | None = None
    label_client: str | None = None
    test: Annotated[float, Field(ge=0, lt=1)] | None = None
    samples: Count | None = None
    scale: Scale = "none"
    seed: Annotated[int, Field(ge=0)] = 0


class ClientSection(Section):
    """A client: its file, or, if it is an artificial one of the experiments, what it is made of."""

    name: Annotated[str, Field(min_length=1)]
    file: Path | None = None
    id: str = "id"
    columns: list[str] | None = None
    copy_of: str | None = None
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    random_level: Positive | None = None
    period: Positive | None = None
    batch_size: Count | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        kinds = [self.file is not None, self.copy_of is not None, self.random_level is not None]
        if sum(kinds) > 1:
            raise ValueError("a client has one of file, copy_of and random_level")
        return self


class ModelSection(Section):
    """What every client's model is."""

    kind: Literal["linear", "perceptron"] = "linear"
    hidden: Count = 32


class TrainingSection(Section):
    """How to train."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    batch_size: Count
    rate: Positive
    decay: Literal["constant", "inverse"] = "constant"
    intercept: bool = False
    seed: Annotated[int, Field(ge=0)] = 0
    epochs: Positive | None = None
    rounds: Count | None = None
    period: Positive = 0.01
    stamp_every: Positive = 0.04
    duration: Positive | None = None
    clock: Literal["virtual", "real"] = "virtual"
    evaluate_every: Count = 20

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.mode == "synchronous" and (self.epochs is None) == (self.rounds is None):
            raise ValueError("synchronous training takes either epochs or rounds")
        if self.mode == "synchronous" and self.duration is not None:
            raise ValueError("duration is for asynchronous training; synchronous training takes epochs or rounds")
        if self.mode == "asynchronous" and self.duration is None:
            raise ValueError("asynchronous training takes a duration in seconds")
        if self.mode == "asynchronous" and (self.epochs is not None or self.rounds is not None):
            raise ValueError("epochs and rounds are for synchronous training; asynchronous training takes a duration")
        if self.duration is not None and self.duration < self.stamp_every:
            raise ValueError("duration must not be shorter than stamp_every, the seconds between two time stamps")
        return self


class ValuationSection(Section):
    """How to value."""

    method: Method = "auto"
    rank: Count | Literal["auto"] = "auto"
    tolerance: Positive = 1e-3
    regularization: Positive | Literal["auto"] = "auto"
    seed: Annotated[int, Field(ge=0)] = 0


class OutputSection(Section):
    """Where the results go."""

    folder: Path


class Config(Section):
    """A run."""

    data: DataSection
    client: list[ClientSection] = []
    model: ModelSection = ModelSection()
    training: TrainingSection
    valuation: ValuationSection = ValuationSection()
    output: OutputSection

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        files = [client.name for client in self.client if client.file is not None]
        if self.data.name is None and not files:
            raise ValueError(f"data needs a name ({', '.join(CATALOGUE)}), or clients with a file each ([[client]])")
        if self.data.name is not None and files:
            raise ValueError("data has a name and clients have files; only one of the two can be used")
        if files and (self.data.label is None or self.data.label_client not in files):
            raise ValueError(
                "with files, data.label names the column of the labels, and data.label_client the client whose file "
                "has it"
            )
        small = [client.name for client in self.client if (client.batch_size or np.inf) < self.training.batch_size]
        if self.training.mode == "synchronous" and small:
            raise ValueError(
                f"training.batch_size must be no larger than that of any client in synchronous training; {small[0]!r} "
                "has a smaller one"
            )
        names = [client.name for client in self.client]
        if len(set(names)) < len(names):
            raise ValueError("the names of the clients must differ")
        return self


def read_config(path: Path) -> Config:
    """Return the configuration in a file; raise InputError with the line and what is allowed there."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise InputError("\n".join(_describe(path, text, mistake) for mistake in error.errors())) from None
    return _resolve(config, path.parent)


def _resolve(config: Config, folder: Path) -> Config:
    """Return the configuration with its files relative to where the configuration lies."""
    clients = [
        client if client.file is None else client.model_copy(update={"file": folder / client.file})
        for client in config.client
    ]
    output = config.output.model_copy(update={"folder": folder / config.output.folder})
    return config.model_copy(update={"client": clients, "output": output})


def _describe(path: Path, text: str, mistake: Any) -> str:
    where = mistake["loc"]
    name = ".".join(str(part) for part in where if not isinstance(part, int)) or "the file"
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "extra_forbidden":
        message = f"there is no such setting; there are {', '.join(_settings_at(where[:-1]))}"
    elif mistake["type"] == "missing":
        message = "is needed"
    else:
        message = message[0].lower() + message[1:]
        if not isinstance(mistake["input"], dict):
            message += f"; received {mistake['input']!r}"
    return f"{path}, line {find_line(text, where)}: {name}: {message}"


def _settings_at(where: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = Config
    for part in where:
        if isinstance(part, str):
            kind: Any = model.model_fields[part].annotation
            model = ClientSection if part == "client" else kind
    return list(model.model_fields)


def find_line(text: str, where: Sequence[str | int]) -> int:
    r"""Return the line of a setting, or, if it is not there, of the table it belongs to, or else 1.

    >>> find_line("[data]\nname = 'adult'\n[[client]]\nname = 'a'\n[[client]]\nnoise = 3", ("client", 1, "noise"))
    6
    """
    path = list(where)
    table = str(path[0]) if path else ""
    number = path[1] if len(path) > 1 and isinstance(path[1], int) else 0
    key = next((str(part) for part in path[1:] if isinstance(part, str)), None)
    header, seen, inside = 1, -1, False
    for line_number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?", line)
        if found:
            seen += found.group(1) == table
            inside = found.group(1) == table and seen == number
            header = line_number if inside else header
        elif inside and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return line_number
    return header


EXAMPLE = """# A run of verfedsv: `verfedsv run FILE`. Settings behind a # are defaults, or show what could be there.

[data]
name = "adult"            # adult (ships with the package), web, covtype, rcv1, sector; see `verfedsv data list`
clients = 8               # the features are split into so many blocks, one a client
# test = 0.2              # part of the samples to test on; by default the data set's own test part, if it has one
# samples = 10000         # take so many samples only
# scale = "none"          # each client's own: none, standardise, unit-rows
# seed = 0

# Files of your own in place of a name: one per client, joined on a column of ids.
# label = "y"
# label_client = "bank"
# [[client]]
# name = "bank"
# file = "bank.csv"       # or .parquet; relative to this file
# id = "id"
# columns = ["age", "income"]   # all others by default
# [[client]]
# name = "telco"
# file = "telco.csv"

# Artificial clients, as in the paper's experiments:
# [[client]]
# name = "noisy copy"
# copy_of = "client 1"
# noise = 0.2             # part of the columns that white noise is added to
# [[client]]
# name = "random"
# random_level = 2.0      # columns N(2, 4), as many as the first client has
# period = 0.02           # seconds between two uploads of this client, in asynchronous training

[model]
kind = "linear"           # or perceptron: two layers, ReLU between them (needs torch)
# hidden = 32

[training]
mode = "synchronous"      # or asynchronous
batch_size = 2837
rate = 0.2
epochs = 20
# rounds = 360            # in place of epochs
# duration = 20.0         # asynchronous: seconds, in place of epochs
# decay = "constant"      # or inverse: rate / t
# intercept = false       # whether the server learns one
# seed = 0
# evaluate_every = 20     # rounds or time stamps
# period = 0.01           # asynchronous: seconds between two uploads of a client
# stamp_every = 0.04      # asynchronous: seconds between two time stamps
# clock = "virtual"       # asynchronous: virtual (as fast as it goes, the same each time) or real

[valuation]
# method = "auto"         # closed-form, exact, permutation
# rank = "auto"           # of completion, in synchronous training
# tolerance = 0.001
# regularization = "auto"  # lambda of completion; auto begins with the paper's 0.1
# seed = 0

[output]
folder = "runs/adult"     # relative to this file
"""
