"""Where a shadow reads: topics that grow. Its readers survive an outage, because each is made again on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Protocol

from statehold.api.record import Message
from statehold.ports import FollowingReader
from statehold.rehearsal.source import RehearsalSource

#: bytes of outputs that are held for the partitions that look through them later
_SHARED: Final = 16_000_000
#: bytes of a message without its value
_MESSAGE: Final = 500


class ShadowSource(RehearsalSource, Protocol):
    """The topics of a running service."""

    def reader(self) -> FollowingReader:
        """Return a reader, which the caller closes."""
        ...

    def look_again(self) -> None:
        """Ask again which topics there are, because a topic may have been created again."""
        ...

    def written(self, topic: str, partition: int) -> int:
        """Return the end of the log, open transactions included."""
        ...


class LastingReader:
    """A `FollowingReader` that creates its client on demand. Drop it after an error."""

    def __init__(self, make: Callable[[], FollowingReader]) -> None:
        self._make = make
        self._reader: FollowingReader | None = None

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._get().bounds(topic, partition)

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return self._get().ends(topic, partitions)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        return self._get().read(topic, partition, start, end, most)

    def cancelled(self) -> bool:
        return self._get().cancelled()

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _get(self) -> FollowingReader:
        if self._reader is None:
            self._reader = self._make()
        return self._reader


@dataclass(slots=True)
class _Range:
    """The committed messages of the offsets [low, high) of one partition."""

    low: int
    high: int
    messages: deque[Message] = field(default_factory=deque)
    size: int = 0

    def between(self, start: int, end: int) -> list[Message]:
        """Return the messages of [start, end), which are mostly the newest."""
        newest = takewhile(lambda each: (each.offset() or 0) >= start, reversed(self.messages))
        return [each for each in newest if (each.offset() or 0) < end][::-1]

    def add(self, batch: Sequence[Message], most: int) -> None:
        self.messages.extend(batch)
        self.high = (batch[-1].offset() or 0) + 1
        self.size += sum(map(_size, batch))
        while self.size > most:
            oldest = self.messages.popleft()
            self.low = (oldest.offset() or 0) + 1
            self.size -= _size(oldest)


class SharedReader(LastingReader):
    """Holds the newest messages, so that each is fetched once although every partition looks through the outputs."""

    def __init__(self, make: Callable[[], FollowingReader], most: int = _SHARED) -> None:
        """`most`: bytes that are held, of all topics and partitions."""
        super().__init__(make)
        self._most = most
        self._ranges: dict[tuple[str, int], _Range] = {}

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        held = self._ranges.get((topic, partition))
        if held is None or not held.low <= start <= held.high:
            held = self._ranges[topic, partition] = _Range(start, start)
        known = held.between(start, end)
        position = max(start, held.high)
        yield from (known[low : low + most] for low in range(0, len(known), most))
        if position >= end:
            return
        share = self._most // len(self._ranges)
        for batch in super().read(topic, partition, position, end, most):
            if held.high == position:  # no other read has added to it meanwhile
                held.add(batch, share)
                position = held.high
            yield batch
        if held.high == position:
            held.high = end  # only markers and aborted records are in between

    def close(self) -> None:
        super().close()
        self._ranges.clear()


class ShadowReaders:
    """The readers of a shadow, which its partitions use in turns: of changelogs, of outputs, and of each input."""

    def __init__(self, source: ShadowSource, inputs: int) -> None:
        self.changelog, self.outputs = LastingReader(source.reader), SharedReader(source.reader)
        self.inputs = [LastingReader(source.reader) for _ in range(inputs)]

    def close(self) -> None:
        """Close the clients; each is made again when it is used again."""
        for each in (self.changelog, self.outputs, *self.inputs):
            each.close()


def _size(message: Message) -> int:
    return _MESSAGE + len(message.value() or b"")
