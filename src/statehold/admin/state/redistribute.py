"""Redistributes a stopped service's state to other partitions, one partition in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from statehold.admin.state.key_layout import KeyLayout, drop_partition_data
from statehold.admin.state.open_failures import unresolved_failures
from statehold.admin.state.spool import Spool
from statehold.admin.state.stopped_service import StoppedService
from statehold.common.names import Names
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_replacement import Adoption
from statehold.state import digest
from statehold.state.digest import MODULUS
from statehold.state.state import State


class PartitionShare(msgspec.Struct, kw_only=True):
    """One partition before and after; `old_keys` is None if the partition did not exist before.

    With several inputs the position is the sum of their next offsets.
    """

    partition: int
    position: int
    old_keys: int | None = None
    keys: int
    digest: str
    transaction: int | None = None


class Repartitioned(msgspec.Struct, kw_only=True):
    """Result for all partitions. `lineage` is the new state generation, '' in a dry run.

    `digest` covers all partitions together and is the same before and after.
    """

    lineage: str = ""
    before: int
    after: int
    keys: int
    moved: int
    digest: str
    partitions: list[PartitionShare]
    #: The new input topic, or several with commas between; '' if they did not change.
    into: str = ""


class PartitionSum(msgspec.Struct, frozen=True):
    """Number of keys and digest of a partition, kept in memory to compare before and after."""

    keys: int
    digest: int


class Redistribution:
    """Redistributes the states of `before` old partitions to `to` new ones. Single-threaded."""

    def __init__(
        self, stopped: StoppedService, layout: KeyLayout, before: int, to: int, spool_dir: Path | None
    ) -> None:
        self._stopped, self._layout, self.before, self.to = stopped, layout, before, to
        self._spool = Spool(to, spool_dir)
        #: Last commit record of each old partition.
        self.commit_records: list[CommitRecord] = []
        self.old: list[PartitionSum] = []
        self.new: list[PartitionSum] = []
        self.moved = 0

    def read(self, facts: Mapping[str, TopicFacts]) -> None:
        """Read the old partitions' states, one after the other, into the spool.

        :raises ToolRefused: the layout maps a key to another partition; or an effect, a dead letter or a retry is
            pending. :raises StateRefused: a partition could not be restored.
        """
        waiting: list[str] = []
        for partition in range(self.before):
            found = self._stopped.find(self._stopped.place(partition, self.before, facts))
            if text := unresolved_failures(self._stopped, found, partition):
                waiting.append(text)
                continue
            drop_partition_data(found.state)
            for there, changes in self._layout.redistribute(found.state, partition, self.before, self.to):
                self._spool.add(there, changes)
                self.moved += len(changes.keys) if there != partition else 0
            self.commit_records.append(found.commit_record)
            self.old.append(PartitionSum(found.state.keys, found.state.digest))
        if waiting:
            raise ToolRefused(f"failed records are unresolved: {'; '.join(waiting)}. Nothing was changed")
        pending = [
            f"partition {p}: {len(commit_record.effects)}"
            for p, commit_record in enumerate(self.commit_records)
            if commit_record.effects
        ]
        if pending:
            raise ToolRefused(
                f"effects are pending ({', '.join(pending)}) and belong to their partitions. Nothing was changed. "
                f"Next: run the service until they are done"
            )

    def compare(self) -> None:
        """Compare the numbers of keys and the digests before and after; a digest is a sum over keys.

        :raises ToolRefused: they differ.
        """
        for partition in range(self.to):
            state = self.state(partition)
            self.new.append(PartitionSum(state.keys, state.digest))
        (old_keys, old_sum), (new_keys, new_sum) = _sums(self.old), _sums(self.new)
        if (old_sum, old_keys) != (new_sum, new_keys):
            raise ToolRefused(
                f"compare the redistributed state: {old_keys} keys with digest {digest.show(old_sum)} became "
                f"{new_keys} with {digest.show(new_sum)}: a key was in several partitions. Nothing was changed"
            )

    def state(self, partition: int) -> State:
        """Load the state of a new partition; each call returns another object."""
        return self._spool.load(partition, self._stopped.new_state(partition))

    def like(self, names: Names) -> CommitRecord:
        """Return the commit record that the new partitions start from: the newest format, the highest versions."""
        schemas: dict[str, int] = {}
        for commit_record in self.commit_records:
            schemas |= {table: max(version, schemas.get(table, 1)) for table, version in commit_record.schemas.items()}
        return msgspec.structs.replace(
            self.commit_records[0],
            format=max(commit_record.format for commit_record in self.commit_records),
            schemas=schemas,
            types=recorded_types.joined([each.types for each in self.commit_records], self._stopped.types),
            positions={},
            inputs=names.recorded,
            digest=digest.to_bytes(0),
            keys=0,
            partitions=self.before,
            effects=(),
        )

    def adoption(
        self,
        stopped: StoppedService,
        place: Place,
        lineage: str,
        old: CommitRecord | None,
        inputs: Mapping[str, int],
        control: int | None = None,
        begin: int = 0,
    ) -> Adoption:
        """Write a new partition's state as a full snapshot, to which the state-replacement record after `old` refers.

        :raises ToolRefused: the snapshot that is read back differs.
        """
        like, state = self.like(place.names), self.state(place.partition)
        adoption = stopped.adoption(place, lineage, old, inputs, state, like, begin)
        paused = next((each.paused for each in self.commit_records if each.paused is not None), None)
        return msgspec.structs.replace(adoption, source=like, control=control, paused=paused)

    def adopted(self, adoptions: Sequence[Adoption], commit_records: Mapping[int, CommitRecord]) -> Repartitioned:
        """Return the report after the state was replaced; `marks` are the new commit records."""
        report = self.report([each.position for each in adoptions])
        report.lineage = adoptions[0].lineage
        for share in report.partitions:
            share.transaction = commit_records[share.partition].n
        return report

    def report(self, positions: Sequence[int]) -> Repartitioned:
        """Return the report; `positions` are the next offsets of the new partitions."""
        keys, total = _sums(self.new)
        shares = [
            PartitionShare(
                partition=p,
                position=positions[p],
                old_keys=self.old[p].keys if p < self.before else None,
                keys=weight.keys,
                digest=digest.show(weight.digest),
            )
            for p, weight in enumerate(self.new)
        ]
        return Repartitioned(
            before=self.before,
            after=self.to,
            keys=keys,
            moved=self.moved,
            digest=digest.show(total),
            partitions=shares,
        )

    def close(self) -> None:
        self._spool.close()


def _sums(weights: Sequence[PartitionSum]) -> tuple[int, int]:
    return sum(each.keys for each in weights), sum(each.digest for each in weights) % MODULUS


class InputWatch:
    """Detects producers that write to an input while the tool runs, unless they are silent for `quiet` seconds."""

    def __init__(self, stopped: StoppedService, quiet: float) -> None:
        self._stopped, self._quiet = stopped, quiet
        self._since = time.monotonic()
        self.ends = self._now()

    def require_quiet(self) -> None:
        """Wait until `quiet` seconds have passed since the start. :raises ToolRefused: the input has grown."""
        time.sleep(max(0.0, self._since + self._quiet - time.monotonic()))
        ends = self._now()
        for topic in self._stopped.names.inputs:
            before = {p: self.ends.get((of, p), 0) for of, p in ends if of == topic}
            now = {p: end for (of, p), end in ends.items() if of == topic}
            grown = [f"partition {p} from {before[p]} to {end}" for p, end in now.items() if end > before[p]]
            if grown:
                raise ToolRefused(
                    f"{topic}: producers keep writing: {'; '.join(grown)}. The state was not replaced. Next: stop the "
                    f"producers, let the service process the rest, stop it and run the command again"
                )

    def _now(self) -> dict[tuple[str, int], int]:
        """Return the end of each partition of each input."""
        facts = self._stopped.facts()
        return {
            (topic, p): self._stopped.bounds(topic, p)[1]
            for topic in self._stopped.names.inputs
            for p in range(facts[topic].partitions)
        }
