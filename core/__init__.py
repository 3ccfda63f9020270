"""holdfast: long-running, stateful Kafka consumer services in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.expiring import Dedupe
    from holdfast.handler import Handler
    from holdfast.output import Output
    from holdfast.record import Record
    from holdfast.reference import Reference
    from holdfast.serde import Json, MsgPack, Serde
    from holdfast.service import Service
    from holdfast.sink import Sink
    from holdfast.table import Table
    from holdfast.timers import Timer
    from holdfast.version import __version__

__all__ = [
    "Dedupe",
    "Handler",
    "HoldfastError",
    "Json",
    "MsgPack",
    "Output",
    "Record",
    "Reference",
    "Serde",
    "Service",
    "Sink",
    "Table",
    "Timer",
    "__version__",
]

_HOMES = {
    "Dedupe": "expiring",
    "Handler": "handler",
    "HoldfastError": "errors",
    "Json": "serde",
    "MsgPack": "serde",
    "Output": "output",
    "Record": "record",
    "Reference": "reference",
    "Serde": "serde",
    "Service": "service",
    "Sink": "sink",
    "Table": "table",
    "Timer": "timers",
    "__version__": "version",
}


def __getattr__(name: str) -> Any:
    """Each name is imported when it is first used.

    `holdfast run` is to hear signals before it imports anything large, and Spark executors have no Kafka client, which
    Service needs.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"holdfast.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
