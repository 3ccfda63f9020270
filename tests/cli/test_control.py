"""The control socket of a service: who may ask, what it answers, what is left behind; no broker needed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statehold import Handler, Record, Service
from statehold.config import Secret, Settings
from statehold.config.sections.ops import OpsSettings
from statehold.ops.process.control import ControlServer
from statehold.ops.remote import control_sockets, local_services
from statehold.ops.remote.control_sockets import RequestRejected
from statehold.ops.remote.local_services import NoProcess

OF_ROOT = Path("/run/statehold")


class Nothing(Handler[str]):
    def on_record(self, record: Record[str]) -> None:
        """No caller reaches it: the service is not started."""


def a_service(name: str = "", **more: Any) -> Service:
    return Service(name or f"idle-{uuid.uuid4().hex[:8]}", input="orders", handler=Nothing, **more)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sockets of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return tmp_path / "statehold"


@pytest.fixture
def control() -> Iterator[ControlServer]:
    with ControlServer(a_service()) as opened:
        yield opened


def test_the_socket_answers_with_the_status(control: ControlServer) -> None:
    reported = control_sockets.ask(control.path, "/status")

    assert (reported["name"], reported["pid"], reported["input"]) == (reported["service"], os.getpid(), "orders")
    assert (reported["running"], reported["partitions"]) == (False, [])


def test_only_this_user_may_ask(control: ControlServer, runtime: Path) -> None:
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert control.path.parent == runtime
    assert control.path.name == f"{control_sockets.ask(control.path, '/status')['service']}-{os.getpid()}.sock"


def test_a_stop_removes_the_socket(runtime: Path) -> None:
    control = ControlServer(a_service())
    control.open()
    control.close()
    control.close()

    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "target", "error"),
    [
        ("POST", "/retry", "partition=: write a number, or all"),
        ("POST", "/retry?partition=-1", "partition=-1: write a number, or all"),
        ("POST", "/retry?partition=1e3", "partition=1e3: write a number, or all"),
        ("POST", f"/retry?partition={'9' * 4000}", f"partition={'9' * 4000}: write a number, or all"),
        ("POST", "/retry?partition=3", "partition 3 is not here"),
        ("GET", "/retry?partition=all", "GET /retry: only POST"),
        ("GET", "/drain", "GET /drain: only POST"),
        ("POST", "/stacks", "POST /stacks: only GET"),
        ("POST", "/status", "POST: only GET and HEAD"),
        ("DELETE", "/status", "only GET, HEAD, POST"),
        ("POST", "/stop", "POST: only GET and HEAD"),
        ("GET", "/state", "state queries are off. Next: set ops.state = 'on' and ops.token"),
    ],
)
def test_a_wrong_request_is_rejected_with_the_reason(
    control: ControlServer, method: str, target: str, error: str
) -> None:
    with pytest.raises(RequestRejected, match=f"^{re.escape(error)}$"):
        control_sockets.ask(control.path, target, method=method)
    assert control_sockets.ask(control.path, "/status")["running"] is False


def test_an_unknown_route_is_answered_with_the_known_ones(control: ControlServer) -> None:
    with pytest.raises(RequestRejected, match="there is no /stop; there are /, /live, "):
        control_sockets.ask(control.path, "/stop")


def test_the_socket_rejects_another_protocol(control: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(control.path))
        client.sendall(b'{"command": "status"}\n')
        assert b"error" in client.makefile("rb").read()


def test_only_state_requests_need_a_token() -> None:
    ops = OpsSettings(token=Secret("a-token-of-16-characters"), state="on")
    with ControlServer(a_service(settings=Settings(ops=ops))) as control:
        assert control_sockets.ask(control.path, "/status")["running"] is False
        with pytest.raises(RequestRejected, match="send the token"):
            control_sockets.ask(control.path, "/state")


def test_the_stacks_of_every_thread(control: ControlServer) -> None:
    reported = control_sockets.ask(control.path, "/stacks")

    assert reported["pid"] == os.getpid()
    assert "test_the_stacks_of_every_thread" in str(reported["stacks"])


def test_drain_is_answered_before_it_is_done(control: ControlServer) -> None:
    assert control_sockets.ask(control.path, "/drain", method="POST")["pid"] == os.getpid()


def test_a_silent_client_delays_no_other_one(control: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(control.path))

        assert control_sockets.ask(control.path, "/status", timeout=5)["running"] is False


def test_a_line_without_end_is_cut_off(control: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as talker:
        talker.settimeout(5)
        talker.connect(str(control.path))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            talker.sendall(b"x" * 10_000_000)

    assert control_sockets.ask(control.path, "/status")["running"] is False


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """A socket of another program, where a client looks."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "trap.sock"))
        listener.listen()
        yield tmp_path / "trap.sock", listener


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'{"ok": true}\n', "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "7 bytes too early"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "is not an answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000, "nested too deeply|Expecting value"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 16_000_001, "more than 16000000 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)), "HTTPException"),
    ],
)
def test_a_malformed_answer_is_no_status(trap: tuple[Path, socket.socket], answer: bytes, error: str) -> None:
    path, listener = trap

    def reply() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            connection.sendall(answer)

    thread = threading.Thread(target=reply)
    thread.start()
    with pytest.raises(ValueError, match=error):
        control_sockets.ask(path, "/status")
    thread.join(10)


def test_an_answer_in_drops_ends_at_the_deadline(trap: tuple[Path, socket.socket]) -> None:
    path, listener = trap

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"H")
                time.sleep(0.05)

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        control_sockets.ask(path, "/status", timeout=0.5)
    assert time.monotonic() - began < 5
    thread.join(10)


def test_two_services_of_one_name_in_one_process_have_a_socket_each() -> None:
    name = f"twice-{uuid.uuid4().hex[:8]}"

    with ControlServer(a_service(name)) as first, ControlServer(a_service(name)) as second:
        assert first.path != second.path
        assert len(local_services.of_service(name)) == 2


def test_a_long_name_fits_into_a_sockets_path(tmp_path: Path) -> None:
    name = "n" * 200

    with ControlServer(a_service(name)) as control:
        assert len(os.fsencode(control.path)) <= 104
        assert [each.path for each in local_services.of_service(name)] == [control.path]


def test_a_directory_without_room_for_a_name_is_rejected(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * max(1, 95 - len(str(tmp_path))))
    directory.mkdir()

    with pytest.raises(OSError, match="its path is too long for a socket"):
        ControlServer(a_service("clearing"), directory).open()


@pytest.mark.parametrize("given", ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "TMPDIR"])
def test_a_directory_whose_path_leaves_no_room_is_passed_over(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands look where the service listens, so both must pass it over."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv(given, str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)
    places = control_sockets._candidates
    monkeypatch.setattr(control_sockets, "_candidates", lambda: [each for each in places() if each != OF_ROOT])

    service = a_service()
    with ControlServer(service) as control:
        assert deep not in control.path.parents
        assert control.path.parent.name == f"statehold-{os.geteuid()}"
        assert [each.path for each in local_services.of_service(service.name)] == [control.path]


def test_without_a_usable_directory_each_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    monkeypatch.setattr(control_sockets, "_candidates", lambda: [deep, tmp_path / "absent" / "directory"])

    with pytest.raises(PermissionError, match=f"{deep}: its path is too long .*; .*absent/directory: No such"):
        control_sockets.own_directory()


def test_a_directory_of_another_user_is_not_used(tmp_path: Path, runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o777)

    assert control_sockets.own_directory() != runtime


def test_systemds_runtime_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "unit"
    given.mkdir(mode=0o755)
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{given}:/elsewhere")

    assert control_sockets.own_directory() == given


CHILD = """
import sys
from tests.cli.test_control import ControlServer, a_service
control = ControlServer(a_service(sys.argv[1]))
print(control.open(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(root: Path) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """A process with a control socket."""
    name = f"child-{uuid.uuid4().hex[:8]}"
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, name], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        yield name, process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.slow
def test_the_socket_of_a_killed_process_is_ignored_and_removed(child: tuple[str, subprocess.Popen[str], Path]) -> None:
    name, process, path = child
    assert [each.path for each in local_services.of_service(name)] == [path]

    process.kill()
    process.wait()

    assert path.exists()
    assert local_services.of_service(name) == []
    assert not path.exists()


@pytest.mark.slow
def test_a_frozen_process_is_found_and_named(child: tuple[str, subprocess.Popen[str], Path]) -> None:
    _, process, path = child
    process.send_signal(signal.SIGSTOP)

    (found,) = (each for each in control_sockets.find(timeout=0.2) if each.path == path)

    assert found.status is None
    assert "does not answer within 0.2 s" in found.trouble
    assert path.exists()


def test_retry_without_a_process_says_what_to_check() -> None:
    with pytest.raises(NoProcess, match="no process of service 'absent' runs on this machine"):
        local_services.retry("absent", None, wait=0)


def test_retry_of_a_partition_that_is_elsewhere_says_so(control: ControlServer) -> None:
    name = control_sockets.ask(control.path, "/status")["name"]

    with pytest.raises(Exception, match=f"partition 3 of {name} is not on this machine, which has no partition"):
        local_services.retry(name, 3, wait=0)


def test_a_name_in_two_namespaces_needs_the_namespace() -> None:
    name = f"ns-{uuid.uuid4().hex[:8]}"
    services = [Service(name, input="orders", handler=Nothing, namespace=space) for space in ("a.", "b.")]

    with ControlServer(services[0]), ControlServer(services[1]):
        assert len(local_services.of_service(name)) == 2
        assert len(local_services.of_service(f"a.{name}")) == 1
        with pytest.raises(Exception, match=rf"runs in several namespaces here, name one: a\.{name}, b\.{name}"):
            local_services.retry(name, None, wait=0)
        assert local_services.retry(f"b.{name}", None, wait=0) == []
