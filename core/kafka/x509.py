"""When a certificate ends, read from its own bytes: Python's `ssl` tells that only of what it has verified.

RFC 5280, 4.1: a certificate begins { { [version], serial, algorithm, issuer, validity { from, until }, ...
"""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Final

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def ends(der: bytes) -> float:
    """Seconds since 1970.

    :raises ValueError: it is no certificate.
    """
    try:
        _, at, _ = _element(der, 0)
        _, at, _ = _element(der, at)
        tag, _, after = _element(der, at)
        if tag != _VERSION:
            after = at  # version 1 leaves it out
        for _ in range(3):  # serial, algorithm, issuer
            _, _, after = _element(der, after)
        _, begin, _ = _element(der, after)
        _, _, until = _element(der, begin)
        tag, start, stop = _element(der, until)
        text = der[start:stop].decode("ascii")
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return dt.datetime.strptime(text, form).replace(tzinfo=dt.UTC).timestamp()
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("this is no X.509 certificate") from error


def ends_of_file(path: Path) -> float:
    """Of the first certificate in a PEM file.

    :raises ValueError: there is none. :raises OSError: it cannot be read.
    """
    text = path.read_text(encoding="ascii", errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise ValueError(f"{path} holds no certificate")
    return ends(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]))


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, and where its content begins and ends (DER)."""
    tag, length, at = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(data[at : at + size], "big"), at + size
    if at + length > len(data):
        raise IndexError
    return tag, at, at + length
