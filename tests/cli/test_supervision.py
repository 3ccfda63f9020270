"""What a supervisor gets from `statehold run`, over a real datagram socket; and which failures are reported to it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import WAIT_SECONDS, Commands

from statehold.common.exit_codes import Exit
from statehold.ops.process.sd_notify import Notify, watchdog_seconds
from statehold.ops.process.systemd_status import Supervision, SupervisorMessages

APP = """
import time
from pathlib import Path
from statehold import Handler, Output, Record, Service

class Held(Handler[str]):
    echo = Output("{name}.out", value=str)

    def __init__(self) -> None:
        while Path("gate").exists():
            time.sleep(0.05)

    def on_record(self, record: Record[str]) -> None:
        while record.value == "jam" and Path("jam").exists():
            time.sleep(0.05)
        self.echo.send(record.value)

service = Service("{name}", input="{name}.in", handler=Held)
"""


@dataclass
class Ear:
    """A supervisor's end of the socket."""

    address: str
    socket: socket.socket
    heard: list[dict[str, str]] = field(default_factory=list)

    def listen(self, seconds: float) -> None:
        """Take what is there, and wait so long for the first of it."""
        self.socket.settimeout(seconds)
        try:
            text = self.socket.recv(65_536).decode()
        except TimeoutError:
            return
        self.heard.append(dict(line.split("=", 1) for line in text.splitlines()))

    def await_message(self, name: str, fits: Callable[[str], bool] = lambda _: True, since: int = 0) -> int:
        """Until a message from number `since` on has such a value; its number."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            for at, message in enumerate(self.heard):
                if at >= since and name in message and fits(message[name]):
                    return at
            assert time.monotonic() < deadline, f"no {name} since {since}: {self.heard[since:][-20:]}"
            self.listen(1.0)


@pytest.fixture(params=["path", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ear]:
    address = str(tmp_path / "n.sock") if request.param == "path" else f"@statehold-test-{os.getpid()}-{id(request)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address if address[0] == "/" else f"\0{address[1:]}")
        yield Ear(address, bound)


def test_a_datagram_has_a_line_for_each_value(ear: Ear) -> None:
    notify = Notify.of({"NOTIFY_SOCKET": ear.address})
    assert notify is not None
    assert notify.send(READY=1, STATUS="two\nlines are one")
    ear.listen(5.0)
    assert ear.heard == [{"READY": "1", "STATUS": "two lines are one"}]
    notify.close()


@pytest.mark.parametrize("address", ["", "/", "vsock:2:1234", "relative"])
def test_without_a_listener_nothing_is_sent(address: str) -> None:
    assert Notify.of({"NOTIFY_SOCKET": address}) is None
    with Supervision(lambda: pytest.fail("no caller asks"), {"NOTIFY_SOCKET": address}):
        pass


def test_a_listener_that_is_gone_does_not_block_the_service() -> None:
    notify = Notify("/nowhere/at/all")
    assert not notify.send(READY=1)
    notify.close()


def test_the_watchdog_is_used_only_for_this_process_s_pid() -> None:
    assert watchdog_seconds({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 3.0
    assert watchdog_seconds({"WATCHDOG_USEC": "3000000"}) == 3.0
    assert watchdog_seconds({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "0"}) is None
    assert watchdog_seconds({}) is None


def status(*phases: str, **more: Any) -> dict[str, Any]:
    partitions = [{"partition": p, "phase": phase, "cause": None, "restore": None} for p, phase in enumerate(phases)]
    reported = {"running": True, "begun": True, "stopping": False, "idle": False, "waiting": None, "turned": 0.0}
    return {**reported, "partitions": partitions, **more}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (status(running=False, begun=False, turned=None), {"EXTEND_TIMEOUT_USEC"}),  # it asks the brokers
        (status(), {"EXTEND_TIMEOUT_USEC", "WATCHDOG"}),  # it joins
        (status(idle=True, waiting="all 1 partitions have an owner"), {"READY", "WATCHDOG"}),
        (status(waiting="held by one that was killed"), {"EXTEND_TIMEOUT_USEC", "WATCHDOG"}),
        (status("live", "restoring"), {"EXTEND_TIMEOUT_USEC", "WATCHDOG"}),
        (status("live", "live"), {"READY", "WATCHDOG"}),
        (status("live", "failed"), {"READY", "WATCHDOG"}),
        (status("restoring", turned=100.0), set()),  # the loop stands still: no extension, no sign of life
        (status("live", stuck=[{"doing": "flush", "partition": 0, "seconds": 40.0}]), {"READY"}),
        (status("live", stopping=True), {"STOPPING", "WATCHDOG"}),
        (status(running=False), set()),
    ],
)
def test_a_status_is_reported_in_a_line(reported: dict[str, Any], expected: set[str]) -> None:
    assert set(SupervisorMessages().next(reported, watched=True)) - {"STATUS"} == expected


def test_an_unchanged_status_is_not_reported_again() -> None:
    reported = SupervisorMessages()
    assert reported.next(status("live"), watched=False) == {"READY": 1, "STATUS": "1 live"}
    assert reported.next(status("live"), watched=False) == {}
    # A partition that moves here later takes nothing back: the instance has started.
    restoring = reported.next(status("live", "restoring"), watched=False)
    assert restoring == {"STATUS": "1 live, 1 restoring: partition 1 is restoring"}


@pytest.mark.kafka
@pytest.mark.parametrize("ear", ["path"], indirect=True)
def test_a_supervisor_hears_the_life_of_a_process(on_kafka: Commands, ear: Ear) -> None:
    """Start, restore, live, a stuck handler, stop."""
    on_kafka.write_app(APP)
    on_kafka.create_topics(partitions=2)
    gate, jam = on_kafka.directory / "gate", on_kafka.directory / "jam"
    gate.touch()
    jam.touch()
    limits = {"STATEHOLD_FAILURE__HANDLER_STUCK": "1", "STATEHOLD_FAILURE__STUCK_EXIT": "off"}
    limits |= {"STATEHOLD_FAILURE__HANDLER_SLOW": "0.5"}
    on_kafka.environment |= {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "1000000", **limits}
    daemon = on_kafka.start()

    restoring = ear.await_message("STATUS", lambda text: "restoring" in text)
    longer = ear.await_message("EXTEND_TIMEOUT_USEC", since=restoring)
    ear.await_message("EXTEND_TIMEOUT_USEC", since=longer + 1)
    assert not any("READY" in each for each in ear.heard)
    gate.unlink()
    ready = ear.await_message("READY")
    assert ear.heard[ready]["STATUS"] == "2 live"
    alive = ear.await_message("WATCHDOG", since=ready)
    ear.await_message("WATCHDOG", since=alive + 1)

    on_kafka.feed("jam", partition=0)
    stuck = ear.await_message("STATUS", lambda text: text.startswith("stuck: partition 0: "), since=ready)
    # As long as it is stuck there is no sign of life; several times the watchdog's patience.
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        ear.listen(0.2)
    assert not any("WATCHDOG" in each for each in ear.heard[stuck:])

    jam.unlink()
    daemon.process.terminate()
    stopping = ear.await_message("STOPPING", since=stuck)
    assert daemon.process.wait(WAIT_SECONDS) == Exit.STOPPED, daemon.lines()[-5:]
    ear.await_message("STATUS", lambda text: text == "ended", since=stopping)
    assert sum("READY" in each for each in ear.heard) == 1
    assert sum("STOPPING" in each for each in ear.heard) == 1
    assert not any("EXTEND_TIMEOUT_USEC" in each for each in ear.heard[ready:])


@pytest.mark.kafka
@pytest.mark.parametrize("ear", ["abstract"], indirect=True)
def test_a_start_that_fails_says_why(on_kafka: Commands, ear: Ear) -> None:
    on_kafka.environment |= {"NOTIFY_SOCKET": ear.address}
    daemon = on_kafka.start()
    at = ear.await_message("STATUS", lambda text: text.startswith("ended: TopicMissing: "))
    assert ear.heard[at]["STOPPING"] == "1"
    assert daemon.process.wait(WAIT_SECONDS) == Exit.CONFIGURATION
