"""What a delayed EndTxn leaves behind: H header, o output, P part, F footer on the increment, G group offset.

The cases and rows are those of docs/explanation/assumptions.md. Every transaction before the tear ends
cleanly as far as the producer knows; the delayed request arrives where the test lets it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, Producer
from tests.assumptions.lab import PATIENCE, Lab, error_of, send
from tests.support.proxy import Fault, Trap

pytestmark = pytest.mark.kafka

LEFT = KafkaError.INVALID_TXN_STATE
BOTH_ENDS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


@dataclass
class Scene:
    """Transaction 1 has ended twice: once by the retry, and once more whenever `delayed` is let go."""

    lab: Lab
    producer: Producer
    output: str
    increment: str
    inputs: str
    delayed: Trap

    def send(self, *names: str) -> list[int]:
        """Produce H, P and F to the increment, the rest to the output; return the delivery codes."""
        return [send(self.producer, self.topic_of(name), name) for name in names]

    def topic_of(self, name: str) -> str:
        """Return where a record belongs, by the letter after its transaction number."""
        return self.increment if name.split(".")[1][0] in "HPF" else self.output

    def offset(self, position: int) -> None:
        """G: add the group's offset to the transaction."""
        self.lab.send_offset(self.producer, self.inputs, position)

    def commit(self) -> int:
        """Return the error code of commit_transaction; 0 for success."""
        error = error_of(lambda: self.producer.commit_transaction(PATIENCE))
        return error.code() if error is not None else 0

    def found(self) -> tuple[list[str], list[str], int]:
        """Return what a restore would find of transaction 2: outputs, increment, group offset."""
        outputs, increments = (self.lab.committed(topic) for topic in (self.output, self.increment))
        second = [[name for name in names if not name.startswith("1.")] for names in (outputs, increments)]
        return second[0], second[1], self.lab.group_offset(self.inputs)


def scene(lab: Lab, *, commit: bool) -> Scene:
    """End transaction 1 (H, o, F, G=1) with a delayed EndTxn and begin transaction 2."""
    topics = [lab.topic(name) for name in ("out", "increment", "in")]
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, topics[1], "1.H")
    send(producer, topics[0], "1.o")
    send(producer, topics[1], "1.F")
    lab.send_offset(producer, topics[2], 1)
    delayed = lab.retried_end(producer, commit=commit, fault=Fault.HOLD_AND_RESET)
    producer.begin_transaction()
    return Scene(lab, producer, topics[0], topics[1], topics[2], delayed)


def test_a_without_header_an_interrupted_abort_loses_an_output_in_silence(lab: Lab) -> None:
    torn = scene(lab, commit=False)
    torn.send("2.o0")
    lab.land(torn.delayed, torn.output)
    torn.offset(2)
    assert torn.send("2.F") == [0]
    assert torn.commit() == 0
    assert torn.found() == ([], ["2.F"], 2), "one output marked, none visible, no hole"


def test_a_with_header_the_footer_is_rejected(lab: Lab) -> None:
    torn = scene(lab, commit=False)
    torn.send("2.H", "2.o0")
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.send("2.F") == [LEFT]
    assert torn.commit() == LEFT
    assert torn.found() == ([], [], -1001), "everything aborted: no damage"


def test_b_without_header_outputs_are_visible_without_a_commit_record(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.o0")
    lab.land(torn.delayed, torn.output)
    lab.producer()  # the crash and its successor, which fences
    assert torn.commit() == KafkaError._FENCED
    assert torn.found() == (["2.o0"], [], 1), "reprocessed it would be duplicated, and the footers have no hole"


def test_b_with_header_a_header_without_footer_shows_it(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.H", "2.o0")
    lab.land(torn.delayed, torn.output, torn.increment)
    lab.producer()
    assert torn.found() == (["2.o0"], ["2.H"], 1)


def test_c_a_tear_between_two_parts_leaves_parts_without_footer(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.H", "2.o0", "2.P1")
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.send("2.P2") == [LEFT]
    torn.producer = lab.producer()
    torn.producer.begin_transaction()
    torn.send("2'.H", "2'.P1", "2'.P2", "2'.F")
    assert torn.commit() == 0
    assert torn.found() == (["2.o0"], ["2.H", "2.P1", "2'.H", "2'.P1", "2'.P2", "2'.F"], 1), "two attempts"


@BOTH_ENDS
def test_row_1_nothing_produced_is_harmless(lab: Lab, commit: bool) -> None:
    torn = scene(lab, commit=commit)
    torn.delayed.end_txn_error()  # 0, or 51 while the markers of the retry are on their way
    torn.send("2.H", "2.o0")
    torn.offset(2)
    assert torn.send("2.F") == [0]
    assert torn.commit() == 0
    assert torn.found() == (["2.o0"], ["2.H", "2.F"], 2)


def test_row_2_header_and_some_outputs_committed(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.H", "2.o0")
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.send("2.o1") == [LEFT]
    assert torn.found() == (["2.o0"], ["2.H"], 1)


def test_row_3_footer_before_offsets_and_a_delayed_commit_between_is_complete(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.H", "2.o0", "2.F")
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.found() == (["2.o0"], ["2.H", "2.F"], 1), "G one behind, should the process die here"
    torn.offset(2)
    assert torn.commit() == 0
    assert torn.found() == (["2.o0"], ["2.H", "2.F"], 2)


def test_row_4_header_and_outputs_aborted_rejects_the_footer(lab: Lab) -> None:
    torn = scene(lab, commit=False)
    torn.send("2.H", "2.o0")
    lab.land(torn.delayed, torn.output, torn.increment)
    torn.offset(2)
    assert torn.send("2.F") == [LEFT]
    assert torn.commit() == LEFT
    lab.producer()  # fences: else the offsets stay pending, and a stable read waits
    assert torn.found() == ([], [], -1001)


def test_row_5_footer_before_offsets_and_a_delayed_abort_between_is_silent_while_live(lab: Lab) -> None:
    """The offsets open a fresh transaction: commit returns success. Why the footer must come last."""
    torn = scene(lab, commit=False)
    torn.send("2.H", "2.o0", "2.F")
    lab.land(torn.delayed, torn.output, torn.increment)
    torn.offset(2)
    assert torn.commit() == 0
    torn.producer.begin_transaction()
    assert torn.send("3.H") == [0]
    torn.offset(3)
    assert torn.commit() == 0
    assert torn.found() == ([], ["3.H"], 3), "transaction 2 is lost; only the hole at n = 2 shows it"


@BOTH_ENDS
def test_footer_last_each_tear_before_it_is_rejected(lab: Lab, commit: bool) -> None:
    torn = scene(lab, commit=commit)
    torn.send("2.H", "2.o0")
    torn.offset(2)
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.send("2.F") == [LEFT]
    assert torn.commit() == LEFT
    assert torn.found() == ((["2.o0"], ["2.H"], 2) if commit else ([], [], -1001))


def test_footer_last_a_delayed_commit_after_it_is_exact(lab: Lab) -> None:
    torn = scene(lab, commit=True)
    torn.send("2.H", "2.o0")
    torn.offset(2)
    torn.send("2.F")
    lab.land(torn.delayed, torn.output, torn.increment)
    assert torn.commit() == 0
    assert torn.found() == (["2.o0"], ["2.H", "2.F"], 2)


def test_footer_last_a_delayed_abort_after_it_fails_the_commit_fatally(lab: Lab) -> None:
    torn = scene(lab, commit=False)
    torn.send("2.H", "2.o0")
    torn.offset(2)
    torn.send("2.F")
    lab.land(torn.delayed, torn.output, torn.increment)
    error = error_of(lambda: torn.producer.commit_transaction(PATIENCE))
    assert error is not None
    assert (error.code(), error.fatal()) == (LEFT, True)
    assert torn.found() == ([], [], -1001)


def test_an_output_partition_that_joins_after_the_footer_is_doubled_in_silence(lab: Lab) -> None:
    """Why all outputs must be acknowledged (flush) before the footer is produced."""
    torn = scene(lab, commit=False)
    torn.send("2.H", "2.o0")
    torn.offset(2)
    torn.send("2.F")
    lab.land(torn.delayed, torn.output, torn.increment)
    late = lab.topic("late")
    assert send(torn.producer, late, "2.o1") == 0
    assert torn.commit() == 0
    assert torn.found() == ([], [], -1001)
    assert lab.committed(late) == ["2.o1"], "visible without header, footer or offset"
