import json
import tracemalloc

import numpy as np
import pytest

from verfedsv.errors import InputError, TranscriptError
from verfedsv.settlement import Settlement
from verfedsv.settlement.documents import format_of
from verfedsv.settlement.extract import MAGIC, VERSION, Extract
from verfedsv.settlement.statement import Statement
from verfedsv.transcript import Description
from verfedsv.untrusted import MOST_JSON_BYTES, read_json
from verfedsv.valuation import Valuation

REFUSED = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b"{} {}", "not valid JSON"),
    (b'{"a": 1, "b": {"c": 2, "c": 2}}', "'c' is repeated"),
    (b'{"a": NaN}', "NaN is not a JSON number"),
    (b"[-Infinity]", "-Infinity is not a JSON number"),
    (b"[1, 2, 1e400]", "a number is too large"),
    (b"-1e999", "a number is too large"),
    (b"[0.5, 1" + b"0" * 400 + b"]", "an integer has more than 64 bits"),
    (b"[-9223372036854775809]", "an integer has more than 64 bits"),
    (b"1" * 5000, "not valid JSON"),
    (rb'{"a": "x\u0000y"}', "a text has a NUL character in it"),
    (rb'{"\ud800": 1}', "half of a surrogate pair"),
    ('["\udc80"]', "half of a surrogate pair"),
    ('["a\0b"]', "not valid JSON"),
    (b'"\xff"', "not UTF-8"),
    (b"\xef\xbb\xbf{}", "not valid JSON: it begins with a byte order mark"),
    ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    (b"[" * 66 + b"]" * 66, "more than 64 levels"),
    (b"[" * 10**6, "more than 64 levels"),
    (b'{"a":' * 10**5 + b"1" + b"}" * 10**5, "more than 64 levels"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_reader_should_take_is_refused(text, why):
    """Each is an InputError that begins with what was read and says what is wrong with it."""
    with pytest.raises(InputError, match=why) as caught:
        read_json(text, "the file")
    assert str(caught.value).startswith("the file ")


@pytest.mark.parametrize(
    "text", [b"[" * 64 + b"]" * 64, b"[18446744073709551615, -9223372036854775808, 1.7e308]", rb'["\ud83d\ude00"]']
)
def test_what_is_just_allowed_is_read(text):
    """At the limits, the value is the one that json reads."""
    assert read_json(text, "it") == json.loads(text)


def test_any_other_json_is_read_as_json_reads_it():
    """Lists, objects, numbers and texts come back unchanged, whatever their order and depth."""
    rng = np.random.default_rng(0)

    def make(depth):
        kind = rng.integers(8 if depth else 6)
        if kind < 6:
            return [None, True, -3, 0.25, "tëxt\n", "x" * 70][kind]
        if kind == 6:
            return [make(depth - 1) for _ in range(rng.integers(4))]
        return {f"name {index}": make(depth - 1) for index in range(rng.integers(4))}

    for _ in range(200):
        value = make(5)
        assert read_json(json.dumps(value).encode(), "it") == value


def test_a_long_text_is_refused_before_it_is_parsed():
    """Unless its reader expects one, whose values are no denser than this package writes them."""
    numbers = json.dumps({"values": [0.0] * (MOST_JSON_BYTES // 8)}, indent=2).encode()
    dense = b"[" + b"{}," * (MOST_JSON_BYTES // 3) + b"0]"
    with pytest.raises(InputError, match=r"the file is too large: it has .* bytes, and at most 4,194,304 are read"):
        read_json(numbers, "the file")
    assert read_json(numbers, "the file", most=1 << 30) == json.loads(numbers)
    with pytest.raises(InputError, match=r"the file is too large: it has 2,796,203 values"):
        read_json(dense, "the file", most=1 << 30)
    assert len(read_json(b"[" + b"{}," * 10_000 + b"0]", "the file")) == 10_001


def _read_extract(text):
    sizes = (number.to_bytes(8, "little") for number in (VERSION, len(text)))
    Extract.from_bytes(b"".join([MAGIC, *sizes, text]))


READERS = {
    "description": Description.from_json,
    "statement": Statement.from_json,
    "settlement": Settlement.from_json,
    "valuation": Valuation.from_json,
    "extract": _read_extract,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("unit", [b"{},", b"[[[]]],", b'{"":0},'])
def test_no_reader_takes_much_memory_for_a_dense_text(reader, unit):
    """Parsed, these would take 50 times as much as the text, which each reader copies a few times at most."""
    text = b'{"format": "verfedsv", "version": 1, "x": [' + unit * (2 * MOST_JSON_BYTES // len(unit)) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises((InputError, TranscriptError)):
            reader(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


def test_the_format_of_a_dense_file_is_not_looked_for(tmp_path):
    """As of any file that is not a document of this package."""
    path = tmp_path / "x.json"
    path.write_bytes(b'{"format": "verfedsv valuation", "x": [' + b"[]," * (2 * MOST_JSON_BYTES // 3) + b"0]}")
    tracemalloc.start()
    try:
        assert format_of(path) == ""
        assert tracemalloc.get_traced_memory()[1] < 4 * path.stat().st_size
    finally:
        tracemalloc.stop()
    path.write_bytes(b'{"format": "verfedsv valuation"}')
    assert format_of(path) == "verfedsv valuation"
