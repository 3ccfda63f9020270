"""Faults of brokers, of the network, of the data: see `faults`."""

from __future__ import annotations

import random
import signal
from contextlib import suppress

from confluent_kafka import KafkaException, Producer, TopicPartition
from tests.chaos.arena import SESSION, Arena
from tests.chaos.faults import Fault
from tests.chaos.observer import PATIENT
from tests.chaos.workers import pause
from tests.support.proxy import ApiKey, Trap
from tests.support.proxy import Fault as Disturbance


class BrokerKilled(Fault):
    code, title = "F8", "broker killed with SIGKILL"
    holds = (1.0, 8.0)
    allows = 35.0

    def inject(self, arena: Arena) -> None:
        arena.cluster.kill(arena.broker(self.victim))

    def heal(self, arena: Arena) -> None:
        arena.start_broker(arena.broker(self.victim))


class BrokerFrozen(Fault):
    code, title = "F9", "broker frozen with SIGSTOP"
    holds = (2.0, 14.0)
    allows = 35.0

    def inject(self, arena: Arena) -> None:
        arena.cluster.pause(arena.broker(self.victim))

    def heal(self, arena: Arena) -> None:
        arena.cluster.resume(arena.broker(self.victim))


class TwoBrokersKilled(Fault):
    code, title = "F11", "two of three brokers killed"
    holds = (5.0, 15.0)
    allows = 45.0
    brokers = 3

    def inject(self, arena: Arena) -> None:
        for number in (self.victim, self.victim + 1):
            arena.cluster.kill(arena.broker(number))

    def heal(self, arena: Arena) -> None:
        for number in (self.victim, self.victim + 1):
            arena.start_broker(arena.broker(number))


class RollingRestart(Fault):
    code, title = "F14", "brokers restarted one after the other"
    holds = (0.0, 0.0)
    allows = 60.0

    def inject(self, arena: Arena) -> None:
        for number in range(1, arena.shape.brokers + 1):
            arena.cluster.stop(number) if arena.shape.brokers > 1 else arena.cluster.kill(number)
            arena.start_broker(number)


class LateRequest(Fault):
    """One request of a kind is held back, or its answer lost; it arrives when its sender has gone on."""

    code, title = "F16", "transactional request late or unanswered"
    proxied = True
    holds = (2.0, 6.0)
    allows = 20.0
    KINDS: tuple[ApiKey, ...] = (
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    )

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.kind = draw.choice(self.KINDS)
        self.how = draw.choice(list(Disturbance))
        self._traps: list[Trap] = []

    def inject(self, arena: Arena) -> None:
        self._traps = [proxy.trap(self.kind, self.how) for proxy in arena.proxies.values()]

    def heal(self, arena: Arena) -> None:
        arena.history.note("trap", request=self.kind.name, caught=[trap.caught for trap in self._traps])
        for proxy in arena.proxies.values():
            proxy.free()

    def __str__(self) -> str:
        return f"{self.code} {self.title}: {self.kind.name.lower()}, {self.how.value}"


class LateCommit(LateRequest):
    code, title = "F15", "commit request late or unanswered"
    KINDS = (ApiKey.END_TXN,)


class ConnectionsBroken(Fault):
    code, title = "F17", "every connection to a broker reset, several times"
    proxied = True
    holds = (3.0, 3.0)
    allows = 20.0

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.rests = [draw.uniform(0.1, 1.0) for _ in range(4)]

    def inject(self, arena: Arena) -> None:
        for rest in self.rests:
            arena.proxies[arena.broker(self.victim)].reset_all()
            pause(rest)


class Hijack(Fault):
    """A stranger initialises a live transactional id, again and again: the owner must come back."""

    code, title = "F7", "a stranger takes a live transactional id"
    holds = (1.0, 1.0)
    allows = 30.0
    only_statehold = True

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.times = draw.randrange(1, 3)

    def inject(self, arena: Arena) -> None:
        name = arena.names.transactional_id(self.victim % arena.shape.partitions)
        for _ in range(self.times):
            stranger = Producer({"bootstrap.servers": arena.servers, "transactional.id": name, **PATIENT})
            with suppress(KafkaException):
                stranger.init_transactions(10)
            pause(0.3)


class Retention(Fault):
    """What the group has handled of the input is deleted, as retention does.

    Only with a delta in every commit: the other modes replay, and need what lies behind the last delta or full.
    """

    code, title = "ret", "input deleted up to what is committed and read"
    holds = (0.5, 0.5)

    def inject(self, arena: Arena) -> None:
        if "STATEHOLD_SNAPSHOT__DELTA_INTERVAL" in arena.shape.settings:
            return
        with suppress(KafkaException, AssertionError):
            committed = [
                TopicPartition(topic, p, offset)
                for index, topic in enumerate(arena.fed)
                for p, offset in arena.committed_positions(10.0, index).items()
            ]
            arena.learn_input()
            before = [place for place in committed if place.offset > 0]
            for future in arena.admin.delete_records(before, request_timeout=5).values():
                with suppress(KafkaException):
                    future.result(6)


class OutOfRange(Fault):
    """A worker is frozen for a moment; records that it has not read are deleted meanwhile (F23): it must stop there."""

    code, title = "F23", "retention passes a position that is not read"
    holds = (1.0, 1.0)
    usual = False
    only_statehold = True

    def inject(self, arena: Arena) -> None:
        for worker in arena.workers:
            worker.signal(signal.SIGSTOP)
        partition = self.victim % arena.shape.partitions
        arena.feeder.burst(3000, partition)
        arena.feeder.flush()
        arena.learn_input()
        first = [sent for sent in arena.feeder.sent[partition] if sent.input == 0]
        place = TopicPartition(arena.names.input, partition, first[-500].offset)
        arena.admin.delete_records([place])[place].result(30)
        arena.may_stop[partition] = "RetentionGap"
        for worker in arena.workers:
            worker.signal(signal.SIGCONT)


class Outage(Fault):
    """Every broker is gone for longer than a session."""

    code, title = "out", "all brokers frozen past the session"
    holds = (SESSION + 2, SESSION + 6)
    allows = 35.0

    def inject(self, arena: Arena) -> None:
        for number in range(1, arena.shape.brokers + 1):
            arena.cluster.pause(number)

    def heal(self, arena: Arena) -> None:
        for number in range(1, arena.shape.brokers + 1):
            arena.cluster.resume(number)


class FrozenStop(Fault):
    """SIGTERM while every broker is frozen: the process ends within its grace period all the same."""

    code, title = "F36", "SIGTERM while all brokers are frozen"
    holds = (0.0, 0.0)
    allows = 60.0
    usual = False
    only_statehold = True

    def inject(self, arena: Arena) -> None:
        numbers = range(1, arena.shape.brokers + 1)
        for number in numbers:
            arena.cluster.pause(number)
        worker = arena.worker(self.victim)
        worker.ask_stop()
        if worker.wait(25.0 + 15.0) is None:
            arena.history.note("finding", text=f"{worker.name} did not end while the brokers were frozen")
        for number in numbers:
            arena.cluster.resume(number)
        worker.start()
