"""Make the certificates of one cluster: its scheduler, its workers and its clients.

    python cluster/certificates.py certificates node1 node2 --days 30

writes ca.pem, cert.pem and key.pem. The key that signs is thrown away, so nothing else is ever
trusted by this cluster: when the certificates end, make new ones and start the cluster anew. dask
trusts whatever the authority signed and does not compare names; other clients of TLS do.
"""

import argparse
import ipaddress
import os
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of machines differ.
SKEW = timedelta(minutes=10)


def main() -> int:
    """Write the files; return 0, or 2 if an option cannot be used or files are there."""
    options = parse_options()
    if options.days < 1:
        print(f"days is {options.days}.", "Give at least 1.", sep="\n", file=sys.stderr)
        return 2
    names = [*options.names, socket.getfqdn(), socket.gethostname(), "localhost", "127.0.0.1"]
    try:
        write_files(options.directory, make_certificates(names, timedelta(days=options.days)))
    except FileExistsError as error:
        print(
            f"{error.filename} exists.", "Remove it or give another directory.", sep="\n",
            file=sys.stderr,
        )  # fmt: skip
        return 2
    return 0


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", help="host names and addresses beside this machine's")
    parser.add_argument("--days", type=int, default=30, help="how long they are good; default 30")
    return parser.parse_args()


def make_certificates(names: list[str], lifetime: timedelta) -> dict[str, bytes]:
    """Return the PEM files of an authority, and of a certificate and its key, by file name.

    One certificate serves all: whoever can submit a task can read what any of them can.
    """
    signing_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    start = datetime.now(UTC) - SKEW
    ends = start + SKEW + lifetime

    def builder(subject: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name("dask_nrbfn cluster authority"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
                critical=False,
            )
        )

    authority = (
        builder("dask_nrbfn cluster authority", signing_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(signing_key, hashes.SHA256())
    )
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        builder("dask_nrbfn cluster", key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_host(name) for name in dict.fromkeys(names)]),
            critical=False,
        )
        .sign(signing_key, hashes.SHA256())
    )
    return {
        "ca.pem": authority.public_bytes(Encoding.PEM),
        "cert.pem": certificate.public_bytes(Encoding.PEM),
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Write files that only their owner can read, all of them or none if one exists."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in files:
        if (directory / name).exists():
            raise FileExistsError(0, "exists", str(directory / name))
    for name, content in files.items():
        number = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "wb") as file:
            file.write(content)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


if __name__ == "__main__":
    sys.exit(main())
