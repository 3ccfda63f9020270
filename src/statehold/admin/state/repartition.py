"""`statehold state repartition`: redistributes a stopped service's state to more partitions of its inputs (rule M2)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from statehold.admin.state.key_layout import KeyLayout, KeyOf
from statehold.admin.state.redistribute import InputWatch, PartitionShare, Redistribution, Repartitioned
from statehold.admin.state.stopped_service import StoppedService, inputs_at
from statehold.api.handler import HandlerFactory
from statehold.api.record import Message
from statehold.bound.topics import output_topics
from statehold.common.names import Names
from statehold.common.partitioner import Partitioner
from statehold.config.settings import Settings
from statehold.errors import StartError, ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot import state_replacement
from statehold.snapshot.state_replacement import Adoption, ReplacementReason

__all__ = ["TOOL", "PartitionShare", "Repartitioned", "repartition"]

TOOL: Final = "state repartition"
#: Consecutive answers that must show a topic's new number of partitions.
_SEEN: Final = 8
_GROWTH_PATIENCE: Final = 30.0


def repartition(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    to: int,
    partitioner: Partitioner,
    keys: Mapping[str, KeyOf],
    reason: ReplacementReason,
    *,
    quiet: float = 5.0,
    dry_run: bool = False,
    spool_dir: Path | None = None,
) -> Repartitioned:
    """Redistribute the state of a stopped service to `to` partitions, and add partitions to its topics.

    Memory holds one partition's state at a time; the rest is in files under `spool_dir`. The producers must have
    stopped: the tool watches the inputs for at least `quiet` seconds. Inputs may already have their new partitions.

    :raises ToolRefused: the group has a member; a record is not processed yet or arrives meanwhile; an effect is
        pending; or the partitioner maps a key to another partition. The state was not replaced, but topics may have
        more partitions. :raises StateRefused: a partition could not be restored. :raises UsageError: see `KeyLayout`.
    """
    with closing(StoppedService(settings, names, handler, TOOL)) as stopped:
        layout = KeyLayout(partitioner, keys, stopped.new_state(0).tables)
        with closing(_Repartition(stopped, to, layout, quiet, spool_dir)) as work:
            if dry_run:
                return work.shown()
            with GroupLock(settings, names, stopped.admin, work.facts[names.input].partitions, TOOL) as hold:
                return work.replace_state(hold, reason)


class _Repartition:
    def __init__(
        self, stopped: StoppedService, to: int, layout: KeyLayout, quiet: float, spool_dir: Path | None
    ) -> None:
        self.stopped, self.to, self.layout = stopped, to, layout
        self.names = stopped.names
        self.facts = stopped.facts()
        self.before = self._count_before()
        self.watch = InputWatch(stopped, quiet)
        self.redistribution = Redistribution(stopped, layout, self.before, to, spool_dir)

    def close(self) -> None:
        self.redistribution.close()

    def shown(self) -> Repartitioned:
        self._read_states()
        return self.redistribution.report([sum(self._inputs(p).values()) for p in range(self.to)])

    def replace_state(self, hold: GroupLock, reason: ReplacementReason) -> Repartitioned:
        self.stopped.fence(range(self.to))
        self._read_states()
        # The inputs grow last, because producers place keys differently as soon as they have more partitions.
        facts = self._grow(self.names.changelog, self.names.snapshot)
        self._grow_side_topics()
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.to)]
        self.watch.require_quiet()
        self._grow(*self.names.inputs)
        self.watch.require_quiet()
        commit_records = self.stopped.replace_state(adoptions, hold.membership(), reason)
        return self.redistribution.adopted(adoptions, commit_records)

    # Before

    def _count_before(self) -> int:
        """:raises ToolRefused: the number of partitions is already reached, or cannot be reached."""
        first = self.stopped.commit_record(0)
        if first is None:
            raise ToolRefused(
                f"{self.names.changelog}[0]: read the state: there is no commit record. Nothing was changed"
            )
        before, inputs = first.partitions, self.names.inputs
        if before == self.to:
            raise ToolRefused(f"the state of {self.names.group!r} already has {before} partitions")
        if self.to < before:
            raise ToolRefused(
                f"{', '.join(inputs)}: {before} partitions cannot become {self.to}: Kafka cannot remove partitions"
            )
        for each, fact in self.facts.items():
            allowed = (before, self.to) if each in inputs else range(before, self.to + 1)
            if fact.partitions not in allowed:
                raise ToolRefused(
                    f"{each} has {fact.partitions} partitions; the state has {before} and is to have {self.to}"
                )
        return before

    def _read_states(self) -> None:
        """Read the old states, and check that they include every record of the inputs.

        If an input already has its new partitions, the service cannot process newer records. Such a record may wait if
        it is in the partition that will hold its key.
        """
        self.redistribution.read(self.facts)
        for topic in self.names.inputs:
            if behind := list(self._behind(topic)):
                raise ToolRefused(
                    f"{topic}: records are not processed yet: {'; '.join(behind)}. Nothing was changed. Next: stop the "
                    f"producers, let the service process the rest, stop it and run the command again"
                )
        self.redistribution.compare()

    def _behind(self, topic: str) -> Iterator[str]:
        for partition, commit_record in enumerate(self.redistribution.commit_records):
            position = commit_record.positions[topic]
            unread = self.stopped.unread(topic, partition, position)
            if any(not self._is_placed(topic, message, partition) for message in unread):
                yield f"partition {partition} at {position}, end {self.watch.ends[topic, partition]}"

    def _is_placed(self, topic: str, message: Message, partition: int) -> bool:
        if self.facts[topic].partitions != self.to:
            return False
        key = message.key()
        return key is None or self.layout.of_record(key, self.to) == partition

    # After

    def _grow(self, *names: str) -> dict[str, TopicFacts]:
        topics = TopicAdmin(self.stopped.admin)
        for topic in names:
            if self.facts[topic].partitions < self.to:
                topics.grow(topic, self.to)
        until, seen, facts = time.monotonic() + _GROWTH_PATIENCE, 0, self.facts
        while seen < _SEEN:
            if time.monotonic() > until:
                raise StartError(
                    f"{', '.join(names)}: add partitions up to {self.to}: the brokers do not show them after "
                    f"{_GROWTH_PATIENCE:.0f} s. The state was not replaced. Next: run the command again"
                )
            facts = self.stopped.facts()
            seen = seen + 1 if all(facts[topic].partitions == self.to for topic in names) else 0
            time.sleep(0.05)
        return facts

    def _grow_side_topics(self) -> None:
        """Add partitions to the topics of commands, dead letters, retries and replies that exist."""
        wanted = [self.names.control, *filter(self.names.follows_input, output_topics(self.stopped.kind, self.names))]
        for topic, there in self.stopped.admin.describe(wanted).items():
            if there is not None and there.partitions < self.to:
                TopicAdmin(self.stopped.admin).grow(topic, self.to)

    def _adoption(self, partition: int, lineage: str, facts: Mapping[str, TopicFacts]) -> Adoption:
        place = self.stopped.place(partition, self.to, facts)
        old = self.redistribution.commit_records[partition] if partition < self.before else None
        if old is None and self.stopped.commit_record(partition) is not None:
            raise ToolRefused(
                f"{self.names.changelog}[{partition}] already holds a commit record. The state was not replaced"
            )
        return self.redistribution.adoption(self.stopped, place, lineage, old, self._inputs(partition))

    def _inputs(self, partition: int) -> dict[str, int]:
        """Return the next offsets of an old partition; a new partition starts at its first records."""
        if partition < self.before:
            return inputs_at(self.redistribution.commit_records[partition], self.names)
        there = [topic for topic in self.names.inputs if partition < self.facts[topic].partitions]
        return {topic: self.stopped.bounds(topic, partition)[0] if topic in there else 0 for topic in self.names.inputs}
