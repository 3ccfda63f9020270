"""Restarts and scales the processes of a supervisor on this machine, and follows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from statehold.errors import UsageError
from statehold.ops.remote import control_sockets, local_services
from statehold.ops.remote.control_sockets import LocalProcess, RequestRejected
from statehold.ops.remote.local_services import NoProcess

_GLANCE: Final = 0.2


class ProcessRow(msgspec.Struct, frozen=True):
    """A process as its supervisor reports it."""

    process: int
    state: str
    pid: int | None
    why: str | None


class ProcessesChanged(msgspec.Struct, frozen=True):
    """The processes after a rolling restart or a change of their number; `good`: it is complete."""

    service: str
    good: bool
    why: str
    processes: tuple[ProcessRow, ...]


def restart(service: str | None, wait: float) -> ProcessesChanged:
    """Restart one process after the other, and follow it for at most `wait` seconds. Blocks.

    :raises NoProcess: no supervisor answers here. :raises UsageError: several do, or it rejects the restart.
    """
    found = _supervisor(service)
    _command(found, "/restart")
    status: dict[str, Any] = {}
    for status in _statuses(found, wait):
        if status["roll"]["state"] in ("done", "stopped"):
            break
    roll = status["roll"]
    unfinished = {
        "checking": "the new code and settings are being loaded",
        "running": f"process {roll['process']} is not live yet",
    }
    why = unfinished.get(roll["state"], str(roll["why"] or ""))
    return _outcome(status, good=roll["state"] == "done", why=why)


def scale(service: str | None, processes: int, wait: float) -> ProcessesChanged:
    """Change the number of processes, and follow it for at most `wait` seconds. Blocks.

    :raises NoProcess: no supervisor answers here. :raises UsageError: several do, or it rejects the number.
    """
    found = _supervisor(service)
    _command(found, f"/scale?processes={processes}")
    status: dict[str, Any] = {}
    for status in _statuses(found, wait):
        states = [row["state"] for row in status["processes"]]
        if len(states) == processes and set(states) <= {"live", "down"}:
            break
    missing = [f"process {row['process']} is {row['state']}" for row in status["processes"] if row["state"] != "live"]
    return _outcome(status, good=not missing and len(status["processes"]) == processes, why="; ".join(missing))


def _supervisor(service: str | None) -> LocalProcess:
    found = local_services.of_service(service)
    if not found:
        raise NoProcess(local_services.none_found(service))
    able = [each for each in found if each.status is not None and "processes" in each.status]
    if not able:
        raise UsageError(
            f"{service or 'the service of this machine'} runs without a supervisor. Next: start it with "
            "`statehold run MODULE:SERVICE --processes N`"
        )
    if len(able) > 1:
        names = ", ".join(sorted({str(each.status["service"]) for each in able if each.status is not None}))
        raise UsageError(f"several supervisors run here, of {names}. Next: name one service with --name")
    return able[0]


def _command(found: LocalProcess, target: str) -> None:
    try:
        control_sockets.ask(found.path, target, 30.0, method="POST")
    except RequestRejected as error:
        raise UsageError(str(error)) from error
    except (OSError, ValueError) as error:
        raise NoProcess(f"{found.path.stem} ended or hangs: {error}; `statehold status` shows what runs") from error


def _statuses(found: LocalProcess, wait: float) -> Iterator[dict[str, Any]]:
    """Yield the status now and again until the time is over."""
    until = time.monotonic() + wait
    while True:
        try:
            yield control_sockets.ask(found.path, "/status", 30.0)
        except (OSError, ValueError) as error:
            raise NoProcess(f"{found.path.stem} ended or hangs: {error}; `statehold status` shows what runs") from error
        if time.monotonic() >= until:
            return
        time.sleep(_GLANCE)


def _outcome(status: dict[str, Any], *, good: bool, why: str) -> ProcessesChanged:
    rows = tuple(ProcessRow(each["process"], each["state"], each["pid"], each["why"]) for each in status["processes"])
    return ProcessesChanged(str(status["service"]), good, why, rows)
