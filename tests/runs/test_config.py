import tomllib

import pytest

from verfedsv import InputError
from verfedsv.runs import EXAMPLE, read_config

GOOD = """[data]
name = "adult"
clients = 4

[training]
batch_size = 100
rate = 0.5
rounds = 3

[output]
folder = "out"
"""


def write(tmp_path, text):
    """Write a configuration and return its path."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_the_example_is_a_configuration(tmp_path):
    """What --init writes can be run as it is."""
    config = read_config(write(tmp_path, EXAMPLE))
    assert (config.data.name, config.data.clients, config.training.epochs) == ("adult", 8, 20)


def test_every_setting_is_in_the_example():
    """With its default, or as what could be there."""
    from verfedsv.runs.config import Config

    for name, field in Config.model_fields.items():
        section = field.annotation if name != "client" else Config.model_fields["client"].annotation.__args__[0]
        for setting in section.model_fields:
            assert f"{setting} =" in EXAMPLE, f"{name}.{setting}"


def test_commented_settings_of_the_example_are_the_defaults():
    """Uncommented, they change nothing."""
    from verfedsv.runs.config import DataSection, TrainingSection, ValuationSection

    for header, section in (
        ("[training]", TrainingSection),
        ("[valuation]", ValuationSection),
        ("[data]", DataSection),
    ):
        block = EXAMPLE.split(f"\n{header}\n")[1].split("\n\n")[0]
        for line in block.splitlines():
            name, _, rest = line.removeprefix("# ").partition(" = ")
            default = section.model_fields[name].default
            if line.startswith("# ") and name not in ("test", "samples", "rounds", "duration"):
                assert tomllib.loads(f"x = {rest}")["x"] == default, line


def test_paths_are_relative_to_the_file(tmp_path):
    """Wherever it is run from."""
    assert read_config(write(tmp_path, GOOD)).output.folder == tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate = 0.5", "rate = -1"), "line 7: training.rate: input should be greater than 0; received -1"),
        (("rate = 0.5", "speed = 1"), "line 7: training.speed: there is no such setting; there are mode, batch_size"),
        (("rate = 0.5\n", ""), "line 5: training.rate: is needed"),
        (("batch_size = 100", "batch_size = 'all'"), "line 6: training.batch_size: .*received 'all'"),
        (
            ('"adult"', '"mnist"'),
            "line 2: data.name: .*'adult', 'web', 'covtype', 'rcv1' or 'sector'; received 'mnist'",
        ),
        (("[output]", "[outputs]"), "line 10: outputs: there is no such setting; there are data, client, model"),
        (
            ("rounds = 3", "rounds = 3\nepochs = 2"),
            "line 5: training: synchronous training takes either epochs or rounds",
        ),
        (("rounds = 3", "duration = 3.0"), "line 5: training: synchronous training takes either"),
        (("rounds = 3", "mode = 'asynchronous'"), "line 5: training: asynchronous training takes a duration"),
        (("rounds = 3", "mode = 'asynchronous'\nduration = 0.01"), "duration must not be shorter than stamp_every"),
        (('name = "adult"\n', ""), "line 1: the file: data needs a name"),
        (
            ("[output]", "[[client]]\nname = 'a'\nnoise = 2\n[output]"),
            "line 12: client.noise: .*less than or equal to 1",
        ),
        (("[output]", "[[client]]\nname = 'a'\nfile = 'a.csv'\n[output]"), "only one of the two can be used"),
        (
            ("[output]", "[[client]]\nname = 'a'\ncopy_of = 'b'\nrandom_level = 1\n[output]"),
            "line 10: client: a client has one of file, copy_of and random_level",
        ),
        (
            ("[output]", "[[client]]\nname = 'client 1'\nbatch_size = 50\n[output]"),
            "must be no larger than that of any client in synchronous training; 'client 1' has a smaller one",
        ),
        (("rate = 0.5", "rate = "), "is not valid TOML: .*line 7"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, change, message):
    """And with what is allowed there."""
    with pytest.raises(InputError, match=f"(?s){message}"):
        read_config(write(tmp_path, GOOD.replace(*change)))


def test_no_file(tmp_path):
    """It is named."""
    with pytest.raises(InputError, match=r"cannot read .*nothing.toml: No such file or directory"):
        read_config(tmp_path / "nothing.toml")


def test_files_need_labels(tmp_path):
    """Where they are must be said."""
    text = GOOD.replace('name = "adult"\nclients = 4\n', "") + "[[client]]\nname = 'a'\nfile = 'a.csv'\n"
    with pytest.raises(InputError, match=r"data.label names the column of the labels"):
        read_config(write(tmp_path, text))
