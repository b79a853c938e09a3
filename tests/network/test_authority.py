import os
import stat
from datetime import UTC, datetime

import pytest

from tests.network.parties import DAY, NOBODY, authority_of, make, openssl
from verfedsv import InputError
from verfedsv.network.authority import Authority, new_authority
from verfedsv.network.certificates import read_certificates
from verfedsv.network.register import REGISTER, open_register
from verfedsv.network.requests import new_request, read_request
from verfedsv.network.revocations import REVOKED
from verfedsv.network.tls_keys import read_key

FILES = ["approved.jsonl", "ca.crt", "ca.key", "revoked.crl"]
NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path):
    """Return an authority."""
    return authority_of(tmp_path / "ca")[0]


def contents(folder):
    """Return the content of each file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def request(folder, name, file=None, hosts=(), key=None):
    """Return a signing request."""
    return read_request(new_request(folder / (file or name), name, hosts, key=key)[-1])


def approve(authority, folder, wanted, file, **options):
    """Return the certificate for a request."""
    return authority.approve(wanted, authority.read_key(NOBODY), folder / f"{file}.crt", **options)


def revoke(authority, what, **options):
    """Return the serial numbers that were revoked."""
    return [int(entry.serial, 16) for entry in authority.revoke(what, authority.read_key(NOBODY), **options)]


def test_an_authority_is_four_files(tmp_path):
    """Others cannot read its key; its name has part of the fingerprint, so that no two are the same."""
    authority = new_authority(tmp_path / "ca")
    assert sorted(path.name for path in (tmp_path / "ca").iterdir()) == FILES
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert authority.certificate.name == f"verfedsv CA {authority.certificate.fingerprint[:9]}"
    assert Authority.open(tmp_path / "ca") == authority
    assert authority.read_revocations().serials() == []
    assert new_authority(tmp_path / "other", "Consortium Ü").certificate.name == "Consortium Ü"


def test_its_key_can_have_a_passphrase(tmp_path):
    """Then nobody signs without it."""
    authority = new_authority(tmp_path / "ca", passphrase=b"four words are enough")
    with pytest.raises(InputError, match=r"ca\.key is encrypted"):
        authority.read_key(NOBODY)
    assert authority.read_key(lambda _: b"four words are enough")


@pytest.mark.parametrize("name", FILES)
def test_an_authority_is_never_overwritten(tmp_path, name):
    """If one of its files exists, none of the others is written."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=rf"{name} exists, and an authority is never overwritten"):
        new_authority(tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


def test_an_authority_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """If the disk is full before the last file."""
    write = os.fdopen

    def full_disk(descriptor, mode):
        if len(list(tmp_path.iterdir())) == 4:
            os.close(descriptor)
            raise OSError(28, "No space left on device")
        return write(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", full_disk)
    with pytest.raises(InputError, match="No space left"):
        new_authority(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_approving_is_entered_in_the_register(authority, tmp_path):
    """Each certificate with its name, use, hosts, serial number, fingerprint and dates."""
    telco = approve(authority, tmp_path, request(tmp_path, "telco"), "telco")
    server = approve(authority, tmp_path, request(tmp_path, "server", hosts=["server.example"]), "server")
    assert read_certificates(tmp_path / "telco.crt") == [telco]
    with open_register(tmp_path / "ca") as register:
        entries = register.entries
    assert [(entry.name, entry.use, entry.hosts) for entry in entries] == [
        ("telco", "client", ()),
        ("server", "server", ("server.example",)),
    ]
    for entry, certificate in zip(entries, (telco, server), strict=True):
        assert int(entry.serial, 16) == certificate.serial
        assert (entry.fingerprint, entry.sha256) == (certificate.fingerprint, certificate.sha256)
        assert (entry.start, entry.end) == (certificate.start.isoformat(), certificate.end.isoformat())


def test_one_organisation_has_one_certificate(authority, tmp_path):
    """A second for the same name, or for the same key under another name, is refused; also after it was revoked."""
    wanted = request(tmp_path, "telco")
    key = read_key(tmp_path / "telco.key", NOBODY)
    approve(authority, tmp_path, wanted, "telco")
    again, other = request(tmp_path, "telco", "again"), request(tmp_path, "shop", key=key)
    before = contents(tmp_path / "ca")
    for each in (wanted, again):
        with pytest.raises(InputError, match=r"'telco' has a certificate until .* one organisation has one"):
            approve(authority, tmp_path, each, "second")
    with pytest.raises(InputError, match="this key has a certificate for 'telco', and one organisation has one"):
        approve(authority, tmp_path, other, "second")
    assert not (tmp_path / "second.crt").exists()
    assert contents(tmp_path / "ca") == before
    revoke(authority, "telco")
    with pytest.raises(InputError, match="this key has a certificate for 'telco'"):
        approve(authority, tmp_path, other, "second", renew=False)
    approve(authority, tmp_path, again, "second")


def test_after_a_certificate_has_expired_its_name_is_free(authority, tmp_path):
    """On the second after its last, not before."""
    first = approve(authority, tmp_path, request(tmp_path, "telco"), "telco", days=3)
    again = request(tmp_path, "telco", "again")
    with pytest.raises(InputError, match="'telco' has a certificate until"):
        approve(authority, tmp_path, again, "second", now=first.end)
    approve(authority, tmp_path, again, "second", now=first.end + DAY / 86400)


@pytest.mark.parametrize("has_new_key", [True, False])
def test_a_renewal_leaves_both_valid_until_the_first_is_revoked(authority, tmp_path, has_new_key):
    """With a new key or the same; a third certificate is refused, and one can be revoked alone."""
    first = approve(authority, tmp_path, request(tmp_path, "telco"), "telco")
    key = None if has_new_key else read_key(tmp_path / "telco.key", NOBODY)
    wanted = request(tmp_path, "telco", "telco-2", key=key)
    notes = authority.consider(wanted, renew=True)
    assert notes[0].startswith("The key is new: compare" if has_new_key else "The key is that of an earlier")
    assert f"The certificate {first.serial:x} stays valid until {first.end:%Y-%m-%d}: revoke it when" in notes[1]
    second = approve(authority, tmp_path, wanted, "telco-2", renew=True)
    assert (first.fingerprint == second.fingerprint) is not has_new_key
    assert authority.read_revocations().serials() == []
    third = request(tmp_path, "telco", "telco-3")
    with pytest.raises(InputError, match=f"two valid certificates, .*{first.serial:x} and {second.serial:x}; first"):
        approve(authority, tmp_path, third, "telco-3", renew=True)
    assert revoke(authority, str(tmp_path / "telco.crt")) == [first.serial]
    assert authority.read_revocations().serials() == [first.serial]
    approve(authority, tmp_path, third, "telco-3", renew=True)


def test_what_is_no_renewal_is_refused(authority, tmp_path):
    """A name that is not known is perhaps misspelled, and a client does not become a server."""
    wanted = request(tmp_path, "telco")
    with pytest.raises(InputError, match="'telco' has no certificate that could be renewed"):
        approve(authority, tmp_path, wanted, "telco", renew=True)
    approve(authority, tmp_path, wanted, "telco")
    server = request(tmp_path, "telco", "server", hosts=["server.example"])
    with pytest.raises(InputError, match="is for a client, and this request is for a server"):
        approve(authority, tmp_path, server, "server", renew=True)


def test_the_operator_is_told_what_could_be_a_mistake(authority, tmp_path):
    """Names that look alike, and a key that may have been stolen."""
    wanted = request(tmp_path, "telco")
    assert authority.consider(wanted) == []
    approve(authority, tmp_path, wanted, "telco")
    assert "'telco' and 'Telco' look alike" in authority.consider(request(tmp_path, "Telco", "other"))[0]
    revoke(authority, "telco")
    notes = authority.consider(wanted)
    assert notes[0] == "The key is that of an earlier certificate."
    assert "A certificate of this key was revoked: if the key was stolen" in notes[1]


def test_a_certificate_that_cannot_be_written_is_not_in_the_register(authority, tmp_path):
    """So that it can be approved again."""
    wanted = request(tmp_path, "telco")
    (tmp_path / "telco.crt").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*telco\.crt: File exists"):
        approve(authority, tmp_path, wanted, "telco")
    assert (tmp_path / "ca" / REGISTER).read_bytes() == b""
    approve(authority, tmp_path, wanted, "other")


def test_an_authority_that_has_expired_signs_nothing(tmp_path):
    """What it signed would not be valid."""
    authority, _ = authority_of(tmp_path / "ca", days=3)
    with pytest.raises(InputError, match=r"the certificate of 'verfedsv CA .*' expired"):
        approve(authority, tmp_path, request(tmp_path, "telco"), "telco", now=NOW + 4 * DAY)


@pytest.mark.parametrize("way", ["name", "serial", "colons", "file"])
def test_certificates_are_revoked_by_name_number_or_file(authority, tmp_path, way):
    """Each revocation is another edition of the list, and keeps the earlier ones."""
    first = approve(authority, tmp_path, request(tmp_path, "bank"), "bank")
    second = approve(authority, tmp_path, request(tmp_path, "telco"), "telco")
    approve(authority, tmp_path, request(tmp_path, "shop"), "shop")
    revoke(authority, "bank")
    digits = f"{second.serial:040X}"
    what = {
        "name": "telco",
        "serial": f"{second.serial:x}",
        "colons": ":".join(digits[i : i + 2] for i in range(0, 40, 2)),  # as openssl prints it
        "file": str(tmp_path / "telco.crt"),
    }[way]
    assert revoke(authority, what) == [second.serial]
    revocations = authority.read_revocations()
    assert (revocations.number, revocations.serials()) == (3, [first.serial, second.serial])
    with pytest.raises(InputError, match="has no valid certificate" if way == "name" else "of 'telco' was revoked at"):
        revoke(authority, what)
    assert authority.read_revocations().number == 3


def test_a_name_stands_for_all_valid_certificates(authority, tmp_path):
    """Two during a renewal; one that has expired needs no revocation."""
    first = approve(authority, tmp_path, request(tmp_path, "telco"), "telco", days=1)
    second = approve(authority, tmp_path, request(tmp_path, "telco", "telco-2"), "telco-2", renew=True, days=9)
    third = approve(
        authority, tmp_path, request(tmp_path, "telco", "telco-3"), "telco-3", renew=True, days=9, now=NOW + 2 * DAY
    )
    assert first.end < NOW + 2 * DAY
    assert revoke(authority, "telco", now=NOW + 2 * DAY) == [second.serial, third.serial]


def test_what_is_not_known_cannot_be_revoked(authority, tmp_path):
    """Nor can certificates of others, or its own."""
    other, _ = authority_of(tmp_path / "other")
    elsewhere = approve(other, tmp_path, request(tmp_path, "telco"), "telco")
    for what in ("telco", f"{elsewhere.serial:x}", ""):
        with pytest.raises(InputError, match=r"is neither a name nor a serial number in the register.*approved\.jsonl"):
            revoke(authority, what)
    for path in (tmp_path / "telco.crt", tmp_path / "ca" / "ca.crt"):
        with pytest.raises(InputError, match=r"was not signed by 'verfedsv CA .*', which can revoke no other"):
            revoke(authority, str(path))
    assert authority.read_revocations().number == 1


def test_a_name_that_is_anothers_serial_number_is_not_guessed(authority, tmp_path):
    """A client could choose such a name, to have another revoked in its place."""
    bank = approve(authority, tmp_path, request(tmp_path, "bank"), "bank")
    approve(authority, tmp_path, request(tmp_path, f"{bank.serial:x}", "telco"), "telco")
    with pytest.raises(InputError, match="is the name of one party, and stands for a certificate of another"):
        revoke(authority, f"{bank.serial:x}")


def test_a_certificate_that_the_register_has_lost_can_be_revoked_by_its_file(authority, tmp_path):
    """After the register was restored from a backup."""
    telco = approve(authority, tmp_path, request(tmp_path, "telco"), "telco")
    (tmp_path / "ca" / REGISTER).write_bytes(b"")
    assert revoke(authority, str(tmp_path / "telco.crt")) == [telco.serial]


def test_a_lost_list_is_not_begun_again(authority, tmp_path):
    """All that was revoked would be valid again."""
    approve(authority, tmp_path, request(tmp_path, "telco"), "telco")
    (tmp_path / "ca" / REVOKED).unlink()
    for act in (lambda: revoke(authority, "telco"), lambda: authority.consider(request(tmp_path, "shop"))):
        with pytest.raises(InputError, match=r"there is no .*revoked\.crl, .*copy it back from the server"):
            act()


def test_what_is_no_authority_is_refused(tmp_path):
    """A folder without one, with a party's certificate, and with the key of another."""
    with pytest.raises(InputError, match=r"there is no .*ca\.crt; name the folder of the authority with --ca"):
        Authority.open(tmp_path)
    (tmp_path / "ca.crt").write_bytes(make("telco").pem)
    with pytest.raises(InputError, match=r"ca\.crt is the certificate of a party, not of an authority"):
        Authority.open(tmp_path)
    for name in ("one", "two"):
        new_authority(tmp_path / name)
    (tmp_path / "one" / "ca.key").replace(tmp_path / "two" / "ca.key")
    with pytest.raises(InputError, match=r"two/ca\.key does not belong to .*two/ca\.crt"):
        Authority.open(tmp_path / "two").read_key(NOBODY)


def test_a_request_of_an_existing_rsa_key_is_approved(authority, tmp_path):
    """Parties may bring keys of other kinds."""
    files = "-keyout", tmp_path / "x.key", "-out", tmp_path / "x.csr"
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", *files, "-subj", "/CN=telco")
    certificate = approve(authority, tmp_path, read_request(tmp_path / "x.csr"), "x")
    openssl("verify", "-x509_strict", "-CAfile", tmp_path / "ca" / "ca.crt", tmp_path / "x.crt")
    assert certificate.name == "telco"
