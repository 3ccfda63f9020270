"""`statehold ...` as a user runs it: in a directory of its own, on a service of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

APP = """
from pathlib import Path
from statehold import Handler, Output, Record, Service

class Echo(Handler[str]):
    echo = Output("{name}.out", value=str)

    def on_record(self, record: Record[str]) -> None:
        if record.value == "poison" and not Path("fixed").exists():
            raise ValueError("odd lot")
        self.echo.send(record.value)

service = Service("{name}", input="{name}.in", handler=Echo)
"""
WAIT_SECONDS = 90.0


@dataclass
class Daemon:
    """A `statehold run` with its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What it has logged; every line must be JSON."""
        parsed = [json.loads(line) for line in self.lines()]
        return [event for event in parsed if name in ("", event["event"])]

    def wait_for(self, name: str, count: int = 1) -> dict[str, Any]:
        """Until it has logged that event so often; returns the last."""
        wait_until(lambda: len(self.events(name)) >= count or self.process.poll() is not None, name)
        found = self.events(name)
        assert len(found) >= count, self.lines()
        return found[-1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)

    def end(self) -> None:
        """By all means, if it has not ended: nothing may outlive its test."""
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()


@dataclass
class Commands:
    """Runs commands in `directory`, which holds the module `app` with the service called `name`."""

    python: str
    directory: Path
    name: str
    environment: dict[str, str]
    daemons: list[Daemon] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        return [self.python, "-m", "statehold.ops.cli.entry", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def start(self, *options: str) -> Daemon:
        log = self.directory / f"run-{len(self.daemons)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command("run", "app:service", *options), cwd=self.directory, env=self.environment, stderr=file
            )
        self.daemons.append(Daemon(process, log))
        return self.daemons[-1]

    def create_topics(self, partitions: int) -> None:
        done = self.run("topics", "create", "app:service", "--start-at", "beginning", "--partitions", str(partitions))
        assert done.returncode == 0, done.stderr

    def feed(self, value: str, partition: int) -> None:
        producer = Producer({"bootstrap.servers": self.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"]})
        producer.produce(f"{self.name}.in", value.encode(), partition=partition)
        assert producer.flush(30) == 0

    def write_app(self, text: str = APP) -> None:
        (self.directory / "app.py").write_text(text.replace("{name}", self.name))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS:.0f} s"
        time.sleep(0.05)
