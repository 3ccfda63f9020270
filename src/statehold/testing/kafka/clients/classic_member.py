"""A member of a classic group, as librdkafka behaves: cooperative-sticky, or range with full revocations."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from statehold.errors import KafkaTrouble
from statehold.testing.kafka.classic_group import Assignor, ClassicGroup, Joined
from statehold.testing.kafka.clients.membership import RETRY, Callback, ClientMembership
from statehold.testing.kafka.future_events import FutureEvent
from statehold.testing.kafka.group import GroupRejection

State = Literal["init", "joining", "syncing", "stable"]


class ClassicMember(ClientMembership):
    def __init__(self, *args: Any, assignor: Assignor, heartbeat: float) -> None:
        super().__init__(*args)
        self._eager, self._assignor, self._interval = assignor == "range", assignor, heartbeat
        self._state: State = "init"
        #: assigned once what it has to release is released
        self._then: tuple[int, ...] = ()
        self._rejoins = False
        self._heard = 0.0
        self._beat: FutureEvent | None = None
        #: connections that were lost before the last join
        self._cuts = 0

    def start(self) -> None:
        self._join()

    def rejoin(self) -> None:
        self.member_id, self.generation = "", -1
        self._join()

    def leave(self, *, for_good: bool) -> None:
        self._stop_heartbeats()
        self._round += 1
        if self.member_id and (for_good or not self.facts.instance_id) and not self.fault("leave").never:
            self._coordinator().leave(self.member_id)
        self._state, self.generation = "init", -1

    def done(self, callback: Callback) -> None:
        match callback.kind:
            case "assign":
                self.owned |= set(callback.partitions)
            case "lost":
                self.owned.clear()
                # An assignment that came before the loss was read counts no more.
                self.due = deque(each for each in self.due if each.kind != "assign")
                self.rejoin()
                return
            case "revoke":
                self.owned -= set(callback.partitions)
                if self.generation < 0:
                    self.rejoin()
                    return
                if self._then:
                    self.due.append(Callback("assign", self._then))
                    self._then = ()
                self._rejoins = True
        if self._rejoins and not self.due:
            self._join()

    def _coordinator(self) -> ClassicGroup:
        group = self.process.kafka.group_of(self.group, "CLASSIC", self._assignor)
        assert isinstance(group, ClassicGroup)
        return group

    def _join(self) -> None:
        self._rejoins = False
        self._round += 1
        self._state = "joining"
        fault = self.fault("join")
        if fault.never and not fault.after:
            self.later(RETRY, self._join)
            return
        try:
            group = self._coordinator()
        except GroupRejection as error:
            self.errors.append(KafkaTrouble(error.code))
            self.later(RETRY, self._join)
            return
        if fault.never:
            group.join(self.member_id, self.facts, tuple(self.owned), lambda _: None)
            self.later(RETRY, self._join)
            return
        owned = () if self._eager else tuple(sorted(self.owned))
        self._heard, self._cuts = self.clock(), self.process.cuts
        self._keep_beating()
        group.join(self.member_id, self.facts, owned, self.answers(self._joined))
        self.later(self.facts.session, self._check_join)

    def _check_join(self) -> None:
        """Join again if the connection was lost with the answer."""
        if self._state == "joining":
            if self.process.cuts != self._cuts:
                self._join()
            else:
                self.later(self.facts.session, self._check_join)

    def _joined(self, answer: Joined | GroupRejection) -> None:
        if isinstance(answer, GroupRejection):
            self._rejected(answer)
            return
        self.member_id, self.generation, self._state = answer.member_id, answer.generation, "syncing"
        self._heard = self.clock()
        fault = self.fault("sync")
        if fault.never and not fault.after:
            self.later(RETRY, self._join)
            return
        group = self._coordinator()
        given = group.assign(answer.owned) if answer.leader else None
        if fault.never:
            group.sync(self.member_id, self.generation, given, lambda _: None)
            self.later(RETRY, self._join)
            return
        group.sync(self.member_id, self.generation, given, self.answers(self._synced))
        self.later(self.facts.session, self._join)

    def _synced(self, answer: tuple[int, ...] | GroupRejection) -> None:
        if isinstance(answer, GroupRejection):
            self._rejected(answer)
            return
        self._state, self._heard = "stable", self.clock()
        self.rest()
        if self._eager:
            self.due.append(Callback("assign", tuple(answer)))
            return
        revoked, added = self.owned - set(answer), set(answer) - self.owned
        if revoked:
            self._then = tuple(sorted(added))
            self.due.append(Callback("revoke", tuple(sorted(revoked))))
        else:
            self.due.append(Callback("assign", tuple(sorted(added))))

    def _rejected(self, error: GroupRejection) -> None:
        match error.code:
            case "REBALANCE_IN_PROGRESS":
                self._rebalance()
            case "FENCED_INSTANCE_ID":
                self.fatal = KafkaTrouble("FENCED_INSTANCE_ID: another process has joined with this name")
                self._stop_heartbeats()
                self._round += 1
            case _:
                self._lose()

    def _lose(self) -> None:
        self._stop_heartbeats()
        self._then = ()
        self.member_id = ""
        if self.owned or any(each.kind == "assign" for each in self.due):
            self.give_up("lost")
            self._state = "init"
        else:
            self.rejoin()

    def _rebalance(self) -> None:
        """Join again with what it has; the range assignor releases everything before."""
        if self._state == "joining":
            return
        if self.due:
            self._rejoins = True
        elif self._eager and self.owned:
            self._rejoins = True
            self.due.append(Callback("revoke", tuple(sorted(self.owned))))
        else:
            self._join()

    def _keep_beating(self) -> None:
        if self._beat is None:
            self._beat = self.process.after(self._interval, self._heartbeat)

    def _stop_heartbeats(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _heartbeat(self) -> None:
        self._beat = None
        if self.closed or self.fatal is not None or (self.generation < 0 and self._state == "init"):
            return
        self._beat = self.process.after(self._interval, self._heartbeat)
        if self._state == "joining":
            self._heard = self.clock()
            return
        fault = self.fault("heartbeat")
        try:
            if not fault.never or fault.after:
                self._coordinator().heartbeat(self.member_id, self.generation, self.facts.instance_id)
            if not fault.never:
                self._heard = self.clock()
        except GroupRejection as error:
            if not fault.never:
                self._heard = self.clock()
                self._rejected(error)
                return
        if self.clock() - self._heard >= self.facts.session:
            self._lose()
