"""Makes one status, one health and one list of rows of those of several processes. Pure."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statehold.client.rows import first_rows
from statehold.ops.http import health
from statehold.ops.http.health import Verdict
from statehold.ops.supervisor.fleet import State

#: a partition that moves is in two processes for a moment; the later phase is shown
_PHASES: Final = ("closed", "assigned", "failed", "draining", "fencing", "restoring", "replaying", "live")
_NAMED: Final = 3
#: seconds after which a process that does not answer is not ready
_SILENT: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process as the supervisor's server shows it; replaced whole."""

    number: int
    instance: str
    url: str
    state: State
    why: str
    restarts: int
    pid: int | None
    exit_code: int | None
    #: the newest answer of `/status`, and the seconds since
    status: Mapping[str, Any] | None
    silent: float = 0.0

    @property
    def partitions(self) -> Sequence[Mapping[str, Any]]:
        return self.status["partitions"] if self.status is not None else ()

    def shown(self) -> dict[str, Any]:
        """Return its part of `/status`."""
        return {
            "process": self.number,
            "pid": self.pid,
            "instance": self.instance,
            "url": self.url,
            "state": self.state,
            "why": self.why or None,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            "silent": round(self.silent, 1),
            "partitions": sorted(each["partition"] for each in self.partitions),
        }


def merged(views: Sequence[ProcessView]) -> dict[str, Any]:
    """Return the fields of `/status` that come from the processes."""
    answers = [view.status for view in views if view.status is not None]
    outages = [each["outage"] for each in answers if each.get("outage")]
    turns = [each["turned"] for each in answers if each["turned"] is not None]
    found: dict[int, dict[str, Any]] = {}
    for view in views:
        for row in view.partitions:
            known = found.get(row["partition"])
            if known is None or _rank(row) >= _rank(known):
                found[row["partition"]] = {**row, "process": view.number}
    partitions = [found[number] for number in sorted(found)]
    running = bool(views) and all(view.status is not None and view.status["running"] for view in views)
    together = {
        "running": running,
        "turned": max(turns, default=None),
        "ready": running and all(each["ready"] for each in answers),
        "partitions": partitions,
        "standbys": _united(views, "standbys"),
        "references": _united(views, "references"),
        "waiting": None if partitions else next((each["waiting"] for each in answers if each["waiting"]), None),
        "idle": bool(answers) and all(each["idle"] for each in answers),
        "begun": any(each["begun"] for each in answers),
        "stuck": _united(views, "stuck"),
        "outage": max(outages, key=lambda outage: float(outage["seconds"]), default=None),
    }
    if topology := next((each["topology"] for each in answers if each.get("topology")), None):
        together["topology"] = topology
    return together


def live(views: Sequence[ProcessView], turned: float, patience: float) -> Verdict:
    """Return whether the supervisor's own loop turns: it restarts a stuck process by itself."""
    if turned >= patience:
        return Verdict(False, [f"the supervisor's loop has made no turn for {turned:.0f} s"])
    return Verdict(True, [f"the supervisor runs; {counted(views)}"])


def started(views: Sequence[ProcessView]) -> Verdict:
    """Return whether every process that runs has joined the group."""
    return _all(views, "started", ("waiting", "down"))


def ready(views: Sequence[ProcessView]) -> Verdict:
    """Return whether every process has been live, and all partitions are."""
    return _all(views, "ready", ("waiting", "down", "starting", "stopping"))


def counted(views: Sequence[ProcessView]) -> str:
    """Return text such as `4 processes: 3 live, 1 waiting`."""
    states = Counter(view.state for view in views)
    several = f"{len(views)} process{'es' if len(views) != 1 else ''}"
    return f"{several}: {', '.join(f'{number} {state}' for state, number in sorted(states.items()))}"


def sentence(views: Sequence[ProcessView], roll: str) -> str:
    """Return one line for `systemctl status`."""
    phases = Counter(str(row["phase"]) for view in views for row in view.partitions)
    partitions = f"; partitions: {', '.join(f'{n} {phase}' for phase, n in sorted(phases.items()))}" if phases else ""
    why = [f"process {view.number} is {view.state}: {view.why}" for view in views if view.why]
    more = f"; and {len(why) - _NAMED} more" if len(why) > _NAMED else ""
    return "; ".join([counted(views) + partitions, *([roll] if roll else []), *why[:_NAMED]]) + more


def _all(views: Sequence[ProcessView], name: str, missing: Collection[State]) -> Verdict:
    found = []
    for view in views:
        if view.status is None or view.state in missing:
            found.append(f"process {view.number} is {view.state}{f': {view.why}' if view.why else ''}")
        elif view.silent >= _SILENT:
            found.append(f"process {view.number} has not answered for {view.silent:.0f} s")
        elif not (verdict := getattr(health, name)(view.status)).ok:
            found += [f"process {view.number}: {why}" for why in verdict.why]
    return Verdict(bool(views) and not found, found or [counted(views)])


def _united(views: Sequence[ProcessView], name: str) -> list[dict[str, Any]]:
    return [{**row, "process": view.number} for view in views if view.status for row in view.status.get(name, ())]


def _rank(row: Mapping[str, Any]) -> int:
    return _PHASES.index(row["phase"]) if row["phase"] in _PHASES else 0


# State queries


def merged_tables(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the answers of `/state`."""
    partitions = {number: row for each in answers for number, row in each["partitions"].items()}
    return {"tables": answers[0]["tables"], "partitions": partitions, "elsewhere": _elsewhere(answers)}


def merged_rows(answers: Sequence[Mapping[str, Any]], key_type: str, limit: int) -> dict[str, Any]:
    """Merge the answers of `/state/<table>`, in the order of the table's keys."""
    parts = [(each["rows"], each["truncated"]) for each in answers]
    rows, truncated = first_rows(parts, lambda row: _order(row["key"], key_type), limit)
    return {
        "rows": rows,
        "truncated": truncated,
        "partitions": {number: row for each in answers for number, row in each["partitions"].items()},
        "elsewhere": _elsewhere(answers),
    }


def _elsewhere(answers: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted(set[int].intersection(*(set(each["elsewhere"]) for each in answers)))


def _order(key: Any, key_type: str) -> Any:
    return base64.b64decode(key) if key_type == "bytes" else key
