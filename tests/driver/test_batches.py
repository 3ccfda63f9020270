"""on_batch: undone and redone record by record when it raises; how the input is cut must not matter (3.6, rule M4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from statehold import Handler, Output, Record, Table, dead_letter
from statehold.errors import HandlerFailed
from statehold.testing import BatchesMatter, Driver


class Batched(Handler[int]):
    sums = Output("sums", value=int)
    count = Table(key=str, value=int)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        for record in records:
            self.sums.send(record.value)
        self.count["all"] = self.count.get("all", 0) + len(records)


class PerBatch(Handler[int]):
    sums = Output("sums", value=int)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        self.sums.send(sum(record.value for record in records))


class Both(Handler[int]):
    """Vectorised, and record by record."""

    sums = Output("sums", value=int)
    total = Table(key=str, value=int)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        for record in records:
            self.add(record.value)
        if any(record.value < 0 for record in records):
            raise ValueError("something is negative")

    def on_record(self, record: Record[int]) -> None:
        self.add(record.value)
        if record.value < -10:
            raise ValueError("too negative")

    def add(self, value: int) -> None:
        self.total["all"] = self.total.get("all", 0) + value
        self.sums.send(self.total["all"])


def test_a_batch_that_raises_is_undone_and_handled_record_by_record() -> None:
    driver = Driver(Both, batch=4)
    driver.feed_all([1, 2, -3, 4, 5, 6])
    assert driver.outputs("sums") == [1, 3, 0, 4, 9, 15]
    driver.replay()


def test_a_failed_batch_names_the_failing_record() -> None:
    driver = Driver(Both, batch=4)
    driver.feed_all([1, 2, -30])
    with pytest.raises(HandlerFailed, match=r"input\[0\]@2: the handler raised ValueError: too negative"):
        driver.feed(4)
    assert driver.outputs("sums") == [1, 3]
    driver.withdraw()
    assert driver.outputs("sums") == [1, 3, 7]


def test_a_replay_of_the_gap_does_it_in_the_same_way() -> None:
    driver = Driver(Both, batch=4, delta_interval="off")
    driver.feed_all([1, 2, -3, 4])
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("total") == {"all": 4}


def test_a_replay_accepts_a_handler_that_does_not_depend_on_batches() -> None:
    driver = Driver(Batched, batch=3)
    driver.feed_all(range(10))
    driver.replay()
    driver.replay(batches=[4, 1])


def test_a_replay_rejects_a_handler_that_depends_on_batches() -> None:
    driver = Driver(PerBatch, batch=3)
    driver.feed_all(range(10))
    driver.replay(batches=3)
    with pytest.raises(BatchesMatter, match=r"batches of \[2\] records: output 0 of 'sums'"):
        driver.replay(batches=2)


def test_a_replay_rejects_a_handler_whose_state_alone_depends_on_batches() -> None:
    class Batches(Handler[int]):
        count = Table(key=str, value=int)

        def on_batch(self, records: Sequence[Record[int]]) -> None:
            self.count["batches"] = self.count.get("batches", 0) + 1

    driver = Driver(Batches, batch=3)
    driver.feed_all(range(10))
    driver.replay(batches=3)
    difference = "table 'count', key 'batches': the value is 5, it was 4"
    with pytest.raises(BatchesMatter, match=rf"batches of \[2\] records: the tables differ: {difference}"):
        driver.replay(batches=2)


def test_a_batch_of_one_is_no_exception() -> None:
    driver = Driver(Both, batch=1)
    driver.feed_all([1, -3, 4])
    assert driver.outputs("sums") == [1, -2, 2]


class Only(Handler[int]):
    """Has no on_record, so a batch of one finds the record to blame."""

    on_failure: ClassVar = {ValueError: dead_letter()}
    held = Table(key=int, value=int)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        for record in records:
            if record.value == 13:
                raise ValueError("13")
            self.held[record.offset] = record.value


class OnlyAndFails(Only):
    on_failure: ClassVar = {}


def test_a_batch_blames_the_failing_record_although_there_is_no_on_record() -> None:
    driver = Driver(Only, batch=4, delta_interval=3600.0)
    driver.feed_all([1, 2, 13, 4, 5])
    assert [each.offset for each in driver.dead_letters()] == [2]
    assert driver.table("held") == {0: 1, 1: 2, 3: 4, 4: 5}
    driver.replay()
    failing = Driver(OnlyAndFails, batch=4)
    failing.feed_all([1, 2, 13])
    with pytest.raises(HandlerFailed, match=r"input\[0\]@2: "):
        failing.feed(4)
    failing.dead_letter(2)
    failing.restore()
    assert failing.table("held") == {0: 1, 1: 2, 3: 4}
    failing.replay()


def test_a_replay_of_a_batch_that_fails_by_itself_goes_record_by_record() -> None:
    """The live loop handled each record in a batch of its own, so a replay may meet more at once."""

    class Small(Handler[int]):
        held = Table(key=int, value=int)

        def on_batch(self, records: Sequence[Record[int]]) -> None:
            if len(records) > 1:
                raise ValueError("too many at once")
            self.held[records[0].offset] = records[0].value

    driver = Driver(Small, batch=3, delta_interval=3600.0)
    driver.feed_all([1, 2, 3, 4])
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("held") == {0: 1, 1: 2, 2: 3, 3: 4}
