"""A decision about a failed record is kept until the record has committed, and no longer."""

from __future__ import annotations

from typing import Any

from statehold.worker.handler.dead_letters import undeclared_book


def test_decisions_are_dropped_with_the_commit_of_their_records() -> None:
    book = undeclared_book(None, 0, [], muted=False)
    decision: Any = object()
    book.decisions = {("input", 3): decision, ("input", 4): decision, ("other", 9): decision}
    book.passed({"input": 4})
    assert set(book.decisions) == {("input", 4), ("other", 9)}
    book.passed({"input": 5, "other": 10})
    assert book.decisions == {}
