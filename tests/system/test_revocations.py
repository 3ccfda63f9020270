"""Revocations at bad moments: while a state is restored, within seconds of the assignment, start upon stop."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import KIP848, Stage, StageFactory

pytestmark = pytest.mark.kafka
PROTOCOLS = pytest.mark.parametrize("protocol", [{}, KIP848], ids=["classic", "consumer"])


class Stranger:
    """Holds the end of every increment partition back by an open transaction: restores wait for it."""

    def __init__(self, stage: Stage) -> None:
        config = {"transactional.id": f"stranger-{stage.names.group}", "transaction.timeout.ms": 900_000}
        self._producer = Producer({"bootstrap.servers": stage.servers, **config})
        self._producer.init_transactions(60)
        self._producer.begin_transaction()
        for partition in range(stage.partitions):
            self._producer.produce(stage.names.changelog, b"never committed", partition=partition)
        assert self._producer.flush(60) == 0

    def end(self) -> None:
        self._producer.abort_transaction(60)


#: the restore waits for the stranger longer than any test
PATIENT = {"STATEHOLD_RESTORE__HANGING_AFTER": "3000", "STATEHOLD_RESTORE__DEADLINE": "6000"}


@PROTOCOLS
def test_a_revocation_ends_a_restore_at_once(two_partitions: Stage, protocol: dict[str, str]) -> None:
    stage = two_partitions
    stage.feed(200)
    stranger = Stranger(stage)
    # With this budget a drain that waited for the restore would outlast the test.
    budget = {"STATEHOLD_GROUP__MAX_POLL_INTERVAL": "3000", "STATEHOLD_GROUP__DRAIN_BUDGET": "1000"}
    with Local(stage, **PATIENT, **budget, **protocol) as host:
        for partition in (0, 1):
            host.await_phase(partition, "restoring")
        guest = stage.process("guest", **PATIENT, **protocol)
        guest.await_event("restoring", seconds=120)
        await_true(lambda: len(host.partitions()) == 1, "one of them has left")
        assert len(host.events("aborted")) == 1
        stranger.end()
        stage.await_all()
        assert not host.events("failed", "thread_died")
    stage.verify()


@pytest.mark.long
@PROTOCOLS
def test_a_restore_ten_times_as_long_as_max_poll_interval_costs_no_membership(
    two_partitions: Stage, protocol: dict[str, str]
) -> None:
    stage = two_partitions
    stage.feed(200)
    stranger = Stranger(stage)
    interval = 10.0
    with Local(stage, **PATIENT, STATEHOLD_GROUP__MAX_POLL_INTERVAL=str(int(interval)), **protocol) as host:
        for partition in (0, 1):
            host.await_phase(partition, "restoring")
        (member,) = stage.group.members()
        over = time.monotonic() + 10 * interval
        while time.monotonic() < over:
            assert [each.member_id for each in stage.group.members()] == [member.member_id]
            time.sleep(1)
        assert {host.phase(0), host.phase(1)} == {"restoring"}
        stranger.end()
        stage.await_all()
        assert not host.events("revoked", "lost", "failed")
    stage.verify()


@pytest.mark.long
@PROTOCOLS
def test_twenty_starts_and_stops_without_a_pause(stages: StageFactory, protocol: dict[str, str]) -> None:
    stage = stages(2).create_topics()
    for cycle in range(20):
        stage.feed(20)
        with Local(stage, **protocol) as local:
            if cycle % 2:  # every other one is stopped as early as may be
                local.await_live(0, 1)
    with Local(stage, **protocol):
        stage.await_all()
    stage.verify()


@pytest.mark.long
@PROTOCOLS
def test_partitions_that_come_back_within_seconds(stages: StageFactory, protocol: dict[str, str]) -> None:
    """The guest joins and leaves before what it is given can be live; the host has them back each time."""
    stage = stages(4).create_topics()
    host = stage.process("host", **protocol).await_live(0, 1, 2, 3)
    with stage.load(500):
        for _ in range(10):
            with Local(stage, **protocol) as guest:
                await_true(lambda guest=guest: guest.partitions(), "it is given some")  # type: ignore[misc]
        host.await_live(0, 1, 2, 3, seconds=120)
        stage.await_progress()
    stage.await_all()
    assert not host.events("failed", "thread_died")
    stage.verify()
