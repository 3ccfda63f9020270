"""Splits and merges tables: a function gets the handlers of the old and the new release, a partition at a time."""

from __future__ import annotations

import inspect
import traceback
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.bound.reference import references
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.errors import UsageError, class_and_text
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_edits import Counts
from statehold.state.kinds.calls import CallTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.replies import RepliesTable
from statehold.state.kinds.ttl import DedupeTable
from statehold.state.kinds.windows import HoppingTable, SessionTable
from statehold.state.partition_table import Changes, PartitionTable, RetiredTable
from statehold.state.state import Frozen, State
from statehold.state.system_names import CALLS, CLOCK, EXPIRY, by_default_name, default_name, owner
from statehold.state.types.compare import table_changes
from statehold.state.types.description import to_text
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.pending_effects import require_effects

#: (old, new): reads the tables of one handler, and writes those of the other
TablesFunction = Callable[[Any, Any], object]
#: what a function may call on a table of the old release
_READING: Final = frozenset(("get", "keys", "items", "values", "range", "first", "last"))
#: tables whose rows mean something else than those of a plain one, whatever their types
_KINDS: Final = (CallTable, DedupeTable, HoppingTable, JoinTable, RepliesTable, SessionTable)
#: rows about the partition that are no work: they go with the last table that needs them
_ENDING: Final = frozenset((CLOCK, CALLS))
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
    #: that of the new release
    handler: Handler[Any]

    def recorded(self, last: CommitRecord, place: Place) -> CommitRecord:
        """Return `last` with the versions and types of the values in this state. `place`: with the new tables.

        :raises StateRefused: the new release could not continue from it: a table's type, or a pending effect.
        """
        known = {name: text for name, text in last.types.items() if name in self.carried}
        fresh = {name: to_text(types) for name, types in place.types.items() if name not in self.carried}
        used = self.state.used
        types = {name: text for name, text in {**fresh, **known}.items() if name in used}
        schemas = {name: version for name, version in last.schemas.items() if name in self.carried}
        kept = msgspec.structs.replace(last, schemas=schemas, types=types)
        recorded_types.check(kept, place.types, place.input)
        require_effects(self.handler, place, last)
        return msgspec.structs.replace(kept, schemas=place.merged_schemas(kept, self.written))


class SplitMerge:
    """One migration of all partitions. Used by one thread."""

    def __init__(
        self, function: TablesFunction, factory: HandlerFactory, names: Names, dropped: Collection[str] = ()
    ) -> None:
        """`factory`: the new release. `dropped`: stored names of tables of the old one whose keys are deleted.

        :raises UsageError: the function does not name the old release, or that has no such table.
        """
        self._function, self.factory, self._names = function, factory, names
        new = class_of(factory)
        self.old = _old_release(function, new)
        self._tables, stored = tables_and_outputs(new)[0], tables_and_outputs(self.old)[0]
        if unknown := sorted(set(dropped) - set(stored)):
            raise UsageError(f"{self.old.__name__} has no table {unknown[0]!r}; there are: {', '.join(sorted(stored))}")
        if ending := [name for name in dropped if default_name(name) in _ENDING]:
            raise UsageError(f"{ending[0]} goes with the last table that needs it. Next: leave out --drop {ending[0]}")
        #: with what statehold stores about their keys
        self._dropped = frozenset(name for name in stored if name in dropped or owner(name) in dropped)
        #: tables whose stored values the new release reads as they are
        same = {name for name, table in stored.items() if name not in dropped and self._reads(name, table, new)}
        self._same = frozenset(name for name in same if owner(name) in same)

    def apply(self, partition: int, stored: State) -> MovedTables:
        """Return the state that the function makes of this one, which has the tables of the old release.

        :raises UsageError: it raised, or left out rows that the new release has not, or sent something.
        """
        before = Engine(self.old, partition, names=self._names)
        after = Engine(self.factory, partition, names=self._names)
        _load(before.state, stored, stored.tables)
        before.state.loaded()
        _load(after.state, stored, self._same, self._ended(before.state))
        after.state.loaded()
        self._require_readable(partition, after.state)
        reading = _hand_over(before)
        frozen = self._called(partition, before, after)
        self._require_time(partition, after.state, frozen)
        after.state.commit(frozen, delta=False)
        self._require_read(partition, stored, reading)
        counts, keys = _counted(stored, after.state), _keys(stored, after.state)
        return MovedTables(after.state, counts, keys, self._same, frozenset(frozen.tables), after.handler)

    def _called(self, partition: int, before: Engine, after: Engine) -> Frozen:
        """Call the function. Return what it has written."""
        old, new = before.handler, after.handler
        for each in (old, new):
            _withhold_references(each)
        bound = dict(vars(new))
        try:
            found = self._function(old, new)
            frozen = after.freeze()
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            raise self._raised(partition, error, f"raised {class_and_text(error)}") from error
        if inspect.isawaitable(found) or inspect.isgenerator(found):
            raise self._wrong(partition, "returned a generator or a coroutine, which did not run")
        for name in {table.attribute for table in after.state.tables.values()}:
            if bound.get(name) is not vars(new).get(name):
                raise self._wrong(partition, f"assigned new.{name}, which loses the table; write its keys")
        timers = any(table.written for name, table in before.state.tables.items() if "." in name)
        if timers or _has_work(before) or _has_work(after):
            raise self._wrong(
                partition,
                "sent an output, put a row, requested a side effect or set a timer of `old`, which a migration drops",
            )
        return frozen

    def _reads(self, name: str, old: PartitionTable[Any, Any], new: type[Handler[Any]]) -> bool:
        """Return whether the new release reads the stored values of a table as a plain upgrade would."""
        found = self._tables.get(name)
        if found is None:
            return False
        retired = isinstance(found, RetiredTable) or isinstance(old, RetiredTable)
        if "." in name:
            return retired or type(found) is type(old)
        if not retired and (_kinds(found) != _kinds(old) or found.version < old.version):
            return False
        was, now = table_types(self.old)[name], table_types(new)[name]
        return all(each.compatible for each in table_changes(was, now))

    def _ended(self, before: State) -> dict[str, PartitionTable[Any, Any]]:
        """Return the carried tables that had a ttl and have none: keys that expired must not come back."""
        found = {name: before.tables[name] for name in self._same if before.tables[name].ttl}
        return {name: table for name, table in found.items() if not self._tables[name].ttl}

    def _require_readable(self, partition: int, state: State) -> None:
        for name in self._same:
            if versions := state.tables[name].unreadable():
                shown = ", ".join(map(str, sorted(versions)))
                raise self._wrong(partition, f"keeps table {name!r}, with values of version {shown} without upcaster")

    def _require_time(self, partition: int, state: State, frozen: Frozen) -> None:
        """Require the partition's time where the function has written keys that expire: without one they would at 0."""
        clock = by_default_name(state.tables).get(CLOCK)
        if clock is None or clock.stored:
            return
        for name in frozen.tables:
            if isinstance(state.tables[name], DedupeTable) or default_name(name).startswith(EXPIRY):
                raise self._wrong(
                    partition,
                    f"wrote to table {owner(name)!r}, whose keys expire, and the old release has no time to count "
                    f"from. Next: "
                    f"first run a release that declares this table next to the old ones and handles a record in each "
                    f"partition",
                )

    def _require_read(self, partition: int, stored: State, reading: Mapping[str, _OldTable]) -> None:
        """Require that the function has read every key of each table that does not stay as it is."""
        needed = {default_name(name) for name in self._tables}
        for name in stored.used:
            user = owner(name)
            if name in self._same or name in self._dropped or default_name(name) in _ENDING.difference(needed):
                continue
            if user in self._same and stored.tables[user].ttl:  # it has no ttl any more
                continue
            if user not in reading:
                raise self._wrong(
                    partition,
                    f"leaves keys in {name!r}, which the new release does not declare: work that waits. Next: keep "
                    f"what needs it in the new release until nothing waits any more, or delete it with --drop {name}",
                )
            if (left := reading[user].unread()) is not None:
                why = "declares with another type" if user in self._tables else "does not declare"
                raise self._wrong(
                    partition,
                    f"did not read table {user!r} ({left} are left), which the new release {why}. To drop them, add "
                    f"--drop {user}, or go through them",
                )

    def _raised(self, partition: int, error: BaseException, what: str) -> UsageError:
        """Return an error that says at which line of the function's file it was."""
        file = getattr(inspect.unwrap(self._function), "__code__", None)
        own = [each for each in traceback.extract_tb(error.__traceback__) if file and each.filename == file.co_filename]
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        return self._wrong(partition, f"{what}{where}")

    def _wrong(self, partition: int, what: str) -> UsageError:
        return UsageError(f"partition {partition}: {_name(self._function)} {what}. Nothing was changed")


class _OldTable:
    """A table of the old release: it can be read, and knows which keys were."""

    def __init__(self, table: PartitionTable[Any, Any]) -> None:
        self._table = table
        self._seen: set[Any] = set()

    def unread(self) -> str | None:
        """Return how many keys were not read; None if all were."""
        left = sum(key not in self._seen for key in self._table)
        return f"{left} keys" if left else None

    def __getattr__(self, name: str) -> Any:
        if name not in _READING:
            return self._own(name)
        found = getattr(self._table, name)

        def read(*args: Any, **options: Any) -> Any:
            given = found(*args, **options)
            if name == "get":
                self._seen.add(args[0] if args else options["key"])
                return given
            if name in ("first", "last"):
                self._seen.update([] if given is None else [given[0]])
                return given
            return self._noted(given) if name != "values" else (value for _, value in self._noted(self._table.items()))

        return read

    def _own(self, name: str) -> Any:
        """Return what the user's class of this table defines; it reads through this object."""
        for kind in type(self._table).__mro__:
            if name in vars(kind) and not kind.__module__.startswith("statehold."):
                return vars(kind)[name].__get__(self, type(self))
        raise self._wrong(name)

    def _noted(self, given: Iterable[Any]) -> Iterator[Any]:
        """Yield pairs of key and value, and note the keys."""
        for each in given:
            self._seen.add(each[0])
            yield each

    def keys(self) -> Iterator[Any]:
        return iter(self)

    def __getitem__(self, key: Any) -> Any:
        self._seen.add(key)
        return self._table[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._wrong("put")

    def __delitem__(self, key: Any) -> None:
        raise self._wrong("delete")

    def __iter__(self) -> Iterator[Any]:
        for key in self._table:
            self._seen.add(key)
            yield key

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def _wrong(self, name: str) -> UsageError:
        return UsageError(f"table {self._table.attribute!r} of the old release can only be read, not {name!r}")


class _NoReference:
    """Stands for reference data, which a migration does not read."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(f"reference data {self._topic!r} is not read in a migration")

    def __getattr__(self, name: str) -> Any:
        self._refuse()

    __getitem__ = __iter__ = __contains__ = __len__ = _refuse


def _withhold_references(handler: Handler[Any]) -> None:
    for name, reference in references(type(handler)).items():
        setattr(handler, name, _NoReference(reference.topic))


def _has_work(engine: Engine) -> bool:
    sinks = engine.sinks is not None and engine.sinks.take() is not None
    return bool(engine.take_outputs() or engine.effects.take() or sinks)


def _kinds(table: PartitionTable[Any, Any]) -> list[type]:
    return [kind for kind in _KINDS if isinstance(table, kind)]


def _name(function: TablesFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _old_release(function: TablesFunction, new: type[Handler[Any]]) -> type[Handler[Any]]:
    """Return the class that the function's first parameter is annotated with; the second one's has to be `new`."""
    name = _name(function)
    called: Any = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(called) or inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(f"{name} is a generator or a coroutine, which would not run. Next: write a plain function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(called)
    except Exception as error:  # an annotation is evaluated, which may raise anything
        raise UsageError(
            f"{name}: its annotations cannot be read: {class_and_text(error)}. Next: import their classes "
            f"where the program can, not under TYPE_CHECKING"
        ) from error
    kinds: list[Any] = []
    if len(parameters) == 2 and all(each.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
        kinds = [hints.get(each.name) for each in parameters]
    if not (kinds and isinstance(kinds[0], type) and issubclass(kinds[0], Handler)):
        raise UsageError(
            f"{name} takes (old, new): annotate `old` with a handler class that declares the tables of the state, and "
            f"`new` with that of the service"
        )
    if isinstance(kinds[1], type) and issubclass(kinds[1], Handler) and not issubclass(new, kinds[1]):
        raise UsageError(f"{name} writes the tables of {kinds[1].__name__}, and the service has {new.__name__}")
    try:
        kinds[0]()
    except Exception as error:  # the user's __init__ may raise anything
        raise UsageError(
            f"{name}: {kinds[0].__name__}() raises {class_and_text(error)}. Next: annotate `old` with a class "
            f"that is made without arguments, such as one that has the tables only"
        ) from error
    return kinds[0]


def _load(
    state: State,
    stored: State,
    names: Iterable[str],
    ended: Mapping[str, PartitionTable[Any, Any]] | None = None,
) -> None:
    """Load these tables; of those in `ended` the keys that it still has."""
    for name in names:
        held, live = stored.tables[name].stored, (ended or {}).get(name)
        keys = list(held) if live is None else list(live)
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
