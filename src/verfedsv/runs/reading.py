"""Configurations from TOML files; a mistake is named with its line and with what is allowed there."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from verfedsv.errors import InputError
from verfedsv.runs.config import ClientSection, Config, Misfit
from verfedsv.texts import shortened

MOST_BYTES = 1 << 18
"""Of a configuration. One of a thousand clients has 60,000."""

_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")
"""A key of so many parts, over which tomllib takes time that is quadratic in their number."""

MOST_MISTAKES = 5
"""So many are described, each with its line, which takes a while to find in a long file."""

Place = Sequence[str | int]
"""Where a setting is: names of tables, numbers of their repetitions, and its own name."""


def read_config(path: Path) -> Config:
    """Return the configuration in a file; raise InputError with the line and what is allowed there."""
    return resolve(parse_config(read_text(path), path), path.parent)


def read_text(path: Path) -> str:
    """Return the text of a configuration, without a byte order mark."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"cannot read {path}: it is larger than {MOST_BYTES:,} bytes, and no configuration is")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def parse_config(text: str, path: Path) -> Config:
    """Return the configuration in a text, its files as they are written there; `path` is named in messages."""
    too_deep = InputError(f"{path} is not a configuration: it is nested too deeply")
    if _DEEP_KEY.search(text):
        raise too_deep
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise InputError(f"{path} is not valid TOML: {error}") from None
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        mistakes = error.errors()
        lines = [_describe(path, text, mistake) for mistake in mistakes[:MOST_MISTAKES]]
        if len(mistakes) > MOST_MISTAKES:
            lines.append(f"{path}: and {len(mistakes) - MOST_MISTAKES:,} more mistakes")
        raise InputError("\n".join(lines)) from None
    finally:
        _parse_beginning.cache_clear()


def resolve(config: Config, folder: Path) -> Config:
    """Return the configuration with its files relative to where the configuration lies."""
    clients = [
        client if client.file is None else client.model_copy(update={"file": folder / client.file})
        for client in config.client
    ]
    output = config.output.model_copy(update={"folder": folder / config.output.folder})
    return config.model_copy(update={"client": clients, "output": output})


def _describe(path: Path, text: str, mistake: Any) -> str:
    error = mistake.get("ctx", {}).get("error")
    where = (*mistake["loc"], *(error.where if isinstance(error, Misfit) else ()))
    name = shortened(".".join(part for part in where if isinstance(part, str)), 80)
    line = find_line(text, where)
    return f"{path}{'' if line is None else f', line {line}'}: {name}: {_explain(mistake, where)}"


def _explain(mistake: Any, where: Place) -> str:
    """Return what is wrong in words, and what was received."""
    error, received = mistake.get("ctx", {}).get("error"), mistake["input"]
    if isinstance(error, Misfit):
        return str(error)
    if mistake["type"] == "extra_forbidden":
        return f"there is no such setting; there are {', '.join(_settings_at(where[:-1]))}"
    if mistake["type"] == "missing":
        return "is needed"
    if mistake["type"] == "model_type":
        message = f"should be a table, [{where[0]}]"
    elif mistake["type"] == "list_type" and len(where) == 1:
        message = f"should be tables, [[{where[0]}]] for each {where[0]}"
    else:
        message = mistake["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
    return message if isinstance(received, dict) else f"{message}; received {_shown(received)}"


def _shown(received: Any) -> str:
    try:
        return shortened(repr(received), 80)
    except ValueError:  # a number of thousands of digits
        return "a number that is too large"


def _settings_at(where: Place) -> list[str]:
    model: type[BaseModel] = Config
    for part in where:
        if isinstance(part, str):
            kind: Any = model.model_fields[part].annotation
            model = ClientSection if part == "client" else kind
    return list(model.model_fields)


def find_line(text: str, where: Place) -> int | None:
    r"""Return the line of a setting, or, if it is not there, of the table it belongs to; None if neither is there.

    It is where the first statement begins with which so much of its place is there.

    >>> find_line("[data]\nname = 'adult'\n[[client]]\nname = 'a'\n[[client]]\nnoise = 3", ("client", 1, "noise"))
    6
    """
    begins = [*_statements(text), text.count("\n") + 1]

    def depth(n_statements: int) -> int:
        return _depth(_parse_beginning(text, begins[n_statements]), where)

    n_statements = range(len(begins))
    deepest = depth(n_statements[-1])
    return begins[bisect_left(n_statements, deepest, key=depth) - 1] + 1 if deepest else None


@lru_cache(maxsize=32)
def _parse_beginning(text: str, n_lines: int) -> dict[str, Any]:
    """Return what the first lines of a text hold; several mistakes in one text look at nearly the same beginnings."""
    return tomllib.loads("\n".join(text.split("\n")[:n_lines]))


_PART = re.compile(
    r"""
    \"{3}(?:\\.|[^\\])*?"{3,5} | '{3}.*?'{3,5}    # texts of several lines
    | "(?:\\.|[^"\\])*" | '[^']*' | \#[^\n]*       # texts of one line, and comments
    | [\[{] | [\]}] | \n
    """,
    re.DOTALL | re.VERBOSE,
)


def _statements(text: str) -> list[int]:
    """Return the numbers, from 0, of the lines of valid TOML at which statements may begin: not within another."""
    begins, line, n_open = [0], 0, 0
    for part in _PART.findall(text):
        line += part.count("\n")
        n_open += (part in "[{") - (part in "]}")
        if part == "\n" and not n_open:
            begins.append(line)
    return begins


def _depth(content: Any, where: Place) -> int:
    """Return how many parts of a place are there."""
    for depth, part in enumerate(where):
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(where)
