"""`statehold state repartition --into TOPIC --barrier ...`: moves a stopped service's state to another input topic.

The barrier is the end of the old input, for each partition. The state must be exactly the state at the barrier, and no
record may follow it, because the service would never process that record. The new input is read from its first record.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from statehold.admin.initial_commit import control_position
from statehold.admin.state.key_layout import KeyLayout, KeyOf, Partitioner
from statehold.admin.state.redistribute import InputWatch, Redistribution, Repartitioned
from statehold.admin.state.repartition import TOOL
from statehold.admin.state.stopped_service import HandlerOf, StoppedService
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateMoved, ToolRefused, TopicMissing, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot import state_replacement
from statehold.snapshot.state_replacement import Adoption, DepartingPartition, ReplacementReason

#: Limit of the count of records beyond a barrier.
_COUNTED = 1000

#: partition -> position; one position for all; None: the current end of each.
Barrier = Mapping[int, int] | int | None


def move(
    settings: Settings,
    names: Names,
    handler: HandlerOf,
    into: str,
    to: int,
    barrier: Barrier,
    partitioner: Partitioner,
    keys: Mapping[str, KeyOf],
    reason: ReplacementReason,
    *,
    quiet: float = 5.0,
    dry_run: bool = False,
    spool_dir: Path | None = None,
) -> Repartitioned:
    """Redistribute the state at the barrier to the `to` partitions of another input, and close the old one.

    Producers may already write to `into`. Missing topics are created, including changelog and snapshot. One transaction
    replaces the state of all new partitions and marks all old ones as moved, so that no owner continues from those.

    :raises ToolRefused: the group has a member; a partition is not at its barrier, or records follow it (the text names
        the lag); an effect or a command is pending; the new topics hold a commit record. The state was not replaced.
    :raises StateRefused: a partition could not be restored. :raises UsageError: see `KeyLayout`; or the barrier is
        not valid.
    """
    target = Names(names.service, into, names.namespace)
    if into == names.input:
        raise UsageError(f"--into {into}: this is the current input. Next: omit --into to add partitions to it")
    with (
        closing(StoppedService(settings, names, handler, TOOL)) as old,
        closing(StoppedService(settings, target, handler, TOOL)) as new,
    ):
        layout = KeyLayout(partitioner, keys, old.new_state(0).tables)
        with closing(_Move(settings, old, new, to, layout, quiet, spool_dir)) as work:
            if dry_run:
                return work.shown(barrier)
            with GroupLock(settings, names, old.admin, work.before) as hold:
                return work.adopt(barrier, hold, reason)


class _Move:
    def __init__(
        self,
        settings: Settings,
        old: StoppedService,
        new: StoppedService,
        to: int,
        layout: KeyLayout,
        quiet: float,
        spool_dir: Path | None,
    ) -> None:
        self.settings, self.old, self.new, self.to = settings, old, new, to
        self.facts = old.facts()
        self.before = self._count_before()
        self.watch = InputWatch(old, quiet)
        self.redistribution = Redistribution(old, layout, self.before, to, spool_dir)

    def close(self) -> None:
        self.redistribution.close()

    def shown(self, barrier: Barrier) -> Repartitioned:
        self._read_states(barrier)
        there = self.new.admin.describe([self.new.names.input])[self.new.names.input]
        self._require_count(there)
        starts = [self._start(p) for p in range(self.to)] if there is not None else [0] * self.to
        return self._into(self.redistribution.report(starts))

    def adopt(self, barrier: Barrier, hold: GroupLock, reason: ReplacementReason) -> Repartitioned:
        self.old.fence(range(self.before))
        self._read_states(barrier)
        facts = self._make_topics()
        self.new.fence(range(self.to))
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.to)]
        self.watch.require_quiet()
        leaving = [
            DepartingPartition(self.old.place(p, self.before, self.facts), commit_record, self.new.names.input)
            for p, commit_record in enumerate(self.redistribution.commit_records)
        ]
        commit_records = self.new.adopt(adoptions, hold.membership(), reason, leaving)
        return self._into(self.redistribution.adopted(adoptions, commit_records))

    # Before

    def _count_before(self) -> int:
        names, first = self.old.names, self.old.commit_record(0)
        if first is None:
            raise ToolRefused(f"{names.changelog}[0]: read the state: there is no commit record. Nothing was changed")
        if first.moved:
            raise StateMoved(
                f"the state has already moved to {first.moved}", topic=names.input, partition=0, position=-1
            )
        found = {topic: fact.partitions for topic, fact in self.facts.items() if fact.partitions != first.partitions}
        if found:
            shown = ", ".join(f"{topic} has {count}" for topic, count in found.items())
            raise ToolRefused(f"the state has {first.partitions} partitions, {shown}. Nothing was changed")
        return first.partitions

    def _read_states(self, barrier: Barrier) -> None:
        """:raises ToolRefused: a partition is not at its barrier, or a record follows it."""
        ends = self._barrier(barrier)
        self.redistribution.read(self.facts)
        wrong = [text for p in range(self.before) if (text := self._lag(p, ends[p]))]
        if wrong:
            raise ToolRefused(f"{self.old.names.input}: {'; '.join(wrong)}. Nothing was changed")
        self.redistribution.compare()

    def _barrier(self, barrier: Barrier) -> dict[int, int]:
        """:raises UsageError: the barrier does not name each partition, or is behind the end of the input."""
        if barrier is None:
            return dict(self.watch.ends)
        named = dict.fromkeys(range(self.before), barrier) if isinstance(barrier, int) else dict(barrier)
        if sorted(named) != list(range(self.before)):
            raise UsageError(f"the barrier must name each of the partitions 0 to {self.before - 1}, or be 'end'")
        for partition, position in named.items():
            if position > self.watch.ends[partition]:
                raise UsageError(
                    f"{self.old.names.input}[{partition}] ends at {self.watch.ends[partition]}: the barrier "
                    f"{position} is behind its end"
                )
        return named

    def _lag(self, partition: int, barrier: int) -> str:
        """Describe why the partition is not exactly at its barrier; '' if it is. Ignores transaction markers."""
        names, commit_record = self.old.names, self.redistribution.commit_records[partition]
        position = commit_record.positions[names.input]
        if position > barrier:
            return (
                f"partition {partition} is at {position}, behind its barrier {barrier}: its state includes records "
                f"after the barrier; name the offset where the producers stopped"
            )
        unread = [message.offset() or 0 for message in islice(self.old.unread(partition, position), _COUNTED)]
        more = "at least " if len(unread) == _COUNTED else ""
        before = [offset for offset in unread if offset < barrier]
        if before:
            return (
                f"partition {partition} is at {position}, its barrier at {barrier}: {more}{len(before)} records are "
                f"not processed yet; start the service, wait until it reaches the barrier, stop it"
            )
        if unread:
            return (
                f"partition {partition}: {more}{len(unread)} records from offset {unread[0]} follow its barrier "
                f"{barrier} and would never be processed: a producer still writes there. Write them to "
                f"{self.new.names.input}, or let the service process them and name a later barrier"
            )
        obeyed = commit_record.positions.get(names.control, 0)
        waiting = control_position(self.old.admin, names, partition) - obeyed
        return f"partition {partition}: {waiting} command(s) are pending on {names.control}" if waiting > 0 else ""

    # After

    def _require_count(self, there: TopicFacts | None) -> None:
        if there is not None and there.partitions != self.to:
            raise ToolRefused(f"{there.name} has {there.partitions} partitions, not {self.to}. Nothing was changed")

    def _make_topics(self) -> dict[str, TopicFacts]:
        names, replication = self.new.names, self.facts[self.old.names.input].replication
        there = self.new.admin.describe([names.input])[names.input]
        self._require_count(there)
        controlled = self.old.admin.describe([self.old.names.control])[self.old.names.control] is not None
        ServiceTopics(self.settings, names).make(replication, {names.input: self.to}, control=controlled)
        facts = self.new.facts()
        wrong = [f"{topic} has {fact.partitions}" for topic, fact in facts.items() if fact.partitions != self.to]
        if wrong:
            raise TopicMissing(f"{', '.join(wrong)} partitions, not {self.to}. The state was not replaced")
        held = [p for p in range(self.to) if self.new.commit_record(p) is not None]
        if held:
            raise ToolRefused(
                f"{names.changelog}[{held[0]}]: move the state there: the partition already holds a commit record, "
                f"perhaps of `statehold topics create`. The state was not replaced. Next: delete {names.changelog} and "
                f"{names.snapshot}, then run the command again"
            )
        return facts

    def _adoption(self, partition: int, lineage: str, facts: Mapping[str, TopicFacts]) -> Adoption:
        place = self.new.place(partition, self.to, facts)
        control = control_position(self.new.admin, self.new.names, partition)
        return self.redistribution.adoption(self.new, place, lineage, None, self._start(partition), control)

    def _start(self, partition: int) -> int:
        """:raises ToolRefused: retention has deleted records of the new input."""
        low, _ = self.new.bounds(self.new.names.input, partition)
        if low > 0:
            raise ToolRefused(
                f"{self.new.names.input}[{partition}] begins at {low}: retention has deleted unprocessed records. "
                f"The state was not replaced"
            )
        return low

    def _into(self, result: Repartitioned) -> Repartitioned:
        return msgspec.structs.replace(result, into=self.new.names.input)
