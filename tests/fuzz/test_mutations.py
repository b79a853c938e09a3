import json
import tomllib
from itertools import islice

import pytest

from tests.fuzz.mutations import mutations_of_bytes, mutations_of_json, mutations_of_toml

JSON = json.dumps({"clients": ["bank", "telco"], "rounds": 3, "values": [0.5, None, {"x": "y"}]}).encode()
TOML = b'[training]\nrate = 0.5\nmode = "synchronous"\n[[client]]\nname = "bank"\n'


@pytest.mark.parametrize(
    ("mutate", "content", "read"),
    [
        (mutations_of_bytes, bytes(range(256)), None),
        (mutations_of_json, JSON, json.loads),
        (mutations_of_toml, TOML, lambda text: tomllib.loads(text.decode())),
    ],
    ids=["bytes", "json", "toml"],
)
def test_mutations_are_many_and_the_same_again(mutate, content, read):
    """The same seed gives the same; nearly all differ; of texts, a good part still can be read."""
    some = list(islice(mutate(content, seed=3), 300))
    assert some == list(islice(mutate(content, seed=3), 300))
    assert some != list(islice(mutate(content, seed=4), 300))
    assert len(set(some) - {content}) > 150

    def can_be_read(text):
        try:
            read(text)
        except (ValueError, RecursionError):
            return False
        return True

    if read is not None:
        assert 60 < sum(map(can_be_read, some)) < 290
