"""What a run takes place in: brokers behind proxies, topics, worker processes, a feeder, a reader that reads along."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import targets
from tests.chaos.askers import Askers
from tests.chaos.failing import DELAYS
from tests.chaos.history import History, Patience
from tests.chaos.observer import PATIENT, Observer, committed, read_all
from tests.chaos.operating import Operator
from tests.chaos.points import Points
from tests.chaos.rekeyed import rekeyed
from tests.chaos.remote import Remote
from tests.chaos.rows import Row
from tests.chaos.workers import Worker, pause
from tests.chaos.workload import ACCOUNTS, Feeder, job_of
from tests.support.proxy import Proxy

from statehold.admin.topics import ServiceTopics
from statehold.bound.rekey import with_rekeys
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import load
from statehold.dev import BrokerFailed, Cluster, InUse
from statehold.dev.ports import free_ports
from statehold.errors import StateholdError

#: the shortest session that the settings allow
SESSION = 6.0
_LOOK = 20.0
_BROKER = 240.0
_TOPICS = 180.0
BROKER = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
    "transaction.max.timeout.ms": "60000",
}
SETTINGS = {
    "STATEHOLD_KAFKA__SOCKET_TIMEOUT": "2",
    "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "25",
    # A stranger's one init_transactions bumps the epoch again and again while the owner, who is back at once, begins
    # transactions; what happens at the limit has tests of its own (tests/system/test_hijack.py).
    "STATEHOLD_FAILURE__FENCE_LIMIT": "1000",
    "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "4",
    "STATEHOLD_SNAPSHOT__KEEP": "2",
    "STATEHOLD_SNAPSHOT__SLICE_BUDGET": "0.0005",
    "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
}
#: the setting by which a service merges its inputs
ORDER = "STATEHOLD_INPUTS__ORDER"
CLASSIC = {"STATEHOLD_GROUP__SESSION_TIMEOUT": "6", "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.5"}


@dataclass(frozen=True)
class Shape:
    """How large a run is."""

    brokers: int = 1
    workers: int = 3
    partitions: int = 6
    per_second: int = 300
    accounts: int = ACCOUNTS
    target: str = "statehold"
    #: settings of the service, as environment
    settings: Mapping[str, str] = field(default_factory=dict)
    mutant: str = ""
    #: one trade in this number fails by design; 0: none
    failing: int = 0
    proxied: bool = True
    #: number of topics that the service reads
    inputs: int = 1
    #: the service makes a call for each trade
    calls: bool = False
    #: each trade moves money between two accounts of other partitions (`tests.chaos.rekeyed`)
    rekeyed: bool = False
    #: number of processes that ask the service (`tests.chaos.asker`); 0: it answers no requests
    askers: int = 0

    @property
    def answers(self) -> int:
        """The number of answers to a trade."""
        return 2 if self.rekeyed else 1


class Arena:
    """Enter it to start everything but the workers; what it started is ended when it is left, however."""

    def __init__(self, shape: Shape, directory: Path, seed: int, cluster: Cluster | None = None) -> None:
        self.shape, self.directory, self.seed = shape, directory, seed
        directory.mkdir(parents=True, exist_ok=True)
        self.history = History(directory / "history.jsonl")
        run = uuid.uuid4().hex[:8]
        self.names = Names(
            f"ledger-{run}",
            f"trades-{run}",
            others=tuple(f"trades{number}-{run}" for number in range(2, shape.inputs + 1)),
        )
        self.output = f"totals-{run}"
        if shape.rekeyed:
            self.names = with_rekeys(self.names, rekeyed(self.names.input, self.output))
        #: the topics that the feeder writes
        self.fed = self.names.inputs[: shape.inputs]
        self.points = Points(directory / "points")
        self.calls = directory / "calls"
        self.askers = Askers(self)
        self.other_system = Remote(free_ports(1)[0] if shape.calls else 0, directory / "remote")
        self.workers: list[Worker] = []
        self.proxies: dict[int, Proxy] = {}
        #: partitions that a fault entitles to stop, and the error with which
        self.may_stop: dict[int, str] = {}
        self._stack = ExitStack()
        self._given = cluster

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.callback(self.history.close)
        operator = Operator(self.directory, self.history, needed=self.shape.failing > 0)
        self.operator = self._stack.enter_context(contextlib.closing(operator))
        numbers = range(1, self.shape.brokers + 1)
        if self._given is not None:
            self.cluster = self._given
        else:
            if self.shape.proxied:
                self.proxies = {number: self._stack.enter_context(Proxy()) for number in numbers}
            advertised = {number: proxy.port for number, proxy in self.proxies.items()}
            self.cluster = self._brokers(advertised)
            self._stack.callback(self.cluster.stop)
            for number, proxy in self.proxies.items():
                proxy.connect(self.cluster.ports[number])
        self.servers = self.cluster.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers, **PATIENT})
        self._create_topics()
        shape = self.shape
        self.feeder = Feeder(
            self.servers,
            self.fed,
            shape.partitions,
            self.history,
            seed=self.seed,
            accounts=shape.accounts,
            failing=shape.failing,
        )
        if shape.calls:
            self.other_system.start()
        self.observer = Observer(self.servers, self.output, self.history)
        accounts = {f"a{number}": number % shape.partitions for number in range(shape.accounts)}
        if shape.rekeyed:
            accounts = {name: murmur2(name.encode(), shape.partitions) for name in accounts}
        self.observer.start(accounts)
        self._stack.callback(self.observer.stop)
        self._stack.callback(self._end_workers)
        for number in range(shape.workers):
            self.add_worker(f"w{number}")
        self.askers.add()

    def _brokers(self, advertised: Mapping[int, int]) -> Cluster:
        """Retry with other ports: free ports may be taken a moment later by another process of this machine."""
        while True:
            cluster = Cluster(self.shape.brokers, settings=BROKER, advertised=advertised or None)
            try:
                cluster.start()
            except InUse as error:
                self.history.tell(f"brokers again: {error}")
                continue
            return cluster

    def start_broker(self, number: int) -> None:
        """If it does not run. Others on this machine may try its ports for a moment; and a broker gives its start up
        by itself where a busy machine or a missing quorum keeps it waiting for a minute.
        """
        deadline = self.history.now() + _BROKER
        while not self.cluster.is_alive(number):
            try:
                self.cluster.start(number)
            except (InUse, BrokerFailed) as error:
                if self.history.now() > deadline:
                    raise
                self.history.tell(f"broker {number} again, the others awake: {error}")
                for other in range(1, self.shape.brokers + 1):
                    self.cluster.resume(other)  # a fault that overlaps may have frozen the quorum that it waits for
                pause(0.5)

    def _end_workers(self) -> None:
        for worker in [*self.workers, *self.askers.processes]:
            worker.close()
        self.other_system.kill()
        self.feeder.finish(0.0)

    def _create_topics(self) -> None:
        if self.shape.target == "statehold":
            settings = load(env={k: v for k, v in self.environment().items() if k.startswith("STATEHOLD_")})
            self._create_ours(
                ServiceTopics(settings, self.names, [self.output, *self.dead_letter_topics, *self.askers.topics])
            )
            return
        new = [NewTopic(topic, self.shape.partitions) for topic in (self.names.input, self.output)]
        for future in self.admin.create_topics(new).values():
            future.result(30)

    @property
    def dead_letter_topics(self) -> list[str]:
        """Dead letters, then the retry topics, shortest delay first; none where nothing fails."""
        return [self.names.dead, *map(self.names.retry, DELAYS)] if self.shape.failing else []

    def _create_ours(self, topics: ServiceTopics) -> None:
        """Create the missing topics, repeatedly: freshly started brokers on a busy machine may not answer in time."""
        deadline = self.history.now() + _TOPICS
        while True:
            try:
                findings = topics.create("beginning", partitions=self.shape.partitions)
            except StateholdError as error:
                if self.history.now() > deadline:
                    raise
                self.history.tell(f"topics again: {error}")
                continue
            assert all(finding.good for finding in findings), findings
            return

    def environment(self) -> dict[str, str]:
        base = {**SETTINGS, "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": self.servers}
        if self.shape.settings.get("STATEHOLD_GROUP__PROTOCOL") != "consumer":
            base |= CLASSIC
        return base | dict(self.shape.settings)

    def add_worker(self, name: str) -> Worker:
        """A process that is not started."""
        job = self.directory / f"{name}.job.json"
        reported: dict[str, Any] = {
            "service": self.names.service,
            "bootstrap": self.servers,
            "input": self.names.input,
            "others": self.fed[1:],
            "rekeyed": self.shape.rekeyed,
            "effects": self.askers.effects if self.shape.askers else "",
            "output": self.output,
            "points": str(self.points.directory),
            "calls": str(self.calls),
            "remote": self.other_system.port,
            "mutant": self.shape.mutant,
            "fixed": self.operator.fixed,
            "sockets": self.operator.sockets,
            "state_dir": str(self.directory / f"{name}.state"),
        }
        job.write_bytes(job_of(**targets.job(self.shape.target, reported)))
        command = targets.command(self.shape.target, job)
        worker = Worker(name, self.directory, command, self.environment(), self.history)
        self.workers.append(worker)
        return worker

    def worker(self, number: int) -> Worker:
        return self.workers[number % len(self.workers)]

    def asker(self, number: int) -> Worker:
        return self.askers.processes[number % len(self.askers.processes)]

    def broker(self, number: int) -> int:
        return 1 + number % self.shape.brokers

    def ensure_all(self) -> None:
        """Everything that was started runs again: proxies let everything through, brokers, workers."""
        if self.shape.calls:
            self.other_system.heal()
        for proxy in self.proxies.values():
            proxy.free()
        for number in range(1, self.shape.brokers + 1):
            self.cluster.resume(number)
            self.start_broker(number)
        for point in os.listdir(self.points.directory):
            if "." not in point:
                self.points.disarm(point)
        for worker in [*self.workers, *self.askers.processes]:
            worker.signal(signal.SIGCONT)
            worker.start()

    def await_answers(self, seconds: float) -> None:
        """Let the other system answer, which comes to nothing if it misbehaves."""
        before, until = len(self.other_system.answered()), self.history.now() + 10 * seconds
        while len(self.other_system.answered()) == before and self.history.now() < until:
            pause(0.05)

    def learn_input(self) -> None:
        """What is on the input now, before a fault deletes it; the feeder may be at work.

        Raises AssertionError or KafkaException when it cannot be read.
        """
        for index, topic in enumerate(self.fed):
            self.learn(read_all(self.servers, topic, self.history, 20.0), index)

    def learn(self, rows: Sequence[Row], index: int) -> None:
        """Keep what is on an input: the askers' records apart from those of the feeder."""
        self.feeder.learn(self.askers.learn(rows), index)

    def committed_positions(self, timeout: float = 30.0, index: int = 0) -> dict[int, int]:
        """The group's offsets of an input; asked of a consumer that joins nothing. Raises KafkaException."""
        places = [TopicPartition(self.names.inputs[index], p) for p in range(self.shape.partitions)]
        return committed(self.servers, self.names.group, places, timeout)

    def await_quiet(self, seconds: float) -> bool:
        """Wait until the reader has seen an answer to all of the input; False if none came for `seconds`.

        The reader is a client like any other, and may be the one that hangs: now and then a fresh one looks.
        """
        patience, look, found = Patience(self.history, seconds), self.history.now() + _LOOK, 0
        while len(self.observer.seen) < self.feeder.acknowledged * self.shape.answers:
            now = self.history.now()
            if now > look or self.shape.failing:
                look = now + _LOOK
                found = self._answers()
                if found >= self.feeder.acknowledged * self.shape.answers:
                    self.history.tell("everything has an answer or a letter, as a fresh reader sees")
                    return True
            if patience.over((len(self.observer.seen), found)):
                return False
            self.revive()
            pause(0.1)
        return True

    def _answers(self) -> int:
        try:
            topics = [self.output, *self.dead_letter_topics[:1]]
            return sum(len(read_all(self.servers, topic, self.history, 20.0)) for topic in topics)
        except (AssertionError, KafkaException):
            return -1

    def keep_brokers(self) -> None:
        """Copy the brokers' logs and data, without the indices, into the history: they explain a bad run."""
        leave = shutil.ignore_patterns("*.index", "*.timeindex", "*.txnindex", "*.lock")
        with contextlib.suppress(shutil.Error):  # a segment may go meanwhile
            shutil.copytree(self.cluster.directory, self.directory / "brokers", ignore=leave, dirs_exist_ok=True)

    def revive(self) -> None:
        """Start workers that ended by themselves, as a supervisor does; let the operator act on waiting trades."""
        for worker in [*self.workers, *self.askers.unfinished()]:
            if worker.starts and worker.ended_by_itself() is not None:
                self.history.tell(f"{worker.name} ended by itself with {worker.ended_by_itself()}; started again")
                worker.start()
        self.operator.look(self.workers, self.observer.answered)
