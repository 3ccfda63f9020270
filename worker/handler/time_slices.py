"""Slices of event time: the handler gets what is due before one record in several calls, and in several transactions.

Before a record, a million windows may close. A call hands over a part of them, a slice, and the record stays for the
next call. The commit record pins how many rows the transaction handed over, so that a replay stops at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from statehold.api.record import MemoryMessage, Message, Numbering, at
from statehold.bound.rekey import HOPS_HEADER
from statehold.common.decoding import UNREADABLE
from statehold.messages.command import SLICE, BadCommand, header
from statehold.messages.pinned_command import Pinned
from statehold.worker.common.activity import Handling

#: most rows that one call hands over: a few milliseconds of a handler that sends an output for each
ROWS: Final = 1_000
_HEADERS: Final = (header(SLICE),)
#: the key of an entry on the way to a tick
_TICK: Final = b"tick"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(int).decode
#: of a call that the watchdog does not end
UNCUT: Final = (None,)
#: headers of an entry of a handler with a `Rekey`: topic and timestamp of the record that its rows come before
_TOPIC: Final = "before-topic"
_TIME: Final = "before-time"


class TimeSlices:
    """Says where event time stops on its way to a record or a tick; used by the partition's thread."""

    __slots__ = (
        "_handling",
        "_ticks",
        "at",
        "goes_on",
        "handed",
        "left",
        "live",
        "names_record",
        "numberings",
        "rows",
        "until",
    )

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        #: whether a call may stop; None in a replay, which stops only where the live worker did
        self.live: Callable[[], bool] | None = None
        #: the names that a record gives to timers, effects and calls
        self.numberings: list[Numbering] = []
        #: rows that the call may still hand over
        self.left: float = math.inf
        #: rows that the open transaction has handed over on the way to `until`; those of the call that stopped there
        self.rows = self.handed = 0
        #: the time on the way to which event time has stopped; None: it has not
        self.until: int | None = None
        #: the place of the record that has this time; -1 for a tick
        self.at = -1
        self._ticks = False
        #: whether the rows may send to another key: such a record has time and hops of the record after the rows
        self.names_record = False
        #: the records of the call; empty if the watchdog ends it
        self.goes_on: Sequence[Any] = UNCUT

    @property
    def inside(self) -> bool:
        """Whether rows are due, and the record or tick that made them due is not done."""
        return self.until is not None

    @property
    def before_record(self) -> bool:
        """Whether that is a record."""
        return self.until is not None and self.at >= 0

    def begin(self, message: Message | None = None) -> None:
        """Begin a call that may stop, with this record as the first one; None: a tick."""
        self._ticks = message is None
        if message is not None and self.until is not None and at(message) != self.at:
            self.reached()
        self.left = ROWS if self.live is not None and self.live() else math.inf

    def end(self) -> None:
        """Let event time reach its records."""
        self.left = math.inf

    def count(self) -> None:
        """Note a row that is handed over."""
        self.left -= 1
        self.rows += 1

    def full(self) -> bool:
        """Return whether to stop before the next row, now that the slice has its rows.

        Not behind a row that has named a timer, an effect or a call after the record, because a later owner would use
        the names a second time.
        """
        record = self._handling.record
        return record is None or not any(each.has_numbered(record) for each in self.numberings)

    def stop(self, until: int) -> None:
        record = self._handling.record
        self.until, self.at = until, -1 if record is None or self._ticks else at(record.message)
        self.handed = int(ROWS - self.left) if self.left != math.inf else 0

    def reached(self) -> None:
        self.until, self.rows = None, 0

    def take(self) -> Pinned | None:
        """Return the entry of the open transaction's slice, for its commit record; None: it ends with a record."""
        if self.until is None or not self.rows:
            return None
        rows, self.rows = self.rows, 0
        headers = (*_HEADERS, *self._record_headers()) if self.names_record else _HEADERS
        return Pinned(self.until, self.until, None if self.before_record else _TICK, _encode(rows), headers)

    def _record_headers(self) -> list[tuple[str, bytes | None]]:
        """Return what `before` needs; the newest record is still the one before which event time has stopped."""
        record = self._handling.record
        if record is None:
            return []
        hops = [header for header in record.headers if header[0] == HOPS_HEADER][-1:]
        return [(_TOPIC, record.topic.encode()), (_TIME, b"%d" % record.timestamp), *hops]


def without_slices(pinned: Sequence[Pinned]) -> tuple[int, Sequence[Pinned]]:
    """Return how many entries are slices before a record, and the others."""
    others = [each for each in pinned if each.headers[:1] != _HEADERS or each.key == _TICK]
    return len(pinned) - len(others), others


def is_inside(pinned: Sequence[Pinned]) -> bool:
    """Return whether a transaction with these entries ended inside a boundary: before its record, or its tick."""
    return any(each.headers[:1] == _HEADERS for each in pinned)


def before(message: Message) -> Message:
    """Return what stands for the record, or the tick, that the rows of this entry come before, as their hooks saw it.

    :raises BadCommand: the entry was not made by `TimeSlices.take`.
    """
    headers = dict(message.headers() or ())
    if (topic := headers.get(_TOPIC)) is None:
        return message
    try:
        time = int(headers.get(_TIME) or b"")
        hops = [(HOPS_HEADER, headers[HOPS_HEADER])] if HOPS_HEADER in headers else None
        return MemoryMessage(topic.decode(), message.partition() or 0, message.offset() or 0, None, None, hops, time)
    except ValueError as error:
        raise BadCommand(f"{SLICE}: {error}") from error


def rows_of(value: bytes | None) -> int:
    """Return how many rows an entry says. :raises BadCommand: it was not made by `TimeSlices.take`."""
    try:
        return _decode(value or b"")
    except UNREADABLE as error:
        raise BadCommand(f"{SLICE}: {error}") from error
