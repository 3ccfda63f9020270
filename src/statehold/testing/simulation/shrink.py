"""Shrinks a failing schedule to few actions, and shows a run as a timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from statehold.errors import UsageError
from statehold.testing.simulation.observer import TimelineEntry
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.simulation import RunReport, run


def shrink(report: RunReport, fails: Callable[[RunReport], bool] | None = None, *, runs: int = 300) -> RunReport:
    """Return the report of the shortest schedule found that still fails.

    `fails`: whether a report shows the same failure; by default the same class of error. `runs`: most runs.

    :raises UsageError: the report shows no failure.
    """
    fails = fails or _same_error(report)
    best, left = report, runs

    def attempt(actions: Mapping[str, str], order: int) -> RunReport | None:
        nonlocal left
        if left <= 0:
            return None
        left -= 1
        found = run(report.scenario, Schedule.listed(actions, order))
        return found if fails(found) else None

    actions, order = dict(report.actions), report.schedule.order
    for simpler in (0, 1, 2, 3):  # delays that a reader can repeat without a long number
        found = attempt(actions, simpler)
        if found is not None:
            best, order = found, simpler
            break
    size = max(1, len(actions) // 2)
    while actions:
        places, removed = list(actions), False
        for low in range(0, len(places), size):
            cut = set(places[low : low + size])
            fewer = {place: action for place, action in actions.items() if place not in cut}
            found = attempt(fewer, order)
            if found is not None:
                best, actions, removed = found, fewer, True
                break
        if not removed:
            if size == 1:
                break
            size = max(1, size // 2)
        else:
            size = min(size, max(1, len(actions)))
    return best


def _same_error(report: RunReport) -> Callable[[RunReport], bool]:
    if report.violation is None:
        raise UsageError("shrink: the run has passed, so it shows no failure. Next: pass a run that failed, or `fails`")
    kind = type(report.violation)
    return lambda other: type(other.violation) is kind


def timeline(report: RunReport, *, most: int = 120) -> str:
    """Return the run as lines: virtual time in seconds, who, what. The last line repeats the schedule in a test."""
    lines = lines_of(report.observer.timeline)
    if len(lines) > most:
        first, last = most // 3, most - most // 3
        lines[first:-last] = [f"{'':9}  ... {len(lines) - most} lines"]
    if report.violation is not None:
        lines.append(f"{report.seconds:9.3f}  FAILED    {type(report.violation).__name__}: {report.violation}")
    lines.append(f"replay: {replay_line(report)}")
    return "\n".join(lines)


def lines_of(timeline: Sequence[TimelineEntry]) -> list[str]:
    """Return what happened, a line for each."""
    return [f"{moment.time:9.3f}  {moment.who:<8}  {moment.text}" for moment in timeline]


def replay_line(report: RunReport) -> str:
    """Return the call that repeats the schedule."""
    return f"Schedule.listed({report.actions!r}, order={report.schedule.order})"
