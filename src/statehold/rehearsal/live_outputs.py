"""Reads what the live service sent, transaction by transaction, without holding more than a window of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from statehold.admin.inspection.output_records import OutputRecord
from statehold.api.record import Message
from statehold.bound.output import ORIGIN, ORIGIN_HEADER
from statehold.ports import Reader

#: a search does not divide a range of fewer offsets
_NEAR: Final = 20_000


class SentOutput(NamedTuple):
    """An output of the live service, with its transaction and ordinal, and its offset on its topic."""

    n: int
    ordinal: int
    offset: int
    record: OutputRecord


class _Stream:
    """The position on one partition of one output topic."""

    def __init__(self, topic: str, at: int, start: int, end: int) -> None:
        self.topic, self.at, self.position, self.end = topic, at, start, end
        #: retention has deleted its beginning; the first transaction of the partition that it still has
        self.truncated, self.first = start > 0, -1


class LiveOutputs:
    """The outputs of one input partition's transactions after `low`. Ask for growing transactions."""

    def __init__(self, reader: Reader, partition: int, low: int, topics: Mapping[str, int]) -> None:
        """`topics`: output topics with their number of partitions."""
        self._reader, self._partition, self._low = reader, partition, low
        self._streams = [self._stream(topic, at) for topic, count in topics.items() for at in range(count)]
        self._found: dict[int, list[SentOutput]] = {}
        #: there are outputs, and none names its origin (output.origin = off)
        self.nameless = False
        self._loaded = low

    def load(self, through: int) -> None:
        """Read the outputs up to this transaction."""
        for stream in self._streams:
            for sent in self._read(stream, through):
                self._found.setdefault(sent.n, []).append(sent)
        self._loaded = through

    def of(self, n: int) -> list[SentOutput]:
        """Return the outputs of a transaction in their order, once."""
        assert n <= self._loaded
        return sorted(self._found.pop(n, []), key=lambda sent: sent.ordinal)

    def may_be_deleted(self, n: int) -> bool:
        """Return whether retention may have deleted outputs of this transaction."""
        return any(stream.truncated and (stream.first < 0 or n <= stream.first) for stream in self._streams)

    def _read(self, stream: _Stream, through: int) -> Iterator[SentOutput]:
        for batch in self._reader.read(stream.topic, stream.at, stream.position, stream.end):
            for message in batch:
                sent = self._sent(stream.topic, message)
                if sent is not None and sent.n > through:
                    return
                stream.position = (message.offset() or 0) + 1
                if sent is not None and sent.n > self._low:
                    stream.first = stream.first if stream.first >= 0 else sent.n
                    yield sent
            stream.position = (batch[-1].offset() or 0) + 1
        stream.position = stream.end

    def _stream(self, topic: str, at: int) -> _Stream:
        """Find the first output after transaction `low`: the numbers of transactions grow along the topic."""
        start, end = self._reader.bounds(topic, at)
        stream = _Stream(topic, at, start, end)
        low, high = start, end
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = self._first_from(topic, at, middle, high)
            if found is None or found.n > self._low:
                high = middle
            else:
                low, stream.first = found.offset + 1, found.n
        stream.position = low
        return stream

    def _first_from(self, topic: str, at: int, start: int, end: int) -> SentOutput | None:
        for batch in self._reader.read(topic, at, start, end):
            for message in batch:
                if (sent := self._sent(topic, message)) is not None:
                    return sent
        return None

    def _sent(self, topic: str, message: Message) -> SentOutput | None:
        headers = tuple(message.headers() or ())
        for i in range(len(headers) - 1, -1, -1):  # a dead letter may repeat that of another service
            name, data = headers[i]
            if name == ORIGIN_HEADER and len(data) == ORIGIN.size:
                source, n, ordinal = ORIGIN.unpack(data)
                if source != self._partition:
                    return None
                record = OutputRecord(topic, message.value(), message.key(), headers[:i] + headers[i + 1 :])
                return SentOutput(n, ordinal, message.offset() or 0, record)
        self.nameless = True
        return None
