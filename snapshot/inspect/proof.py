"""What a service's state was at the end of the day, as a document that can be checked later.

The signature is HMAC-SHA256 over the document without it, as JSON with sorted keys and no spaces. It shows that
somebody who holds the key made the document and that nobody has changed it since; whoever checks needs the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Final

from statehold.errors import UsageError
from statehold.snapshot.format import digest
from statehold.snapshot.inspect.past import At

FORMAT: Final = "statehold-proof/1"
_ALGORITHM: Final = "HMAC-SHA256"
#: bytes; an HMAC key shorter than the hash is weaker than it
LEAST_KEY: Final = 32


def partition(number: int, found: At) -> dict[str, Any]:
    """One partition: its state was rebuilt from full and deltas, and had the digest that its writer recorded."""
    return {
        "partition": number,
        "position": found.position,
        "n": found.n,
        "keys": found.contents.keys,
        "digest": digest.show(found.contents.digest),
        "lineage": found.lineage,
        "time": found.time,
    }


def document(about: dict[str, Any], partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole, not signed. `digest` is the sum over all partitions: it does not depend on how many there are."""
    total = sum(int(each["digest"], 16) for each in partitions) % digest.MODULUS
    return {
        "format": FORMAT,
        **about,
        "keys": sum(each["keys"] for each in partitions),
        "digest": digest.show(total),
        "partitions": list(partitions),
    }


def signed(unsigned: dict[str, Any], key: bytes) -> dict[str, Any]:
    """:raises UsageError: the key is too short."""
    _check_key(key)
    signature = {"algorithm": _ALGORITHM, "key": key_id(key), "value": _signature(unsigned, key)}
    return unsigned | {"signature": signature}


def fault(given: Any, key: bytes) -> str:
    """Why a document is not what somebody with this key signed, or ''.

    :raises UsageError: the key is too short.
    """
    _check_key(key)
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        return f"it is no document of format {FORMAT}"
    signature = given.get("signature")
    if not isinstance(signature, dict) or not isinstance(signature.get("value"), str):
        return "it is not signed"
    if signature.get("algorithm") != _ALGORITHM:
        return f"it is signed by {signature.get('algorithm')}, this statehold knows {_ALGORITHM}"
    unsigned = {name: value for name, value in given.items() if name != "signature"}
    if hmac.compare_digest(signature["value"].encode(), _signature(unsigned, key).encode()):
        return ""
    if signature.get("key") != key_id(key):
        return f"it was signed with key {signature.get('key')}, this is key {key_id(key)}"
    return "the signature does not fit: somebody has changed it"


def key_id(key: bytes) -> str:
    """Tells keys apart and says nothing about them."""
    return hmac.new(key, b"statehold proof key", hashlib.sha256).hexdigest()[:16]


def _signature(unsigned: dict[str, Any], key: bytes) -> str:
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _check_key(key: bytes) -> None:
    if len(key) < LEAST_KEY:
        raise UsageError(f"the key has {len(key)} bytes, {LEAST_KEY} are needed; `statehold prove --make-key FILE`")
