"""Finds the services on this machine by their control sockets, and retries their partitions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from statehold.errors import StateholdError, UsageError
from statehold.ops.remote import control_sockets
from statehold.ops.remote.control_sockets import LocalProcess, RequestRejected

_GLANCE: Final = 0.1
#: a partition that fails on the same record again is live for a moment first
_SETTLED_SECONDS: Final = 1.0


class NoProcess(StateholdError):
    """No process of that service runs here, or none answers."""


class RetryOutcome(msgspec.Struct, frozen=True):
    """The outcome of a retried partition."""

    partition: int
    pid: int
    phase: str
    position: int | None
    cause: str | None


def of_service(name: str | None) -> list[LocalProcess]:
    """Return the processes of a service, by its group or its name without the namespace; all for None. Blocks."""
    return [each for each in control_sockets.find() if name is None or _is_of(each, name)]


def _is_of(found: LocalProcess, name: str) -> bool:
    if found.status is None:  # only the file's name is known
        return found.path.name.startswith(f"{name}-") or f".{name}-" in found.path.name
    return name in (found.status["service"], found.status["name"])


def none_found(name: str | None) -> str:
    """Return one line that names what is missing and what to check."""
    others = sorted({each.status["service"] for each in control_sockets.find() if each.status is not None})
    what = f"no process of service {name!r}" if name else "no service"
    hint = f"; running: {', '.join(others)}" if others else ""
    return (
        f"{what} runs on this machine, as far as this user sees{hint}. Check: the host, the user (root sees "
        f"all), XDG_RUNTIME_DIR, and that `statehold run` started it"
    )


def that_failed() -> str:
    """Return the one service of this machine that has failed partitions.

    :raises NoProcess: none runs here. :raises UsageError: none or several have.
    """
    statuses = [each.status for each in control_sockets.find() if each.status is not None]
    if not statuses:
        raise NoProcess(none_found(None))
    failed = {each["service"] for each in statuses if any(row["phase"] == "failed" for row in each["partitions"])}
    if len(failed) != 1:
        several = f"several services have failed partitions here, name one with --name: {', '.join(sorted(failed))}"
        raise UsageError(several if failed else "no partition of a service on this machine has failed")
    return str(failed.pop())


def retry(service: str, partition: int | None, wait: float) -> list[RetryOutcome]:
    """Retry a failed partition, or all of them, and follow them for at most `wait` seconds. Blocks.

    :raises NoProcess: none of this service answers here.
    :raises UsageError: the partition is not here, or has not failed.
    """
    answering = _answering(service)
    if partition is not None:
        answering = _failed_holders(service, partition, answering)
    tried: list[_Tried] = []
    for each in answering:
        try:
            answer = _ask(each.path, f"/retry?partition={'all' if partition is None else partition}", method="POST")
        except RequestRejected as error:
            raise UsageError(f"{service}: {error}; `statehold status --name {service}` shows what is") from error
        tried += [_Tried(each, retried) for retried in answer["retried"]]
    return _followed(tried, wait)


def _answering(service: str) -> list[LocalProcess]:
    found = of_service(service)
    if not found:
        raise NoProcess(none_found(service))
    answering = [each for each in found if each.status is not None]
    if not answering:
        raise NoProcess("; ".join(f"{each.path.stem} {each.trouble}" for each in found))
    groups = sorted({str(each.status["service"]) for each in answering if each.status is not None})
    if len(groups) > 1:
        raise UsageError(f"{service!r} runs in several namespaces here, name one: {', '.join(groups)}")
    return answering


def _rows(found: LocalProcess) -> Sequence[dict[str, Any]]:
    return found.status["partitions"] if found.status is not None else ()


def _row(found: LocalProcess, partition: int) -> dict[str, Any] | None:
    return next((row for row in _rows(found) if row["partition"] == partition), None)


def _failed_holders(service: str, partition: int, answering: Sequence[LocalProcess]) -> list[LocalProcess]:
    rows = [(each, row) for each in answering if (row := _row(each, partition)) is not None]
    if not rows:
        raise UsageError(_elsewhere(service, partition, answering))
    failed = [each for each, row in rows if row["phase"] == "failed"]
    if not failed:
        raise UsageError(f"partition {partition} of {service} is {rows[0][1]['phase']}, not failed; nothing to retry")
    return failed


def _elsewhere(service: str, partition: int, answering: Sequence[LocalProcess]) -> str:
    held = sorted(row["partition"] for each in answering for row in _rows(each))
    has = f"partitions {', '.join(map(str, held))}" if held else "no partition"
    return (
        f"partition {partition} of {service} is not on this machine, which has {has}; ask where the log "
        f"says that it was assigned"
    )


@dataclass(slots=True)
class _Tried:
    """A retried partition, and its latest status."""

    process: LocalProcess
    partition: int
    row: dict[str, Any] = field(default_factory=dict)
    live_since: float | None = None
    settled: bool = False

    def look(self, process: LocalProcess, now: float) -> None:
        self.row = _row(process, self.partition) or {"phase": "gone"}
        phase = self.row["phase"]
        self.live_since = (self.live_since or now) if phase == "live" else None
        stays = self.live_since is not None and now - self.live_since >= _SETTLED_SECONDS
        self.settled = stays or phase in ("failed", "gone")

    def outcome(self) -> RetryOutcome:
        pid = self.process.status["pid"] if self.process.status else 0
        return RetryOutcome(self.partition, pid, self.row["phase"], self.row.get("position"), self.row.get("cause"))


def _followed(tried: list[_Tried], wait: float) -> list[RetryOutcome]:
    """Follow each until it has failed again, has stayed live for a moment, or the time is over."""
    deadline = time.monotonic() + wait
    while True:
        now = time.monotonic()
        for path in {each.process.path for each in tried if not each.settled}:
            seen = LocalProcess(path, _ask(path, "/status"))
            for each in tried:
                if each.process.path == path and not each.settled:
                    each.look(seen, now)
        if now >= deadline or all(each.settled for each in tried):
            return [each.outcome() for each in tried]
        time.sleep(_GLANCE)


def cause_of(row: dict[str, Any]) -> str | None:
    """Return why a partition has failed, with the error's name, which is a section of the runbook."""
    cause, error = row.get("cause"), row.get("error")
    return f"{error}: {cause}" if cause and error else cause


def _ask(path: Path, target: str, *, method: str = "GET") -> dict[str, Any]:
    try:
        return control_sockets.ask(path, target, method=method)
    except RequestRejected:
        raise
    except (OSError, ValueError) as error:
        raise NoProcess(f"{path.stem} ended or hangs: {error}; `statehold status` shows what runs") from error
