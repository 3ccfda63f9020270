"""What the tests of examples/around stand on: a namespace and topics of their own, processes, a plain reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from examples.around.booking import Bookings
from tests.support.desk import await_true

from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.service import Service

ROOT = Path(__file__).resolve().parents[2]
STATEHOLD = Path(sys.executable).with_name("statehold")


class Scene:
    """One example's service, under names of its own."""

    def __init__(self, servers: str, directory: Path, service: Service, *outputs: str, **more: str) -> None:
        self.servers, self.directory = servers, directory
        self.environment = {
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "STATEHOLD_SERVICE__NAMESPACE": f"around-{uuid.uuid4().hex[:8]}.",
            "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
            "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.2",
            # A process that was killed comes back as the same member: no test of what a session is.
            "STATEHOLD_GROUP__MEMBERSHIP": "static",
            "STATEHOLD_SERVICE__INSTANCE": "one",
            **{name: value for name, value in more.items() if name.startswith("STATEHOLD_")},
        }
        self._more = more
        names = Names(service.name, service.input, self.environment["STATEHOLD_SERVICE__NAMESPACE"])
        self.names = names
        findings = ServiceTopics(load(env=self.environment), names, list(outputs)).create("beginning", partitions=2)
        assert all(finding.good for finding in findings), findings
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            environment = {**os.environ, **self.environment, **self._more, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def run(self, target: str) -> subprocess.Popen[bytes]:
        return self.start(str(STATEHOLD), "run", target)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)

    def handled(self, records: int) -> bool:
        """Wait until the group has committed this number of input records; the input holds no transaction markers."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.names.group, "log_level": 2})
        try:
            places = [TopicPartition(self.names.input, partition) for partition in range(2)]
            return sum(max(0, place.offset) for place in consumer.committed(places, 30)) == records
        finally:
            consumer.close()

    def await_handled(self, records: int) -> None:
        self.await_true(lambda: self.handled(records), f"{records} records are handled")

    def await_true(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until `condition` is true while the newest process lives; a failure shows the end of its log."""

        def met() -> bool:
            assert self.processes[-1].poll() is None, f"the process ended before {what}"
            return bool(condition())

        try:
            await_true(met, what, 120)
        except AssertionError:
            print((self.directory / "log").read_text(errors="replace")[-20_000:])
            raise


def committed(servers: str, topic: str) -> list[tuple[int, int, bytes]]:
    """(partition, offset, value) of every committed record, by a plain consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"plain-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    found, ended = [], set[int]()
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        until = time.monotonic() + 120
        while len(ended) < len(partitions):
            assert time.monotonic() < until, topic
            message = consumer.poll(1.0)
            if message is None:
                continue
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            if error is None:
                assert offset is not None
                found.append((partition, offset, bytes(message.value() or b"")))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
    finally:
        consumer.close()
    return found


class Outside:
    """The booking service: the invoices it received, and what is to happen at its next request."""

    def __init__(self, port: int) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.at_next: Callable[[], None] | None = None
        self.port, self._lock = port, threading.Lock()
        self._bookings: Bookings | None = None

    def open(self) -> None:
        self._bookings = Bookings(self.port, self._notify)
        threading.Thread(target=self._bookings.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        bookings, self._bookings = self._bookings, None
        if bookings is not None:
            bookings.shutdown()
            bookings.server_close()

    def _notify(self, key: str, body: bytes) -> None:
        with self._lock:
            self.heard.append((key, body))
            happens, self.at_next = self.at_next, None
        if happens is not None:
            happens()
