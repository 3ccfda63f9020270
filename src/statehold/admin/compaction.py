"""Compacts a service's partitions offline: fold, verify, publish, read back, truncate (rules C1-C4).

Runs `statehold.snapshot.spark`, which needs pyspark; only the command imports this module. Every step leaves the topics
valid, so the next run completes an interrupted one.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from statehold.admin.compaction_publish import CompactionResult, TopicTruncation, publish
from statehold.admin.executor_clients import ReaderFactory, SnapshotSinkFactory
from statehold.admin.topics import reaching, require
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.errors import PartitionError, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.full_producer import ManifestProducer
from statehold.kafka.tools.compaction_lock import CompactionLock
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, Writer
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import TruncationOffsets, kept
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport, decode_report, gathered
from statehold.snapshot.spark.fold.sharing import continued, sharing
from statehold.snapshot.spark.io import write as writing
from statehold.snapshot.spark.io.readback import read_back
from statehold.snapshot.spark.io.source import Fold, JobFailed, Session, base_finding, collect, pieces, verdict
from statehold.snapshot.spark.io.write import Target, WrittenFull
from statehold.snapshot.store.base import root_of, roots_of
from statehold.telemetry.log_events import Log

#: Attempts to fold a partition; a fold is planned again if its base is damaged or was truncated meanwhile.
_ATTEMPTS = 4
#: Partitions that are planned at the same time, because a reader connects in a tenth of a second.
_PLANNERS = 8


class Compaction:
    """One compaction run. With `dry_run` it folds and verifies, but writes nothing."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        *,
        keep: int | None = None,
        dry_run: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings, self._names, self._report = settings, names, report
        self._keep, self._dry_run = keep or settings.snapshot.keep, dry_run
        self._admin, self._reader_of = Admin(settings, names.group), ReaderFactory(settings, names)
        self._truncation = TopicTruncation(settings, names, self._admin)
        self._log = Log(service=names.group)
        self._outcomes: dict[int, CompactionResult] = {}
        self._began = time.monotonic()
        #: Number of Spark tasks that share the reading of one partition.
        self._pieces = 1
        #: Made before the fold, so that it connects meanwhile.
        self._manifests: ManifestProducer | None = None

    def require_reachable(self) -> None:
        """:raises StartError: the brokers do not answer; nothing needs Spark then."""
        with reaching(self._settings):
            self._admin.require_reachable(self._names.input)

    def run(self, spark: Session, partitions: Sequence[int] = ()) -> list[CompactionResult]:
        """Compact these partitions, by default all. Blocks until the run ends, without a timeout.

        :raises CompactionBusy: another run holds the lock; nothing was changed.
        :raises StartError: the topics do not exist. :raises KafkaTrouble: the cluster failed; run it again.
        """
        with reaching(self._settings):
            places = self._places(partitions)
        with CompactionLock(self._settings, self._names, self._admin) as lock:
            self._began = time.monotonic()
            self._pieces = pieces(spark, len(places))
            self._report(f"planning {len(places)} partitions")
            plans = self._plans(places)
            try:
                written = self._fold(spark, plans)
                lock.check()
                fresh = self.publish(written) if written and not self._dry_run else {}
            finally:
                self._close_manifests()
            if not self._dry_run:
                self._truncate_all(spark, plans, fresh, lock)
        return [self._outcomes[partition] for partition in sorted(self._outcomes)]

    # Planning

    def _places(self, partitions: Sequence[int]) -> list[Place]:
        names = self._names
        facts = require(self._admin, names, ())
        count = facts[names.input].partitions
        unknown = [partition for partition in partitions if partition >= count]
        if unknown:
            raise UsageError(f"{names.input} has partitions 0 to {count - 1}, not {', '.join(map(str, unknown))}")
        writer = Writer(
            instance=self._settings.service.identity, host=socket.gethostname(), pid=os.getpid(), version=__version__
        )
        ids = {topic: facts[topic].id for topic in (names.input, names.changelog, names.snapshot)}
        roots = roots_of(self._settings)
        return [Place(names, p, count, ids, writer, roots=roots) for p in partitions or range(count)]

    def _plans(self, places: Sequence[Place]) -> dict[int, FoldPlan]:
        plans: dict[int, FoldPlan] = {}
        with ThreadPoolExecutor(_PLANNERS, "plan") as pool:
            made = list(pool.map(lambda place: self._plan(place, (), self._settings.snapshot.share), places))
        for plan in filter(None, made):
            plans[plan.partition] = plan
            commit_record, status, cause = plan.goal.commit_record, "up to date" if plan.up_to_date else "", ""
            if plan.base is None and commit_record.n == commit_record.adopted:
                status = "nothing to fold"
                behind = plan.last.n - commit_record.n
                cause = f"the {behind} transactions since then carry no delta (snapshot.delta_interval)" * (behind > 0)
            if status:
                self._note(plan, status, cause=cause, proven=plan.up_to_date)
        return plans

    def _plan(self, place: Place, damaged: Sequence[int], share: int = 0) -> FoldPlan | None:
        reader = CommittedReader(self._settings, self._names.group, self._admin)
        try:
            plan = planning.make(reader, place, damaged=damaged)
            return planning.divided(reader, sharing(reader, plan, share, root_of(self._settings)), self._pieces)
        except PartitionError as error:
            self._outcomes[place.partition] = CompactionResult(
                partition=place.partition, status="failed", cause=str(error)
            )
            return None
        finally:
            reader.close()

    # Folding and verification

    def _fold(self, spark: Session, plans: dict[int, FoldPlan]) -> list[tuple[FoldPlan, WrittenFull, TaskReport]]:
        """Return the verified states, whose chunks are written. Record an outcome for every other partition."""
        proven: list[tuple[FoldPlan, WrittenFull, TaskReport]] = []
        damaged: dict[int, list[int]] = {}
        pending = [plan for partition, plan in plans.items() if partition not in self._outcomes]
        for attempt in range(1, _ATTEMPTS + 1):
            if not pending:
                break
            again: list[tuple[FoldPlan, str]] = []
            self._report(f"folding {len(pending)} partitions")
            try:
                written, reports = self._run(spark, pending)
            except JobFailed as error:
                if not error.reading or attempt == _ATTEMPTS:
                    raise
                self._log.warning("kafka_retry", doing="fold", attempt=attempt, cause=str(error))
                written, reports, again, pending = {}, {}, [(plan, str(error)) for plan in pending], []
            for plan in pending:
                found, own_reports = written.get(plan.partition), reports.get(plan.partition, {})
                finding = self._unusable_base(plan, own_reports, damaged, attempt)
                if finding:
                    again.append((plan, finding))
                    continue
                found = found or writing.empty(plan.partition)
                finding = found.finding or verdict(plan, own_reports, found.digest_sums())
                if finding and plan.shares:
                    self._report(f"partition {plan.partition}: a whole full snapshot, because {finding}")
                    again.append((plan, finding))
                    continue
                self._note(plan, "failed" if finding else "proven", cause=finding, written=found, reports=own_reports)
                if not finding:
                    proven.append((plan, found, own_reports["increments"]))
            pending = self._plan_again(again, damaged, plans)
        for plan in pending:
            self._note(plan, "failed", cause=f"abandoned after several attempts; damaged full snapshots: {damaged}")
        return proven

    def _unusable_base(
        self, plan: FoldPlan, reports: Mapping[str, TaskReport], damaged: dict[int, list[int]], attempt: int
    ) -> str:
        """Return why the partition must be planned again, '' if not; note a damaged base."""
        if any(each.overtaken for each in reports.values()):
            self._log.warning("restore_overtaken", partition=plan.partition, attempt=attempt, cause="truncated")
            return "truncated meanwhile"
        finding = base_finding(plan, reports)
        if finding and plan.base is not None:
            damaged.setdefault(plan.partition, []).append(plan.base.offset)
            self._log.warning("full_unusable", partition=plan.partition, finding=finding)
        return finding

    def _run(
        self, spark: Session, plans: Sequence[FoldPlan]
    ) -> tuple[dict[int, WrittenFull], dict[int, dict[str, TaskReport]]]:
        """Run one Spark job that reads, folds and writes chunks; in a dry run it only counts them."""
        targets = {
            plan.partition: Target(
                max((full.offset for full in plan.full_snapshots), default=-1),
                plan.goal.commit_record.format,
                self._settings.snapshot.chunk_bytes,
                continued(plan),
            )
            for plan in plans
        }
        sink_of = None if self._dry_run else SnapshotSinkFactory(self._settings, self._names)
        if not self._dry_run and self._manifests is None:
            self._manifests = ManifestProducer(self._settings, self._names.snapshot)
        written: dict[int, WrittenFull] = {}
        task_reports: list[TaskReport] = []
        rows = Fold(spark, self._reader_of, plans).rows
        for kind, payload in collect(writing.write(rows, targets, sink_of, self._reader_of)):
            if kind == "full":
                found = writing.decode_written(payload)
                written[found.partition] = found
            else:
                task_reports.append(decode_report(payload))
        return written, gathered(task_reports)

    def _plan_again(
        self, again: Sequence[tuple[FoldPlan, str]], damaged: Mapping[int, list[int]], plans: dict[int, FoldPlan]
    ) -> list[FoldPlan]:
        made = []
        for plan, finding in again:
            fresh = self._plan(plan.place, damaged.get(plan.partition, []))
            if fresh is not None:
                plans[plan.partition] = fresh
                made.append(fresh)
            else:
                self._outcomes[plan.partition].cause += f"; before that, {finding}"
        return made

    # Publishing and truncation

    def publish(self, written: Sequence[tuple[FoldPlan, WrittenFull, TaskReport]]) -> dict[int, LocatedManifest]:
        """Write each manifest, which makes the chunks a full snapshot. Returns when Kafka has acknowledged them."""
        self._report(f"publishing {len(written)} full snapshots")
        assert self._manifests is not None, "the fold makes the producer"
        found = publish(self._manifests, written)
        for each in found:
            manifest = each.manifest
            self._log.info(
                "full_written", partition=manifest.partition, full=each.offset, first=manifest.first, maker=COMPACTION
            )
        return {each.manifest.partition: each for each in found}

    def _close_manifests(self) -> None:
        if self._manifests is not None:
            self._manifests.close()
            self._manifests = None

    def _truncate_all(
        self, spark: Session, plans: Mapping[int, FoldPlan], fresh: Mapping[int, LocatedManifest], lock: CompactionLock
    ) -> None:
        """Read back the new full snapshots and every other one to keep; then delete what precedes the oldest."""
        full_snapshots = {p: [*([fresh[p]] if p in fresh else []), *plan.full_snapshots] for p, plan in plans.items()}
        unread = {(p, found.offset): (plans[p].place, found) for p, found in fresh.items()}
        # Their tasks have read them back; only a truncation by a worker may have come between.
        findings = {
            (p, found.offset): self._truncation.overtaken(plans[p].place, found)
            for p, found in fresh.items()
            if plans[p].shares
        }
        while True:
            cuts = {
                p: found
                for p in full_snapshots
                if (found := self._truncation.due(plans[p].place, full_snapshots[p], self._keep)) is not None
            }
            for p in cuts:
                unread |= {(p, f.offset): (plans[p].place, f) for f in kept(full_snapshots[p], self._keep)}
            asked = [each for key, each in unread.items() if key not in findings]
            if not asked:
                break
            self._report(f"reading {len(asked)} full snapshots back")
            findings |= read_back(spark, self._reader_of, asked)
            for (p, offset), finding in findings.items():
                full_snapshots[p] = [found for found in full_snapshots[p] if found.offset != offset or not finding]
        self._note_published(fresh, findings)
        lock.check()
        for partition, found in cuts.items():
            if self._outcomes[partition].good:
                self.truncate(plans[partition].place, found)
        self._truncation.remove_orphans([plan.place for plan in plans.values()], self._log)

    def _note_published(self, fresh: Mapping[int, LocatedManifest], findings: Mapping[tuple[int, int], str]) -> None:
        for (p, offset), finding in findings.items():
            if finding:
                self._log.warning("full_unusable", partition=p, full=offset, finding=finding)
        for p, found in fresh.items():
            outcome, finding = self._outcomes[p], findings[p, found.offset]
            outcome.full, outcome.seconds = found.offset, self._elapsed()
            outcome.status = "failed" if finding else "compacted"
            outcome.cause = f"the new full snapshot cannot be read back: {finding}" if finding else ""

    def truncate(self, place: Place, found: TruncationOffsets) -> None:
        """Delete the records that no kept full snapshot needs."""
        self._truncation.cut(place, found)
        self._outcomes[place.partition].truncated = found
        self._log.info("truncated", partition=place.partition, full_before=found.full, increment_before=found.increment)

    def _note(
        self,
        plan: FoldPlan,
        status: str,
        *,
        cause: str = "",
        proven: bool = False,
        written: WrittenFull | None = None,
        reports: Mapping[str, TaskReport] | None = None,
    ) -> None:
        commit_record = plan.goal.commit_record
        shared = reports["chunks"].size if plan.shares and reports and "chunks" in reports else 0
        self._outcomes[plan.partition] = CompactionResult(
            partition=plan.partition,
            status=status,  # type: ignore[arg-type]
            proven=proven or status == "proven",
            transaction=commit_record.n,
            position=commit_record.position(self._names.input),
            keys=written.keys if written and not plan.shares else commit_record.keys,
            bytes_before=sum(report.size for report in reports.values()) if reports else None,
            bytes_after=written.sent + shared if written else None,
            bytes_written=written.sent if written else None,
            shared=written.shared if written else 0,
            seconds=self._elapsed(),
            cause=cause,
        )

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 3)
