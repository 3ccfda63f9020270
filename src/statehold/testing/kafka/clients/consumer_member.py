"""A member of a group with the consumer protocol (KIP-848), as librdkafka behaves."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from statehold.errors import KafkaTrouble
from statehold.testing.kafka.clients.membership import Callback, ClientMembership
from statehold.testing.kafka.consumer_group import LEAVES, LEAVES_FOR_A_WHILE, Beat, ConsumerProtocolGroup
from statehold.testing.kafka.group import GroupRejection

#: seconds until the adapter notices that an answer with an assignment was lost, and joins again
_MISSED_AFTER = 12.0


class ConsumerProtocolMember(ClientMembership):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._target: set[int] = set()
        self._heard = 0.0

    def start(self) -> None:
        self.rejoin()

    def rejoin(self) -> None:
        self._round += 1
        self.member_id = f"{self.facts.instance_id or self.process.name}-{self.process.kafka.number()}"
        self.generation, self._target = 0, set()
        self._heard = self.clock()
        self._beat()

    def leave(self, *, for_good: bool) -> None:
        self._round += 1
        if self.generation > 0 and not self.fault("leave").never:
            with suppress(GroupRejection):
                epoch = LEAVES if for_good else LEAVES_FOR_A_WHILE
                self._coordinator().heartbeat(self.member_id, epoch, self.facts, ())
        self.generation = -1

    def done(self, callback: Callback) -> None:
        match callback.kind:
            case "assign":
                self.owned |= set(callback.partitions)
            case "revoke":
                self.owned -= set(callback.partitions)
            case "lost":
                self.owned.clear()
        if self.generation < 0:
            self.rejoin()
        elif not self._reconcile():
            self._beat()

    def _coordinator(self) -> ConsumerProtocolGroup:
        group = self.process.kafka.group_of(self.group, "CONSUMER")
        assert isinstance(group, ConsumerProtocolGroup)
        return group

    def _beat(self) -> None:
        interval = self.process.kafka.consumer_heartbeat
        fault = self.fault("heartbeat")
        if fault.never and not fault.after:
            if self.clock() - self._heard >= self.facts.session:
                self._lose()
                return
            self.later(interval, self._beat)
            return
        try:
            answer = self._coordinator().heartbeat(
                self.member_id, self.generation, self.facts, tuple(sorted(self.owned))
            )
        except GroupRejection as error:
            self.answers(self._rejected)(error)
            self.later(interval, self._beat)  # in case the answer is lost
            return
        if fault.never:
            if answer.assignment is not None:
                self._plan_rejoin()
            else:
                self.later(interval, self._beat)
            return
        self.later(interval, self._beat)
        missed = self._plan_rejoin if answer.assignment is not None else bool
        self.answers(self._answered, missed)(answer)

    def _answered(self, answer: Beat) -> None:
        self.generation, self._heard = answer.epoch, self.clock()
        if answer.assignment is not None:
            self._target = set(answer.assignment)
            self._reconcile()

    def _reconcile(self) -> bool:
        """Ask the application to release partitions, then to take others; return whether something is to do."""
        if self.due:
            return True
        revoked, added = self.owned - self._target, self._target - self.owned
        if revoked:
            self.due.append(Callback("revoke", tuple(sorted(revoked))))
        elif added:
            self.due.append(Callback("assign", tuple(sorted(added))))
        return bool(self.due)

    def _rejected(self, error: GroupRejection) -> None:
        if error.code in ("FENCED_INSTANCE_ID",):
            self.fatal = KafkaTrouble(f"{error.code}: another process has this name")
            self._round += 1
        elif error.code == "UNRELEASED_INSTANCE_ID":
            self.errors.append(KafkaTrouble(error.code))
            self.later(1.0, self.rejoin)
        elif error.code == "INCONSISTENT_GROUP_PROTOCOL":
            self.errors.append(KafkaTrouble("GROUP_ID_NOT_FOUND: the group uses the classic protocol"))
            self.later(1.0, self.rejoin)
        else:
            self._lose()

    def _lose(self) -> None:
        if self.owned or self.due:
            self.give_up("lost")
        else:
            self.rejoin()

    def _plan_rejoin(self) -> None:
        self.later(_MISSED_AFTER, self._missed)

    def _missed(self) -> None:
        """Hand over everything and join again, because the coordinator sends an assignment once."""
        self.leave(for_good=not self.facts.instance_id)
        self.give_up("revoke")
