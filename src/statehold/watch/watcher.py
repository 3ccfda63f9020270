"""Follows all partitions of a table: one thread reads one changelog after the other, and waits for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from statehold.common.names import Names
from statehold.errors import HangingTransaction, KafkaTrouble, Misconfigured, NoCommitRecord, RestoreTimeout
from statehold.ports import Cancelled, FollowingReader
from statehold.snapshot.format.chain_check import Increment
from statehold.watch.changes import TableChange, WatchedTable
from statehold.watch.partition_changes import PartitionChanges
from statehold.watch.position import WatchedTo

#: seconds between two looks at the ends of the changelogs
_ROUND: Final = 0.05
#: seconds after which a first look that fails ends the watch, because the brokers may be other ones than meant
PATIENCE: Final = 20.0
_AGAIN: Final = 0.5


class Watcher:
    """One thread at a time. It has no group, and reads committed records, so it disturbs no owner.

    `changes` continues after an outage of Kafka where it was. A takeover does not end it, because the changelog stays.
    """

    def __init__(
        self,
        names: Names,
        table: WatchedTable,
        partitions: Sequence[int],
        after: Mapping[int, WatchedTo],
        reader: Callable[[], FollowingReader],
        wait: Callable[[float], bool],
    ) -> None:
        """`reader` makes a client; `wait` returns True once the watch has to end."""
        self._topic, self._make, self._wait, self._table = names.changelog, reader, wait, table
        self._parts = [PartitionChanges(names, number, table, after.get(number)) for number in partitions]
        #: each partition's part of a position
        self._texts: dict[int, str] = {}
        self._reader: FollowingReader | None = None
        self._began = False

    @property
    def position(self) -> str:
        """Return where a watch continues behind what was handed over; '' before all partitions have begun."""
        return ",".join(self._texts.values()) if self._began else ""

    def changes(self) -> Generator[TableChange[Any] | None, None, None]:
        """Yield each change; None after each look, when all that was committed has been handed over.

        :raises ChangesLost: changes after the position are not kept any more. :raises KafkaTrouble: the brokers do not
            answer the first look. :raises NoCommitRecord, UsageError: no such service or table.
        """
        began = time.monotonic()
        try:
            while not self._wait(0.0):
                try:
                    yield from self._look()
                    pause = _ROUND
                except Cancelled:
                    return
                except (KafkaTrouble, RestoreTimeout, HangingTransaction) as error:
                    late = time.monotonic() - began > PATIENCE
                    if isinstance(error, Misconfigured) or (late and not self._began):
                        raise
                    self._drop()
                    pause = _AGAIN
                    yield None
                if self._wait(pause):
                    return
        finally:
            self._drop()

    def _look(self) -> Iterator[TableChange[Any] | None]:
        reader = self._reader
        if reader is None:
            reader = self._reader = self._make()
            self._begin(reader)
        ends = reader.ends(self._topic, [part.partition for part in self._parts])
        for part in self._parts:
            if part.waits and ends[part.partition]:
                part.begin(reader)
            if part.waits:
                continue
            for increment in part.read(reader, ends[part.partition]):
                yield from self._placed(part, increment)
        yield None

    def _begin(self, reader: FollowingReader) -> None:
        """:raises NoCommitRecord: the service has committed in none of the partitions."""
        for part in self._parts:
            part.begin(reader)
            self._note(part)
        if all(part.waits for part in self._parts):
            raise NoCommitRecord(
                "there is no table to watch, because the service has not committed here yet. Next: check the names of "
                "service and namespace; start the service, and watch again",
                topic=self._topic,
                partition=self._parts[0].partition,
            )
        self._began = True

    def _placed(self, part: PartitionChanges, increment: Increment) -> Iterator[TableChange[Any]]:
        record, reached, partition = increment.commit_record, part.reached, part.partition
        skip = reached.part if reached is not None and reached.n == record.n else 0
        generation = WatchedTo.of(record).generation
        found = part.changes(increment, skip)
        for i, (key, data, number) in enumerate(found, 1):
            last = i == len(found)
            where = f"partition {partition}, transaction {record.n}, behind the position {self.position}"
            value = None if data is None else self._table.value(key, data, where)
            self._texts[partition] = WatchedTo(record.n, generation, -1 if last else number).text(partition)
            yield TableChange(
                key=key,
                value=value,
                deleted=data is None,
                partition=partition,
                transaction=record.n,
                offsets=record.positions,
                time=record.time,
                last=last,
                position=self.position,
            )
        self._texts[partition] = WatchedTo.of(record).text(partition)

    def _note(self, part: PartitionChanges) -> None:
        if part.reached is not None:
            self._texts[part.partition] = part.reached.text(part.partition)

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
