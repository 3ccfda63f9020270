"""Bars on a terminal while a partition restores or replays, and the same figures from `statehold status`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cli.commands import WAIT_SECONDS, Commands, wait_until
from tests.support.ending import ending

from statehold.ops.remote import local_services

pytestmark = pytest.mark.kafka

SLOW = """
import time
from statehold import Handler, Record, Service, Table

class Slow(Handler[str]):
    seen = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        time.sleep(0.001)
        self.seen[record.value] = record.offset

service = Service("{name}", input="{name}.in", handler=Slow)
"""
REPLAYED = 2500
#: nothing but marks: a restart replays everything
MARKS_ONLY = {
    "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off",
    "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "off",
    "STATEHOLD_SNAPSHOT__ON_STOP": "off",
}


class Terminal:
    """A pseudo-terminal of 120 columns that remembers all it was given."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # what Linux says when the last writer is gone
                return
            self.text += data.decode(errors="replace")

    @property
    def plain(self) -> str:
        """Without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def close(self) -> None:
        os.close(self.theirs)
        self._thread.join(WAIT_SECONDS)
        os.close(self._ours)


def test_a_replay_is_a_bar_on_the_terminal_and_a_field_of_status(on_kafka: Commands) -> None:
    on_kafka.write_app(SLOW)
    on_kafka.environment |= MARKS_ONLY | {"TERM": "xterm-256color"}
    on_kafka.create_topics(1)
    producer = Producer({"bootstrap.servers": on_kafka.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"]})
    for number in range(REPLAYED):
        producer.produce(f"{on_kafka.name}.in", b"v%d" % number, partition=0)
    assert producer.flush(30) == 0
    del producer
    first = on_kafka.start()
    first.wait_for("live")
    wait_until(lambda: status(on_kafka)["position"] == REPLAYED, "all handled")
    assert first.stop() == 0

    terminal = Terminal()
    command = on_kafka.command("run", "app:service")
    process = subprocess.Popen(
        command, cwd=on_kafka.directory, env=on_kafka.environment, stderr=terminal.theirs, stdout=terminal.theirs
    )
    with ending(process):
        wait_until(lambda: " s left" in terminal.plain, "a bar with a guess of the time left")
        reported = status(on_kafka)
        wait_until(lambda: re.search(r"\blive\b", terminal.plain) is not None, "live")
    terminal.close()
    assert (reported["phase"], reported["restore"]["step"], reported["restore"]["end"]) == (
        "replaying",
        "replay",
        REPLAYED,
    )
    assert 0 < reported["restore"]["position"] <= REPLAYED
    plain = terminal.plain
    assert re.search(r"partition 0 replay +\S+ +\d+% [\d.]+ KB, [\d.]+ KB/s, [\d,]+ keys, \d+ s left", plain), plain
    lines = plain.replace("\r", "\n").splitlines()
    assert any(re.match(r"\S+Z? .*replayed .*records=2500", line) for line in lines), "log lines stay whole"
    assert plain.count(" stopped ") == 1


def status(commands: Commands) -> dict[str, Any]:
    """The service's only partition, as in `statehold status --json`; asked without a new process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", commands.environment["XDG_RUNTIME_DIR"])
        (found,) = local_services.of_service(commands.name)
    assert found.status is not None, found.trouble
    partition: dict[str, Any] = found.status["partitions"][0]
    return partition
