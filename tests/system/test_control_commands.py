"""Users' commands of the control topic under SIGKILL: each handled once, at the place that its mark pins.

Marks only: a new owner replays everything, so a command at another place would give another state and be refused.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict

import pytest
from tests.support import verify
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory
from tests.support.verify import PinnedCommand

from statehold.admin.commands import Commander
from statehold.admin.topics import ServiceTopics
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord

pytestmark = pytest.mark.kafka

KILLS = 3
#: nothing is truncated, so the verifier sees every mark; small transactions, so that kills hit every step of one
REPLAYED = {
    "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off",
    "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false",
    "STATEHOLD_COMMIT__MAX_RECORDS": "100",
}


def pinned_of(stage: Stage) -> dict[int, list[PinnedCommand]]:
    """What the committed marks have pinned, read from the topic."""
    found: dict[int, list[PinnedCommand]] = defaultdict(list)
    for partition, rows in verify.read_all(stage.servers, stage.names.changelog).items():
        for row in rows:
            commit_record = records.unpack(row.value)
            if isinstance(commit_record, CommitRecord):
                place = commit_record.positions[stage.names.input]
                found[partition] += [
                    PinnedCommand(place, each.offset, each.value or b"") for each in commit_record.pinned
                ]
    return found


@pytest.mark.long
def test_kills_between_reading_and_committing_lose_and_double_none(stages: StageFactory, seed: int) -> None:
    stage, rng = stages(2), random.Random(seed)
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output])
    assert all(finding.good for finding in topics.create("beginning", partitions=2, control=True))
    commander, sent = Commander(stage.settings(), stage.names), defaultdict[int, list[tuple[int, bytes]]](list)

    def command(count: int) -> None:
        for _ in range(count):
            value = b"%d" % rng.randrange(1_000_000)
            for one in commander.send("note", (), value, control=True):
                sent[one.partition].append((one.offset, value))

    pair = [stage.process(name, **REPLAYED) for name in ("a", "b")]
    for number in range(1, KILLS + 1):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition")
        stage.feed(4000)
        command(5)
        moment = rng.uniform(0, 0.3)
        time.sleep(moment)  # the random moment itself; nothing is waited for
        victim.kill()
        print(f"seed {seed}, kill {number}: {victim.name} after {moment:.3f} s, at {stage.position()}")
        victim.start()
    command(3)
    stage.await_all()
    wanted = {partition: [offset for offset, _ in each] for partition, each in sent.items()}
    await_true(
        lambda: {p: [each.offset for each in found] for p, found in pinned_of(stage).items()} == wanted,
        f"each of {sum(map(len, wanted.values()))} commands pinned once, in order",
        120,
    )
    for process in pair:  # the last kill was a moment ago; what is between two owners is not saved by a stop
        process.await_that(process.live, "a live partition")
    assert [process.stop() for process in pair] == [0, 0]

    pinned = pinned_of(stage)
    assert {p: [(each.offset, each.value) for each in found] for p, found in pinned.items()} == sent
    expected = verify.fold(verify.read_all(stage.servers, stage.names.input), pinned)
    count = sum(map(len, sent.values()))
    assert verify.check_outputs(stage.servers, stage.output, expected) == stage.fed + count
    stage.snapshots.check(expected)
