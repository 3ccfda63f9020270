"""A rebuild over the topics in memory of a `Driver`, and the replacement of its state."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
from tests.support.shadowing import GrowingTopics

from statehold.admin.state.stopped_service import inputs_at
from statehold.api.handler import Handler
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.rebuild.report import RebuildReport, RebuiltState
from statehold.rehearsal.source import with_tables
from statehold.snapshot import state_replacement
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink, MemoryTransactions

REASON = ReplacementReason(tool="rebuild 1", who="ann", why="ticket 7")


class RebuiltTopics(GrowingTopics):
    def __init__(self, driver: Driver, partitions: int = 1) -> None:
        super().__init__(driver)
        self.partitions = partitions


def shown(driver: Driver, code: type[Handler[Any]], since: str = "beginning", partitions: int = 1) -> RebuildReport:
    """Rebuild in a dry run, from what the driver has committed."""
    driver.commit()
    source = RebuiltTopics(driver, partitions)
    with closing(Rebuild(source, code, RebuildOptions(since), driver.settings)) as work:
        return work.shown()


def rebuilt(driver: Driver, code: type[Handler[Any]], since: str = "beginning") -> RebuiltState:
    return shown(driver, code, since).partitions[0]


def replaced(
    driver: Driver, code: type[Handler[Any]], since: str = "beginning", skipped: int = 0, former: str = ""
) -> CommitRecord:
    """Do what `statehold rebuild --yes` does to a stopped service; the driver continues with `driver.upgrade`.

    `skipped`: move the position by this number of records, as a repair does. `former`: the changelog is new, as after
    a move of the state from this input.
    """
    driver.crash()
    names, broker = driver.names, driver.broker
    producer = MemoryTransactions(broker, names, 0)
    producer.fence(lambda: False)
    source = RebuiltTopics(driver)
    with closing(Rebuild(source, code, RebuildOptions(since))) as work, work.turn(0, ends=True) as made:
        last = require_commit_record(source.reader(), names.changelog, 0, "rebuild the state")
        work.finish(made, last, work.present(made))
        assert made.report.obstacles == []
        place = with_tables(made.place, code)
        inputs = {topic: at + skipped for topic, at in inputs_at(last, names).items()}
        state, like = made.state, made.recorded(last, place)
        shown = state_replacement.boundary(place, "rebuilt", last.n + 1, inputs, state, like, 0.0)
        end = source.reader().bounds(names.changelog, 0)[1]
        if former:
            broker.log(names.changelog, 0).truncate(end)
        sink = MemoryFullSink(broker, names.snapshot, 0)
        base = FullWriter(place, state, shown, end, -1, sink, 4096).advance(shown.n, -1, driver.clock)
        adoption = Adoption(
            place=place,
            old=None if former else last,
            source=msgspec.structs.replace(last, positions={former: last.position(names.input)}) if former else None,
            begin=last.n + 1,
            lineage="rebuilt",
            base=base,
            digest=state.digest,
            keys=state.keys,
            inputs=inputs,
            schemas=like.schemas,
            types=recorded_types.of_state(like, place.types, state.used, place.input),
            effects=last.effects,
        )
    return state_replacement.commit(producer, broker.generation, [adoption], REASON, 0.0)[0]
