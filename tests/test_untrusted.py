import json

import numpy as np
import pytest

from verfedsv.errors import InputError
from verfedsv.untrusted import read_json

REFUSED = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b"{} {}", "not valid JSON"),
    (b'{"a": 1, "b": {"c": 2, "c": 2}}', "'c' is there more than once"),
    (b'{"a": NaN}', "NaN is not a number of JSON"),
    (b"[-Infinity]", "-Infinity is not a number of JSON"),
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
