"""A7 and A8 of the counterexamples that the rules of the protocol answer: when memory may be kept."""

from __future__ import annotations

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, commit_records, events

from statehold import Handler, Output, Record
from statehold.errors import OutcomeUnknown, PartitionError, TransactionAborted
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
from statehold.worker.common.mailbox import Batch

ANN, BOB, ANN2 = Op("ann", 1), Op("bob", 2), Op("ann", 4)


# A7


def test_a7_a_commit_that_was_done_though_the_answer_says_fenced_is_not_done_again() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.broker.fail("commit", OutcomeUnknown("_FENCED"), after=True)
    driver.feed(BOB)
    assert agrees(driver, [ANN, BOB])
    assert events(driver, "outcome_resolved")


def test_a7_the_number_of_a_transaction_is_not_enough() -> None:
    """Its n was aborted, another owner committed the same n; then it fences and reads "n, as expected"."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    driver.commit()
    driver.feed(BOB)
    lane = inside.lanes(driver)[0]
    ours, stream, position = lane.worker, lane.stream, lane.next

    def other_owner(name: Call) -> None:
        if name != "fence":
            return
        driver.broker.on_call = None
        lane.inputs[0].append(msgspec.json.encode(ANN2))
        lane.start()
        lane.commit()
        lane._worker, lane.stream, lane.next = ours, stream, position

    driver.broker.fail("commit", OutcomeUnknown("no answer"))
    driver.broker.on_call = other_owner
    ours.commit()
    lane.run()
    lane.commit()
    assert len(commit_records(driver)) == 3
    assert agrees(driver, [ANN, BOB, ANN2])


# A8


class Order(Handler[int]):
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.out.send(record.offset)


def test_a8_rolled_back_records_come_before_those_in_the_mailbox() -> None:
    driver = Driver(Order, autocommit=False, batch=5)
    driver.commit_record()
    lane = inside.lanes(driver)[0]
    for low in (0, 5):
        for value in range(5):
            lane.inputs[0].append(b"%d" % (low + value))
        lane.hand_over(list(lane.inputs[0].committed(low)))
    driver.broker.fail("send", TransactionAborted("no"))
    lane.run()
    driver.commit()
    assert driver.outputs("out") == list(range(10))


def test_a8_a_batch_that_does_not_continue_is_rejected() -> None:
    driver = Driver(Order, autocommit=False)
    driver.feed(0)
    lane = inside.lanes(driver)[0]
    offset = lane.inputs[0].append(b"7")
    late = list(lane.inputs[0].committed(offset))
    lane.worker.mailbox.put(Batch(lane.stream, offset + 5, late))
    with pytest.raises(PartitionError, match="never arrived"):
        lane.run()


def test_a8_records_that_are_duplicated_and_gaps_of_aborted_records_are_fine() -> None:
    driver = Driver(Order, autocommit=False, batch=3)
    driver.commit_record()
    lane = inside.lanes(driver)[0]
    for value in range(6):
        lane.inputs[0].append(b"%d" % value)
    lane.inputs[0].abort_record(3)
    records_ = list(lane.inputs[0].committed())
    for previous, batch in ((0, records_[:2]), (0, records_[:4]), (5, records_[4:])):
        lane.worker.mailbox.put(Batch(lane.stream, previous, batch))
    lane.next = 6
    lane.run()
    driver.commit()
    assert driver.outputs("out") == [0, 1, 2, 4, 5]
