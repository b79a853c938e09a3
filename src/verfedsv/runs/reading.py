"""Read configurations from TOML files; errors name the setting and what is allowed there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from verfedsv.errors import InputError
from verfedsv.runs.config import ClientSection, Config, Misfit, ServerSection, UpSection
from verfedsv.texts import shortened

MOST_BYTES = 1 << 18
"""Size limit of a configuration; one with a thousand clients has 60,000 bytes."""

_DEEP_KEY = re.compile(r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")
"""More than 16 parts in a key, which tomllib parses in quadratic time.

No key follows a backslash: without that, searching a line of escaped quotes would take quadratic time.
"""

_MOST_MISTAKES = 5

Place = Sequence[str | int]
"""Where a setting is: names of tables, indices in arrays of tables, and its name."""


def read_text(path: Path) -> str:
    """Return the text of a configuration, without a byte order mark."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"cannot read {path}: it is larger than {MOST_BYTES:,} bytes, the limit")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def parse_config(text: str, path: Path) -> Config:
    """Return the configuration in a text, without resolving its paths; `path` is for messages."""
    too_deep = InputError(f"{path} is not a configuration: it is nested too deeply")
    if _DEEP_KEY.search(text):
        raise too_deep
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise InputError(f"{path} is not valid TOML: {error}") from None
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        mistakes = error.errors()
        lines = [_describe(path, mistake, content) for mistake in mistakes[:_MOST_MISTAKES]]
        if len(mistakes) > _MOST_MISTAKES:
            lines.append(f"{path}: and {len(mistakes) - _MOST_MISTAKES:,} more mistakes")
        raise InputError("\n".join(lines)) from None


def resolve(config: Config, folder: Path) -> Config:
    """Return the configuration with its paths resolved relative to a folder."""
    output = config.output.model_copy(update={"folder": folder / config.output.folder})
    data, *clients = (
        section.model_copy(
            update={name: folder / path for name in ("file", "test_file") if (path := getattr(section, name))}
        )
        for section in (config.data, *config.client)
    )
    server = config.server
    if server is not None:
        paths = ("certificate", "key", "authority", "revoked", "signing_key", "private")
        named = {name: folder / path for name in paths if (path := getattr(server, name))}
        named.setdefault("private", output.folder.with_name(f"{output.folder.name}.private"))
        server = server.model_copy(update=named)
    up = config.up
    if up is not None:
        up = up.model_copy(update={"features": {name: folder / path for name, path in up.features.items()}})
    parts = {"data": data, "client": clients, "output": output, "server": server, "up": up}
    return config.model_copy(update=parts)


def _describe(path: Path, mistake: Any, content: Any) -> str:
    error = mistake.get("ctx", {}).get("error")
    where = (*mistake["loc"], *(error.where if isinstance(error, Misfit) else ()))
    return f"{path}: {shortened(_name(where, content), 80)}: {_explain(mistake, where)}"


def _name(where: Place, content: Any) -> str:
    """Return a setting's name, that of a client by the client's, which must not be taken for the number of its table.

    >>> _name(("training", "rate"), {}), _name(("client", 1, "noise"), {"client": [{}, {"name": "client 1"}]})
    ('training.rate', "client 'client 1'.noise")
    >>> _name(("client", 1, "name"), {"client": [{}, {"name": " "}]}), _name(("client", 0), {"client": [{}]})
    ('[[client]] number 2.name', '[[client]] number 1')
    """
    if len(where) > 1 and where[0] == "client" and isinstance(where[1], int):
        name = content["client"][where[1]].get("name") if where[2:] != ("name",) else None
        first = f"client {shortened(name, 40)!r}" if isinstance(name, str) else f"[[client]] number {where[1] + 1}"
        where = (first, *where[2:])
    return "".join(f" {part + 1}" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")


def _explain(mistake: Any, where: Place) -> str:
    """Return what is wrong in words, and what was received."""
    error, received = mistake.get("ctx", {}).get("error"), mistake["input"]
    if isinstance(error, Misfit):
        return str(error)
    if mistake["type"] == "extra_forbidden":
        return f"there is no such setting; the settings here are {', '.join(_settings_at(where[:-1]))}"
    if mistake["type"] == "missing":
        return "is required"
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
    except ValueError:  # a number with thousands of digits
        return "a number that is too large"
    except RecursionError:  # the parts of keys add up
        return "a value that is nested too deeply"


def _settings_at(where: Place) -> list[str]:
    model: type[BaseModel] = Config
    for part in where:
        if isinstance(part, str):
            kind: Any = model.model_fields[part].annotation
            model = {"client": ClientSection, "server": ServerSection, "up": UpSection}.get(part, kind)
    return list(model.model_fields)
