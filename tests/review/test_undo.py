"""A producer whose failure shows only after an abort is fenced or replaced like any other."""

from __future__ import annotations

import pytest
from tests.driver.apps import Accounts, Op, agrees

from statehold.errors import Fenced, KafkaTrouble, OutcomeUnknown, ProducerFenced, TransactionAborted
from statehold.ports import Membership
from statehold.testing import Driver, wiring
from statehold.testing.clients import MemoryTransactions

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


def test_without_group_metadata_a_transaction_waits_for_the_manager() -> None:
    made = Driver(Accounts)
    made._membership = Membership(1, None, "driver")
    made.feed(FIRST)
    made.commit()
    assert made._membership.metadata is not None  # the worker has asked for it
    causes = [fields["cause"] for event, fields in made.events if event == "rolled_back"]
    assert causes == ["the group metadata is not known yet"]
    assert agrees(made, [FIRST])
