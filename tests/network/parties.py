"""Authorities and parties for tests, also with certificates that this package does not make."""

import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verfedsv.network.authority import Authority, new_authority
from verfedsv.network.certificates import Certificate
from verfedsv.network.passphrases import passphrase_from
from verfedsv.network.requests import new_request, read_request

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
NOBODY = passphrase_from()
DAY = timedelta(days=1)
NOW = datetime.now(UTC)


def openssl(*arguments, content=None, succeeds=True):
    """Return what openssl prints, or skip the test if there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    done = subprocess.run(  # noqa: S603  # our own arguments
        ["openssl", *map(str, arguments)],  # noqa: S607
        input=content,
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) == succeeds, done.stderr
    return done.stdout


def key_pem(key):
    """Return a private key in PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def subject(*names):
    """Return a subject with these common names."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])


def damaged(pem):
    """Return a PEM text without its second line."""
    first, _, *rest = pem.splitlines(keepends=True)
    return b"".join([first, *rest])


@dataclass
class Party:
    """A key and its certificate."""

    key: object
    certificate: x509.Certificate

    @property
    def pem(self):
        """The certificate in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def says(self):
        """What the certificate says."""
        return Certificate.of(self.certificate)

    def write(self, folder, name):
        """Write the key and the certificate to a folder, and return both paths: certificate, key."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        paths[0].write_bytes(self.pem)
        paths[1].write_bytes(key_pem(self.key))
        paths[1].chmod(0o600)
        return paths


def make(
    *names,
    issuer=None,
    key=None,
    usages=(CLIENT,),
    hosts=(),
    start=None,
    end=None,
    is_authority=False,
    usage=None,
    sign_with=None,
):
    """Return a party with a certificate of an issuer, another `Party`; without one, it is signed with its own key."""
    now = datetime.now(UTC)
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(*names))
        .issuer_name(issuer.certificate.subject if issuer else subject(*names))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start or now - DAY)
        .not_valid_after(end or now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if usages and not is_authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
    if hosts:
        names = [x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage:
        builder = builder.add_extension(usage, critical=True)
    return Party(key, builder.sign(sign_with or (issuer.key if issuer else key), SHA256()))


def authority_of(folder: Path, **options) -> tuple[Authority, Party]:
    """Return a new authority in a folder, and the same as a party that can sign anything."""
    authority = new_authority(folder, **options)
    return authority, Party(authority.read_key(NOBODY), authority.certificate.parsed)


def approved(authority, folder, name, hosts=(), **options):
    """Return the paths of the certificate and the key of a party that asked an authority for a certificate."""
    key, request = new_request(folder / name, name, hosts)
    certificate = folder / f"{name}.crt"
    authority.approve(read_request(request), authority.read_key(NOBODY), certificate, **options)
    return certificate, key


def revoked_list(issuer, serials, *, number=1, end=None, extension=None):
    """Return a revocation list of an authority, another `Party`, in PEM."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.certificate.subject)
    builder = builder.last_update(now - 2 * DAY).next_update(end or now + DAY)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    if extension:
        builder = builder.add_extension(extension, critical=True)
    for serial in serials:
        builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now).build())
    return builder.sign(issuer.key, SHA256()).public_bytes(Encoding.PEM)
