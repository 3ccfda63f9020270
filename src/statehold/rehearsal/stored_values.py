"""Loads a stored state into the new code's tables, and decodes every key and value as that code reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import GenericAlias
from typing import Any, Final

import msgspec

from statehold.api.values import versioned_values
from statehold.common.decoding import UNREADABLE
from statehold.errors import text_of
from statehold.rehearsal.fields import WHOLE, IgnoredFields, changed
from statehold.rehearsal.report import DifferenceExample, RehearsedPartition
from statehold.snapshot.inspect import typed
from statehold.snapshot.inspect.contents import Contents
from statehold.state.partition_table import Changes, PartitionTable
from statehold.state.state import State

#: most keys of a table that an unreadable value is shown of
_SHOWN: Final = 3


def load(contents: Contents, state: State, report: RehearsedPartition) -> None:
    """Move the stored state into the tables; `contents` is empty afterwards, so that memory holds one copy.

    `report.unreadable` gets tables that the code does not declare, and keys of another type; these are not loaded.
    """
    unknown = [name for name, held in contents.tables.items() if held and name not in state.tables]
    if unknown:
        declared = ", ".join(sorted(state.tables)) or "no table"
        report.unreadable += [_undeclared(name, len(contents.tables[name]), declared) for name in unknown]
    for name in list(contents.tables):
        held = contents.tables.pop(name)
        if name not in state.tables or not held:
            continue
        table = state.tables[name]
        if type(table).load is PartitionTable.load and all(type(key) is table.key_type for key in held):
            table.stored = held  # no copy: it would take half of the state's memory again
            continue
        try:
            keys = msgspec.convert(list(held), GenericAlias(list, (state.tables[name].key_type,)))
        except (msgspec.ValidationError, TypeError) as error:
            kind = getattr(state.tables[name].key_type, "__name__", repr(state.tables[name].key_type))
            report.unreadable.append(
                f"table {name!r}: its {len(held)} keys cannot be read as {kind:.100}: {text_of(error)}"
            )
            continue
        state.load(Changes(name, keys, list(held.values())))
    state.loaded()


def _undeclared(name: str, keys: int, declared: str) -> str:
    way = f"name it in was=... of the table that has another name now, or declare {name} = Retired(key=...)"
    if "." in name:
        way = f"keep what needs it, or delete its keys with `statehold state migrate --drop {name}`"
    return f"table {name!r}: the state has {keys} keys of it, and this code declares {declared}. Next: {way}"


def examine(
    tables: Mapping[str, PartitionTable[Any, Any]],
    ignored: IgnoredFields,
    report: RehearsedPartition,
    examples: int,
) -> None:
    """Decode every value, and report those that the code cannot read or reads as something else than is stored."""
    for name, table in tables.items():
        failed: Counter[str] = Counter()
        for key, stored in table.stored.items():
            report.keys += 1
            try:
                value = table.decode(stored)
            except Exception as error:  # noqa: BLE001  a decoder or an upcaster may raise anything
                _unreadable(table, key, stored, error, failed, report)
                continue
            if versioned_values.version_of(stored) != table.version and table.version > 1:
                continue  # an upcaster has converted it on purpose
            try:
                again = table.encode(value)
            except Exception as error:  # noqa: BLE001  an encoder may raise anything
                _unreadable(table, key, stored, error, failed, report)
                continue
            if again != stored:
                _compare(name, key, stored, again, ignored, report, examples)
        if failed:
            report.unreadable.append(f"table {name!r}: {failed.total()} of {len(table.stored)} values cannot be read")


def _unreadable(
    table: PartitionTable[Any, Any],
    key: Any,
    stored: bytes,
    error: Exception,
    failed: Counter[str],
    report: RehearsedPartition,
) -> None:
    failed[table.name] += 1
    if failed[table.name] <= _SHOWN:
        version = versioned_values.version_of(stored) if table.version > 1 else 1
        report.unreadable.append(
            f"table {table.name!r}, key {typed.key(key)!r}: the stored value {_plain(stored)!r:.200} has version "
            f"{version}, and this code, which declares version {table.version}, cannot read it: {text_of(error)}"
        )


def _compare(
    name: str,
    key: Any,
    stored: bytes,
    again: bytes,
    ignored: IgnoredFields,
    report: RehearsedPartition,
    examples: int,
) -> None:
    """Count a value that would be stored in other bytes, unless it only gets the defaults of new fields."""
    before, after = _plain(stored), _plain(again)
    said = [*_said(before, after)]
    if not any(how != "filled" for _, how in said):
        return  # new fields with defaults, or other bytes of the same content
    fields = ignored.left(name, list(dict.fromkeys(field for field, how in said if how != "filled")))
    found = report.of("stored values", name)
    found.compared += 1
    if not fields:
        return
    found.changed += 1
    for field, how in said:
        if how == "filled" or field in fields:
            text = {"filled": f"{field} filled by its default", "dropped": f"{field} dropped"}.get(how, field)
            found.fields[text] = found.fields.get(text, 0) + 1
    if found.changed <= examples:
        report.examples.append(
            DifferenceExample("stored values", name, "changed", "", typed.key(key), fields, before, after)
        )


def _said(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """Yield each field that differs: dropped, filled or changed."""
    for field in changed(before, after, unordered=True):
        had, has = _at(before, field), _at(after, field)
        yield field, "changed" if had and has else "dropped" if had else "filled"


def _at(value: Any, path: str) -> bool:
    """Return whether the value has the field, in the first element of each list of the path."""
    open_values = [value]
    for name in _steps(path):
        found: list[Any] = []
        for each in open_values:
            if name == "[]" and isinstance(each, list):
                found += each
            elif isinstance(each, dict) and name in each:
                found.append(each[name])
        open_values = found
    return bool(open_values)


def _steps(path: str) -> Sequence[str]:
    return [step for step in path.replace("[]", ".[]").split(".") if step] if path != WHOLE else []


def _plain(stored: bytes) -> Any:
    """Return the stored form without the code's types; text or base64 for bytes of a serde of the user's own."""
    body = stored[2:] if versioned_values.version_of(stored) > 1 else stored
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            return typed.builtins(decode(body))
        except (TypeError, *UNREADABLE):
            continue
    return typed.text(stored)
