"""Drain: no commit for a lost partition; the last full snapshot refers to a delta before its own commit record."""

from __future__ import annotations

from tests.driver.apps import Accounts, Op, agrees, commit_records, many, snapshot

from statehold.errors import TransactionAborted
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header
from statehold.testing import Driver
from statehold.testing.broker import Call
from statehold.worker.common.lifecycle import Phase

FIRST, SECOND = Op("ann", 1), Op("bob", 2)


def header_offset(driver: Driver, n: int) -> int:
    """Return the offset of the committed header of transaction `n`."""
    for message in driver.broker.log(driver.names.changelog, 0).committed():
        record = records.unpack(message.value())
        if isinstance(record, Header) and record.n == n:
            return message.offset()
    raise AssertionError(f"no header {n}")


def test_a_partition_lost_during_its_drain_commits_nothing() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.commit()
    driver.feed(SECOND)
    worker = driver._lane(0).worker

    def lose(call: Call) -> None:
        if call == "offsets":
            driver.broker.on_call = None
            worker.lose()

    driver.broker.on_call = lose
    driver.broker.fail("offsets", TransactionAborted("the generation has moved", stale=True))
    worker.revoke(driver.clock() + 20, final=True)
    while worker.phase is not Phase.CLOSED:
        worker.step()
    assert [commit_record.n for commit_record in commit_records(driver)] == [0, 1]
    driver._lane(0).start()
    driver.commit()
    assert agrees(driver, [FIRST, SECOND])


def test_no_last_full_snapshot_if_its_commit_was_rolled_back() -> None:
    """Rule S5: the manifest's changelog offset precedes its first transaction, because C3 truncates by it."""
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.stop()
    for commit_record in commit_records(driver):
        for ref in commit_record.fulls:
            assert ref.increment <= header_offset(driver, ref.first)
    driver.restore()
    driver.feed(SECOND)
    assert agrees(driver, [FIRST, SECOND])


def test_a_last_full_snapshot_ends_by_the_stop_deadline_on_a_slow_broker() -> None:
    driver = Driver(Accounts)
    snapshot(driver, chunk_bytes=4096)
    ops = many(100)
    for op in ops:
        driver.feed(op)
    driver.commit()
    driver.broker.on_chunk = lambda: driver.clock.advance(5.0)
    began = driver.clock()
    driver.stop()
    assert driver.clock() - began < driver.settings.service.stop_timeout + 6
    assert all(commit_record.fulls == () for commit_record in commit_records(driver))
    driver.restore()
    assert agrees(driver, ops)
