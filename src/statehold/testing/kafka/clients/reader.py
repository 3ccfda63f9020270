"""Readers without a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from statehold.api.record import Message
from statehold.config.settings import Settings
from statehold.errors import DamagedIncrement, HangingTransaction, KafkaTrouble, RestoreTimeout, TopicMissing
from statehold.ports import Cancelled, OutOfRange
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.cluster import NoSuchTopic
from statehold.testing.memory.log import MemoryLog

#: seconds between two looks for records
_POLL = 0.02
#: seconds that a question for offsets waits
_ASK = 10.0


class SimulatedReader:
    """`ports.Reader`."""

    def __init__(self, process: SimulatedProcess, settings: Settings, cancelled: Callable[[], bool]) -> None:
        self._process, self._kafka, self._cancelled = process, process.kafka, cancelled
        self._restore = settings.restore

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._ask(lambda: self._bounds(self._log(topic, partition)), topic, partition, self._restore.deadline)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        position, heard, at_stable = start, self._kafka.clock(), -1
        while position < end:
            if self._cancelled():
                raise Cancelled
            try:
                log = self._process.request(
                    "read",
                    lambda: self._log(topic, partition),
                    deadline=self._kafka.clock() + _POLL,
                    timed_out=TimeoutError,
                    subject=topic,
                    partition=partition,
                )[0]
            except TimeoutError:
                log = None
            if log is not None:
                if not log.start <= position <= log.end:
                    raise OutOfRange(f"{topic}[{partition}]: {position} is not in {log.start} to {log.end}")
                messages = self._next(log, position, end, most)
                reached = position
                if messages:
                    reached = (messages[-1].offset() or 0) + 1
                elif log.stable > position:
                    reached = min(log.stable, end)
                if reached > position:
                    damaged = [offset for offset in log.damaged if position <= offset < reached]
                    yield from self._out(messages, min(damaged, default=end), topic, partition, damaged)
                    position, heard, at_stable = reached, self._kafka.clock(), -1
                    continue
                if log.stable == position:
                    at_stable = position
            self._check_patience(topic, partition, heard, at_stable, end)
            self._wait_for_more(topic, partition, position)

    def cancelled(self) -> bool:
        return self._cancelled()

    def close(self) -> None:
        self._process.alive()

    def _out(
        self, messages: Sequence[Message], below: int, topic: str, partition: int, damaged: Sequence[int]
    ) -> Iterator[Sequence[Message]]:
        whole = [message for message in messages if (message.offset() or 0) < below]
        if whole:
            yield whole
        if damaged:
            raise DamagedIncrement(
                "a record batch is damaged on the broker's disk", topic=topic, partition=partition, position=below
            )

    def _next(self, log: MemoryLog, position: int, end: int, most: int) -> list[Message]:
        return list(islice(log.committed(position, end), most))

    def _wait_for_more(self, topic: str, partition: int, position: int) -> None:
        more = partial(self._more, topic, partition, position)
        self._process.wait(lambda: self._cancelled() or more(), self._kafka.clock() + 1.0)

    def _more(self, topic: str, partition: int, position: int) -> bool:
        found = self._kafka.topics.get(topic)
        return found is not None and partition < len(found.logs) and found.logs[partition].stable > position

    def _check_patience(self, topic: str, partition: int, heard: float, at_stable: int, end: int) -> None:
        waited = self._kafka.clock() - heard
        if at_stable >= 0 and waited > self._restore.hanging_after:
            raise HangingTransaction(
                f"committed records end at {at_stable}, the log at {end}, for {waited:.0f} s: an open transaction of "
                f"another producer hides the rest",
                topic=topic,
                partition=partition,
                position=at_stable,
            )
        if waited > self._restore.deadline:
            raise RestoreTimeout(f"no data for {waited:.0f} s (restore.deadline)", topic=topic, partition=partition)

    def _bounds(self, log: MemoryLog) -> tuple[int, int]:
        return log.start, log.high

    def _log(self, topic: str, partition: int) -> MemoryLog:
        try:
            return self._kafka.log(topic, partition)
        except NoSuchTopic as error:
            raise TopicMissing(str(error)) from error

    def _ask(
        self, effect: Callable[[], tuple[int, int]], topic: str, partition: int, deadline: float
    ) -> tuple[int, int]:
        """Ask until an answer comes."""
        until = self._kafka.clock() + deadline
        while True:
            if self._cancelled():
                raise Cancelled
            try:
                return self._process.request(
                    "bounds",
                    effect,
                    deadline=min(until, self._kafka.clock() + _ASK),
                    timed_out=lambda: KafkaTrouble("_TIMED_OUT(-185)"),
                    subject=topic,
                    partition=partition,
                )[0]
            except KafkaTrouble as error:
                if self._kafka.clock() >= until:
                    raise RestoreTimeout(f"no end offsets ({error})", topic=topic, partition=partition) from error
                self._process.wait(self._cancelled, min(until, self._kafka.clock() + 0.1))


class SimulatedFollowingReader(SimulatedReader):
    """`ports.FollowingReader`: its bounds end at the last stable offset."""

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return self._process.request(
            "ends",
            lambda: {partition: self._log(topic, partition).stable for partition in partitions},
            deadline=self._kafka.clock() + _ASK,
            timed_out=lambda: KafkaTrouble("_TIMED_OUT(-185)"),
            subject=topic,
        )[0]

    def _bounds(self, log: MemoryLog) -> tuple[int, int]:
        return log.start, log.stable
