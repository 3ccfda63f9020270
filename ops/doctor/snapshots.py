"""Checks the state on the topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from statehold.config.common.units import format_duration
from statehold.errors import StateRefused, UsageError
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Finding, FindingsOf
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import forecast
from statehold.snapshot.inspect.past import LATEST, at
from statehold.snapshot.inspect.survey import Survey
from statehold.snapshot.inspect.verify import verify

#: bytes to read for states that are rebuilt without --deep; and the least that a partition counts
_REBUILT: Final = 16 << 20
_LEAST: Final = 1 << 20


class Provable:
    name: ClassVar = "snapshots-provable"
    looks_at: ClassVar = (
        "each partition's last commit record, a restore's full snapshot and the chain after it; the state of small "
        "partitions, which it rebuilds and compares by digest (16 MiB in all, at least 1 MiB each); with --deep every "
        "chunk, checksum and digest of all (`statehold snapshot verify`)"
    )
    fails: ClassVar = "a partition could not be restored"
    warns: ClassVar = "the newest full snapshot is not usable, an older one is"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = FindingsOf(self), case.names
        left = _REBUILT
        again = f"statehold snapshot verify {names.options}"
        for place, each in zip(case.places, case.surveys, strict=True):
            where = f"{names.input}[{each.partition}]"
            command = f"{again} --partitions {each.partition}"
            if each.trouble:
                yield seen.failed(where, each.trouble, command)
                continue
            spoiled = [full for full in each.full_snapshots if full.finding and full.referred]
            for full in spoiled:
                yield seen.warned(where, f"full@{full.offset} is not usable: {full.finding}", command)
            if case.deep:
                for finding in verify(case.reader, place).findings:
                    if finding.fault:
                        yield seen.failed(where, str(finding), command)
            elif (size := _size(case, place, each)) <= left:
                left -= size
                try:
                    at(case.reader, place, LATEST)
                except StateRefused as error:
                    yield seen.failed(where, str(error), command)
                except UsageError:  # without a full snapshot and deltas a restore replays the input
                    continue


def _size(case: Case, place: Place, seen: Survey) -> int:
    """Return the bytes that rebuilding the state reads."""
    work = forecast.workload(case.reader, place, seen)
    return max(_LEAST, work.full_bytes + work.increment_bytes)


class RestoreTime:
    name: ClassVar = "restore-time"
    looks_at: ClassVar = "how long a restore of each partition would take, by size and default speeds"
    fails: ClassVar = "longer than restore.deadline"
    warns: ClassVar = "longer than snapshot.restore_budget"

    def __init__(self, deadline: float | None = None, budget: float | None = None) -> None:
        """Limits in seconds, instead of those of the settings."""
        self._deadline, self._budget = deadline, budget

    def look(self, case: Case) -> Iterator[Finding]:
        seen, settings = FindingsOf(self), case.settings
        deadline = self._deadline or settings.restore.deadline
        budget = self._budget or settings.snapshot.restore_budget
        slowest = 0.0
        for place, each in zip(case.places, case.surveys, strict=True):
            seconds = forecast.seconds(forecast.workload(case.reader, place, each), each.commit_record)
            slowest = max(slowest, seconds)
            where = f"{case.names.input}[{each.partition}]"
            fix = "statehold snapshot take MODULE:SERVICE, or snapshot.full_interval and full_bytes smaller"
            if seconds > deadline:
                limit = format_duration(deadline)
                yield seen.failed(where, f"{seconds:.1f} s predicted, restore.deadline is {limit}", fix)
            elif not isinstance(budget, str) and seconds > budget:
                limit = format_duration(budget)
                yield seen.warned(where, f"{seconds:.1f} s predicted, snapshot.restore_budget is {limit}", fix)
        if case.surveys:
            yield seen.passed(
                case.names.group, f"the slowest partition needs {slowest:.1f} s, and a session time-out before"
            )


CHECKS = (Provable, RestoreTime)
