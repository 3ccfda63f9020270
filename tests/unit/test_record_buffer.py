"""Which records come next: nothing that was taken is ever lost, and a failing record is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import batch

from statehold.api.record import Message, at
from statehold.errors import HandlerFailed
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed, RecordFailed, RecordSuspected
from statehold.worker.transaction.plan import Mode
from statehold.worker.transaction.record_buffer import RecordBuffer
from statehold.worker.transaction.suspect_buffer import SuspectBuffer


def failure(at: int, *, whole_batch: bool = False) -> HandlingFailed:
    kind = BatchFailed if whole_batch else RecordFailed
    return kind(at, HandlerFailed("raised", topic="input", partition=0, position=at))


def taken(buffer: RecordBuffer, room: int = 100) -> list[int]:
    return [at(message) for message in buffer.next(room) or ()]


def test_batches_come_as_they_went_in_and_no_larger_than_there_is_room() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1, 2))
    buffer.add(batch(5, 6))
    assert [taken(buffer, 2), taken(buffer), taken(buffer), taken(buffer)] == [[0, 1], [2], [5, 6], []]
    assert buffer.roll_back() == 5


def test_without_room_nothing_is_given() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1))
    assert buffer.next(0) is None
    assert taken(buffer) == [0, 1]


def test_rolled_back_records_come_first_again() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1))
    buffer.add(batch(2))
    taken(buffer)
    assert buffer.roll_back() == 2
    buffer.add(batch(3))
    assert [taken(buffer), taken(buffer), taken(buffer)] == [[0, 1], [2], [3]]


def test_committed_records_do_not_come_again() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1))
    taken(buffer)
    buffer.close()
    buffer.committed()
    assert buffer.roll_back() == 0
    assert not buffer.todo


def test_a_batch_that_came_before_is_not_taken_again() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1, 2))
    buffer.add(batch(0, 1))
    buffer.add(batch(2, 3))
    assert buffer.taken == 4
    assert [taken(buffer), taken(buffer), taken(buffer)] == [[0, 1, 2], [3], []]


def closed_and_ahead() -> RecordBuffer:
    """Records 0 and 1 are closed, record 2 is ahead of them."""
    buffer = RecordBuffer()
    buffer.add(batch(0, 1))
    buffer.add(batch(2))
    taken(buffer)
    buffer.close()
    taken(buffer)
    return buffer


def test_a_closed_transaction_and_the_one_ahead_are_rolled_back_together() -> None:
    buffer = closed_and_ahead()
    assert buffer.roll_back() == 3
    assert [taken(buffer), taken(buffer)] == [[0, 1], [2]]


def test_the_transaction_ahead_stays_when_the_closed_one_commits() -> None:
    buffer = closed_and_ahead()
    buffer.committed()
    assert buffer.roll_back() == 1
    assert taken(buffer) == [2]


def test_the_records_before_a_failing_one_are_returned_and_then_the_failure() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1, 2, 3))
    taken(buffer)
    buffer.fail_at(failure(2))
    buffer.roll_back()
    assert taken(buffer) == [0, 1]
    assert (taken(buffer), buffer.reached(2)) == ([], True)
    buffer.close()
    buffer.committed()
    assert buffer.failure is not None
    assert buffer.failure.at == 2
    buffer.retry()
    assert [taken(buffer), taken(buffer)] == [[2], [3]]


def test_a_failing_batch_is_redone_one_by_one() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1, 2))
    taken(buffer)
    buffer.fail_at(failure(0, whole_batch=True))
    buffer.roll_back()
    assert (buffer.mode(), buffer.reached(0)) == (Mode.FAILING, True)
    buffer.retry()
    assert [buffer.mode()] == [Mode.CAREFUL]
    buffer.add(batch(3, 4))
    given_ = []
    while messages := buffer.next(100):
        given_.append((at(messages[0]) < buffer.careful_until, [at(message) for message in messages]))
    assert given_ == [(True, [0]), (True, [1]), (True, [2]), (False, [3, 4])]


def test_a_rejected_output_makes_all_of_the_transaction_suspect() -> None:
    buffer = RecordBuffer()
    buffer.add(batch(0, 1))
    buffer.add(batch(2, 3))
    taken(buffer)
    taken(buffer)
    buffer.suspect()
    buffer.roll_back()
    assert [taken(buffer) for _ in range(4)] == [[0], [1], [2], [3]]


moves = st.lists(
    st.one_of(st.integers(1, 5), st.sampled_from(["next", "undo", "close", "commit", "suspect", "fail"])), max_size=80
)


@given(moves, st.integers(1, 6))
def test_in_any_history_each_record_is_committed_once_and_in_order(moves: list[object], room: int) -> None:
    """The transaction's bound is kept as the live loop keeps it: `room` less what is open."""
    buffer, fresh, closed, open_, committed = RecordBuffer(), 0, list[int](), list[int](), list[int]()
    for move in moves:
        match move:
            case int():
                buffer.add(batch(*range(fresh, fresh + move)))
                fresh += move
            case "next" | "fail":
                messages = buffer.next(room - len(open_)) or []
                open_ += [at(message) for message in messages]
                if move == "fail" and messages:
                    # As the bufferer does: what commits is settled first.
                    buffer.committed()
                    committed, closed = committed + closed, []
                    buffer.fail_at(failure(open_[-1], whole_batch=len(messages) > 1))
                    buffer.roll_back()
                    open_ = []
            case "suspect":
                buffer.suspect()
            case "undo":
                buffer.roll_back()
                closed, open_ = [], []
            case "close" if not closed:
                buffer.close()
                closed, open_ = open_, []
            case "commit":
                buffer.committed()
                committed, closed = committed + closed, []
        if buffer.failure is not None and buffer.reached(-1) and not open_ and not closed:
            buffer.retry()
    assert [*committed, *closed, *open_] == list(range(len(committed) + len(closed) + len(open_)))
    buffer.roll_back()
    rest = [at(message) for messages in buffer.todo for message in messages]
    assert [*committed, *rest] == list(range(fresh))


def suspecting(offset: int) -> SuspectBuffer:
    def failure_at(message: Message) -> HandlingFailed:
        return RecordSuspected(at(message), HandlerFailed("died"), message)

    topic = batch(0)[0].topic() or ""
    return SuspectBuffer(0, (topic, offset), failure_at)


def test_everything_before_a_suspect_comes_first_and_then_it_alone() -> None:
    buffer = suspecting(2)
    buffer.add(batch(0, 1, 2, 3))
    assert taken(buffer) == [0, 1]
    assert buffer.mode() is Mode.NORMAL
    assert buffer.next(100) is None
    assert buffer.mode() is Mode.FAILING
    assert buffer.reached(2)
    buffer.retry()
    assert buffer.mode() is Mode.CAREFUL
    assert [taken(buffer), taken(buffer)] == [[2], [3]]


def test_a_failure_before_a_suspect_does_not_hide_it() -> None:
    buffer = suspecting(2)
    buffer.add(batch(0, 1, 2))
    assert taken(buffer) == [0, 1]
    assert buffer.next(100) is None
    buffer.fail_at(failure(1))
    buffer.roll_back()
    assert taken(buffer) == [0]
    buffer.retry()
    assert taken(buffer) == [1]
    assert buffer.next(100) is None
    assert buffer.mode() is Mode.FAILING


def test_a_suspect_waits_for_a_barrier() -> None:
    buffer = suspecting(1)
    buffer.barrier = 3
    buffer.add(batch(0, 1, 2, 3))
    assert taken(buffer) == [0, 1, 2]
