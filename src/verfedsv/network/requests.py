"""Signing requests: what a party sends to the operator, who makes a certificate of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from verfedsv.errors import InputError
from verfedsv.files import write_new
from verfedsv.names import is_readable
from verfedsv.network.certificates import LONGEST_COMMON_NAME, PARSE_ERRORS, Use, common_name, extension, hosts_in
from verfedsv.network.pem import read_blocks
from verfedsv.network.tls_keys import TlsKey, check_kind, fingerprint, new_key, write_key

KEY, REQUEST, CERTIFICATE = ".key", ".csr", ".crt"
"""The endings of the files of a party: the key stays where it was made, the others may travel."""

_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_HOST = 253


@dataclass(frozen=True)
class Request:
    """What a signing request asks for: a certificate for a client, or for a server if it names hosts."""

    name: str
    hosts: tuple[str, ...]
    fingerprint: str
    parsed: x509.CertificateSigningRequest = field(repr=False, compare=False)

    @property
    def use(self) -> Use:
        """What the certificate is to be used for."""
        return "server" if self.hosts else "client"


def new_request(
    path: Path, name: str, hosts: Sequence[str] = (), *, key: TlsKey | None = None, passphrase: bytes | None = None
) -> tuple[Path, ...]:
    """Write a new key, PATH.key, which only its owner can read, and its signing request, PATH.csr; return both paths.

    With `hosts`, DNS names and IP addresses, the request is for the certificate of a server. With `key`, which renews a
    certificate without a new key, only the request is written. Existing files are never overwritten.
    """
    private, request = (path.with_name(path.name + ending) for ending in (KEY, REQUEST))
    content = _sign(check_name(name), [general_name(host) for host in hosts], signer := key or new_key())
    written = (request,) if key else (private, request)
    for each in written:
        if each.exists():
            raise InputError(f"{each} exists, and is never overwritten; name other files with -o, such as -o {path}-2")
    if not key:
        write_key(private, signer, passphrase)
    try:
        write_new(request, content)
    except BaseException:
        if not key:
            private.unlink()
        raise
    return written


def read_request(path: Path) -> Request:
    """Return a signing request from a file; raise InputError unless it can be granted.

    It must be signed with the key that it is for: whoever sent it has that key. Of what it asks for, only the name and
    the hosts are used.
    """
    content = read_blocks(path, "signing request")[0]
    try:
        request = x509.load_pem_x509_csr(content)
        name, hosts, public_key = common_name(request.subject), hosts_in(request.extensions), request.public_key()
        n_names = len(list(extension(request.extensions, x509.SubjectAlternativeName) or ()))
        check_kind(public_key, f"the key of {path}")
        is_signed = request.is_signature_valid
    except InputError:
        raise
    except PARSE_ERRORS:
        raise InputError(f"{path} is not a signing request that can be read; it may be damaged") from None
    if not is_signed:
        raise InputError(f"{path} is not signed with its own key: it was changed, or its sender does not have the key")
    if not name:
        raise InputError(f"{path} must have one common name, of printable characters, without surrounding spaces")
    if n_names > len(hosts):
        raise InputError(f"{path} asks for names that are neither DNS names nor IP addresses; leave them out")
    checked = tuple(str(general_name(host).value) for host in hosts)
    return Request(check_name(name), checked, fingerprint(public_key), request)


def check_name(name: str) -> str:
    """Return the name of a party; raise InputError if a certificate cannot have it as common name."""
    if not is_readable(name):
        raise InputError(
            "a name must be printable text, not empty, without invisible characters and surrounding spaces; received "
            f"{name[:60]!a}"
        )
    n_bytes = len(name.encode())
    if n_bytes > LONGEST_COMMON_NAME:
        raise InputError(
            f"a name in a certificate can have {LONGEST_COMMON_NAME} bytes in UTF-8; {name[:60]!a} has {n_bytes}"
        )
    return name


def _sign(name: str, hosts: Sequence[x509.GeneralName], key: TlsKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name))
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def subject_of(name: str) -> x509.Name:
    """Return the subject with a common name, in UTF-8."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def general_name(host: str) -> x509.DNSName | x509.IPAddress:
    """Return a host as certificates have it; raise InputError if it is neither a DNS name nor an IP address."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    lower = host.lower()
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(lower) or lower.rpartition(".")[2].isdigit():
        raise InputError(
            "a host must be a DNS name such as server.example (in ASCII, without wildcards) or an IP address; "
            f"received {host[:60]!a}"
        )
    return x509.DNSName(lower)
