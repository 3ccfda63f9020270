"""Joins of two streams: a table that keeps the records of both sides until they are too old to find a partner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import GenericAlias
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from statehold import serde
from statehold.common import versioned_values
from statehold.common.table_types import require_key_type, require_ordered_key
from statehold.errors import UsageError
from statehold.record import Record
from statehold.table import Changes
from statehold.tables.due_index import DueIndex
from statehold.tables.sorted import SortedTable
from statehold.tables.ttl import SWEEP
from statehold.tables.windows import ClosingTable

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")
#: key, side, timestamp, number among the records of that key, side and timestamp
Row = tuple[K, str, int, int]

LEFT: Final = "left"
RIGHT: Final = "right"
#: the sides whose unmatched records the handler gets
_REPORTED: Final[Mapping[str, tuple[str, ...]]] = {"inner": (), "left": (LEFT,), "outer": (LEFT, RIGHT)}


class BufferedRecord(msgspec.Struct, Generic[L, R], frozen=True, omit_defaults=True):
    """The value of a row: a record of one side."""

    left: L | None = None
    right: R | None = None
    #: whether `on_unmatched` gets it if no partner comes
    waiting: bool = False


class JoinBuffer(
    SortedTable[Row[K], BufferedRecord[L, R]], ClosingTable[Row[K], BufferedRecord[L, R]], Generic[K, L, R]
):
    """Declares a join of two streams by key and time; times are seconds, or timedeltas.

        pairs = JoinBuffer(timedelta(days=2), key=str, left=Payment, right=Invoice, join="outer")

        def on_record(self, record):
            match record.value:
                case Payment() as payment:
                    for invoice in self.pairs.left(record, payment.reference):
                        self.paid.send(Paid(payment, invoice))
                case Invoice() as invoice:
                    for payment in self.pairs.right(record, invoice.reference):
                        self.paid.send(Paid(payment, invoice))

        def on_unmatched(self, name, key, side, value, timestamp):
            self.open.send(value, key=key)

    Two records of a key are partners if their timestamps differ by at most `within`. A record waits for partners until
    the partition's time is later than its timestamp + within + grace. A record of the left side that had none by then
    goes to `Handler.on_unmatched` once, if `join` is "left" or "outer"; one of the right side, if it is "outer".

    `key` has an order: str, int, bytes or a tuple of them. `left` and `right` are the types of the values. `version`,
    `upcasters` and `mutable` are as for a `Table` of `BufferedRecord[left, right]` by (key, side, timestamp, number).
    """

    def __init__(
        self,
        within: float | timedelta,
        *,
        key: type[K],
        left: type[L],
        right: type[R],
        join: Literal["inner", "left", "outer"] = "inner",
        grace: float | timedelta = 0,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
    ) -> None:
        if join not in _REPORTED:
            raise UsageError(f"JoinBuffer(join={join!r}): it is one of {', '.join(_REPORTED)}")
        self.join = join
        self.within, self.grace = self._span("within", within, least=1), self._span("grace", grace, least=0)
        require_key_type(key)
        require_ordered_key(key)
        self._classes = {LEFT: _class_of(LEFT, left), RIGHT: _class_of(RIGHT, right)}
        row_key: Any = GenericAlias(tuple, (key, str, int, int))
        value: Any = BufferedRecord[left, right]  # type: ignore[valid-type]
        super().__init__(key=row_key, value=value, mutable=mutable, version=version, upcasters=upcasters)

    def left(self, record: Record[Any], key: K, value: L | None = None) -> list[R]:
        """Keep a record of the left side, and return its partners of the right side: oldest first, then by arrival.

        `value` is what to keep of it, by default the record's value. A record whose time is over finds no partner and
        is not kept: `Handler.on_late` gets it.

        :raises UsageError: the value is None or belongs to the other side.
        """
        return [kept.right for kept in self._join(record, key, LEFT, RIGHT, value)]  # type: ignore[misc]

    def right(self, record: Record[Any], key: K, value: R | None = None) -> list[L]:
        """Do the same as `left` for a record of the right side."""
        return [kept.left for kept in self._join(record, key, RIGHT, LEFT, value)]  # type: ignore[misc]

    def __setitem__(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        """Write a row. `left` and `right` do it. :raises UsageError: its time is over."""
        when = self.due(key)
        if when <= self._now:
            raise UsageError(f"{self.name}: the time of {key!r} is over. Next: use left() or right()")
        if key not in self:
            self._leaving.push(when, key)
        if value.waiting:
            self._waiting.push(when, key)
        super().__setitem__(key, value)

    def delete(self, key: Row[K]) -> None:
        """Remove a row: it joins no later record, and on_unmatched does not get it."""
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._dirty.pop(key, None)  # no commit has it, so no tombstone is needed
            self._keys().discard(key)

    # For the engine

    @property
    def earliest(self) -> float:
        return self._waiting.earliest

    def has_due(self, until: float) -> bool:
        """Return whether an unmatched row is due at or before `until`; see `DueIndex.has_due`."""
        return self._waiting.has_due(until, self._waits_until, is_open=bool(self._dirty or self._frozen))

    def take(self, until: float) -> Row[K] | None:
        return self._waiting.take(until, self._waits_until)

    @property
    def next_expiry(self) -> float:
        """The earliest possible time at which a row leaves."""
        return self._leaving.earliest

    def sweep(self) -> None:
        """Remove some of the rows whose time is over; those that on_unmatched gets have left before."""
        for _ in range(SWEEP):
            if (row := self._leaving.take(self._now, self._leaves_at)) is None:
                return
            self.delete(row)

    def _empty(self) -> None:
        super()._empty()
        #: every row; the rows that may wait for their first partner
        self._leaving: DueIndex[Row[K]] = DueIndex()
        self._waiting: DueIndex[Row[K]] = DueIndex()

    def freeze(self) -> Changes:
        changes = super().freeze()
        self._leaving.freeze()
        self._waiting.freeze()
        return changes

    def commit(self) -> None:
        super().commit()
        self._leaving.commit()
        self._waiting.commit()
        if self._leaving.is_long(len(self.stored)) or self._waiting.is_long(len(self.stored)):
            self._build()

    def rollback(self) -> None:
        super().rollback()
        self._leaving.rollback()
        self._waiting.rollback()

    def loaded(self) -> None:
        super().loaded()
        self._build()

    def _build(self) -> None:
        """Build both indexes from the keys; no value is decoded, so `take` finds out which rows have a partner."""
        rows = [(self.due(row), row) for row in dict.fromkeys((*self.stored, *self._dirty))]
        self._leaving = DueIndex(rows)
        self._waiting = DueIndex(entry for entry in rows if entry[1][1] in _REPORTED[self.join])

    def _join(self, record: Record[Any], key: K, side: str, other: str, value: Any) -> list[BufferedRecord[L, R]]:
        """Keep a record, and return its partners, of which none is waiting any more."""
        kept, at, now = self._checked(side, record.value if value is None else value), record.timestamp, self._now
        if at + self.within + self.grace < now:
            self._pass_on(key, record)
            return []
        # Rows whose time is over may still be there.
        oldest = max(at - self.within, now - self.within - self.grace)
        partners = []
        for row in list(self._between(key, other, oldest, at + self.within)):
            partners.append(partner := self[row])
            if partner.waiting:
                self[row] = BufferedRecord(partner.left, partner.right)
        waiting = not partners and side in _REPORTED[self.join]
        number = next((row[3] + 1 for row in self._between(key, side, at, at, reverse=True)), 0)
        self[key, side, at, number] = BufferedRecord(**{side: kept}, waiting=waiting)
        return partners

    def _between(self, key: K, side: str, first: int, last: int, *, reverse: bool = False) -> Iterator[Row[K]]:
        """Yield the rows of a key and a side by timestamp and number; both timestamps are included."""
        low: Any = (key, side, first)
        high: Any = (key, side, last + 1)
        rows: Iterator[Row[K]] = self._keys().irange(low, high, inclusive=(True, False), reverse=reverse)
        return (row for row in rows if row in self)

    def _checked(self, side: str, value: Any) -> Any:
        kind = self._classes[side]
        if value is None:
            raise UsageError(f"{self.name}.{side}: the value is None, and a null value has no partner. Next: skip it")
        if kind is not None and not isinstance(value, kind):
            raise UsageError(
                f"{self.name}.{side}: the value has type {type(value).__name__}, its declaration {side}={kind.__name__}"
            )
        return value

    def due(self, row: Row[K]) -> int:
        """Return the first millisecond at which the row is over: a partner may still come at the last one before."""
        return row[2] + self.within + self.grace + 1

    def _leaves_at(self, row: Row[K]) -> int | None:
        return self.due(row) if row in self else None

    def _waits_until(self, row: Row[K]) -> int | None:
        kept = self.get(row)
        return self.due(row) if kept is not None and kept.waiting else None


def _class_of(side: str, kind: Any) -> type | None:
    """Return the class that values of this side have; None if it is not to be checked.

    :raises UsageError: a serde was given.
    """
    if not isinstance(kind, type):
        if isinstance(kind, serde.Serde):
            raise UsageError(
                f"JoinBuffer({side}={type(kind).__name__}(...)): a row has the values of both sides, so no serde of "
                f"one fits. Next: give the type, such as a msgspec.Struct"
            )
        return None
    return kind if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) else None
