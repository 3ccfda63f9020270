"""The committed changes of one partition after a position, read from its changelog (rules W4, W5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NoReturn

from statehold.common.names import Names
from statehold.errors import ChangesLost, DamagedIncrement, UsageError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Header
from statehold.snapshot.restore.discovery import last_commit_record, newest_commit_record
from statehold.watch.changes import Stored, WatchedTable
from statehold.watch.position import NEW, WatchedTo

_READ_AGAIN: Final = "Next: read the table again, and watch from the position of that page"


class PartitionChanges:
    """Used by one thread. After an error of Kafka call `begin` again: nothing is lost or repeated."""

    def __init__(self, names: Names, partition: int, table: WatchedTable, reached: WatchedTo | None) -> None:
        """`reached`: None begins behind the newest transaction."""
        self._place, self._table = Place(names, partition, 0, {}), table
        #: everything up to here was handed over
        self.reached = reached
        #: whether the service has not committed here yet; then `begin` again when the changelog grows
        self.waits = False
        self._chain = Chain(names.changelog, partition)
        #: the next offset to read
        self._offset = 0
        #: whether no header was read yet, and whether the log may begin within a transaction
        self._searching, self._beheaded = True, False

    @property
    def partition(self) -> int:
        return self._place.partition

    def begin(self, reader: Reader) -> None:
        """Find where to read on.

        :raises ChangesLost: the next changes are not kept any more. :raises UsageError: the service has no such table.
        """
        names, partition = self._place.names, self._place.partition
        newest = last_commit_record(reader, names.changelog, partition)
        self.waits = newest is None
        if newest is None:
            self.reached = self.reached or NEW
            if self.reached != NEW:
                self._lost("it has no transaction, so the topic was created again")
            return
        self._require_table(newest)
        if self.reached is None:
            self.reached = WatchedTo.of(newest)
        reached = self.reached
        if reached.n > newest.n:
            self._lost(f"its newest transaction is {newest.n}, so the topic was created again")
        # Of a transaction that was handed over in part, the rest comes again from its own records.
        whole = reached.n if reached.part < 0 else reached.n - 1
        if reached == NEW:
            whole = -1
        located = newest_commit_record(reader, self._place, lambda record: record.n <= whole)
        start = reader.bounds(names.changelog, partition)[0]
        self._offset = start if located is None else located.offset + 1
        self._searching, self._beheaded = True, located is None and start > 0
        if located is not None and (located.commit_record.n, reached.part) == (reached.n, -1):
            self._require_generation(located.commit_record, reached)
        known = whole >= 0 or self._beheaded
        self._chain = Chain(names.changelog, partition, last=whole if known else None, crossing=True)

    def read(self, reader: Reader, end: int) -> Iterator[Increment]:
        """Yield the transactions with a delta that are committed before this end of the changelog.

        Each is handed over when the next one is asked for.

        :raises ChangesLost: changes are missing. :raises StateRefused: the changelog is damaged.
        """
        names, partition = self._place.names, self._place.partition
        if end < self._offset:
            self._lost(f"the changelog ends at {end}, and was read up to {self._offset}")
        try:
            for batch in reader.read(names.changelog, partition, self._offset, end):
                for message in batch:
                    increment = self._fed(message.offset() or 0, message.value())
                    if increment is not None and increment.commit_record.delta:
                        yield increment
                        self.reached = WatchedTo.of(increment.commit_record)
        except OutOfRange:
            self._lost("retention has deleted it")
        self._offset = max(self._offset, end)  # only markers are in between

    def _fed(self, offset: int, data: bytes | None) -> Increment | None:
        record, last = self._record(offset, data), self._chain.last
        self._offset = offset + 1
        if self._searching and isinstance(record, Header):
            self._searching = False
            if last is not None and record.n > last + 1:
                self._lost(f"the changelog begins with transaction {record.n} now")
        if self._searching and self._beheaded:
            return None  # the rest of a transaction whose header was deleted
        increment = self._chain.feed(offset, record)
        if increment is not None:
            self._require_changes(increment)
        return increment

    def _record(self, offset: int, data: bytes | None) -> records.Record:
        try:
            return records.unpack(data)
        except frame.BadFrame as error:
            raise self._damaged(error, offset) from error

    def changes(self, increment: Increment, skip: int) -> list[Stored]:
        """Return the wanted changes of a transaction, without its first `skip` changes.

        :raises DamagedIncrement: an entry cannot be read. :raises UnreadableValue: a key is of another type.
        """
        try:
            return list(self._table.stored(increment.parts, skip))
        except frame.BadFrame as error:
            raise self._damaged(error, increment.offset) from error

    def _damaged(self, error: frame.BadFrame, offset: int) -> DamagedIncrement:
        return DamagedIncrement(str(error), topic=self._chain.topic, partition=self._chain.partition, position=offset)

    def _require_changes(self, increment: Increment) -> None:
        record, reached = increment.commit_record, self.reached
        assert reached is not None
        if (replacement := increment.replacement) is not None:
            self._lost(f"transaction {record.n} replaced the state: {replacement.tool}, {replacement.who}")
        if record.n == reached.n and reached != NEW:
            self._require_generation(record, reached)
        if record.moved:
            self._lost(f"the state has moved to the input {record.moved} in transaction {record.n}")
        if record.delta and record.reach > reached.n:
            self._lost(f"changes before transaction {record.n} were not written: snapshot.delta_interval was off")

    def _require_generation(self, record: CommitRecord, reached: WatchedTo) -> None:
        if WatchedTo.of(record).generation != reached.generation:
            self._lost(f"transaction {record.n} is of another state, {record.lineage}")

    def _require_table(self, newest: CommitRecord) -> None:
        if newest.types and self._table.name not in newest.types and not self._table.declared:
            known = ", ".join(sorted(newest.types))
            raise UsageError(
                f"there is no table {self._table.name!r}; there are {known}. Next: give its stored name; "
                f"a table of a new release is there after the first commit of each partition"
            )

    def _lost(self, cause: str) -> NoReturn:
        names, partition, reached = self._place.names, self._place.partition, self.reached
        after = "" if reached is None else f" after transaction {reached.n}"
        raise ChangesLost(
            f"{names.changelog}[{partition}]: the changes{after} are not all there: {cause}. Nothing was skipped. "
            f"{_READ_AGAIN}"
        )
