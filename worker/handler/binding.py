"""Bind a handler's declarations to one partition: tables, outputs, sinks and reference data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from statehold.declared.attributes import declared, sinks_of
from statehold.handler import Handler
from statehold.output import Output, Sent
from statehold.reference import Reference, SharedRows, references
from statehold.sink import Sinks
from statehold.snapshot.state import State
from statehold.table import Table
from statehold.tables.binding import bind as bind_table


class Bound(NamedTuple):
    """What the handler's attributes are for this partition."""

    state: State
    outputs: tuple[Output[Any], ...]
    #: rows for a database
    sinks: Sinks
    #: reference data, by attribute name
    references: dict[str, Reference[Any, Any]]


def bind(
    handler: Handler[Any],
    sent: list[Sent],
    state: State,
    output_partitions: Callable[[str], int],
    shared: Mapping[str, SharedRows],
    *,
    checked: bool = False,
) -> Bound:
    """Set the handler's attributes to instances for one partition; outputs append to `sent`. See `Output.bind`."""
    kind = type(handler)
    outputs = {
        name: output.bind(sent, output_partitions(output.topic) if output.partitioner else 0, checked=checked)
        for name, output in declared(kind)[1].items()
    }
    sinks = {name: sink.bind() for name, sink in sinks_of(kind).items()}
    rows = {
        name: reference.bind(shared.get(reference.topic) or SharedRows(0))
        for name, reference in references(kind).items()
    }
    for attribute, value in (*state.tables.items(), *outputs.items(), *sinks.items(), *rows.items()):
        setattr(handler, attribute, value)
    return Bound(state, tuple(outputs.values()), Sinks(sinks.values()), rows)


def bound_state(tables: dict[str, Table[Any, Any]], *, traced: bool, track_delta: bool) -> State:
    """Return an empty state of these declarations, for one partition."""
    return State([bind_table(table, traced=traced) for table in tables.values()], track_delta=track_delta)
