"""A5, A6, A9 and A10 of the counterexamples that the rules of the protocol answer: full snapshots.

A5 and A9 on the writer alone are in tests/unit/test_full_snapshot.py.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Op, agrees, commit_records, events, many, sliced, snapshot

from statehold.config.sections.processing import CommitSettings
from statehold.errors import TransactionAborted
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Chunk, EntryDecoder
from statehold.testing import Driver
from statehold.worker.full_snapshots.stages import Writing

ANN, BOB, ANN2 = Op("ann", 1), Op("bob", 2), Op("ann", 4)


# A5


@pytest.mark.parametrize("interval", ["commit", 0.5, 100.0])
def test_a5_a_full_snapshot_that_took_several_transactions_is_a_base_only_with_a_delta_after_it(
    interval: float,
) -> None:
    driver = Driver(Accounts, delta_interval=interval, autocommit=False)
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    inside.lanes(driver)[0].live().full_snapshots.ask()
    while not inside.lanes(driver)[0].live().full_snapshots.refs:
        op = Op(f"k{len(ops) * 7 % 40:03}", 1, size=900, close=len(ops) % 5 == 0)
        ops.append(op)
        driver.feed(op)
        driver.commit()
        driver.advance(0.2)
    ref = inside.lanes(driver)[0].live().full_snapshots.refs[0]
    assert ref.first < ref.through
    first = next(commit_record for commit_record in commit_records(driver) if ref in commit_record.full_snapshots)
    assert first.delta
    assert first.n >= ref.through
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == ref.offset
    assert agrees(driver, ops)


def test_a5_without_deltas_a_full_snapshot_is_of_one_transaction() -> None:
    driver = Driver(Accounts, delta_interval="off", autocommit=False)
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    live = inside.lanes(driver)[0].live()
    live.full_snapshots.ask()
    while not live.full_snapshots.refs:
        ops.append(Op("k001", 1))
        driver.feed(ops[-1])
        driver.commit()
        driver.advance(0.2)
    ref = live.full_snapshots.refs[0]
    assert ref.first == ref.through
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == ref.offset
    assert agrees(driver, ops)


# A6


def test_a6_a_slice_holds_committed_values_only() -> None:
    """A full snapshot is written while a transaction is open; that transaction aborts for good."""
    driver = Driver(Accounts, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(interval=10.0))
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    live = inside.lanes(driver)[0].live()
    live.full_snapshots.ask()
    while not isinstance(live.full_snapshots.stage, Writing):
        driver.advance(0.2)
    chunks = driver.broker.log(driver.names.snapshot, 0).end
    extra = [Op(op.account, 1000, size=1000) for op in ops]
    for op in extra:
        driver.feed(op)
        driver.clock.advance(0.001)
        live.full_snapshots.between(live.record)
        driver.clock.advance(0.02)
    written = [records.unpack(message.value()) for message in driver.broker.log(driver.names.snapshot, 0).committed()]
    assert len(written) > chunks > 0
    decode = EntryDecoder({"balances": str}).decode
    for chunk in [record for record in written if isinstance(record, Chunk)]:
        values = [msgspec.msgpack.decode(data or b"", type=Balance) for data in decode(chunk.entry).values]
        assert max(value.total for value in values) < 1000
    driver.crash()
    driver.restore()
    driver.commit()
    assert agrees(driver, [*ops, *extra])


# A9


@pytest.mark.parametrize("reborn", [False, True])
def test_a9_keys_that_go_and_come_between_two_slices(reborn: bool) -> None:
    driver = Driver(Accounts, autocommit=False)
    sliced(driver)
    ops = many(24)
    for op in ops:
        driver.feed(op)
    driver.commit()
    inside.lanes(driver)[0].live().full_snapshots.ask()
    for i in range(60):
        if i % 3 == 0:
            ops.append(Op(f"k{i % 24:03}", close=True))
            driver.feed(ops[-1])
        elif reborn and i % 3 == 1:
            ops.append(Op(f"k{(i - 1) % 24:03}", 5))
            driver.feed(ops[-1])
        if i % 7 == 0:
            driver.broker.fail("offsets", TransactionAborted("no"))
        driver.commit()
        driver.advance(0.2)
    assert events(driver, "full_written")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is not None
    assert agrees(driver, ops)


# A10


def test_a10_a_full_snapshot_truncated_while_it_is_written_is_abandoned() -> None:
    driver = Driver(Accounts)
    sliced(driver)
    ops = many(24)
    for op in ops:
        driver.feed(op)
    driver.commit()
    full = driver.broker.log(driver.names.snapshot, 0)

    def truncate() -> None:
        driver.clock.advance(0.006)
        full.truncate(2)

    driver.broker.on_chunk = truncate
    assert driver.take_full() is None
    assert "truncated while it was written" in str(events(driver, "full_abandoned")[-1]["cause"])
    assert driver.commit_record().full_snapshots == ()
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_a10_a_full_snapshot_that_was_deleted_does_not_count_as_kept() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.take_full()
    driver.feed(BOB)
    driver.take_full()
    newer, older = driver.commit_record().full_snapshots
    driver.broker.log(driver.names.snapshot, 0).truncate(newer.low)
    driver.feed(ANN)
    driver.take_full()
    kept = driver.commit_record().full_snapshots
    assert newer in kept
    assert older not in kept


def test_a10_a_reference_is_a_hint_and_another_full_snapshot_is_taken() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    older = driver.take_full()
    driver.feed(BOB)
    newer = driver.take_full()
    assert older is not None
    assert newer is not None
    full = driver.broker.log(driver.names.snapshot, 0)
    full.replace(newer.low, b"garbage")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == older.offset
    assert events(driver, "full_unusable")[-1]["full"] == newer.offset
    assert agrees(driver, [ANN, BOB])


def test_a10_deleted_full_snapshots_do_not_count_as_kept() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=2)
    driver.feed(ANN)
    first = driver.take_full()
    assert first is not None
    full, increment = (driver.broker.log(topic, 0) for topic in (driver.names.snapshot, driver.names.changelog))
    full.truncate(first.offset + 1)
    start = increment.start
    driver.feed(BOB)
    second = driver.take_full()
    assert increment.start == start  # one complete full is not two
    driver.crash()
    assert second is not None
    full.replace(second.low, b"garbage")
    driver.restore()
    assert agrees(driver, [ANN, BOB])


def test_a10_a_restore_that_truncation_overtakes_is_planned_again() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=1)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.take_full()
    driver.feed(ANN2)
    driver.commit()
    driver.crash()
    increment = driver.broker.log(driver.names.changelog, 0)
    asked = [0]

    def overtake(topic: str, partition: int) -> None:
        if topic == driver.names.changelog:
            asked[0] += 1
            if asked[0] == 2:  # the deltas of the first attempt, after its last mark
                increment.truncate(increment.start + 1)

    driver.broker.on_read = overtake
    driver.restore()
    assert len(events(driver, "restore_overtaken")) == 1
    assert agrees(driver, [ANN, BOB, ANN2])


# S5


def test_a_full_snapshot_never_starts_at_the_commit_record_of_its_bounds() -> None:
    """The end that was asked for lies behind that mark's own records: truncation would delete them, the anchor."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    driver.commit()
    live = inside.lanes(driver)[0].live()
    live.full_snapshots.ask()
    commit_record = live.record
    for _ in range(10):
        live.full_snapshots.boundary(commit_record)
    assert events(driver, "full_started") == []
    driver.feed(BOB)
    driver.commit()
    assert [fields["n"] for fields in events(driver, "full_started")] == [commit_record.n + 1]


def test_a_full_snapshot_starts_where_a_delta_ends() -> None:
    """Rule S1: with deltas every N seconds, most transactions end between two deltas."""
    driver = Driver(Accounts, autocommit=False, delta_interval=100.0)
    for i in range(8):
        driver.feed(Op("ann", i))
        driver.commit()
        if i == 3:
            inside.lanes(driver)[0].live().full_snapshots.ask()
    (started,) = events(driver, "full_started")
    with_delta = {commit_record.n: commit_record.delta for commit_record in commit_records(driver)}
    assert with_delta[started["n"]]
    assert not all(with_delta.values())
