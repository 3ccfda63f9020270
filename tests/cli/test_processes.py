"""A supervisor of several processes, which need no Kafka here: starts, ends, rolling restarts, scaling, one address."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as exposition
from tests.cli.commands import WAIT_SECONDS, Commands
from tests.support.processes import ROOT

from statehold.errors import UsageError
from statehold.ops.remote import control_sockets
from statehold.ops.remote import processes as supervised
from statehold.ops.remote.control_sockets import RequestRejected

#: each starts several processes
pytestmark = pytest.mark.slow

SUPERVISED = ROOT / "tests" / "support" / "apps" / "supervised.py"


class Desk:
    """A supervisor as a process of its own, with the files that its processes read."""

    def __init__(self, directory: Path, sockets: Path, environment: dict[str, str]) -> None:
        self.directory, self.sockets, self.environment = directory, sockets, environment
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.write("release", "good")

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def start(self, processes: str = "2", *, live: bool = True) -> Desk:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SUPERVISED), str(self.directory), processes],
                env=self.environment,
                stderr=log,
                start_new_session=True,
            )
        if live:
            self.await_states(*["live"] * int(processes))
        return self

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def ask(self, target: str, method: str = "GET") -> dict[str, Any]:
        path = next(self.sockets.glob("*.sock"))
        return control_sockets.ask(path, target, method=method)

    def rows(self) -> list[dict[str, Any]]:
        try:
            return list(self.ask("/status")["processes"])
        except (OSError, StopIteration):
            return []

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows()]

    def pids(self) -> list[int]:
        return [row["pid"] for row in self.rows()]

    def await_states(self, *states: str) -> None:
        self.await_that(lambda: self.states() == list(states), f"{states}")

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():  # each look at the status asks every process
            assert time.monotonic() < deadline, f"{what}: {self.rows()}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.3)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def releases(self) -> list[tuple[int, str]]:
        """Every start, in order: number and release."""
        starts = map(json.loads, (self.directory / "starts").read_text().splitlines())
        return [(start["number"], start["release"]) for start in starts]

    def url(self) -> str:
        return str(self.ask("/status")["url"])

    def get(self, target: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.url()}{target}", headers=headers)  # noqa: S310  the supervisor's
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> int:
        self.supervisor.terminate()
        return self.supervisor.wait(60)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            finally:
                self.process.kill()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    runtime = Path(tempfile.mkdtemp(prefix="sup-"))  # pytest's own path leaves no room for the name of a socket
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("STATEHOLD_")}
    own = {
        "XDG_RUNTIME_DIR": str(runtime),
        "COLUMNS": "200",
        "STATEHOLD_OPS__LISTEN": "127.0.0.1:0",
        "STATEHOLD_SERVICE__STOP_TIMEOUT": "2",
        "STATEHOLD_SERVICE__INSTANCE": "web1",
        "PYTHONPATH": str(ROOT),
    }
    made = Desk(tmp_path, runtime / "statehold", inherited | own)
    yield made
    made.close()
    shutil.rmtree(runtime)


def runs(pid: int) -> bool:
    """Whether it runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_one_address_shows_all_processes(desk: Desk) -> None:
    desk.start("3")
    status = desk.ask("/status")

    assert (status["service"], status["input"], status["instance"]) == ("echo", "in", "web1")
    assert [(row["partition"], row["process"]) for row in status["partitions"]] == [(1, 1), (2, 2), (3, 3)]
    assert [row["instance"] for row in status["processes"]] == ["web1-1", "web1-2", "web1-3"]
    assert status["pid"] == desk.supervisor.pid
    assert (status["ready"], status["wanted"], status["roll"]["state"]) == (True, 3, "none")
    for path in ("/live", "/ready", "/startup"):
        assert desk.get(path)[0] == 200
    assert json.loads(desk.get("/console/data")[1])["process"] == 1
    assert json.loads(desk.get("/process/2/console/data")[1])["process"] == 2
    assert json.loads(desk.get("/process/3/status")[1])["partitions"][0]["partition"] == 3
    assert desk.get("/process/4/status") == (404, '{"error":"there is no process 4; there are 1, 2, 3"}\n')
    assert any(name.startswith("process 2: ") for name in desk.ask("/stacks")["stacks"])


def test_metrics_are_valid_and_each_series_names_its_process(desk: Desk) -> None:
    desk.start("2")
    code, text = desk.get("/metrics")
    families = {family.name: family for family in exposition(text)}
    _, modern = desk.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert code == 200
    processed = families["statehold_records_processed"]
    assert processed.type == "counter"
    assert [(s.labels["process"], s.labels["partition"], s.value) for s in processed.samples] == [
        ("1", "1", 7.0),
        ("2", "2", 7.0),
    ]
    assert text.count("# TYPE statehold_records_processed_total counter") == 1
    buckets = [s for s in families["statehold_commit_seconds"].samples if s.name.endswith("_bucket")]
    assert [(s.labels["process"], s.labels["le"], s.value) for s in buckets] == [
        *(("1", "0.1", 3.0), ("1", "+Inf", 4.0)),
        *(("2", "0.1", 3.0), ("2", "+Inf", 4.0)),
    ]
    assert {s.labels["process"] for s in families["process_resident_memory_bytes"].samples} == {"supervisor"}
    assert {family.name for family in list(openmetrics(modern))} == set(families)  # type: ignore[no-untyped-call]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_accepts_the_metrics(desk: Desk) -> None:
    desk.start("2")
    _, text = desk.get("/metrics")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_process_that_does_not_run_is_not_ready(desk: Desk) -> None:
    desk.write("broken-2", "5")
    desk.start("2", live=False)
    desk.await_states("live", "down")

    code, text = desk.get("/ready")
    assert (code, "process 2 is down: exit code 5" in text) == (503, True)
    assert desk.get("/live")[0] == 200
    ready = next(family for family in exposition(desk.get("/metrics")[1]) if family.name == "statehold_ready")
    assert {s.labels["process"]: s.value for s in ready.samples} == {"1": 1.0, "2": 0.0}


def test_status_shows_each_process_and_fails_if_one_is_not_live(desk: Desk) -> None:
    desk.write("broken-2", "5")
    desk.start("2", live=False)
    desk.await_states("live", "down")
    command = [sys.executable, "-m", "statehold.ops.cli.entry", "status", "--name", "echo"]
    done = subprocess.run(command, env=desk.environment, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1, done.stderr
    assert f"process 1, pid {desk.pids()[0]}: live; partitions: 1" in done.stdout
    assert "process 2, pid none: down: exit code 5: " in done.stdout


def test_state_queries_find_the_process_that_has_the_key(desk: Desk) -> None:
    desk.start("3")
    assert json.loads(desk.get("/state/totals/key")[1])["partition"] == 2


def test_other_machines_need_the_token_for_more_than_health(desk: Desk) -> None:
    desk.environment |= {"STATEHOLD_OPS__LISTEN": "0.0.0.0:0", "STATEHOLD_OPS__TOKEN": "a-token-of-16-characters"}
    desk.environment["STATEHOLD_OPS__ADVERTISED"] = "http://127.0.0.1:1"
    desk.start("2")
    port = desk.events("ops_open")[0]["url"].rpartition(":")[2]

    def get(path: str, **headers: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        try:
            return int(urllib.request.urlopen(request, timeout=30).status)  # noqa: S310
        except urllib.error.HTTPError as error:
            return error.code

    assert [get(path) for path in ("/live", "/metrics", "/process/1/ready", "/")] == [200] * 4
    assert [get(path) for path in ("/status", "/process/1/status", "/process/1/console/data")] == [401] * 3
    for path in ("/stacks", "/process/1/stacks", "/process/1/drain"):
        assert get(path, Authorization="Bearer a-token-of-16-characters") == 404
    assert get("/process/1/status", Authorization="Bearer a-token-of-16-characters") == 200
    assert [row["url"] for row in desk.rows()] == ["http://127.0.0.1:1/process/1", "http://127.0.0.1:1/process/2"]


def test_a_killed_process_starts_again_and_the_others_run_on(desk: Desk) -> None:
    desk.start("2")
    first, second = desk.pids()
    os.kill(first, signal.SIGKILL)
    desk.await_that(lambda: [row["restarts"] for row in desk.rows()] == [1, 0], "a restart")
    desk.await_states("live", "live")

    assert desk.pids()[1] == second
    assert desk.events("process_ended")[0]["exit_code"] == 137


def test_a_stuck_process_is_ended_with_its_stacks_and_starts_again(desk: Desk) -> None:
    desk.environment |= {"WATCHDOG_USEC": "2000000"}
    desk.start("2")
    os.kill(desk.pids()[0], signal.SIGSTOP)
    desk.await_that(lambda: bool(desk.events("process_killed")), "killed")
    os.kill(desk.pids()[0], signal.SIGCONT)
    desk.await_that(lambda: [row["restarts"] for row in desk.rows()] == [1, 0], "a restart")
    desk.await_states("live", "live")

    assert desk.events("process_ended")[0]["exit_code"] == 134


def test_no_process_outlives_a_killed_supervisor(desk: Desk) -> None:
    desk.start("2")
    pids = desk.pids()
    desk.supervisor.kill()
    desk.supervisor.wait(30)
    desk.await_that(lambda: not any(map(runs, pids)), "both ended")


@pytest.mark.long
def test_a_process_that_ignores_its_stop_does_not_outlive_a_killed_supervisor(desk: Desk) -> None:
    desk.write("slow", "")
    desk.start("1")
    (pid,) = desk.pids()
    desk.supervisor.kill()
    desk.supervisor.wait(30)
    desk.await_that(lambda: not runs(pid), "ended")


@pytest.mark.parametrize("code", [0, 6])
def test_a_stop_ends_all_and_keeps_the_exit_code(desk: Desk, code: int) -> None:
    desk.start("2")
    desk.write("exit", str(code))
    pids = desk.pids()

    assert desk.stop() == code
    assert not any(map(runs, pids))
    assert list(desk.sockets.iterdir()) == []


@pytest.mark.long
def test_a_process_that_does_not_stop_in_time_is_killed(desk: Desk) -> None:
    desk.start("2")
    desk.write("slow", "")
    assert desk.stop() == 137
    assert len(desk.events("process_killed")) == 2


def test_it_ends_with_the_exit_code_of_its_processes_if_no_restart_helps(desk: Desk) -> None:
    desk.write("broken-1", "5")
    desk.write("broken-2", "5")
    desk.start("2", live=False)
    assert desk.supervisor.wait(60) == 5
    assert len(desk.events("process_down")) == 2


# Rolling restart


def test_a_rolling_restart_gives_each_process_the_new_code(desk: Desk) -> None:
    desk.start("3")
    desk.write("release", "better")
    changed = supervised.restart("echo", 90.0)

    assert (changed.good, [row.state for row in changed.processes]) == (True, ["live"] * 3)
    assert desk.releases()[3:] == [(1, "better"), (2, "better"), (3, "better")]


@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="nohup: a supervisor ignores it, too")
def test_sighup_begins_a_rolling_restart(desk: Desk) -> None:
    desk.start("2")
    desk.write("release", "better")
    desk.supervisor.send_signal(signal.SIGHUP)
    desk.await_that(lambda: bool(desk.events("roll_done")), "done")
    assert [row["release"] for row in desk.ask("/status")["partitions"]] == ["better", "better"]


@pytest.mark.parametrize(
    ("release", "starts", "states"),
    [
        pytest.param("unloadable", [], ["live", "live", "live"], marks=pytest.mark.long),
        pytest.param("ends", [], ["down", "live", "live"], marks=pytest.mark.long),
        ("fails", [(1, "fails")], ["down", "live", "live"]),
    ],
)
def test_a_release_that_does_not_go_live_keeps_the_old_processes(
    desk: Desk, release: str, starts: list[tuple[int, str]], states: list[str]
) -> None:
    desk.start("3")
    desk.write("release", release)
    old = desk.pids()
    changed = supervised.restart("echo", 90.0)
    desk.await_states(*states)

    assert (changed.good, bool(changed.why)) == (False, True)
    assert desk.releases()[3:] == starts
    assert desk.pids()[1:] == old[1:]

    desk.write("release", "fixed")
    assert supervised.restart("echo", 90.0).good
    assert [row["release"] for row in desk.ask("/status")["partitions"]] == ["fixed"] * 3


@pytest.mark.long
def test_a_release_that_restores_for_long_gets_no_second_process(desk: Desk) -> None:
    desk.start("2")
    desk.write("release", "restores")
    changed = supervised.restart("echo", 0.0)
    assert (changed.good, changed.why) == (False, "the new code and settings are being loaded")
    desk.await_that(lambda: desk.releases()[2:] == [(1, "restores")], "process 1 has the new code")
    desk.await_states("starting", "live")
    assert desk.ask("/status")["roll"] == {"state": "running", "process": 1, "why": None}
    with pytest.raises(UsageError, match="a rolling restart is in progress"):
        supervised.restart("echo", 3.0)
    with pytest.raises(UsageError, match="a rolling restart is in progress"):
        supervised.scale("echo", 3, 3.0)


# Scale


def test_processes_are_added_and_leave_while_the_others_run(desk: Desk) -> None:
    desk.start("2")
    before = desk.pids()
    assert supervised.scale("echo", 4, 90.0).good
    assert (desk.pids()[:2], len(desk.pids())) == (before, 4)
    desk.await_that((desk.directory / "share-2").exists, "process 2 knows that four share the memory")
    assert (desk.directory / "share-2").read_text() == "4"

    assert supervised.scale("echo", 1, 90.0).good
    assert desk.pids() == before[:1]
    assert sorted(each.name for each in desk.directory.glob("drained-*")) == ["drained-2", "drained-3", "drained-4"]


@pytest.mark.parametrize(("number", "why"), [("0", "from 1 to 256"), ("9999", "from 1 to 256"), ("two", "write a")])
def test_an_impossible_number_is_rejected(desk: Desk, number: str, why: str) -> None:
    desk.start("1")
    with pytest.raises(RequestRejected, match=why):
        desk.ask(f"/scale?processes={number}", "POST")
    assert desk.states() == ["live"]


@pytest.mark.parametrize("processes", ["0", "257", "many", "-1"])
def test_a_start_with_an_impossible_number_is_rejected(desk: Desk, processes: str) -> None:
    desk.start(processes, live=False)
    assert desk.supervisor.wait(60) == 5
    assert "write a number from 1 to 256, or auto" in desk.log.read_text()


@pytest.mark.parametrize("options", [["--pin"], ["--processes", "2", "--reload"]])
def test_options_that_exclude_each_other_are_rejected(statehold: Commands, options: list[str]) -> None:
    done = statehold.run("run", "app:service", *options)
    assert (done.returncode, "--pin needs --processes" in done.stderr) == (2, True)


def test_one_process_runs_none_of_this_code(statehold: Commands) -> None:
    """Also while it fails to reach its brokers, after everything was imported."""
    shown = [statehold.python, "-X", "importtime", "-m", "statehold.ops.cli.entry", "run", "app:service"]
    more = {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "STATEHOLD_SERVICE__STOP_TIMEOUT": "1"}
    with subprocess.Popen(
        shown, cwd=statehold.directory, env=statehold.environment | more, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        imported = []
        for line in process.stderr:
            imported.append(line)
            if '"event": "starting"' in line:
                break
        process.kill()
    assert any("statehold.ops.process.control" in line for line in imported)
    assert not [line for line in imported if "supervisor" in line]


# Commands, and systemd


def test_retry_and_drain_reach_the_processes(desk: Desk) -> None:
    desk.start("3")
    assert desk.ask("/retry?partition=2", "POST")["retried"] == [2]
    assert desk.ask("/retry?partition=all", "POST")["retried"] == [1, 2, 3]
    with pytest.raises(RequestRejected, match="partition 9 is not here"):
        desk.ask("/retry?partition=9", "POST")
    assert desk.ask("/drain", "POST")["stopping"] is True
    assert desk.supervisor.wait(60) == 0
    assert len(list(desk.directory.glob("drained-*"))) == 3


def test_systemd_hears_ready_when_all_are_live(desk: Desk, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "n.sock"))
        ear.settimeout(60)
        desk.environment |= {"NOTIFY_SOCKET": str(tmp_path / "n.sock"), "WATCHDOG_USEC": "30000000"}
        desk.write("release", "restores")
        desk.start("2", live=False)

        def hear(name: str) -> dict[str, str]:
            while True:
                heard = dict(line.split("=", 1) for line in ear.recv(65_536).decode().splitlines())
                assert name == "READY" or "READY" not in heard or name in heard
                if name in heard:
                    return heard

        assert "WATCHDOG" in hear("EXTEND_TIMEOUT_USEC")
        desk.await_states("starting", "starting")
        hear("EXTEND_TIMEOUT_USEC")
        desk.write("release", "good")
        for pid in desk.pids():
            os.kill(pid, signal.SIGKILL)
        ready = hear("READY")
        assert ready["STATUS"].startswith("2 processes: 2 live; partitions: 2 live")
        desk.supervisor.terminate()
        hear("STOPPING")
        assert desk.supervisor.wait(60) == 0
