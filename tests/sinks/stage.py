"""One service with a sink on real servers: its topics, its schema, its processes, and what the tables should be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from examples.feeding import Feed
from examples.sinks.app import Payments
from examples.sinks.server import Postgres
from psycopg import sql
from tests.sinks.worker import Strict

from statehold import Service
from statehold.admin.topics import ServiceTopics
from statehold.bound.policies import failure_topics
from statehold.config import load
from statehold.ops.reports.sinks import standings

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


#: the amount that the database of a strict stage refuses
BAD = 13
#: what the headers of a letter begin with
DEAD = "statehold-dead-"


class Stage:
    """Processes end with `close`. With SINK_STRICT the database refuses payments of `BAD`, and one in 20 is."""

    def __init__(self, servers: str, postgres: Postgres, directory: Path, partitions: int, port: int = 0, **more: str):
        name = f"sink{uuid.uuid4().hex[:8]}"
        self.servers, self.directory, self.input, self.partitions = servers, directory, f"{name}-payments", partitions
        self.url = f"{postgres.url}?options=-csearch_path%3D{name}"
        self.environment = {
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "STATEHOLD_SERVICE__NAMESPACE": f"{name}.",
            "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
            "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.2",
            "STATEHOLD_SINK__URL": f"{postgres.url_at(port or postgres.port)}?options=-csearch_path%3D{name}",
            "STATEHOLD_SINK__TIMEOUT": "3",
            "STATEHOLD_LOG__FORMAT": "json",
            "SINK_INPUT": self.input,
            "SINK_POINTS": str(directory),
            **more,
        }
        with psycopg.connect(postgres.url) as database:
            database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        self.run((ROOT / "examples" / "sinks" / "tables.sql").read_bytes())
        settings = load(env=self.environment)
        self.strict = "SINK_STRICT" in more
        handler = Strict if self.strict else Payments
        if self.strict:
            self.run("ALTER TABLE bookings ADD CHECK (amount <> 13)")
        self.service = Service("balances", input=self.input, handler=handler, settings=settings)
        names = self.service.names
        findings = ServiceTopics(settings, names, failure_topics(handler, names)).create(
            "beginning", partitions=partitions
        )
        assert all(finding.good for finding in findings), findings
        assert all(each.made for each in standings(self.service, settings, make=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.fed = self.bad = 0
        self._feed = Feed(servers, self.input)

    # What happens

    def start(self, name: str, *, static: bool = False) -> subprocess.Popen[bytes]:
        """A static member comes back in its place at once."""
        own = {"STATEHOLD_SERVICE__INSTANCE": name} | ({"STATEHOLD_GROUP__MEMBERSHIP": "static"} if static else {})
        environment = {**os.environ, **self.environment, **own, "PYTHONPATH": str(ROOT)}
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.sinks.worker"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        return self.processes[name]

    def feed(self, count: int, seed: int = 1) -> None:
        draw = random.Random(seed + self.fed)
        self._feed.send(self._payments(draw, count))
        self.fed += count

    def _payments(self, draw: random.Random, count: int) -> Iterator[tuple[bytes, bytes]]:
        for _ in range(count):
            account = f"a{draw.randrange(50):02}"
            amount = BAD if self.strict and draw.random() < 0.05 else draw.randrange(-500, 1000)
            payment = {"account": account, "amount": amount}
            self.bad += amount == BAD and self.strict
            yield account.encode(), json.dumps(payment).encode()

    def arm(self, point: str, action: str) -> None:
        (self.directory / point).write_text(action)

    def reached(self, point: str) -> list[int]:
        return [int(path.suffix[1:]) for path in self.directory.glob(f"{point}.*") if path.suffix != ".log"]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    # What is seen

    def run(self, text: LiteralString | bytes) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as database:
            cursor = database.execute(text)
            return cursor.fetchall() if cursor.description else []

    def booked(self) -> int:
        return int(self.run("SELECT count(*) FROM bookings")[0][0])

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def await_booked(self) -> None:
        """All that was fed, but for what is refused."""
        good = self.fed - self.bad
        await_true(lambda: self.booked() >= good, lambda: f"{self.booked()} of {good} payments; {self.tail()}")
        if self.strict:  # the last of them may be one that is refused
            passed = "SELECT sum(position) FROM statehold_sink"
            await_true(lambda: int(self.run(passed)[0][0]) >= self.fed, self.tail)

    def tail(self) -> str:
        return "\n".join(self.log(name)[-1500:] for name in self.processes)

    def agrees(self) -> bool:
        """The tables are a recomputation from the input, by partition and offset; and nothing more. What is refused
        there is a dead letter, and nothing else is.
        """
        balances, numbers, expected = Counter[str](), Counter[str](), set()
        rejected = set[tuple[int, int]]()
        for message in self._read(self.input, self.fed):
            payment = json.loads(message.value() or b"")
            account, amount = payment["account"], payment["amount"]
            if self.strict and amount == BAD:
                rejected.add((message.partition() or 0, message.offset() or 0))
                continue
            balances[account] += amount
            numbers[account] += 1
            expected.add((account, numbers[account], amount))
        assert len(expected) == self.fed - self.bad
        assert set(self.run("SELECT account, number, amount FROM bookings")) == expected
        wanted = {(account, balances[account], numbers[account]) for account in numbers}
        assert set(self.run("SELECT account, balance, payments FROM accounts")) == wanted
        if self.strict:
            reported = [
                dict(dead_letter.headers() or ()) for dead_letter in self._read(self.service.names.dead, len(rejected))
            ]
            places = [(int(each[f"{DEAD}partition"] or b""), int(each[f"{DEAD}offset"] or b"")) for each in reported]
            assert sorted(places) == sorted(rejected)
            assert {each[f"{DEAD}error"] for each in reported} == {b"SinkRefused"}
        return True

    def _read(self, topic: str, count: int) -> Iterator[Message]:
        """Every committed record of the topic, whose number is to be this."""
        reported = {"group.id": "-", "auto.offset.reset": "error", "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.servers, **reported})
        try:
            consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(self.partitions)])
            deadline, seen, ended = time.monotonic() + PATIENCE, 0, set[int | None]()
            while seen < count or len(ended) < self.partitions:
                assert time.monotonic() < deadline, f"{seen} of {count} records of {topic}"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                    continue
                yield message
                seen += 1
        finally:
            consumer.close()


def await_true(condition: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
