"""The result of `statehold state inputs`, per partition and input."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["kept", "added", "removed", "renamed"]


class InputResult(msgspec.Struct, kw_only=True):
    """One input of a partition. An input that is renamed has an entry for its former topic, too, which is removed."""

    topic: str
    what: Kind
    #: the former topic, if it is renamed
    former: str = ""
    #: next offset before and after; None: it was, or is, no input
    old_position: int | None = None
    position: int | None = None
    #: records that wait behind the position; of a removed input they are never processed. At most `COUNTED` are counted
    unread: int = 0
    #: the count ended at its limit
    more: bool = False
    #: unread offsets that the broker has deleted, or that went with the topic
    gone: int = 0
    #: records behind the position that are older than the partition's time; windows count them as late
    older: int = 0


class JoinCount(msgspec.Struct, kw_only=True):
    """The rows of one `JoinBuffer`, which stay until their time is over."""

    table: str
    left: int
    right: int


class PartitionResult(msgspec.Struct, kw_only=True):
    """One partition. `transaction` and `full` are None in a dry run."""

    partition: int
    keys: int
    old_digest: str
    digest: str
    #: entries of the list of resolved dead letters, which are removed
    resolved: int = 0
    inputs: list[InputResult]
    joins: list[JoinCount] = []
    transaction: int | None = None
    full: int | None = None


class ChangedInputs(msgspec.Struct, kw_only=True):
    """All partitions. `lineage` is the new state generation, '' in a dry run.

    The digests cover all partitions together; they are equal if no resolved dead letter was removed.
    """

    lineage: str = ""
    before: list[str]
    after: list[str]
    #: the first input changed, and with it the names of statehold's topics
    moved: bool = False
    old_digest: str
    digest: str
    partitions: list[PartitionResult]

    def total(self, what: str, number: str) -> int:
        """Return a sum over the inputs of this kind, such as `unread` of those that were removed."""
        return sum(
            getattr(each, number) for partition in self.partitions for each in partition.inputs if each.what == what
        )
