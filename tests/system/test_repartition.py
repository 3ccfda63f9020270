"""`state repartition` on a real broker: 4 partitions become 6, the service continues; rejected while it has writers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.support.apps.tally import Event, Total, tally
from tests.support.local_service import Local
from tests.support.processes import ROOT, await_true
from tests.support.stage import Stage, StageFactory
from tests.support.verify import digest_of, read_all
from tests.system.test_dead_letter_requests import TARGET, statehold

from statehold.admin.state.key_layout import KeyOf
from statehold.admin.state.repartition import Repartitioned, repartition
from statehold.common.partitioner import Partitioner, crc32, murmur2
from statehold.errors import PartitionCountChanged, ToolRefused, TopicMismatch
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.snapshot.format import records
from statehold.snapshot.format.records import StateReplacement
from statehold.snapshot.state_replacement import ReplacementReason

pytestmark = pytest.mark.kafka

#: session timeout in seconds: longer than the commands take that run before the session of a killed one has ended
SESSION = "20"
REASON = ReplacementReason(tool="test", who="ann", why="more load")


def run(
    stage: Stage,
    to: int = 6,
    partitioner: Partitioner = murmur2,
    keys: Mapping[str, KeyOf] | None = None,
    **more: Any,
) -> Repartitioned:
    handler = tally(stage.output)
    more = {"quiet": 0.2} | more
    return repartition(stage.settings(), stage.names, handler, to, partitioner, keys or {}, REASON, **more)


def totals(stage: Stage) -> dict[str, Total]:
    """What the input says, whichever partitions it lies in: each key's records are in order."""
    found: dict[str, Total] = {}
    for rows in read_all(stage.servers, stage.names.input).values():
        for row in rows:
            before, event = found.get(row.key, Total()), msgspec.json.decode(row.value, type=Event)
            found[row.key] = Total(before.count + 1, before.sum + event.amount)
    return found


def states(stage: Stage) -> list[dict[str, Total]]:
    return [dict(stage.snapshots.restored(p).state.tables["totals"].items()) for p in range(stage.partitions)]


def test_four_partitions_become_six_and_the_service_continues(stages: StageFactory) -> None:
    stage = stages(4).create_topics()
    stage.feed(4000, keys=300)
    with Local(stage) as local:
        stage.await_all()
        with pytest.raises(ToolRefused, match="Stop the service first"):
            run(stage)
        assert not any(local.failures(p) for p in range(4))
    wanted = totals(stage)

    shown = run(stage, dry_run=True)
    assert (shown.before, shown.after, shown.keys, shown.lineage) == (4, 6, 300, "")
    done = run(stage)
    stage.partitions = 6
    assert (done.keys, done.moved, done.digest) == (300, shown.moved, digest_of(wanted))
    held = states(stage)
    assert held == [{k: t for k, t in wanted.items() if murmur2(k.encode(), 6) == p} for p in range(6)]
    assert all(held), "a partition without a key proves nothing"
    for partition, rows in read_all(stage.servers, stage.names.changelog).items():
        (replacement,) = [r for r in (records.unpack(row.value) for row in rows) if isinstance(r, StateReplacement)]
        assert (replacement.lineage, replacement.old_partitions, replacement.partitions) == (done.lineage, 4, 6)
        assert (replacement.who, replacement.why, replacement.keys) == ("ann", "more load", len(held[partition]))
        assert stage.group.positions(stage.names.input)[partition] == done.partitions[partition].position

    with pytest.raises(ToolRefused, match="already has 6 partitions"):
        run(stage)
    again = stages(6, of=stage)  # a producer that sees the new partitions
    again.output = stage.output
    again.feed(3000, keys=300)
    with Local(stage) as local:
        local.await_live(*range(6))
        stage.await_position(7000)
        assert not local.events("full_unusable", "offset_behind")
    held = states(stage)
    assert {k: t for each in held for k, t in each.items()} == totals(stage)
    assert sum(map(len, held)) == 300
    lines = [row for rows in read_all(stage.servers, stage.output).values() for row in rows]
    assert len(lines) == 7000


def test_a_repartition_is_rejected_while_a_record_is_unread_new_or_misplaced(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(500, keys=50)
    with Local(stage):
        stage.await_all()
    with pytest.raises(ToolRefused, match=r"key 'key-\d+' is in partition \d, but the given .* --partitioner"):
        run(stage, 3, crc32, dry_run=True)
    with pytest.raises(ToolRefused, match="2 partitions cannot become 1"):
        run(stage, 1)
    with (
        stage.load(500),
        pytest.raises(ToolRefused, match=r"producers keep writing: partition 0|records are not processed yet"),
    ):
        run(stage, 3)
    with pytest.raises(ToolRefused, match=r"records are not processed yet: partition 0 at \d+, end \d+"):
        run(stage, 3, dry_run=True)
    with Local(stage):
        stage.await_all()
    stage.verify()


@pytest.mark.long
def test_a_repartition_that_was_killed_half_way_runs_again_at_once(two_partitions: Stage) -> None:
    """Killed after it extended changelog and snapshot topic, and before the input: it watches for producers then."""
    stage = two_partitions
    stage.feed(500, keys=50)
    with Local(stage):
        stage.await_all()
    wanted, words = totals(stage), ("state", "repartition", TARGET, "--to", "3", "--why", "more load")
    killed = subprocess.Popen(
        [sys.executable, "-m", "statehold.ops.cli.entry", *words, "--quiet", "600", "--yes"],
        cwd=ROOT,
        env={
            **os.environ,
            **stage.environment(PROBE_COMMAND="1", STATEHOLD_GROUP__SESSION_TIMEOUT=SESSION),
            "PYTHONPATH": str(ROOT),
        },
    )
    admin = Admin(stage.settings(), stage.names.group)
    try:
        await_true(lambda: counts(admin, stage) == (2, 3, 3), "changelog and snapshot topic are extended")
    finally:
        killed.kill()
        killed.wait()

    with pytest.raises(TopicMismatch, match="repartition --to 3` was interrupted") as refused:
        stage.service().start()
    assert "run it again: `statehold state repartition MODULE:SERVICE --to 3 --why TEXT --yes`" in str(refused.value)
    for finding in examine(Case(stage.settings(), stage.names, [stage.output], probes=False), ["partition-counts"]):
        assert "statehold state repartition MODULE:SERVICE --to 3" in finding.fix
    with pytest.raises(ToolRefused, match=r"`statehold state repartition`, statehold-state-.* at most 6 s"):
        run(stage, 3)

    assert "nothing was changed; --yes does it" in statehold(stage, *words)
    assert counts(admin, stage) == (2, 3, 3)
    said = statehold(stage, *words, "--quiet", "0.2", "--yes", STATEHOLD_GROUP__SESSION_TIMEOUT=SESSION)
    assert "waits for the end of `statehold state repartition`, statehold-state-repartition." in said
    assert counts(admin, stage) == (3, 3, 3)
    stage.partitions = 3
    assert {key: total for each in states(stage) for key, total in each.items()} == wanted


def counts(admin: Admin, stage: Stage) -> tuple[int, ...]:
    """Partitions of input, changelog and snapshot topic."""
    found = admin.describe([stage.names.input, stage.names.changelog, stage.names.snapshot])
    return tuple(fact.partitions if fact is not None else 0 for fact in found.values())


@pytest.mark.long
def test_the_worker_rejects_a_changed_partition_count_until_the_repartition(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    topics = TopicAdmin(Admin(stage.settings(), stage.names.group))
    for topic in (stage.names.changelog, stage.names.snapshot, stage.names.input):
        topics.grow(topic, 3)
    with Local(stage) as local:
        assert "built with 2 partitions" in local.await_failed(0, PartitionCountChanged)
    again = stages(3, of=stage)
    again.feed(100)  # by a producer that knows of the new partitions: they wait where they belong
    with pytest.raises(ToolRefused, match=r"not processed yet: partition \d at \d+, end \d+"):
        run(stage, 3, lambda key, count: murmur2(key, 2) if count == 2 else 2, dry_run=True)
    run(stage, 3)
    stage.partitions = 3
    with Local(stage) as local:
        local.await_live(0, 1, 2)
        stage.await_position(200)
    assert {k: t for each in states(stage) for k, t in each.items()} == totals(stage)
