"""The services that run on this machine: found by their control sockets, asked and told through them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import HoldfastError, UsageError
from holdfast.ops import sockets
from holdfast.ops.sockets import Found

_GLANCE: Final = 0.1
#: a partition that fails on the same record again is live for a moment; only then it is believed
_SETTLED_SECONDS: Final = 1.0


class NoProcess(HoldfastError):
    """No process of that service runs here, or none answers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a partition that was told to try again."""

    partition: int
    pid: int
    phase: str
    position: int | None
    cause: str | None


def of_service(name: str | None) -> list[Found]:
    """The processes of a service, by its group or its name without the namespace; of all for None. Blocks."""
    return [each for each in sockets.find() if name is None or _is_of(each, name)]


def _is_of(found: Found, name: str) -> bool:
    if found.status is None:  # its file's name is all there is
        return found.path.name.startswith(f"{name}-") or f".{name}-" in found.path.name
    return name in (found.status["service"], found.status["name"])


def none_found(name: str | None) -> str:
    """One line: what was not found, and what to look at."""
    others = sorted({each.status["service"] for each in sockets.find() if each.status is not None})
    what = f"no process of service {name!r}" if name else "no service"
    hint = f"; running: {', '.join(others)}" if others else ""
    return (
        f"{what} runs on this machine, as far as this user sees{hint}. Check: the host, the user (root sees "
        f"all), XDG_RUNTIME_DIR, and that `holdfast run` started it"
    )


def retry(service: str, partition: int | None, wait: float) -> list[Outcome]:
    """Tell a failed partition, or all of them, to try again; follow them for `wait` seconds at most. Blocks.

    :raises NoProcess: none of this service answers here.
    :raises UsageError: the partition is not here, or has not failed.
    """
    answering = _answering(service)
    holders = [each for each in answering if partition is None or _row(each, partition) is not None]
    if not holders:
        raise UsageError(_elsewhere(service, partition, answering))
    if partition is not None:
        row = _row(holders[0], partition)
        if row is not None and row["phase"] != "failed":
            raise UsageError(f"partition {partition} of {service} is {row['phase']}, not failed; nothing to retry")
    outcomes = []
    for each in holders:
        answer = _ask(each, {"command": "retry", "partition": partition})
        if not answer["ok"]:
            raise UsageError(f"{service}: {answer['error']}; `holdfast status --service {service}` shows what is")
        outcomes += [_followed(each, retried, wait) for retried in answer["retried"]]
    return outcomes


def _answering(service: str) -> list[Found]:
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


def _rows(found: Found) -> Sequence[dict[str, Any]]:
    return found.status["partitions"] if found.status is not None else ()


def _row(found: Found, partition: int) -> dict[str, Any] | None:
    return next((row for row in _rows(found) if row["partition"] == partition), None)


def _elsewhere(service: str, partition: int | None, answering: Sequence[Found]) -> str:
    held = sorted(row["partition"] for each in answering for row in _rows(each))
    has = f"partitions {', '.join(map(str, held))}" if held else "no partition"
    return (
        f"partition {partition} of {service} is not on this machine, which has {has}; ask where the log "
        f"says that it was assigned"
    )


def _followed(found: Found, partition: int, wait: float) -> Outcome:
    """Where the partition is when it has failed again, has stayed live for a moment, or the time is over."""
    deadline = time.monotonic() + wait
    live_since: float | None = None
    while True:
        now = time.monotonic()
        row = _row(Found(found.path, _ask(found, {"command": "status"})), partition)
        phase = row["phase"] if row else "gone"
        live_since = (live_since or now) if phase == "live" else None
        settled = phase in ("failed", "gone") or (live_since is not None and now - live_since >= _SETTLED_SECONDS)
        if settled or now >= deadline:
            pid = found.status["pid"] if found.status else 0
            row = row or {}
            return Outcome(partition, pid, phase, row.get("position"), row.get("cause"))
        time.sleep(_GLANCE)


def _ask(found: Found, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return sockets.ask(found.path, request)
    except (OSError, ValueError) as error:
        raise NoProcess(f"{found.path.stem} ended or hangs: {error}; `holdfast status` shows what runs") from error
