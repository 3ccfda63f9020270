"""Where a record is on an input, as a writer learns it and a reader waits for it."""

from __future__ import annotations

import msgspec


class Receipt(msgspec.Struct, frozen=True):
    """Where a record is on an input. Written as text, it is `after` of a read: `2:48211`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"
