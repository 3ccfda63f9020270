"""Reads what the live service sent, transaction by transaction, and matches it with what the new code sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from statehold.admin.inspection.output_records import OutputRecord
from statehold.api.record import Message
from statehold.bound.output import origin_of
from statehold.ports import FollowingReader, OutOfRange, Reader
from statehold.rehearsal.report import How

#: a search does not divide a range of fewer offsets
_NEAR: Final = 20_000
#: a search among more pairs would take too long
_LARGE: Final = 250_000


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

    def follow(self, reader: FollowingReader) -> None:
        """Continue to the present ends of the topics."""
        for topic in dict.fromkeys(stream.topic for stream in self._streams):
            streams = [stream for stream in self._streams if stream.topic == topic]
            ends = reader.ends(topic, [stream.at for stream in streams])
            for stream in streams:
                stream.end = ends[stream.at]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Topic and partition of each output topic."""
        return [(stream.topic, stream.at) for stream in self._streams]

    def reaches(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Return whether committed records are readable up to these ends."""
        return all(stream.end >= ends[stream.topic, stream.at] for stream in self._streams)

    def passed(self, n: int) -> None:
        """Do not keep outputs up to this transaction, should they become readable later."""
        self._low = n

    def count(self, n: int) -> int:
        """Return the number of outputs of a transaction that were read."""
        return len(self._found.get(n, ()))

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
        try:
            yield from self._read_on(stream, through)
        except OutOfRange:  # retention was faster
            start, stream.end = self._reader.bounds(stream.topic, stream.at)
            stream.position, stream.truncated, stream.first = max(start, stream.position), True, -1
            yield from self._read_on(stream, through)

    def _read_on(self, stream: _Stream, through: int) -> Iterator[SentOutput]:
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
        origin = origin_of(message.headers())
        if origin is None:
            self.nameless = True
            return None
        if origin.partition != self._partition:
            return None
        record = OutputRecord(topic, message.value(), message.key(), origin.headers)
        return SentOutput(origin.n, origin.ordinal, message.offset() or 0, record)


class OutputPair(NamedTuple):
    """Two outputs that differ, by their indexes in the transaction; -1: absent on this side."""

    live: int
    new: int

    @property
    def how(self) -> How:
        return "added" if self.live < 0 else "missing" if self.new < 0 else "changed"


class MatchedOutputs(NamedTuple):
    """The pairs that differ, and those that are equal."""

    differ: list[OutputPair]
    equal: list[OutputPair]


def match(live: Sequence[OutputRecord], new: Sequence[OutputRecord]) -> MatchedOutputs:
    """Match outputs of the same topic and key in their order, so that few differ.

    The order of outputs of different keys does not count, because no reader depends on it across partitions.
    """
    differ: list[OutputPair] = []
    equal: list[OutputPair] = []
    groups: dict[tuple[str, bytes | None], tuple[list[int], list[int]]] = {}
    for side, records in enumerate((live, new)):
        for i, record in enumerate(records):
            groups.setdefault((record.topic, record.key), ([], []))[side].append(i)
    for before, after in groups.values():
        for pair in _pairs(live, new, before, after):
            same = pair.live >= 0 and pair.new >= 0 and live[pair.live] == new[pair.new]
            (equal if same else differ).append(pair)
    differ.sort(key=lambda pair: (pair.new if pair.new >= 0 else pair.live, pair))
    return MatchedOutputs(differ, equal)


def _pairs(
    live: Sequence[OutputRecord], new: Sequence[OutputRecord], before: list[int], after: list[int]
) -> list[OutputPair]:
    """Match the outputs of one key: one by one, or around added and missing ones where fewer differ then."""
    straight = [OutputPair(*pair) for pair in zip_longest(before, after, fillvalue=-1)]

    def wrong(pairs: list[OutputPair]) -> int:
        return sum(pair.live < 0 or pair.new < 0 or live[pair.live] != new[pair.new] for pair in pairs)

    if wrong(straight) <= 1 or len(before) * len(after) > _LARGE:
        return straight
    around = _around(live, new, before, after)
    return around if wrong(around) < wrong(straight) else straight


def _around(
    live: Sequence[OutputRecord], new: Sequence[OutputRecord], before: list[int], after: list[int]
) -> list[OutputPair]:
    found: list[OutputPair] = []
    matcher = SequenceMatcher(None, [live[i] for i in before], [new[i] for i in after], autojunk=False)
    for _, low, high, first, last in matcher.get_opcodes():
        found += [OutputPair(*pair) for pair in zip_longest(before[low:high], after[first:last], fillvalue=-1)]
    return found
