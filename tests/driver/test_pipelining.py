"""A transaction is handled while the one before it commits: nothing is lost or twice (rule T7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, commit_records, events, sliced

from statehold import Handler, Record, Table
from statehold.config.sections.processing import CommitSettings
from statehold.errors import (
    Fenced,
    HandlerFailed,
    MessageRefused,
    OutcomeUnknown,
    OutputRefused,
    ProducerFenced,
    StateholdError,
    TransactionAborted,
)
from statehold.testing import Driver
from statehold.testing.memory.broker import Call

OLDER = [Op("ann", 1), Op("bob", 2), Op("cid", 3)]
#: touches a key of the older transaction, closes one of it, and opens a new one
AHEAD = [Op("ann", 10), Op("bob", close=True), Op("eve", 5)]


class Picky(Accounts):
    """Raises at one account."""

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        if record.value.account == "bad":
            raise ValueError("bad")


class Silent(Handler[Op]):
    """Sends nothing, so only a commit begins its transactions."""

    seen = Table(key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        self.seen[record.value.account] = self.seen.get(record.value.account, 0) + 1


def in_flight(handler: type[Accounts] = Accounts, ahead: int = 1) -> Driver:
    """The older transaction is committing, the first records of `AHEAD` are handled; nothing has reached the broker."""
    driver = Driver(handler, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=len(OLDER)))
    for op in OLDER:
        driver.feed(op)
    live = inside.lanes(driver)[0].live()
    assert live.transaction.commit is not None
    for op in AHEAD[:ahead]:
        driver.feed(op)
    assert live.transaction.commit is not None
    assert live.transaction.position == len(OLDER) + ahead
    assert [commit_record.n for commit_record in commit_records(driver)] == [0]
    return driver


def test_the_transaction_ahead_reads_the_committing_one_and_neither_is_visible_before_its_commit() -> None:
    driver = in_flight()
    assert driver.table("balances")["ann"].total == 11
    assert driver.outputs("totals") == []
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:1]])
    assert [commit_record.n for commit_record in commit_records(driver)] == [0, 1, 2]


def test_a_record_that_is_handled_during_a_commit_does_not_touch_the_producer() -> None:
    """The commit's thread alone uses it (pitfall 7), also if no send has begun the transaction before."""
    driver = Driver(Silent, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=len(OLDER)))
    driver.feed(OLDER[0])
    driver.commit()
    live = inside.lanes(driver)[0].live()
    live.transaction.hold_outputs = True
    for op in OLDER:
        driver.feed(op)
    assert live.transaction.commit is not None
    producer = live.transaction.kafka.producer
    asked: list[bool] = []

    class Watched(type(producer)):  # type: ignore[misc]
        @property
        def suspicion(self) -> str:
            asked.append(True)
            return ""

        @suspicion.setter
        def suspicion(self, why: str) -> None: ...

    producer.__class__ = Watched
    driver.feed(AHEAD[0])
    assert live.transaction.commit is not None
    assert asked == []
    driver.commit()
    assert driver.table("seen") == {"ann": 3, "bob": 1, "cid": 1}


def test_at_most_one_transaction_is_ahead() -> None:
    driver = in_flight()
    for op in AHEAD[1:]:
        driver.feed(op)
    assert commit_records(driver)[-1].n >= 1
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD])


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize(
    "error", [OutcomeUnknown("?"), TransactionAborted("no"), TransactionAborted("moved", stale=True)]
)
@pytest.mark.parametrize("call", ["offsets", "increment", "commit"])
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_failed_commit_rolls_back_the_transaction_ahead(
    call: Call, error: StateholdError, after: bool, ahead: int
) -> None:
    if call == "commit":
        error = OutcomeUnknown(str(error))
    driver = in_flight(ahead=ahead - 1)
    driver.broker.fail(call, error, after=after)
    for op in AHEAD[ahead - 1 :]:
        driver.feed(op)
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD])
    driver.crash()
    driver.restore()
    assert agrees(driver, [*OLDER, *AHEAD])


@pytest.mark.parametrize("call", ["begin", "send"])
@pytest.mark.parametrize("error", [OutcomeUnknown("?"), TransactionAborted("no")])
def test_the_transaction_ahead_is_rolled_back_alone_when_kafka_rejects_it(call: Call, error: StateholdError) -> None:
    driver = in_flight()
    driver.broker.fail(call, error)
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:1]])
    assert [commit_record.n for commit_record in commit_records(driver)] == [0, 1, 2]
    rolled = events(driver, "rolled_back")
    assert [event["records"] for event in rolled] == ([1] if isinstance(error, TransactionAborted) else [])


def test_a_record_that_fails_ahead_leaves_what_is_committing_alone() -> None:
    driver = in_flight(Picky)
    calls: list[str] = []
    driver.broker.on_call = calls.append
    with pytest.raises(HandlerFailed, match="@4"):
        driver.feed(Op("bad"))
    assert [call for call in calls if call in ("commit", "abort")] == ["commit", "commit"]
    driver.withdraw()
    driver.feed(AHEAD[1])
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:2]])


def test_a_record_that_fails_ahead_of_a_commit_that_fails_is_found_again() -> None:
    driver = in_flight(Picky)
    driver.broker.fail("offsets", TransactionAborted("no"))
    with pytest.raises(HandlerFailed, match="@4"):
        driver.feed(Op("bad"))
    driver.withdraw()
    assert agrees(driver, [*OLDER, *AHEAD[:1]])


def test_the_record_whose_output_is_rejected_is_found_among_those_ahead() -> None:
    driver = in_flight(ahead=2)
    driver.broker.fail("send", MessageRefused("too large"), times=1)
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:2]])
    driver = in_flight(ahead=1)
    driver.broker.fail("send", MessageRefused("too large"), times=1_000)
    with pytest.raises(OutputRefused, match="@3"):
        driver.commit()
    assert commit_records(driver)[-1].positions == {"input": 3}


@pytest.mark.parametrize("call", ["offsets", "commit", "begin"])
def test_fenced_with_a_transaction_ahead_is_final(call: Call) -> None:
    driver = in_flight()
    driver.broker.fail(call, ProducerFenced("epoch"))
    with pytest.raises(Fenced):
        driver.commit()
    driver.restore()
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:1]])


def test_killed_with_both_open_the_next_owner_handles_both() -> None:
    driver = in_flight()
    driver.crash()
    driver.restore()
    driver.commit()
    assert agrees(driver, [*OLDER, *AHEAD[:1]])


def test_a_full_snapshot_never_sees_what_is_committing_or_ahead() -> None:
    """Every slice reads committed state: a full of the middle of it all restores to what the marks say."""
    driver = Driver(Accounts, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=7))
    sliced(driver)
    ops = [Op(f"k{i % 40}", i, size=900) for i in range(400)]
    for i, op in enumerate(ops):
        if i == 120:
            inside.lanes(driver)[0].live().full_snapshots.ask()
        driver.clock.advance(0.01)
        driver.feed(op)
    driver.commit()
    full = next(
        commit_record.full_snapshots[0] for commit_record in commit_records(driver) if commit_record.full_snapshots
    )
    assert full.through > full.first
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)
    assert events(driver, "restored")[-1]["full"] == full.offset


steps = st.lists(
    st.one_of(
        st.integers(0, 3),
        st.sampled_from(["offsets", "commit", "increment", "send", "begin", "tick", "crash", "poison", "rebalance"]),
    ),
    max_size=60,
)


@given(steps)
def test_any_history_is_exactly_once_with_pipelining(steps: list[int | str]) -> None:
    driver = Driver(Picky, autocommit=False)
    driver.position()
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=2))
    ops: list[Op] = []
    faults = 8  # more in a row would fail the partition
    for step in steps:
        match step:
            case int():
                ops.append(Op(f"k{step}", len(ops), close=step == 3 and len(ops) % 2 == 0))
                driver.feed(ops[-1])
            case "tick":
                driver.advance(0.06)
            case "crash":
                driver.crash()
                driver.restore()
            case "rebalance":
                driver.rebalance()
            case "poison":
                with pytest.raises(HandlerFailed):
                    driver.feed(Op("bad"))
                driver.withdraw()
            case "commit" if faults:
                faults -= 1
                driver.broker.fail("commit", OutcomeUnknown("?"), after=len(ops) % 2 == 0)
            case "offsets" | "increment" | "send" | "begin" if faults:
                faults -= 1
                driver.broker.fail(step, TransactionAborted("no"))
    driver.commit()
    assert agrees(driver, ops)
