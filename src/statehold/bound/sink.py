"""Sinks: database tables that a handler writes to, and the interface to the database.

One database transaction holds the rows of a Kafka transaction and the partition's position. It commits just before
Kafka's transaction. After a failure between the two, the partition processes those records again up to the same
position and drops their rows, because the database has them (docs/how-to/write/sinks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar, get_origin

from statehold.api.declaration import options_of
from statehold.api.sink import Sink, SinkOptions
from statehold.errors import StateholdError, UsageError

V = TypeVar("V")


class Rows(NamedTuple):
    """The changes of one transaction to one table: the last change of each key."""

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    #: Values in the order of `columns`.
    puts: Sequence[tuple[Any, ...]]
    #: Keys in the order of `key`.
    deletes: Sequence[tuple[Any, ...]]


class PartitionSink(Sink[V]):
    """The sink of one partition; `bind` makes it from the prototype of a declaration."""

    def __init__(self, declaration: Sink[V]) -> None:
        options: SinkOptions = options_of(declaration)
        self.table, self.value_type = options.table, options.value_type
        self.key, self.columns = options.key, options.columns
        self._kind = get_origin(self.value_type) or self.value_type
        self._key_of: Callable[[V], Any] = attrgetter(*self.key)
        #: Changes of the open transaction by key; None deletes the row.
        self._rows: dict[Any, V | None] = {}
        self.muted = False

    def bind(self) -> PartitionSink[V]:
        """Return the sink of one partition."""
        bound: PartitionSink[V] = object.__new__(type(self))
        vars(bound).update(vars(self))
        bound._rows = {}
        return bound

    def put(self, row: V) -> None:
        if not isinstance(row, self._kind):
            raise UsageError(f"Sink({self.table!r}).put: {row!r:.100} is not of type {self.value_type.__name__}")
        if not self.muted:
            self._rows[self._key_of(row)] = row

    def delete(self, *key: Any) -> None:
        if len(key) != len(self.key):
            raise UsageError(f"Sink({self.table!r}).delete: the key is {self.key}, {len(key)} values were given")
        if not self.muted:
            self._rows[key[0] if len(key) == 1 else key] = None

    def holds(self, row: Rows) -> bool:
        """Return whether the open transaction makes this one change."""
        values = dict(zip(row.columns, row.puts[0], strict=True)) if row.puts else {}
        key = tuple(values[name] for name in row.key) if row.puts else row.deletes[0]
        found = key[0] if len(key) == 1 else key
        # Compared as text, because NaN differs from itself.
        return found in self._rows and repr(self.rows({found: self._rows[found]})) == repr(row)

    def take(self) -> dict[Any, V | None]:
        """Return the changes since the last call."""
        taken, self._rows = self._rows, {}
        return taken

    def rows(self, taken: Mapping[Any, V | None]) -> Rows:
        """Convert changes to rows for the database."""
        get: Callable[[Any], Any] = attrgetter(*self.columns)
        wrap = (lambda value: (value,)) if len(self.columns) == 1 else None
        puts: Iterable[Any] = map(get, [row for row in taken.values() if row is not None])
        gone = [key if len(self.key) > 1 else (key,) for key, row in taken.items() if row is None]
        return Rows(self.table, self.columns, self.key, list(map(wrap, puts) if wrap else puts), gone)


class Sinks:
    """The sinks of one handler instance; used by its thread."""

    def __init__(self, sinks: Iterable[PartitionSink[Any]]) -> None:
        self._sinks = tuple(sinks)

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def mute(self, muted: bool) -> None:
        """Ignore changes while `muted`, because the database has them already."""
        for sink in self._sinks:
            sink.muted = muted

    def take(self) -> Callable[[], list[Rows]] | None:
        """Return a function that builds the open transaction's rows, or None; any thread may call the function."""
        taken = [(sink, rows) for sink in self._sinks if (rows := sink.take())]
        return (lambda: [sink.rows(rows) for sink, rows in taken]) if taken else None

    def holds(self, row: Rows) -> bool:
        """Return whether the open transaction makes this one change."""
        return any(sink.table == row.table and sink.holds(row) for sink in self._sinks)

    def forget(self) -> None:
        """Discard the changes of the open transaction after a rollback."""
        for sink in self._sinks:
            sink.take()

    @property
    def written(self) -> list[str]:
        """Tables with rows in the open transaction."""
        return [sink.table for sink in self._sinks if sink._rows]


class SinkPosition(NamedTuple):
    """The database's row for a partition."""

    epoch: int
    #: Next offset of the input.
    position: int
    #: Data about the last transaction (`statehold.worker.sinks.coordinator.Note`); b"" before the first one.
    note: bytes = b""


class DatabaseTrouble(StateholdError):
    """The database did not answer or failed temporarily. A commit's outcome is unknown: read the position again."""


class RowsRefused(StateholdError):
    """The database rejects these rows; a retry does not help."""


class BadRow(RowsRefused):
    """A row violates a constraint or does not match its columns; the record that put it is at fault."""

    def __init__(self, message: str, row: Rows | None = None) -> None:
        super().__init__(message)
        #: the one change that the database rejects; None: unknown
        self.row = row


class Outdated(StateholdError):
    """Another owner has taken a newer epoch, or the database has another position; the transaction was rejected."""

    def __init__(self, message: str, *, fenced: bool) -> None:
        super().__init__(message)
        self.fenced = fenced


class Session(Protocol):
    """A database connection of one partition. One call at a time, any thread; discard it after DatabaseTrouble.

    Each call blocks up to `sink.timeout`.
    """

    def take(self, *, again: bool) -> SinkPosition | None:
        """Take the next epoch, which fences older owners. Return None if the database has no row for the partition.

        With `again`, only if no other owner has taken one since.

        :raises Outdated: another owner has. :raises DatabaseTrouble: no answer. :raises RowsRefused: a table differs
            from the sink's declaration.
        """
        ...

    def commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        """Commit rows, position and note in one transaction, if `held` equals the database's row.

        :raises Outdated: it differs. :raises RowsRefused: the rows are rejected; discard the session.
        :raises BadRow: a row is rejected, and it is named if it is found; the session can be used again.
        :raises DatabaseTrouble: the outcome is unknown.
        """
        ...

    def close(self) -> None: ...


#: (partition, cancelled) -> session. Calls raise DatabaseTrouble once `cancelled` returns True.
Connect = Callable[[int, Callable[[], bool]], Session]
