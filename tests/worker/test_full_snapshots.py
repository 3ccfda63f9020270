"""Full snapshots around takeovers: damaged ones do not count as kept, and new ones are written in time."""

from __future__ import annotations

import random

from tests.support.handlers import Accounts, Op, agrees, events, snapshot, with_interval

from statehold.testing import Driver

OPS = [Op(f"account-{i}", i) for i in range(40)]


def damage(driver: Driver, offset: int) -> None:
    """Flip a bit of a chunk."""
    log = driver.broker.log(driver.names.snapshot, 0)
    message, transaction = log._records[offset]
    value = message.value() or b""
    message._value = value[:-1] + bytes([value[-1] ^ 1])
    log._records[offset] = message, transaction


def test_an_unusable_full_snapshot_does_not_count_as_kept() -> None:
    """Rule C4: otherwise truncation would keep it instead of a usable one."""
    driver = Driver(Accounts)
    snapshot(driver, keep=2)
    for op in OPS[:2]:
        driver.feed(op)
        driver.take_full()
    good, bad = sorted(driver.commit_record().full_snapshots, key=lambda ref: ref.first)
    driver.crash()
    damage(driver, bad.low)
    driver.restore()
    assert events(driver, "full_unusable")
    driver.feed(OPS[2])
    newest = driver.take_full()
    assert driver.commit_record().full_snapshots == (newest, good)
    assert driver.broker.log(driver.names.snapshot, 0).start <= good.low
    driver.crash()
    driver.restore()
    assert agrees(driver, OPS[:3])


def test_frequent_takeovers_do_not_prevent_a_full_snapshot() -> None:
    """Each owner processes too little for a full snapshot; the restore must not grow without limit."""
    driver = Driver(Accounts)
    snapshot(driver, full_bytes=65_536)
    ops = [Op(random.Random(i).randbytes(4500).hex(), i) for i in range(30)]
    for i in range(0, 30, 3):
        for op in ops[i : i + 3]:
            driver.feed(op)
        driver.advance(8.0)
        driver.crash()
        driver.restore()
    assert driver.commit_record().full_snapshots
    assert agrees(driver, ops)


def test_a_clean_stop_after_a_crash_saves_the_replayed_gap() -> None:
    """Without deltas and without a full snapshot, every start would replay the same gap again."""
    driver = Driver(Accounts)
    with_interval(driver, "off")
    for op in OPS:
        driver.feed(op)
    driver.commit()
    driver.crash()
    driver.restore()
    driver.stop()
    driver.restore()
    assert [event["records"] for event in events(driver, "replayed")][-2:] == [len(OPS), 0]
    assert agrees(driver, OPS)
