"""Decides from `Service.status` whether a service is live, ready and started. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: seconds that the manager's loop may hang: a drain in `on_revoke` holds it for 15 s by default
PATIENCE: Final = 60.0


class Verdict(NamedTuple):
    """`why` has a sentence for each problem, or one that states health."""

    ok: bool
    why: list[str]


def live(status: dict[str, Any]) -> Verdict:
    """Return whether the process is live. A hanging loop and a stuck thread need a restart; an outage of Kafka,
    a failed partition and a long restore do not.
    """
    if not status["running"]:
        return Verdict(False, [f"the service is not running: {status.get('ended') or 'not started, or stopped'}"])
    turned = status["turned"]
    found = [] if turned is None or turned < PATIENCE else [f"the manager's loop has made no turn for {turned:.0f} s"]
    found += [_stuck(each) for each in status.get("stuck", ())]
    found += [f"partition {each['partition']}: {each['cause']}" for each in status["partitions"] if each.get("stuck")]
    return Verdict(not found, found or ["the loops turn"])


def started(status: dict[str, Any]) -> Verdict:
    """Return whether the service has joined its group; it may still be restoring."""
    if not status["running"]:
        return Verdict(False, ["the service is not running"])
    if status["turned"] is None:
        return Verdict(False, ["the manager's loop has not made its first turn"])
    return Verdict(True, ["the manager's loop turns"])


def ready(status: dict[str, Any]) -> Verdict:
    """Return whether all assigned partitions are live; an idle member is ready."""
    if not (begun := started(status)).ok:
        return begun
    found = [_unready(each) for each in status["partitions"] if each["phase"] != "live"]
    if outage := status.get("outage"):
        found.append(f"Kafka has not answered for {outage['seconds']:.0f} s: {outage['cause']}")
    if not (alive := live(status)).ok:
        found += alive.why
    if found:
        return Verdict(False, found)
    number = len(status["partitions"])
    return Verdict(True, [f"{number} partitions are live" if number else "no partition is assigned: an idle member"])


def _stuck(call: dict[str, Any]) -> str:
    whose = f"partition {call['partition']}: " if call["partition"] >= 0 else ""
    return f"{whose}{call['doing']} has not come back for {call['seconds']:.0f} s (its stack is in the log)"


def _unready(partition: dict[str, Any]) -> str:
    restore = partition.get("restore")
    far = f", {restore['step']} {restore['position']} of {restore['end']}" if restore else ""
    cause = f": {partition['cause']}" if partition["cause"] else ""
    return f"partition {partition['partition']} is {partition['phase']}{far}{cause}"
