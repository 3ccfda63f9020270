"""Identifies a partition of a service, and checks commit records and manifests against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from statehold.common.input_changes import difference
from statehold.common.names import Names
from statehold.errors import (
    DamagedIncrement,
    InputsChanged,
    PartitionCountChanged,
    StateMoved,
    TopicReplaced,
    UnknownSchema,
    UpgradeUnfinished,
)
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.records import CommitRecord, Manifest, Writer
from statehold.state.types.description import TableType

#: the format from which on table values may have a version (docs/how-to/state/upgrades.md)
VERSIONED_FORMAT = 2


class Place(msgspec.Struct, frozen=True):
    """One partition, with the current identities of its topics."""

    names: Names
    partition: int
    partitions: int
    #: topic -> topic id, of the input, changelog and snapshot topics
    topic_ids: dict[str, str]
    writer: Writer = Writer()
    #: table -> version that the handler declares; empty for tools, which decode no values
    schemas: dict[str, int] = {}
    #: roots of the only stores to read full snapshots from, whatever their manifests say
    roots: tuple[str, ...] = ()
    #: table -> the types that the handler declares, of the user's own tables; empty for tools, as `schemas`
    types: dict[str, TableType] = {}

    @property
    def input(self) -> str:
        return self.names.input

    def require_here(self, commit_record: CommitRecord) -> None:
        """Check that the state may continue here. Call it before writing; reading needs no check.

        :raises StateMoved: the state has moved to another input.
        """
        if commit_record.moved:
            raise StateMoved(
                f"the state has moved to the input {commit_record.moved} (`statehold state repartition --into` or "
                f"`state inputs`, transaction {commit_record.n}): run the service with that input. Nothing was changed",
                topic=self.input,
                partition=self.partition,
                position=commit_record.position(self.input),
            )

    def check(self, commit_record: CommitRecord) -> None:
        """Check that the commit record belongs to this partition and that this code can read its tables.

        :raises DamagedIncrement, PartitionCountChanged, TopicReplaced: the commit record belongs to another partition.
        :raises InputsChanged: the state was built from other inputs.
        :raises UnknownSchema, TableTypeChanged: this code cannot read the tables, or reads them as other values.
        :raises UpgradeUnfinished: it must not write them yet.
        """
        names = self.names
        position = commit_record.position(names.input)
        if (commit_record.service, commit_record.partition) != (names.group, self.partition):
            raise DamagedIncrement(
                f"the last commit record belongs to service {commit_record.service!r} partition "
                f"{commit_record.partition}, not to {names.group!r} partition {self.partition}. Nothing was "
                f"changed. Next: check service.namespace and who writes to {names.changelog}",
                topic=self.input,
                partition=self.partition,
                position=position,
            )
        if position < 0:
            raise DamagedIncrement(
                f"the last commit record names no position of {self.input}: statehold did not write it. Nothing was "
                f"changed. Next: check who writes to {names.changelog}",
                topic=self.input,
                partition=self.partition,
            )
        if (built := commit_record.inputs or (names.input,)) != names.inputs:
            changed = difference(built, names.inputs)
            raise InputsChanged(
                f"the state was built from {', '.join(built)}, this code reads {', '.join(names.inputs)}. Nothing was "
                f"changed. Next: run the code with the state's inputs, in that order; or stop the service and change "
                f"them: `statehold state inputs MODULE:SERVICE {changed.options} --why TEXT --dry-run`{changed.hint}",
                topic=self.input,
                partition=self.partition,
                position=position,
            )
        self._require_partitions(commit_record.partitions, self.partitions, position)
        self._require_ids(commit_record.topic_ids, self.topic_ids, "in the last commit record", position)
        if self.schemas:
            self._check_schemas(commit_record, position)
        if self.types:
            recorded_types.check(commit_record, self.types, names.input)

    def require_same(self, now: Place) -> None:
        """Compare with the topics as they are now. :raises TopicReplaced, PartitionCountChanged: one is another one."""
        self._require_partitions(self.partitions, now.partitions, -1)
        self._require_ids(self.topic_ids, now.topic_ids, "when the takeover began", -1)

    def _require_partitions(self, known: int, now: int, position: int) -> None:
        if now != known:
            raise PartitionCountChanged(
                f"the state was built with {known} partitions, the topic has {now} now: keys have moved. Nothing was "
                f"changed. Next: stop the service and its producers, then `statehold state repartition MODULE:SERVICE "
                f"--to {now} --why TEXT --yes` redistributes the state",
                topic=self.input,
                partition=self.partition,
                position=position,
            )

    def _require_ids(self, known: Mapping[str, str], now: Mapping[str, str], when: str, position: int) -> None:
        for topic, before in known.items():
            after = now.get(topic, before)
            if after != before:
                repair = "accept-gap" if topic in self.names.inputs else "rebase"
                raise TopicReplaced(
                    f"topic {topic} was deleted and created again (id {before} {when}, {after} now), so positions mean "
                    f"other records. Nothing was changed. Next: restore the old topic, or stop the service: "
                    f"`statehold repair {repair} MODULE:SERVICE --why TEXT --dry-run` shows how it can continue",
                    topic=self.input,
                    partition=self.partition,
                    position=position,
                )

    def _check_schemas(self, commit_record: CommitRecord, position: int) -> None:
        code = f" (code {commit_record.writer.code})" if commit_record.writer.code else ""
        for table, version in commit_record.schemas.items():
            known = self.schemas.get(table, version)
            if version > known:
                raise UnknownSchema(
                    f"table {table!r} holds values of version {version}, this code declares version {known}. "
                    f"{commit_record.writer.instance}{code} wrote the last commit record. Nothing was changed. Next: "
                    "run that code or a newer one",
                    topic=self.input,
                    partition=self.partition,
                    position=position,
                )
        if commit_record.format < VERSIONED_FORMAT and any(version > 1 for version in self.schemas.values()):
            newer = [f"{table!r} version {version}" for table, version in self.schemas.items() if version > 1]
            raise UpgradeUnfinished(
                f"this code declares table {', '.join(newer)}, and the partition is still written in format "
                f"{commit_record.format}, which older releases of statehold read and which has no versions. Nothing "
                "was changed. Next: run the previous code, and `statehold finish-upgrade` once you will not go back "
                "to an older release",
                topic=self.input,
                partition=self.partition,
                position=position,
            )

    def merged_schemas(self, commit_record: CommitRecord, tables: Iterable[str]) -> dict[str, int]:
        """Return the table versions for the next commit record, if it writes values of these tables."""
        written = {table: version for table in tables if (version := self.schemas.get(table, 1)) > 1}
        if not written:
            return commit_record.schemas
        return commit_record.schemas | {
            table: max(version, commit_record.schemas.get(table, 1)) for table, version in written.items()
        }

    def refuses(self, manifest: Manifest, commit_record: CommitRecord, *, replayed: bool = False) -> str:
        """Return why a full snapshot cannot be the base for this commit record (rules S1, S6), or ''.

        `replayed`: the restore applies no deltas and replays the input after the full snapshot.
        """
        return self._belongs_elsewhere(manifest, commit_record) or self._lacks_deltas(manifest, commit_record, replayed)

    def _belongs_elsewhere(self, manifest: Manifest, commit_record: CommitRecord) -> str:
        owner = (manifest.service, manifest.partition, manifest.partitions)
        if owner != (self.names.group, self.partition, self.partitions):
            return f"it belongs to {manifest.service!r} partition {manifest.partition} of {manifest.partitions}"
        if manifest.lineage != commit_record.lineage:
            return f"its state generation is {manifest.lineage}, that of the last commit record {commit_record.lineage}"
        if manifest.inputs != commit_record.inputs or manifest.position(self.input) < 0:
            return f"it has the positions {manifest.positions}, not those of {', '.join(self.names.inputs)}"
        if manifest.first < commit_record.adopted:
            return f"it begins with transaction {manifest.first}, the state generation with {commit_record.adopted}"
        return ""

    def _lacks_deltas(self, manifest: Manifest, commit_record: CommitRecord, replayed: bool) -> str:
        first, through = manifest.first, manifest.through
        if through > commit_record.n:
            return f"it goes through transaction {through}, the last commit record is {commit_record.n}"
        if first < through and through > commit_record.last_delta:
            return f"it needs a delta at or after transaction {through}, the newest is {commit_record.last_delta}"
        if replayed and first < through:
            return f"it needs the deltas after transaction {first}, and they do not reach back to it"
        if not replayed and not self.deltas_reach(first, commit_record):
            return (
                f"it is of transaction {first}, and the deltas continue from {commit_record.reach}: earlier changes "
                "are in no delta, because snapshot.delta_interval was off"
            )
        return ""

    def deltas_reach(self, first: int, commit_record: CommitRecord) -> bool:
        """Return whether the deltas after transaction `first` hold every change up to the newest delta."""
        return commit_record.last_delta <= first or commit_record.reach <= first
