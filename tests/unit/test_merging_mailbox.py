"""The mailbox of several inputs: streams, signals, waits, and memory that a fast input cannot fill."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.support.snapshot_records import commit_record

from statehold.api.record import MemoryMessage, Message
from statehold.common.names import Names
from statehold.config.sections.processing import FlowSettings
from statehold.config.settings import Settings
from statehold.errors import RetentionGap
from statehold.kafka.feeds.input_feed import InputFeed
from statehold.ports import InputReceiver
from statehold.snapshot.format.partition_identity import Place
from statehold.telemetry.log_events import Log
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.inputs.merging_mailbox import MergingMailbox
from statehold.worker.inputs.partition_inputs import PartitionInputs

NAMES = Names("service", "orders", others=("cancels",))
#: seconds in which a thread that is woken has long ended
SOON = 20.0


def messages(index: int, offsets: Sequence[int], times: Sequence[int] | None = None) -> list[Message]:
    times = offsets if times is None else times
    return [MemoryMessage(NAMES.inputs[index], 0, at, b"", None, None, t) for at, t in zip(offsets, times, strict=True)]


def mailbox(*, idle: float = 0.0) -> MergingMailbox:
    return MergingMailbox(order="time", idle=idle, clock=time.monotonic)


def offsets(box: MergingMailbox, room: int = 100) -> list[tuple[int, int]]:
    batch = box.take(room, 0.0)
    return [] if batch is None else [(each.input, each.offset()) for each in cast("Any", batch.messages)]


def test_a_batch_follows_the_one_before_and_has_no_more_than_there_is_room() -> None:
    box = mailbox()
    stream = box.begin([5, 7])
    box.add(stream, 0, messages(0, [5, 6, 9]))
    box.add(stream, 1, messages(1, [7], [6]))
    box.end(stream, 0)
    box.end(stream, 1)
    first, rest = box.take(2, 0.0), box.take(100, 0.0)
    assert first is not None
    assert rest is not None
    assert (first.stream, first.previous, first.next) == (stream, 12, 14)
    assert (rest.stream, rest.previous, rest.next) == (stream, 14, 18)
    assert [len(first.messages), len(rest.messages), box.depth] == [2, 2, 0]


def test_depth_is_nothing_while_an_input_is_waited_for() -> None:
    box = mailbox()
    stream = box.begin([0, 0])
    assert box.add(stream, 0, messages(0, [0, 1])) == 2
    assert (box.depth, box.held(stream, 0), offsets(box)) == (0, 2, [])
    box.end(stream, 1)
    assert box.depth == 2
    assert offsets(box) == [(0, 0), (0, 1)]


def test_records_of_an_older_stream_are_dropped() -> None:
    box = mailbox()
    old = box.begin([0, 0])
    box.add(old, 0, messages(0, [0]))
    new = box.begin([0, 0])
    assert new != old
    assert (box.add(old, 0, messages(0, [1])), box.held(old, 0), box.held(new, 0)) == (0, 0, 0)
    box.end(old, 1)
    box.add(new, 0, messages(0, [0]))
    assert (box.held(old, 0), box.held(new, 0)) == (0, 1)
    assert offsets(box) == []  # the end of the old stream is not the end of the new one
    closed = box.open_stream()
    assert (box.add(new, 0, messages(0, [1])), box.add(closed, 0, messages(0, [1])), box.depth) == (0, 0, 0)


def test_a_signal_ends_the_wait_for_an_input() -> None:
    box = mailbox()
    stream = box.begin([0, 0])
    box.add(stream, 0, messages(0, [0]))
    box.signal()
    assert box.take(1, 600.0) is None


class Watched(threading.Condition):
    """Notes that a thread waits, before it releases the lock."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self.waits = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


def taken_after(box: MergingMailbox, change: Any) -> list[tuple[int, int]]:
    """What a thread takes that waits already when `change` happens."""
    watched, found = Watched(), list[tuple[int, int]]()
    box._changed = watched

    def take() -> None:
        batch = box.take(100, 600.0)
        found.extend((each.input, each.offset()) for each in cast("Any", batch.messages if batch else ()))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert watched.waits.wait(SOON)
    change()
    thread.join(SOON)
    assert not thread.is_alive(), "the thread was not woken"
    return found


def test_the_thread_that_waits_is_woken_by_the_end_of_the_other_input() -> None:
    box = mailbox()
    stream = box.begin([0, 0])
    box.add(stream, 0, messages(0, [0]))
    assert taken_after(box, lambda: box.end(stream, 1)) == [(0, 0)]


def test_the_thread_that_waits_is_woken_by_the_record_of_the_other_input() -> None:
    box = mailbox()
    stream = box.begin([0, 0])
    box.add(stream, 0, messages(0, [0], [5]))
    assert taken_after(box, lambda: box.add(stream, 1, messages(1, [0], [4]))) == [(1, 0)]


def test_the_thread_that_waits_takes_the_records_when_the_other_input_has_been_idle() -> None:
    """The time begins when the broker says that the input has no more records, and the thread waits already."""
    box = mailbox(idle=0.05)
    stream = box.begin([0, 0])
    box.add(stream, 0, messages(0, [0]))
    assert taken_after(box, lambda: box.end(stream, 1)) == [(0, 0)]


class Reading:
    closed = False

    def close(self) -> None:
        self.closed = True


class Tool:
    """The port by which a partition reads its inputs, and the reading that it returns."""

    def __init__(self) -> None:
        self.place, self.reading = Place(NAMES, 0, 4, {}, cast("Any", None)), Reading()
        self.positions: dict[str, int] = {}

    def inputs(self, positions: dict[str, int], ids: object, receiver: InputReceiver) -> Reading:
        self.positions = positions
        return self.reading


def opened(box: MergingMailbox, **positions: int) -> tuple[PartitionInputs, Tool, Signals]:
    tool, signals = Tool(), Signals()
    inputs = PartitionInputs(cast("Tools", tool), signals, box)
    inputs.open(commit_record(1, positions=positions, inputs=NAMES.inputs))
    return inputs, tool, signals


def test_the_inputs_are_read_from_the_commit_record_in_the_order_of_the_declaration() -> None:
    box = mailbox()
    inputs, tool, _ = opened(box, cancels=4, orders=3)
    assert list(tool.positions.items()) == [("orders", 3), ("cancels", 4)]
    assert inputs.add(1, messages(1, [4])) == inputs.held(1) == 1
    inputs.end(0)
    assert offsets(box) == [(1, 4)]


def test_after_the_end_of_the_live_phase_nothing_arrives_and_nothing_fails() -> None:
    inputs, tool, signals = opened(mailbox(), orders=0, cancels=0)
    inputs.close()
    assert tool.reading.closed
    assert (inputs.add(0, messages(0, [0])), inputs.held(0)) == (0, 0)
    inputs.fail(RetentionGap("of a partition that left"))
    assert signals.failure is None


def test_an_input_that_cannot_be_read_fails_the_live_partition() -> None:
    inputs, _, signals = opened(mailbox(), orders=0, cancels=0)
    cause = RetentionGap("deleted", topic="cancels", partition=0, position=7)
    inputs.fail(cause)
    assert signals.failure is cause


class Fetched(MemoryMessage):
    """A message that counts how many of its kind are in memory."""

    __slots__ = ()
    alive: ClassVar[int] = 0

    def __init__(self, topic: str, offset: int, time: int) -> None:
        super().__init__(topic, 0, offset, b"", timestamp=time)
        Fetched.alive += 1

    def __del__(self) -> None:
        Fetched.alive -= 1

    def error(self) -> None:
        return None


class Topic:
    """The part of a Consumer that a feed uses, over a topic with this number of records and then its end."""

    def __init__(self, name: str, times: Sequence[int]) -> None:
        self._name, self._times, self._next, self.paused, self._ended = name, times, 0, False, False

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        """A paused partition stays paused, as in librdkafka 2.16."""

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self._next = places[0].offset

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.paused = True

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self.paused = False

    def consume(self, most: int, wait: float) -> list[Any]:
        if self.paused:
            return []
        if self._next == len(self._times):
            self._ended, ended = True, self._ended
            error = SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
            return [] if ended else [SimpleNamespace(partition=lambda: 0, error=lambda: error)]
        offsets = range(self._next, min(len(self._times), self._next + most))
        self._next = offsets.stop
        return [Fetched(self._name, offset, self._times[offset]) for offset in offsets]


def feed_of(index: int, flow: FlowSettings) -> InputFeed:
    """The feed of one input, whose turns happen as they are asked for, without waiting, and not on a thread."""
    feed = InputFeed(Settings(flow=flow), NAMES, index, Log())
    feed._thread, feed._ending = (
        threading.current_thread(),
        cast("threading.Event", SimpleNamespace(wait=lambda _: False)),
    )
    return feed


def read_by_feed(index: int, times: Sequence[int], flow: FlowSettings, receiver: InputReceiver) -> Iterator[None]:
    feed = feed_of(index, flow)
    feed.lane(0, "", receiver).start(0)
    return feed._turns(cast("Consumer", Topic(NAMES.inputs[index], times)))


def test_a_million_records_that_wait_for_the_other_input_stay_in_kafka() -> None:
    """The other input has two records: one that comes first, one that comes last and is known late."""
    many, flow = 1_000_000, FlowSettings(high=2_000, low=500)
    most, box = flow.high + flow.batch, mailbox()
    inputs, _, _ = opened(box, orders=0, cancels=0)
    fast = read_by_feed(1, range(1, many + 1), flow, inputs)
    for _ in range(3 * most):
        next(fast)
        assert inputs.held(1) <= most
    assert (box.depth, Fetched.alive) == (0, inputs.held(1))
    slow, found, room = read_by_feed(0, [0, many + 1], flow, inputs), 0, 777
    next(slow)
    while found < many + 2:
        batch = box.take(room, 0.0)
        if batch is None:
            next(fast)
            next(slow)
        else:
            assert batch.previous == found
            found += len(batch.messages)
        assert Fetched.alive <= most + room + 2
    assert inputs.held(0) == inputs.held(1) == 0


def test_a_partition_that_leaves_while_it_is_paused_is_read_when_it_comes_back() -> None:
    """Its records wait for the other input until flow control pauses it; then another process has it for a while."""
    flow, topic = FlowSettings(high=2_000, low=500), Topic("cancels", range(10_000))
    feed = feed_of(1, flow)
    turns = feed._turns(cast("Consumer", topic))
    for life in (1, 2, 3):
        inputs, _, _ = opened(mailbox(), orders=0, cancels=0)
        lane = feed.lane(0, "", inputs)
        lane.start(0)
        for _ in range(1_000):
            next(turns)
        assert inputs.held(1) >= flow.high, f"life {life}"
        assert topic.paused
        lane.close()
        inputs.close()


def test_no_record_is_polled_while_every_partition_has_some_because_a_pause_discards_what_was_read() -> None:
    flow, topic = FlowSettings(high=2_000, low=500), Topic("cancels", range(10_000))
    feed, box = feed_of(1, flow), mailbox()
    turns = feed._turns(cast("Consumer", topic))
    inputs, _, _ = opened(box, orders=0, cancels=0)
    feed.lane(0, "", inputs).start(0)
    inputs.end(0)
    for _ in range(50):
        next(turns)
    assert (inputs.held(1), topic.paused) == (1_000, False)
    assert box.take(600, 0.0) is not None
    next(turns)
    assert (inputs.held(1), topic.paused) == (1_400, False)
