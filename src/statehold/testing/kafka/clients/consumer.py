"""The consumer of a service: a member of its group that reads the assigned partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, MessageRefused
from statehold.ports import ConsumerTrouble, InputTopic, Listener
from statehold.testing.kafka.clients.classic_member import ClassicMember
from statehold.testing.kafka.clients.consumer_member import ConsumerProtocolMember
from statehold.testing.kafka.clients.membership import Callback, ClientMembership
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.faults import PortCall
from statehold.testing.kafka.group import MemberFacts
from statehold.testing.memory.log import MemoryLog


@dataclass(slots=True)
class _Reading:
    position: int = 0
    paused: bool = True
    #: its offset is not in the log, so nothing comes before a seek
    stopped: bool = False


class SimulatedGroupConsumer:
    """`ports.GroupConsumer`. Heartbeats and joins run by themselves; callbacks run in `consume`."""

    def __init__(self, process: SimulatedProcess, names: Names, settings: Settings, client_id: str = "") -> None:
        self._process, self._kafka, self._topic = process, process.kafka, names.input
        group, self._group = settings.group, names.group
        static = group.instance_id or (settings.service.instance if group.membership == "static" else "")
        session = group.session_seconds if group.protocol == "classic" else self._kafka.consumer_session
        facts = MemberFacts(client_id or process.name, names.input, session, group.max_poll_interval, static)
        arguments = process, names.group, facts, group.max_poll_interval
        self._member: ClientMembership
        if group.protocol == "classic":
            self._member = ClassicMember(*arguments, assignor=group.assignor, heartbeat=group.heartbeat_seconds)
        else:
            self._member = ConsumerProtocolMember(*arguments)
        self._reading: dict[int, _Reading] = {}
        self._input = InputTopic(names.input)
        self._listener: Listener | None = None
        self._reported_gone = False

    def subscribe(self, listener: Listener) -> None:
        self._process.alive()
        self._listener = listener
        self._member.polled()
        self._member.start()

    def consume(self, records: int, timeout: float) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        process, member = self._process, self._member
        process.alive()
        deadline = self._kafka.clock() + timeout
        member.polled()
        member.in_poll = True
        messages: list[Message] = []
        troubles: list[ConsumerTrouble] = []
        try:
            fault = self._kafka.point(PortCall(process.name, "consume", self._topic))
            process.alive()
            silent = fault is not None and (fault.never or fault.error is not None)
            while True:
                if self._run_callbacks():
                    messages = [m for m in messages if m.partition() in self._reading]
                if member.fatal is not None:
                    raise KafkaTrouble(f"the consumer cannot continue: {member.fatal}")
                while member.errors:
                    troubles.append(ConsumerTrouble(-1, member.errors.popleft(), topic=self._topic))
                if not silent:
                    self._fetch(records - len(messages), messages, troubles)
                if len(messages) + len(troubles) >= records or self._kafka.clock() >= deadline:
                    return messages, troubles
                process.wait(lambda: self._has_news(silent=silent), deadline)
        finally:
            member.in_poll = False
            member.polled()

    @property
    def input(self) -> InputTopic:
        return self._input

    def assign(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._reading[partition] = _Reading()

    def unassign(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._reading.pop(partition, None)

    def pause(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            if partition in self._reading:
                self._reading[partition].paused = True

    def resume(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            if partition in self._reading:
                self._reading[partition].paused = False

    def seek(self, partition: int, offset: int) -> None:
        self._process.alive()
        if partition not in self._reading:
            raise MessageRefused(f"_UNKNOWN_PARTITION: {self._topic}[{partition}] is not assigned")
        reading = self._reading[partition]
        reading.position, reading.stopped = offset, False

    def wake(self, positions: Mapping[int, int]) -> None:
        for partition, offset in positions.items():
            if partition in self._reading:
                self._reading[partition].position = offset

    def membership(self) -> tuple[Any, str]:
        self._process.alive()
        return self._member.metadata(), self._member.member_id

    def rejoin(self) -> None:
        process, member = self._process, self._member
        process.alive()
        if self._listener is not None and member.owned:
            self._listener.on_revoke(sorted(member.owned))
        member.leave(for_good=True)
        member.owned.clear()
        member.due.clear()
        member.rejoin()

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        process, member = self._process, self._member
        process.alive()
        if self._listener is not None and member.owned and not member.closed:
            self._listener.on_revoke(sorted(member.owned))
        member.closed = True
        answers = not process.is_cut
        member.leave(for_good=leave or not member.facts.instance_id)
        if not answers:
            process.wait(lambda: not process.is_cut, self._kafka.clock() + timeout)
        return answers

    def _run_callbacks(self) -> bool:
        """Run what the group wants; return whether there was something."""
        ran = False
        while self._member.due and self._listener is not None:
            callback = self._member.due.popleft()
            self._call(self._listener, callback)
            self._member.done(callback)
            self._kafka.turn()
            ran = True
        return ran

    def _call(self, listener: Listener, callback: Callback) -> None:
        match callback.kind:
            case "assign":
                listener.on_assign(callback.partitions)
            case "revoke":
                listener.on_revoke(callback.partitions)
            case "lost":
                listener.on_lost(callback.partitions)

    def _has_news(self, *, silent: bool) -> bool:
        member = self._member
        if member.due or member.errors or member.fatal is not None:
            return True
        if silent or self._process.is_cut:
            return False
        for partition, reading in self._reading.items():
            if reading.paused or reading.stopped:
                continue
            log = self._log(partition)
            if log is None or log.end == reading.position:
                continue
            if not log.start <= reading.position <= log.end or next(log.committed(reading.position), None) is not None:
                return True
        return False

    def _fetch(self, room: int, messages: list[Message], troubles: list[ConsumerTrouble]) -> None:
        if self._process.is_cut:
            return
        for partition, reading in self._reading.items():
            if reading.paused or reading.stopped or room <= 0:
                continue
            log = self._log(partition)
            if log is None:
                self._report_absence(troubles)
                continue
            if not log.start <= reading.position <= log.end:
                reading.stopped = True
                text = f"_AUTO_OFFSET_RESET: {self._topic}[{partition}]: {reading.position} is not in the log"
                troubles.append(ConsumerTrouble(partition, KafkaTrouble(text), out_of_range=True, topic=self._topic))
                continue
            for message in log.committed(reading.position):
                if room <= 0:
                    break
                messages.append(message)
                reading.position = (message.offset() or 0) + 1
                room -= 1

    def _log(self, partition: int) -> MemoryLog | None:
        topic = self._kafka.topics.get(self._topic)
        if topic is None or partition >= len(topic.logs):
            return None
        if topic.id != self._input.id:
            self._input = InputTopic(self._topic, topic.id)
        return topic.logs[partition]

    def _report_absence(self, troubles: list[ConsumerTrouble]) -> None:
        if not self._reported_gone:
            self._reported_gone = True
            text = f"UNKNOWN_TOPIC_OR_PART: the brokers do not know {self._topic}"
            troubles.append(ConsumerTrouble(-1, KafkaTrouble(text), topic=self._topic))
