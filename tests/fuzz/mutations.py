"""Mutations of files, by which readers are tested: whatever a file holds, the answer is an error of our own.

`mutations_of_bytes` knows nothing of what it changes; `mutations_of_json` and `mutations_of_toml` change what is said.
All are endless and depend on the seed alone.
"""

import json
import os
import re
from collections.abc import Iterator
from copy import deepcopy

import numpy as np

NASTY = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, 5e-324),
    *("", "\0", "x" * 5000, "\ud800", "\u202e", "NaN", "1", "__proto__", "constructor", "../../etc", "<script>"),
    *([], {}, [[]], [None], [0] * 50, {"": 0}, [[[[[[[[]]]]]]]]),
)
"""Values that a field is not expected to have."""

TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "[" * 3000, '{"a":' * 3000, '{"a": 1, "a": 2}', "\0")
"""What some readers of JSON take and others do not."""


def count_of_inputs(default: int) -> int:
    """Return how many mutations a test should try: the environment's VERFEDSV_FUZZ, or a few."""
    return int(os.environ.get("VERFEDSV_FUZZ", default))


def mutations_of_bytes(content: bytes, seed: int = 0) -> Iterator[bytes]:
    """Yield the content with bits flipped and parts removed, repeated, zeroed or overwritten, up to four at a time."""
    rng = np.random.default_rng(seed)
    while True:
        changed = bytearray(content)
        for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
            _mutate(changed, rng)
        yield bytes(changed)


def _mutate(content: bytearray, rng: np.random.Generator) -> None:
    """Change the content in one way, in place."""
    size = len(content)
    if size == 0:
        content += rng.bytes(int(rng.integers(1, 64)))
        return
    place = int(rng.integers(size))
    length = int(min(size - place, 2 ** rng.integers(0, 10)))
    match int(rng.integers(9)):
        case 0 | 1:
            content[place] ^= 1 << int(rng.integers(8))
        case 2:
            del content[place:]
        case 3:
            del content[place : place + length]
        case 4:
            other = int(rng.integers(size))
            content[other:other] = content[place : place + length]
        case 5:
            content[place : place + length] = bytes(length)
        case 6:
            content[place : place + length] = rng.bytes(length)
        case 7:
            # Sizes and offsets of binary formats: whole numbers, little-endian, in their places.
            width = int(rng.choice([2, 4, 8]))
            start = place // width * width
            value = int(rng.choice([0, 1, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1], p=[0.2, 0.2] + [0.12] * 5))
            value = value if rng.random() < 0.7 else size + int(rng.integers(-64, 64))
            content[start : start + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        case 8:
            content += content[place : place + length]


def mutations_of_json(text: bytes, seed: int = 0) -> Iterator[bytes]:
    """Yield a JSON text with other values, and without or with more names, that is JSON; now and then, what is not."""
    rng = np.random.default_rng(seed)
    raw = mutations_of_bytes(text, seed)
    while True:
        kind = rng.random()
        if kind < 0.2:
            yield next(raw)
            continue
        value = json.loads(text)
        for _ in range(int(rng.choice([1, 1, 2]))):
            value = _with_a_change(value, rng)
        changed = json.dumps(value)
        if kind < 0.4:
            # Some number or text of it, written as no reader should take it.
            places = [
                match.span() for match in re.finditer(r'(?<=[:\[,] )("[^"\\]*"|-?\d[\d.e+-]*|null|true)', changed)
            ]
            if places:
                start, stop = places[rng.integers(len(places))]
                changed = changed[:start] + str(rng.choice(TEXTS)) + changed[stop:]
        yield changed.encode()


def _with_a_change(value: object, rng: np.random.Generator) -> object:
    """Return a value of JSON, changed at some place of it."""
    if isinstance(value, dict | list) and len(value) and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[int(rng.integers(len(keys)))]
        choice = rng.random()
        if choice < 0.12:
            del value[key]
        elif choice < 0.2 and isinstance(value, dict):
            value[str(rng.choice(["more", "", "format", "version", "clients"]))] = value[key]
        elif choice < 0.2 or choice > 0.95:
            other = keys[int(rng.integers(len(keys)))]
            value[key], value[other] = value[other], value[key]
        else:
            value[key] = _with_a_change(value[key], rng)
        return value
    if isinstance(value, bool) or value is None or rng.random() < 0.6:
        return deepcopy(NASTY[int(rng.integers(len(NASTY)))])
    if isinstance(value, int):
        return value + int(rng.integers(-3, 4))
    if isinstance(value, float):
        return value * float(rng.choice([-1, 0, 2, 1e300]))
    if isinstance(value, str):
        return mangled(value, rng)
    return deepcopy(NASTY[int(rng.integers(len(NASTY)))])


def mangled(text: str, rng: np.random.Generator) -> str:
    """Return a text with a character more or less, in another case, or twice."""
    place = int(rng.integers(len(text) + 1))
    more = str(rng.choice(["\0", "\n", " ", "é", "\u200b", "\U0001f600", "'", '"', "0", "-"]))
    return [text[:place] + text[place + 1 :], text[:place] + more + text[place:], text.swapcase(), text * 2][
        int(rng.integers(4))
    ]


TOML_VALUES = (
    *("nan", "inf", "-1", "0", "1e400", "9" * 400, "true", '""', '"\\u0000"', "[]", "{}", "1979-05-27", "'''"),
    *("[" * 2000, "{a=" * 2000, "0x", "1_000", '"x" "y"'),
)


def mutations_of_toml(text: bytes, seed: int = 0) -> Iterator[bytes]:
    """Yield a TOML text with other values, and lines removed, repeated or moved; now and then, what is no TOML."""
    rng = np.random.default_rng(seed)
    raw = mutations_of_bytes(text, seed)
    while True:
        if rng.random() < 0.2:
            yield next(raw)
            continue
        lines = text.decode().splitlines()
        for _ in range(int(rng.choice([1, 1, 2]))):
            row = int(rng.integers(len(lines)))
            name, equals, _ = lines[row].partition("=")
            choice = rng.random()
            if choice < 0.6 and equals:
                lines[row] = f"{name}= {rng.choice(TOML_VALUES)}"
            elif choice < 0.7:
                lines[row] = mangled(lines[row], rng)
            elif choice < 0.8:
                lines.insert(int(rng.integers(len(lines))), lines[row])
            elif len(lines) > 1:
                del lines[row]
        yield "\n".join(lines).encode()
