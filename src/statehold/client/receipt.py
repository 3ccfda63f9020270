"""Where a record is on an input, as a writer learns it and a reader waits for it."""

from __future__ import annotations

from typing import Final

import msgspec

from statehold.errors import UsageError

#: characters of a receipt
_LONGEST: Final = 28


class Receipt(msgspec.Struct, frozen=True):
    """Where a record is on an input. Written as text, it is `after` of a read: `2:48211`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"

    @classmethod
    def of(cls, text: str, topic: str = "") -> Receipt:
        """Return the receipt that was written as this text.

        :raises UsageError: it is not `PARTITION:OFFSET`.
        """
        partition, colon, offset = text.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal() and len(text) <= _LONGEST):
            raise UsageError(f"{text!r:.100} is no receipt. Next: write PARTITION:OFFSET, such as 2:48211")
        return cls(topic, int(partition), int(offset))
