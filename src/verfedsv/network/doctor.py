"""Checks before the day of a training: one line each, with what to do."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import grpc
import numpy as np

from verfedsv._version import __version__
from verfedsv.addresses import is_loopback
from verfedsv.data.ids import Ids
from verfedsv.data.sources import ClientFile, TableRows, read_source
from verfedsv.data.tables import find_many_categories, read_columns
from verfedsv.errors import InputError, VerfedsvError
from verfedsv.network.belonging import check_training
from verfedsv.network.certificates import Certificate, parse_certificates, read_certificates, shown_time
from verfedsv.network.credentials import Credentials
from verfedsv.network.link import NOBODY, OTHER_HOST, explain
from verfedsv.network.messages import PROTOCOL, Hello, Welcome
from verfedsv.network.wire import CLIENT_OPTIONS, METHOD, Assembly, frames, request_from_bytes, to_bytes

State = Literal["ok", "note", "bad"]

_SOON = timedelta(days=30)
_SKEW = 60.0
"""Seconds by which two clocks may differ before it is worth a note."""
_WAIT = 10.0
_ROOM = 1 << 30


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it is all right, and what was found or is to be done."""

    what: str
    state: State
    text: str


def check_features(file: ClientFile) -> Iterator[Check]:
    """Check that ids and columns of a file can be used."""
    try:
        source = read_source(file, None)
        if not isinstance(source, TableRows) or not source.ids:
            yield Check("features", "bad", f"{file.path} must be a CSV or Parquet file with a column of ids")
            return
        yield _check_ids(source.ids[0], file)
        n_rows = len(source.ids[0])
        read = read_columns(file.path.stem, file, source, np.arange(n_rows), np.zeros(n_rows, bool))
    except (VerfedsvError, OSError) as error:
        yield Check("features", "bad", str(error))
        return
    yield Check("columns", "ok", read.note.partition("; ")[2])
    for caution in read.cautions:
        yield Check("columns", "note", caution.partition(": ")[2])
    for doubt in find_many_categories(file, source):
        yield Check("columns", "note", doubt)


def _check_ids(ids: Ids, file: ClientFile) -> Check:
    shown = ", ".join(str(each) for each in ids.values[:3].to_pylist())
    return Check("ids", "ok", f"{len(ids):,} different ones in column {file.id_column!r}: {shown}, ...")


def check_certificate(own: Certificate) -> Check:
    """Check how long a certificate is valid; that it can be used was checked as it was read."""
    text = f"{own.name!r}, valid until {shown_time(own.end)}, key {own.fingerprint}"
    if own.end - datetime.now(UTC) < _SOON:
        return Check("certificate", "note", f"{text}; renew it soon: verfedsv keys request --name NAME --key FILE")
    return Check("certificate", "ok", text)


def read_own(path: Path) -> Certificate:
    """Return the certificate of a party in a file, without those between it and the authority."""
    return next(each for each in read_certificates(path) if not each.authority)


def check_folder(folder: Path, what: str = "folder") -> Check:
    """Check that a folder can be written to, or be made, and how much room there is."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not place.is_dir():
        return Check(what, "bad", f"{place} is not a folder; name another")
    if not os.access(place, os.W_OK | os.X_OK):
        return Check(what, "bad", f"{place} cannot be written to; name another folder, or let its owner permit it")
    free = shutil.disk_usage(place).free
    text = f"{folder}, with {free / 2**30:,.1f} GB free"
    return Check(what, "ok" if free > _ROOM else "note", text)


def check_host(address: str) -> Check:
    """Check that the host of HOST:PORT can be found."""
    host, _, port = address.rpartition(":")
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)}
    except (OSError, ValueError):
        return Check("host", "bad", f"{host!r} has no address; check the spelling, or ask the operator of the server")
    return Check("host", "ok", f"{host} is {', '.join(sorted(found))}")


def check_port(address: str) -> Check:
    """Check that something listens at HOST:PORT; the server counts this connection as one of a stranger."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _WAIT).close()
    except OSError as error:
        return _silence(address, error.strerror or str(error))
    return Check("port", "ok", f"{address} answers")


def _silence(address: str, why: str) -> Check:
    firewall = "" if is_loopback(address) else ", and does a firewall let you out to this port"
    return Check("port", "bad", f"nothing answers at {address}{why and f' ({why})'}: is the server started{firewall}?")


def _explain(error: grpc.RpcError, address: str) -> Iterator[Check]:
    """Say why there was no answer that a server gives its clients."""
    why, is_late = explain(error), error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    if why == NOBODY or is_late:
        yield _silence(address, f"waited for {_WAIT:.0f} s" if is_late else "")
        return
    yield Check("port", "ok", f"{address} answers")
    if why == OTHER_HOST and (hosts := _hosts_of(address)):
        why = f"{why}; dial one of those that it has: {hosts}"
    yield Check("server", "bad", why)


def _hosts_of(address: str) -> str:
    """Return, for people, the hosts that the certificate at HOST:PORT is for; "" if it cannot be got."""
    host, _, port = address.rpartition(":")
    try:
        pem = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=_WAIT)
        return ", ".join(parse_certificates(pem.encode())[0].hosts)
    except (VerfedsvError, OSError, ValueError):
        return ""


def check_server(address: str, name: str, credentials: Credentials | None, folder: Path) -> Iterator[Check]:
    """Check, in a connection of its own, that the server can be reached, and what it says to this client.

    `folder` is where the client is to keep its part.
    """
    channel_credentials = None
    if credentials is not None:
        channel_credentials = grpc.ssl_channel_credentials(
            credentials.authorities, credentials.private_key, credentials.chain
        )
    hello = Hello(
        *(name, 0, 0, PROTOCOL, __version__, name, secrets.token_hex(8), time.time(), "check"),
        start="",
        alignment="",
        training="",
    )
    channel = (
        grpc.insecure_channel(address, CLIENT_OPTIONS)
        if channel_credentials is None
        else grpc.secure_channel(address, channel_credentials, CLIENT_OPTIONS)
    )
    begin = time.time()
    try:
        with channel:
            answers = channel.stream_stream(METHOD, None, None)(frames(to_bytes(hello)), timeout=_WAIT)
            content = None
            assembly = Assembly(1 << 20)
            for frame in answers:
                content = assembly.add(frame)
                if content is not None:
                    break
        welcome = request_from_bytes(content or b"", name)
    except grpc.RpcError as error:
        yield from _explain(error, address)
        return
    except VerfedsvError as error:
        yield Check("server", "bad", f"what answers at {address} is not a server of verfedsv: {error}")
        return
    yield Check("port", "ok", f"{address} answers")
    if not isinstance(welcome, Welcome):
        yield Check("server", "bad", f"what answers at {address} is not a server of verfedsv")
        return
    yield Check("server", "ok", f"lets you in as {name!r}: {welcome.about}; protocol {welcome.protocol}")
    try:
        check_training(folder, welcome)
    except InputError as error:
        yield Check("training", "bad", str(error))
    skew = welcome.time - (begin + time.time()) / 2
    if abs(skew) > _SKEW:
        yield Check("clock", "note", f"the server's is {skew:+,.0f} seconds from yours; set both by NTP")
    else:
        yield Check("clock", "ok", f"within {max(1, round(abs(skew)))} s of the server's")


def check_port_free(address: str) -> Check:
    """Check that a server can listen there."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), int(port)))
        except OSError as error:
            return Check("port", "bad", f"cannot listen at {address}: {error.strerror}; choose another in [server]")
    firewall = "" if is_loopback(address) else "; clients need a way to it through the firewall"
    return Check("port", "ok", f"{address} is free{firewall}")
