"""Whatever a certificate, a signing request, a revocation list or a register holds, the answer is an error of our own.

A few hundred inputs each time; VERFEDSV_FUZZ=20000 tries that many of each kind.
"""

import base64
import contextlib
from itertools import islice

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.fuzz.mutations import count_of_inputs, mutations_of_bytes, mutations_of_json
from tests.network.parties import NOBODY, approved, authority_of
from verfedsv import VerfedsvError
from verfedsv.cli.contents import describe_file
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.credentials import read_credentials
from verfedsv.network.register import REGISTER, open_register
from verfedsv.network.requests import read_request
from verfedsv.network.revocations import REVOKED

pytestmark = pytest.mark.filterwarnings("ignore")  # the library warns of serial numbers below 1, and of long names

N_INPUTS = count_of_inputs(80)


@pytest.fixture
def place(tmp_path):
    """Return a folder with an authority in it, one certificate that was revoked, and one that was not."""
    authority, _ = authority_of(tmp_path / "ca")
    for name in ("bank", "telco"):
        approved(authority, tmp_path, name)
    authority.revoke("bank", authority.read_key(NOBODY))
    return tmp_path


def damaged_files(path, label, der, seed):
    """Write damaged copies of a PEM file to it, one after the other: of its text, and of what is encoded in it."""
    raw = mutations_of_bytes(path.read_bytes(), seed)
    for content in islice(mutations_of_bytes(der, seed), N_INPUTS):
        text = base64.encodebytes(content).decode()
        yield path.write_text(f"-----BEGIN {label}-----\n{text}-----END {label}-----\n")
        yield path.write_bytes(next(raw))


def test_certificates_by_others(place):
    """As a party's own, as a peer's, as the authority's, and to show."""
    root, path, key = place / "ca" / "ca.crt", place / "telco.crt", place / "telco.key"
    der = x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)
    checker = Checker(root.read_bytes(), Allowed.of(["telco"]), place / "ca" / REVOKED)
    for _ in damaged_files(path, "CERTIFICATE", der, 0):
        for read in (
            lambda: read_credentials(path, key, root, "client"),
            lambda: read_credentials(path, key, path, "client"),
            lambda: describe_file(path, NOBODY),
        ):
            with contextlib.suppress(VerfedsvError):
                read()
        with contextlib.suppress(VerfedsvError):
            assert checker.check(path.read_bytes()) == "telco"


def test_requests_by_others(place):
    """To approve, and to show."""
    path = place / "telco.csr"
    der = x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER)
    for _ in damaged_files(path, "CERTIFICATE REQUEST", der, 1):
        for read in (lambda: read_request(path), lambda: describe_file(path, NOBODY)):
            with contextlib.suppress(VerfedsvError):
                read()


def test_no_damage_of_a_revocation_list_admits_whom_it_revoked(place):
    """Whatever is changed: the list is refused, or still revokes."""
    path = place / "ca" / REVOKED
    der = x509.load_pem_x509_crl(path.read_bytes()).public_bytes(Encoding.DER)
    checker = Checker((place / "ca" / "ca.crt").read_bytes(), Allowed.of(["bank"]), path)
    for _ in damaged_files(path, "X509 CRL", der, 2):
        with pytest.raises(VerfedsvError):
            checker.check((place / "bank.crt").read_bytes())
        with contextlib.suppress(VerfedsvError):
            describe_file(path, NOBODY)


def test_registers_by_others(place):
    """Line by line."""
    path = place / "ca" / REGISTER
    line = path.read_bytes().splitlines()[0]
    for content in islice(mutations_of_json(line, 3), N_INPUTS):
        path.write_bytes(content + b"\n")
        with contextlib.suppress(VerfedsvError), open_register(place / "ca") as register:
            assert all(int(entry.serial, 16) >= 0 for entry in register.entries)
