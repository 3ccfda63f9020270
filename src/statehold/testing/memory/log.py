"""Simulates a topic partition in memory: offsets, markers, open and aborted transactions, truncation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

from statehold.api.output import Headers
from statehold.errors import HangingTransaction
from statehold.ports import OutOfRange


class Outcome(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


class Transaction:
    """Holds what one transaction contains: records of several partitions and the group's offsets."""

    __slots__ = ("lineages", "logs", "offsets", "outcome")

    def __init__(self) -> None:
        self.outcome = Outcome.OPEN
        #: each partition it touched, with the offset of its first record there
        self.logs: dict[MemoryLog, int] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.lineages: dict[tuple[str, int], str] = {}


class LogMessage:
    """A record as a reader gets it: the Kafka client's message in a service."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: tuple[int, int] = (1, 0),
    ) -> None:
        """`timestamp`: its kind (1: the producer's, 2: the broker's) and milliseconds since 1970."""
        self._topic, self._partition, self._offset = topic, partition, offset
        self._value, self._key, self._headers, self._timestamp = value, key, headers, timestamp

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers


class MemoryLog:
    """Holds one partition. Readers are read_committed, as statehold's are."""

    def __init__(self, topic: str, partition: int, topic_id: str = "") -> None:
        self.topic, self.partition, self.topic_id = topic, partition, topic_id
        self.start = self.end = 0
        #: a lower high watermark than the end, while the other replicas or a new leader are behind
        self.held_high: int | None = None
        #: offsets of damaged record batches
        self.damaged: set[int] = set()
        #: the outcome that each marker records, by its offset
        self.markers: dict[int, Outcome] = {}
        self._records: dict[int, tuple[LogMessage, Transaction | None]] = {}
        self._open: dict[Transaction, int] = {}

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int = 0,
        transaction: Transaction | None = None,
        partition: int | None = None,
        *,
        stamped: bool = False,
    ) -> int:
        """Write a record, in a transaction or in none, and return its offset. `partition` is what the record claims.

        `stamped`: the timestamp is the broker's.
        """
        offset = self.end
        shown = self.partition if partition is None else partition
        message = LogMessage(self.topic, shown, offset, value, key, headers, (2 if stamped else 1, timestamp))
        self._records[offset] = message, transaction
        if transaction is not None and self not in transaction.logs:
            transaction.logs[self] = self._open[transaction] = offset
        self.end += 1
        return offset

    def close(self, transaction: Transaction) -> None:
        """Write the marker that ends a transaction. It takes an offset and is never delivered."""
        self._open.pop(transaction, None)
        self.markers[self.end] = transaction.outcome
        self.end += 1

    def abort_record(self, offset: int) -> None:
        """Make a record look as if its producer had aborted it."""
        message, _ = self._records[offset]
        aborted = Transaction()
        aborted.outcome = Outcome.ABORTED
        self._records[offset] = message, aborted

    def replace(self, offset: int, value: bytes) -> None:
        """Damage a record that is already written."""
        old, transaction = self._records[offset]
        self._records[offset] = LogMessage(self.topic, self.partition, offset, value, old.key()), transaction

    @property
    def stable(self) -> int:
        """Return the last stable offset. Readers get nothing at or after it."""
        return max(self.start, min((self.high, *self._open.values()))) if self._open else self.high

    @property
    def high(self) -> int:
        """Return the high watermark: the end of what every replica has."""
        return self.end if self.held_high is None else min(self.held_high, self.end)

    def truncate(self, before: int, *, also_open: bool = False) -> None:
        """Do delete_records: readers get no record before the offset. `also_open`: those of open transactions, too."""
        self.start = max(self.start, min(before, self.high if also_open else self.stable))

    def entries(self, start: int = 0) -> Iterator[tuple[LogMessage, Outcome | None]]:
        """Yield every record with its transaction's outcome, None outside of a transaction: for oracles."""
        for offset in range(max(start, self.start), self.end):
            if (entry := self._records.get(offset)) is not None:
                yield entry[0], entry[1].outcome if entry[1] is not None else None

    def of(self, transaction: Transaction, first: int) -> Iterator[LogMessage]:
        """Yield the records of a transaction from an offset on: for oracles."""
        for offset in range(first, self.end):
            if (entry := self._records.get(offset)) is not None and entry[1] is transaction:
                yield entry[0]

    def first_after(self, moment: int) -> int | None:
        """Return the offset of the first record of this time (ms since 1970) or later; None after the last."""
        return next((m.offset() for m, _ in self.entries() if m.timestamp()[1] >= moment), None)

    def committed(self, start: int = 0, end: int | None = None) -> Iterator[LogMessage]:
        """Return the records that a read_committed reader sees in [start, end)."""
        return self._visible(max(start, self.start), min(self.stable, self.end if end is None else end))

    def past(self, end: int | None = None) -> Iterator[LogMessage]:
        """Return every committed record ever written before `end`, the truncated ones too: for the driver's replay."""
        return self._visible(0, self.stable if end is None else min(self.stable, end))

    def _visible(self, start: int, end: int) -> Iterator[LogMessage]:
        for offset in range(start, end):
            entry = self._records.get(offset)
            if entry is not None and (entry[1] is None or entry[1].outcome is Outcome.COMMITTED):
                yield entry[0]

    def has(self, start: int) -> bool:
        """Return whether a read_committed reader sees a record at or after an offset."""
        return next(self.committed(start), None) is not None

    def read(self, start: int, end: int, batch: int) -> Iterator[Sequence[LogMessage]]:
        """Read as `ports.Reader.read` does, but raise HangingTransaction at once instead of waiting."""
        if start >= end:
            return
        if not self.start <= start <= self.end:
            raise OutOfRange(f"{self.topic}[{self.partition}]: {start} is not in {self.start} to {self.end}")
        found = list(self.committed(start, end))
        for low in range(0, len(found), batch):
            yield found[low : low + batch]
        if self.stable < end:
            raise HangingTransaction(
                f"committed records end at {self.stable}, the log at {self.end}: a transaction is open",
                topic=self.topic,
                partition=self.partition,
                position=self.stable,
            )
