"""Replaces the states of a stopped service by the rebuilt ones, all partitions in one transaction (rule S6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from statehold.admin.dead_letters import DeadLetters
from statehold.admin.state.stopped_service import StoppedService
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.tools.group_lock import GroupLock, holders
from statehold.rebuild.adoption import START_AGAIN
from statehold.rebuild.kept_transactions import TOOL
from statehold.rebuild.rebuild import Rebuild, Show
from statehold.rebuild.report import RebuildReport
from statehold.snapshot import state_replacement
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_replacement import ReplacementReason

#: called with the last commit records, after the fence; raises if a sinks' database is elsewhere
CompareSinks = Callable[[Sequence[CommitRecord]], None]


def rebuild(
    work: Rebuild,
    settings: Settings,
    names: Names,
    factory: HandlerFactory,
    reason: ReplacementReason,
    show: Show,
    *,
    dry_run: bool = False,
    compare_sinks: CompareSinks | None = None,
) -> RebuildReport:
    """Rebuild the states, and replace those of the service as soon as it has stopped. One transaction, or nothing.

    In a dry run compare only; the service may run.

    :raises RetentionGap: input that the rebuild needs is gone. :raises UsageError: the point is not stored, or the
        handler cannot be rebuilt. :raises ToolRefused: the new code fails at a record; a failure is unresolved; a tool
        moved keys; an input is compacted; a process of the service has started. The state was not replaced.
    """
    with closing(StoppedService(settings, names, factory, TOOL)) as stopped:
        _require_all_records(stopped)
        if dry_run:
            return work.shown(show)
        work.catch_up()
        work.await_stop(lambda: len(holders(stopped.admin, names.group)))
        with GroupLock(settings, names, stopped.admin, work.partitions, TOOL) as hold:
            return _Replacing(stopped, work, show, compare_sinks).run(work.partitions, hold, reason)


def _require_all_records(stopped: StoppedService) -> None:
    """:raises ToolRefused: an input has only the newest record of each key."""
    for topic in stopped.names.inputs:
        if "compact" in TopicAdmin(stopped.admin).settings(topic).get("cleanup.policy", ""):
            raise ToolRefused(
                f"{topic}: rebuild the state: the topic is compacted, so earlier records of a key are gone. Nothing "
                f"was changed. Next: `statehold state migrate` changes values without their records"
            )


class _Replacing:
    def __init__(
        self,
        stopped: StoppedService,
        work: Rebuild,
        show: Show,
        compare_sinks: CompareSinks | None,
    ) -> None:
        self._stopped, self._work, self._show = stopped, work, show
        self._compare_sinks = compare_sinks

    def run(self, count: int, hold: GroupLock, reason: ReplacementReason) -> RebuildReport:
        stopped = self._stopped
        stopped.fence(range(count))
        last = [self._last(each) for each in range(count)]
        self._require_resolved()
        if self._compare_sinks is not None:
            self._compare_sinks(last)
        lineage = state_replacement.new_lineage()
        report = RebuildReport(self._work.since, [], lineage)
        adoptions = []
        for adoption, found in self._work.replacements(stopped, last, lineage, self._show):
            adoptions.append(adoption)
            report.partitions.append(found)
        records = stopped.replace_state(adoptions, hold.membership(), reason)
        for each in report.partitions:
            each.transaction = records[each.partition].n
        return report

    def _last(self, partition: int) -> CommitRecord:
        """Return the last commit record after the fence, so that none follows it."""
        found = self._stopped.commit_record(partition)
        if found is None:
            raise ToolRefused(f"{self._stopped.names.changelog}[{partition}]: there is no commit record. {START_AGAIN}")
        return found

    def _require_resolved(self) -> None:
        """:raises ToolRefused: a dead letter is unresolved: the rebuilt state has its record, and a redrive, too."""
        names = self._stopped.names
        if self._stopped.admin.describe([names.dead])[names.dead] is None:
            return
        if waiting := DeadLetters(self._stopped.settings, names).waiting():
            counts = ", ".join(f"partition {partition}: {len(each)}" for partition, each in waiting.items())
            raise ToolRefused(
                f"{names.dead}: rebuild the state: dead letters are unresolved ({counts}). The new code handles these "
                f"records in their place, so that a later redrive would handle them twice. Nothing was changed. Next: "
                f"start the service, resolve them with `statehold dlq discard` (or `dlq replay`), then run the command "
                f"again"
            )
