"""holdfast: long-running, stateful Kafka consumer services in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.handler import Handler
from holdfast.output import Output
from holdfast.record import Record
from holdfast.serde import Json, MsgPack, Serde
from holdfast.table import Table
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.service import Service

__all__ = [
    "Handler",
    "HoldfastError",
    "Json",
    "MsgPack",
    "Output",
    "Record",
    "Serde",
    "Service",
    "Table",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Service needs a Kafka client; the vocabulary above does not, and Spark executors import it without one."""
    if name == "Service":
        from holdfast.service import Service

        return Service
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
