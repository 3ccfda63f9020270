"""A certificate authority for tests: keys and certificates as PEM files, valid for as long as a test wants."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = 86_400.0


class Identity(NamedTuple):
    """The files of one key; `both` holds key and certificate, as a broker's PEM key store requires."""

    key: Path
    certificate: Path
    both: Path


class Authority:
    """Issues for 127.0.0.1 and localhost; `directory` gets every file, and `ca` is the certificate to trust."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        unsigned = _builder(self._name, self._name, self._key.public_key(), 0.0, 10 * DAY)
        unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(unsigned.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file: str, subject: str, *, begins: float = -3600.0, seconds: float = 2 * DAY, password: str = ""
    ) -> Identity:
        """Issue a certificate for `subject`, such as "CN=ann,O=desk", valid `seconds` from `begins` seconds after now.

        It replaces files of that name, each atomically. `password` protects the file `key`, not `both`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        unsigned = _builder(
            x509.Name.from_rfc4514_string(subject), self._name, key.public_key(), begins, begins + seconds
        )
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        certificate = unsigned.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        found = Identity(*(self.directory / f"{file}{end}.pem" for end in (".key", ".cert", "")))
        _write(found.key, _pem(key, password))
        _write(found.certificate, certificate)
        _write(found.both, _pem(key) + certificate)
        return found


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: float, ends: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(seconds=begins - 5))
        .not_valid_after(now + dt.timedelta(seconds=ends))
    )


def _pem(key: ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    hidden = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
