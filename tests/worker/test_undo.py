"""A producer whose failure shows only after an abort is fenced or replaced like any other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees

from statehold.errors import Fenced, KafkaTrouble, OutcomeUnknown, ProducerFenced, TransactionAborted
from statehold.ports import Membership
from statehold.testing import Driver, wiring
from statehold.testing.memory.clients import MemoryTransactions
from statehold.worker.common.errors import ProducerDropped
from statehold.worker.loop import LiveLoop
from statehold.worker.transaction.kafka_transaction import Stage

FIRST, SECOND = Op("ann", 1), Op("bob", 2)


class Dying(MemoryTransactions):
    """Reports its failure once, after an abort."""

    cause: KafkaTrouble | None = None
    aborted = False

    def abort(self) -> None:
        super().abort()
        self.aborted = True

    @property
    def suspicion(self) -> str:
        if self.aborted and Dying.cause is not None:
            cause, Dying.cause = Dying.cause, None
            raise cause
        return ""

    @suspicion.setter
    def suspicion(self, reason: str) -> None: ...


def aborted(monkeypatch: pytest.MonkeyPatch, cause: KafkaTrouble) -> Driver:
    monkeypatch.setattr(wiring, "MemoryTransactions", Dying)
    made = Driver(Accounts)
    made.feed(FIRST)
    made.commit()
    made.broker.fail("offsets", TransactionAborted("no"))
    Dying.cause = cause
    return made


def test_the_last_commit_record_resolves_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    made = aborted(monkeypatch, OutcomeUnknown("_FATAL"))
    made.feed(SECOND)
    assert agrees(made, [FIRST, SECOND])


def test_a_new_owner_fences_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = aborted(monkeypatch, ProducerFenced("_FENCED"))
    made.feed(SECOND)
    with pytest.raises(Fenced):
        made.commit()
    made.restore()
    assert agrees(made, [FIRST, SECOND])


class Torn(MemoryTransactions):
    """Loses a connection during an abort."""

    def abort(self) -> None:
        super().abort()
        self.suspicion = "a connection was lost"


def test_after_an_abort_over_a_lost_connection_only_the_last_commit_record_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "MemoryTransactions", Torn)
    made = Driver(Accounts)
    made.broker.fail("offsets", TransactionAborted("no"))
    made.feed(FIRST)
    made.commit()
    seen = [event for event, _ in made.events]
    assert "outcome_resolved" in seen
    assert "rolled_back" not in seen  # nothing was handled again before the fence
    assert agrees(made, [FIRST])


def test_without_group_metadata_a_transaction_waits_for_the_manager() -> None:
    made = Driver(Accounts)
    made._membership = Membership(1, None, "driver")
    made.feed(FIRST)
    made.commit()
    assert made._membership.metadata is not None  # the worker has asked for it
    causes = [fields["cause"] for event, fields in made.events if event == "rolled_back"]
    assert causes == ["the group has rebalanced: the group metadata is not known yet"]
    assert agrees(made, [FIRST])


def long_open() -> tuple[Driver, LiveLoop]:
    """Return a partition whose transaction has been open for as long as the broker allows."""
    made = Driver(Accounts)
    made.feed(FIRST)
    live = inside.lane(made).live()
    live.turn()
    assert live.transaction.kafka.stage is Stage.OPEN
    made.clock.advance(made.settings.commit.transaction_timeout)
    return made, live


def test_the_broker_has_ended_a_transaction_that_was_open_for_too_long() -> None:
    _, live = long_open()
    assert isinstance(live.pipeline.rollback.fenced(ProducerFenced("epoch")), ProducerDropped)
    live.transaction.kafka.stage = Stage.CLOSED  # then it had none to end
    assert isinstance(live.pipeline.rollback.fenced(ProducerFenced("epoch")), Fenced)


def test_a_fence_of_a_lost_partition_is_the_new_owners() -> None:
    _, live = long_open()
    live._signals.lose()
    assert not isinstance(live.pipeline.rollback.fenced(ProducerFenced("epoch")), ProducerDropped)


def test_a_fence_within_the_time_of_a_transaction_is_another_owners() -> None:
    made, live = long_open()
    live.transaction.kafka.began = made.clock()
    assert isinstance(live.pipeline.rollback.fenced(ProducerFenced("epoch")), Fenced)


class Noted(MemoryTransactions):
    """Notes fences and drops."""

    calls: list[str] = []  # noqa: RUF012 - of all producers

    def fence(self, cancelled: Any) -> None:
        Noted.calls.append("fence")
        super().fence(cancelled)

    def drop(self) -> None:
        Noted.calls.append("drop")
        super().drop()


def test_the_old_producer_is_dropped_before_the_next_one_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "MemoryTransactions", Noted)
    made = Driver(Accounts)
    made.feed(FIRST)
    made.commit()
    Noted.calls = []
    made.broker.fail("commit", OutcomeUnknown("_TIMED_OUT"))
    made.feed(SECOND)
    made.commit()
    assert Noted.calls == ["drop", "fence"]
    assert agrees(made, [FIRST, SECOND])


def test_memory_is_kept_only_for_the_very_record_that_was_expected_or_the_one_before() -> None:
    made = Driver(Accounts)
    made.feed(FIRST)
    made.commit()
    live = inside.lane(made).live()
    kafka, pipeline = live.transaction.kafka, live.pipeline
    same = live.record
    others = msgspec.structs.replace(same, attempt="another owner's")
    assert not pipeline.resume(others, kafka)  # the number of the one before, and not that record

    kafka.expected = msgspec.structs.replace(same, n=same.n + 1)
    in_flight: Any = object()
    live.transaction.commit = in_flight
    assert not pipeline.resume(msgspec.structs.replace(kafka.expected, attempt="another owner's"), kafka)
    assert live.record is same

    assert pipeline.resume(same, kafka)
    assert live.transaction.commit is None
