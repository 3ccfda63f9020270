"""Takeover with unreachable brokers; replay of a batch that was processed record by record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, events

from statehold import Handler, Record, Table
from statehold.errors import DamagedIncrement, KafkaTrouble, Misconfigured, RestoreTimeout, RetentionGap
from statehold.snapshot.format import records
from statehold.snapshot.restore.restore import restore
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryOffsets

FIRST, SECOND = Op("ann", 1), Op("bob", 2)


class SlowCoordinator(MemoryOffsets):
    """The group's coordinator moves during the first `troubles` requests."""

    troubles: int = 0
    error: KafkaTrouble = KafkaTrouble("NOT_COORDINATOR(16)")

    def committed(self, topic: str, partition: int) -> int | None:
        if self.troubles > 0:
            self.troubles -= 1
            raise self.error
        return super().committed(topic, partition)


def taken_over(troubles: int, error: KafkaTrouble = SlowCoordinator.error) -> Driver:
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.crash()
    driver.offsets = offsets = SlowCoordinator(driver.broker)
    offsets.troubles, offsets.error = troubles, error
    return driver


def test_a_moving_coordinator_only_delays_a_takeover() -> None:
    driver = taken_over(5)
    driver.restore()
    driver.feed(SECOND)
    assert agrees(driver, [FIRST, SECOND])
    assert {event["doing"] for event in events(driver, "kafka_retry")} == {"read the group's offset"}


def test_an_unreachable_coordinator_fails_the_partition_with_the_next_command() -> None:
    driver = taken_over(10_000)
    with pytest.raises(RestoreTimeout, match="statehold retry 0"):
        driver.restore()


def test_a_missing_acl_is_reported_at_once() -> None:
    driver = taken_over(2, Misconfigured("GROUP_AUTHORIZATION_FAILED(30)"))
    with pytest.raises(Misconfigured):
        driver.restore()


class Particular(Handler[int]):
    """Fails a batch with an odd number and other records, which is then processed record by record."""

    seen = Table(key=int, value=int)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        if len(records) > 1 and any(record.value % 2 for record in records):
            raise ValueError("odd")
        for record in records:
            self.on_record(record)

    def on_record(self, record: Record[int]) -> None:
        self.seen[record.offset] = record.value


def test_a_batch_that_was_processed_record_by_record_is_replayed_so() -> None:
    driver = Driver(Particular, delta_interval=3600.0, batch=4)
    driver.feed_all(range(8))
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("seen") == dict(enumerate(range(8)))


def test_a_chain_that_ends_before_the_last_commit_record_is_damage() -> None:
    """The changelog loses its last transaction after the restore has found its commit record."""
    driver = Driver(Accounts, autocommit=False)
    for op in (FIRST, SECOND):
        driver.feed(op)
        driver.commit()
    last, log = driver.commit_record().n, driver.broker.log(driver.names.changelog, 0)
    around, reads = inside.replica_tools(driver), list[str]()

    def lose(topic: str, partition: int) -> None:
        reads.append(topic)
        if reads.count(driver.names.changelog) == 2:  # the first read has found the commit record
            for message in list(log.committed()):
                if getattr(records.unpack(message.value()), "n", -1) == last:
                    log.abort_record(message.offset())

    driver.broker.on_read = lose
    with pytest.raises(DamagedIncrement, match=f"ends with transaction 1, the last commit record is {last}"):
        restore(around.reader(lambda: False), around.locate(0), around.new_state, lambda *_: None, driver.clock)


def test_an_input_that_ends_before_the_position_is_a_retention_gap() -> None:
    """The input loses its last record after it was handled, as after an unclean leader election."""
    driver = Driver(Accounts, autocommit=False)
    for op in (FIRST, SECOND):
        driver.feed(op)
    driver.commit()
    driver.crash()
    driver.broker.log(driver.names.input, 0).end -= 1
    with pytest.raises(RetentionGap, match="the topic ends at 1: records that were handled are gone") as found:
        driver.restore()
    assert (found.value.topic, found.value.partition, found.value.position) == ("input", 0, 2)
