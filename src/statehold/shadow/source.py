"""Where a shadow reads: topics that grow. Its readers survive an outage, because each is made again on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from statehold.api.record import Message
from statehold.ports import FollowingReader
from statehold.rehearsal.source import RehearsalSource


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


class ShadowReaders:
    """The readers of a shadow, which its partitions use in turns: of changelogs, of outputs, and of each input."""

    def __init__(self, source: ShadowSource, inputs: int) -> None:
        self.changelog, self.outputs = LastingReader(source.reader), LastingReader(source.reader)
        self.inputs = [LastingReader(source.reader) for _ in range(inputs)]

    def close(self) -> None:
        """Close the clients; each is made again when it is used again."""
        for each in (self.changelog, self.outputs, *self.inputs):
            each.close()
