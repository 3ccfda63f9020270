"""Edits a state in a migration: by a user's function for each table, or by a patch of some keys."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import msgspec

from statehold.api.values import serde, versioned_values
from statehold.errors import UsageError, class_and_text
from statehold.state.partition_table import Changes, PartitionTable
from statehold.state.state import State
from statehold.state.system_names import owner
from statehold.state.types.describe import table_type
from statehold.state.types.description import TableType

#: (key, old value) -> new value, or None to delete the key
Edit = Callable[[Any, Any], Any]


def drop(key: Any, old: Any) -> None:
    """Delete every key of a table, whatever the type of its values is."""


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a patch file, JSON. `value` null deletes the key; `partition` is only needed for a new key."""

    table: str
    key: Any
    value: Any
    partition: int = -1


class Counts(msgspec.Struct):
    """Counts the changes of an edit in one partition."""

    before: int = 0
    after: int = 0
    changed: int = 0
    added: int = 0
    deleted: int = 0

    def join(self, other: Counts) -> None:
        self.before, self.after = self.before + other.before, self.after + other.after
        self.changed, self.added = self.changed + other.changed, self.added + other.added
        self.deleted += other.deleted


def read_patches(lines: Iterable[str], name: str) -> list[Patch]:
    """Parse a patch file. :raises UsageError: a line is not a patch; the error names it."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Patch))
        except msgspec.DecodeError as error:
            raise UsageError(
                f'{name}:{number}: {error}; write one a line, {{"table": "positions", "key": "ann", "value": null}}'
            ) from error
    return found


class Edits:
    """The functions and patches of one migration, checked against the tables of the service."""

    def __init__(
        self, functions: Mapping[str, Edit], patches: Iterable[Patch], tables: Mapping[str, PartitionTable[Any, Any]]
    ):
        """Check the edits. :raises UsageError: a table is not declared, or a key or value has another type."""
        patches = list(patches)
        unknown = sorted({*functions, *(patch.table for patch in patches)} - set(tables))
        if unknown:
            raise UsageError(f"no table {unknown[0]!r}; there are: {', '.join(sorted(tables)) or 'none'}")
        dropped = {name for name, function in functions.items() if function is drop}
        functions = {**functions, **dict.fromkeys((name for name in tables if owner(name) in dropped), drop)}
        self._functions, self._tables = functions, tables
        self._read = {name: _read_by(function, tables[name]) for name, function in functions.items()}
        self._decoders = {name: _decoder(kind, tables[name]) for name, kind in self._read.items()}
        self._patches = {
            (patch.table, _converted(patch.key, tables[patch.table].key_type, patch)): patch for patch in patches
        }
        self._values = {at: self._encoded(patch) for at, patch in self._patches.items()}
        self._used: set[tuple[str, Any]] = set()
        #: the tables whose values are written again, in the table's current version
        self.tables = frozenset(functions) | {patch.table for patch in patches}

    def apply(self, partition: int, old: State, new: State) -> Counts:
        """Fill the empty state `new` with the edited content of `old`.

        :raises UsageError: the function raised, or the table cannot hold its result; the error names table and key.
        """
        counts = Counts(before=old.keys)
        for name, table in old.tables.items():
            values: dict[Any, bytes] = {}
            for key, data in table.stored.items():
                after = self.edited(name, key, data, counts)
                if after is not None:
                    values[key] = after
            for key, data in self.born(name, partition, table.stored):
                values[key] = data
                counts.added += 1
            new.load(Changes(name, list(values), list(values.values())))
        new.loaded()
        counts.after = new.keys
        return counts

    def read_types(self, declared: Mapping[str, TableType]) -> dict[str, TableType]:
        """Return the types with which the functions, and elsewhere the code, read the old values."""
        found = {name: types for name, types in declared.items() if self._functions.get(name) is not drop}
        for name, kind in self._read.items():
            table = self._tables[name]
            if kind is not None and name in found:
                one = table_type(name, table.key_type, serde.for_state(kind)).values[1]
                found[name] = TableType(found[name].key, dict.fromkeys(range(1, table.version + 1), one))
        return found

    def kept_types(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """Return the recorded types without those of tables whose values the functions all write again."""
        return {name: text for name, text in recorded.items() if name not in self._functions}

    def unused(self) -> list[Patch]:
        """Return the patches whose key is in no partition and that name no partition."""
        return [patch for at, patch in self._patches.items() if at not in self._used]

    def require_used(self) -> None:
        """Require a key for every patch. :raises UsageError: a patch has none."""
        unused = self.unused()
        if unused:
            keys = ", ".join(f"{patch.table}[{patch.key!r}]" for patch in unused[:5])
            raise UsageError(
                f"{len(unused)} patched key(s) are in no partition: {keys}. A new key needs its partition in the "
                f"patch; nothing was changed"
            )

    def edited(self, name: str, key: Any, data: bytes, counts: Counts) -> bytes | None:
        """Return the value after the edit; None if it deletes the key."""
        after = self._edited(name, key, data)
        counts.changed += after is not None and after != data
        counts.deleted += after is None
        return after

    def _edited(self, name: str, key: Any, data: bytes) -> bytes | None:
        if (name, key) in self._patches:
            self._used.add((name, key))
            return self._values[name, key]
        function = self._functions.get(name)
        if function is None:
            return data
        if function is drop:
            return None
        try:
            result = function(key, self._decoders[name](data))
            return None if result is None else self._tables[name].encode(result)
        except Exception as error:  # the user's function may raise anything
            raise UsageError(
                f"table {name!r}, key {key!r}: {function.__name__} raised {class_and_text(error)}. Nothing was changed"
            ) from error

    def patched(self, name: str) -> list[Any]:
        """Return the keys of a table that have a patch."""
        return [key for table, key in self._patches if table == name]

    def found(self, name: str, key: Any) -> None:
        """Note that a partition has this patched key."""
        self._used.add((name, key))

    def born(self, name: str, partition: int, stored: Container[Any]) -> Iterable[tuple[Any, bytes]]:
        """Yield the new keys that patches add to this partition, which has the keys of `stored`."""
        for at, patch in self._patches.items():
            data = self._values[at]
            if at[0] == name and patch.partition == partition and at[1] not in stored:
                self._used.add(at)
                if data is not None:
                    yield at[1], data

    def _encoded(self, patch: Patch) -> bytes | None:
        if patch.value is None:
            return None
        table = self._tables[patch.table]
        kind = table.value_type
        value = _converted(patch.value, kind, patch) if not isinstance(kind, serde.Serde) else patch.value
        data = table.encode(value)
        table.decode(data)
        return data


def _read_by(function: Edit, table: PartitionTable[Any, Any]) -> Any:
    """Return the annotation of the second parameter, the type that the old code stored; None: the table's own."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) < 2:
        raise UsageError(f"{function.__name__} takes (key, old): the key, and the value that is stored now")
    kind = typing.get_type_hints(function).get(parameters[1])
    return None if kind in (None, Any, table.value_type) else kind


def _decoder(kind: Any, table: PartitionTable[Any, Any]) -> Callable[[bytes], Any]:
    if kind is None:
        return table.decode
    decode = serde.for_state(kind).decode
    return lambda data: decode(data[2:] if data[:1] == versioned_values.MARKER else data)


def _converted(value: Any, kind: Any, patch: Patch) -> Any:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"patch of table {patch.table!r}, key {patch.key!r}: {error}") from error
