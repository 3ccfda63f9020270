"""Simulates a sink database in memory: rows, positions, epochs, transactions; faults on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from statehold.bound.sink import BadRow, Connect, Outdated, Rows, SinkPosition

#: the calls that a fault can be planned for
Call = Literal["connect", "take", "commit"]

Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class MemoryDatabase:
    """Holds the tables and the position of each partition. `fail` plans faults for tests."""

    def __init__(self) -> None:
        #: table -> key -> row, each by column
        self.tables: Tables = {}
        #: partition -> what is held, and the owner who has taken its epoch
        self.held: dict[int, SinkPosition] = {}
        self.owners: dict[int, object] = {}
        #: transactions that have committed
        self.commits = 0
        #: called with (before, now, rows) when one commits
        self.on_commit: Callable[[SinkPosition, SinkPosition, Sequence[Rows]], None] | None = None
        #: why the database rejects a row of a table (its values by column), or ''
        self.refuses: Callable[[str, dict[str, Any]], str] = lambda table, row: ""
        #: whether a rejection names its row
        self.finds_rows = True
        #: connections that were opened
        self.connections = 0
        self._faults: list[tuple[Call, BaseException, bool]] = []

    def fail(self, call: Call, error: BaseException, *, after: bool = False, times: int = 1) -> None:
        """Make the next `times` calls of this kind raise `error`: before they do anything, or `after` they did it."""
        self._faults += [(call, error, after)] * times

    def connector(self) -> Connect:
        """Return the connector of one assignment. Its sessions have one owner."""
        owner = object()

        def connect(partition: int, _ends: Callable[[], bool] = bool) -> MemorySession:
            self.strike("connect", after=False)
            self.connections += 1
            return MemorySession(self, partition, owner)

        return connect

    def strike(self, call: Call, *, after: bool) -> None:
        """Raise the fault that is planned for this moment, if any."""
        for at, (name, error, late) in enumerate(self._faults):
            if (name, late) == (call, after):
                del self._faults[at]
                raise error


class MemorySession:
    """Implements `statehold.bound.sink.Session`."""

    def __init__(self, database: MemoryDatabase, partition: int, owner: object) -> None:
        self._database, self._partition, self._owner = database, partition, owner
        self._closed = False

    def take(self, *, again: bool) -> SinkPosition | None:
        database, partition = self._database, self._partition
        database.strike("take", after=False)
        held = database.held.get(partition)
        if held is None:
            return None
        if again and database.owners.get(partition) is not self._owner:
            raise Outdated(f"another owner has taken epoch {held.epoch}, this one has an older one", fenced=True)
        database.owners[partition] = self._owner
        held = database.held[partition] = held._replace(epoch=held.epoch + 1)
        database.strike("take", after=True)
        return held

    def commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        database, partition = self._database, self._partition
        assert not self._closed, "a closed session is used"
        database.strike("commit", after=False)
        now = database.held[partition]
        if now.epoch > held.epoch:
            raise Outdated(f"epoch {now.epoch} was taken, this owner has {held.epoch}", fenced=True)
        if now.position != held.position:
            raise Outdated(f"it holds position {now.position}, not {held.position}", fenced=False)
        for each in rows:
            for values in each.puts:
                if why := database.refuses(each.table, dict(zip(each.columns, values, strict=True))):
                    raise BadRow(why, each._replace(puts=[values], deletes=[]) if database.finds_rows else None)
        database.held[partition] = SinkPosition(held.epoch, position, note)
        if database.on_commit is not None:
            database.on_commit(now, database.held[partition], rows)
        for each in rows:
            apply(database.tables.setdefault(each.table, {}), each)
        database.commits += 1
        database.strike("commit", after=True)

    def close(self) -> None:
        self._closed = True


def apply(table: dict[tuple[Any, ...], dict[str, Any]], rows: Rows) -> None:
    """Apply the rows of a commit to one table."""
    for key in rows.deletes:
        table.pop(tuple(key), None)
    for values in rows.puts:
        row = dict(zip(rows.columns, values, strict=True))
        table[tuple(row[name] for name in rows.key)] = row
