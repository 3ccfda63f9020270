"""Members come and go under load: drains commit, nothing is lost or doubled (proofs 4.6, 5.8, 5.9)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.processes import LogEvent, Process, await_true
from tests.support.stage import KIP848, Stage, StageFactory

pytestmark = pytest.mark.kafka

#: each cycle revokes half of the partitions from the host, then from the guest
PARTITIONS, CYCLES = 10, 2
#: a commit is always under way
SMALL = {"STATEHOLD_COMMIT__MAX_RECORDS": "10"}
PROTOCOLS = pytest.mark.parametrize(
    "protocol", [{}, pytest.param(KIP848, marks=pytest.mark.long)], ids=["classic", "consumer"]
)


@pytest.mark.long
@PROTOCOLS
def test_ten_revokes_under_load_and_every_drain_commits(stages: StageFactory, protocol: dict[str, str]) -> None:
    come_and_go(stages(PARTITIONS).create_topics(), CYCLES, protocol)


@pytest.mark.long
@PROTOCOLS
def test_two_hundred_revokes_under_load(stages: StageFactory, protocol: dict[str, str]) -> None:
    come_and_go(stages(PARTITIONS).create_topics(), 20 * CYCLES, protocol)


def come_and_go(stage: Stage, cycles: int, protocol: dict[str, str]) -> None:
    half = PARTITIONS // 2
    own = {**protocol, **SMALL, "PROBE_CALLS": str(stage.calls)}
    host = stage.process("host", **own).await_live(*range(PARTITIONS))
    guest = stage.process("guest", **own)
    with stage.load(1500):
        for cycle in range(cycles):
            if cycle:
                guest.start()
            guest.await_that(lambda: len(guest.live()) == half, "half of the partitions")
            guest.await_that(lambda: guest.pid in recent(stage.calls), "work")
            assert_drained(host)
            assert guest.stop() == 0
            assert_drained(guest)
            host.await_live(*range(PARTITIONS))
    stage.await_all()
    stage.verify()
    revoked = sum(len(event["partitions"]) for event in host.events("revoked"))
    assert revoked >= half * cycles
    assert len(host.events("drained")) == revoked
    assert handovers(stage.calls) >= half * cycles
    reports = [*host.events("rolled_back", "kafka_log"), *guest.events("rolled_back", "kafka_log")]
    faults = [event for event in reports if event["level"] in ("warning", "error", "critical")]
    assert not faults, "a rebalance is no fault"
    if protocol is not KIP848:  # it rejects no member's retained partitions on this broker
        # Transactions that were under way when the generation moved were refused, and handled again (proof 5.8).
        assert rolled_back_while_retained(host) > 0


def test_no_handler_call_follows_a_close_even_with_a_full_mailbox(stage: Stage) -> None:
    # Records take 5 ms, a batch a second or more: a revocation falls into a batch, longer than the heir needs to begin.
    own = {"PROBE_CALLS": str(stage.calls), "PROBE_SLOW": "0.005"}
    stage.feed(6000)
    host = stage.process("host", **own).await_live(0, 1, 2, 3)
    host.await_that(lambda: host.pid in recent(stage.calls), "work")
    guest = stage.process("guest", **own)
    guest.await_that(lambda: guest.pid in recent(stage.calls), "work")
    assert_drained(host)
    assert guest.stop() == 0
    assert stage.position() < stage.fed, "the mailboxes were not full"
    stage.await_all()
    assert handovers(stage.calls) >= 2
    stage.verify()


def assert_drained(process: Process) -> None:
    """Whatever left this process has committed first."""
    await_true(lambda: not set(closing(process)) & set(process.live()), "closed partitions")
    for partition, events in closing(process).items():
        kinds = [event["event"] for event in events]
        where = f"{process.name} partition {partition}: {len(kinds)} events, the last {kinds[-8:]}"
        assert "aborted" not in kinds, where
        if (revoked := next((i for i, kind in enumerate(kinds) if kind in ("revoked", "stopping")), None)) is not None:
            # A commit that was under way when the generation moved is refused, once; the drain does it again.
            assert kinds[revoked:].count("rolled_back") <= 1, where
            assert "drained" in kinds[revoked:], where


def closing(process: Process) -> dict[int, list[LogEvent]]:
    """The events of each partition that is not live now, since it was last assigned; with the revocation."""
    life: dict[int, list[LogEvent]] = defaultdict(list)
    for event in process.events():
        concerned = event.get("partitions", [event["partition"]] if "partition" in event else list(life))
        for partition in concerned:
            if event["event"] == "assigned":
                life[partition] = []
            life[partition].append(event)
    return {partition: events for partition, events in life.items() if events[-1]["event"] == "partition_closed"}


def rolled_back_while_retained(process: Process) -> int:
    """Transactions that were undone although their partition stayed here."""
    pending: dict[int, int] = defaultdict(int)
    total = 0
    for event in process.events("rolled_back", "revoked", "live"):
        for partition in event.get("partitions", ()):
            total, pending[partition] = total + pending[partition], 0
        if event["event"] == "rolled_back":
            pending[event["partition"]] += 1
    return total + sum(pending.values())


def recent(path: Path) -> set[str]:
    """The processes that the newest calls are from."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return {line.rsplit(b" ", 1)[-1].decode().split("-")[0] for line in file.read().splitlines()[1:]}


def handovers(path: Path) -> int:
    """In the order of one file that all processes append to: calls of one epoch, its end, calls of the next.

    Each epoch commits what it has handled: the next continues after its last record. Returns the number of handovers.
    """
    owner: dict[str, str] = {}
    newest: dict[str, int] = defaultdict(lambda: -1)
    closed: set[tuple[str, str]] = set()
    count = 0
    for line in path.read_text().splitlines():
        what, partition, *more, epoch = line.split()
        if what == "closed":
            closed.add((partition, epoch))
            continue
        assert (partition, epoch) not in closed, f"a call after the end of the assignment: {line}"
        before, offset = owner.setdefault(partition, epoch), int(more[0])
        if before != epoch:
            assert (partition, before) in closed, f"{line}: {before} had not closed yet"
            assert offset == newest[partition] + 1, f"{line}: {before} handled up to {newest[partition]}"
            owner[partition] = epoch
            count += 1
        newest[partition] = max(newest[partition], offset)
    return count
