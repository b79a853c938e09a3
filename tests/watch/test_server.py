import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from verfedsv import InputError
from verfedsv.watch.server import Watch


@pytest.fixture
def watch():
    """Return a function that begins to watch a folder; all ends with the test."""
    started = []

    def start(folder, **options):
        page = Watch(folder, every=0.1, **options)
        thread = threading.Thread(target=page.run)
        thread.start()
        started.append((page, thread))
        return page

    yield start
    for page, thread in started:
        page.stop()
        thread.join(timeout=120)
        assert not thread.is_alive()


@contextmanager
def opened(address, path, **headers):
    """Ask for a path; yield the answer, to be read."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=120)) as connection:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            yield response


def get(address, path, **headers):
    """Return status, headers and content of a path."""
    with opened(address, path, **headers) as response:
        return response.status, response.headers, response.read()


class Events:
    """The events of a page, as a browser reads them."""

    def __init__(self, response) -> None:
        self._response = response
        assert self._response.headers["content-type"].startswith("text/event-stream")

    @classmethod
    @contextmanager
    def of(cls, page_address):
        with opened(page_address, "/events") as response:
            yield cls(response)

    def next(self):
        """Return the fields of the next message, its data as JSON; None at the end."""
        fields = {}
        while line := self._response.readline():
            name, _, content = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = content
            elif "data" in fields:
                return fields | {"data": json.loads(fields["data"])}
        return None

    def until(self, n_rounds):
        """Return the state in which that many rounds are valued."""
        while True:
            message = self.next()
            if message["data"]["n_rounds"] == n_rounds:
                return message["data"]


def test_events_follow_a_run(run, watch):
    """Numbered, with the time to reconnect; state.json has the same."""
    page = watch(run.folder)
    with Events.of(page.address) as events:
        first = events.next()
        assert first["retry"] == "2000"
        assert first["id"].isdigit()
        run.grow(2)
        state = events.until(2)
        place = [heading[0] for heading in state["table"]["headings"]].index("Share")
        assert sum(row[place][1] for row in state["table"]["rows"]) == pytest.approx(1)
        run.grow(3)
        state = events.until(5)
        assert json.loads(get(page.address, "/state.json")[2])["table"] == state["table"]


def test_two_watchers_of_one_run_see_the_same(run, watch):
    """Each with two pages open."""
    run.grow(2)
    pages = [watch(run.folder), watch(run.folder)]
    assert pages[0].address != pages[1].address
    with ExitStack() as stack:
        listening = [stack.enter_context(Events.of(page.address)) for page in pages for _ in range(2)]
        run.grow(1)
        states = [events.until(3) for events in listening]
    assert all(state["table"] == states[0]["table"] for state in states)


@pytest.mark.parametrize("path", ["/", "/state.json", "/watch.js", "/watch.css", "/nothing"])
def test_other_names_are_refused_and_headers_are_strict(run, watch, path):
    """Against pages whose name was made to point here; no page may embed this one, or run scripts in it."""
    page = watch(run.folder)
    assert get(page.address, path, Host="evil.example")[0] == 400
    assert get(page.address, path, Host="127.0.0.1.evil.example:80")[0] == 400
    status, headers, _ = get(page.address, path, Host="localhost:1234")
    assert status == (404 if path == "/nothing" else 200)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_only_this_machine_can_connect_by_default(run, watch):
    """Other addresses must be asked for."""
    assert urlsplit(watch(run.folder).address).hostname == "127.0.0.1"
    assert watch(run.folder).is_local
    assert not watch(run.folder, host="0.0.0.0").is_local  # noqa: S104  # what is asked for


def test_a_page_for_all_addresses_can_be_called_by_any(run, watch):
    """But by no other name; and the address that is printed is one that can be called."""
    page = watch(run.folder, host="0.0.0.0")  # noqa: S104  # what is asked for
    assert urlsplit(page.address).hostname != "0.0.0.0"  # noqa: S104
    here = f"http://127.0.0.1:{urlsplit(page.address).port}/"
    for name in ("192.0.2.2", "192.0.2.2:8000", "[2001:db8::1]:8000", "localhost", socket.gethostname()):
        assert get(here, "/state.json", Host=name)[0] == 200
    for name in ("evil.example", "192.0.2.2.evil.example", "192.0.2.2@evil.example", "", "[evil]", "evil:1"):
        assert get(here, "/state.json", Host=name)[0] == 400
    assert get(page.address, "/state.json")[0] == 200


def test_what_cannot_be_watched_is_refused(run, watch, tmp_path):
    """A place where no run can come to be, a file, a port in use, an address of nobody."""
    with pytest.raises(InputError, match=r"there is no folder .*nowhere in which a run x could begin"):
        Watch(tmp_path / "nowhere" / "x")
    with pytest.raises(InputError, match="is a file"):
        Watch(run.folder / "transcript" / "transcript.json")
    port = urlsplit(watch(run.folder).address).port
    with pytest.raises(InputError, match=f"port {port}: .*choose another"):
        Watch(run.folder, port=port)
    with pytest.raises(InputError, match="cannot listen at no such host"):
        Watch(run.folder, host="no such host")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_code_0(run, number):
    """One line, no traceback, while a page is open; and its connection is closed."""
    run.grow(2)
    command = [sys.executable, "-m", "verfedsv", "watch", str(run.folder), "--every", "0.2"]
    with subprocess.Popen(  # noqa: S603  # our own command line
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            first = process.stdout.readline()
            with Events.of(first.split(" at ")[1].split()[0]) as events:
                events.until(2)
                process.send_signal(number)
                assert events.next() is None
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "Stopped watching.\n", "")
