"""What a command's answer says of the full that it has led to."""

from __future__ import annotations

from tests.support.snapshot_records import NAMES, LogReader

from statehold.admin.commands import CommandResult, add_full
from statehold.snapshot.format import records
from statehold.snapshot.format.records import FullRef, Manifest
from statehold.testing.memory.log import MemoryLog


def test_a_full_snapshot_that_was_truncated_since_is_named_all_the_same() -> None:
    log, ref = MemoryLog(NAMES.snapshot, 0), FullRef(0, 0, 7, 7, 3)
    manifest = Manifest(
        full="f",
        service="service",
        partition=0,
        partitions=1,
        lineage="l",
        first=7,
        through=7,
        positions={},
        increment=3,
        low=0,
        keys=5,
        size=90,
    )
    log.append(records.pack(manifest))
    there, gone = CommandResult(partition=0, id="a", offset=1), CommandResult(partition=0, id="b", offset=2)
    add_full(LogReader(log), NAMES.snapshot, ref, there)
    log.append(b"a newer one")
    log.truncate(1)
    add_full(LogReader(log), NAMES.snapshot, ref, gone)
    assert (there.full, there.first, there.keys, there.bytes) == (0, 7, 5, 90)
    assert (gone.full, gone.first, gone.keys, gone.bytes) == (0, 7, None, None)
