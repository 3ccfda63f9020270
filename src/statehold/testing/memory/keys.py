"""What a test feeds as the key of a record, as its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statehold.api.handler import HandlerFactory
from statehold.api.record import key_bytes
from statehold.api.values.keys import KeySerde
from statehold.bound.inputs import key_types
from statehold.common.names import Names


def key_encoders(handler: HandlerFactory, names: Names) -> dict[str, Callable[[Any], bytes | None]]:
    """Return what writes the keys of each input: by their declared type, but bytes are taken as they are."""
    declared = {topic: KeySerde(key, topic).encode for topic, key in key_types(handler, names).items()}
    return {topic: _or_bytes(declared[topic]) if topic in declared else key_bytes for topic in names.inputs}


def _or_bytes(encode: Callable[[Any], bytes | None]) -> Callable[[Any], bytes | None]:
    return lambda key: key if key is None or isinstance(key, bytes) else encode(key)
