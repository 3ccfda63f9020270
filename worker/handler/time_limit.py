"""Limits how far ahead of the clock a record may advance the partition's time (`time.max_ahead`).

The worker's clock decides, once; the commit record keeps the limit, and every replay takes it from there (rule E5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from statehold.api.handler import Handler
from statehold.api.record import Message, at
from statehold.common.visible import distance, visible_time
from statehold.config.settings import Settings
from statehold.errors import TimestampAhead
from statehold.worker.handler.record_failure import RecordFailed

#: hold: a record beyond the limit does not advance the time; reject: it fails; warn: it advances the time and is logged
Mode = Literal["hold", "reject", "warn"]

#: milliseconds ahead of the clock from which development mode warns: the brokers' own default from Kafka 4.0 on
_UNUSUAL: Final = 3_600_000


class Limit(Protocol):
    """Decides how far a record advances the partition's time."""

    def reached(self, message: Message, now: int) -> int:
        """Return the time that the record reaches; `now` is the partition's, both in milliseconds since 1970."""
        ...


class RecordedLimit:
    """The limit of a commit record."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def reached(self, message: Message, now: int) -> int:
        time: int = message.timestamp()[1]
        return time if time <= self._limit else now


class AheadOfClock(msgspec.Struct, frozen=True):
    """The records of a transaction that were beyond the limit."""

    #: see `CommitRecord.time_limit`
    limit: int = 0
    records: int = 0
    #: topic, offset and timestamp of the first one
    topic: str = ""
    offset: int = -1
    time: int = 0

    @property
    def timestamp(self) -> str:
        return visible_time(self.time)

    def by(self, clock: int) -> str:
        """Return by how much the first one was ahead of this time."""
        return distance(self.time - clock)


NO_RECORDS: Final = AheadOfClock()


class LiveLimit:
    """The limit of the open transaction; used by the partition's thread."""

    def __init__(self, mode: Mode, max_ahead: int, wall: Callable[[], float]) -> None:
        """`max_ahead` in milliseconds; `wall`: the worker's clock, in seconds since 1970."""
        self.mode, self._max_ahead, self._wall = mode, max_ahead, wall
        #: whether a commit record of the partition's format can keep a limit
        self.recorded = True
        self._limit = 0
        self._found = NO_RECORDS

    def reached(self, message: Message, now: int) -> int:
        """:raises RecordFailed: the record is beyond the limit, and the handler has a policy for that."""
        time: int = message.timestamp()[1]
        if time <= self._limit or time <= now:
            return time
        return self._beyond(message, time, now)

    def take(self) -> AheadOfClock:
        """Return what the open transaction has met; the next one has another limit."""
        found, self._found, self._limit = self._found, NO_RECORDS, 0
        return found

    @property
    def holds(self) -> bool:
        return self.mode == "hold" and self.recorded

    def _beyond(self, message: Message, time: int, now: int) -> int:
        """Read the clock, unless a record was held back: a transaction has one limit, because its commit record has."""
        if not self._found.limit:
            clock = int(self._wall() * 1000)
            self._limit = clock + self._max_ahead
            if time <= self._limit:
                return time
            if self.mode == "reject":
                raise RecordFailed(at(message), _rejection(message, time, clock, self._max_ahead), message)
        found = self._found
        if found.records:
            self._found = msgspec.structs.replace(found, records=found.records + 1)
        else:
            limit = self._limit if self.holds else 0
            self._found = AheadOfClock(limit, 1, message.topic() or "", message.offset() or 0, time)
        return now if self.holds else time


def live_limit(kind: type[Handler[object]], settings: Settings, wall: Callable[[], float]) -> LiveLimit | None:
    """Return None if nothing is to be done about records that are ahead of the clock."""
    allowed = settings.time.max_ahead
    if allowed != "off":
        mode: Mode = "reject" if TimestampAhead in kind.on_failure else "hold"
        return LiveLimit(mode, int(allowed * 1000), wall)
    return LiveLimit("warn", _UNUSUAL, wall) if settings.service.mode == "development" else None


def _rejection(message: Message, time: int, clock: int, max_ahead: int) -> TimestampAhead:
    return TimestampAhead(
        f"its timestamp {visible_time(time)} is {distance(time - clock)} ahead of the worker's clock, and "
        f"time.max_ahead allows {distance(max_ahead)}. The record was rolled back, and nothing was skipped. Next: "
        f"correct the clock that is wrong, the producer's or this machine's, and run `statehold retry "
        f"{message.partition()}`; or dead-letter the record (on_failure)",
        topic=message.topic() or "",
        partition=message.partition() or 0,
        position=message.offset() or 0,
    )
