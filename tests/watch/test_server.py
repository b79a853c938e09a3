import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from verfedsv import InputError
from verfedsv.watch.server import Watch


@pytest.fixture
def watch():
    """Return a function that starts to watch a folder until the end of the test."""
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
    """Request a path; yield the response."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=120)) as connection:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            yield response


def get(address, path, **headers):
    """Return status, headers and content of a path."""
    with opened(address, path, **headers) as response:
        return response.status, response.headers, response.read()


def until(address, n_rounds):
    """Poll the state, as a page does, until that many rounds are valued; return it."""
    tag = ""
    while True:
        status, headers, content = get(address, "/state.json", **{"If-None-Match": tag})
        assert (status, content) == (304, b"") or status == 200
        if status == 200:
            assert headers["etag"] != tag
            tag, state = headers["etag"], json.loads(content)
            if state["n_rounds"] == n_rounds:
                return state
        time.sleep(0.05)


def test_the_state_follows_a_run(run, watch):
    """It is sent only if it has changed."""
    page = watch(run.folder)
    assert until(page.address, 0)["status"] == "waiting"
    run.grow(2)
    state = until(page.address, 2)
    place = [heading[0] for heading in state["table"]["headings"]].index("Share")
    assert sum(row[place][1] for row in state["table"]["rows"]) == pytest.approx(1)
    run.grow(3)
    assert until(page.address, 5)["table"] != state["table"]


def test_two_watchers_of_one_run_see_the_same(run, watch):
    """Each has its own address."""
    run.grow(2)
    pages = [watch(run.folder), watch(run.folder)]
    assert pages[0].address != pages[1].address
    run.grow(1)
    one, other = (until(page.address, 3) for page in pages)
    assert one["table"] == other["table"]


def test_a_connection_serves_many_requests_and_may_be_dropped(run, watch, capfd):
    """Even during a request; others are still answered, and nothing is printed."""
    page = watch(run.folder)
    with closing(HTTPConnection(urlsplit(page.address).netloc, timeout=120)) as connection:
        for path in ("/", "/state.json", "/nothing", "/watch.js"):
            connection.request("GET", path)
            with connection.getresponse() as response:
                assert len(response.read()) == int(response.headers["content-length"])
        for sent in (b"GET / HT", b"nonsense\r\n\r\n", b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", urlsplit(page.address).port)) as dropped:
                dropped.sendall(sent)
        assert get(page.address, "/state.json")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["/", "/state.json", "/watch.js", "/watch.css", "/nothing"])
def test_other_names_are_refused_and_headers_are_strict(run, watch, path):
    """Against DNS rebinding; no page may embed this one or run scripts in it."""
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
    """Other addresses must be requested."""
    assert urlsplit(watch(run.folder).address).hostname == "127.0.0.1"
    assert watch(run.folder).is_local
    assert not watch(run.folder, host="0.0.0.0").is_local  # noqa: S104  # what is asked for


def test_a_page_for_all_addresses_can_be_called_by_any(run, watch):
    """But by no other name; and the printed address works."""
    page = watch(run.folder, host="0.0.0.0")  # noqa: S104  # what is asked for
    assert urlsplit(page.address).hostname != "0.0.0.0"  # noqa: S104
    here = f"http://127.0.0.1:{urlsplit(page.address).port}/"
    for name in ("192.0.2.2", "192.0.2.2:8000", "[2001:db8::1]:8000", "localhost", socket.gethostname()):
        assert get(here, "/state.json", Host=name)[0] == 200
    for name in ("evil.example", "192.0.2.2.evil.example", "192.0.2.2@evil.example", "", "[evil]", "evil:1"):
        assert get(here, "/state.json", Host=name)[0] == 400
    assert get(page.address, "/state.json")[0] == 200


def test_what_cannot_be_watched_is_refused(run, watch, tmp_path):
    """A folder that cannot come to exist, a file, a port in use, an unknown host."""
    with pytest.raises(InputError, match=r"there is no folder .*nowhere in which a run x could begin"):
        Watch(tmp_path / "nowhere" / "x")
    with pytest.raises(InputError, match="is a file"):
        Watch(run.folder / "transcript" / "transcript.json")
    port = urlsplit(watch(run.folder).address).port
    with pytest.raises(InputError, match=f"port {port}: .*choose another"):
        Watch(run.folder, port=port)
    with pytest.raises(InputError, match="cannot listen on no such host"):
        Watch(run.folder, host="no such host")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_code_0(run, number):
    """One line, no traceback, while a page is open."""
    run.grow(2)
    command = [sys.executable, "-m", "verfedsv", "watch", str(run.folder), "--every", "0.2"]
    with subprocess.Popen(  # noqa: S603  # our own command line
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            first = process.stdout.readline()
            address = first.split(" at ")[1].split()[0]
            with opened(address, "/"):
                until(address, 2)
                process.send_signal(number)
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "Stopped watching.\n", "")
