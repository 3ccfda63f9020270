"""Contracts of what a partition follows: control topic, retry topics, several inputs, full snapshots."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from tests.contracts.world import World, sent

from statehold.api.record import MemoryMessage, Message
from statehold.errors import KafkaTrouble, RetentionGap
from statehold.messages.command import header
from statehold.messages.dead_letter import Failure
from statehold.messages.retry_record import retried


def test_a_partition_gets_the_commands_of_its_control_topic_from_a_position_on(kafka: World) -> None:
    names = kafka.names(2)
    for name in ("one", "two", "three"):
        kafka.write(names.control, [b"{}"], 1, headers=[header(name)])
    control = kafka.control(names, 1, lambda: None)
    kafka.until(lambda: control.waiting(1)[1] == 3, "the commands")
    asked, after = control.waiting(1)
    assert [each.command.name for each in asked] == ["two", "three"]
    assert after == 3
    control.close()


def test_commands_below_the_position_are_forgotten(kafka: World) -> None:
    names = kafka.names()
    for name in ("one", "two"):
        kafka.write(names.control, [b"{}"], headers=[header(name)])
    control = kafka.control(names, 0, lambda: None)
    kafka.until(lambda: control.waiting(0)[1] == 2, "the commands")
    assert [each.command.name for each in control.waiting(1)[0]] == ["two"]
    assert control.waiting(2) == ([], 2)


def test_a_record_that_is_no_command_is_passed(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.control, [b"noise"])
    kafka.write(names.control, [b"{}"], headers=[header("one")])
    control = kafka.control(names, 0, lambda: None)
    kafka.until(lambda: control.waiting(0)[1] == 2, "the command")
    assert [each.command.name for each in control.waiting(0)[0]] == ["one"]


def test_a_command_wakes_its_partition(kafka: World) -> None:
    names, woken = kafka.names(), threading.Event()
    control = kafka.control(names, 0, woken.set)
    control.waiting(0)
    kafka.pass_time(0.3)
    assert not woken.is_set()
    kafka.write(names.control, [b"{}"], headers=[header("one")])
    kafka.until(woken.is_set, "the call")


def test_a_position_whose_commands_were_deleted_continues_with_the_next_ones(kafka: World) -> None:
    names = kafka.names()
    for name in ("one", "two", "three"):
        kafka.write(names.control, [b"{}"], headers=[header(name)])
    kafka.offsets(names).delete_records(names.control, 0, 2)
    kafka.until(lambda: kafka.start(names.control) == 2, "the deletion")
    control = kafka.control(names, 0, lambda: None)
    kafka.until(lambda: control.waiting(0)[1] == 3, "the command")
    assert [each.command.name for each in control.waiting(0)[0]] == ["three"]


def retry(kafka: World, topic: str, input: str, offset: int, due: int) -> None:
    """Write a retry record as the worker does."""
    message = MemoryMessage(input, 0, offset, str(offset).encode(), b"key", (), 1_000)
    _, value, key, _, _, _, _, headers = retried(topic, message, Failure("E", "text", 1), 0, due)
    blob = key.encode() if isinstance(key, str) else key
    kafka.write(topic, [value], key=blob, headers=headers or ())


def test_a_retry_topic_gives_out_what_is_due_and_keeps_the_rest(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    for offset, due in ((0, 1000), (1, 2000), (2, 3000)):
        retry(kafka, topic, names.input, offset, due)
    delayed = kafka.delayed(names, topic, 0)
    delayed.due(0, 0)
    kafka.until(lambda: delayed.held == 3, "the records")
    found, after = delayed.due(0, 2000)
    assert [each.message.value() for each in found] == [b"0", b"1"]
    assert after == 2
    assert delayed.due(2, 2000) == ([], 2)
    assert delayed.held == 1


def test_a_retry_topic_gives_a_record_out_again_until_the_position_passes_it(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    retry(kafka, topic, names.input, 7, 1000)
    delayed = kafka.delayed(names, topic, 0)
    kafka.until(lambda: delayed.due(0, 1000)[1] == 1, "the record")
    assert [each.at for each in delayed.due(0, 1000)[0]] == [0]
    assert delayed.due(1, 1000) == ([], 1)


def test_a_retry_record_that_is_not_due_holds_back_those_behind_it(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    retry(kafka, topic, names.input, 0, 5000)
    retry(kafka, topic, names.input, 1, 1000)
    delayed = kafka.delayed(names, topic, 0)
    delayed.due(0, 0)
    kafka.until(lambda: delayed.held == 2, "the records")
    assert delayed.due(0, 2000) == ([], 0)


class Receiver:
    """`ports.InputReceiver`: keeps everything."""

    def __init__(self) -> None:
        self.records: dict[int, list[bytes]] = {}
        self.ends: set[int] = set()
        self.failed: list[BaseException] = []

    def add(self, input: int, messages: Sequence[Message]) -> int:
        self.records.setdefault(input, []).extend(message.value() for message in messages)
        self.ends.discard(input)
        return 0

    def end(self, input: int) -> None:
        self.ends.add(input)

    def held(self, input: int) -> int:
        return 0

    def fail(self, cause: BaseException) -> None:
        self.failed.append(cause)


def test_all_inputs_of_a_partition_are_read_from_their_positions(kafka: World) -> None:
    names, receiver = kafka.names(2, inputs=3), Receiver()
    for index, topic in enumerate(names.inputs):
        kafka.write(topic, [f"{index}.{number}".encode() for number in range(3)], 1)
    positions = {names.inputs[0]: 0, names.inputs[1]: 2, names.inputs[2]: 3}
    reading = kafka.read_inputs(names, 1, positions, {}, receiver)
    kafka.until(lambda: receiver.ends == {0, 1, 2}, "the ends of the inputs")
    assert receiver.records == {0: [b"0.0", b"0.1", b"0.2"], 1: [b"1.2"]}
    reading.close()


def test_the_end_of_an_input_is_reported_again_behind_each_record(kafka: World) -> None:
    names, receiver = kafka.names(inputs=2), Receiver()
    reading = kafka.read_inputs(names, 0, dict.fromkeys(names.inputs, 0), {}, receiver)
    kafka.until(lambda: receiver.ends == {0, 1}, "the ends of empty inputs")
    kafka.write(names.inputs[1], [b"a"])
    kafka.until(lambda: receiver.records == {1: [b"a"]} and receiver.ends == {0, 1}, "the record and the end")
    reading.close()


def test_the_end_of_an_input_is_below_an_open_transaction(kafka: World) -> None:
    names, receiver, other = kafka.names(inputs=2), Receiver(), kafka.names()
    producer = kafka.producer(other)
    producer.begin()
    producer.send(sent(names.inputs[1], b"a"))
    producer.send_offsets({other.input: 1}, kafka.no_member(other))
    reading = kafka.read_inputs(names, 0, dict.fromkeys(names.inputs, 0), {}, receiver)
    kafka.until(lambda: receiver.ends == {0, 1}, "the ends")
    assert receiver.records == {}
    producer.commit()
    kafka.until(lambda: receiver.records == {1: [b"a"]}, "the record")
    reading.close()


def test_a_closed_reading_hands_over_nothing_more(kafka: World) -> None:
    names, receiver = kafka.names(inputs=2), Receiver()
    reading = kafka.read_inputs(names, 0, dict.fromkeys(names.inputs, 0), {}, receiver)
    kafka.until(lambda: receiver.ends == {0, 1}, "the ends")
    reading.close()
    kafka.pass_time(0.5)
    kafka.write(names.inputs[0], [b"a"])
    kafka.pass_time(0.5)
    assert receiver.records == {}


def test_an_input_whose_next_record_was_deleted_fails_its_partition(kafka: World) -> None:
    names, receiver = kafka.names(inputs=2), Receiver()
    kafka.write(names.inputs[1], [b"0", b"1", b"2"])
    kafka.offsets(names).delete_records(names.inputs[1], 0, 2)
    kafka.until(lambda: kafka.start(names.inputs[1]) == 2, "the deletion")
    kafka.read_inputs(names, 0, dict.fromkeys(names.inputs, 0), {}, receiver)
    kafka.until(lambda: len(receiver.failed) > 0, "the failure")
    assert isinstance(receiver.failed[0], RetentionGap)
    assert receiver.records.get(1, []) == []


def test_a_full_snapshot_is_acknowledged_in_the_order_of_its_records(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.snapshot, [b"before"])
    sink = kafka.full_sink(names.snapshot)
    assert sink.open("full") == ""
    for chunk in (b"0", b"1", b"2"):
        sink.send(chunk)
    assert sink.seal() == 0
    kafka.until(lambda: len(sink.acknowledged(0.1)) == 3, "the acknowledgements")
    assert sink.acknowledged() == [1, 2, 3]
    assert kafka.sees(names.snapshot, b"before", b"0", b"1", b"2")
    sink.close()


def test_the_records_of_a_full_snapshot_are_visible_without_a_transaction(kafka: World) -> None:
    names = kafka.names()
    sink = kafka.full_sink(names.snapshot)
    sink.send(b"chunk")
    kafka.until(lambda: sink.acknowledged(0.1) == [0], "the acknowledgement")
    assert kafka.visible(names.snapshot) == [b"chunk"]


def test_a_full_snapshot_to_a_missing_topic_is_abandoned_with_an_error(kafka: World) -> None:
    sink = kafka.full_sink("missing")
    sink.send(b"chunk")
    with pytest.raises(KafkaTrouble):
        kafka.until(lambda: sink.acknowledged(0.1) == [0], "an error", 30)
