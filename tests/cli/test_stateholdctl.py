"""`deploy/stateholdctl` with real processes; in the place of statehold, a program that plays what the test says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.commands import Commands, wait_until

pytestmark = pytest.mark.slow

PROGRAM = """#!{python}
import os, signal, sys, time
from pathlib import Path
here = Path({directory!r})
with (here / "starts").open("a") as starts:
    starts.write(" ".join(sys.argv[1:]) + "\\n")
if (here / "fails").exists():
    sys.exit("statehold: SettingsError: commit.interval")
if (here / "deaf").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
(here / "up").touch()
while True:
    time.sleep(0.05)
"""


@dataclass
class Desk:
    script: Path
    directory: Path

    @property
    def pid_file(self) -> Path:
        return self.directory / "run" / "held.pid"

    def command(self, act: str, service: str = "held") -> list[str]:
        return [str(self.script), act, service]

    def environment(self) -> dict[str, str]:
        places = {"STATEHOLDCTL_ETC": str(self.directory / "etc"), "STATEHOLDCTL_RUN": str(self.directory / "run")}
        return os.environ | places

    def ctl(self, act: str, service: str = "held") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(act, service), env=self.environment(), capture_output=True, text=True, check=False, timeout=90
        )

    def pid(self) -> int:
        return int(self.pid_file.read_text().split()[0])

    def starts(self) -> list[str]:
        path = self.directory / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def set(self, **values: object) -> None:
        known = {"SUBJECT": "app:service", "DIRECTORY": self.directory, "LOG": self.directory / "held.log"}
        known |= {"PROGRAM": self.directory / "program", "SETTLE": 1, "GRACE": 30, "OPTIONS": "'--set log.level=debug'"}
        text = "".join(f"{name}={value}\n" for name, value in {**known, **values}.items())
        (self.directory / "etc" / "held.ctl").write_text(text)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def desk(root: Path, tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "etc").mkdir()
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable, directory=str(tmp_path)))
    program.chmod(0o755)
    desk = Desk(root / "deploy" / "stateholdctl", tmp_path)
    desk.set()
    yield desk
    desk.set(GRACE=0)
    desk.ctl("stop")


def test_a_service_starts_reports_its_status_and_stops(desk: Desk) -> None:
    assert desk.ctl("status").returncode == 3
    started = desk.ctl("start")
    assert started.returncode == 0, started.stderr
    pid = desk.pid()
    assert desk.starts() == [f"run app:service --config {desk.directory}/etc/held.toml --json --set log.level=debug"]
    assert f"pid {pid}" in desk.ctl("status").stderr
    again = desk.ctl("start")
    assert (again.returncode, desk.pid(), len(desk.starts())) == (0, pid, 1)
    assert "runs already" in again.stderr
    assert desk.ctl("restart").returncode == 0
    assert not alive(pid)
    pid = desk.pid()
    assert alive(pid)
    assert desk.ctl("stop").returncode == 0
    assert not alive(pid)
    assert not desk.pid_file.exists()
    assert desk.ctl("stop").returncode == 0
    assert desk.ctl("status").returncode == 3


def test_a_service_outlives_its_starter_and_has_a_session_of_its_own(desk: Desk) -> None:
    assert desk.ctl("start").returncode == 0
    assert os.getsid(desk.pid()) == desk.pid()


def test_a_process_that_ignores_the_signal_is_killed_after_the_grace(desk: Desk) -> None:
    (desk.directory / "deaf").touch()
    desk.set(GRACE=2)
    assert desk.ctl("start").returncode == 0
    wait_until((desk.directory / "up").exists, "it ignores SIGTERM")
    pid, began = desk.pid(), time.monotonic()
    stopped = desk.ctl("stop")
    assert stopped.returncode == 0
    assert "killed" in stopped.stderr
    assert time.monotonic() - began >= 2
    assert not alive(pid)


def test_a_process_that_died_is_reported_and_started_again(desk: Desk) -> None:
    assert desk.ctl("start").returncode == 0
    pid = desk.pid()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "it is dead")
    assert desk.ctl("status").returncode == 1
    started = desk.ctl("start")
    assert started.returncode == 0
    assert "stale" in started.stderr
    assert alive(desk.pid())


@pytest.mark.parametrize("left", ["{pid} 1", "{pid}", "", "nonsense", "{pid} {begun}0"])
def test_a_stranger_with_the_pid_of_a_dead_one_is_never_touched(desk: Desk, left: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        begun = Path(f"/proc/{stranger.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        desk.pid_file.parent.mkdir(exist_ok=True)
        desk.pid_file.write_text(left.format(pid=stranger.pid, begun=begun) + "\n")
        try:
            assert desk.ctl("status").returncode == 1
            assert desk.ctl("stop").returncode == 0
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_two_starts_at_once_start_one(desk: Desk) -> None:
    starts = [
        subprocess.Popen(desk.command("start"), env=desk.environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [each.communicate(timeout=90)[1] for each in starts]
    assert [each.returncode for each in starts] == [0] * 4, said
    assert len(desk.starts()) == 1
    assert sum("runs already" in each for each in said) == 3


def test_a_start_that_fails_says_the_last_line_of_its_log(desk: Desk) -> None:
    (desk.directory / "fails").touch()
    desk.set(SETTLE=60)
    failed = desk.ctl("start")
    assert failed.returncode == 1
    assert failed.stderr == "stateholdctl: held ended with exit code 1: statehold: SettingsError: commit.interval\n"
    assert desk.ctl("status").returncode == 3


@pytest.mark.parametrize("arguments", [("start", ""), ("begin", "held"), ("start", "../held"), ("stop", "-x")])
def test_wrong_usage(desk: Desk, arguments: tuple[str, str]) -> None:
    assert desk.ctl(*arguments).returncode == 2


def test_a_service_without_a_description(desk: Desk) -> None:
    rejected = desk.ctl("start", "other")
    assert rejected.returncode == 1
    assert "other.ctl cannot be read" in rejected.stderr


@pytest.mark.kafka
def test_a_real_service(desk: Desk, on_kafka: Commands) -> None:
    on_kafka.create_topics(partitions=1)
    (desk.directory / "etc" / "held.toml").write_text("")
    desk.set(PROGRAM=Path(sys.executable).with_name("statehold"), DIRECTORY=on_kafka.directory, OPTIONS="")
    places = {name: value for name, value in desk.environment().items() if name.startswith("STATEHOLDCTL_")}
    environment = on_kafka.environment | places

    def ctl(act: str) -> int:
        return subprocess.run(desk.command(act), env=environment, capture_output=True, check=False).returncode

    assert ctl("start") == 0
    log = desk.directory / "held.log"
    wait_until(lambda: '"event": "live"' in log.read_text(), "it is live")
    assert ctl("status") == 0
    assert ctl("stop") == 0
    assert '"event": "drained"' in log.read_text()
    assert ctl("status") == 3
