"""Which offset of a restored input stands for which offset of the old one (rule M3)."""

from __future__ import annotations

from bisect import bisect_right

import msgspec


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """`count` records from `old` on, one offset after the other, are those from `new` on."""

    old: int
    new: int
    count: int


class OffsetMap(msgspec.Struct):
    """Of one partition. Offsets of the old one that held no record (markers of transactions) are in no segment."""

    partition: int
    #: offset after the last record, in the old and in the new input
    old_end: int = 0
    new_end: int = 0
    segments: list[Segment] = []

    def add(self, old: int, new: int) -> None:
        """Records in order."""
        last = self.segments[-1] if self.segments else None
        if last is not None and (old - last.old, new - last.new) == (last.count, last.count):
            self.segments[-1] = Segment(last.old, last.new, last.count + 1)
        else:
            self.segments.append(Segment(old, new, 1))
        self.old_end, self.new_end = old + 1, new + 1

    def position(self, old: int) -> int:
        """The new offset of the first record at or after `old`; the end where there is none."""
        at = bisect_right(self.segments, old, key=lambda segment: segment.old) - 1
        if at >= 0:
            segment = self.segments[at]
            if old < segment.old + segment.count:
                return segment.new + old - segment.old
        return self.segments[at + 1].new if at + 1 < len(self.segments) else self.new_end
