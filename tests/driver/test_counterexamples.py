"""The counterexamples that the rules of the protocol answer, each as a test; the names give the rule's story.

A2 as a table of record sequences is in tests/unit/test_chain.py, A5 and A9 on the writer alone in
tests/unit/test_full.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from tests.driver.apps import Accounts, Balance, Op, agrees, snapshot, with_interval

from holdfast import Handler, Output, Record, Table
from holdfast.config.processing import CommitSettings
from holdfast.errors import (
    DamagedIncrement,
    NoMark,
    NonDeterministicReplay,
    OffsetDisagrees,
    OutcomeUnknown,
    PartitionError,
    TornTransaction,
    TransactionAborted,
)
from holdfast.snapshot import records
from holdfast.snapshot.records import Chunk, EntryDecoder, Mark
from holdfast.testing import Driver
from holdfast.testing.broker import Call
from holdfast.worker.mailbox import Batch

ANN, BOB, ANN2 = Op("ann", 1), Op("bob", 2), Op("ann", 4)


def marks(driver: Driver) -> list[Mark]:
    found = [records.unpack(message.value()) for message in driver.broker.log(driver.names.increment, 0).committed()]
    return [record for record in found if isinstance(record, Mark)]


def events(driver: Driver, name: str) -> list[dict[str, object]]:
    return [fields for event, fields in driver.events if event == name]


def many(count: int, size: int = 1000) -> list[Op]:
    """So much ballast that a full of it has a chunk for every fourth account."""
    return [Op(f"k{i:03}", i, size=size) for i in range(count)]


def sliced(driver: Driver) -> None:
    """Each chunk of a full takes longer than a slice may, so that fulls are fuzzy."""
    snapshot(driver, chunk_bytes=4096)
    driver.broker.on_chunk = lambda: driver.clock.advance(0.006)


# A1


def test_a1_truncation_never_deletes_the_last_mark() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=1)
    driver.feed(ANN)
    for _ in range(4):
        assert driver.take_full() is not None
    assert driver.broker.log(driver.names.increment, 0).start > 0
    driver.crash()
    driver.restore()
    assert agrees(driver, [ANN])


def test_a1_an_idle_partition_takes_one_full_and_not_one_every_interval() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.advance(3600)
    assert len(events(driver, "full_written")) == 1


def test_a1_an_increment_topic_that_lost_its_marks_is_no_first_start() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    log = driver.broker.log(driver.names.increment, 0)
    log.truncate(log.end)
    with pytest.raises(DamagedIncrement, match="was there and is gone"):
        driver.restore()


def test_a1_an_untouched_increment_topic_is_no_first_start_either() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    del driver.broker.logs[driver.names.increment, 0]
    with pytest.raises(NoMark, match="topics create --start-at"):
        driver.restore()


# A2: a delayed EndTxn, of a commit or an abort, that the producer did not notice


def at(call: Call, times: int, action: Callable[[], None]) -> Callable[[Call], None]:
    left = [times]

    def seen(name: Call) -> None:
        left[0] -= name == call
        if name == call and left[0] == 0:
            action()

    return seen


@pytest.mark.parametrize("held", ["commit", "abort"])
@pytest.mark.parametrize(
    ("call", "times"),
    [
        ("begin", 1),
        ("increment", 1),
        ("send", 1),
        ("send", 2),
        ("increment", 2),
        ("offsets", 1),
        ("increment", 3),
        ("commit", 1),
    ],
)
def test_a2_a_delayed_end_is_harmless_or_seen_and_never_silent(held: str, call: Call, times: int) -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.broker.taint = ""
    driver.feed(ANN)
    if held == "abort":
        driver.broker.fail("offsets", TransactionAborted("no"))
        driver.broker.on_call = at("abort", 1, driver.broker.hold_next_end)
    else:
        driver.broker.hold_next_end()
    done = [ANN]
    if held == "commit":
        driver.commit()
    driver.broker.on_call = (
        hold_abort(driver, call, times) if held == "abort" else at(call, times, driver.broker.release)
    )
    try:
        for op in (BOB, ANN2):
            done.append(op)
            driver.feed(op)
        driver.commit()
        assert not driver.broker.held
        driver.crash()
        driver.restore()
    except TornTransaction:
        return
    assert agrees(driver, done)


def hold_abort(driver: Driver, call: Call, times: int) -> Callable[[Call], None]:
    """Hold the abort that comes first, and let it land at a later call."""
    later = at(call, times, driver.broker.release)
    aborted = [False]

    def seen(name: Call) -> None:
        if aborted[0]:
            later(name)
        elif name == "abort":
            aborted[0] = True
            driver.broker.hold_next_end()

    return seen


# A3


class Weather(Handler[int]):
    """Depends on something that is no record and no table."""

    seen = Table(key=int, value=float)
    out = Output("out", value=float)

    def on_record(self, record: Record[int]) -> None:
        self.seen[record.value] = random.random()
        self.out.send(self.seen[record.value])


def test_a3_a_replay_that_gives_another_state_never_goes_live() -> None:
    driver = Driver(Weather, delta_interval="off")
    driver.feed_all([1, 2])
    sent = driver.outputs("out")
    driver.crash()
    with pytest.raises(NonDeterministicReplay, match="replaying 0 to 2 gave digest") as failure:
        driver.restore()
    assert failure.value.position == 0
    assert "live" not in [event for event, _ in driver.events][-3:]
    assert driver.outputs("out") == sent
    assert len(marks(driver)) == 2


def test_a3_with_a_delta_in_every_commit_such_a_handler_is_fine() -> None:
    driver = Driver(Weather)
    driver.feed_all([1, 2])
    before = driver.table("seen")
    driver.crash()
    driver.restore()
    assert driver.table("seen") == before


def test_a3_every_mark_carries_the_digest_of_its_state() -> None:
    driver = Driver(Accounts, delta_interval="off", autocommit=False)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.commit()
    digests = [mark.digest for mark in marks(driver)]
    assert len(set(digests)) == 3
    assert [mark.delta for mark in marks(driver)] == [True, False, False]


# A4


def test_a4_a_delta_that_aborts_is_not_forgotten() -> None:
    driver = Driver(Accounts, delta_interval=1.0, autocommit=False)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.commit()
    assert not driver.mark().delta
    driver.advance(1.0)
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.feed(ANN2)
    driver.commit()
    assert driver.mark().delta
    driver.crash()
    with_interval(driver, "off")  # nothing but the delta may bring the keys back
    driver.broker.log("input", 0).truncate(3)
    driver.restore()
    assert agrees(driver, [ANN, BOB, ANN2])


def test_a4_a_delta_after_a_replay_holds_the_keys_of_the_gap() -> None:
    driver = Driver(Accounts, delta_interval=1.0, autocommit=False)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == 1
    driver.advance(1.0)
    driver.feed(BOB)
    driver.commit()
    assert driver.mark().delta
    driver.crash()
    driver.broker.log("input", 0).truncate(2)
    driver.restore()
    assert agrees(driver, [ANN, BOB])


@pytest.mark.parametrize("before", [5.0, "off"])
def test_a4_the_first_delta_holds_the_gap_also_when_every_commit_has_one_from_now_on(before: float) -> None:
    driver = Driver(Accounts, delta_interval=before)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    with_interval(driver, "commit")
    driver.restore()
    driver.feed(BOB)
    driver.commit()
    driver.crash()
    driver.restore()
    assert agrees(driver, [ANN, BOB])


# A5


@pytest.mark.parametrize("interval", ["commit", 0.5])
def test_a5_a_full_that_took_several_transactions_is_a_base_only_with_a_delta_after_it(interval: float) -> None:
    driver = Driver(Accounts, delta_interval=interval, autocommit=False)
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    driver._lanes[0].live().ask_full()
    while not driver._lanes[0].live().fulls.refs:
        op = Op(f"k{len(ops) * 7 % 40:03}", 1, size=900, close=len(ops) % 5 == 0)
        ops.append(op)
        driver.feed(op)
        driver.commit()
        driver.advance(0.2)
    ref = driver._lanes[0].live().fulls.refs[0]
    assert ref.first < ref.through
    first = next(mark for mark in marks(driver) if ref in mark.fulls)
    assert first.delta
    assert first.n >= ref.through
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == ref.offset
    assert agrees(driver, ops)


def test_a5_without_deltas_a_full_is_of_one_transaction() -> None:
    driver = Driver(Accounts, delta_interval="off")
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    ref = driver.take_full()
    assert ref is not None
    assert ref.first == ref.through
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == 1
    assert agrees(driver, [*ops, ANN])


# A6


def test_a6_a_slice_holds_committed_values_only() -> None:
    """A full goes on while a transaction is open; that transaction aborts for good."""
    driver = Driver(Accounts, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(interval=10.0))
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    live = driver._lanes[0].live()
    live.ask_full()
    while live.fulls._writer is None:
        driver.advance(0.2)
    chunks = driver.broker.log(driver.names.full, 0).end
    extra = [Op(op.account, 1000, size=1000) for op in ops]
    for op in extra:
        driver.feed(op)
        driver.clock.advance(0.001)
        live.fulls.between(live.committer.mark)
        driver.clock.advance(0.02)
    written = [records.unpack(message.value()) for message in driver.broker.log(driver.names.full, 0).committed()]
    assert len(written) > chunks > 0
    decode = EntryDecoder({"balances": str}).decode
    for chunk in [record for record in written if isinstance(record, Chunk)]:
        values = [msgspec.msgpack.decode(data or b"", type=Balance) for data in decode(chunk.entry).values]
        assert max(value.total for value in values) < 1000
    driver.crash()
    driver.restore()
    driver.commit()
    assert agrees(driver, [*ops, *extra])


# A7


def test_a7_a_commit_that_was_done_though_the_answer_says_fenced_is_not_done_again() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.broker.fail("commit", OutcomeUnknown("_FENCED"), after=True)
    driver.feed(BOB)
    assert agrees(driver, [ANN, BOB])
    assert events(driver, "settled")


def test_a7_the_number_of_a_transaction_is_not_enough() -> None:
    """Our n was aborted, another owner committed its own n; then we fence and read "n, as expected"."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    driver.commit()
    driver.feed(BOB)
    lane = driver._lanes[0]
    ours, track = lane.worker, lane._track

    def other_owner(name: Call) -> None:
        if name != "fence":
            return
        driver.broker.on_call = None
        lane.input.append(msgspec.json.encode(ANN2))
        lane.start()
        lane.commit()
        lane._worker, lane._track = ours, track

    driver.broker.fail("commit", OutcomeUnknown("no answer"))
    driver.broker.on_call = other_owner
    ours.commit()
    lane.run()
    lane.commit()
    assert len(marks(driver)) == 3
    assert agrees(driver, [ANN, BOB, ANN2])


# A8


class Order(Handler[int]):
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.out.send(record.offset)


def test_a8_what_is_undone_comes_before_what_waits_in_the_mailbox() -> None:
    driver = Driver(Order, autocommit=False, batch=5)
    driver.mark()
    lane = driver._lanes[0]
    assert lane._track is not None
    for low in (0, 5):
        for value in range(5):
            lane.input.append(b"%d" % (low + value))
        lane._track.hand_over(list(lane.input.committed(low)))
    driver.broker.fail("send", TransactionAborted("no"))
    lane.run()
    driver.commit()
    assert driver.outputs("out") == list(range(10))


def test_a8_a_batch_that_does_not_continue_is_refused() -> None:
    driver = Driver(Order, autocommit=False)
    driver.feed(0)
    lane = driver._lanes[0]
    offset = lane.input.append(b"7")
    late = list(lane.input.committed(offset))
    assert lane._track is not None
    lane.worker.mailbox.put(Batch(lane._track.stream, offset + 5, late))
    with pytest.raises(PartitionError, match="never arrived"):
        lane.run()


def test_a8_records_that_come_twice_and_gaps_of_aborted_records_are_fine() -> None:
    driver = Driver(Order, autocommit=False, batch=3)
    driver.mark()
    lane = driver._lanes[0]
    assert lane._track is not None
    for value in range(6):
        lane.input.append(b"%d" % value)
    lane.input.abort_record(3)
    records_ = list(lane.input.committed())
    for previous, batch in ((0, records_[:2]), (0, records_[:4]), (5, records_[4:])):
        lane.worker.mailbox.put(Batch(lane._track.stream, previous, batch))
    lane._track.next = 6
    lane.run()
    driver.commit()
    assert driver.outputs("out") == [0, 1, 2, 4, 5]


# A9


@pytest.mark.parametrize("reborn", [False, True])
def test_a9_keys_that_go_and_come_between_two_slices(reborn: bool) -> None:
    driver = Driver(Accounts, autocommit=False)
    sliced(driver)
    ops = many(24)
    for op in ops:
        driver.feed(op)
    driver.commit()
    driver._lanes[0].live().ask_full()
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


def test_a10_a_full_that_is_truncated_while_it_is_written_is_given_up() -> None:
    driver = Driver(Accounts)
    sliced(driver)
    ops = many(24)
    for op in ops:
        driver.feed(op)
    driver.commit()
    full = driver.broker.log(driver.names.full, 0)

    def truncate() -> None:
        driver.clock.advance(0.006)
        full.truncate(2)

    driver.broker.on_chunk = truncate
    assert driver.take_full() is None
    assert "truncated while it was written" in str(events(driver, "full_given_up")[-1]["cause"])
    assert driver.mark().fulls == ()
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_a10_a_reference_is_a_hint_and_another_full_is_taken() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    older = driver.take_full()
    driver.feed(BOB)
    newer = driver.take_full()
    assert older is not None
    assert newer is not None
    full = driver.broker.log(driver.names.full, 0)
    full.replace(newer.low, b"garbage")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == older.offset
    assert events(driver, "full_unusable")[-1]["full"] == newer.offset
    assert agrees(driver, [ANN, BOB])


def test_a10_fulls_that_are_gone_do_not_count_as_kept() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=2)
    driver.feed(ANN)
    first = driver.take_full()
    assert first is not None
    full, increment = (driver.broker.log(topic, 0) for topic in (driver.names.full, driver.names.increment))
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
    increment = driver.broker.log(driver.names.increment, 0)
    asked = [0]

    def overtake(topic: str, partition: int) -> None:
        if topic == driver.names.increment:
            asked[0] += 1
            if asked[0] == 3:  # the deltas of the first attempt
                increment.truncate(increment.start + 1)

    driver.broker.on_read = overtake
    driver.restore()
    assert agrees(driver, [ANN, BOB, ANN2])


# The group's offset (rule D6)


@pytest.mark.parametrize(
    ("committed", "accepted"), [(None, True), (1, True), (2, True), (0, False), (3, False), (17, False)]
)
def test_the_mark_is_the_truth_and_the_group_offset_may_only_be_one_transaction_behind(
    committed: int | None, accepted: bool
) -> None:
    driver = Driver(Accounts)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.commit()
    driver.crash()
    if committed is None:
        driver.broker.offsets.clear()
    else:
        driver.broker.offsets["input", 0] = committed
    if not accepted:
        with pytest.raises(OffsetDisagrees, match="--to-offset 2"):
            driver.restore()
        return
    driver.restore()
    driver.feed(ANN2)
    assert agrees(driver, [ANN, BOB, ANN2])
    assert driver.broker.offsets["input", 0] == 3
