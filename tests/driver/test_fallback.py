"""When the newest full cannot be used: an older one, else the input, else a typed end that names the repair (4.2)."""

from __future__ import annotations

import msgspec
import pytest
from tests.driver.test_full_snapshots import damage
from tests.support.handlers import Accounts, Op, agrees, commit_records, events, many, snapshot

from statehold.errors import NewerFormat, NoUsableFull
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import FullRef
from statehold.testing import Driver


def fed(driver: Driver, ops: list[Op], count: int) -> None:
    """Further operations on accounts that exist and on new ones."""
    fresh = [Op(f"k{i % 30:03}", i) for i in range(len(ops), len(ops) + count)]
    for op in fresh:
        driver.feed(op)
    driver.commit()
    ops += fresh


def full(driver: Driver) -> FullRef:
    ref = driver.take_full()
    assert ref is not None
    return ref


def switched() -> tuple[Driver, list[Op], list[FullRef]]:
    """Two full snapshots without deltas, then deltas with every commit and a third full snapshot."""
    driver, ops, refs = Driver(Accounts, delta_interval="off"), many(20, size=10), []
    snapshot(driver, keep=5)  # so that no truncation looks at them, and drops what is no base any more
    for op in ops:
        driver.feed(op)
    for _ in range(2):
        fed(driver, ops, 10)
        refs.append(full(driver))
    fed(driver, ops, 5)
    driver.crash()
    snapshot(driver, delta_interval="commit")
    driver.restore()
    fed(driver, ops, 10)
    refs.append(full(driver))
    fed(driver, ops, 10)
    driver.crash()
    return driver, ops, refs


def test_the_next_older_full_snapshot_is_taken_and_the_log_says_why() -> None:
    driver, ops = Driver(Accounts), many(20, size=10)
    for op in ops:
        driver.feed(op)
    older = full(driver)
    fed(driver, ops, 10)
    newest = full(driver)
    fed(driver, ops, 10)
    driver.crash()
    damage(driver, newest.offset)
    driver.restore()
    (passed_over,) = events(driver, "full_unusable")
    assert passed_over["full"] == newest.offset
    assert passed_over["finding"].startswith("damaged: ")
    assert events(driver, "restored")[-1]["full"] == older.offset
    assert agrees(driver, ops)


def test_deltas_name_the_transaction_they_start_from() -> None:
    driver, _, (_, second, _) = switched()
    reaches = [(commit_record.last_delta, commit_record.reach) for commit_record in commit_records(driver)]
    assert {reach for last_delta, reach in reaches if last_delta == 0} == {0}
    assert {reach for last_delta, reach in reaches if last_delta > second.first} == {second.first}


def test_the_full_snapshot_at_the_switch_to_deltas_is_a_base() -> None:
    driver, ops, (_, second, third) = switched()
    damage(driver, third.offset)
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == second.offset
    assert events(driver, "replayed")[-1]["records"] == 0
    assert agrees(driver, ops)


def test_an_older_one_is_a_base_for_the_input_after_it_and_not_for_the_deltas() -> None:
    driver, ops, (first, second, third) = switched()
    for ref in (second, third):
        damage(driver, ref.offset)
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == first.offset
    assert events(driver, "replaying_far")[-1]["full"] == first.offset
    assert events(driver, "replayed")[-1]["records"] == len(ops) - 30
    assert agrees(driver, ops)
    fed(driver, ops, 10)  # and its own deltas go on from there
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_without_any_full_snapshot_all_of_the_input_is_handled_again() -> None:
    driver, ops, refs = switched()
    for ref in refs:
        damage(driver, ref.offset)
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == len(ops)
    assert agrees(driver, ops)


def test_without_the_input_the_typed_error_names_every_full_snapshot_and_the_repair() -> None:
    driver, ops, (first, second, third) = switched()
    for ref in (second, third):
        damage(driver, ref.offset)
    driver.broker.log(driver.names.input, 0).truncate(len(ops) - 5)
    with pytest.raises(NoUsableFull) as failure:
        driver.restore()
    said = str(failure.value)
    for ref in (second, third):
        assert f"full snapshot at offset {ref.offset}: damaged: " in said
    assert f"full snapshot at offset {first.offset}: the deltas continue from transaction {second.first}" in said
    assert f"The input to replay instead is gone: input begins at {len(ops) - 5}, 30 is needed" in said
    assert "`statehold snapshot restore`" in said
    assert not events(driver, "live")[2:]


def test_going_back_to_off_and_on_again() -> None:
    """The deltas of the first time do not help the second time."""
    driver, ops, _ = switched()
    snapshot(driver, delta_interval="off")
    driver.restore()
    fed(driver, ops, 10)
    fourth = full(driver)
    fed(driver, ops, 5)
    driver.crash()
    snapshot(driver, delta_interval=1.0)
    driver.restore()
    assert commit_records(driver)[-1].reach < fourth.first, "no delta was written yet"
    fed(driver, ops, 10)
    driver.advance(2)
    fed(driver, ops, 10)
    driver.advance(2)
    fifth = full(driver)
    driver.crash()
    assert commit_records(driver)[-1].reach == fourth.first
    damage(driver, fifth.offset)
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == fourth.offset
    assert agrees(driver, ops)


def test_a_full_snapshot_whose_state_is_another_one_is_passed_over_too() -> None:
    """Whole, rightly named, and wrong: only the digest of the last commit record differs."""
    driver, ops = Driver(Accounts), many(20, size=10)
    for op in ops:
        driver.feed(op)
    older = full(driver)
    fed(driver, ops, 10)
    newest = full(driver)
    driver.crash()
    log = driver.broker.log(driver.names.snapshot, 0)
    (message,) = log.committed(older.low, older.low + 1)
    wrong = records.unpack(message.value())
    (message,) = log.committed(newest.low, newest.low + 1)
    chunk = records.unpack(message.value())
    (message,) = log.committed(newest.offset, newest.offset + 1)
    manifest = records.unpack(message.value())
    assert isinstance(wrong, records.Chunk)
    assert isinstance(chunk, records.Chunk)
    assert isinstance(manifest, records.Manifest)
    data = records.pack(records.Chunk(chunk.full, 0, chunk.newest, wrong.entry), 2)
    log.replace(newest.low, data)
    sums = (frame.body_checksum(data), *manifest.checksums[1:])
    log.replace(newest.offset, records.pack(msgspec.structs.replace(manifest, checksums=sums)))
    driver.restore()
    assert "the restored state's digest is" in events(driver, "full_unusable")[-1]["finding"]
    assert events(driver, "restored")[-1]["full"] == older.offset
    assert agrees(driver, ops)


def test_a_newer_format_is_rejected_by_the_names_of_both_releases() -> None:
    driver, ops = Driver(Accounts), many(3)
    for op in ops:
        driver.feed(op)
    driver.commit()
    driver.crash()
    log = driver.broker.log(driver.names.changelog, 0)
    for message in list(log.committed()):
        data = message.value() or b""
        record = records.unpack(data)
        if isinstance(record, records.CommitRecord) and record.n == 1:
            writer = records.Writer(instance="web2-7", host="web2", version="9.1.0")
            data = records.pack(msgspec.structs.replace(record, writer=writer))
        if record_number(record) == 1:
            log.replace(message.offset(), bytes([frame.NEWEST + 1]) + data[1:])
    with pytest.raises(NewerFormat) as failure:
        driver.restore()
    said = str(failure.value)
    assert f"written in format {frame.NEWEST + 1} by statehold 9.1.0 (web2-7 on web2); this is statehold " in said
    assert f"which reads formats 1 to {frame.NEWEST}" in said
    assert "Nothing was changed. Next: run that release or a newer one" in said


def record_number(record: records.Record) -> int:
    return record.n if isinstance(record, (records.Header, records.Part, records.CommitRecord)) else -1
