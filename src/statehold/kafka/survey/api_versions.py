"""Asks one address for its ApiVersions (KIP-35, KIP-511, KIP-584), which a broker answers before any login.

confluent_kafka reports neither a broker's features nor whether this machine reaches every advertised address.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from statehold.common.deadline import Deadline
from statehold.config.settings import Settings

_API_VERSIONS: Final = 18
_VERSION: Final = 3
_MOST_BYTES: Final = 1_000_000


class ApiVersions(NamedTuple):
    """Features of a broker, by name."""

    #: the highest level that the broker supports; a broker before 3.3, or not Apache's, has no `metadata.version`
    supported: dict[str, int]
    finalized: dict[str, int]
    #: duration of connecting and asking
    seconds: float
    #: the broker's certificate in DER; None without TLS
    certificate: bytes | None = None


def ask(host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> ApiVersions:
    """Connect, ask and disconnect. Each step blocks for `timeout` seconds at most.

    :raises OSError: no answer, or too late; TLS fails (ssl.SSLError).
    :raises ValueError: the peer is not a Kafka broker, or one before 2.4.
    """
    asking = Deadline(timeout)
    with socket.create_connection((host, port), timeout) as plain:
        connection = tls.wrap_socket(plain, server_hostname=host) if tls is not None else plain
        try:
            connection.sendall(_request())
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 4 < size < _MOST_BYTES:
                raise ValueError("the peer is no Kafka broker, or expects TLS")
            body = _exactly(connection, size)
            shown = connection.getpeercert(binary_form=True) if isinstance(connection, ssl.SSLSocket) else None
        finally:
            if connection is not plain:
                connection.close()
    return _spoken(_Fields(body[4:]), asking.elapsed)._replace(certificate=shown)


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return librdkafka's TLS settings; None without TLS. librdkafka itself checks the name in the certificate.

    :raises OSError: a certificate or key cannot be read.
    """
    security = settings.kafka.security
    if not security.protocol.endswith("ssl"):
        return None
    ca = security.ssl_ca_location
    directory = bool(ca) and Path(ca).is_dir()
    context = ssl.create_default_context(cafile=None if directory else ca or None, capath=ca if directory else None)
    context.check_hostname = False
    if security.ssl_certificate_location:
        context.load_cert_chain(
            security.ssl_certificate_location,
            security.ssl_key_location or None,
            security.ssl_key_password.reveal() or None,
        )
    return context


def _request() -> bytes:
    name = b"statehold"
    body = bytes([len(name) + 1]) + name + bytes([2]) + b"1" + b"\x00"
    head = struct.pack(">hhih", _API_VERSIONS, _VERSION, 1, len(name)) + name + b"\x00"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the peer closed the connection before the answer")
        data += part
    return bytes(data)


class _Fields:
    """Reads Kafka's flexible encoding, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def short(self) -> int:
        (value,) = struct.unpack_from(">h", self._data, self._at)
        self._at += 2
        return int(value)

    def skip(self, count: int) -> None:
        self._at += count

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        length = self.varint() - 1
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def tags(self) -> Iterator[tuple[int, _Fields]]:
        for _ in range(self.varint()):
            tag, length = self.varint(), self.varint()
            yield tag, _Fields(self._data[self._at : self._at + length])
            self._at += length


def _spoken(body: _Fields, seconds: float) -> ApiVersions:
    try:
        error = body.short()
        if error != 0:
            raise ValueError(f"it answers with error {error}: a broker before 2.4, or no broker")
        for _ in range(body.varint() - 1):
            body.skip(6)
            _pass(body)
        body.skip(4)
        features = dict(body.tags())
        supported = {name: most for name, _, most in _features(features.get(0))}
        # In finalized features the highest level comes first.
        finalized = {name: most for name, most, _ in _features(features.get(2))}
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError("its answer cannot be read: no Kafka broker?") from error
    return ApiVersions(supported, finalized, seconds)


def _features(fields: _Fields | None) -> Iterator[tuple[str, int, int]]:
    for _ in range(fields.varint() - 1 if fields is not None else 0):
        assert fields is not None
        yield fields.text(), fields.short(), fields.short()
        _pass(fields)


def _pass(fields: _Fields) -> None:
    for _ in fields.tags():
        continue
