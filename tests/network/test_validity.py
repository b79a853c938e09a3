from datetime import UTC, datetime

import pytest
from cryptography import x509

from tests.network.parties import CLIENT, DAY, SERVER, make
from verfedsv.errors import RefusedError
from verfedsv.network.validity import check_certificate, is_issued, roots_of

ROOT = make("Root", is_authority=True)
MIDDLE = make("Middle", issuer=ROOT, is_authority=True)
LOWER = make("Lower", issuer=MIDDLE, is_authority=True)
OTHER = make("Root", is_authority=True)


def names_of(path):
    """Return the names of certificates."""
    return [each.name for each in path]


def test_the_path_leads_to_an_authority():
    """Directly, over certificates that the peer sent, or over authorities up to the highest."""
    assert names_of(check_certificate(make("telco", issuer=ROOT).says, [], [ROOT.says], "client")) == ["telco", "Root"]
    leaf = make("telco", issuer=LOWER).says
    for others, authorities in (
        ([LOWER, MIDDLE], [ROOT]),
        ([MIDDLE, OTHER, LOWER], [OTHER, ROOT]),
        ([LOWER], [MIDDLE, ROOT]),
        ([LOWER, ROOT, MIDDLE], [MIDDLE, ROOT]),
        ([], [ROOT, MIDDLE, LOWER]),
    ):
        path = check_certificate(leaf, [each.says for each in others], [each.says for each in authorities], "client")
        assert names_of(path) == ["telco", "Lower", "Middle", "Root"]
    path = check_certificate(leaf, [MIDDLE.says, ROOT.says], [LOWER.says], "client")
    assert names_of(path) == ["telco", "Lower"]


@pytest.mark.parametrize(
    ("certificate", "others", "authorities"),
    [
        (make("telco", issuer=OTHER), [], [ROOT]),
        (make("telco"), [], [ROOT]),
        (make("telco", issuer=LOWER), [LOWER], [ROOT]),
        (make("telco", issuer=ROOT, sign_with=OTHER.key), [], [ROOT]),
        (make("telco", issuer=make("shop", issuer=ROOT)), [make("shop", issuer=ROOT)], [ROOT]),
        (ROOT, [], [ROOT]),
    ],
    ids=["another of that name", "by itself", "a gap", "forged", "by a party", "the authority itself"],
)
def test_what_no_authority_signed_is_refused(certificate, others, authorities):
    """Whatever it says that its issuer is; an authority is not its own party."""
    others, authorities = ([each.says for each in those] for those in (others, authorities))
    with pytest.raises(RefusedError, match="is not signed by 'Root'") as caught:
        check_certificate(certificate.says, others, authorities, "client")
    assert caught.value.reason == "other authority"


def test_a_party_is_no_authority():
    """Its signature counts for nothing, also if its certificate is in the file of authorities."""
    shop = make("shop", issuer=ROOT)
    forged = make("telco", issuer=shop)
    assert not is_issued(forged.says, shop.says)
    with pytest.raises(RefusedError, match="is not signed by"):
        check_certificate(forged.says, [], [ROOT.says, shop.says], "client")


def test_an_authority_that_may_not_sign_certificates_signs_none():
    """Its key usage leaves that out."""
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    allowed = dict.fromkeys((*names, "key_cert_sign", "encipher_only", "decipher_only"), False)
    limited = make("Root", is_authority=True, usage=x509.KeyUsage(crl_sign=True, **allowed))
    assert not is_issued(make("telco", issuer=limited).says, limited.says)


@pytest.mark.parametrize("use", ["client", "server"])
def test_a_certificate_for_the_other_side_is_refused(use):
    """A client cannot serve, a server cannot be a client."""
    wrong = make("telco", issuer=ROOT, usages=[SERVER if use == "client" else CLIENT])
    other = "server" if use == "client" else "client"
    with pytest.raises(RefusedError, match=f"'telco' is for a {other}, not for a {use}") as caught:
        check_certificate(wrong.says, [], [ROOT.says], use)
    assert caught.value.reason == "wrong usage"
    both = make("telco", issuer=ROOT, usages=[SERVER, CLIENT])
    assert check_certificate(both.says, [], [ROOT.says], use)


def test_the_certificate_of_an_authority_is_not_a_partys():
    """TLS would accept it."""
    with pytest.raises(RefusedError, match="'Middle' is an authority's") as caught:
        check_certificate(MIDDLE.says, [], [ROOT.says], "client")
    assert caught.value.reason == "wrong usage"


def test_every_certificate_of_the_path_has_to_be_valid():
    """An authority that has expired is one no longer."""
    now = datetime.now(UTC)
    root = make("Root", is_authority=True, end=now + 2 * DAY)
    leaf = make("telco", issuer=root, end=now + 9 * DAY)
    check_certificate(leaf.says, [], [root.says], "client", now + DAY)
    with pytest.raises(RefusedError, match="'Root' expired") as caught:
        check_certificate(leaf.says, [], [root.says], "client", now + 3 * DAY)
    assert caught.value.reason == "expired"


def test_roots_are_signed_by_no_other():
    """An authority and what it signed are one root."""
    assert names_of(roots_of([LOWER.says, ROOT.says, MIDDLE.says])) == ["Root"]
    assert roots_of([ROOT.says, OTHER.says]) == [ROOT.says, OTHER.says]


def test_a_circle_ends():
    """Two authorities that signed each other lead nowhere."""
    one = make("One", is_authority=True)
    two = make("Two", issuer=one, is_authority=True)
    circle = make("One", issuer=two, key=one.key, is_authority=True)
    with pytest.raises(RefusedError, match="is not signed by 'Root'"):
        check_certificate(make("telco", issuer=circle).says, [circle.says, two.says], [ROOT.says], "client")
