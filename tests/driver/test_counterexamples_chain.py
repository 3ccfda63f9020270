"""A1 to A4 of the counterexamples that the rules of the protocol answer: marks, tears, digests, deltas.

A2 as a table of record sequences is in tests/unit/test_chain.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.handlers import Accounts, Op, agrees, commit_records, events, snapshot, with_interval

from statehold import Handler, Output, Record, Table
from statehold.errors import (
    DamagedIncrement,
    NoCommitRecord,
    NonDeterministicReplay,
    OffsetDisagrees,
    TornTransaction,
    TransactionAborted,
)
from statehold.testing import Driver
from statehold.testing.memory.broker import Call

ANN, BOB, ANN2 = Op("ann", 1), Op("bob", 2), Op("ann", 4)


# A1


def test_a1_truncation_never_deletes_the_last_commit_record() -> None:
    driver = Driver(Accounts)
    snapshot(driver, keep=1)
    driver.feed(ANN)
    for _ in range(4):
        assert driver.take_full() is not None
    assert driver.broker.log(driver.names.changelog, 0).start > 0
    driver.crash()
    driver.restore()
    assert agrees(driver, [ANN])


def test_a1_an_idle_partition_takes_one_full_snapshot_and_not_one_every_interval() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.advance(3600)
    assert len(events(driver, "full_written")) == 1


def test_a1_a_changelog_that_lost_its_commit_records_is_no_first_start() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    log = driver.broker.log(driver.names.changelog, 0)
    log.truncate(log.end)
    with pytest.raises(DamagedIncrement, match="was there and is gone"):
        driver.restore()


@pytest.mark.parametrize(("begins", "said"), [(0, "all of it is there"), (1, "input begins at offset 1")])
def test_a1_with_both_topics_emptied_the_error_names_what_is_left(begins: int, said: str) -> None:
    """There is nothing that `repair rebase` could continue from."""
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.feed(BOB)
    assert driver.take_full() is not None
    driver.crash()
    for topic in (driver.names.changelog, driver.names.snapshot):
        log = driver.broker.log(topic, 0)
        log.truncate(log.end)
    driver.broker.log("input", 0).truncate(begins)
    with pytest.raises(DamagedIncrement, match="holds no full snapshot from which") as failure:
        driver.restore()
    assert said in str(failure.value)
    for command in ("snapshot restore MODULE:SERVICE --from DIR", "topics create MODULE:SERVICE --start-at beginning"):
        assert f"`statehold {command}" in str(failure.value)


def test_a1_an_untouched_changelog_is_no_first_start_either() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.crash()
    del driver.broker.logs[driver.names.changelog, 0]
    with pytest.raises(NoCommitRecord, match="topics create --start-at"):
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
    driver.broker.suspicion = ""
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
    assert len(commit_records(driver)) == 2


def test_a3_with_a_delta_in_every_commit_such_a_handler_is_fine() -> None:
    driver = Driver(Weather)
    driver.feed_all([1, 2])
    before = driver.table("seen")
    driver.crash()
    driver.restore()
    assert driver.table("seen") == before


def test_a3_every_commit_record_carries_the_digest_of_its_state() -> None:
    driver = Driver(Accounts, delta_interval="off", autocommit=False)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.commit()
    digests = [commit_record.digest for commit_record in commit_records(driver)]
    assert len(set(digests)) == 3
    assert [commit_record.delta for commit_record in commit_records(driver)] == [True, False, False]


# A4


def test_a4_a_delta_that_aborts_is_not_forgotten() -> None:
    driver = Driver(Accounts, delta_interval=1.0, autocommit=False)
    for op in (ANN, BOB):
        driver.feed(op)
        driver.commit()
    assert not driver.commit_record().delta
    driver.advance(1.0)
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.feed(ANN2)
    driver.commit()
    assert driver.commit_record().delta
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
    assert driver.commit_record().delta
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


# The group's offset (rule D6)


@pytest.mark.parametrize(
    ("committed", "accepted"), [(None, True), (1, True), (2, True), (0, False), (3, False), (17, False)]
)
def test_the_commit_record_is_the_truth_and_the_group_offset_may_only_be_one_transaction_behind(
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
        with pytest.raises(
            OffsetDisagrees,
            match=r"the last commit record has 2 .*repair adopt-offsets MODULE:SERVICE --from commit-record\|group",
        ):
            driver.restore()
        return
    driver.restore()
    driver.feed(ANN2)
    assert agrees(driver, [ANN, BOB, ANN2])
    assert driver.broker.offsets["input", 0] == 3
