import re
import tomllib

import pytest

from verfedsv import InputError
from verfedsv.runs import EXAMPLE, Run
from verfedsv.runs.config import (
    ClientSection,
    DataSection,
    HeadSection,
    ModelSection,
    ServerSection,
    TrainingSection,
    UpSection,
    ValuationSection,
)

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


def read_config(path):
    """Return the configuration in a file."""
    return Run.of_file(path).config


def write(tmp_path, text):
    """Write a configuration and return its path."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_the_example_is_a_configuration(tmp_path):
    """What --init writes can be run."""
    config = read_config(write(tmp_path, EXAMPLE))
    assert (config.data.name, config.data.clients, config.training.epochs) == ("adult", 8, 10)


def test_every_setting_is_in_the_example():
    """With its default or an example."""
    from verfedsv.runs.config import Config

    for name, field in Config.model_fields.items():
        section = field.annotation if name not in ("client", "server", "up") else field.annotation.__args__[0]
        for setting in section.model_fields:
            assert f"{setting} =" in EXAMPLE, f"{name}.{setting}"


def commented():
    """Return the commented-out settings of the example: table, name, value and comment."""
    table = None
    for line in EXAMPLE.splitlines():
        if found := re.fullmatch(r"(?:# )?\[+(\w+)\]+", line):
            table = found.group(1)
        elif found := re.fullmatch(r"# (\w+) = (.*?) +# (.*)", line):
            yield table, found.group(1), tomllib.loads(f"x = {found.group(2)}")["x"], found.group(3)


def test_commented_settings_of_the_example_are_defaults_or_examples():
    """Each says which; with the defaults written out, nothing changes."""
    sections = {
        "data": DataSection,
        "client": ClientSection,
        "model": ModelSection,
        "head": HeadSection,
        "training": TrainingSection,
        "valuation": ValuationSection,
        "server": ServerSection,
        "up": UpSection,
    }
    found = list(commented())
    assert len(found) == sum(" = " in line and line.startswith("# ") for line in EXAMPLE.splitlines())
    for table, name, value, said in found:
        assert said.startswith(("default", "for example")), (table, name)
        is_default = sections[table].model_fields[name].default == value
        assert is_default == said.startswith("default"), (table, name)


def uncomment(*names):
    """Return the example with some settings of its commented-out clients set, by the client's name."""
    blocks = re.findall(r"(?:^# \[\[client\]\]\n)(?:^# \w+ = .*\n)+", EXAMPLE, re.MULTILINE)
    text = EXAMPLE
    for block in blocks:
        if any(f'"{name}"' in block.splitlines()[1] for name in names):
            text = text.replace(block, re.sub("^# ", "", block, flags=re.MULTILINE))
    return text


def test_clients_of_the_example_can_be_set(tmp_path):
    """Artificial ones as they are; files in place of the data set; asynchronous training with a duration."""
    config = read_config(write(tmp_path, uncomment("noisy copy", "random")))
    assert [client.name for client in config.client] == ["noisy copy", "random"]
    text = uncomment("bank", "telco").replace('# label = "y"', 'label = "y"').replace("# label_client", "label_client")
    text = re.sub(r"^(name = \"adult\"|clients =).*\n", "", text, flags=re.MULTILINE)
    assert read_config(write(tmp_path, text)).data.label_client == "bank"
    text = uncomment("client 1").replace('mode = "synchronous"', 'mode = "asynchronous"')
    text = text.replace("epochs = 10", "").replace("# duration", "duration")
    assert read_config(write(tmp_path, text)).client[0].batch_size == 3000
    text = re.sub(
        "^# (head = .*|\\[head\\]|hidden = \\[64\\]|optimizer|activation|rate = 0.01 )",
        r"\1",
        uncomment("client 2"),
        flags=re.M,
    )
    text = text.replace('head = "sum"', 'head = "mlp"').replace("intercept = true", "")
    assert read_config(write(tmp_path, text)).client[0].width == 16


def test_files_are_standardised_unless_said_otherwise(tmp_path):
    """Data sets by name are not."""
    assert read_config(write(tmp_path, GOOD)).data.used_scale == "none"
    assert read_config(write(tmp_path, FILES)).data.used_scale == "standardise"
    said = FILES.replace('label = "y"', 'label = "y"\nscale = "none"')
    assert read_config(write(tmp_path, said)).data.used_scale == "none"


def test_paths_are_relative_to_the_file(tmp_path):
    """In any working directory."""
    assert read_config(write(tmp_path, GOOD)).output.folder == tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate = 0.5", "rate = -1"), "training.rate: input should be greater than 0; received -1"),
        (
            ("rate = 0.5", "speed = 1"),
            "training.speed: there is no such setting; the settings here are mode, loss, batch_size",
        ),
        (("rate = 0.5\n", ""), "training.rate: is required"),
        (("batch_size = 100", "batch_size = 'all'"), "training.batch_size: .*received 'all'"),
        (
            ('"adult"', '"mnist"'),
            "data.name: should be one of adult, web, covtype, rcv1, .*, sector, letter, diabetes; received 'mnist'",
        ),
        (("[output]", "[outputs]"), "outputs: there is no such setting; the settings here are data, client, model"),
        (
            ("rounds = 3", "rounds = 3\nepochs = 2"),
            "training: synchronous training takes either epochs or rounds",
        ),
        (("rounds = 3", "rate_ = 3"), "training.rate_: there is no such setting"),
        (("rounds = 3\n", ""), "training: synchronous training takes either epochs or rounds"),
        (
            ("rounds = 3", "duration = 3.0"),
            "training.duration: is for asynchronous training, and this one is synchronous: replace it with ep",
        ),
        (("rounds = 3", "mode = 'asynchronous'"), "training: asynchronous training takes a duration"),
        (
            ("rounds = 3", "mode = 'asynchronous'\nepochs = 3"),
            "training.epochs: is for synchronous training; replace it with duration, in seconds",
        ),
        (
            ("rounds = 3", "mode = 'asynchronous'\nduration = 0.01"),
            "training.duration: must not be shorter than",
        ),
        (('name = "adult"\n', ""), "data: needs a name"),
        (
            ("[output]", "[[client]]\nname = 'a'\nnoise = 2\n[output]"),
            "client '[^']+'.noise: .*less than or equal to 1",
        ),
        (("[output]", "[[client]]\nname = 'a'\nfile = 'a.csv'\n[output]"), "use only one of the two"),
        (
            ("[output]", "[[client]]\nname = 'a'\ncopy_of = 'b'\nrandom_level = 1\n[output]"),
            "client '[^']+': a client takes at most one of file, copy_of and random_level",
        ),
        (
            ("[output]", "[[client]]\nname = 'client 1'\nbatch_size = 50\n[output]"),
            r"client '[^']+'.batch_size: must be at least training.batch_size \(100\) in .*; received 50",
        ),
        (("rate = 0.5", "rate = "), "is not valid TOML: .*line 7"),
        (
            ("rate = 0.5", "rate = 0.5\nloss = 'hinge'"),
            "training.loss: input should be 'auto', 'logistic', 'softmax' or 'squared'; received 'hinge'",
        ),
        (
            ("rate = 0.5", "rate = 0.5\nloss = 'squared'"),
            "training.loss: loss 'squared' takes amounts, and the labels are 2 classes: set loss to 'logistic', or le",
        ),
        (("clients = 4", "label = ['a', 'b']"), "data.label: should be the name of one column; several labels at once"),
        (("clients = 4", "classes = 1"), "data.classes: input should be greater than or equal to 2"),
    ],
)
def test_mistakes_are_named_with_their_setting(tmp_path, change, message):
    """And what is allowed there."""
    with pytest.raises(InputError, match=f"(?s){message}"):
        read_config(write(tmp_path, GOOD.replace(*change)))


FILES = GOOD.replace('name = "adult"\nclients = 4', 'label = "y"\nlabel_client = "a"') + (
    "[[client]]\nname = 'a'\nfile = 'a.csv'\n"
)


def test_losses_are_known_or_follow_from_the_labels(tmp_path):
    """Those of data sets are known; with files, only if there is a setting or a number of classes."""
    diabetes = GOOD.replace("adult", "diabetes")
    classes = FILES.replace('label = "y"', 'label = "y"\nclasses = 3')
    cases = {GOOD: "logistic", GOOD.replace("adult", "letter"): "softmax", diabetes: "squared", FILES: "auto"}
    cases |= {FILES.replace("rate", "loss = 'squared'\nrate"): "squared", classes: "softmax"}
    cases[GOOD.replace("rate", "loss = 'softmax'\nrate")] = "softmax"
    for text, loss in cases.items():
        assert read_config(write(tmp_path, text)).used_loss == loss
    assert read_config(write(tmp_path, diabetes)).data.used_scale == "standardise"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate = 0.5", "rate = true"), "training.rate: .*valid number; received True"),
        (("rate = 0.5", "rate = '0.5'"), "training.rate: .*valid number; received '0.5'"),
        (("rounds = 3", "rounds = true"), "training.rounds: .*valid integer; received True"),
        (("rounds = 3", "rounds = 3.0"), "training.rounds: .*valid integer; received 3.0"),
        (("rounds = 3", "rounds = '3'"), "training.rounds: .*valid integer; received '3'"),
        (("rounds = 3", "rounds = 3\nintercept = 'off'"), "training.intercept: .*boolean; received 'off'"),
        (("rounds = 3", "rounds = 3\nintercept = 0"), "training.intercept: .*boolean; received 0"),
        (("rounds = 3", f"rounds = 3\nseed = {2**63}"), "training.seed: .*should be less than"),
        (("clients = 4", "test = true"), "data.test: .*valid number; received True"),
    ],
)
def test_types_are_not_converted(tmp_path, change, message):
    """True is not a number, and text is neither a number nor true."""
    with pytest.raises(InputError, match=message):
        read_config(write(tmp_path, GOOD.replace(*change)))


def test_whole_numbers_may_stand_for_others(tmp_path):
    """A rate of 1 is 1.0."""
    assert read_config(write(tmp_path, GOOD.replace("rate = 0.5", "rate = 1"))).training.rate == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("clients = 4", "label = 'y'"), "data.label: is for a file per client"),
        (GOOD.replace("clients = 4", "label_client = 'y'"), "data.label_client: is for a file per client"),
        (
            FILES.replace('label = "y"', 'label = "y"\nclients = 4'),
            "data.clients: is for a data set or file that is split",
        ),
        (
            GOOD + "[[client]]\nname = 'client 1'\ncolumns = ['a']\n",
            "client '[^']+'.columns: is for clients with",
        ),
        (GOOD + "[[client]]\nname = 'client 2'\nid = 'key'\n", "client 'client 2'.id: is for clients with a file"),
        (GOOD + "[[client]]\nname = 'x'\nrandom_level = 1\nnoise = 0.1\n", "client 'x'.noise: is for copies"),
        (
            GOOD + "[[client]]\nname = 'client 1'\nperiod = 0.1\n",
            "client '[^']+'.period: is for asynchronous",
        ),
        (GOOD.replace("rounds = 3", "rounds = 3\nperiod = 0.1"), "training.period: is for asynchronous"),
        (
            GOOD.replace("rounds = 3", "rounds = 3\nstamp_every = 1"),
            "training.stamp_every: is for asynchronous",
        ),
        (GOOD.replace("rounds = 3", "rounds = 3\nclock = 'real'"), "training.clock: is for asynchronous"),
        (GOOD.replace("rounds = 3", "rounds = 3\nduration = 1.0"), "training.duration: is for asynchronous"),
        (
            GOOD.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1.0\nrounds = 3"),
            "training.rounds: is for synchronous training",
        ),
        (
            GOOD.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1.0\nepochs = 3"),
            "training.epochs: is for synchronous training",
        ),
        (GOOD + "[model]\nhidden = 8\n", "model.hidden: is for the perceptron"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(tmp_path, text, message):
    """By name, with what they are for."""
    with pytest.raises(InputError, match=message):
        read_config(write(tmp_path, text))


def test_settings_that_apply_are_taken(tmp_path):
    """Columns of files, noise of copies, hidden units of the perceptron, periods in asynchronous training."""
    text = FILES.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1.0\nperiod = 0.02\nclock = 'real'")
    text += "id = 'key'\ncolumns = ['b']\n[[client]]\nname = 'x'\ncopy_of = 'a'\nnoise = 0.5\nperiod = 0.1\n"
    config = read_config(write(tmp_path, text + "[model]\nkind = 'perceptron'\nhidden = 8\n"))
    assert (config.client[0].id, config.client[1].noise, config.model.hidden) == ("key", 0.5, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\nspeed = 1\n" + GOOD, "run.toml: speed: there is no such setting; the settings here are data"),
        (
            'output.folder = "o"\ndata.name = "web"\ntraining.batch_size = 3\ntraining.seed = 1\ntraining.rate = -1\n',
            "run.toml: training.rate: input should be greater than 0",
        ),
        (
            'data = {name = "adult"}\noutput = {folder = "o"}\ntraining = {batch_size = 3, rounds = 4, rate = -1}\n',
            "run.toml: training.rate: input should be greater than 0",
        ),
        (GOOD.replace("[training]", '["training"]').replace("0.5", "-1"), "run.toml: training.rate"),
        (GOOD.replace("[training]", "[ training ] # how").replace("0.5", "-1"), "run.toml: training.rate"),
        (GOOD.replace("rate = 0.5", '"rate" = -1'), "run.toml: training.rate"),
        (GOOD.replace("rate = 0.5", 'decay = """\nrate = 5"""\nrate = -1'), "run.toml: training.rate"),
        (
            "client = [\n  {name = 'a', random_level = 1},\n  # one more\n  {name = 'b', nois = 3},\n]\n" + GOOD,
            "run.toml: client '[^']+'.nois: there is no such setting; the settings here are name, file",
        ),
        (GOOD.replace("[output]", "[out]"), r"run.toml: output: is required"),
        (
            GOOD + "[[client]]\nname = 'a'\n[[client]]\nname = 'a'\n",
            "number 2.name: .*differ; received 'a'",
        ),
        (GOOD + "[[client]]\nname = ' bank'\n", "number 1.name: .*without spaces around.*; received ' bank'"),
        (GOOD + "[[client]]\nname = 'a\\tb'\n".replace("'", '"'), "number 1.name: .*printable"),
        (FILES.replace('label_client = "a"', 'label_client = "b"'), "data.label_client: .*received 'b'"),
        (
            GOOD.replace('[data]\nname = "adult"\nclients = 4', "data = 5"),
            "data: should be a table, .data.; received 5",
        ),
        (GOOD + "[client]\nname = 'a'\n", r"client: should be tables, \[\[client\]\] for each client"),
        (
            GOOD.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1.0\nperiod = 0.1"),
            "training.period: no client would upload before the end of the first round, after 0.04 s",
        ),
    ],
)
def test_a_setting_is_named_however_its_table_is_written(tmp_path, text, message):
    """Dotted, quoted, inline, or repeated, then with its number."""
    with pytest.raises(InputError, match=message):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rank = 0", "valuation.rank: should be a whole number of at least 1, or 'auto'; received 0"),
        (
            "semivalue = 'core'",
            "valuation.semivalue: should be shapley, banzhaf, leave-one-out or beta(a, b); received 'core'",
        ),
        ("semivalue = 2", "valuation.semivalue: input should be a valid string; received 2"),
        ("rank = 'high'", "valuation.rank: should be a whole number of at least 1, or 'auto'; received 'high'"),
        ("regularization = -1", "valuation.regularization: should be a positive number, or 'auto'; received -1"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, setting, message):
    """Even where a number or a word is allowed."""
    with pytest.raises(InputError) as caught:
        read_config(write(tmp_path, GOOD + f"[valuation]\n{setting}\n"))
    assert str(caught.value) == f"{tmp_path / 'run.toml'}: {message}"


def test_a_byte_order_mark_is_left_out(tmp_path):
    """Some editors write one."""
    path = tmp_path / "run.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert read_config(path).data.name == "adult"


def test_no_file(tmp_path):
    """It is named."""
    with pytest.raises(InputError, match=r"cannot read .*nothing.toml: No such file or directory"):
        read_config(tmp_path / "nothing.toml")


def test_files_need_labels(tmp_path):
    """The configuration must say where they are."""
    text = GOOD.replace('name = "adult"\nclients = 4\n', "") + "[[client]]\nname = 'a'\nfile = 'a.csv'\n"
    with pytest.raises(InputError, match=r"data.label names the column of the labels"):
        read_config(write(tmp_path, text))


def test_only_the_first_of_many_mistakes_are_described(tmp_path):
    """So as not to fill the terminal."""
    text = "".join(f"k{number} = 1\n" for number in range(4000)) + GOOD
    with pytest.raises(InputError) as caught:
        read_config(write(tmp_path, text))
    assert str(caught.value).splitlines()[-1] == f"{tmp_path / 'run.toml'}: and 3,995 more mistakes"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "it is nested too deeply"),
        ("a" + ".a" * 100_000 + " = 1", "it is nested too deeply"),
        (r'"\""' + r'."\""' * 2_000 + " = 1", "it is nested too deeply"),
        (
            "[" + r""" "\\\"'" . '"\' . a """ + r""". "\\\"'" . '"\' . a """ * 700 + "]\nb = 1",
            "it is nested too deeply",
        ),
        ("data = [" + "{" + ("a" + ".a" * 14 + " = {") * 100 + "}" * 101 + "]", r"data: .*received a value that is"),
        (GOOD + "[valuation]\nrank = " + "[" * 300 + "]" * 300, r"valuation\.rank: .*received \[{79}…"),
        (GOOD + "[valuation]\nrank = " + "1" * 5000, "is not valid TOML: Exceeds the limit"),
        (GOOD + "[valuation]\nrank = 0x" + "f" * 5000, "received a number that is too large"),
        (GOOD.replace("0.5", "1" + "0" * 400), r"training\.rate: input should be a valid number; received 10000"),
        (GOOD.replace("0.5", "1e400"), r"training\.rate: input should be a finite number"),
        (
            GOOD.replace("rounds = 3", "epochs = 1e300"),
            r"training\.epochs: input should be less than or equal to 1000000000",
        ),
        (
            GOOD.replace("rounds = 3", "rounds = 2_000_000_000"),
            r"training\.rounds: input should be less than or equal to 1",
        ),
        (
            GOOD.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1e12\nstamp_every = 1e-9\nperiod = 1e-9"),
            r"training\.duration: must not be longer than 1,000,000,000 rounds of stamp_every seconds, 1e-09 each; rec",
        ),
        (GOOD.replace("100", "1" + "0" * 400), r"training\.batch_size: input should be less than 9007199254740992"),
        (
            GOOD.replace("rounds = 3", "mode = 'asynchronous'\nduration = 1e300\nstamp_every = 1e-300"),
            r"training\.stamp_every: input should be greater than or equal to 0.000000001",
        ),
        (GOOD.replace('"out"', r'"o\u0000"'), "output.folder: a path cannot contain NUL characters"),
        (GOOD + "# \0", "is not valid TOML: Found invalid character"),
        (GOOD + "[output]\n", r"is not valid TOML: Cannot declare .*output.* twice"),
        (GOOD.replace("rate = 0.5", "rate = 0.5\nrate = 0.6"), "is not valid TOML: Cannot overwrite a value"),
        (GOOD + "#" * 2**18, "it is larger than 262,144 bytes, the limit"),
    ],
)
def test_whatever_a_configuration_holds_is_an_error_of_our_own(tmp_path, text, says):
    """Nested too deeply, too large, odd or repeated."""
    with pytest.raises(InputError, match=says):
        read_config(write(tmp_path, text))


def test_other_encodings_are_named(tmp_path):
    """With the position of the first wrong byte."""
    (tmp_path / "run.toml").write_bytes(GOOD.encode() + "# é".encode("latin-1"))
    with pytest.raises(InputError, match=rf"it is not UTF-8 \(.* at byte {len(GOOD) + 2}\)"):
        read_config(tmp_path / "run.toml")
