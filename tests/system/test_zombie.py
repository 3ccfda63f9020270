"""A process that was frozen past its session wakes up when others own its partitions (proofs 5.2, 5.3; rule T8)."""

from __future__ import annotations

import signal

import pytest
from tests.support.stage import KIP848, Stage
from tests.support.verify import read_all

pytestmark = pytest.mark.kafka

#: transactions stay open long enough to freeze inside one
OPEN = {"STATEHOLD_COMMIT__INTERVAL": "10"}


@pytest.mark.parametrize("protocol", [{}, pytest.param(KIP848, marks=pytest.mark.long)], ids=["classic", "consumer"])
def test_a_zombie_commits_nothing_and_does_not_fence_back(stage: Stage, protocol: dict[str, str]) -> None:
    zombie = stage.process("zombie", **OPEN, **protocol).await_live(0, 1, 2, 3)
    stage.feed(1000)
    zombie.await_that(lambda: outputs_seen(stage, "read_uncommitted") >= 1000, "an open transaction")
    zombie.signal(signal.SIGSTOP)
    assert stage.position() == 0, "the zombie was frozen too late: its transaction is not open any more"

    heir = stage.process("heir", **protocol).await_live(0, 1, 2, 3)
    stage.feed(1000)
    stage.await_all()
    before = stage.verify()

    zombie.signal(signal.SIGCONT)
    # The reason shows who was faster: the broker that rejects the commit, or the group that reports the loss.
    zombie.await_that(
        lambda: ended(zombie.events("fenced_by_new_owner", "aborted")) == {0, 1, 2, 3}, "the zombie's end"
    )
    stage.feed(1000)
    stage.await_all()
    after = stage.verify()
    assert sum(map(len, after.lines.values())) - sum(map(len, before.lines.values())) == 1000
    # Lost is the fence of one who has heard from its group already.
    assert {event["error"] for event in zombie.events("fenced_by_new_owner")} <= {"Fenced", "Lost"}
    assert not zombie.events("failed", "thread_died")
    assert not heir.events("fenced_by_new_owner", "failed"), "the zombie has fenced the rightful owner"


def ended(events: list[dict[str, int]]) -> set[int]:
    return {event["partition"] for event in events}


def outputs_seen(stage: Stage, isolation: str) -> int:
    return sum(map(len, read_all(stage.servers, stage.output, isolation).values()))
