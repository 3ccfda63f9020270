"""Timers, as a handler sees them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec


class Timer(msgspec.Struct, frozen=True, array_like=True):
    """A timer, as `on_timer` gets it."""

    id: str
    #: due time in milliseconds since 1970
    due: int
    #: as it was scheduled; tuples and objects come back as lists and maps
    payload: Any = None
    #: key of the record that scheduled it
    record_key: bytes | None = None

    @property
    def at(self) -> datetime:
        """Due time in UTC."""
        return datetime.fromtimestamp(self.due / 1000, UTC)


class Timers(Protocol):
    """The timers of a handler's partition; `statehold.state.kinds.timers` implements them."""

    def schedule(self, at: datetime | int, payload: Any, id: str) -> str:
        """Implement `Handler.schedule`."""
        ...

    def cancel(self, id: str) -> bool:
        """Implement `Handler.cancel`."""
        ...
