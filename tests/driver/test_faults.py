"""Faults of the broker at every call: outputs and state stay exactly once, or a typed error says why (rules T4-T6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import Accounts, Interval, Op, agrees, with_interval

from statehold.errors import (
    Fenced,
    MessageRefused,
    OutcomeUnknown,
    OutputRefused,
    ProducerFenced,
    StateholdError,
    TornTransaction,
    TransactionAborted,
)
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
from statehold.testing.stepped import EventLog
from statehold.worker.common.lifecycle import Phase

CALLS: tuple[Call, ...] = ("begin", "send", "increment", "offsets", "commit")
FIRST, SECOND, THIRD = Op("ann", 1), Op("ann", 2), Op("bob", 3)


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize(
    "error", [OutcomeUnknown("?"), TransactionAborted("no"), TransactionAborted("moved", stale=True)], ids=str
)
@pytest.mark.parametrize("call", CALLS)
def test_one_failing_call_costs_nothing(call: Call, error: StateholdError, after: bool) -> None:
    if call == "commit":
        error = OutcomeUnknown(str(error))  # what the port promises for any error of this call
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.broker.fail(call, error, after=after)
    driver.feed(SECOND)
    driver.feed(THIRD)
    assert agrees(driver, [FIRST, SECOND, THIRD])
    driver.crash()
    driver.restore()
    assert agrees(driver, [FIRST, SECOND, THIRD])


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done, answer lost"])
def test_an_abort_whose_outcome_is_unknown_is_resolved(after: bool) -> None:
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.broker.fail("abort", OutcomeUnknown("?"), after=after)
    driver.feed(SECOND)
    assert agrees(driver, [FIRST, SECOND])
    driver.crash()
    driver.restore()
    assert agrees(driver, [FIRST, SECOND])


def feed_and_commit(driver: Driver, op: Op) -> None:
    driver.feed(op)
    driver.commit()


@pytest.mark.parametrize("call", ["begin", "send", "increment", "offsets", "commit", "abort"])
def test_fenced_is_final_and_a_new_owner_continues(call: Call) -> None:
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    if call == "abort":
        driver.broker.fail("offsets", TransactionAborted("no"))
    driver.broker.fail(call, ProducerFenced("epoch"))
    with pytest.raises(Fenced):
        feed_and_commit(driver, SECOND)
    driver.restore()
    assert agrees(driver, [FIRST, SECOND])


def test_a_zombie_cannot_commit_and_leaves_no_output() -> None:
    """Invariant 1: the producer that fences owns."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.commit()
    driver.feed(SECOND)
    zombie = inside.lanes(driver)[0].worker
    driver.restore()
    driver.commit()
    zombie.commit()
    assert isinstance(zombie.cause, Fenced)
    assert agrees(driver, [FIRST, SECOND])
    driver.feed(THIRD)
    driver.commit()
    assert agrees(driver, [FIRST, SECOND, THIRD])


def test_a_commit_record_between_read_and_fence_is_not_missed() -> None:
    """5.3: the old owner commits while the new one is about to fence; the new one reads after its fence."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.commit()
    driver.feed(SECOND)
    old = inside.lanes(driver)[0].worker
    fence = driver.broker.fence

    def slow_fence(transactional_id: str) -> int:
        old.commit()
        return fence(transactional_id)

    driver.broker.fence = slow_fence  # type: ignore[method-assign]
    driver.restore()
    assert driver.commit_record().n == 2
    assert agrees(driver, [FIRST, SECOND])


def test_an_output_that_is_rejected_names_its_record() -> None:
    driver = Driver(Accounts, batch=3)
    driver.feed(FIRST)
    driver.feed(SECOND)
    for _ in range(2):  # in the batch, and again when its record is handled alone
        driver.broker.fail("send", MessageRefused("too large"))
    with pytest.raises(OutputRefused, match=r"input\[0\]@0: send an output: the broker rejected it: too large"):
        driver.feed(THIRD)
    driver.restore()
    driver.commit()
    assert agrees(driver, [FIRST, SECOND, THIRD])


def test_without_group_metadata_nothing_is_committed() -> None:
    driver = Driver(Accounts)
    driver.feed(FIRST)
    driver.commit()
    driver.rebalance()
    driver.feed(SECOND)
    assert agrees(driver, [FIRST, SECOND])
    assert [event for event, _ in driver.events].count("rolled_back") == 1
    assert driver.broker.offsets["input", 0] == 2


def test_a_held_end_request_cannot_tear_the_next_transaction() -> None:
    """Rule T2: the suspicion is asked before every begin."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.broker.hold_next_end()
    driver.commit()
    driver.feed(SECOND)
    driver.broker.release()
    driver.feed(THIRD)
    driver.commit()
    assert agrees(driver, [FIRST, SECOND, THIRD])
    assert "producer_replaced" in [event for event, _ in driver.events]


def test_a_held_end_request_cannot_tear_a_commit_record_alone() -> None:
    """Rule T2 for the renewal of an idle partition: it begins a transaction, too, and no record asks before it."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.broker.hold_next_end()
    driver.commit()
    before = driver.commit_record()
    replaced: list[bool] = []

    def begins(call: Call) -> None:
        if call == "begin":
            replaced.append("producer_replaced" in [event for event, _ in driver.events])

    driver.broker.on_call = begins
    driver.advance(2 * driver.settings.commit.renew_after)
    assert replaced
    assert replaced[0], "a transaction was begun by a producer whose last request may still be under way"
    assert driver.commit_record().n > before.n
    driver.broker.release()
    assert agrees(driver, [FIRST])


def test_after_an_abort_a_suspect_producer_does_not_commit() -> None:
    """Brokers may have left the aborted records open, and this commit would commit them (guarantees N10)."""
    driver = Driver(Accounts, autocommit=False)
    driver.broker.fail("offsets", TransactionAborted("no"))
    driver.feed(FIRST)
    driver.feed(SECOND)
    calls: list[Call] = []

    def lose_the_connection(call: Call) -> None:
        calls.append(call)
        if calls.count("offsets") == 2 and "fence" not in calls:
            live = inside.lanes(driver)[0].worker.live
            assert live is not None
            live.pipeline.state.kafka.producer.suspicion = "a connection was lost"  # type: ignore[misc]

    driver.broker.on_call = lose_the_connection
    driver.commit()
    assert calls.index("fence") < calls.index("commit")
    assert agrees(driver, [FIRST, SECOND])


@pytest.mark.parametrize("suspect", [False, True])
def test_a_partition_that_fails_aborts_unless_its_producer_is_suspect(suspect: bool) -> None:
    """An abort over a lost connection may end the process by an assertion of librdkafka (guarantees N9)."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    worker = inside.lanes(driver)[0].worker
    assert worker.live is not None
    if suspect:
        worker.live.pipeline.state.kafka.producer.suspicion = "a connection was lost"  # type: ignore[misc]
    calls: list[Call] = []
    driver.broker.on_call = calls.append
    worker.fail(ValueError("the input is gone"))
    worker.step()
    assert worker.phase is Phase.FAILED
    assert calls.count("abort") == (not suspect)


def test_a_rebalance_is_reported_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(EventLog, "warning", lambda _log, event, **_: warned.append(event))
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.broker.generation += 1
    driver.commit()
    (cause,) = [fields["cause"] for event, fields in driver.events if event == "rolled_back"]
    assert cause.startswith("the group has rebalanced: ILLEGAL_GENERATION")
    assert warned == []


def test_a_command_of_an_undone_transaction_is_acknowledged_once() -> None:
    """Rule T5."""
    driver = Driver(Accounts, autocommit=False)
    driver.command("hello")
    driver.broker.fail("send", TransactionAborted("no"))
    driver.feed(FIRST)
    driver.commit()
    assert "rolled_back" in [event for event, _ in driver.events]
    assert [command.name for command in driver.commit_record().commands] == ["hello"]


def test_with_a_state_in_memory_the_group_is_asked_before_a_second_fence() -> None:
    """Rule T8: however lately it said who the owner is; a lost connection may be a zombie's first sign."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(FIRST)
    driver.broker.hold_next_end()
    driver.commit()
    inside.lanes(driver)[0].worker._ownership.assigned(driver.clock())
    driver.offsets.owner = False
    with pytest.raises(Fenced, match="the group names another owner"):
        driver.feed(SECOND)


def test_an_unnoticed_tear_is_rejected_at_once() -> None:
    """A2, row 2: half a transaction is visible; memory must not be kept and the transaction not be repeated."""
    driver = Driver(Accounts, autocommit=False)
    driver.broker.suspicion = ""
    driver.feed(FIRST)
    driver.broker.hold_next_end()
    driver.commit()
    driver.feed(SECOND)
    driver.broker.release()
    with pytest.raises(TornTransaction, match="torn commit"):
        driver.feed(THIRD)
    assert driver.outputs("totals") == [1, 3]
    with pytest.raises(TornTransaction):
        driver.restore()


def restart(driver: Driver, interval: Interval | None = None) -> None:
    driver.crash()
    if interval is not None:
        with_interval(driver, interval)
    driver.restore()


def stop(driver: Driver) -> None:
    driver.stop()
    driver.restore()


def takeover(driver: Driver) -> None:
    """The old owner does not know, and continues."""
    old = inside.lanes(driver)[0].worker
    driver.restore()
    old.commit()
    assert old.phase is not Phase.CLOSED


def aborted_input(driver: Driver) -> None:
    log = driver.broker.log("input", 0)
    log.abort_record(log.append(b"never committed"))


ACTIONS: dict[str, Callable[[Driver], object]] = {
    "commit": Driver.commit,
    "crash": restart,
    "rebalance": Driver.rebalance,
    "full": Driver.take_full,
    "wait": lambda driver: driver.advance(1.0),
    "stop": stop,
    "aborted input": aborted_input,
    "hold": lambda driver: driver.broker.hold_next_end(),
    "release": lambda driver: driver.broker.release(),
    "takeover": takeover,
}


def apply(driver: Driver, step: Any) -> None:
    """One step of a history; a fault may only ever surface as trouble that a restart cures."""
    try:
        match step:
            case Op():
                driver.feed(step)
            case str():
                ACTIONS[step](driver)
            case ("interval", interval):
                restart(driver, interval)
            case (call, after):
                unknown = call in ("commit", "abort")
                error: Exception = OutcomeUnknown("fault") if unknown else TransactionAborted("fault")
                driver.broker.fail(call, error, after=after)
    except (TransactionAborted, OutcomeUnknown):
        inside.forget_faults(driver.broker)
        driver.restore()


steps = st.lists(
    st.one_of(
        st.builds(
            Op,
            account=st.sampled_from("abc"),
            amount=st.integers(-5, 5),
            close=st.booleans(),
            size=st.sampled_from([0, 3000]),
        ),
        st.sampled_from(sorted(ACTIONS)),
        st.tuples(st.sampled_from((*CALLS, "abort", "fence", "full", "ask")), st.booleans()),
        st.sampled_from(["commit", 0.5, "off"]).map(lambda interval: ("interval", interval)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps, interval=st.sampled_from(["commit", 0.5, "off"]), batch=st.sampled_from([1, 2, 5]))
def test_any_history_is_exactly_once(steps: list[object], interval: Interval, batch: int) -> None:
    """Random records, crashes, faults at any call, snapshots, and changes of the delta interval at restarts."""
    driver = Driver(Accounts, autocommit=False, batch=batch, delta_interval=interval)
    driver.commit_record()
    driver.broker.on_chunk = lambda: driver.clock.advance(0.01)
    ops: list[Op] = []
    for step in steps:
        if isinstance(step, Op):
            ops.append(step)
        apply(driver, step)
    inside.forget_faults(driver.broker)
    driver.commit()
    assert agrees(driver, ops)
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)
    driver.replay()
