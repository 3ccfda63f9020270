"""Signed proof of a service's past state, as a document that can be checked later.

The signature is HMAC-SHA256 over the document without the signature, as JSON with sorted keys and no spaces. It proves
that a holder of the key made the document and that it is unchanged. The check needs the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Final

from statehold.errors import UsageError
from statehold.snapshot.inspect.past import PastState
from statehold.state import digest

FORMAT: Final = "statehold-proof/1"
_ALGORITHM: Final = "HMAC-SHA256"
#: Least number of bytes of a key, because an HMAC key shorter than the hash weakens it.
LEAST_KEY: Final = 32


def partition(number: int, found: PastState, inputs: Sequence[str]) -> dict[str, Any]:
    """Return the entry of one partition, whose rebuilt state had the digest that its writer recorded.

    With several inputs `positions` has the next offset of each, and `position` is their sum.

    :raises UsageError: the state had other inputs then.
    """
    offsets = found.offsets(inputs)
    several = {"positions": offsets} if len(inputs) > 1 else {}
    return {
        "partition": number,
        "position": found.position,
        **several,
        "n": found.n,
        "keys": found.contents.keys,
        "digest": digest.show(found.contents.digest),
        "lineage": found.lineage,
        "time": found.time,
    }


def document(about: dict[str, Any], partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the unsigned document. `digest` is the sum over all partitions, independent of their number."""
    total = sum(int(each["digest"], 16) for each in partitions) % digest.MODULUS
    return {
        "format": FORMAT,
        **about,
        "keys": sum(each["keys"] for each in partitions),
        "digest": digest.show(total),
        "partitions": list(partitions),
    }


def signed(unsigned: dict[str, Any], key: bytes) -> dict[str, Any]:
    """Return the document with its signature. :raises UsageError: the key is too short."""
    _check_key(key)
    signature = {"algorithm": _ALGORITHM, "key": key_id(key), "value": _signature(unsigned, key)}
    return unsigned | {"signature": signature}


def fault(given: Any, key: bytes) -> str:
    """Return why the document is not valid for this key; '' if it is valid.

    :raises UsageError: the key is too short.
    """
    _check_key(key)
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        return f"it is not a document of format {FORMAT}"
    signature = given.get("signature")
    if not isinstance(signature, dict) or not isinstance(signature.get("value"), str):
        return "it is not signed"
    if signature.get("algorithm") != _ALGORITHM:
        return f"it is signed with {signature.get('algorithm')}; this release supports {_ALGORITHM}"
    unsigned = {name: value for name, value in given.items() if name != "signature"}
    if hmac.compare_digest(signature["value"].encode(), _signature(unsigned, key).encode()):
        return ""
    if signature.get("key") != key_id(key):
        return f"it was signed with key {signature.get('key')}; this is key {key_id(key)}"
    return "the signature does not match: the document was changed"


def key_id(key: bytes) -> str:
    """Return an identifier that distinguishes keys and reveals nothing about them."""
    return hmac.new(key, b"statehold proof key", hashlib.sha256).hexdigest()[:16]


def _signature(unsigned: dict[str, Any], key: bytes) -> str:
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _check_key(key: bytes) -> None:
    if len(key) < LEAST_KEY:
        raise UsageError(
            f"the key has {len(key)} bytes, {LEAST_KEY} are needed. Next: run `statehold prove --make-key FILE`"
        )
