"""What both group protocols have in common: members, their sessions, offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from statehold.errors import TransactionAborted
from statehold.ports import ConsumerGroup
from statehold.testing.kafka.future_events import FutureEvent, FutureEvents
from statehold.testing.kafka.offsets import CommittedOffset, GroupMetadata, Place, StoredOffsets
from statehold.testing.memory.log import Transaction

#: an error of the group's coordinator, by Kafka's name
GroupError = Literal[
    "UNKNOWN_MEMBER_ID",
    "ILLEGAL_GENERATION",
    "REBALANCE_IN_PROGRESS",
    "FENCED_INSTANCE_ID",
    "UNRELEASED_INSTANCE_ID",
    "FENCED_MEMBER_EPOCH",
    "STALE_MEMBER_EPOCH",
    "INCONSISTENT_GROUP_PROTOCOL",
]


class GroupRejection(Exception):
    """The coordinator rejects a request of a member."""

    def __init__(self, code: GroupError) -> None:
        super().__init__(code)
        self.code = code


class MemberFacts(NamedTuple):
    """Who joins."""

    client_id: str
    topic: str
    #: seconds
    session: float
    #: seconds that a rebalance waits for this member
    rebalance: float
    instance_id: str = ""
    host: str = "127.0.0.1"


@dataclass
class Member:
    id: str
    facts: MemberFacts
    #: partitions that it said it has, or that the coordinator has given it
    owned: tuple[int, ...] = ()
    session: FutureEvent | None = field(default=None, repr=False)


class Group(ABC):
    """One consumer group; a subclass has the requests of its protocol."""

    kind: Literal["CLASSIC", "CONSUMER"]

    def __init__(
        self, name: str, timers: FutureEvents, partitions: Callable[[str], int], offsets: StoredOffsets
    ) -> None:
        self.name, self.timers, self._partitions, self.offsets = name, timers, partitions, offsets
        self.members: dict[str, Member] = {}
        #: moves with each rebalance
        self.generation = 0
        self._made = 0

    @abstractmethod
    def leave(self, member_id: str) -> None:
        """Remove a member."""

    @abstractmethod
    def describe(self) -> ConsumerGroup: ...

    @abstractmethod
    def check(self, metadata: GroupMetadata) -> None:
        """:raises GroupRejection: offsets with this metadata do not count."""

    @abstractmethod
    def expired(self, member: Member) -> None:
        """The session of a member has ended."""

    @abstractmethod
    def topic_changed(self, topic: str) -> None:
        """The number of a topic's partitions has changed."""

    def commit_in(self, transaction: Transaction, metadata: object, offsets: Mapping[Place, CommittedOffset]) -> None:
        """Do TxnOffsetCommit.

        :raises TransactionAborted: stale, because the metadata is of an earlier generation.
        """
        given = metadata if isinstance(metadata, GroupMetadata) else GroupMetadata(self.name, "", -1)
        try:
            self._check(given)
        except GroupRejection as error:
            raise TransactionAborted(f"{error.code}: {given}, it is {self.generation}", stale=True) from error
        self.offsets.add(transaction, offsets)

    def _check(self, given: GroupMetadata) -> None:
        # Without membership nothing is checked, also while the group has members.
        if given.generation >= 0 or given.member_id:
            self.check(given)

    def new_id(self, facts: MemberFacts) -> str:
        self._made += 1
        return f"{facts.instance_id or facts.client_id}-{self._made}"

    def all_partitions(self, topic: str) -> Sequence[int]:
        return range(self._partitions(topic))

    @property
    def topic(self) -> str:
        return next((member.facts.topic for member in self.members.values()), "")

    def static(self, instance_id: str) -> Member | None:
        """Return the member of this name."""
        if not instance_id:
            return None
        return next((each for each in self.members.values() if each.facts.instance_id == instance_id), None)

    def keep_alive(self, member: Member) -> None:
        """Begin the member's session again."""
        self.stop_session(member)
        member.session = self.timers.after(member.facts.session, lambda: self._expire(member))

    def stop_session(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _expire(self, member: Member) -> None:
        if self.members.get(member.id) is member:
            self.expired(member)
