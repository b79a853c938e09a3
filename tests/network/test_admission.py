import pickle
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.network.parties import DAY, NOW, SERVER, approved, authority_of, damaged, make, revoked_list
from verfedsv import InputError
from verfedsv.errors import RefusedError
from verfedsv.network.admission import Allowed, Checker

ROOT = make("Root", is_authority=True)
OTHER = make("Other", is_authority=True)
TELCO = make("telco", issuer=ROOT)
BANK = make("bank", issuer=ROOT)


def refusal(checker, peer, **options):
    """Return why a certificate is refused, in a word and in words."""
    with pytest.raises(RefusedError) as caught:
        checker.check(peer, **options)
    return caught.value.reason, str(caught.value)


def test_a_client_is_who_its_certificate_says():
    """By its common name, or under the name that the configuration gives to that."""
    assert Checker(ROOT.pem, Allowed.of(["telco", "bank"])).check(TELCO.pem) == "telco"
    renamed = Checker(ROOT.pem, Allowed.of({"bank": "telco", "telco": "bank"}))
    assert [renamed.check(each.pem) for each in (TELCO, BANK)] == ["bank", "telco"]


@pytest.mark.parametrize("form", ["key", "certificate", "openssl", "prefixed", "one of two"])
def test_a_client_can_be_pinned_to_a_fingerprint(form):
    """Of its key or of its certificate, as this package or openssl print it; then its name does not matter."""
    says = TELCO.says
    colons = ":".join(says.sha256[i : i + 2] for i in range(0, 64, 2)).upper()
    pin = {
        "key": says.fingerprint,
        "certificate": says.sha256,
        "openssl": colons,
        "prefixed": f"sha256:{says.sha256}",
        "one of two": [make("telco").says.fingerprint, says.fingerprint],
    }[form]
    checker = Checker(ROOT.pem, Allowed.of({"Telco Ltd": pin}))
    assert checker.check(TELCO.pem) == "Telco Ltd"
    assert refusal(checker, make("telco", issuer=ROOT).pem)[0] == "not listed"
    assert refusal(checker, make("Telco Ltd", issuer=ROOT).pem)[0] == "not listed"


def test_who_was_accepted_is_not_after_the_end_of_the_certificate():
    """Although an accepted certificate is otherwise not checked again for ten seconds."""
    checker = Checker(ROOT.pem, Allowed.of(["telco"]))
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    soon = make("telco", issuer=ROOT, end=end)
    assert checker.check(soon.pem) == "telco"
    time.sleep((end - datetime.now(UTC)).total_seconds() + 1.1)
    assert "expired" in refusal(checker, soon.pem)[1]


def test_a_pin_of_a_key_outlives_a_renewal_with_the_same_key():
    """That of a certificate does not."""
    renewed = make("telco", issuer=ROOT, key=TELCO.key)
    assert Checker(ROOT.pem, Allowed.of({"telco": TELCO.says.fingerprint})).check(renewed.pem) == "telco"
    assert refusal(Checker(ROOT.pem, Allowed.of({"telco": TELCO.says.sha256})), renewed.pem)[0] == "not listed"


def test_a_name_that_looks_like_a_fingerprint_is_none():
    """Otherwise a certificate with such a name could pass for the key."""
    forged = make(BANK.says.fingerprint, issuer=ROOT)
    checker = Checker(ROOT.pem, Allowed.of({"bank": BANK.says.fingerprint}))
    assert refusal(checker, forged.pem)[0] == "not listed"
    assert checker.check(BANK.pem) == "bank"


def test_others_are_refused_with_the_reason():
    """In a word for programs, and in words with the name and the fingerprint."""
    checker = Checker(ROOT.pem, Allowed.of(["telco"]))
    reason, message = refusal(checker, BANK.pem)
    assert reason == "not listed"
    assert f"'bank', with the key {BANK.says.fingerprint}, is not listed" in message
    for party, expected in (
        (make("telco", issuer=ROOT, end=NOW - DAY / 24), "expired"),
        (make("telco", issuer=ROOT, start=NOW + DAY / 24), "not yet valid"),
        (make("telco", issuer=ROOT, usages=[SERVER]), "wrong usage"),
        (make("telco", issuer=OTHER), "other authority"),
        (make("telco"), "other authority"),
        (make("telco", issuer=ROOT, is_authority=True), "wrong usage"),
        (make("telco", "bank", issuer=ROOT), "not listed"),
        (make("tel\u200bco", issuer=ROOT), "not listed"),
        (make("Telco", issuer=ROOT), "not listed"),
    ):
        assert refusal(checker, party.pem)[0] == expected
    assert refusal(checker, b"")[0] == refusal(checker, damaged(TELCO.pem))[0] == "unreadable"
    assert checker.check(TELCO.pem) == "telco"


def test_a_certificate_that_expires_while_its_client_is_connected_is_refused():
    """As TLS looks at the dates only while it connects."""
    checker = Checker(ROOT.pem, Allowed.of(["telco"]))
    short = make("telco", issuer=ROOT, end=NOW + DAY / 2)
    assert checker.check(short.pem) == "telco"
    assert refusal(checker, short.pem, now=NOW + DAY * 0.6)[0] == "expired"


def test_certificates_in_between_follow_that_of_the_peer():
    """As gRPC hands them over."""
    middle = make("Middle", issuer=ROOT, is_authority=True)
    telco = make("telco", issuer=middle)
    checker = Checker(ROOT.pem, Allowed.of(["telco"]))
    assert checker.check(telco.pem + middle.pem) == "telco"
    assert refusal(checker, telco.pem)[0] == "other authority"


def test_revoking_needs_no_restart(tmp_path):
    """The list is read at every check, so that a client is refused from the next one on; others stay."""
    authority, _ = authority_of(tmp_path / "ca")
    telco, bank = (approved(authority, tmp_path, name)[0].read_bytes() for name in ("telco", "bank"))
    checker = Checker(authority.certificate.to_pem(), Allowed.of(["telco", "bank"]), tmp_path / "ca" / "revoked.crl")
    assert [checker.check(each) for each in (telco, bank)] == ["telco", "bank"]
    authority.revoke("telco", authority.read_key(None))
    reason, message = refusal(checker, telco)
    assert (reason, "the certificate of 'telco' was revoked at" in message) == ("revoked", True)
    assert checker.check(bank) == "bank"
    renewed = approved(authority, tmp_path / "ca", "telco")[0].read_bytes()
    assert checker.check(renewed) == "telco"
    assert refusal(checker, telco)[0] == "revoked"


def test_an_authority_in_between_can_be_revoked(tmp_path):
    """With all that it signed, if its own authority is in the file of authorities."""
    middle = make("Middle", issuer=ROOT, is_authority=True)
    telco = make("telco", issuer=middle)
    path = tmp_path / "revoked.crl"
    path.write_bytes(revoked_list(ROOT, []) + revoked_list(middle, []))
    checker = Checker(ROOT.pem + middle.pem, Allowed.of(["telco"]), path)
    assert checker.check(telco.pem) == "telco"
    path.write_bytes(revoked_list(ROOT, [middle.certificate.serial_number], number=2) + revoked_list(middle, []))
    reason, message = refusal(checker, telco.pem)
    assert (reason, "the certificate of 'Middle' was revoked" in message) == ("revoked", True)
    path.write_bytes(revoked_list(middle, []))
    assert refusal(checker, telco.pem)[0] == "no revocation list"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the revocation list"),
        (b"", "has no revocation list in PEM"),
        (revoked_list(ROOT, [], number=5)[:-40], "has no revocation list in PEM"),
        (damaged(revoked_list(ROOT, [], number=5)), "is not a revocation list that can be read"),
        (revoked_list(OTHER, [], number=5), "is not signed by 'Root'"),
        (revoked_list(ROOT, [], number=5, end=NOW - DAY), "was to be replaced"),
        (revoked_list(ROOT, [], number=3), r"is older than the list that was there before \(number 4\)"),
    ],
    ids=["missing", "empty", "half copied", "damaged", "another's", "out of date", "older"],
)
def test_without_a_good_list_nobody_is_admitted(tmp_path, content, message):
    """At the start it is an error of the configuration; later, each check says what is wrong, until it is mended."""
    path = tmp_path / "revoked.crl"
    path.write_bytes(good := revoked_list(ROOT, [], number=4))
    checker = Checker(ROOT.pem, Allowed.of(["telco"]), path)
    path.unlink() if content is None else path.write_bytes(content)
    if "older" not in message:
        with pytest.raises(InputError, match=message):
            Checker(ROOT.pem, Allowed.of(["telco"]), path)
    with pytest.raises(RefusedError, match=message) as caught:
        checker.check(TELCO.pem)
    assert caught.value.reason == "no revocation list"
    path.write_bytes(good)
    assert checker.check(TELCO.pem) == "telco"


def test_every_authority_of_a_party_needs_a_list(tmp_path):
    """Otherwise nobody could tell which of its certificates were revoked."""
    path = tmp_path / "revoked.crl"
    path.write_bytes(revoked_list(ROOT, []))
    elsewhere = make("shop", issuer=OTHER)
    pins = {"telco": TELCO.says.fingerprint, "shop": elsewhere.says.fingerprint}
    checker = Checker(ROOT.pem + OTHER.pem, Allowed.of(pins), path)
    assert checker.check(TELCO.pem) == "telco"
    reason, message = refusal(checker, elsewhere.pem)
    assert (reason, "has no revocation list of 'Other', which signed" in message) == ("no revocation list", True)


def test_with_several_authorities_names_are_not_enough():
    """Each could sign any name, also that of another's client."""
    with pytest.raises(InputError, match="2 authorities, 'Root' and 'Other', and each could sign any name: list"):
        Checker(ROOT.pem + OTHER.pem, Allowed.of(["telco"]))
    pinned = Checker(ROOT.pem + OTHER.pem, Allowed.of({"telco": TELCO.says.fingerprint}))
    assert pinned.check(TELCO.pem) == "telco"
    assert refusal(pinned, make("telco", issuer=OTHER).pem)[0] == "not listed"


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "at least one client is needed"),
        (["telco", "telco"], "the names of the clients must differ"),
        ("telco", "a list of clients is needed"),
        ({"tel\nco": "telco"}, "names of clients must be printable"),
        ({"telco": "x" * 65}, "can have 64 bytes in UTF-8"),
        ({"telco": []}, "needs one common name of its certificate, or one or more fingerprints"),
        ({"telco": ["telco", "bank"]}, "needs one common name"),
        ({"telco": ["telco", BANK.says.fingerprint]}, "needs one common name .*, not both"),
        ({"telco": "t", "bank": "t"}, "clients 'telco' and 'bank' have the same certificate: 't'"),
        ({"a": BANK.says.fingerprint, "b": [TELCO.says.sha256, BANK.says.fingerprint.upper()]}, "'a' and 'b' have the"),
    ],
)
def test_lists_that_are_not_clear_are_refused(clients, message):
    """One organisation is one client, with one certificate."""
    with pytest.raises(InputError, match=message):
        Allowed.of(clients)


def test_one_certificate_is_not_two_clients():
    """Also if one is listed by name, and the other by fingerprint."""
    checker = Checker(ROOT.pem, Allowed.of({"one": "telco", "two": TELCO.says.fingerprint, "bank": "bank"}))
    reason, message = refusal(checker, TELCO.pem)
    assert (reason, "is listed for one and two; one organisation is one client" in message) == ("not listed", True)
    assert checker.check(BANK.pem) == "bank"


def test_a_refusal_travels_between_processes():
    """With its reason, as other errors do."""
    error = pickle.loads(pickle.dumps(RefusedError("no", "revoked")))  # noqa: S301  # our own
    assert (str(error), error.reason) == ("no", "revoked")
