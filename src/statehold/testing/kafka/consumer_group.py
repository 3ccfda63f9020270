"""The coordinator of a group with the consumer protocol (KIP-848): one heartbeat request, epochs, reconciliation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from statehold.ports import ConsumerGroup, GroupMember
from statehold.testing.kafka.assignors import spread
from statehold.testing.kafka.future_events import FutureEvent
from statehold.testing.kafka.group import Group, GroupRejection, Member, MemberFacts
from statehold.testing.kafka.offsets import GroupMetadata

#: member epochs with which a member leaves: for good, or as a static member that comes back
LEAVES, LEAVES_FOR_A_WHILE = -1, -2


class Beat(NamedTuple):
    """The answer to a heartbeat. `assignment` is None if it has not changed."""

    member_id: str
    epoch: int
    assignment: tuple[int, ...] | None


@dataclass
class _Epochs:
    """What the coordinator knows of a member, in addition to its session."""

    epoch: int = 0
    #: partitions that are assigned to it now
    assigned: set[int] = field(default_factory=set)
    #: partitions that it has to release before its epoch moves
    revoking: set[int] = field(default_factory=set)
    #: the target that its epoch has reached
    sent: tuple[int, ...] | None = None
    #: removes it if it does not release them
    deadline: FutureEvent | None = None


class ConsumerProtocolGroup(Group):
    kind = "CONSUMER"
    #: seconds between two heartbeats of a member, and its session; the brokers say so
    heartbeat_interval = 5.0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._epochs: dict[str, _Epochs] = {}
        self.target: dict[str, tuple[int, ...]] = {}

    def heartbeat(self, member_id: str, epoch: int, facts: MemberFacts, owned: Sequence[int]) -> Beat:
        """Do ConsumerGroupHeartbeat. Epoch 0 joins, -1 leaves, -2 leaves a static member's place to its next process.

        :raises GroupRejection: by the coordinator.
        """
        if epoch == 0:
            return self._join(member_id, facts)
        member = self.members.get(member_id)
        named = self.static(facts.instance_id)
        if named is not None and named.id != member_id:
            raise GroupRejection("FENCED_INSTANCE_ID")
        if member is None:
            raise GroupRejection("UNKNOWN_MEMBER_ID")
        if epoch == LEAVES:
            self.leave(member_id)
            return Beat(member_id, LEAVES, None)
        if epoch == LEAVES_FOR_A_WHILE:
            self._epochs[member_id].epoch = LEAVES_FOR_A_WHILE
            return Beat(member_id, LEAVES_FOR_A_WHILE, None)
        if epoch != self._epochs[member_id].epoch:
            raise GroupRejection("FENCED_MEMBER_EPOCH")
        self.keep_alive(member)
        return self._reconcile(member, set(owned))

    def leave(self, member_id: str) -> None:
        if member_id in self.members:
            self.stop_session(self.members.pop(member_id))
            self._stop_waiting(self._epochs.pop(member_id))
            self._assign_again()

    def expired(self, member: Member) -> None:
        self.leave(member.id)

    def check(self, metadata: GroupMetadata) -> None:
        if metadata.member_id not in self.members:
            raise GroupRejection("UNKNOWN_MEMBER_ID")
        if metadata.generation != self._epochs[metadata.member_id].epoch:
            raise GroupRejection("STALE_MEMBER_EPOCH")

    def describe(self) -> ConsumerGroup:
        members = tuple(
            GroupMember(
                each.id,
                each.facts.client_id,
                each.facts.host,
                each.facts.instance_id,
                tuple(sorted(self._epochs[each.id].assigned | self._epochs[each.id].revoking)),
                tuple(sorted(self.target.get(each.id, ()))),
            )
            for each in self.members.values()
        )
        if not members:
            return ConsumerGroup("empty", (), self.kind, "uniform")
        stable = all(
            self._epochs[each].epoch == self.generation and not self._epochs[each].revoking for each in self.members
        )
        return ConsumerGroup("stable" if stable else "reconciling", members, self.kind, "uniform")

    def topic_changed(self, topic: str) -> None:
        if topic == self.topic:
            self._assign_again()

    def _join(self, member_id: str, facts: MemberFacts) -> Beat:
        former = self.static(facts.instance_id)
        if former is not None and former.id != member_id:
            if self._epochs[former.id].epoch != LEAVES_FOR_A_WHILE:
                raise GroupRejection("UNRELEASED_INSTANCE_ID")
            epochs = self._epochs.pop(former.id)
            self.stop_session(self.members.pop(former.id))
            self.target[member_id] = self.target.pop(former.id, ())
            epochs.epoch, epochs.sent = self.generation, None
            self._epochs[member_id] = epochs
            self.members[member_id] = member = Member(member_id, facts)
        elif member_id in self.members:
            member = self.members[member_id]
            self._epochs[member_id].sent = None
        else:
            self.members[member_id] = member = Member(member_id, facts)
            self._epochs[member_id] = _Epochs()
            self._assign_again()
        self.keep_alive(member)
        return self._reconcile(member, set())

    def _assign_again(self) -> None:
        self.generation += 1
        owned = {each: self.target.get(each, ()) for each in self.members}
        if owned:
            found = spread(self.all_partitions(self.topic), owned)
            self.target = {member: tuple(partitions) for member, partitions in found.items()}
        else:
            self.target = {}

    def _reconcile(self, member: Member, owned: set[int]) -> Beat:
        """Move a member towards its target: it releases first, and gets what others have released."""
        epochs, target = self._epochs[member.id], set(self.target.get(member.id, ()))
        if epochs.revoking and not owned & epochs.revoking:
            epochs.revoking.clear()
            self._stop_waiting(epochs)
        if not epochs.revoking and epochs.assigned - target:
            epochs.revoking = epochs.assigned - target
            epochs.assigned &= target
            if not owned & epochs.revoking and epochs.epoch == 0:
                epochs.revoking.clear()
            else:
                epochs.deadline = self.timers.after(member.facts.rebalance, lambda: self.leave(member.id))
        if not epochs.revoking:
            epochs.epoch = self.generation
            held = set[int]().union(
                *(each.assigned | each.revoking for key, each in self._epochs.items() if key != member.id)
            )
            epochs.assigned |= target - held
        now = tuple(sorted(epochs.assigned))
        changed = now if now != epochs.sent else None
        epochs.sent = now
        return Beat(member.id, epochs.epoch, changed)

    def _stop_waiting(self, epochs: _Epochs) -> None:
        if epochs.deadline is not None:
            epochs.deadline.cancel()
            epochs.deadline = None
