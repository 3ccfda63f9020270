"""`statehold run --processes` on a real broker: kills, rolling restarts with a good and a bad release, scaling."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.cli.commands import WAIT_SECONDS, Commands, Daemon

from statehold.common.exit_codes import Exit

pytestmark = pytest.mark.kafka

APP = """
from statehold import Handler, Output, Record, Service, Table

class Count(Handler[str]):
    counts = Table(key=str, value=int)
    out = Output("{name}.out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.counts[record.value] = self.counts.get(record.value, 0) + 1
        self.out.send(f"RELEASE {record.value} {self.counts[record.value]}")

service = Service("{name}", input="{name}.in", handler=Count)
"""
PARTITIONS = 4


class Fleet:
    """A supervised service; each value that is fed counts up in its partition, so a lost or doubled record shows."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        commands.environment |= {"STATEHOLD_SERVICE__INSTANCE": "web1", "STATEHOLD_OPS__LISTEN": "127.0.0.1:0"}
        self.release("one")
        commands.create_topics(PARTITIONS)
        self.fed = 0
        self.daemon: Daemon | None = None

    def release(self, name: str) -> None:
        self.commands.write_app(APP.replace("RELEASE", name))

    def start(self, processes: int) -> None:
        self.daemon = self.commands.start("--processes", str(processes))
        self.await_live(processes)

    def status(self) -> dict[str, Any]:
        done = self.commands.run("status", "--name", self.commands.name, "--json")
        found = json.loads(done.stdout)
        return dict(found[0]) if found else {"processes": [], "partitions": []}

    def owners(self) -> dict[int, int]:
        """Return the process of each live partition."""
        return {row["partition"]: row["process"] for row in self.status()["partitions"] if row["phase"] == "live"}

    def pids(self) -> list[int]:
        return [row["pid"] for row in self.status()["processes"]]

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self.daemon is not None
            assert time.monotonic() < deadline, f"{what}: {self.status()}\n" + "\n".join(self.daemon.lines()[-30:])
            time.sleep(0.5)

    def await_live(self, processes: int) -> None:
        """Each process is live, and has some of the partitions."""
        everyone = set(range(1, processes + 1))
        self.await_that(lambda: len(self.owners()) == PARTITIONS and set(self.owners().values()) == everyone, "live")
        self.await_that(lambda: {row["state"] for row in self.status()["processes"]} == {"live"}, "all are live")

    def feed(self) -> None:
        self.fed += 1
        for partition in range(PARTITIONS):
            self.commands.feed(f"p{partition}", partition)

    def outputs(self) -> list[list[str]]:
        """Return all committed outputs, once all that was fed has one: release, value, count."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.commands.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"],
                "group.id": f"{self.commands.name}-reader-{self.fed}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([f"{self.commands.name}.out"])
        found: list[list[str]] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < self.fed * PARTITIONS:
            assert time.monotonic() < deadline, found
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode().split())
        extra = consumer.poll(1.0)
        consumer.close()
        assert extra is None or extra.error() is not None, extra.value()
        return found

    def check(self) -> list[list[str]]:
        """Each record counted once."""
        found = self.outputs()
        expected = [(f"p{p}", str(n)) for p in range(PARTITIONS) for n in range(1, self.fed + 1)]
        assert sorted((value, count) for _, value, count in found) == sorted(expected)
        return found


@pytest.fixture
def fleet(on_kafka: Commands) -> Fleet:
    return Fleet(on_kafka)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_kills_of_a_process_and_of_the_supervisor_lose_nothing(fleet: Fleet) -> None:
    fleet.start(2)
    fleet.feed()
    first, second = fleet.pids()
    os.kill(first, signal.SIGKILL)
    fleet.feed()
    fleet.await_that(lambda: fleet.pids()[:1] not in ([], [None], [first]), "process 1 starts again")
    fleet.await_live(2)
    fleet.feed()
    fleet.check()

    assert fleet.daemon is not None
    pids = fleet.pids()
    assert pids[1] == second
    fleet.daemon.process.kill()
    fleet.daemon.process.wait(WAIT_SECONDS)
    fleet.await_that(lambda: all(map(ended, pids)), "the processes end with their supervisor")
    fleet.feed()
    fleet.start(2)
    fleet.check()
    assert fleet.daemon.stop() == Exit.STOPPED


@pytest.mark.long
def test_a_rolling_restart_takes_a_good_release_and_stops_at_a_bad_one(fleet: Fleet) -> None:
    fleet.start(2)
    fleet.feed()
    fleet.release("two")
    done = fleet.commands.run("restart", "--name", fleet.commands.name, "--wait", "80")
    assert done.returncode == 0, done.stderr
    fleet.await_live(2)
    fleet.feed()
    found = fleet.check()
    assert {release for release, _, count in found if count == "2"} == {"two"}

    old = fleet.pids()
    fleet.commands.write_app("import there_is_no_such_module")
    done = fleet.commands.run("restart", "--name", fleet.commands.name, "--wait", "80")
    assert (done.returncode, "no process was stopped" in done.stderr) == (1, True), done.stderr
    # The table has another type: it is loaded, and fails every partition that it gets.
    fleet.commands.write_app(APP.replace("value=int)", "value=str)").replace("RELEASE", "three"))
    done = fleet.commands.run("restart", "--name", fleet.commands.name, "--wait", "80")
    assert (done.returncode, "the rolling restart stopped: partition" in done.stderr) == (1, True), done.stderr
    fleet.await_that(lambda: fleet.owners() == dict.fromkeys(range(PARTITIONS), 2), "the old process has all")
    assert fleet.pids() == [None, old[1]]
    fleet.feed()
    found = fleet.check()
    assert {release for release, _, count in found if count == "3"} == {"two"}
    assert fleet.daemon is not None
    assert fleet.daemon.stop() == Exit.STOPPED


@pytest.mark.long
def test_processes_join_and_leave_while_partitions_that_stay_go_on(fleet: Fleet) -> None:
    fleet.start(1)
    fleet.feed()
    done = fleet.commands.run("scale", "2", "--name", fleet.commands.name, "--wait", "80")
    assert done.returncode == 0, done.stderr
    fleet.await_live(2)
    fleet.feed()
    assert fleet.daemon is not None
    stayed = {partition for partition, process in fleet.owners().items() if process == 1}
    drained = {event["partition"] for event in fleet.daemon.events("drained")}
    assert (len(stayed), stayed & drained) == (2, set())

    done = fleet.commands.run("scale", "1", "--name", fleet.commands.name, "--wait", "80")
    assert done.returncode == 0, done.stderr
    fleet.await_live(1)
    fleet.feed()
    fleet.check()
    assert fleet.daemon.stop() == Exit.STOPPED
