"""Reads outputs by their origin, and input records in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from statehold.api.record import Message
from statehold.bound.output import origin_of
from statehold.kafka.admin.admin import TopicFacts
from statehold.messages.sent import Sent
from statehold.ports import Reader


class OutputRecord(NamedTuple):
    """One output as a consumer of its topic sees it, without partition and time."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @classmethod
    def sent(cls, given: Sent) -> OutputRecord:
        """Convert what the handler sends now."""
        key = given[2].encode() if isinstance(given[2], str) else given[2]
        return cls(given[0], given[1], key, tuple(given[7] or ()))


class WrittenOutputs:
    """The outputs of one input partition's transactions after `low` up to `high`, by (n, ordinal).

    Reads the output topics from their beginning, because only the header of an output names its transaction.
    """

    def __init__(
        self, reader: Reader, partition: int, low: int, high: int, topics: Mapping[str, TopicFacts | None]
    ) -> None:
        self.answers: dict[tuple[int, int], OutputRecord] = {}
        #: retention may have deleted some
        self.truncated = False
        #: there are outputs, and none names its origin (output.origin = off)
        self.nameless = False
        for topic, fact in topics.items():
            for at in range(fact.partitions if fact else 0):
                start, end = reader.bounds(topic, at)
                self.truncated |= start > 0
                for batch in reader.read(topic, at, start, end):
                    for message in batch:
                        self._take(topic, message, partition, low, high)
            self.truncated |= fact is None

    def _take(self, topic: str, message: Message, partition: int, low: int, high: int) -> None:
        origin = origin_of(message.headers())
        if origin is None:
            self.nameless = True
        elif origin.partition == partition and low < origin.n <= high:
            record = OutputRecord(topic, message.value(), message.key(), origin.headers)
            self.answers[origin.n, origin.ordinal] = record


class InputRecords:
    """Messages of one partition, returned up to a position at a time."""

    def __init__(self, reader: Reader, topic: str, partition: int, start: int, end: int) -> None:
        self._messages = (each for batch in reader.read(topic, partition, start, end) for each in batch)
        self._next = next(self._messages, None)

    def before(self, position: int) -> Iterator[Message]:
        while self._next is not None and (self._next.offset() or 0) < position:
            message, self._next = self._next, next(self._messages, None)
            yield message
