"""The coordinator of a group with the classic protocol: join, sync, heartbeat, leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from statehold.ports import ConsumerGroup, GroupMember
from statehold.testing.kafka.assignors import ranges, spread, without_moving
from statehold.testing.kafka.future_events import FutureEvent
from statehold.testing.kafka.group import Group, GroupRejection, Member, MemberFacts
from statehold.testing.kafka.offsets import GroupMetadata

State = Literal["empty", "preparing rebalancing", "completing rebalancing", "stable"]
Assignor = Literal["cooperative-sticky", "range"]


class Joined(NamedTuple):
    """The answer to a join: the member's id and the generation that it belongs to; `leader` sends the assignment."""

    member_id: str
    generation: int
    leader: bool
    #: member id -> the partitions that it owns; for the leader
    owned: Mapping[str, Sequence[int]]


#: gets the answer, or the rejection
Answer = Callable[["Joined | GroupRejection"], object]
SyncAnswer = Callable[["tuple[int, ...] | GroupRejection"], object]


class ClassicGroup(Group):
    kind = "CLASSIC"
    #: seconds until a client sees that a topic has more partitions: topic.metadata.refresh.interval.ms
    metadata_refresh = 300.0

    def __init__(self, *args: object, assignor: Assignor = "cooperative-sticky", initial_delay: float = 0.0) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.assignor: Assignor = assignor
        self.state: State = "empty"
        self.leader = ""
        self._initial_delay = initial_delay
        #: members whose join waits for an answer
        self._joining: dict[str, Answer] = {}
        self._syncing: dict[str, SyncAnswer] = {}
        self._given: dict[str, tuple[int, ...]] = {}
        self._deadline: FutureEvent | None = None

    def join(self, member_id: str, facts: MemberFacts, owned: Sequence[int], answer: Answer) -> None:
        """Do JoinGroup. The answer comes when all members have joined, or when the rebalance has waited enough."""
        known = self.members.get(member_id)
        former = self.static(facts.instance_id)
        if former is not None and former is not known:
            if member_id:
                answer(GroupRejection("FENCED_INSTANCE_ID"))
                return
            self._take_over(former, facts, owned, answer)
            return
        if member_id and known is None:
            answer(GroupRejection("UNKNOWN_MEMBER_ID"))
            return
        member = known or Member(self.new_id(facts), facts)
        member.owned = tuple(owned)
        self.members[member.id] = member
        self.stop_session(member)  # a join that waits keeps its member alive
        self._joining[member.id] = answer
        self._rebalance()

    def sync(
        self, member_id: str, generation: int, assignment: Mapping[str, Sequence[int]] | None, answer: SyncAnswer
    ) -> None:
        """Do SyncGroup; `assignment` comes from the leader."""
        try:
            member = self._member(member_id, generation)
        except GroupRejection as error:
            answer(error)
            return
        if self.state == "preparing rebalancing":
            answer(GroupRejection("REBALANCE_IN_PROGRESS"))
            return
        self.keep_alive(member)
        self._syncing[member_id] = answer
        if assignment is not None and self.state == "completing rebalancing":
            self.state = "stable"
            self._given = {member: tuple(given) for member, given in assignment.items()}
        if self.state == "stable":
            waiting, self._syncing = self._syncing, {}
            for each, call in waiting.items():
                call(self._given.get(each, ()))

    def heartbeat(self, member_id: str, generation: int, instance_id: str = "") -> None:
        """:raises GroupRejection: by the coordinator; REBALANCE_IN_PROGRESS asks the member to join again."""
        self._require_name(member_id, instance_id)
        member = self._member(member_id, generation)
        self.keep_alive(member)
        if self.state == "preparing rebalancing":
            raise GroupRejection("REBALANCE_IN_PROGRESS")

    def leave(self, member_id: str) -> None:
        if (member := self.members.get(member_id)) is not None:
            self._remove(member)

    def expired(self, member: Member) -> None:
        self._remove(member)

    def check(self, metadata: GroupMetadata) -> None:
        self._require_name(metadata.member_id, metadata.instance_id)
        self._member(metadata.member_id, metadata.generation)

    def assign(self, owned: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Divide the partitions: what the client of the leader does."""
        partitions = self.all_partitions(self.topic)
        if self.assignor == "range":
            return ranges(partitions, list(owned))
        return without_moving(spread(partitions, owned), owned)

    def describe(self) -> ConsumerGroup:
        settled = self.state == "stable"
        members = tuple(
            GroupMember(
                each.id,
                each.facts.client_id,
                each.facts.host,
                each.facts.instance_id,
                tuple(sorted(self._given.get(each.id, ()))) if settled else (),
            )
            for each in self.members.values()
        )
        return ConsumerGroup(self.state, members, self.kind, self.assignor if settled else "")

    def topic_changed(self, topic: str) -> None:
        """Do what the leader's client does when it sees other metadata: it joins again."""
        self.timers.after(self.metadata_refresh, lambda: self._see_topic(topic))

    def _see_topic(self, topic: str) -> None:
        assigned = {partition for given in self._given.values() for partition in given}
        if topic == self.topic and self.state == "stable" and assigned != set(self.all_partitions(topic)):
            self._rebalance()

    def _member(self, member_id: str, generation: int) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise GroupRejection("UNKNOWN_MEMBER_ID")
        if generation != self.generation:
            raise GroupRejection("ILLEGAL_GENERATION")
        return member

    def _require_name(self, member_id: str, instance_id: str) -> None:
        owner = self.static(instance_id)
        if owner is not None and owner.id != member_id:
            raise GroupRejection("FENCED_INSTANCE_ID")

    def _take_over(self, former: Member, facts: MemberFacts, owned: Sequence[int], answer: Answer) -> None:
        """A process with the name of a static member joins: it gets that member's place without a rebalance.

        In a rebalance only what it owns itself counts, because the partitions of its predecessor cannot be revoked.
        """
        self.stop_session(former)
        new = Member(self.new_id(facts), facts, tuple(owned))
        self.members = {new.id if key == former.id else key: value for key, value in self.members.items()}
        self.members[new.id] = new
        for waiting in (self._joining.pop(former.id, None), self._syncing.pop(former.id, None)):
            if waiting is not None:
                waiting(GroupRejection("FENCED_INSTANCE_ID"))
        self._given[new.id] = self._given.pop(former.id, ())
        if self.leader == former.id:
            self.leader = new.id
        if self.state == "stable":
            self.keep_alive(new)
            # Not as the leader, so that it does not assign again.
            answer(Joined(new.id, self.generation, False, {}))
            return
        self._joining[new.id] = answer
        self._rebalance()

    def _remove(self, member: Member) -> None:
        self.stop_session(member)
        del self.members[member.id]
        self._joining.pop(member.id, None)
        self._syncing.pop(member.id, None)
        self._given.pop(member.id, None)
        if not self.members:
            self._cancel_deadline()
            self.state, self.generation = "empty", self.generation + 1
        else:
            self._rebalance()

    def _rebalance(self) -> None:
        """Wait until every member has joined again."""
        if self.state != "preparing rebalancing":
            delay = self._initial_delay if self.state == "empty" else 0.0
            self.state = "preparing rebalancing"
            for answer in self._syncing.values():
                answer(GroupRejection("REBALANCE_IN_PROGRESS"))
            self._syncing.clear()
            self._cancel_deadline()
            longest = max(each.facts.rebalance for each in self.members.values())
            self._deadline = self.timers.after(longest, self._waited_enough)
            if delay > 0:
                self.timers.after(delay, self._complete_if_all)
                return
        self._complete_if_all()

    def _complete_if_all(self) -> None:
        if self.state == "preparing rebalancing" and self._joining and self._joining.keys() == self.members.keys():
            self._complete()

    def _waited_enough(self) -> None:
        """Remove the members that have not joined. A static one keeps its place until its session ends."""
        for member in list(self.members.values()):
            if member.id not in self._joining and not member.facts.instance_id:
                self.stop_session(member)
                del self.members[member.id]
                self._given.pop(member.id, None)
        if not self.members:
            self.state, self.generation = "empty", self.generation + 1
        elif self._joining:
            self._complete()

    def _complete(self) -> None:
        self._cancel_deadline()
        self.generation += 1
        self.state = "completing rebalancing"
        self._given = {}
        joined, self._joining = self._joining, {}
        if self.leader not in joined:
            self.leader = next(iter(joined))
        owned = {member_id: self.members[member_id].owned for member_id in self.members}
        for member_id, answer in joined.items():
            self.keep_alive(self.members[member_id])
            leads = member_id == self.leader
            answer(Joined(member_id, self.generation, leads, owned if leads else {}))

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
