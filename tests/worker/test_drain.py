"""Drain: no commit for a lost partition; the last full snapshot refers to a delta before its own commit record."""

from __future__ import annotations

from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, commit_records, many, snapshot

from statehold.errors import TransactionAborted
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
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
    worker = inside.lane(driver).worker

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
    inside.lane(driver).start()
    driver.commit()
    assert agrees(driver, [FIRST, SECOND])


def test_a_drain_whose_commits_are_rejected_ends_at_its_deadline() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    worker, attempts = inside.lane(driver).worker, list[float]()

    def reject(call: Call) -> None:
        if call == "offsets":
            attempts.append(driver.clock())
            driver.clock.advance(3.0)
            if len(attempts) > 20:
                worker.lose()  # otherwise a drain without a deadline would not end
            driver.broker.fail("offsets", TransactionAborted("the generation has moved", stale=True))

    driver.broker.on_call = reject
    deadline = driver.clock() + 10
    worker.revoke(deadline, final=False)
    while worker.phase is not Phase.CLOSED:
        worker.step()
    assert attempts
    assert max(attempts) < deadline
    assert [commit_record.n for commit_record in commit_records(driver)] == [0]


def test_a_partition_lost_after_its_last_commit_is_aborted_and_not_closed_as_drained() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    worker = inside.lane(driver).worker
    driver.broker.on_call = lambda call: worker.lose() if call == "commit" else None
    worker.revoke(driver.clock() + 20, final=False)
    while worker.phase is not Phase.CLOSED:
        worker.step()
    assert "aborted" in [event for event, _ in driver.events]


def test_no_last_full_snapshot_if_its_commit_was_rolled_back() -> None:
    """Rule S5: the manifest's changelog offset precedes its first transaction, because C3 truncates by it."""
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.stop()
    for commit_record in commit_records(driver):
        for ref in commit_record.full_snapshots:
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
    assert all(commit_record.full_snapshots == () for commit_record in commit_records(driver))
    driver.restore()
    assert agrees(driver, ops)
