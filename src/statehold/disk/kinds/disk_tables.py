"""What a process needs for its tables on disk; the wiring makes it only for a handler that has some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statehold.api.handler import Handler
from statehold.bound.attributes import tables_and_outputs
from statehold.config.settings import Settings
from statehold.disk.dated import SORTING, index_names
from statehold.disk.disk_state import DiskState, WriteBehind
from statehold.disk.kinds.placed import fresh_tables, placed_on_disk
from statehold.disk.port import PartitionStore, Stores
from statehold.disk.tables import DecodedBudget, DiskTable
from statehold.snapshot.format.partition_identity import Place
from statehold.state.state import State


def disk_tables(
    kind: type[Handler[Any]], settings: Settings, stores: Callable[[], Stores], behind: WriteBehind | None = None
) -> DiskTables | None:
    """Return what a handler with tables on disk needs; None without such a table.

    `behind`: without it the files are written at each delta.
    """
    on_disk = placed_on_disk(kind, settings.state.storage)
    if not on_disk:
        return None
    return DiskTables(
        kind,
        on_disk,
        stores(),
        DecodedBudget(settings.state.memory),
        traced=settings.service.mode == "development",
        track_delta=settings.snapshot.delta_interval != "off",
        behind=behind,
    )


@dataclass(frozen=True, slots=True)
class DiskTables:
    """Opens the files of partitions, and makes the states over them. Any thread."""

    kind: type[Handler[Any]]
    #: stored names of the tables on disk
    on_disk: frozenset[str]
    stores: Stores
    budget: DecodedBudget
    traced: bool
    track_delta: bool
    behind: WriteBehind | None = None

    def open(self, place: Place) -> PartitionStore:
        """:raises LocalStoreFailed:"""
        tables = tables_and_outputs(self.kind)[0]
        indexes = index_names(tables.values(), self.on_disk)
        return self.stores.open(place, (*tables, *indexes, *([SORTING] if indexes else [])))

    def state(self, store: PartitionStore) -> DiskState:
        """Return a state over what the files hold."""
        state = self._state(store)
        state.share(self.behind)
        return state

    def _state(self, store: PartitionStore) -> DiskState:
        tables = fresh_tables(self.kind, self.on_disk, store, self.budget, traced=self.traced)
        return DiskState(tables, store, track_delta=self.track_delta)

    def replica(self, store: PartitionStore) -> DiskState:
        """Return as `state`, for a standby replica. It has no share of the budget, because its tables decode nothing,
        nor of what may wait, because it writes when it holds much itself."""
        state = self._state(store)
        for table in state.tables.values():
            if isinstance(table, DiskTable):
                self.budget.leave(table)
        return state

    def empty_replica(self, store: PartitionStore) -> DiskState:
        """Return an empty replica over cleared files."""
        store.clear()
        return self.replica(store)

    def own(self, state: State) -> None:
        """Give a replica and its tables their shares, because this process owns the partition now."""
        if isinstance(state, DiskState):
            state.share(self.behind)
        for table in state.tables.values():
            if isinstance(table, DiskTable):
                self.budget.join(table)

    def empty_state(self, store: PartitionStore) -> DiskState:
        """Return an empty state over cleared files."""
        store.clear()
        return self.state(store)
