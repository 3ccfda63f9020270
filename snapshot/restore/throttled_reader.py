"""Reads on a background thread without starving the live thread, with which it shares the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from statehold.api.record import Message
from statehold.common.threads import ThreadEvent
from statehold.ports import Reader

#: records in one slice: less than a megabyte of chunks, because the live thread waits while a slice is copied
SLICE: Final = 16


class ThrottledReader:
    """`ports.Reader` that reads in small slices and rests after each."""

    def __init__(
        self,
        reader: Reader,
        ending: ThreadEvent,
        processor_time: Callable[[], float],
        *,
        rest: float,
        records: int = SLICE,
        after_slice: Callable[[], object] = lambda: None,
    ) -> None:
        """`rest`: pause after each slice of `records`, in multiples of the processor time that the slice took."""
        self._reader, self._ending, self._rest, self._after_slice = reader, ending, rest, after_slice
        self._processor_time = processor_time
        self._records = records
        self.cancelled, self.close = reader.cancelled, reader.close

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._reader.bounds(topic, partition)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        for batch in self._reader.read(topic, partition, start, end, min(most, self._records)):
            began = self._processor_time()
            yield batch
            self._ending.wait(self._rest * (self._processor_time() - began))
            self._after_slice()
