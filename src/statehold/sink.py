"""Sinks: database tables that a handler writes to, and the interface to the database.

One database transaction holds the rows of a Kafka transaction and the partition's position. It commits just before
Kafka's transaction. After a failure between the two, the partition processes those records again up to the same
position and drops their rows, because the database has them (docs/how-to/write/sinks.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, get_origin

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


class Sink(Generic[V]):
    """Declares a database table that a `Handler` writes to with `self.<name>.put` and `.delete`.

    `value` is a msgspec.Struct, a dataclass or a NamedTuple whose fields are columns of the table. `key` names the
    columns of the unique index by which a row is replaced. Use it on the partition's thread only.

    :raises UsageError: `key` is not among the fields of `value`.
    """

    def __init__(self, table: str, *, value: type[V], key: str | Sequence[str]) -> None:
        self.table, self.value_type = table, value
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.columns = _fields(value)
        self._kind = get_origin(value) or value
        strangers = [name for name in self.key if name not in self.columns]
        if strangers or not self.key:
            raise UsageError(f"Sink({table!r}): its key {self.key} is not among the fields of {value.__name__}")
        self._key_of: Callable[[V], Any] = attrgetter(*self.key)
        #: Changes of the open transaction by key; None deletes the row.
        self._rows: dict[Any, V | None] | None = None
        self.muted = False

    def bind(self) -> Sink[V]:
        """Return the sink of one partition."""
        bound = Sink(self.table, value=self.value_type, key=self.key)
        bound._rows = {}
        return bound

    def put(self, row: V) -> None:
        """Insert the row, or replace the row with its key, in the record's transaction. Ignored in a replay.

        :raises UsageError: the row has another type than the sink.
        """
        if not isinstance(row, self._kind):
            raise UsageError(f"Sink({self.table!r}).put: {row!r:.100} is not of type {self.value_type.__name__}")
        if not self.muted:
            self._open()[self._key_of(row)] = row

    def delete(self, *key: Any) -> None:
        """Delete the row with this key, if it exists; give the values in the order of the sink's `key`.

        :raises UsageError: the number of values differs from the key's.
        """
        if len(key) != len(self.key):
            raise UsageError(f"Sink({self.table!r}).delete: the key is {self.key}, {len(key)} values were given")
        if not self.muted:
            self._open()[key[0] if len(key) == 1 else key] = None

    def _open(self) -> dict[Any, V | None]:
        if self._rows is None:
            raise UsageError(
                "this Sink is a declaration: use it as self.<name> in a handler that a service or Driver runs"
            )
        return self._rows

    def take(self) -> dict[Any, V | None]:
        """Return the changes since the last call."""
        taken, self._rows = self._open(), {}
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

    def __init__(self, sinks: Iterable[Sink[Any]]) -> None:
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

        :raises Outdated: it differs. :raises RowsRefused, BadRow: the rows are rejected; discard the session.
        :raises DatabaseTrouble: the outcome is unknown.
        """
        ...

    def close(self) -> None: ...


#: (partition, cancelled) -> session. Calls raise DatabaseTrouble once `cancelled` returns True.
Connect = Callable[[int, Callable[[], bool]], Session]


def _fields(kind: type[Any]) -> tuple[str, ...]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    if not names:
        raise UsageError(f"a Sink's value must be a msgspec.Struct, a dataclass or a NamedTuple, not {kind!r}")
    return tuple(names)
