"""Compares a rebuilt state with the state of the service, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import GenericAlias
from typing import Any

import msgspec

from statehold.rebuild.report import RebuiltState
from statehold.rehearsal.fields import IgnoredFields
from statehold.rehearsal.report import DifferenceExample
from statehold.rehearsal.table_comparison import KeyDifference, TableComparison
from statehold.snapshot.inspect import typed
from statehold.snapshot.inspect.contents import Contents
from statehold.state.kinds.calls import CallTable
from statehold.state.state import State


def compare(live: Contents, state: State, report: RebuiltState, examples: int) -> None:
    """Add to the report the keys of all tables that differ. `live` is empty afterwards."""
    reading = TableComparison(state, IgnoredFields())
    for name in sorted({*live.tables, *state.tables}):
        held = live.tables.pop(name, {})
        new: Mapping[Any, bytes] = state.tables[name].stored if name in state.tables else {}
        if not held and not new:
            continue
        found, shown = report.of("table", name), 0
        for key, difference in _differences(reading, name, _typed(held, state, name, report), new):
            found.compared += 1
            if difference is None:
                continue
            found.add(difference.how, difference.fields)
            if shown < examples:
                shown += 1
                sides = difference.live, difference.new
                report.examples.append(
                    DifferenceExample("table", name, difference.how, "", typed.key(key), difference.fields, *sides)
                )


def unanswered(live: Mapping[str, Mapping[Any, bytes]], state: State) -> list[str]:
    """Describe the calls that are pending in the rebuilt state alone: the service would make them again."""
    found = []
    for name, table in state.tables.items():
        if isinstance(table, CallTable) and (ids := table.stored.keys() - live.get(name, {}).keys()):
            found.append(
                f"the new code leaves {len(ids)} call(s) of {name!r} without an answer, which it would make again"
            )
    return found


def _differences(
    reading: TableComparison, name: str, held: Mapping[Any, bytes], new: Mapping[Any, bytes]
) -> Iterator[tuple[Any, KeyDifference | None]]:
    for key, stored in held.items():
        if (again := new.get(key)) == stored:
            yield key, None
        elif again is None:
            yield key, KeyDifference("missing", [], reading.shown(name, stored), None)
        else:
            yield key, reading.difference((name, key), stored, again)
    for key, stored in new.items():
        if key not in held:
            yield key, KeyDifference("added", [], None, reading.shown(name, stored))


def _typed(held: dict[Any, bytes], state: State, name: str, report: RebuiltState) -> Mapping[Any, bytes]:
    """Return the table with keys as the new code has them."""
    if not held or name not in state.tables or all(type(key) is state.tables[name].key_type for key in held):
        return held
    kind = state.tables[name].key_type
    try:
        keys = msgspec.convert(list(held), GenericAlias(list, (kind,)))
        return dict(zip(keys, held.values(), strict=True))
    except (msgspec.ValidationError, TypeError) as error:
        report.notes.append(f"table {name!r}: the new code reads no key of the service's state: {error}")
        return held
