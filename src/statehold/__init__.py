"""statehold: long-running, stateful Kafka consumer services in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statehold.common.version import __version__
    from statehold.errors import StateholdError
    from statehold.handler import Handler, on
    from statehold.output import Output
    from statehold.record import Record
    from statehold.reference import Reference
    from statehold.serde import Json, MsgPack, Serde
    from statehold.service import Service
    from statehold.sink import Sink
    from statehold.table import Table
    from statehold.tables.joins import JoinBuffer
    from statehold.tables.timers import Timer
    from statehold.tables.ttl import Dedupe
    from statehold.tables.windows import Hopping, Session, Tumbling

__all__ = [
    "Dedupe",
    "Handler",
    "Hopping",
    "JoinBuffer",
    "Json",
    "MsgPack",
    "Output",
    "Record",
    "Reference",
    "Serde",
    "Service",
    "Session",
    "Sink",
    "StateholdError",
    "Table",
    "Timer",
    "Tumbling",
    "__version__",
    "on",
]

_HOMES = {
    "Dedupe": "tables.ttl",
    "Handler": "handler",
    "Hopping": "tables.windows",
    "JoinBuffer": "tables.joins",
    "StateholdError": "errors",
    "Json": "serde",
    "MsgPack": "serde",
    "Output": "output",
    "Record": "record",
    "Reference": "reference",
    "Serde": "serde",
    "Service": "service",
    "Session": "tables.windows",
    "Sink": "sink",
    "Table": "table",
    "Timer": "tables.timers",
    "Tumbling": "tables.windows",
    "__version__": "common.version",
    "on": "handler",
}


def __getattr__(name: str) -> Any:
    """Import each name at its first use.

    `statehold run` must handle signals before large imports, and Spark executors lack the Kafka client of Service.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'statehold' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"statehold.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
