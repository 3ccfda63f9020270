"""Reads a bearer token from a file that an agent keeps fresh."""

from __future__ import annotations

import base64
import binascii
import json
import time
from pathlib import Path
from typing import Any, Final

#: seconds that a token without an expiry of its own is valid
_WITHOUT_EXPIRY: Final = 300.0


class TokenFile:
    """`oauth_cb`: librdkafka calls it on its own threads, before the first login and before a token expires.

    librdkafka reports an exception as a failed login and calls again ten seconds later. No error quotes the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, _: object = None) -> tuple[str, float]:
        """Return the token and its expiry in seconds since 1970.

        :raises ValueError: the file cannot be read, or holds no token.
        """
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", "") or "it is not text"
            raise ValueError(f"kafka.security.oauth_token_file {self._path}: {why}") from None
        if token.count(".") != 2:
            raise ValueError(f"kafka.security.oauth_token_file {self._path} holds no token (three parts with dots)")
        return token, _ends(token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenFile) and other._path == self._path

    def __hash__(self) -> int:
        return hash((TokenFile, self._path))


def _ends(token: str) -> float:
    """Return the claim `exp`. The brokers check the signature, so this does not."""
    part = token.split(".")[1]
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        return time.time() + _WITHOUT_EXPIRY
