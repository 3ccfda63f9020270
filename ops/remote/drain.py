"""Drains a process of this machine: it hands its partitions over and ends."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from statehold.ops.remote import control_sockets, local_services
from statehold.ops.remote.control_sockets import LocalProcess
from statehold.ops.remote.local_services import NoProcess

_GLANCE: Final = 0.1


class Drained(msgspec.Struct, frozen=True):
    """A drained process, and the partitions that it held at the start."""

    service: str
    pid: int
    partitions: tuple[int, ...]
    ended: bool


def drain(instance: str, service: str | None, wait: float) -> list[Drained]:
    """Drain every process with that instance name, and follow it for at most `wait` seconds. Blocks.

    :raises NoProcess: none answers here.
    """
    found = [
        each
        for each in local_services.of_service(service)
        if each.status is not None and each.status["instance"] == instance
    ]
    if not found:
        raise NoProcess(_none(instance, service))
    for each in found:
        control_sockets.ask(each.path, "/drain", method="POST")
    until = time.monotonic() + wait
    while any(map(_runs, found)) and time.monotonic() < until:
        time.sleep(_GLANCE)
    return [_drained(each) for each in found]


def _runs(found: LocalProcess) -> bool:
    """Return whether it still runs; a process removes its socket when it ends."""
    return found.path.exists()


def _drained(found: LocalProcess) -> Drained:
    assert found.status is not None
    held = tuple(each["partition"] for each in found.status["partitions"])
    return Drained(found.status["service"], found.status["pid"], held, not _runs(found))


def _none(instance: str, service: str | None) -> str:
    here = [f"{each.status['instance']} of {each.status['service']}" for each in control_sockets.find() if each.status]
    has = f"; running: {', '.join(here)}" if here else ""
    of = f" of service {service!r}" if service else ""
    return (
        f"no instance {instance!r}{of} runs on this machine, as far as this user sees{has}. Run the command on the "
        f"machine where it runs: `kafka-consumer-groups --describe --members --group GROUP` names it"
    )
