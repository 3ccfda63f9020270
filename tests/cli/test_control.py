"""The control socket of a service: who may ask, what it answers, what is left behind; no broker needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statehold import Handler, Record, Service
from statehold.ops.process.control import Control
from statehold.ops.remote import control_sockets, local_services
from statehold.ops.remote.local_services import NoProcess


class Nothing(Handler[str]):
    def on_record(self, record: Record[str]) -> None:
        """Nobody calls it: the service is not started."""


def a_service(name: str = "") -> Service:
    return Service(name or f"idle-{uuid.uuid4().hex[:8]}", input="orders", handler=Nothing)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sockets of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return tmp_path / "statehold"


@pytest.fixture
def control() -> Iterator[Control]:
    with Control(a_service()) as opened:
        yield opened


def raw(path: Path, line: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(line)
        return json.loads(client.makefile().readline())


def test_it_answers_with_the_status(control: Control) -> None:
    told = control_sockets.ask(control.path, {"command": "status"})

    assert told["ok"]
    assert (told["name"], told["pid"], told["input"]) == (told["service"], os.getpid(), "orders")
    assert (told["running"], told["partitions"]) == (False, [])


def test_only_this_user_may_ask(control: Control, runtime: Path) -> None:
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert control.path.parent == runtime
    assert (
        control.path.name == f"{control_sockets.ask(control.path, {'command': 'status'})['service']}-{os.getpid()}.sock"
    )


def test_it_is_removed_at_the_end(runtime: Path) -> None:
    control = Control(a_service())
    control.open()
    control.close()
    control.close()

    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", b'{"command": "stop"}\n', b'{"command": "retry"}\n', b"[]\n"])
def test_a_wrong_request_is_answered_with_the_right_ones(control: Control, line: bytes) -> None:
    answer = raw(control.path, line)

    assert answer["ok"] is False
    assert answer["error"]
    assert control_sockets.ask(control.path, {"command": "status"})["ok"]


def test_an_unknown_partition_is_refused(control: Control) -> None:
    answer = control_sockets.ask(control.path, {"command": "retry", "partition": 3})

    assert answer == {"ok": False, "error": "partition 3 is not here"}


def test_who_connects_and_says_nothing_holds_up_nobody_for_long(control: Control) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(control.path))

        assert control_sockets.ask(control.path, {"command": "status"}, timeout=5)["ok"]


def test_a_line_without_end_is_cut_off(control: Control) -> None:
    with socket.socket(socket.AF_UNIX) as talker:
        talker.settimeout(5)
        talker.connect(str(control.path))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            talker.sendall(b"x" * 10_000_000)

    assert control_sockets.ask(control.path, {"command": "status"})["ok"]


def test_two_services_of_one_name_in_one_process_have_a_socket_each() -> None:
    name = f"twice-{uuid.uuid4().hex[:8]}"

    with Control(a_service(name)) as first, Control(a_service(name)) as second:
        assert first.path != second.path
        assert len(local_services.of_service(name)) == 2


def test_a_long_name_fits_into_a_sockets_path(tmp_path: Path) -> None:
    name = "n" * 200

    with Control(a_service(name)) as control:
        assert len(os.fsencode(control.path)) <= 104
        assert [each.path for each in local_services.of_service(name)] == [control.path]


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, runtime: Path) -> None:
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
from tests.cli.test_control import Control, a_service
control = Control(a_service(sys.argv[1]))
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
def test_what_a_killed_process_left_is_ignored_and_removed(child: tuple[str, subprocess.Popen[str], Path]) -> None:
    name, process, path = child
    assert [each.path for each in local_services.of_service(name)] == [path]

    process.kill()
    process.wait()

    assert path.exists()
    assert local_services.of_service(name) == []
    assert not path.exists()


@pytest.mark.slow
def test_a_frozen_process_is_told_apart_from_none(child: tuple[str, subprocess.Popen[str], Path]) -> None:
    _, process, path = child
    process.send_signal(signal.SIGSTOP)

    (found,) = (each for each in control_sockets.find(timeout=0.2) if each.path == path)

    assert found.status is None
    assert "does not answer within 0.2 s" in found.trouble
    assert path.exists()


def test_retry_without_a_process_says_what_to_check() -> None:
    with pytest.raises(NoProcess, match="no process of service 'nobody' runs on this machine"):
        local_services.retry("nobody", None, wait=0)


def test_retry_of_a_partition_that_is_elsewhere_says_so(control: Control) -> None:
    name = control_sockets.ask(control.path, {"command": "status"})["name"]

    with pytest.raises(Exception, match=f"partition 3 of {name} is not on this machine, which has no partition"):
        local_services.retry(name, 3, wait=0)


def test_a_name_in_two_namespaces_must_be_told_which() -> None:
    name = f"ns-{uuid.uuid4().hex[:8]}"
    services = [Service(name, input="orders", handler=Nothing, namespace=space) for space in ("a.", "b.")]

    with Control(services[0]), Control(services[1]):
        assert len(local_services.of_service(name)) == 2
        assert len(local_services.of_service(f"a.{name}")) == 1
        with pytest.raises(Exception, match=rf"runs in several namespaces here, name one: a\.{name}, b\.{name}"):
            local_services.retry(name, None, wait=0)
        assert local_services.retry(f"b.{name}", None, wait=0) == []
