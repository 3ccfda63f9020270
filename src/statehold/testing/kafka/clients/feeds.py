"""Follows topics in addition to the group's input: control topic, retry topics, each of several inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import RetentionGap, StateRefused, TopicReplaced
from statehold.messages.command import BadCommand
from statehold.messages.retry_record import Retried
from statehold.ports import Asked, InputReceiver
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.memory.log import MemoryLog

#: seconds until a reader whose records wait, or whose request got no answer, looks again
_AGAIN = 0.05


class _LogReader:
    """Calls `step` on a background thread whenever the partition may have something new to read."""

    def __init__(self, process: SimulatedProcess, topic: str, partition: int, step: Callable[[], bool]) -> None:
        """`step` returns True to be called again soon."""
        self._process, self._topic, self._partition, self._step = process, topic, partition, step
        self._due = self._closed = False
        process.kafka.watch((topic, partition), process.name, self.look)
        self.look()

    def look(self) -> None:
        if not self._due and not self._closed:
            self._due = True
            self._process.after(0.0, self._run)

    def close(self) -> None:
        self._closed = True
        self._process.kafka.unwatch((self._topic, self._partition), self._process.name, self.look)

    def _run(self) -> None:
        self._due = False
        if self._closed:
            return
        fault = self._process.background_fault("feed", self._topic, self._partition)
        if fault.never or self._step():
            self._due = True
            self._process.after(_AGAIN, self._run)


class _Lane:
    """One partition of a topic for one assignment; it starts with the owner's first question."""

    def __init__(self, process: SimulatedProcess, topic: str, partition: int) -> None:
        self._process, self._kafka = process, process.kafka
        self._topic, self._partition = topic, partition
        self._next = 0
        self._log_reader: _LogReader | None = None

    def close(self) -> None:
        if self._log_reader is not None:
            self._log_reader.close()

    def _follow(self, position: int) -> None:
        self._process.alive()
        if self._log_reader is None:
            self._next = position
            self._log_reader = _LogReader(self._process, self._topic, self._partition, self._read)

    def _read(self) -> bool:
        log = self._log()
        if log is None:
            return False
        if not log.start <= self._next <= log.end:
            self._gone(log)
        for message in log.committed(self._next):
            self._next = (message.offset() or 0) + 1
            self._put(message)
        return False

    def _log(self) -> MemoryLog | None:
        topic = self._kafka.topics.get(self._topic)
        return topic.logs[self._partition] if topic is not None and self._partition < len(topic.logs) else None

    def _gone(self, log: MemoryLog) -> None:
        self._next = log.start

    def _put(self, message: Message) -> None:
        raise NotImplementedError


class SimulatedControl(_Lane):
    """`ports.Control`."""

    def __init__(
        self, process: SimulatedProcess, names: Names, partition: int, largest: int, wake: Callable[[], None]
    ) -> None:
        super().__init__(process, names.control, partition)
        self._largest, self._wake = largest, wake
        self._waiting: list[tuple[int, Asked | None]] = []

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        self._follow(position)
        self._waiting = [each for each in self._waiting if each[0] >= position]
        end = self._waiting[-1][0] + 1 if self._waiting else position
        return [asked for _, asked in self._waiting if asked is not None], end

    def _put(self, message: Message) -> None:
        self._waiting.append((message.offset() or 0, self._asked(message)))
        self._wake()

    def _asked(self, message: Message) -> Asked | None:
        try:
            asked = Asked.by(message)
        except BadCommand:
            return None
        too_large = asked is not None and asked.pinned is not None and asked.pinned.size > self._largest
        return None if too_large else asked


class SimulatedDelayed(_Lane):
    """`ports.Delayed`."""

    def __init__(self, process: SimulatedProcess, topic: str, inputs: Sequence[str], partition: int) -> None:
        super().__init__(process, topic, partition)
        self._inputs = inputs
        self._held: list[Retried] = []
        #: the offset that was missing in the log, because a new topic counts from 0 again
        self._lost = -1

    def due(self, position: int, now: int) -> tuple[list[Retried], int]:
        self._follow(position)
        if position != self._lost:
            self._lost = -1
            self._held = [each for each in self._held if each.at >= position]
        found = []
        for each in self._held:
            if each.due > now:
                break
            found.append(each)
        if found and found[-1].at + 1 == self._lost:  # because the next offset must differ from the lost one
            found.pop()
        return found, found[-1].at + 1 if found else position

    @property
    def held(self) -> int:
        return len(self._held)

    def _gone(self, log: MemoryLog) -> None:
        self._lost = self._next
        super()._gone(log)

    def _put(self, message: Message) -> None:
        if (retried := Retried.by(message, self._inputs)) is not None:
            self._held.append(retried)


class SimulatedInputs:
    """Reads all inputs of the partitions of one process: the `inputs` of a worker's tools."""

    def __init__(self, process: SimulatedProcess, names: Names, settings: Settings) -> None:
        self._process, self._inputs, self._flow = process, names.inputs, settings.flow

    def read(
        self, partition: int, positions: Mapping[str, int], ids: Mapping[str, str], receiver: InputReceiver
    ) -> SimulatedInputReading:
        """Read all inputs of a partition from these offsets, by topic. `ids`: of the topics that the offsets count."""
        self._process.alive()
        lanes = [
            _InputLane(
                self._process,
                index,
                (topic, partition),
                ids.get(topic, ""),
                positions[topic],
                receiver,
                (self._flow.high, self._flow.batch),
            )
            for index, topic in enumerate(self._inputs)
        ]
        return SimulatedInputReading(lanes)


class SimulatedInputReading:
    """`ports.InputReading`."""

    def __init__(self, lanes: Sequence[_InputLane]) -> None:
        self._lanes = lanes

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class _InputLane:
    def __init__(
        self,
        process: SimulatedProcess,
        input: int,
        place: tuple[str, int],
        topic_id: str,
        position: int,
        receiver: InputReceiver,
        limits: tuple[int, int],
    ) -> None:
        """`limits`: the most records that wait, and that one step hands over."""
        self._kafka, self._input, self._place = process.kafka, input, place
        self._id, self._next, self._receiver = topic_id, position, receiver
        self._high, self._batch = limits
        self._log_reader = _LogReader(process, *place, self._step)

    def close(self) -> None:
        self._log_reader.close()

    def _step(self) -> bool:
        topic, partition = self._place
        found = self._kafka.topics.get(topic)
        if found is None or partition >= len(found.logs):
            return False
        log = found.logs[partition]
        if self._id and found.id != self._id:
            self._fail(TopicReplaced, f"the topic was created again ({found.id})")
        elif not log.start <= self._next <= log.end:
            self._fail(RetentionGap, "read the next record: retention has deleted its offset")
        elif self._receiver.held(self._input) >= self._high:
            return True
        else:
            messages = list(islice(log.committed(self._next), self._batch))
            if messages:
                self._next = (messages[-1].offset() or 0) + 1
                self._receiver.add(self._input, messages)
            if next(log.committed(self._next), None) is not None:
                return True
            self._receiver.end(self._input)
        return False

    def _fail(self, kind: type[StateRefused], text: str) -> None:
        self._log_reader.close()
        self._receiver.fail(kind(text, topic=self._place[0], partition=self._place[1], position=self._next))
