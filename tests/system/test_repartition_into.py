"""`state repartition --into` on a real broker: 3 partitions go on as 2 of another topic, from a stated barrier."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support import verify
from tests.support.apps.tally import Total, tally
from tests.support.local_service import Local
from tests.support.stage import Stage, StageFactory
from tests.support.verify import digest_of, read_all
from tests.system.test_repartition import REASON, totals

from statehold.admin.state.move_input import Barrier, move
from statehold.admin.state.redistribute import Repartitioned
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.errors import StateMoved, ToolRefused, UsageError
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord, StateReplacement

pytestmark = pytest.mark.kafka


def run(stage: Stage, into: str, barrier: Barrier, to: int = 2, **more: Any) -> Repartitioned:
    handler = tally(stage.output)
    more = dict[str, Any](quiet=0.2, spool_dir=stage.directory) | more
    return move(stage.settings(), stage.names, handler, into, to, barrier, murmur2, {}, REASON, **more)


def neighbour(stages: StageFactory, stage: Stage, partitions: int) -> Stage:
    """The same service and output on an input of its own."""
    other = stages(partitions)
    other.names, other.output = Names(stage.names.service, other.names.input), stage.output
    other.group = verify.Group(stage.servers, other.names.group)
    other.snapshots = verify.Snapshots(stage.servers, other.names)
    other.create_by_hand(other.names.input)
    return other


def both(stage: Stage, other: Stage) -> dict[str, Total]:
    found = totals(stage)
    for key, total in totals(other).items():
        before = found.get(key, Total())
        found[key] = Total(before.count + total.count, before.sum + total.sum)
    return found


def test_the_service_continues_in_another_topic_from_the_barrier(stages: StageFactory) -> None:
    stage = stages(3).create_topics()
    stage.feed(1500, keys=200)
    with Local(stage):
        stage.await_all()
    other = neighbour(stages, stage, 2)
    into, barrier = other.names.input, stage.group.positions(stage.names.input)

    stage.feed(300, keys=200)
    with pytest.raises(
        ToolRefused, match=r"partition 0 is at \d+, its barrier at \d+: \d+ records are not processed yet"
    ):
        run(stage, into, None)
    with pytest.raises(ToolRefused, match=r"partition 0: \d+ records from offset \d+ follow its barrier"):
        run(stage, into, barrier)
    with Local(stage):
        stage.await_all()
    with pytest.raises(
        ToolRefused, match=r"partition 0 is at \d+, behind its barrier \d+: .* records after the barrier"
    ):
        run(stage, into, barrier)
    with pytest.raises(UsageError, match="name each of the partitions 0 to 2"):
        run(stage, into, {0: 1})
    with pytest.raises(ToolRefused, match="has 2 partitions, not 4"):
        run(stage, into, None, 4)
    other.feed(400, keys=200)  # the producers have gone over already

    wanted = totals(stage)
    shown = run(stage, into, None, dry_run=True)
    assert (shown.before, shown.after, shown.keys, shown.lineage) == (3, 2, len(wanted), "")
    done = run(stage, into, stage.group.positions(stage.names.input))
    assert (done.into, done.keys, done.digest) == (into, shown.keys, digest_of(wanted))
    assert not list(stage.directory.glob("statehold-*"))
    for partition, rows in read_all(stage.servers, other.names.changelog).items():
        (replacement,) = [r for r in (records.unpack(row.value) for row in rows) if isinstance(r, StateReplacement)]
        assert (replacement.lineage, replacement.old_partitions, replacement.partitions) == (done.lineage, 3, 2)
        assert replacement.positions == {into: 0}
        held = dict(other.snapshots.restored(partition).state.tables["totals"].items())
        assert held == {key: total for key, total in wanted.items() if murmur2(key.encode(), 2) == partition}

    with pytest.raises(StateMoved, match=f"has already moved to {re.escape(into)}"):
        run(stage, into, None)
    with Local(stage) as local:
        assert into in local.await_failed(0, StateMoved)
    last = [records.unpack(rows[-1].value) for rows in read_all(stage.servers, stage.names.changelog).values()]
    assert all(isinstance(commit_record, CommitRecord) and commit_record.moved == into for commit_record in last)

    other.feed(200, keys=200)
    with Local(other) as local:
        local.await_live(0, 1)
        other.await_all()
        assert not local.events("full_unusable", "offset_behind")
    found = [dict(other.snapshots.restored(p).state.tables["totals"].items()) for p in range(2)]
    assert {key: total for each in found for key, total in each.items()} == both(stage, other)
    lines = [row for rows in read_all(stage.servers, stage.output).values() for row in rows]
    assert len(lines) == stage.fed + other.fed
    verify.require_unique_origins(stage.servers, stage.output)


@pytest.mark.long
def test_missing_topics_are_created_and_another_service_s_state_is_not_overwritten(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    stage.feed(100, keys=20)
    with Local(stage):
        stage.await_all()
    taken = neighbour(stages, stage, 2).create_topics()
    with pytest.raises(ToolRefused, match="already holds a commit record, perhaps of"):
        run(stage, taken.names.input, None)
    into = f"{stage.names.input}-wide"
    done = run(stage, into, None, 5)
    assert (done.after, len(done.partitions), [each.position for each in done.partitions]) == (5, 5, [0] * 5)
    snapshots = verify.Snapshots(stage.servers, Names(stage.names.service, into))
    held = [dict(snapshots.restored(p).state.tables["totals"].items()) for p in range(5)]
    assert {key: total for each in held for key, total in each.items()} == totals(stage)
