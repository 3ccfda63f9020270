"""A batch can be cut from outside and nothing of it is lost; time is counted per record without touching the loop."""

from __future__ import annotations

from tests.support.messages import message

from statehold import Handler, Record, Table
from statehold.worker.common.activity import Handling, UserCall
from statehold.worker.handler.engine import Engine


class Noting(Handler[int]):
    seen = Table(key=int, value=int)
    handling: Handling
    cut_at = -1

    def on_record(self, record: Record[int]) -> None:
        self.seen[record.offset] = record.value
        if record.offset == self.cut_at:
            self.handling.cut()


def engine(cut_at: int) -> tuple[Engine, Handling]:
    handling = Handling()
    made = Engine(Noting, 0, handling=handling)
    made.handler.handling, made.handler.cut_at = handling, cut_at  # type: ignore[attr-defined]
    return made, handling


def test_a_cut_ends_the_batch_behind_the_record_under_way() -> None:
    made, _ = engine(cut_at=5)
    # Offsets have holes: transaction markers.
    batch = [message(offset, b"1") for offset in (2, 3, 5, 8, 9)]
    assert made.run(batch) == 3
    assert dict(made.handler.seen.items()) == {2: 1, 3: 1, 5: 1}  # type: ignore[attr-defined]
    assert made.run(batch[3:]) == 2


def test_a_cut_at_the_last_record_or_between_batches_means_nothing() -> None:
    made, handling = engine(cut_at=3)
    assert made.run([message(2, b"1"), message(3, b"1")]) == 2
    handling.cut()
    assert made.run([message(4, b"1"), message(5, b"1")]) == 2


def test_the_records_behind_a_cut_are_not_rejected_before_their_turn() -> None:
    made, _ = engine(cut_at=2)
    assert made.run([message(2, b"1"), message(3, b"1"), message(4, b"{")]) == 1


def test_time_is_counted_since_the_call_and_since_the_record() -> None:
    handling = Handling()
    first, second = (Record(message(offset, b""), 0) for offset in (1, 2))
    assert handling.look(10.0) == (0.0, 0.0)
    handling.record = first
    handling.call = UserCall("on_record", 0)
    assert handling.look(11.0) == (0.0, 0.0)
    assert handling.look(13.0) == (2.0, 2.0)
    handling.record = second
    assert handling.look(14.0) == (3.0, 0.0)
    assert handling.look(15.0) == (4.0, 1.0)
    handling.call = None
    assert handling.look(16.0) == (0.0, 0.0)
    handling.call = UserCall("on_record", 0)
    assert handling.look(20.0) == (0.0, 0.0), "the same record in another call"
