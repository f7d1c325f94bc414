import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from tests.cluster.secured import CLUSTER, call, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates") / "new" / "here"
    return make_certificates(directory, "node1", "10.1.2.3", "--days", "3")


def test_certificates__only_their_owner_reads_them(certificates):
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()}
    assert modes == dict.fromkeys(["ca.pem", "cert.pem", "key.pem"], 0o600)
    # The key of the authority is nowhere.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    with pytest.raises(ssl.SSLError, match="key values mismatch"):
        context.load_cert_chain(certificates / "ca.pem", certificates / "key.pem")


def test_certificates__names_lifetime_and_authority(certificates):
    authority, certificate = (
        x509.load_pem_x509_certificate((certificates / name).read_bytes())
        for name in ("ca.pem", "cert.pem")
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"node1", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"10.1.2.3", "127.0.0.1"}
    for one in (authority, certificate):
        left = one.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=2.9) < left <= timedelta(days=3)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints == x509.BasicConstraints(ca=True, path_length=0)


@pytest.mark.parametrize(("days", "problem"), [(3, "key.pem exists"), (0, "days is 0")])
def test_certificates__refused(tmp_path, days, problem):
    (tmp_path / "key.pem").write_text("precious")
    process = call([sys.executable, CLUSTER / "certificates.py", tmp_path, "--days", days])
    assert process.returncode == 2
    assert problem in process.stderr
    assert (tmp_path / "key.pem").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1
