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
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from examples.feeding import Feed
from examples.sinks.app import Payments
from psycopg import sql

from holdfast import Service
from holdfast.config.load import load
from holdfast.dev.postgres import Postgres
from holdfast.ops.sinks import standings
from holdfast.topics import Topics

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


class Stage:
    """Processes end with `close`."""

    def __init__(self, servers: str, postgres: Postgres, directory: Path, partitions: int, port: int = 0, **more: str):
        name = f"sink{uuid.uuid4().hex[:8]}"
        self.servers, self.directory, self.input, self.partitions = servers, directory, f"{name}-payments", partitions
        self.url = f"{postgres.url}?options=-csearch_path%3D{name}"
        self.environment = {
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": servers,
            "HOLDFAST_SERVICE__NAMESPACE": f"{name}.",
            "HOLDFAST_GROUP__SESSION_TIMEOUT": "6",
            "HOLDFAST_GROUP__HEARTBEAT_INTERVAL": "0.2",
            "HOLDFAST_SINK__URL": f"{postgres.url_at(port or postgres.port)}?options=-csearch_path%3D{name}",
            "HOLDFAST_SINK__TIMEOUT": "3",
            "HOLDFAST_LOG__FORMAT": "json",
            "SINK_INPUT": self.input,
            "SINK_POINTS": str(directory),
            **more,
        }
        with psycopg.connect(postgres.url) as database:
            database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        self.run((ROOT / "examples" / "sinks" / "tables.sql").read_bytes())
        settings = load(env=self.environment)
        self.service = Service("balances", input=self.input, handler=Payments, settings=settings)
        findings = Topics(settings, self.service.names, []).create("beginning", partitions=partitions)
        assert all(finding.good for finding in findings), findings
        assert all(each.made for each in standings(self.service, settings, make=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.fed = 0
        self._feed = Feed(servers, self.input)

    # What happens

    def start(self, name: str, *, static: bool = False) -> subprocess.Popen[bytes]:
        """A static member comes back in its place at once."""
        own = {"HOLDFAST_SERVICE__INSTANCE": name} | ({"HOLDFAST_GROUP__MEMBERSHIP": "static"} if static else {})
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
            payment = {"account": account, "amount": draw.randrange(-500, 1000)}
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
        await_true(lambda: self.booked() >= self.fed, lambda: f"{self.booked()} of {self.fed} payments; {self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.log(name)[-1500:] for name in self.processes)

    def agrees(self) -> bool:
        """The tables are a recomputation from the input, by partition and offset; and nothing more."""
        balances, numbers, expected = Counter[str](), Counter[str](), set()
        for account, amount in self._input():
            balances[account] += amount
            numbers[account] += 1
            expected.add((account, numbers[account], amount))
        assert len(expected) == self.fed
        assert set(self.run("SELECT account, number, amount FROM bookings")) == expected
        wanted = {(account, balances[account], numbers[account]) for account in numbers}
        assert set(self.run("SELECT account, balance, payments FROM accounts")) == wanted
        return True

    def _input(self) -> Iterator[tuple[str, int]]:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "-", "auto.offset.reset": "error"})
        try:
            consumer.assign([TopicPartition(self.input, each, OFFSET_BEGINNING) for each in range(self.partitions)])
            deadline, seen = time.monotonic() + PATIENCE, 0
            while seen < self.fed:
                assert time.monotonic() < deadline
                message = consumer.poll(1.0)
                if message is not None and not message.error():
                    payment = json.loads(message.value() or b"")
                    yield payment["account"], payment["amount"]
                    seen += 1
        finally:
            consumer.close()


def await_true(condition: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
