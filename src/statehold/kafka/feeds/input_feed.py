"""Reads one of several inputs, for all partitions of this process; each partition has a lane."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import RetentionGap, TopicReplaced, of_thread
from statehold.kafka.common.client_log import ClientLog
from statehold.kafka.common.retry import OncePerMinute
from statehold.kafka.common.topic_identity import DEBUG, TopicIdentity
from statehold.kafka.feeds.topic_feed import Feed, FeedLane
from statehold.ports import InputReceiver
from statehold.telemetry.log_events import Log

#: seconds without a record until polls wait for the first one, and how long they then wait
_CALM_AFTER: Final = 1.0
_CALM_POLL: Final = 0.1
#: seconds of a turn without a poll, and most of these turns in sequence, because only a poll reports errors
_NO_POLL: Final = 0.003
_MOST_SKIPPED: Final = 100
#: most milliseconds until the broker says that an input has no more records, for which other inputs wait
_END_WITHIN_MS: Final = 20
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class InputLane(FeedLane):
    """One partition of one input for one live phase."""

    def __init__(self, feed: Feed, partition: int, input: int, topic_id: str, receiver: InputReceiver) -> None:
        """`topic_id`: of the topic whose records the commit record counts; '' if unknown."""
        super().__init__(feed, partition)
        self._input, self.topic_id, self.receiver = input, topic_id, receiver
        #: the partition fails; nothing more is read
        self.failed = False

    def start(self, offset: int) -> None:
        """Partition's thread: read from this offset."""
        self._follow(offset)

    def put_all(self, messages: Sequence[Message]) -> int:
        """Hand over records that follow the last ones; return how many wait."""
        if (messages[0].offset() or 0) < self.next:  # a new assignment reads some again
            messages = [message for message in messages if (message.offset() or 0) >= self.next]
        if not messages:
            return self.held
        self.next = (messages[-1].offset() or 0) + 1
        return self.receiver.add(self._input, messages)

    def put(self, message: Message) -> None:
        self.put_all([message])

    @property
    def held(self) -> int:
        return self.receiver.held(self._input)

    def end(self) -> None:
        self.receiver.end(self._input)

    def gone(self) -> None:
        """Fail the partition: retention has deleted the next record."""
        self.failed = True
        self.receiver.fail(
            RetentionGap(
                "read the next record: retention has deleted its offset. No record was skipped. Next: restore the "
                "records; or stop the service and run `statehold repair accept-gap MODULE:SERVICE --why TEXT "
                "--dry-run`, which shows the offset it would continue from",
                topic=self._feed.topic,
                partition=self.partition,
                position=self.next,
            )
        )

    def replaced(self, now: str) -> None:
        """Fail the partition: the topic was deleted and created again."""
        self.failed = True
        self.receiver.fail(
            TopicReplaced(
                f"read the input: it was deleted and created again (id {self.topic_id} before, {now} now). No record "
                f"of the new topic was processed. Next: restore the old topic; or stop the service and run `statehold "
                f"repair accept-gap MODULE:SERVICE --why TEXT --dry-run`, which shows where it would continue",
                topic=self._feed.topic,
                partition=self.partition,
                position=self.next,
            )
        )


class InputFeed(Feed):
    """One consumer without a group and one thread; both start with the first partition."""

    def __init__(self, settings: Settings, names: Names, input: int, log: Log) -> None:
        """`input`: index among the service's inputs."""
        super().__init__(settings, names.group, names.inputs[input], log)
        self._input, self._flow = input, settings.flow
        self._identity = TopicIdentity(self.topic)
        self._minute = OncePerMinute()
        #: the lanes that the consumer reads for, by partition, and those of them that flow control has paused
        self._read_for: dict[int, InputLane] = {}
        self._paused: set[int] = set()
        #: turns without a poll since the last one
        self._skipped = 0

    def lane(self, partition: int, topic_id: str, receiver: InputReceiver) -> InputLane:
        return InputLane(self, partition, self._input, topic_id, receiver)

    def _config(self) -> dict[str, Any]:
        flow, identity = self._flow, TopicIdentity(self.topic)
        self._identity, self._read_for, self._paused = identity, {}, set()
        return {
            **super()._config(),
            "fetch.wait.max.ms": _END_WITHIN_MS,
            "queued.min.messages": flow.prefetch_records,
            "queued.max.messages.kbytes": max(1, flow.prefetch_bytes // 1024),
            "debug": DEBUG,
            "log_level": 7,
            "logger": ClientLog(lambda _, line: identity.logged(line)),
        }

    def _turns(self, consumer: Consumer) -> Iterator[None]:
        busy = time.monotonic()
        while True:
            self._assign(consumer)
            if not self._control_flow(consumer):
                busy = time.monotonic()
                self._ending.wait(self._flow.poll_timeout if self._paused else _NO_POLL)
                yield
                continue
            calm = not self._paused and time.monotonic() - busy >= _CALM_AFTER
            most, wait = (1, _CALM_POLL) if calm else (self._flow.batch, self._flow.poll_timeout)
            messages = consumer.consume(most, wait)
            self._require_same_topic()
            if messages:
                self._dispatch(messages)
                busy = time.monotonic()
            yield

    def _assign(self, consumer: Consumer) -> None:
        """Read for the lanes that have come, and no more for those that have left."""
        if self._changed.empty():
            return
        while not self._changed.empty():
            self._changed.get()
        with self._lock:
            wanted = {p: lane for p, lane in self._lanes.items() if isinstance(lane, InputLane) and not lane.failed}
        left = [p for p, lane in self._read_for.items() if wanted.get(p) is not lane]
        if left:
            # A partition that leaves paused would be paused when it comes back (pitfall 19).
            consumer.resume([TopicPartition(self.topic, p) for p in left if p in self._paused])
            consumer.incremental_unassign([TopicPartition(self.topic, p) for p in left])
        come = {p: lane for p, lane in wanted.items() if self._read_for.get(p) is not lane}
        if come:
            consumer.incremental_assign([TopicPartition(self.topic, p, lane.next) for p, lane in come.items()])
        self._read_for = wanted
        self._paused -= set(left)

    def _control_flow(self, consumer: Consumer) -> bool:
        """Return whether to poll: not while every partition has records, which wait in the client meanwhile.

        If some have none, pause partitions with too many: another input is waited for, or the handler is slow. A pause
        discards the records that the client has read ahead.
        """
        hungry = False
        for partition, lane in self._read_for.items():
            held, paused = lane.held, partition in self._paused
            if paused and held <= self._flow.low:
                consumer.resume([TopicPartition(self.topic, partition)])
                self._paused.discard(partition)
            hungry = hungry or held <= self._flow.low
        if self._read_for and not hungry and self._skipped < _MOST_SKIPPED:
            self._skipped += 1
            return False
        self._skipped = 0
        full = [p for p, lane in self._read_for.items() if p not in self._paused and lane.held >= self._flow.high]
        if full:
            consumer.pause([TopicPartition(self.topic, p) for p in full])
            self._paused.update(full)
        return True

    def _dispatch(self, messages: Sequence[Message]) -> None:
        """Hand the records to their lanes, in the order in which they came."""
        for (partition, is_error), group in groupby(messages, _kind):
            lane = self._read_for.get(partition)
            if is_error:
                for each in group:
                    self._note(lane, each.error())
            elif lane is not None and not lane.failed:
                lane.put_all(list(group))

    def _note(self, lane: InputLane | None, error: KafkaError | None) -> None:
        code = None if error is None else error.code()
        if lane is not None and not lane.failed and code == KafkaError._PARTITION_EOF:
            lane.end()
        elif lane is not None and not lane.failed and code in _GONE:
            lane.gone()
            self._changed.put(lane.partition)
        elif code not in (*_GONE, KafkaError._PARTITION_EOF) and self._minute():
            self.log.warning("kafka_retry", doing=f"read {self.topic}", cause=str(error))

    def _died(self, error: Exception) -> None:
        """Fail the partitions, because nothing reads for them."""
        super()._died(error)
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            if isinstance(lane, InputLane):
                lane.failed = True
                lane.receiver.fail(of_thread(error))

    def _require_same_topic(self) -> None:
        now = self._identity.topic.id
        if not now:
            return
        for partition, lane in self._read_for.items():
            if lane.topic_id and lane.topic_id != now and not lane.failed:
                lane.replaced(now)
                self._changed.put(partition)


def _kind(message: Message) -> tuple[int, bool]:
    """Return the partition of a message and whether it is an error."""
    partition = message.partition()
    return -1 if partition is None else partition, message.error() is not None


class InputFeeds:
    """The feeds of all inputs of a service with several."""

    def __init__(self, settings: Settings, names: Names, log: Log) -> None:
        self.feeds = [InputFeed(settings, names, index, log) for index in range(len(names.inputs))]

    def read(
        self, partition: int, positions: Mapping[str, int], ids: Mapping[str, str], receiver: InputReceiver
    ) -> Lanes:
        """Read all inputs of a partition from these offsets, by topic. `ids`: of the topics that the offsets count."""
        lanes = [feed.lane(partition, ids.get(feed.topic, ""), receiver) for feed in self.feeds]
        for lane, feed in zip(lanes, self.feeds, strict=True):
            lane.start(positions[feed.topic])
        return Lanes(lanes)

    def renew(self) -> None:
        for feed in self.feeds:
            feed.renew()

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()


class Lanes:
    """`ports.InputReading`: one lane of each input."""

    def __init__(self, lanes: Sequence[InputLane]) -> None:
        self._lanes = lanes

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
