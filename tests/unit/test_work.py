"""Which records come next: nothing that was taken is ever lost, and a failing record is found."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.messages import batch

from statehold.errors import HandlerFailed
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.transaction.record_buffer import Work, offset


def poison(at: int, *, whole_batch: bool = False) -> Poisoned:
    return Poisoned(at, HandlerFailed("raised", topic="input", partition=0, position=at), batch=whole_batch)


def taken(work: Work, room: int = 100) -> list[int]:
    return [offset(message) for message in work.next(room) or ()]


def test_batches_come_as_they_went_in_and_no_larger_than_there_is_room() -> None:
    work = Work()
    work.add(batch(0, 1, 2))
    work.add(batch(5, 6))
    assert [taken(work, 2), taken(work), taken(work), taken(work)] == [[0, 1], [2], [5, 6], []]
    assert work.undo() == 5


def test_without_room_nothing_is_given() -> None:
    work = Work()
    work.add(batch(0, 1))
    assert work.next(0) is None
    assert taken(work) == [0, 1]


def test_what_is_undone_comes_first_again() -> None:
    work = Work()
    work.add(batch(0, 1))
    work.add(batch(2))
    taken(work)
    assert work.undo() == 2
    work.add(batch(3))
    assert [taken(work), taken(work), taken(work)] == [[0, 1], [2], [3]]


def test_what_is_committed_does_not_come_again() -> None:
    work = Work()
    work.add(batch(0, 1))
    taken(work)
    work.close()
    work.committed()
    assert work.undo() == 0
    assert not work.waiting


def test_what_is_closed_and_what_is_ahead_of_it_are_undone_together() -> None:
    work = Work()
    work.add(batch(0, 1))
    work.add(batch(2))
    taken(work)
    work.close()
    taken(work)
    assert work.undo() == 3
    assert [taken(work), taken(work)] == [[0, 1], [2]]


def test_what_is_ahead_stays_when_the_closed_transaction_commits() -> None:
    work = Work()
    work.add(batch(0, 1))
    work.add(batch(2))
    taken(work)
    work.close()
    taken(work)
    work.committed()
    assert work.undo() == 1
    assert taken(work) == [2]


def test_what_comes_before_a_failing_record_is_given_and_then_the_failure_is_faced() -> None:
    work = Work()
    work.add(batch(0, 1, 2, 3))
    taken(work)
    work.fail_at(poison(2))
    work.undo()
    assert taken(work) == [0, 1]
    assert (taken(work), bool(work.at_poison)) == ([], True)
    work.close()
    work.committed()
    with pytest.raises(HandlerFailed, match="@2"):
        work.face()


def test_a_failing_batch_is_redone_one_by_one() -> None:
    work = Work()
    work.add(batch(0, 1, 2))
    taken(work)
    work.fail_at(poison(0, whole_batch=True))
    work.undo()
    assert work.at_poison
    work.face()
    work.add(batch(3, 4))
    given_ = []
    while messages := work.next(100):
        given_.append((work.is_careful(messages), [offset(message) for message in messages]))
    assert given_ == [(True, [0]), (True, [1]), (True, [2]), (False, [3, 4])]


def test_a_refused_output_makes_all_of_the_transaction_suspect() -> None:
    work = Work()
    work.add(batch(0, 1))
    work.add(batch(2, 3))
    taken(work)
    taken(work)
    work.suspect()
    work.undo()
    assert [taken(work) for _ in range(4)] == [[0], [1], [2], [3]]


moves = st.lists(
    st.one_of(st.integers(1, 5), st.sampled_from(["next", "undo", "close", "commit", "suspect", "poison"])), max_size=80
)


@given(moves, st.integers(1, 6))
def test_whatever_happens_each_record_is_committed_once_and_in_order(moves: list[object], room: int) -> None:
    """The transaction's bound is kept as the live loop keeps it: `room` less what is open."""
    work, fresh, closed, open_, committed = Work(), 0, list[int](), list[int](), list[int]()
    for move in moves:
        match move:
            case int():
                work.add(batch(*range(fresh, fresh + move)))
                fresh += move
            case "next" | "poison":
                messages = work.next(room - len(open_)) or []
                open_ += [offset(message) for message in messages]
                if move == "poison" and messages:
                    # As the worker does: what commits is settled first.
                    work.committed()
                    committed, closed = committed + closed, []
                    work.fail_at(poison(open_[-1], whole_batch=len(messages) > 1))
                    work.undo()
                    open_ = []
            case "suspect":
                work.suspect()
            case "undo":
                work.undo()
                closed, open_ = [], []
            case "close" if not closed:
                work.close()
                closed, open_ = open_, []
            case "commit":
                work.committed()
                committed, closed = committed + closed, []
        if work.at_poison and not open_ and not closed:
            with suppress(HandlerFailed):  # the partition fails here: all from this record on is still in `work`
                work.face()
    assert [*committed, *closed, *open_] == list(range(len(committed) + len(closed) + len(open_)))
    work.undo()
    rest = [offset(message) for messages in work._todo for message in messages]
    assert [*committed, *rest] == list(range(fresh))
