"""`statehold state migrate --spark-master`: edits the state on the executors of a Spark cluster.

No process holds a whole partition: Spark folds it, and executors apply the functions and write the chunks batch by
batch. Needs pyspark; only the command imports this module.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec

from statehold.admin.executor_clients import ReaderFactory, SnapshotSinkFactory
from statehold.admin.state.migrate import TOOL, Migrated, Migration, replace_states
from statehold.admin.state.stopped_service import StoppedService, inputs_at
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.full_producer import ManifestProducer
from statehold.snapshot import state_replacement
from statehold.snapshot.format import frame, recorded_types, records
from statehold.snapshot.format.records import CommitRecord, FullRef, Manifest
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.spark.export.edit import EDITED, Born, Editor, decode_tally, having, packed, tables_of
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import decode_report
from statehold.snapshot.spark.io import write as writing
from statehold.snapshot.spark.io.readback import read_back
from statehold.snapshot.spark.io.source import Fold, Session, collect, pieces
from statehold.snapshot.spark.io.write import Target, WrittenFull
from statehold.snapshot.state_edits import Counts, Edit, Edits, Patch
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.state import digest
from statehold.state.digest import MODULUS


def migrate(
    spark: Session,
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    functions: Mapping[str, Edit],
    patches: Sequence[Patch],
    reason: ReplacementReason,
    *,
    dry_run: bool = False,
) -> Migration:
    """Do the same as `statehold.admin.state.migrate.migrate` with Spark.

    :raises ToolRefused, StateRefused, UsageError: as that function. :raises JobFailed: Spark or a function failed.
    """
    with closing(StoppedService(settings, names, handler, TOOL)) as stopped:
        edits = Edits(functions, patches, stopped.new_state(0).tables)
        facts = stopped.facts()
        work = _Work(spark, stopped, facts, edits, Editor(handler, functions, patches))
        return replace_states(stopped, facts[names.input].partitions, work.run, reason, dry_run=dry_run)


class _Work:
    def __init__(
        self, spark: Session, stopped: StoppedService, facts: Mapping[str, TopicFacts], edits: Edits, editor: Editor
    ) -> None:
        self._spark, self._stopped, self._facts, self._edits, self._editor = spark, stopped, facts, edits, editor
        self._names, self._settings = stopped.names, stopped.settings
        self._reader_of = ReaderFactory(stopped.settings, stopped.names)
        #: Patched keys that exist, by table; keys that a patch adds, by partition.
        self._known: dict[str, set[Any]] = {}
        self._born: dict[int, Born] = {}

    def run(self, lineage: str | None) -> tuple[list[Migrated], list[Adoption]]:
        plans = self._plans()
        fold = Fold(self._spark, self._reader_of, list(plans.values()))
        findings = [f"partition {p}: {finding}" for p, finding in fold.check()[0].items() if finding]
        if findings:
            raise ToolRefused(f"the folded state differs from the recorded one: {'; '.join(findings)}")
        self._require_patched(fold)
        written, tallies = self._write(fold, plans, lineage is not None)
        done = [self._migrated(plan, written[p], tallies.get(p, Counts())) for p, plan in plans.items()]
        if lineage is None:
            return done, []
        bases = self._publish(plans, written, lineage)
        for each in done:
            each.full = bases[each.partition].offset if each.counts.after else None
        return done, [self._adoption(plan, written[p], bases[p], lineage) for p, plan in plans.items()]

    def _plans(self) -> dict[int, FoldPlan]:
        count = self._facts[self._names.input].partitions
        plans = {}
        for partition in range(count):
            with closing(CommittedReader(self._settings, self._names.group, self._stopped.admin)) as reader:
                place = self._stopped.place(partition, count, self._facts)
                reading = msgspec.structs.replace(place, types=self._edits.read_types(place.types))
                plan = planning.make(reader, reading)
                plan = planning.divided(reader, plan, pieces(self._spark, count))
            goal = plan.goal.commit_record
            state_replacement.require_complete(plan.place, plan.last, goal.position(self._names.input), goal.digest)
            plans[partition] = plan
        return plans

    def _require_patched(self, fold: Fold) -> None:
        """Check that every patched key exists or names its partition."""
        for table in sorted(self._edits.tables):
            keys = {packed(key): key for key in self._edits.patched(table)}
            found = collect(fold.rows.flatMap(partial(having, table, frozenset(keys)))) if keys else []
            self._known[table] = {keys[key] for key in found}
            for key in self._known[table]:
                self._edits.found(table, key)
        for partition in range(self._facts[self._names.input].partitions):
            self._born[partition] = [
                (table, packed(key), data)
                for table in sorted(self._edits.tables)
                for key, data in self._edits.born(table, partition, self._known[table])
            ]
        self._edits.require_used()

    def _write(
        self, fold: Fold, plans: Mapping[int, FoldPlan], publish: bool
    ) -> tuple[dict[int, WrittenFull], dict[int, Counts]]:
        newest = {p: max((full.offset for full in plan.full_snapshots), default=-1) for p, plan in plans.items()}
        size = self._settings.snapshot.chunk_bytes
        targets = {p: Target(offset, frame.NEWEST, size) for p, offset in newest.items()}
        sink_of = SnapshotSinkFactory(self._settings, self._names) if publish else None
        written = {partition: writing.empty(partition) for partition in plans}
        tallies: dict[int, Counts] = {}
        edited = fold.rows.mapPartitionsWithIndex(partial(self._editor, fold.partitions, self._born))
        for kind, payload in collect(writing.write(edited, targets, sink_of)):
            if kind == "full":
                found = writing.decode_written(payload)
                written[found.partition] = found
            elif decode_report(payload).kind == EDITED:
                tally = decode_tally(payload)
                tallies.setdefault(tally.partition, Counts()).join(tally.counts)
        for partition, born in self._born.items():
            tallies.setdefault(partition, Counts()).join(Counts(after=len(born), added=len(born)))
        return written, tallies

    def _digest(self, written: WrittenFull) -> int:
        """Return the digest: keys of type str or bytes are hashed as they are, others as msgpack."""
        tables, total = tables_of(self._editor.handler), 0
        for name, sums in written.digest_sums().items():
            total += sums.text if name in tables and tables[name].key_type in (str, bytes) else sums.packed
        return total % MODULUS

    def _migrated(self, plan: FoldPlan, written: WrittenFull, counts: Counts) -> Migrated:
        return Migrated(
            partition=plan.partition,
            position=plan.last.position(self._names.input),
            counts=counts,
            old_digest=digest.show(plan.last.digest),
            digest=digest.show(self._digest(written)),
        )

    def _publish(
        self, plans: Mapping[int, FoldPlan], written: Mapping[int, WrittenFull], lineage: str
    ) -> dict[int, LocatedManifest]:
        """Write the manifests and read everything back. No commit record refers to these full snapshots yet."""
        manifests = {partition: self._manifest(plan, written[partition], lineage) for partition, plan in plans.items()}
        with closing(ManifestProducer(self._settings, self._names.snapshot)) as producer:
            offsets = producer.write({partition: records.pack(manifest) for partition, manifest in manifests.items()})
        bases = {partition: LocatedManifest(offsets[partition], manifest) for partition, manifest in manifests.items()}
        back = read_back(self._spark, self._reader_of, [(plans[p].place, found) for p, found in bases.items()])
        wrong = [f"partition {p}: {finding}" for (p, _), finding in back.items() if finding]
        if wrong:
            raise ToolRefused(f"read back the new full snapshots: {'; '.join(wrong)}. The state was not replaced")
        return bases

    def _manifest(self, plan: FoldPlan, written: WrittenFull, lineage: str) -> Manifest:
        like = msgspec.structs.replace(
            plan.last,
            n=plan.last.n + 1,
            lineage=lineage,
            digest=digest.to_bytes(self._digest(written)),
            format=frame.NEWEST,
            schemas=self._schemas(plan),
            types=self._types(plan, written),
        )
        end = self._stopped.bounds(self._names.changelog, plan.partition)[1]
        return written.manifest(plan.place, like, end, "migration", time.time())

    def _schemas(self, plan: FoldPlan) -> dict[str, int]:
        return plan.place.merged_schemas(plan.last, self._edits.tables)

    def _types(self, plan: FoldPlan, written: WrittenFull) -> dict[str, str]:
        kept = msgspec.structs.replace(plan.last, types=self._edits.kept_types(plan.last.types))
        return recorded_types.of_state(kept, self._stopped.types, written.sums, plan.place.input)

    def _adoption(self, plan: FoldPlan, written: WrittenFull, base: LocatedManifest, lineage: str) -> Adoption:
        last: CommitRecord = plan.last
        ref: FullRef | None = base.ref if written.keys else None
        return Adoption(
            place=plan.place,
            old=last,
            lineage=lineage,
            base=ref,
            digest=self._digest(written),
            keys=written.keys,
            inputs=inputs_at(last, self._names),
            effects=last.effects,
            schemas=self._schemas(plan),
            types=self._types(plan, written),
        )
