"""`statehold snapshot restore`: restores a service's state and inputs to a cluster that has neither (rule M3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from statehold.admin.backup.cut_offsets import CutOffPositions
from statehold.admin.backup.in_flight import InFlight
from statehold.admin.initial_commit import control_position
from statehold.admin.state.position_args import milliseconds, per_partition
from statehold.admin.state.stopped_service import StoppedService, load_contents
from statehold.admin.topics import ServiceTopics
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.tools.group_lock import GroupLock
from statehold.kafka.tools.input_writer import InputWriter
from statehold.snapshot import state_replacement
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import BackupManifest
from statehold.snapshot.backup.offsets import OffsetMap
from statehold.snapshot.backup.reading import check_all, file_of
from statehold.snapshot.inspect.past import PastState
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.state import digest
from statehold.state.state import State

TOOL: Final = "snapshot restore"

#: Next offset by input and partition.
Positions = Mapping[tuple[str, int], int]


class RestoredPartition(msgspec.Struct, kw_only=True):
    """Result for one partition: its cut-off position in the old input and its next offset in the new one.

    With several inputs each is the sum of theirs; `positions` has the new offsets. A dry run does not know them where
    it would write the inputs: None, and empty.
    """

    partition: int
    old_position: int
    position: int | None
    #: Next offset of each new input.
    positions: dict[str, int]
    keys: int
    digest: str
    #: Number of input records that were written.
    records: int = 0


class Restoration(msgspec.Struct, kw_only=True):
    """Result of a restore; `lineage` is the new state generation, '' in a dry run."""

    lineage: str
    backup: str
    partitions: list[RestoredPartition]
    #: File with the map of old to new offsets; '' if the input was not written.
    offsets: str = ""


def restore(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    outputs: Sequence[str],
    source: Path,
    reason: ReplacementReason,
    *,
    cut: Mapping[int, int] | int | None = None,
    at_time: str | None = None,
    input_at: str | None = None,
    accept_duplicates: bool = False,
    replication: int = 0,
    dry_run: bool = False,
) -> Restoration:
    """Create the topics, write the inputs and the full snapshots, then replace the states in one transaction.

    `cut` restores the newest state up to a position of the old input, `at_time` the newest one that was committed by
    a time. With `input_at` the inputs already exist: the service continues at `beginning`, a time, an offset,
    `0=120,1=90` (of several inputs `trades:0=120,prices:0=90`), or the `same` offset as in the old input. A dry run
    verifies the backup and the present topics, and creates and writes nothing.

    :raises ToolRefused: the service runs, or a topic already holds records; or a partition has handled what its sender
        would send again by a `Rekey`. The state was not replaced.
    :raises UsageError: the backup is damaged, is of another service, or has no state at the cut-off position.
    """
    manifest = archive.read_manifest(source)
    if input_at is None and not manifest.with_input:
        raise UsageError(
            f"{source}: restore the input: the backup was made without --with-input. Nothing was written. Next: add "
            f"--input-at OFFSET, a time, beginning, or same (for a mirror with the same offsets)"
        )
    check_all(source, manifest)
    work = _Work(settings, names, handler, source, manifest)
    with closing(work.stopped):
        if at_time is not None:
            if cut is not None:
                raise UsageError("--to-offset and --at-time exclude each other")
            work.cut_offs.find_time(milliseconds(at_time, "--at-time"))
        else:
            work.cut_offs.find(cut)
        if names.rekeys:
            work.require_causes(accept_duplicates=accept_duplicates, with_input=input_at is None)
        if dry_run:
            work.require_no_outputs(outputs, accept_duplicates=accept_duplicates)
            return work.shown(input_at)
        work.make_topics(outputs, replication, with_input=input_at is None)
        work.require_no_outputs(outputs, accept_duplicates=accept_duplicates)
        with GroupLock(settings, names, work.stopped.admin, work.count, TOOL) as hold:
            work.stopped.fence(range(work.count))
            work.require_empty(work.stopped.facts(), with_input=input_at is None)
            place_input = work.write_input if input_at is None else lambda: work.look_up(input_at)
            return work.replace_state(place_input(), hold, reason)


class _Work:
    def __init__(
        self, settings: Settings, names: Names, handler: HandlerFactory, source: Path, manifest: BackupManifest
    ) -> None:
        self.settings, self.names, self.source, self.manifest = settings, names, source, manifest
        self.stopped = StoppedService(settings, names, handler, TOOL)
        self.cut_offs = CutOffPositions(names, source, manifest)
        self.count, self.reader = self.cut_offs.count, self.cut_offs.reader
        self.topics = TopicAdmin(self.stopped.admin)
        self.in_flight = InFlight(names, self.cut_offs.numbers)
        #: by input and partition
        self.maps: dict[tuple[str, int], OffsetMap] = {}

    def require_causes(self, *, accept_duplicates: bool, with_input: bool) -> None:
        """Check that the states of the partitions fit together, if they send to each other.

        :raises ToolRefused: they do not, or only the records of the backup could show it.
        """
        if not with_input:
            raise ToolRefused(
                f"{', '.join(self.names.rekeys)}: continue in an existing topic: the service sends to itself by "
                f"another key, and what a partition sent after the restored state would be in the topic twice. Nothing "
                f"was written. Next: restore a backup made --with-input, without --input-at"
            )
        positions = self.cut_offs.positions
        self.in_flight.require_causes(
            self.reader, self.source, self.manifest, positions, accept_duplicates=accept_duplicates
        )

    # Topics

    def make_topics(self, outputs: Sequence[str], replication: int, *, with_input: bool) -> None:
        """Create missing topics: inputs and outputs as they were, changelog and snapshot without an initial commit."""
        inputs = self.names.inputs
        if not with_input:
            self._require_inputs()
        wanted = {topic: self.manifest.outputs.get(topic, self.count) for topic in outputs}
        counts = {**wanted, **dict.fromkeys(inputs, self.count)}
        ServiceTopics(self.settings, self.names).make(replication, counts)
        self._require_counts(self.stopped.facts())

    def _require_inputs(self) -> None:
        """:raises ToolRefused: an input in which the service is to continue does not exist."""
        found = self.stopped.admin.describe(list(self.names.inputs))
        missing = [topic for topic, fact in found.items() if fact is None]
        if missing:
            raise ToolRefused(
                f"{', '.join(missing)}: continue in the existing input: it does not exist. Nothing was written. Next: "
                f"mirror it first, or restore a backup made --with-input"
            )

    def _require_counts(self, found: Mapping[str, TopicFacts]) -> None:
        wrong = [f"{name} has {fact.partitions}" for name, fact in found.items() if fact.partitions != self.count]
        if wrong:
            raise ToolRefused(f"the backup has {self.count} partitions, but {', '.join(wrong)}. Nothing was written")

    def shown(self, input_at: str | None) -> Restoration:
        """Return what a restore would do, after checks that need no change."""
        if input_at is not None:
            self._require_inputs()
        wanted = [*self.names.inputs, self.names.changelog, self.names.snapshot]
        found = {topic: fact for topic, fact in self.stopped.admin.describe(wanted).items() if fact is not None}
        self._require_counts(found)
        self.require_empty(found, with_input=input_at is None)
        positions = {} if input_at is None else self.look_up(input_at)
        states = ((p, self.cut_offs.at(p)) for p in range(self.count))
        partitions = [self._shown(p, found, self._state(p, found), positions) for p, found in states]
        return Restoration(lineage="", backup=self.manifest.backup, partitions=partitions)

    def require_empty(self, there: Collection[str], *, with_input: bool) -> None:
        """Check that the topics are empty. Runs after the fence, because an older owner cannot write afterwards."""
        topics = [self.names.changelog, self.names.snapshot, *(self.names.inputs if with_input else ())]
        topics = [topic for topic in topics if topic in there]
        held = [
            f"{topic}[{partition}] ends at {end}"
            for topic in topics
            for partition in range(self.count)
            if (end := self.stopped.bounds(topic, partition)[1]) > 0
        ]
        if held:
            raise ToolRefused(
                f"restore needs topics that never held a record: {', '.join(held[:4])}. Nothing was written. Next: "
                f"delete these topics, or choose another service.namespace"
            )

    def require_no_outputs(self, outputs: Sequence[str], *, accept_duplicates: bool) -> None:
        """Check that the outputs are empty, because records after the cut-off are processed again (rule M3)."""
        facts = self.stopped.admin.describe(list(outputs)) if outputs else {}
        held = [
            topic
            for topic, fact in facts.items()
            if fact is not None and any(self.stopped.bounds(topic, p)[1] > 0 for p in range(fact.partitions))
        ]
        if held and not accept_duplicates:
            raise ToolRefused(
                f"{', '.join(held)}: the output already holds records; those after the cut-off would be duplicated. "
                f"Nothing was written. Next: add --accept-duplicates if duplicates are acceptable or the output ends "
                f"at the cut-off"
            )

    # The input

    def write_input(self) -> Positions:
        """Write each input as it was, without what the service will send again. Return the new next offsets."""
        left_out: Counter[tuple[str, int]] = Counter()
        for topic in self.names.inputs:
            writer = InputWriter(self.settings, topic)
            for partition in range(self.count):
                file = file_of(self.source, self.manifest, "input", topic, partition)
                offsets = self.maps[topic, partition] = OffsetMap(partition, topic=topic)
                for batch in self.reader.read(topic, partition, file.start, file.end):
                    for message in batch:
                        if self.in_flight.is_sent_again(topic, message):
                            left_out[topic, partition] += 1
                            continue
                        headers = self.in_flight.headers(topic, message)
                        writer.copy(message, headers, _noting(offsets, message.offset() or 0))
            writer.flush()
        for (topic, partition), offsets in self.maps.items():
            given = file_of(self.source, self.manifest, "input", topic, partition).records
            wanted = given - left_out[topic, partition]
            if offsets.records != wanted:
                raise ToolRefused(
                    f"{topic}[{partition}]: write the input: fewer than {wanted} records were written. The state was "
                    f"not replaced"
                )
        return {at: offsets.position(self._old_position(*at)) for at, offsets in self.maps.items()}

    def _old_position(self, topic: str, partition: int) -> int:
        return self.cut_offs.positions[partition][topic]

    def look_up(self, input_at: str) -> Positions:
        """Return the next offsets in inputs that already exist."""
        wanted = per_partition(input_at, self.names.inputs, self.count)
        places = {at: self._look_up(*at, text) for at, text in wanted.items()}
        for (topic, partition), position in places.items():
            low, end = self.stopped.bounds(topic, partition)
            if not low <= position <= end:
                raise ToolRefused(
                    f"{topic}[{partition}] holds offsets {low} to {end}, not {position}. The state was not replaced"
                )
        return places

    def _look_up(self, topic: str, partition: int, text: str) -> int:
        if text.isdecimal():
            return int(text)
        if text == "same":
            return self._old_position(topic, partition)
        moment = text if text == "beginning" else milliseconds(text, "--input-at")
        offset = self.topics.offset(topic, partition, moment)
        return offset if offset >= 0 else self.topics.offset(topic, partition, "end")

    # The state

    def replace_state(self, positions: Positions, hold: GroupLock, reason: ReplacementReason) -> Restoration:
        lineage, facts = state_replacement.new_lineage(), self.stopped.facts()
        notes = {"backup": self.manifest.backup, "made": self.manifest.made}
        result = Restoration(lineage=lineage, backup=self.manifest.backup, partitions=[])
        if self.maps:
            result.offsets = str(self._write_map(lineage))
            notes["offsets"] = result.offsets
        adoptions = [self._adoption(p, positions, lineage, facts, result) for p in range(self.count)]
        self.stopped.replace_state(adoptions, hold.membership(), msgspec.structs.replace(reason, notes=notes))
        return result

    def _adoption(
        self, partition: int, positions: Positions, lineage: str, facts: Mapping[str, TopicFacts], result: Restoration
    ) -> Adoption:
        found = self.cut_offs.at(partition)
        commit_record = self.cut_offs.commit_record(partition, found)
        place = self.stopped.place(partition, self.count, facts)
        state = self._state(partition, found)
        shown = self._shown(partition, found, state, positions)
        result.partitions.append(shown)
        inputs = shown.positions
        return msgspec.structs.replace(
            self.stopped.adoption(place, lineage, None, inputs, state, commit_record),
            source=commit_record,
            effects=commit_record.effects,
            control=control_position(self.stopped.admin, self.names, partition),
        )

    def _state(self, partition: int, found: PastState) -> State:
        where = f"{self.source}: partition {partition}"
        return load_contents(self.stopped.new_state(partition), found.contents, found.digest, where)

    def _shown(self, partition: int, found: PastState, state: State, positions: Positions) -> RestoredPartition:
        inputs = {topic: positions[topic, partition] for topic in self.names.inputs} if positions else {}
        return RestoredPartition(
            partition=partition,
            old_position=found.position,
            position=sum(inputs.values()) if inputs else None,
            positions=inputs,
            keys=state.keys,
            digest=digest.show(state.digest),
            records=sum(offsets.records for (_, p), offsets in self.maps.items() if p == partition),
        )

    def _write_map(self, lineage: str) -> Path:
        """Write the map of old to new offsets next to the backup, for systems that stored old offsets."""
        path = self.source / f"offsets-{lineage}.json"
        with archive.private(path) as file:
            file.write(msgspec.json.encode(list(self.maps.values())) + b"\n")
        return path


def _noting(offsets: OffsetMap, old: int) -> Callable[[int], None]:
    return lambda new: offsets.add(old, new)
