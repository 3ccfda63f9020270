"""Full snapshots that are lost, half written, damaged, or were never taken: the same state (5.5, 5.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Interval, Op, agrees, commit_records, events, many, sliced, snapshot

from statehold import Handler, Record, Table
from statehold.config.sections.connection import KafkaSettings
from statehold.errors import KafkaTrouble, NoUsableFull, OutputRefused, RestoreTimeout
from statehold.snapshot.format import records
from statehold.snapshot.format.records import FullRef
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.worker.full_snapshots.truncation import Truncation
from statehold.worker.full_snapshots.verification import Verification

OPS = many(24)
MODES: list[Interval] = ["commit", 0.5, "off"]


def filled(interval: Interval) -> Driver:
    driver = Driver(Accounts, delta_interval=interval)
    sliced(driver)
    for op in OPS:
        driver.feed(op)
    driver.commit()
    return driver


@pytest.mark.parametrize("interval", MODES)
def test_no_full_snapshot_was_ever_taken(interval: Interval) -> None:
    driver = filled(interval)
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS)


@pytest.mark.parametrize("interval", MODES)
def test_a_crash_between_chunks(interval: Interval) -> None:
    driver = filled(interval)
    chunks = [0]

    def killed() -> None:
        driver.clock.advance(0.006)
        chunks[0] += 1
        if chunks[0] == 3:
            raise KeyboardInterrupt

    driver.broker.on_chunk = killed
    with pytest.raises(KeyboardInterrupt):
        driver.take_full()
    driver.broker.on_chunk = None
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS)
    assert driver.take_full() is not None


@pytest.mark.parametrize("interval", MODES)
def test_a_crash_after_the_chunks_and_before_the_manifest(interval: Interval) -> None:
    driver = filled(interval)
    driver.broker.hold_acks = True
    assert driver.take_full() is None
    driver.crash()
    driver.restore()
    driver.broker.hold_acks = False
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS)


@pytest.mark.parametrize("interval", MODES)
def test_a_crash_after_the_manifest_and_before_the_commit_record(interval: Interval) -> None:
    driver = filled(interval)
    live = inside.lanes(driver)[0].live()
    live.full_snapshots.ask()
    while not live.full_snapshots.pending:
        driver.advance(0.2)
    driver.crash()
    driver.restore()
    assert driver.commit_record().full_snapshots == ()
    assert agrees(driver, OPS)


@pytest.mark.parametrize("interval", MODES)
def test_a_rejected_chunk_abandons_the_full_snapshot_and_nothing_else(interval: Interval) -> None:
    driver = filled(interval)
    driver.broker.fail("full", KafkaTrouble("refused"))
    assert driver.take_full() is None
    assert events(driver, "full_abandoned")[-1]["cause"] == "refused"
    assert differences(driver) == 0, "the broker rejected it: its contents are right"
    assert driver.take_full() is not None
    driver.crash()
    driver.restore()
    assert agrees(driver, OPS)


@pytest.mark.parametrize("interval", MODES)
def test_a_full_snapshot_that_a_restore_would_not_load_is_never_referred_to(interval: Interval) -> None:
    """A planted key of another type than the table's: the proof ends the snapshot before its manifest is sent."""
    driver = filled(interval)
    good = driver.take_full()
    assert good is not None
    table = next(iter(inside.lanes(driver)[0].live().engine.state.tables.values()))
    table.stored[b"planted"] = b"1"
    table.order.append(b"planted")
    assert differences(driver) == 0
    assert driver.take_full() is None
    assert f"a restore could not read table {table.name!r}" in events(driver, "full_abandoned")[-1]["cause"]
    assert differences(driver) == 1
    assert [
        ref.first
        for commit_record in commit_records(driver)
        for ref in commit_record.full_snapshots
        if ref.first > good.first
    ] == []
    driver.crash()
    driver.restore()
    assert agrees(driver, OPS)


def differences(driver: Driver) -> float:
    """Full snapshots that a verification has found different; an alert counts them."""
    labels = {"service": driver.names.group, "partition": "0", "outcome": "differs"}
    return driver.metrics.registry.get_sample_value(metrics.FULL_SNAPSHOTS.name, labels) or 0.0


@pytest.mark.parametrize("interval", MODES)
def test_a_state_in_memory_that_differs_from_the_committed_one_is_counted_for_an_alert(interval: Interval) -> None:
    driver = filled(interval)
    table = next(iter(inside.lanes(driver)[0].live().engine.state.tables.values()))
    key = next(iter(table.stored))
    table.stored[key] = table.stored[next(each for each in table.stored if table.stored[each] != table.stored[key])]
    assert driver.take_full() is None
    assert "the state in memory differs from the committed one" in events(driver, "full_abandoned")[-1]["cause"]
    assert differences(driver) == 1


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE: dict[str, Callable[[Driver, int, int], None]] = {
    "a chunk is damaged": lambda d, low, end: damage(d, low + 1),
    "a chunk is missing": lambda d, low, end: d.broker.log(d.names.snapshot, 0).abort_record(low + 1),
    "the manifest is damaged": lambda d, low, end: damage(d, end),
    "the manifest is missing": lambda d, low, end: d.broker.log(d.names.snapshot, 0).abort_record(end),
    "all is truncated": lambda d, low, end: d.broker.log(d.names.snapshot, 0).truncate(end + 1),
}


def damage(driver: Driver, offset: int) -> None:
    log = driver.broker.log(driver.names.snapshot, 0)
    (message,) = log.committed(offset, offset + 1)
    log.replace(offset, flip(message.value() or b""))


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("interval", MODES)
def test_a_full_snapshot_that_cannot_be_used_is_passed_over(interval: Interval, what: str) -> None:
    driver = filled(interval)
    ref = driver.take_full()
    assert ref is not None
    driver.crash()
    DAMAGE[what](driver, ref.low, ref.offset)
    driver.restore()
    assert events(driver, "full_unusable")[-1]["full"] == ref.offset
    gone = what in ("the manifest is missing", "all is truncated")
    assert differences(driver) == (0 if gone else 1)
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS)


def test_without_full_snapshots_and_with_truncated_deltas_the_error_says_that_the_state_is_gone() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=1)
    driver.feed(Op("ann", 1))
    driver.feed(Op("bob", 1))
    ref = driver.take_full()
    assert ref is not None
    driver.crash()
    driver.broker.log(driver.names.snapshot, 0).truncate(ref.offset + 1)
    driver.broker.log(driver.names.changelog, 0).truncate(ref.increment)
    with pytest.raises(
        NoUsableFull,
        match=r"snapshot at offset 1: its records are gone.*without a full snapshot: the deltas begin with transaction",
    ):
        driver.restore()


def test_a_log_that_begins_within_a_transaction_is_a_state_that_is_gone_and_not_a_torn_transaction() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.feed(Op("bob", 1))
    last = driver.commit_record().n
    driver.crash()
    log = driver.broker.log(driver.names.changelog, 0)
    log.truncate(next(m.offset() for m in log.committed() if getattr(records.unpack(m.value()), "n", -1) == last) + 1)
    with pytest.raises(NoUsableFull, match=f"the log begins within transaction {last}: earlier records are gone"):
        driver.restore()


@pytest.mark.parametrize("interval", MODES)
def test_truncation_keeps_what_a_restore_needs(interval: Interval) -> None:
    driver = filled(interval)
    ops = list(OPS)
    for i in range(5):
        ops.append(Op(f"k{i:03}", 1))
        driver.feed(ops[-1])
        assert driver.take_full() is not None
    ops.append(Op("last", 1))
    driver.feed(ops[-1])
    kept = driver.commit_record().full_snapshots
    assert len(kept) == driver.settings.snapshot.keep
    full, increment = (driver.broker.log(topic, 0) for topic in (driver.names.snapshot, driver.names.changelog))
    assert full.start == kept[-1].low > 0
    assert increment.start == kept[-1].increment > 0
    for ref in kept[:-1]:
        full.replace(ref.low, b"x")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == kept[-1].offset
    assert agrees(driver, ops)


@pytest.mark.parametrize("interval", MODES)
def test_nothing_is_deleted_behind_a_full_snapshot_that_cannot_be_read(interval: Interval) -> None:
    """It was written and acknowledged, and is damaged since (rule C4): it is no longer counted as kept."""
    driver = filled(interval)
    keep = driver.settings.snapshot.keep
    full = driver.broker.log(driver.names.snapshot, 0)
    taken = []
    for i in range(keep + 1):
        driver.feed(Op(f"k{i:03}", 1))
        taken.append(driver.take_full())
        if i == 0:
            middle = next(m for m in full.committed() if taken[0] and taken[0].low < m.offset() < taken[0].offset)
            full.replace(middle.offset(), (middle.value() or b"")[:-1] + b"?")
    damaged, oldest = taken[0], taken[1]
    assert damaged is not None
    assert oldest is not None
    assert [event["full"] for event in events(driver, "full_unusable")] == [damaged.offset]
    assert differences(driver) == 1
    assert [event["full_before"] for event in events(driver, "truncated")] == [oldest.low]
    assert len(driver.commit_record().full_snapshots) == keep


def test_what_an_earlier_owner_kept_is_read_before_anything_behind_it_is_deleted() -> None:
    """The restore has read the newest one only (rule C4)."""
    driver = filled("commit")
    snapshot(driver, keep=3)
    taken = []
    for i in range(3):
        driver.feed(Op(f"k{i:03}", 1))
        taken.append(driver.take_full())
    oldest, unread, newest = taken
    assert oldest is not None
    assert unread is not None
    assert newest is not None
    driver.crash()
    damage(driver, unread.low + 1)
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == newest.offset
    before = driver.broker.log(driver.names.snapshot, 0).start
    driver.feed(Op("k003", 1))
    assert driver.take_full() is not None
    assert [event["full"] for event in events(driver, "full_unusable")] == [unread.offset]
    assert driver.broker.log(driver.names.snapshot, 0).start == before <= oldest.low


def without_rest(driver: Driver, done: Callable[[], bool]) -> None:
    """Commit record after record until `done`: the partition never waits for records."""
    for i in range(100):
        if done():
            return
        driver.feed(Op("busy", i))
        driver.commit()
        driver.clock.advance(0.1)  # a slice has its share of time
    raise AssertionError("100 commits have not done it")


def keep_all_without_rest(driver: Driver, *, damaged: bool = False) -> tuple[FullRef, ...]:
    """Take as many full snapshots as are kept, and return them, the newest first. `damaged`: the oldest one is."""
    kept: tuple[FullRef, ...] = ()
    while len(kept) < driver.settings.snapshot.keep:
        inside.lanes(driver)[0].live().full_snapshots.ask()
        before = kept
        without_rest(driver, lambda: driver.commit_record().full_snapshots != before)  # noqa: B023 - called at once
        kept = driver.commit_record().full_snapshots
        if damaged and not before:
            damage(driver, kept[0].low)
    return kept


@pytest.mark.parametrize("interval", MODES)
def test_a_partition_that_never_rests_takes_the_full_snapshot_of_a_command(interval: Interval) -> None:
    driver = filled(interval)
    driver.command("take", via_control_topic=True)
    without_rest(driver, lambda: bool(driver.commit_record().full_snapshots))
    assert driver.commit_record().take == 0


@pytest.mark.parametrize("interval", MODES)
def test_a_partition_that_never_rests_names_no_full_snapshot_that_cannot_be_read(interval: Interval) -> None:
    driver = filled(interval)
    oldest = keep_all_without_rest(driver, damaged=True)[-1]
    without_rest(driver, lambda: bool(events(driver, "full_unusable")))
    named = driver.commit_record().n + 1
    without_rest(driver, lambda: driver.commit_record().n == named)
    assert len(driver.commit_record().full_snapshots) == driver.settings.snapshot.keep - 1
    assert oldest not in driver.commit_record().full_snapshots


def test_a_partition_that_never_rests_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, done, looks = filled("commit"), Verification.done, [0]

    def slow(verification: Verification, wait: float) -> bool:
        looks[0] += 1
        return looks[0] > 5 and done(verification, wait)

    monkeypatch.setattr(Verification, "done", slow)
    keep_all_without_rest(driver)
    without_rest(driver, lambda: bool(events(driver, "truncated")))


def test_each_kept_full_snapshot_is_read_back_once() -> None:
    driver = filled("commit")
    reads: list[int] = []
    driver.broker.on_read = lambda topic, partition: reads.append(partition) if topic == driver.names.snapshot else None
    for i in range(7):
        driver.feed(Op(f"k{i:03}", 1))
        assert driver.take_full() is not None
    assert len(events(driver, "truncated")) == 5
    assert len(reads) == 2 * 7  # a manifest and its chunks each


def test_a_full_snapshot_is_due_by_bytes_and_by_time() -> None:
    driver = Driver(Accounts)
    snapshot(driver, full_bytes=65_536, full_interval=100.0)
    for op in many(10):
        driver.feed(op)
        driver.advance(1.0)
    assert events(driver, "full_written") == []
    driver.advance(120.0)
    assert len(events(driver, "full_written")) == 1


@pytest.mark.parametrize("interval", MODES)
def test_an_empty_table_and_a_partition_without_input(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    assert driver.table("balances") == {}
    assert driver.take_full() is not None
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["keys"] == 0
    driver.feed(Op("ann", 1))
    assert agrees(driver, [Op("ann", 1)])


class Big(Handler[int]):
    values = Table(key=int, value=bytes)

    def on_record(self, record: Record[int]) -> None:
        for i in range(40):
            self.values[i] = bytes([i]) * record.value


def small_messages(driver: Driver) -> None:
    snapshot(driver, chunk_bytes=4096)
    driver.settings = replace(driver.settings, kafka=KafkaSettings(message_max_bytes=16_384))


def test_a_delta_larger_than_a_message_is_cut_into_parts() -> None:
    driver = Driver(Big)
    small_messages(driver)
    driver.feed(1000)
    assert driver.commit_record().parts > 4
    driver.crash()
    driver.restore()
    assert driver.table("values") == {i: bytes([i]) * 1000 for i in range(40)}


def test_a_value_that_fits_no_message_is_rejected_by_name() -> None:
    driver = Driver(Big)
    small_messages(driver)
    driver.feed(20_000)
    with pytest.raises(OutputRefused, match=r"table 'values', key 0: a value of 20\d\d\d bytes"):
        driver.commit()
    assert len(commit_records(driver)) == 1


def test_no_kept_full_snapshot_loses_a_chunk_wherever_it_begins() -> None:
    """Rule C4: the chunks of a newer one may begin before those of an older one, if a compaction has written it."""
    driver = filled("commit")
    log = driver.broker.log(driver.names.snapshot, 0)
    for number in range(10):
        log.append(b"chunk %d" % number)
    newer, older, oldest = (FullRef(low, 9, first, first, 3) for low, first in ((2, 9), (6, 8), (5, 7)))
    truncation = Truncation(inside.tools(driver), {newer, older, oldest})
    truncation.due = True
    truncation.step((newer, older, oldest), driver.commit_record())
    assert log.start == newer.low


def test_a_verification_that_kafka_does_not_answer_proves_nothing() -> None:
    """Rule C4: nothing is deleted behind full snapshots that were not read, and the next one tries again."""
    driver = Driver(Accounts, autocommit=False)
    snapshot(driver, keep=2)
    for op in many(2):
        driver.feed(op)
        driver.take_full()
    refs, log = driver.commit_record().full_snapshots, driver.broker.log(driver.names.snapshot, 0)
    start = log.start

    def silent(topic: str, partition: int) -> None:
        raise RestoreTimeout("no answer")

    driver.broker.on_read = silent
    truncation = Truncation(inside.tools(driver), set())
    truncation.due = True
    truncation.step(refs, driver.commit_record(), 5.0)
    assert (truncation.sound, truncation.due, log.start) == (set(), False, start)
    assert [event["cause"] for event in events(driver, "truncation_failed")] == [
        "verify the kept full snapshots: no answer"
    ]
    driver.broker.on_read = None
    truncation.due = True
    truncation.step(refs, driver.commit_record(), 5.0)
    assert truncation.sound == set(refs)
    assert events(driver, "truncated")
