"""What a rebuild has made and found: the documents of `statehold rebuild --json`."""

from __future__ import annotations

import msgspec

from statehold.rehearsal.report import RehearsedPartition


class RebuiltState(RehearsedPartition):
    """One partition. The rebuilt state is of transaction `to_n`, at the position `end`."""

    #: the transaction of the service's newest stored state, and that of the rebuilt one when they were compared: the
    #: same one, unless the rebuild was ahead of what is stored; -1: the stored state cannot be read
    compared_with: int = -1
    compared_at: int = -1
    #: digests of the service's state and of the rebuilt one, after the last transaction
    old_digest: str = ""
    digest: str = ""
    #: why the service must not continue from this state
    obstacles: list[str] = msgspec.field(default_factory=list)
    #: of the state replacement, and its full snapshot; None: the state was not replaced
    transaction: int | None = None
    full: int | None = None


class RebuildReport(msgspec.Struct):
    """All partitions. `lineage` is the new state generation; '': the state was not replaced."""

    since: str
    partitions: list[RebuiltState]
    lineage: str = ""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def obstacles(self) -> list[str]:
        return [text for each in self.partitions for text in each.obstacles]
