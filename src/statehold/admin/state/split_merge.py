"""Splits and merges tables: a function gets the handlers of the old and the new release, a partition at a time."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_edits import Counts
from statehold.state.partition_table import Changes, PartitionTable
from statehold.state.state import State
from statehold.state.system_names import owner
from statehold.state.types.description import to_text
from statehold.worker.handler.engine import Engine

#: (old, new): reads the tables of one handler, and writes those of the other
TablesFunction = Callable[[Any, Any], object]
#: what a function may call on a table of the old release
_READING: Final = frozenset(("get", "keys", "items", "values", "range", "first", "last"))
#: entries that are moved at a time
_PIECE: Final = 10_000


class MovedTables(NamedTuple):
    """The state of the new release, and what became of the tables."""

    state: State
    counts: Counts
    #: by stored name: keys before and after
    keys: dict[str, tuple[int, int]]
    #: whose stored values are those of before, and those that the function wrote
    carried: frozenset[str]
    written: frozenset[str]

    def recorded(self, last: CommitRecord, place: Place) -> CommitRecord:
        """Return `last` with the versions and types of the values in this state. `place`: with the new tables."""
        known = {name: text for name, text in last.types.items() if name in self.carried}
        fresh = {name: to_text(types) for name, types in place.types.items() if name not in self.carried}
        used = self.state.used
        types = {name: text for name, text in {**fresh, **known}.items() if name in used}
        schemas = {name: version for name, version in last.schemas.items() if name in self.carried}
        kept = msgspec.structs.replace(last, schemas=schemas, types=types)
        return msgspec.structs.replace(kept, schemas=place.merged_schemas(kept, self.written))


class SplitMerge:
    """One migration of all partitions. Used by one thread."""

    def __init__(self, function: TablesFunction, factory: HandlerFactory, names: Names) -> None:
        """`factory`: the new release. :raises UsageError: the function does not name the old release."""
        self._function, self.factory, self._names = function, factory, names
        self.old = _old_release(function)
        new = class_of(factory)
        self._tables = tables_and_outputs(new)[0]
        #: tables whose stored values both releases read alike
        same = {name for name, table in tables_and_outputs(self.old)[0].items() if self._is_same(name, table, new)}
        self._same = frozenset(name for name in same if owner(name) in same)

    def apply(self, partition: int, stored: State) -> MovedTables:
        """Return the state that the function makes of this one, which has the tables of the old release.

        :raises UsageError: it raised, or left out a table that the new release has not, or sent something.
        """
        before = Engine(self.old, partition, names=self._names)
        after = Engine(self.factory, partition, names=self._names)
        _load(before.state, stored, stored.tables)
        before.state.loaded()
        _load(after.state, stored, self._same)
        after.state.loaded()
        reading = _hand_over(before)
        try:
            self._function(before.handler, after.handler)
            frozen = after.freeze()
        except Exception as error:  # the user's function may raise anything
            raise self._wrong(partition, f"raised {type(error).__name__}: {error}") from error
        if after.take_outputs() or after.effects.take() or (after.sinks is not None and after.sinks.take() is not None):
            raise self._wrong(
                partition, "sent an output, put a row or requested a side effect, which a migration drops"
            )
        after.state.commit(frozen, delta=False)
        self._require_read(partition, stored, reading)
        written = frozenset(frozen.tables)
        return MovedTables(after.state, _counted(stored, after.state), _keys(stored, after.state), self._same, written)

    def _is_same(self, name: str, old: PartitionTable[Any, Any], new: type[Handler[Any]]) -> bool:
        found = self._tables.get(name)
        if found is None or type(found) is not type(old) or found.version != old.version:
            return False
        return table_types(self.old).get(name) == table_types(new).get(name)

    def _require_read(self, partition: int, stored: State, reading: Mapping[str, _OldTable]) -> None:
        """Require that the function has read each table that does not stay as it is."""
        for name in stored.used:
            if name in self._same:
                continue
            user = owner(name)
            if user not in reading:
                raise self._wrong(partition, f"leaves keys in {name!r}, which the new release does not declare")
            if not reading[user].was_read:
                why = "declares with another type" if user in self._tables else "does not declare"
                raise self._wrong(partition, f"did not read table {user!r}, which has keys and the new release {why}")

    def _wrong(self, partition: int, what: str) -> UsageError:
        name = getattr(self._function, "__name__", "the function")
        return UsageError(f"partition {partition}: {name} {what}. Nothing was changed")


class _OldTable:
    """A table of the old release: it can be read, and knows whether it was."""

    def __init__(self, table: PartitionTable[Any, Any]) -> None:
        self._table = table
        self.was_read = False

    def __getattr__(self, name: str) -> Any:
        if name not in _READING:
            raise self._wrong(name)
        self.was_read = True
        return getattr(self._table, name)

    def __getitem__(self, key: Any) -> Any:
        self.was_read = True
        return self._table[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._wrong("put")

    def __delitem__(self, key: Any) -> None:
        raise self._wrong("delete")

    def __iter__(self) -> Iterator[Any]:
        self.was_read = True
        return iter(self._table)

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def _wrong(self, name: str) -> UsageError:
        return UsageError(f"table {self._table.attribute!r} of the old release can only be read, not {name!r}")


def _old_release(function: TablesFunction) -> type[Handler[Any]]:
    """Return the class that the function's first parameter is annotated with."""
    parameters = list(inspect.signature(function).parameters)
    kind = typing.get_type_hints(function).get(parameters[0]) if len(parameters) == 2 else None
    if not (isinstance(kind, type) and issubclass(kind, Handler)):
        raise UsageError(
            f"{getattr(function, '__name__', function)} takes (old, new): annotate `old` with a handler class that "
            f"declares the tables of the state, and `new` with that of the service"
        )
    return kind


def _load(state: State, stored: State, names: typing.Iterable[str]) -> None:
    for name in names:
        held = stored.tables[name].stored
        keys = list(held)
        for low in range(0, len(keys), _PIECE):
            piece = keys[low : low + _PIECE]
            state.load(Changes(name, piece, [held[key] for key in piece]))


def _hand_over(engine: Engine) -> dict[str, _OldTable]:
    """Let the handler read its tables only. Return them by stored name."""
    found = {name: _OldTable(table) for name, table in engine.state.tables.items() if "." not in name}
    for name, table in found.items():
        setattr(engine.handler, engine.state.tables[name].attribute, table)
    return found


def _keys(old: State, new: State) -> dict[str, tuple[int, int]]:
    names = dict.fromkeys([*old.used, *new.used])
    return {name: (_size(old, name), _size(new, name)) for name in names}


def _size(state: State, name: str) -> int:
    return len(state.tables[name].stored) if name in state.tables else 0


def _counted(old: State, new: State) -> Counts:
    counts = Counts(before=old.keys, after=new.keys)
    for name in {*old.used, *new.used}:
        was = old.tables[name].stored if name in old.tables else {}
        now = new.tables[name].stored if name in new.tables else {}
        counts.added += sum(key not in was for key in now)
        counts.deleted += sum(key not in now for key in was)
        counts.changed += sum(key in was and was[key] != data for key, data in now.items())
    return counts
