"""Whoever should not get in does not, and the log has the reason; each case with a real server and mutual TLS."""

import contextlib
import signal
import socket
import ssl
import threading
import time
from contextlib import suppress

import grpc
import numpy as np
import pytest

from tests.federation.conformance import make_clients, make_server
from tests.federation.textbook import records_of
from tests.network.callers import Caller, Guarded, framed
from tests.network.consortium import Consortium
from tests.network.parties import DAY, NOW, approved, authority_of, key_pem, make
from tests.network.rehearsal import wait_until
from tests.network.wiring import hello_of
from verfedsv import InputError, Recorder
from verfedsv.cli.network import check_loopback
from verfedsv.data.sources import ClientFile
from verfedsv.federation import SynchronousSchedule, Training, synchronous_rounds
from verfedsv.federation.messages import Done, Embed, Embeddings, Save
from verfedsv.files import write_whole
from verfedsv.network import consortium_pb2 as pb
from verfedsv.network import handshakes, listening, reception, sessions
from verfedsv.network.events import Event, Sparing
from verfedsv.network.link import Link
from verfedsv.network.member import Member
from verfedsv.network.messages import PROTOCOL
from verfedsv.network.wire import LARGEST_FRAME, SERVER_OPTIONS, to_bytes


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let what happens at intervals happen soon."""
    monkeypatch.setattr(sessions, "_RECHECK", 0.1)
    monkeypatch.setattr(listening, "_REPORT", 0.1)


@pytest.fixture
def guarded(tmp_path):
    """Return a server for telco and shop."""
    found = Guarded(tmp_path)
    yield found
    found.close()


def ask(guarded, request):
    """Ask a client in another thread; return a list that will have the answer."""
    answers = []
    threading.Thread(target=lambda: answers.extend(guarded.hub.exchange([request], 5)), daemon=True).start()
    return answers


# What TLS refuses: the client has no reason, the log has a number, and stderr has gRPC's reason.


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("none", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("other", "certificate signature failure"),
        ("expired", "certificate has expired"),
    ],
)
def test_without_a_valid_certificate_nobody_gets_through(guarded, capfd, kind, reason):
    """No certificate, another authority's, an expired one: counted, and gRPC writes why to stderr."""
    impostor = make(guarded.authority.certificate.name, is_authority=True)
    party = {
        "none": None,
        "other": make("telco", issuer=impostor),
        "expired": make("telco", issuer=guarded.signer, end=NOW - DAY / 24),
    }[kind]
    caller = guarded.call(guarded.credentials_of(party))
    caller.send(hello_of("telco"))
    assert caller.end()[0] == "UNAVAILABLE"
    assert guarded.logged("ended without a certificate of this consortium, or said nothing") == ""
    assert reason in capfd.readouterr().err
    assert not guarded.hub.connected()


REASONS = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "certificate signature failure", "certificate has expired")


@pytest.mark.parametrize("verbosity", [None, "INFO"])
def test_reasons_of_tls_are_logged_if_asked_for(tmp_path, monkeypatch, verbosity):
    """By the command itself, which is silent about them unless the environment asks."""
    whole = Consortium(tmp_path)
    authority, signer = authority_of(tmp_path / "keys")
    approved(authority, tmp_path / "keys", "server", ["127.0.0.1"])
    impostor = make(authority.certificate.name, is_authority=True)
    expired = make("telco", issuer=signer, end=NOW - DAY / 24)
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    whole.start("serve", "--keys", str(tmp_path / "keys"), is_insecure=False)
    try:
        whole.wait_for(lambda: "listening" in whole.log("serve"))
        for party in (None, make("telco", issuer=impostor), expired):
            own = (None, None) if party is None else (key_pem(party.key), party.pem)
            mutual = grpc.ssl_channel_credentials(authority.certificate.to_pem(), *own)
            caller = Caller(whole.port, mutual)
            caller.send(hello_of("telco"))
            assert caller.end()[0] == "UNAVAILABLE"
            caller.channel.close()
    finally:
        whole.kill("serve", signal.SIGINT)
    found = [reason for reason in REASONS if reason in whole.log("serve")]
    assert found == ([] if verbosity is None else [*REASONS])


def test_garbage_is_no_connection(guarded):
    """Bytes that are no TLS: the connection is closed, and counted."""
    for content in (b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"\x16\x03\x01\xff\xff" + bytes(70_000)):
        with socket.create_connection(("127.0.0.1", guarded.port), 10) as found:
            found.sendall(content)
            try:
                while found.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    end = time.monotonic() + 10
    while sum(int(text.split()[0]) for text in guarded.texts()) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)
    guarded.join()


def client_hello():
    """Return the beginning of a handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("n_bytes", [1, 100, None], ids=["a byte", "half", "all of it"])
def test_handshakes_that_are_never_finished_are_hung_up_on(tmp_path, monkeypatch, n_bytes):
    """Many at once, wherever they stop; a client joins meanwhile, and the log has their number."""
    options = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 1500}
    monkeypatch.setattr(listening, "SERVER_OPTIONS", tuple(options.items()))
    guarded, content = Guarded(tmp_path, late=2.0), client_hello()[:n_bytes]
    found = [socket.create_connection(("127.0.0.1", guarded.port), 10) for _ in range(40)]
    for each in found:
        each.sendall(content)
    guarded.join()
    for each in found:
        with suppress(ConnectionResetError):
            while each.recv(4096):
                pass
        each.close()
    wait_until(lambda: sum(int(text.split()[0]) for text in guarded.texts()) == len(found))
    guarded.close()


def test_a_member_that_opens_no_stream_is_hung_up_on(tmp_path, monkeypatch):
    """A connection with a valid certificate that is only held open is closed, by HTTP/2's GOAWAY."""
    options = {**dict(SERVER_OPTIONS), "grpc.max_connection_idle_ms": 500}
    monkeypatch.setattr(listening, "SERVER_OPTIONS", tuple(options.items()))
    guarded = Guarded(tmp_path)
    context = ssl.create_default_context(cafile=guarded.folder / "ca" / "ca.crt")
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(*make("telco", issuer=guarded.signer).write(tmp_path, "telco"))
    with (
        socket.create_connection(("127.0.0.1", guarded.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # empty SETTINGS
        received = b""
        with suppress(ConnectionResetError, ssl.SSLError):
            while part := secured.recv(4096):
                received += part
    assert b"connection idle" in received
    guarded.close()


def test_connections_that_say_nothing_are_hung_up_on():
    """After some seconds in TLS, and half a minute without a call; this only checks that gRPC is told so."""
    options = dict(SERVER_OPTIONS)
    assert options["grpc.server_handshake_timeout_ms"] < 1000 * handshakes._LATE
    assert options["grpc.max_connection_idle_ms"] <= 30_000


# What the server refuses by the certificate


def test_a_revoked_certificate_is_refused(guarded):
    """As it connects, with the reason at both ends."""
    telco = make("telco", issuer=guarded.signer)
    guarded.revoke(telco)
    code, details = end_of(guarded, guarded.credentials_of(telco), hello_of("telco"))
    assert code == "PERMISSION_DENIED"
    assert "was revoked at" in details
    assert guarded.logged("was revoked at")


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "asked"])
def test_a_revocation_ends_a_live_connection(guarded, monkeypatch, is_idle):
    """At the next message, or after some seconds without one; its last answer does not count."""
    if not is_idle:
        monkeypatch.setattr(sessions, "_RECHECK", 60.0)
    telco = make("telco", issuer=guarded.signer)
    caller = guarded.call(guarded.credentials_of(telco))
    caller.send(hello_of("telco"))
    caller.receive()
    guarded.revoke(telco)
    answers = [] if is_idle else ask(guarded, Save("telco", 1, 1, -1))
    code, details = caller.end()
    assert code == "PERMISSION_DENIED"
    assert "was revoked at" in details
    assert guarded.logged("was revoked at") == "telco"
    assert guarded.logged("its certificate is no longer accepted", "left") == "telco"
    assert not answers


def test_a_certificate_that_expires_ends_its_connection(guarded, monkeypatch):
    """Of dates, gRPC takes notice only as a client connects."""
    guarded.join()
    check = guarded.checker._check
    monkeypatch.setattr(guarded.checker, "_known", {})
    monkeypatch.setattr(guarded.checker, "_check", lambda peer, _: check(peer, NOW + 2 * DAY))
    assert guarded.logged("expired at") == "telco"


def test_no_connection_is_kept_by_new_calls(tmp_path, monkeypatch):
    """After ten seconds, here one, a connection takes no other call; a client's only one goes on."""
    options = [(name, 1000 if name == "grpc.max_connection_age_ms" else value) for name, value in SERVER_OPTIONS]
    assert ("grpc.max_connection_age_ms", 1000) in options
    monkeypatch.setattr(listening, "SERVER_OPTIONS", options)
    guarded, (clients, _) = Guarded(tmp_path), make_clients(1)
    try:
        guarded.attend("telco", clients[0].answer)
        assert not guarded.hub.wait_for_all(["telco"], 10, lambda: False)
        stranger, end = guarded.call(guarded.credentials("nobody")), time.monotonic() + 3
        while time.monotonic() < end:
            stranger.send(hello_of("nobody"))
            assert stranger.end()[0] in ("PERMISSION_DENIED", "UNAVAILABLE")
            time.sleep(0.2)  # only 30 refusals a minute are logged
            stranger.dial()
        assert len({event.client for event in guarded.events if event.kind == "refused"}) > 1
        assert guarded.texts("left") == []
        assert guarded.hub.exchange([Embed("telco", 1, 1, np.arange(4))], 10)
    finally:
        guarded.close()


def test_without_a_revocation_list_everybody_waits(guarded):
    """Nobody is connected while it cannot be read, and the clients come back by themselves when it can."""
    clients, _ = make_clients(1)
    guarded.attend("telco", clients[0].answer)
    assert not guarded.hub.wait_for_all(["telco"], 10, lambda: False)
    path = guarded.folder / "ca" / "revoked.crl"
    kept = path.read_bytes()
    path.write_bytes(kept[:100])
    assert guarded.logged("its certificate is no longer accepted", "left") == "telco"
    path.write_bytes(kept)
    assert not guarded.hub.wait_for_all(["telco"], 10, lambda: False)


@pytest.mark.parametrize("change", ["gone", "damaged", "older", "of nobody"])
def test_a_refusal_does_not_show_paths_of_the_server(guarded, change):
    """The log has them; who is refused learns that the operator has to mend something."""
    path, telco = guarded.folder / "ca" / "revoked.crl", guarded.credentials()
    first = path.read_bytes()
    guarded.revoke(make("shop", issuer=guarded.signer))
    assert end_of(guarded, telco, hello_of("telco", purpose="check")) == ("OK", "")
    if change == "gone":
        path.unlink()
    else:
        write_whole(path, {"damaged": b"-----BEGIN", "older": first, "of nobody": b""}[change])
    code, details = end_of(guarded, telco, hello_of("telco"))
    assert code == "UNAVAILABLE"
    assert "its operator has to mend that" in details
    assert str(guarded.folder) not in details
    assert any(str(path) in text for text in guarded.texts())


def test_a_certificate_for_nobody_is_refused(guarded):
    """One of the authority, for a name that is not listed."""
    code, details = end_of(guarded, guarded.credentials("stranger"), hello_of("telco"))
    assert code == "PERMISSION_DENIED"
    assert "is not listed among those who may join" in details
    assert guarded.logged("is not listed among those who may join").startswith("ipv4:127.0.0.1:")


# What the server refuses by the first message


def end_of(guarded, credentials, *messages):
    """Send messages, and return how the server ends the call."""
    caller = guarded.call(credentials)
    caller.send(*messages)
    return caller.end()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (hello_of("shop"), "'telco' by its certificate says that it is 'shop'"),
        (hello_of("\x1b[2Jshop\n"), "says that it is '\N{REPLACEMENT CHARACTER}[2Jshop\N{REPLACEMENT CHARACTER}'"),
        (hello_of("telco", protocol=PROTOCOL + 1, version="9\x1b"), f"protocol version {PROTOCOL + 1} of verfedsv 9"),
        (hello_of("telco", version="x" * 20_000), "where at most 16,384 are allowed"),
        (Embeddings("telco", 1, 1, np.zeros((2, 1))), "the first message must be Hello"),
        (b"\xff\xff\xff", "3 bytes are not a frame"),
        (framed(b"\xff\xff\xff"), "the first message must be Hello"),
        (framed(b""), "the first message must be Hello"),
        (framed(b"", more=True), "an empty frame"),
        (framed(to_bytes(hello_of("telco")) + b"\xa0\x06\x01"), "the first message must be Hello"),
        (bytes(3 * LARGEST_FRAME), "the first message must be Hello"),
    ],
    ids=["another's", "odd", "version", "large", "kind", "no-frame", "garbage", "empty", "endless", "unknown", "huge"],
)
def test_a_wrong_first_message_is_refused(guarded, first, reason):
    """With its reason, which has nothing in it that a terminal obeys."""
    code, details = end_of(guarded, None, first)
    assert code != "OK"
    assert reason in details or code == "RESOURCE_EXHAUSTED"
    assert guarded.logged(reason) == "telco"
    assert all(text.isprintable() for text in guarded.texts())
    assert not guarded.hub.connected()


def test_a_later_version_is_told_so_even_if_its_hello_has_more(guarded):
    """The version is looked at before fields that this one does not know."""
    later = pb.FromClient.FromString(to_bytes(hello_of("telco", protocol=PROTOCOL + 1))).SerializeToString()
    code, details = end_of(guarded, None, framed(later + b"\xa0\x06\x01"))
    assert code == "FAILED_PRECONDITION"
    assert "install the same version" in details


def test_who_says_nothing_is_hung_up_on(guarded, monkeypatch):
    """After a time without a whole Hello, also if a frame comes now and then."""
    monkeypatch.setattr(reception, "_PATIENCE", 0.3)
    silent, slow = guarded.call(), guarded.call()
    slow.send(framed(b"\x08", more=True))
    assert [each.end() for each in (silent, slow)] == [("DEADLINE_EXCEEDED", "no message in 0.3 seconds")] * 2
    assert guarded.logged("no message in 0.3 seconds") == "telco"


def test_a_client_does_not_hold_all_places():
    """Connections that have said who they are count until they end, also those whose client takes nothing."""
    own = reception.Reception(["telco", "shop"], lambda _: "telco", lambda _: None, lambda _: None)
    with contextlib.ExitStack() as open_calls:
        for _ in range(reception._MOST_CALLS):
            open_calls.enter_context(own.one_more_call("telco"))
        with (
            pytest.raises(reception.Refused, match="4 connections of this client are open"),
            own.one_more_call("telco"),
        ):
            pass
        open_calls.enter_context(own.one_more_call("shop"))
    with own.one_more_call("telco"):
        pass


def test_many_silent_connections_of_a_client_are_too_many(guarded):
    """Those of one client do not keep another from joining."""
    callers = [guarded.call() for _ in range(reception._MOST_GREETING + 1)]
    assert guarded.logged("8 connections have not said anything yet") == "telco"
    guarded.join("shop")
    assert len(callers) == 9


def test_a_second_connection_of_a_live_client_is_refused(guarded):
    """If it is another process; the same one may replace a connection that broke without the server's notice."""
    first = guarded.join(session="one")
    code, details = end_of(guarded, None, hello_of("telco", session="two"))
    assert code == "ALREADY_EXISTS"
    assert guarded.logged("'telco' is connected already, from another process") == "telco"
    guarded.join(session="one")
    assert first.end() == ("OK", "")
    assert [*guarded.hub.connected()] == ["telco"]
    assert "connected already" in details


def test_there_is_no_other_method(guarded):
    """A call of another one is refused by gRPC, and logged."""
    code, _ = guarded.call(method="/verfedsv.v1.Consortium/Gradients").end()
    assert code == "UNIMPLEMENTED"
    assert guarded.logged("a call of '/verfedsv.v1.Consortium/Gradients': there is only") == ""


# What the server refuses later


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Done("telco", 1, 6), "an answer to message 6, which nobody asked"),
        (hello_of("telco"), "an answer to message 0, which nobody asked"),
        (Embeddings("telco", 1, 5, np.zeros((40_000, 1))), "where at most 262,224 are allowed"),
        (framed(bytes(200_000), more=True), "a message of 400,000 bytes or more"),
        (framed(b"\xff"), "1 bytes are not a message of this version"),
        (framed(pb.ToClient(sequence=5, begin=pb.Begin()).SerializeToString()), "a message has no embeddings"),
        (framed(pb.FromClient(sequence=5).SerializeToString()), "not a message of this version"),
        (framed(to_bytes(Done("telco", 1, 5)) + b"\xa0\x06\x01"), "Done has fields that this version does not know"),
        (framed(b"\x10\x05\x32\x03\xa0\x06\x01"), "Done has fields that this version does not know"),
    ],
    ids=["not-asked", "hello", "large", "endless", "garbage", "request", "kind", "field", "inner-field"],
)
def test_a_message_that_is_no_answer_ends_the_connection(guarded, answer, reason):
    """And is logged; the client may come back, and is asked again."""
    caller = guarded.join()
    ask(guarded, Embed("telco", 1, 5, np.arange(10)))
    assert type(caller.receive()) is Embed
    caller.send(answer, *[answer] * reason.startswith("a message of 400"))
    assert caller.end()[0] == "INVALID_ARGUMENT"
    assert guarded.logged(reason) == "telco"
    assert type(guarded.join().receive()) is Embed


def test_a_frame_that_grpc_refuses_ends_the_connection(guarded):
    """One of more than 2 MiB: gRPC tells the client why, and the server only that the connection was lost."""
    caller = guarded.join()
    ask(guarded, Save("telco", 1, 5, -1))
    caller.receive()
    caller.send(bytes(3 * LARGEST_FRAME))
    assert caller.end()[0] == "RESOURCE_EXHAUSTED"
    assert guarded.logged("the connection was lost", "left") == "telco"


def test_an_answer_that_comes_twice_counts_once(guarded):
    """The second one is to a message that is answered already."""
    caller = guarded.join()
    ask(guarded, Save("telco", 1, 5, -1))
    caller.receive()
    caller.send(Done("telco", 1, 5), Done("telco", 1, 5))
    assert len(guarded.hub.exchange([Save("telco", 1, 5, -1)], 5)) == 1  # the same message: it has its answer
    later = ask(guarded, Save("telco", 2, 6, -1))
    assert caller.end()[0] == "INVALID_ARGUMENT"
    assert guarded.logged("an answer to message 5, which nobody asked") == "telco"
    assert not later


def test_an_answer_does_not_count_for_another_client(guarded):
    """Whose it is, its connection says; an answer to another's message ends that connection."""
    telco, shop = guarded.join(), guarded.join("shop")
    answers = []
    both = [Save("telco", 1, 5, -1), Save("shop", 1, 6, -1)]
    asking = threading.Thread(target=lambda: answers.extend(guarded.hub.exchange(both, 10)))
    asking.start()
    telco.receive()
    telco.send(Done("telco", 1, 5), Done("shop", 1, 6))
    shop.receive()
    shop.send(Done("telco", 1, 6))  # no message names its sender
    asking.join()
    assert {(answer.client, answer.sequence) for answer in answers} == {("telco", 5), ("shop", 6)}
    third = ask(guarded, Save("telco", 1, 7, -1))
    assert telco.end()[0] == "INVALID_ARGUMENT"
    assert guarded.logged("an answer to message 6, which nobody asked") == "telco"
    assert not third


def test_one_answer_does_not_stand_for_two_clients(guarded):
    """Both are asked under one number, one answers twice: the other is missing."""
    telco = guarded.join()
    guarded.join("shop")
    telco.send(Done("telco", 1, 5), Done("telco", 1, 5))
    found = guarded.hub.exchange([Save("telco", 1, 5, -1), Save("shop", 1, 5, -1)], 1.0)
    assert [answer.client for answer in found] == ["telco"]


def test_an_answer_after_its_time_is_ignored(guarded):
    """It is to a message that is no longer the current one; the connection stays."""
    caller = guarded.join()
    assert guarded.hub.exchange([Save("telco", 1, 5, -1)], 0.05) == []
    answers = ask(guarded, Save("telco", 2, 6, -1))
    assert [caller.receive().sequence for _ in range(2)] == [5, 6]
    caller.send(Done("telco", 1, 5))
    assert guarded.logged("its answer to message 5 came too late", "ignored") == "telco"
    assert not answers
    caller.send(Done("telco", 2, 6))
    assert len(guarded.hub.exchange([Save("telco", 2, 6, -1)], 5)) == 1


def test_a_client_in_the_middle_of_a_large_message_is_told_how_it_ended(guarded):
    """It reads slowly, and its certificate is revoked meanwhile: what is being written is not cut off."""
    telco = make("telco", issuer=guarded.signer)
    caller = guarded.call(guarded.credentials_of(telco))
    caller.send(hello_of("telco"))
    caller.receive()
    ask(guarded, Embed("telco", 1, 5, np.arange(1_000_000)))
    time.sleep(0.2)
    guarded.revoke(telco)
    guarded.logged("its certificate is no longer accepted", "left")
    assert caller.end()[0] == "PERMISSION_DENIED"


def test_a_client_that_never_answers_does_not_fill_the_memory(guarded):
    """With 4 messages unanswered it is hung up on, and comes back to the last alone."""
    caller = guarded.join()
    for number in range(sessions._MOST_OWED + 1):
        guarded.hub.exchange([Save("telco", number, number, -1)], 0.01)
    assert guarded.logged("it left 4 messages unanswered", "left") == "telco"
    assert caller.end()[0] == "OK"
    again = guarded.join()
    assert again.receive().sequence == sessions._MOST_OWED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: Embeddings(found.client, found.round, found.sequence, found.embeddings[1:]), "of shape (20, 1)"),
        (lambda found: Embeddings(found.client, found.round, found.sequence, found.embeddings.T), "of shape (20, 1)"),
        (lambda found: Embeddings(found.client, found.round, found.sequence, np.full((20, 1), np.nan)), "finite"),
        (lambda found: Embeddings(found.client, found.round, found.sequence, np.full((20, 1), np.inf)), "finite"),
        (lambda found: Embeddings(found.client, found.round, found.sequence, np.full((20, 1), 1e300)), "finite"),
        (lambda found: Embeddings(found.client, found.round, found.sequence, np.ones((20, 1), np.int64)), "int64"),
        (lambda found: Embeddings(found.client, found.round - 1, found.sequence, found.embeddings), "of round 2, but"),
        (lambda found: Done(found.client, found.round, found.sequence), "Embed was answered with Done"),
    ],
    ids=["shape", "transposed", "NaN", "infinite", "huge", "type", "round-over", "kind"],
)
def test_an_upload_that_cannot_be_used_is_refused(tmp_path, change, reason):
    """Its client is absent from the round; the others go on, and what is recorded is theirs."""
    clients, data = make_clients(2)
    guarded, refused = Guarded(tmp_path / "server", data.names), []

    def tampered(message):
        answer = clients[0].answer(message)
        return change(answer) if isinstance(answer, Embeddings) and message.round == 3 else answer

    guarded.attend("client 1", tampered)
    guarded.attend("client 2", clients[1].answer)
    server = make_server(data)
    with Recorder(tmp_path / "transcript", server.labels[: server.n_train], data.names) as recorder:
        server.record(recorder)
        training = Training(
            server, guarded.hub, 10, 1, on_invalid=lambda request, error: refused.append((request.client, str(error)))
        )
        rounds = [*synchronous_rounds(training, SynchronousSchedule(20, 5))]
        records = records_of(recorder)
    guarded.close()
    assert rounds == [1, 2, 3, 4, 5]
    assert [name for name, _ in refused] == ["client 1"]
    assert reason in refused[0][1]
    assert len(records)


# What there is no way to ask for


def test_clients_can_ask_for_nothing():
    """No message of a client is a question, and none names a sample, a client, or another's data."""
    kinds = {field.name: field.message_type for field in pb.FromClient.DESCRIPTOR.oneofs_by_name["content"].fields}
    assert kinds.keys() == {
        *("hello", "embeddings", "prediction", "done", "refusal"),
        *("introduction", "points", "positions", "checksum"),
    }
    fields = {f"{name}.{field.name}" for name, kind in kinds.items() for field in kind.fields if name != "hello"}
    assert fields == {
        *("embeddings.embeddings", "prediction.embeddings", "refusal.reason"),
        *("introduction.numbers", "points.points", "positions.positions", "checksum.checksum"),
    }
    assert [field.name for field in pb.FromClient.DESCRIPTOR.fields if field.containing_oneof is None] == [
        "round",
        "sequence",
    ]


def test_a_server_sends_a_client_only_its_own(guarded):
    """What is for one client is written to its connection: another that is connected gets nothing of it."""
    telco, shop = guarded.join("telco"), guarded.join("shop")
    ask(guarded, Embed("telco", 1, 5, np.arange(3)))
    assert type(telco.receive()) is Embed
    ask(guarded, Save("shop", 1, 6, -1))
    assert type(shop.receive()) is Save  # and not Embed


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8443", "example.org:1", ":1", "127.0.0.1.example:1"]
)
def test_only_loopback_is_without_tls(address):
    """Neither command takes --insecure with an address that others can reach."""
    with pytest.raises(InputError, match="--insecure is for loopback addresses"):
        check_loopback(address)
    for allowed in ("127.0.0.1:8443", "localhost:8443", "[::1]:8443"):
        check_loopback(allowed)


def test_a_server_prints_why_it_refuses(tmp_path):
    """Verfedsv serve, in a process: a wrong upload and a wrong first message, with the client's name and the reason."""
    whole = Consortium(tmp_path, training={"rounds": 30}, server={"if_missing": "continue"})
    path = tmp_path / "shop.csv"
    member = Member("shop", ClientFile(path, "id", None), tmp_path / "of-shop", aligned=True)

    def answer(message):
        found = member.answer(message)
        if isinstance(found, Embeddings) and message.round == 7:
            found = Embeddings(found.client, found.round, found.sequence, np.full_like(found.embeddings, np.nan))
        return found

    try:
        whole.start("serve")
        whole.start("telco")
        whole.wait_for(lambda: "telco joined" in whole.log("serve"))
        stranger = Caller(whole.port)
        stranger.send(hello_of("nobody\x1b[2J"))
        assert stranger.end()[0] == "PERMISSION_DENIED"
        stranger.close()
        Link(f"127.0.0.1:{whole.port}", None, member.hello, answer, on_welcome=member.welcome).run()
        assert {*whole.finish().values()} == {0}
    finally:
        whole.stop()
        member.close()
    log = whole.log("serve")
    assert "is not a client of this consortium" in log
    assert "\x1b" not in log
    assert "shop refused: round 7: shop: embeddings must be finite" in log


# The log


def test_a_stranger_cannot_fill_the_log():
    """Of each client, 30 lines a minute, then their number; the others' lines are not affected."""
    found, now = [], [0.0]
    sparing = Sparing(found.append, ["telco"], lambda: now[0])
    for number in range(1000):
        sparing(Event("refused", f"ipv4:127.0.0.1:{number}", "no"))
    sparing(Event("joined", "telco", "yes"))
    assert len(found) == 31
    now[0] = 61.0
    sparing(Event("refused", "ipv4:127.0.0.1:1", "no"))
    assert [event.text for event in found[-2:]] == ["970 more lines like those before", "no"]
