"""statehold: long-running, stateful Kafka consumer services in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statehold.api.call import Call, CallFailure, CallResult, PendingCall
    from statehold.api.failures import Policy, dead_letter, park, retry, retry_later, stop
    from statehold.api.handler import Handler, on
    from statehold.api.joins import BufferedRecord, JoinBuffer
    from statehold.api.output import Output, Rekey, Replies, StoredReply
    from statehold.api.record import Record
    from statehold.api.reference import Reference
    from statehold.api.sink import Sink
    from statehold.api.table import Dedupe, Retired, Table
    from statehold.api.timer import Timer
    from statehold.api.values.keys import Int64
    from statehold.api.values.schema import Registered, Registry
    from statehold.api.values.serde import Json, MsgPack, Serde
    from statehold.api.values.versioned_values import renamed
    from statehold.api.windows import Hopping, Session, Tumbling
    from statehold.client.client import Answered, Client
    from statehold.client.receipt import Receipt
    from statehold.client.rows import RowPage, TableRow
    from statehold.client.watching import BlockingTableWatch, TableWatch
    from statehold.common.version import __version__
    from statehold.errors import StateholdError
    from statehold.health.freeze_guard import FreezeGuard
    from statehold.service import Service
    from statehold.watch.changes import TableChange

__all__ = [
    "Answered",
    "BlockingTableWatch",
    "BufferedRecord",
    "Call",
    "CallFailure",
    "CallResult",
    "Client",
    "Dedupe",
    "FreezeGuard",
    "Handler",
    "Hopping",
    "Int64",
    "JoinBuffer",
    "Json",
    "MsgPack",
    "Output",
    "PendingCall",
    "Policy",
    "Receipt",
    "Record",
    "Reference",
    "Registered",
    "Registry",
    "Rekey",
    "Replies",
    "Retired",
    "RowPage",
    "Serde",
    "Service",
    "Session",
    "Sink",
    "StateholdError",
    "StoredReply",
    "Table",
    "TableChange",
    "TableRow",
    "TableWatch",
    "Timer",
    "Tumbling",
    "__version__",
    "dead_letter",
    "on",
    "park",
    "renamed",
    "retry",
    "retry_later",
    "stop",
]

_HOMES = {
    "Answered": "client.client",
    "BlockingTableWatch": "client.watching",
    "BufferedRecord": "api.joins",
    "Call": "api.call",
    "CallFailure": "api.call",
    "CallResult": "api.call",
    "Client": "client.client",
    "Dedupe": "api.table",
    "FreezeGuard": "health.freeze_guard",
    "Handler": "api.handler",
    "Hopping": "api.windows",
    "Int64": "api.values.keys",
    "JoinBuffer": "api.joins",
    "Json": "api.values.serde",
    "MsgPack": "api.values.serde",
    "Output": "api.output",
    "PendingCall": "api.call",
    "Policy": "api.failures",
    "Receipt": "client.receipt",
    "Record": "api.record",
    "Reference": "api.reference",
    "Registered": "api.values.schema",
    "Registry": "api.values.schema",
    "Rekey": "api.output",
    "Replies": "api.output",
    "Retired": "api.table",
    "RowPage": "client.rows",
    "Serde": "api.values.serde",
    "Service": "service",
    "Session": "api.windows",
    "Sink": "api.sink",
    "StateholdError": "errors",
    "StoredReply": "api.output",
    "Table": "api.table",
    "TableChange": "watch.changes",
    "TableRow": "client.rows",
    "TableWatch": "client.watching",
    "Timer": "api.timer",
    "Tumbling": "api.windows",
    "__version__": "common.version",
    "dead_letter": "api.failures",
    "on": "api.handler",
    "park": "api.failures",
    "renamed": "api.values.versioned_values",
    "retry": "api.failures",
    "retry_later": "api.failures",
    "stop": "api.failures",
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
