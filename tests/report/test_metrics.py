import json
import os

import pytest

from verfedsv.report.metrics import GrowingMetrics


def line(n_rounds, loss=0.5):
    return json.dumps({"n_rounds": n_rounds, "train_loss": loss, "test_loss": None}) + "\n"


@pytest.fixture
def path(tmp_path):
    """Return the path of the metrics."""
    return tmp_path / "metrics.jsonl"


def add(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_what_was_added_is_read_once(path, monkeypatch):
    """An incomplete line is kept until its end is written, and nothing is read again."""
    metrics = GrowingMetrics(path)
    metrics.read()
    assert metrics.curves() == {}
    add(path, line(1) + line(2)[:10])
    metrics.read()
    assert metrics.last_round == 1
    add(path, line(2)[10:])
    read = []
    take = metrics._take
    monkeypatch.setattr(metrics, "_take", lambda content: (read.append(content), take(content)))
    metrics.read()
    metrics.read()
    assert b"".join(read).decode() == line(2)[10:]
    assert metrics.curves()["train_loss"].rounds == (1, 2)
    assert list(metrics.curves()) == ["train_loss"]


def test_a_file_that_was_replaced_or_cut_is_read_anew(path):
    """A resumed run truncates the file, to measure again."""
    metrics = GrowingMetrics(path)
    add(path, line(1) + line(2) + line(3))
    metrics.read()
    other = path.with_name("other")
    other.write_text(line(1, 0.25) + line(2, 0.25) + line(3, 0.25) + line(4, 0.25))
    other.replace(path)
    metrics.read()
    assert metrics.curves()["train_loss"].values == (0.25,) * 4
    os.truncate(path, len(line(1, 0.25)))
    metrics.read()
    assert metrics.n_evaluations == 1
    path.unlink()
    metrics.read()
    assert metrics.n_evaluations == 0


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[1]",
        "null",
        "\x00",
        '{"n_rounds": "x"}',
        '{"n_rounds": -1}',
        '{"n_rounds": 1e400}',
        '{"n_rounds": NaN}',
        f'{{"n_rounds": 1{"0" * 400}}}',
        '{"n_rounds": 2, "train_loss": "low"}',
        "[" * 50_000,
        "x" * 3_000_000,
    ],
    ids=range(12),
)
def test_damaged_lines_are_counted_and_left_out(path, bad):
    """Other lines are still read, whatever a damaged line holds and however long it is."""
    metrics = GrowingMetrics(path)
    add(path, line(1) + bad + "\n" + line(3))
    metrics.read()
    assert metrics.n_bad == 1
    assert metrics.curves()["train_loss"].rounds == (1, 3)


def test_bytes_that_are_no_text_are_left_out(path):
    """The next line is still read."""
    path.write_bytes(b"\xff\xfe\n" + line(1).encode())
    metrics = GrowingMetrics(path)
    metrics.read()
    assert (metrics.n_bad, metrics.n_evaluations) == (1, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_is_not_waited_for(path):
    """It is refused at once, as it is not a regular file."""
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        GrowingMetrics(path).read()
