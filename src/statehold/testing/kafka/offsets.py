"""The committed offsets of one group, and those of transactions that are still open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from statehold.testing.memory.log import Outcome, Transaction

Place = tuple[str, int]


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


class GroupMetadata(NamedTuple):
    """A member sends it with its offsets; the coordinator rejects those of an earlier generation."""

    group: str
    member_id: str
    #: generation, or member epoch with the consumer protocol; -1 without membership
    generation: int
    instance_id: str = ""


class StoredOffsets:
    def __init__(self) -> None:
        self.committed: dict[Place, CommittedOffset] = {}
        self._pending: dict[Transaction, dict[Place, CommittedOffset]] = {}

    def add(self, transaction: Transaction, offsets: Mapping[Place, CommittedOffset]) -> None:
        """Keep offsets until their transaction ends."""
        self._pending.setdefault(transaction, {}).update(offsets)

    def publish(self, transaction: Transaction) -> None:
        """The transaction has ended."""
        offsets = self._pending.pop(transaction, {})
        if transaction.outcome is Outcome.COMMITTED:
            self.committed.update(offsets)

    def forget(self, topic: str) -> None:
        """Delete the offsets of a deleted topic."""
        for offsets in (self.committed, *self._pending.values()):
            for place in [each for each in offsets if each[0] == topic]:
                del offsets[place]

    def unstable(self, place: Place) -> bool:
        """Return whether an open transaction has an offset of this partition."""
        return any(place in offsets for offsets in self._pending.values())
