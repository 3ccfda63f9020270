"""The group decides who owns a partition; a missing answer decides nothing (rule T8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import inside
from tests.support.handlers import Accounts

from statehold.errors import Fenced, KafkaTrouble
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryOffsets
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.signals import Signals


class Answers(MemoryOffsets):
    """Returns the given answers, each one session timeout later than the previous one."""

    def __init__(self, driver: Driver, answers: list[bool | None]) -> None:
        super().__init__(driver.broker)
        self.clock, self.session = driver.clock, driver.settings.group.session_seconds
        self.answers = answers

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        self.clock.advance(self.session)
        answer = self.answers.pop(0)
        if answer is None:
            raise KafkaTrouble("no answer")
        return answer


def ownership(*answers: bool | None) -> tuple[Ownership, Answers]:
    driver = Driver(Accounts)
    offsets = Answers(driver, list(answers))
    return Ownership(replace(inside.tools(driver), offsets=offsets), Signals()), offsets


def test_a_missing_answer_does_not_mean_another_owner() -> None:
    asked, offsets = ownership(None, None, None, True)
    asked.await_confirmation()
    assert offsets.answers == []


def test_another_owner_for_a_whole_session_ends_the_ownership() -> None:
    asked, _ = ownership(None, False, False, True)
    with pytest.raises(Fenced, match="names another owner"):
        asked.await_confirmation()


def test_a_fresh_assignment_needs_no_confirmation() -> None:
    asked, offsets = ownership(False)
    asked.assigned(offsets.clock())
    asked.ascertain()
    assert offsets.answers == [False]


def test_an_assignment_that_has_waited_for_this_process_is_confirmed_before_a_fence() -> None:
    """The process was frozen: another owner may have the partition, and must not be fenced."""
    asked, offsets = ownership(False, False)
    asked.assigned(offsets.clock() - offsets.session)
    with pytest.raises(Fenced, match="names another owner"):
        asked.ascertain()


def test_a_delayed_answer_is_as_old_as_its_request() -> None:
    asked, offsets = ownership(True, False)
    asked.doubt()
    with pytest.raises(Fenced, match="names another owner"):
        asked.ascertain()
    assert offsets.answers == []


def test_a_missing_answer_does_not_permit_another_fence() -> None:
    asked, _ = ownership(None, False, True)
    assert [asked.may_fence_again() for _ in range(3)] == [False, False, True]


def test_a_process_that_is_fenced_too_often_waits_for_the_window() -> None:
    limits = Driver(Accounts).settings.failure
    asked, offsets = ownership(*[True] * (limits.fence_limit + 1))
    offsets.session = 0.0
    assert all(asked.may_fence_again() for _ in range(limits.fence_limit))
    assert not asked.may_fence_again()
    offsets.clock.advance(limits.fence_window)
    assert asked.may_fence_again()
