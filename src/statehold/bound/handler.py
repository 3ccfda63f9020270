"""Bind what a handler declares to one partition: outputs, sinks and reference data, next to the tables of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from statehold.api.handler import Handler
from statehold.bound.attributes import bound_tables, sinks_of, tables_and_outputs
from statehold.bound.output import PartitionOutput
from statehold.bound.reference import ReferenceView, SharedRows, references
from statehold.bound.sink import PartitionSink, Sinks
from statehold.messages.sent import Sent
from statehold.state.partition_table import PartitionTable, RetiredTable
from statehold.state.state import State


def new_state(kind: type[Handler[Any]], *, traced: bool, track_delta: bool) -> State:
    """Return an empty state of the tables that a handler class declares, for one partition."""
    return State(map(PartitionTable.fresh, bound_tables(kind, traced)), track_delta=track_delta)


def bind(
    handler: Handler[Any],
    state: State,
    sent: list[Sent],
    output_partitions: Callable[[str], int],
    shared: Mapping[str, SharedRows],
    *,
    checked: bool,
) -> tuple[tuple[PartitionOutput[Any], ...], Sinks | None, dict[str, ReferenceView[Any, Any]]]:
    """Set the handler's attributes to instances for one partition; outputs append to `sent`. See their `bind`.

    Return the outputs, the rows for a database (None: the handler has no sinks), and the reference data by attribute.
    """
    kind = type(handler)
    outputs: dict[str, PartitionOutput[Any]] = {}
    for name, output in tables_and_outputs(kind)[1].items():
        partitions = output_partitions(output.topic) if output.partitioner else 0
        outputs[name] = output.bind(sent, partitions, checked=checked)
    sinks: dict[str, PartitionSink[Any]] = {}
    for name, sink in sinks_of(kind).items():
        sinks[name] = sink.bind()
    rows: dict[str, ReferenceView[Any, Any]] = {}
    for name, reference in references(kind).items():
        rows[name] = reference.bind(shared.get(reference.topic) or SharedRows(0))
    for table in state.tables.values():
        if not isinstance(table, RetiredTable):
            setattr(handler, table.attribute, table)
    for attribute, value in (*outputs.items(), *sinks.items(), *rows.items()):
        setattr(handler, attribute, value)
    return tuple(outputs.values()), Sinks(sinks.values()) if sinks else None, rows
