"""`statehold state repartition --into TOPIC --barrier ...`: a stopped service's state goes on in another input topic.

The barrier says where the old input ends, partition by partition. The state must be exactly that of the barrier, and
nothing may lie beyond it: what is there would be handled by nobody. The new input is handled from its first record.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from statehold.admin.initial_commit import control_position
from statehold.admin.state.key_layout import KeyOf, Layout, Partitioner
from statehold.admin.state.redistribute import Dealing, Repartitioned, Watch
from statehold.admin.state.repartition import TOOL
from statehold.admin.state.stopped_service import Bench, HandlerOf
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateMoved, ToolRefused, TopicMissing, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupHold
from statehold.snapshot import state_replacement
from statehold.snapshot.state_replacement import Adoption, Leaving, Reason

#: so many records are counted beyond a barrier, to name them
_COUNTED = 1000

#: partition -> position, one position for all, or where each ends now
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
    reason: Reason,
    *,
    quiet: float = 5.0,
    dry_run: bool = False,
    spool_dir: Path | None = None,
) -> Repartitioned:
    """Deal the state at the barrier out to the `to` partitions of another input, and close the old one.

    Producers may write to `into` already. ServiceTopics that are missing are created, our own for it among them. One
    transaction adopts all new partitions and marks all old ones as moved: no owner can go on from those.

    :raises ToolRefused: somebody is in the group; a partition is not at the barrier, or records lie beyond it (each is
        named with its lag); an effect is owed, a command waits; the new topics hold a mark. Nothing was adopted.
    :raises StateRefused: a partition could not be restored. :raises UsageError: see `Layout`; or the barrier is none.
    """
    target = Names(names.service, into, names.namespace)
    if into == names.input:
        raise UsageError(f"--into {into}: that is the input it has; without --into its partitions are grown")
    with closing(Bench(settings, names, handler, TOOL)) as old, closing(Bench(settings, target, handler, TOOL)) as new:
        layout = Layout(partitioner, keys, old.new_state(0).tables)
        with closing(_Move(settings, old, new, to, layout, quiet, spool_dir)) as work:
            if dry_run:
                return work.shown(barrier)
            with GroupHold(settings, names, old.admin, work.before) as hold:
                return work.adopt(barrier, hold, reason)


class _Move:
    def __init__(
        self, settings: Settings, old: Bench, new: Bench, to: int, layout: Layout, quiet: float, spool_dir: Path | None
    ) -> None:
        self.settings, self.old, self.new, self.to = settings, old, new, to
        self.facts = old.facts()
        self.before = self._count_before()
        self.watch = Watch(old, quiet)
        self.dealing = Dealing(old, layout, self.before, to, spool_dir)

    def close(self) -> None:
        self.dealing.close()

    def shown(self, barrier: Barrier) -> Repartitioned:
        self._deal(barrier)
        there = self.new.admin.describe([self.new.names.input])[self.new.names.input]
        self._require_count(there)
        starts = [self._start(p) for p in range(self.to)] if there is not None else [0] * self.to
        return self._into(self.dealing.told(starts))

    def adopt(self, barrier: Barrier, hold: GroupHold, reason: Reason) -> Repartitioned:
        self.old.fence(range(self.before))
        self._deal(barrier)
        facts = self._make_topics()
        self.new.fence(range(self.to))
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.to)]
        self.watch.require_quiet()
        leaving = [
            Leaving(self.old.place(p, self.before, self.facts), mark, self.new.names.input)
            for p, mark in enumerate(self.dealing.marks)
        ]
        marks = self.new.adopt(adoptions, hold.membership(), reason, leaving)
        return self._into(self.dealing.adopted(adoptions, marks))

    # Before

    def _count_before(self) -> int:
        names, first = self.old.names, self.old.mark(0)
        if first is None:
            raise ToolRefused(f"{names.changelog}[0] holds no mark: there is no state to deal out")
        if first.moved:
            raise StateMoved(
                f"the state has moved to {first.moved} already", topic=names.input, partition=0, position=-1
            )
        found = {topic: fact.partitions for topic, fact in self.facts.items() if fact.partitions != first.partitions}
        if found:
            shown = ", ".join(f"{topic} has {count}" for topic, count in found.items())
            raise ToolRefused(f"the state is one of {first.partitions} partitions, {shown}. Nothing was changed")
        return first.partitions

    def _deal(self, barrier: Barrier) -> None:
        """:raises ToolRefused: a partition is not at the barrier, or something lies beyond it."""
        ends = self._barrier(barrier)
        self.dealing.read(self.facts)
        wrong = [text for p in range(self.before) if (text := self._lag(p, ends[p]))]
        if wrong:
            raise ToolRefused(f"{self.old.names.input}: {'; '.join(wrong)}. Nothing was changed")
        self.dealing.weigh()

    def _barrier(self, barrier: Barrier) -> dict[int, int]:
        """:raises UsageError: it does not name each partition, or lies where no record can be."""
        if barrier is None:
            return dict(self.watch.ends)
        named = dict.fromkeys(range(self.before), barrier) if isinstance(barrier, int) else dict(barrier)
        if sorted(named) != list(range(self.before)):
            raise UsageError(f"the barrier must name each of the partitions 0 to {self.before - 1}, or be 'end'")
        for partition, position in named.items():
            if position > self.watch.ends[partition]:
                raise UsageError(
                    f"{self.old.names.input}[{partition}] ends at {self.watch.ends[partition]}: {position} is no "
                    f"barrier of it"
                )
        return named

    def _lag(self, partition: int, barrier: int) -> str:
        """What is wrong with a partition, or ''. Markers of transactions are no records."""
        names, mark = self.old.names, self.dealing.marks[partition]
        position = mark.positions[names.input]
        if position > barrier:
            return (
                f"partition {partition} is at {position}, behind its barrier {barrier}: its state holds records that "
                f"do not count; name the barrier where the producers really stopped"
            )
        unread = [message.offset() or 0 for message in islice(self.old.unread(partition, position), _COUNTED)]
        more = "at least " if len(unread) == _COUNTED else ""
        before = [offset for offset in unread if offset < barrier]
        if before:
            return (
                f"partition {partition} is at {position}, its barrier at {barrier}: {more}{len(before)} records are "
                f"not handled yet; start the service, let it reach the barrier, stop it"
            )
        if unread:
            return (
                f"partition {partition}: {more}{len(unread)} records from {unread[0]} on lie beyond its barrier "
                f"{barrier} and would be handled by nobody: a producer still writes there. Write them to "
                f"{self.new.names.input}, or let the service handle them and name a later barrier"
            )
        obeyed = mark.positions.get(names.control, 0)
        waiting = control_position(self.old.admin, names, partition).get(names.control, 0) - obeyed
        return f"partition {partition}: {waiting} command(s) wait in {names.control}" if waiting > 0 else ""

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
            raise TopicMissing(f"{', '.join(wrong)} partitions, not {self.to}. Nothing was adopted")
        held = [p for p in range(self.to) if self.new.mark(p) is not None]
        if held:
            raise ToolRefused(
                f"{names.changelog}[{held[0]}] holds a mark: that topic has begun a life of its own (`topics create` "
                f"is not for it). Delete {names.changelog} and {names.snapshot}, then try again. Nothing was adopted"
            )
        return facts

    def _adoption(self, partition: int, lineage: str, facts: Mapping[str, TopicFacts]) -> Adoption:
        place = self.new.place(partition, self.to, facts)
        control = control_position(self.new.admin, self.new.names, partition).get(self.new.names.control, 0)
        return self.dealing.adoption(self.new, place, lineage, None, self._start(partition), control)

    def _start(self, partition: int) -> int:
        """:raises ToolRefused: records of the new input are gone before anybody has handled them."""
        low, _ = self.new.bounds(self.new.names.input, partition)
        if low > 0:
            raise ToolRefused(
                f"{self.new.names.input}[{partition}] begins at {low}: records that nobody has handled are gone. "
                f"Nothing was adopted"
            )
        return low

    def _into(self, told: Repartitioned) -> Repartitioned:
        return msgspec.structs.replace(told, into=self.new.names.input)
