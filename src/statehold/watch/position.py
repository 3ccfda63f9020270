"""Up to which change a reader has followed each partition, as a text that it keeps and gives again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from statehold.errors import UsageError
from statehold.snapshot.format.records import CommitRecord

#: characters of a state generation, enough to see that a topic was created again
_SHORT: Final = 8
#: digits of a number
_DIGITS: Final = 18
#: characters of a position
LONGEST: Final = 200_000


class WatchedTo(NamedTuple):
    """All changes up to transaction `n`, or of transaction `n` itself only the first `part`; -1: all of it."""

    n: int
    generation: str
    part: int = -1

    @classmethod
    def of(cls, commit_record: CommitRecord) -> Self:
        return cls(commit_record.n, commit_record.lineage[:_SHORT])

    def text(self, partition: int) -> str:
        """Return the text for a partition, such as `0:17:1f3a0c2e`; within a transaction `0:17.3:1f3a0c2e`."""
        part = f".{self.part}" if self.part >= 0 else ""
        return f"{partition}:{self.n}{part}:{self.generation}"


#: before the first transaction of a partition
NEW: Final = WatchedTo(0, "new")

#: by partition
WatchPosition = Mapping[int, WatchedTo]


def as_text(position: WatchPosition) -> str:
    """Return the text of a position, which `parse` reads."""
    return ",".join(reached.text(partition) for partition, reached in sorted(position.items()))


def parse(text: str) -> dict[int, WatchedTo]:
    """Return the position with this text; '' has no partition.

    :raises UsageError: it is no such text.
    """
    if len(text) > LONGEST:
        raise UsageError(f"a position of {len(text)} characters; one has at most {LONGEST}")
    return dict(map(_parsed, filter(None, text.split(","))))


def _parsed(text: str) -> tuple[int, WatchedTo]:
    partition, _, rest = text.partition(":")
    number, colon, generation = rest.partition(":")
    n, dot, part = number.partition(".")
    numbers = (partition, n, part) if dot else (partition, n)
    if not (colon and all(map(_is_number, numbers)) and len(generation) <= _SHORT and generation.isalnum()):
        raise UsageError(
            f"{text!r:.100} is no position of a watch. Next: give the `position` of a change or of a page as it is"
        )
    return int(partition), WatchedTo(int(n), generation, int(part) if dot else -1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS
