"""What a state query may see of a table: what has committed, neither what was written nor what is committing."""

from __future__ import annotations

from statehold import Table
from statehold.bound.table import bind
from statehold.ops.http.key_lookup import _stored
from statehold.ops.http.state import _matching, _several
from statehold.state.partition_table import PartitionTable


def seen(table: PartitionTable[str, int], key: str) -> tuple[list[str], list[int | None]]:
    """The keys that a list shows, and the value by both ways of asking."""
    tables = {"totals": table}
    found = [_stored("totals", key, tables), *_several("totals", [key], tables)]
    return list(_matching(table, None)), [None if data is None else table.decode(data) for data in found]


def test_only_what_has_committed_is_seen() -> None:
    table = bind(Table(key=str, value=int))
    table.name = "totals"
    table["ann"] = 1
    assert seen(table, "ann") == ([], [None, None])
    table.freeze()
    assert seen(table, "ann") == ([], [None, None])  # its commit is under way
    table.commit()
    assert seen(table, "ann") == (["ann"], [1, 1])
    table["ann"] = 2
    del table["ann"]
    assert seen(table, "ann") == (["ann"], [1, 1])
    table["ann"] = 3
    table.freeze()
    assert seen(table, "ann") == (["ann"], [1, 1])
    table.commit()
    assert seen(table, "ann") == (["ann"], [3, 3])
