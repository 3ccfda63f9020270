"""statehold: long-running, stateful Kafka consumer services in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statehold.common.version import __version__
    from statehold.declarations.dedupe import Dedupe
    from statehold.declarations.joins import JoinBuffer
    from statehold.declarations.output import Output
    from statehold.declarations.reference import Reference
    from statehold.declarations.sink import Sink
    from statehold.declarations.table import Table
    from statehold.declarations.windows import Hopping, Session, Tumbling
    from statehold.errors import StateholdError
    from statehold.handler import Handler, on
    from statehold.record import Record
    from statehold.serde import Json, MsgPack, Serde
    from statehold.service import Service
    from statehold.tables.timers import Timer

__all__ = [
    "Dedupe",
    "FreezeGuard",
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
    "Dedupe": "declarations.dedupe",
    "FreezeGuard": "health.freeze_guard",
    "Handler": "handler",
    "Hopping": "declarations.windows",
    "JoinBuffer": "declarations.joins",
    "StateholdError": "errors",
    "Json": "serde",
    "MsgPack": "serde",
    "Output": "declarations.output",
    "Record": "record",
    "Reference": "declarations.reference",
    "Serde": "serde",
    "Service": "service",
    "Session": "declarations.windows",
    "Sink": "declarations.sink",
    "Table": "declarations.table",
    "Timer": "tables.timers",
    "Tumbling": "declarations.windows",
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
