"""A table of a database beside Kafka: rows that a handler puts, and what a partition needs of the database.

The rows of a transaction and the partition's position are one transaction of the database, which commits just before
Kafka's does. What the database then holds and Kafka does not is one transaction at most; it is handled again, up to the
same place, and its rows are dropped (docs/sinks.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, get_origin

from statehold.errors import StateholdError, UsageError

V = TypeVar("V")


class Rows(NamedTuple):
    """What one transaction does to one table: the last word on each key."""

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    #: values in the order of `columns`
    puts: Sequence[tuple[Any, ...]]
    #: keys in the order of `key`
    deletes: Sequence[tuple[Any, ...]]


class Sink(Generic[V]):
    """Declares a table that a `Handler` writes to, and takes rows for it once a partition has started.

    `value` is a msgspec.Struct, a dataclass or a NamedTuple whose fields are columns of the table; `key` names those
    with the unique index that a row is replaced by.
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
        #: of the open transaction: a row, or None where it is to be deleted; by key
        self._rows: dict[Any, V | None] | None = None
        self.muted = False

    def bind(self) -> Sink[V]:
        """This sink for one partition."""
        bound = Sink(self.table, value=self.value_type, key=self.key)
        bound._rows = {}
        return bound

    def put(self, row: V) -> None:
        """Insert the row, or replace the one with its key, together with the record's transaction.

        :raises UsageError: it is of another type than the sink's.
        """
        if not isinstance(row, self._kind):
            raise UsageError(f"Sink({self.table!r}).put: {row!r:.100} is no {self.value_type.__name__}")
        if not self.muted:
            self._open()[self._key_of(row)] = row

    def delete(self, *key: Any) -> None:
        """Delete the row with this key, if there is one: its values in the order of the sink's `key`."""
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
        """What was put since the last call."""
        taken, self._rows = self._open(), {}
        return taken

    def rows(self, taken: Mapping[Any, V | None]) -> Rows:
        """As the database wants them."""
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
        """What is put meanwhile goes nowhere: the database has it."""
        for sink in self._sinks:
            sink.muted = muted

    def take(self) -> Callable[[], list[Rows]] | None:
        """What the open transaction does to each table, or None; the returned function may run beside."""
        taken = [(sink, rows) for sink in self._sinks if (rows := sink.take())]
        return (lambda: [sink.rows(rows) for sink, rows in taken]) if taken else None

    def forget(self) -> None:
        """The open transaction is undone."""
        for sink in self._sinks:
            sink.take()

    @property
    def written(self) -> list[str]:
        """Tables with rows in the open transaction."""
        return [sink.table for sink in self._sinks if sink._rows]


class Held(NamedTuple):
    """What the database holds of a partition."""

    epoch: int
    #: next offset of the input
    position: int
    #: about the transaction that wrote it (`statehold.worker.sinks.coordinator.Note`), b"" where there was none yet
    note: bytes = b""


class DatabaseTrouble(StateholdError):
    """The database did not answer, or could not just now; whether a commit counts is not known. Look again."""


class RowsRefused(StateholdError):
    """The database will not take these rows, however often they are sent."""


class BadRow(RowsRefused):
    """One of them breaks a constraint or does not fit its columns: the fault of the record that put it."""


class Outdated(StateholdError):
    """The guard has refused: another owner has taken an epoch since, or the position is another one."""

    def __init__(self, message: str, *, fenced: bool) -> None:
        super().__init__(message)
        self.fenced = fenced


class Session(Protocol):
    """A connection for one partition; one call at a time, any thread. After DatabaseTrouble it is of no further use.

    Each call blocks for `sink.timeout` at most.
    """

    def take(self, *, again: bool) -> Held | None:
        """Take the next epoch: whoever has an older one cannot commit from here on. None: there is no such partition.

        `again`: only if nobody else has taken one since. :raises Outdated: somebody has. :raises DatabaseTrouble:
        :raises RowsRefused: a table that rows will go to is not as the sink says.
        """
        ...

    def commit(self, held: Held, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        """Rows, position and note become visible together, where `held` is what the database holds.

        :raises Outdated: it is not. :raises RowsRefused, BadRow: after it the session is of no further use, too.
        :raises DatabaseTrouble: it may have committed.
        """
        ...

    def close(self) -> None: ...


#: connects for a partition; calls end with DatabaseTrouble once the function returns True, as this one may
Connect = Callable[[int, Callable[[], bool]], Session]


def _fields(kind: type[Any]) -> tuple[str, ...]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    if not names:
        raise UsageError(f"a Sink's value is a msgspec.Struct, a dataclass or a NamedTuple, not {kind!r}")
    return tuple(names)
