"""`statehold state repartition --into TOPIC --barrier ...`: moves a stopped service's state to other input topics.

The barrier is the end of each old input, for each partition. The state must be exactly the state at the barrier, and no
record may follow it, because the service would never process that record. New inputs are read from their first record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from statehold.admin.initial_commit import control_position
from statehold.admin.state.key_layout import KeyLayout, KeyOf
from statehold.admin.state.position_args import InputPartition, everything
from statehold.admin.state.redistribute import InputWatch, Redistribution, Repartitioned
from statehold.admin.state.repartition import TOOL
from statehold.admin.state.stopped_service import StoppedService
from statehold.admin.topics import ServiceTopics
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.common.partitioner import Partitioner
from statehold.config.settings import Settings
from statehold.errors import StateMoved, ToolRefused, TopicMissing, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot import state_replacement
from statehold.snapshot.state_replacement import Adoption, DepartingPartition, ReplacementReason

#: Limit of the count of records beyond a barrier.
_COUNTED = 1000

#: (input and) partition -> offset; one offset for all partitions of the only input; None: the current end of each.
Barrier = Mapping[InputPartition, int] | Mapping[int, int] | int | None


def move(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
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
    """Redistribute the state at the barrier to the `to` partitions of other inputs, and close the old ones.

    `into` names them in the order of the old ones, with commas between. Producers may already write to them. Missing
    topics are created, including changelog and snapshot. One transaction replaces the state of all new partitions and
    marks all old ones as moved, so that no owner continues from those.

    :raises ToolRefused: the group has a member; a partition is not at its barrier, or records follow it (the text names
        the lag); an effect or a command is pending; the new topics hold a commit record. The state was not replaced.
    :raises StateRefused: a partition could not be restored. :raises UsageError: see `KeyLayout`; or the barrier is
        not valid.
    """
    if names.rekeys:
        raise UsageError(
            f"--into {into}: the service sends to itself by another key ({', '.join(names.rekeys)}), and only a change "
            f"of the same topics keeps what is on its way. Next: omit --into to add partitions to the current inputs"
        )
    first, *others = into.split(",")
    target = Names(names.service, first, names.namespace, tuple(others))
    if kept := sorted(set(target.inputs) & set(names.inputs)):
        raise UsageError(
            f"--into {into}: {kept[0]} is a current input. Next: omit --into to add partitions to the current inputs"
        )
    if len(set(target.inputs)) != len(names.inputs):
        raise UsageError(
            f"--into {into}: the service reads {', '.join(names.inputs)}. Next: name a new topic for each, in this "
            f"order"
        )
    with (
        closing(StoppedService(settings, names, handler, TOOL)) as old,
        closing(StoppedService(settings, target, handler, TOOL)) as new,
    ):
        layout = KeyLayout(partitioner, keys, old.new_state(0).tables)
        with closing(_Move(settings, old, new, to, layout, quiet, spool_dir)) as work:
            if dry_run:
                return work.shown(barrier)
            with GroupLock(settings, names, old.admin, work.before, TOOL) as hold:
                return work.replace_state(barrier, hold, reason)


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
        there = self._new_inputs()
        starts = [sum(self._starts(p, there).values()) for p in range(self.to)]
        return self._into(self.redistribution.report(starts))

    def replace_state(self, barrier: Barrier, hold: GroupLock, reason: ReplacementReason) -> Repartitioned:
        self.old.fence(range(self.before))
        self._read_states(barrier)
        facts = self._make_topics()
        self.new.fence(range(self.to))
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.to)]
        self.watch.require_quiet()
        leaving = [
            DepartingPartition(self.old.place(p, self.before, self.facts), commit_record, self._listed())
            for p, commit_record in enumerate(self.redistribution.commit_records)
        ]
        commit_records = self.new.replace_state(adoptions, hold.membership(), reason, leaving)
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
        for topic in self.old.names.inputs:
            wrong = [text for p in range(self.before) if (text := self._lag(topic, p, ends[topic, p]))]
            if wrong:
                raise ToolRefused(f"{topic}: {'; '.join(wrong)}. Nothing was changed")
        waiting = [text for p in range(self.before) if (text := self._commands(p))]
        if waiting:
            raise ToolRefused(f"{self.old.names.input}: {'; '.join(waiting)}. Nothing was changed")
        self.redistribution.compare()

    def _barrier(self, barrier: Barrier) -> dict[tuple[str, int], int]:
        """:raises UsageError: the barrier does not name each partition, or is behind the end of an input."""
        if barrier is None:
            return dict(self.watch.ends)
        inputs = self.old.names.inputs
        if isinstance(barrier, int):
            barrier = dict.fromkeys(range(self.before), barrier)
        found = everything(dict(barrier.items()), "--barrier", inputs, self.before)
        for (topic, partition), position in found.items():
            if position > self.watch.ends[topic, partition]:
                raise UsageError(
                    f"{topic}[{partition}] ends at {self.watch.ends[topic, partition]}: the barrier {position} is "
                    f"behind its end"
                )
        return found

    def _lag(self, topic: str, partition: int, barrier: int) -> str:
        """Describe why the partition is not exactly at its barrier; '' if it is. Ignores transaction markers."""
        position = self.redistribution.commit_records[partition].positions[topic]
        if position > barrier:
            return (
                f"partition {partition} is at {position}, behind its barrier {barrier}: its state includes records "
                f"after the barrier; name the offset where the producers stopped"
            )
        unread = [message.offset() or 0 for message in islice(self.old.unread(topic, partition, position), _COUNTED)]
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
                f"{self._successor(topic)}, or let the service process them and name a later barrier"
            )
        return ""

    def _successor(self, topic: str) -> str:
        return self.new.names.inputs[self.old.names.inputs.index(topic)]

    def _commands(self, partition: int) -> str:
        """Describe the commands that the partition has not executed; '' without any."""
        names = self.old.names
        obeyed = self.redistribution.commit_records[partition].positions.get(names.control, 0)
        waiting = control_position(self.old.admin, names, partition) - obeyed
        return f"partition {partition}: {waiting} command(s) are pending on {names.control}" if waiting > 0 else ""

    # After

    def _new_inputs(self) -> set[str]:
        """Return the new inputs that exist. :raises ToolRefused: one has another number of partitions."""
        facts = self.new.admin.describe(list(self.new.names.inputs))
        for fact in facts.values():
            if fact is not None and fact.partitions != self.to:
                raise ToolRefused(f"{fact.name} has {fact.partitions} partitions, not {self.to}. Nothing was changed")
        return {topic for topic, fact in facts.items() if fact is not None}

    def _make_topics(self) -> dict[str, TopicFacts]:
        names, replication = self.new.names, self.facts[self.old.names.input].replication
        self._new_inputs()
        controlled = self.old.admin.describe([self.old.names.control])[self.old.names.control] is not None
        ServiceTopics(self.settings, names).make(replication, dict.fromkeys(names.inputs, self.to), control=controlled)
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
        names = self.new.names
        control = control_position(self.new.admin, names, partition)
        before = self.redistribution.commit_records
        begin = before[partition].n + 1 if partition < len(before) else 0
        return self.redistribution.adoption(
            self.new, place, lineage, None, self._starts(partition, names.inputs), control, begin
        )

    def _starts(self, partition: int, there: Collection[str]) -> dict[str, int]:
        """Return the first offsets of the new inputs; `there` exist.

        :raises ToolRefused: retention has deleted records of a new input.
        """
        for topic in there:
            low, _ = self.new.bounds(topic, partition)
            if low > 0:
                raise ToolRefused(
                    f"{topic}[{partition}] begins at {low}: retention has deleted unprocessed records. The state was "
                    f"not replaced"
                )
        return dict.fromkeys(self.new.names.inputs, 0)

    def _listed(self) -> str:
        return ",".join(self.new.names.inputs)

    def _into(self, result: Repartitioned) -> Repartitioned:
        return msgspec.structs.replace(result, into=self._listed())
