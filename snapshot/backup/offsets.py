"""Maps offsets of the old input to offsets of the restored input (rule M3)."""

from __future__ import annotations

from bisect import bisect_right

import msgspec


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """`count` consecutive records: old offsets from `old`, new offsets from `new`."""

    old: int
    new: int
    count: int


class OffsetMap(msgspec.Struct):
    """The map of one partition of an input. Old offsets without a record (transaction markers) are in no segment."""

    partition: int
    #: Offset after the last record, in the old and in the new input.
    old_end: int = 0
    new_end: int = 0
    segments: list[Segment] = []
    #: The input; '' in maps of releases that restored one input only.
    topic: str = ""

    @property
    def records(self) -> int:
        return sum(segment.count for segment in self.segments)

    def add(self, old: int, new: int) -> None:
        """Add a record; call it in offset order."""
        last = self.segments[-1] if self.segments else None
        if last is not None and (old - last.old, new - last.new) == (last.count, last.count):
            self.segments[-1] = Segment(last.old, last.new, last.count + 1)
        else:
            self.segments.append(Segment(old, new, 1))
        self.old_end, self.new_end = old + 1, new + 1

    def position(self, old: int) -> int:
        """Return the new offset of the first record at or after `old`; the new end without one."""
        at = bisect_right(self.segments, old, key=lambda segment: segment.old) - 1
        if at >= 0:
            segment = self.segments[at]
            if old < segment.old + segment.count:
                return segment.new + old - segment.old
        return self.segments[at + 1].new if at + 1 < len(self.segments) else self.new_end
