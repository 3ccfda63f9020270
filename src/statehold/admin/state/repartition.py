"""`statehold state repartition`: a stopped service's state dealt out to more partitions of its input (rule M2)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from statehold.admin.state.key_layout import KeyOf, Layout, Partitioner
from statehold.admin.state.redistribute import Dealing, Repartitioned, Share, Watch
from statehold.admin.state.stopped_service import Bench, HandlerOf
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.declared.policies import failure_topics
from statehold.errors import StartError, ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.tools.group_lock import GroupHold
from statehold.record import Message
from statehold.snapshot import state_replacement
from statehold.snapshot.state_replacement import Adoption, Reason

__all__ = ["TOOL", "Repartitioned", "Share", "repartition"]

TOOL: Final = "state repartition"
#: so often in a row a grown topic must be told with its new size
_SEEN: Final = 8
_GROWTH_PATIENCE: Final = 30.0


def repartition(
    settings: Settings,
    names: Names,
    handler: HandlerOf,
    to: int,
    partitioner: Partitioner,
    keys: Mapping[str, KeyOf],
    reason: Reason,
    *,
    quiet: float = 5.0,
    dry_run: bool = False,
    spool_dir: Path | None = None,
) -> Repartitioned:
    """Deal the state of a stopped service out to `to` partitions, growing its topics.

    Memory holds one partition's state at a time; the rest waits in files under `spool_dir`.

    The producers must have stopped: the input is watched for `quiet` seconds at least. The input may have been grown
    already.

    :raises ToolRefused: somebody is in the group, a record is not handled yet or comes meanwhile, an effect is owed,
        or a key lies where the partitioner would not have put it. Nothing was changed, except perhaps topics grown.
    :raises StateRefused: a partition could not be restored. :raises UsageError: see `Layout`.
    """
    with closing(Bench(settings, names, handler, TOOL)) as bench:
        layout = Layout(partitioner, keys, bench.new_state(0).tables)
        with closing(_Repartition(bench, to, layout, quiet, spool_dir)) as work:
            if dry_run:
                return work.shown()
            with GroupHold(settings, names, bench.admin, work.facts[names.input].partitions) as hold:
                return work.adopt(hold, reason)


class _Repartition:
    def __init__(self, bench: Bench, to: int, layout: Layout, quiet: float, spool_dir: Path | None) -> None:
        self.bench, self.to, self.layout = bench, to, layout
        self.names = bench.names
        self.facts = bench.facts()
        self.before = self._count_before()
        self.watch = Watch(bench, quiet)
        self.dealing = Dealing(bench, layout, self.before, to, spool_dir)

    def close(self) -> None:
        self.dealing.close()

    def shown(self) -> Repartitioned:
        self._deal()
        return self.dealing.told([self._position(p) for p in range(self.to)])

    def adopt(self, hold: GroupHold, reason: Reason) -> Repartitioned:
        self.bench.fence(range(self.to))
        self._deal()
        # Ours first and the input last, when all is written: while it grows, a producer may begin to place keys anew.
        facts = self._grow(self.names.changelog, self.names.snapshot)
        self._grow_beside()
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.to)]
        self.watch.require_quiet()
        self._grow(self.names.input)
        self.watch.require_quiet()
        marks = self.bench.adopt(adoptions, hold.membership(), reason)
        return self.dealing.adopted(adoptions, marks)

    # Before

    def _count_before(self) -> int:
        """:raises ToolRefused: there is nothing to do, or no way to do it."""
        topic, first = self.names.input, self.bench.mark(0)
        if first is None:
            raise ToolRefused(f"{self.names.changelog}[0] holds no mark: there is no state to deal out")
        before, now = first.partitions, self.facts[topic].partitions
        if before == self.to:
            raise ToolRefused(f"the state of {self.names.group!r} is one of {before} partitions already")
        if self.to < before:
            raise ToolRefused(f"{topic}: {before} partitions cannot become {self.to}: Kafka takes none away")
        for each, fact in self.facts.items():
            if fact.partitions not in range(before, self.to + 1) or now not in (before, self.to):
                raise ToolRefused(
                    f"{each} has {fact.partitions} partitions; the state is one of {before} and is to be of {self.to}"
                )
        return before

    def _deal(self) -> None:
        """Every record of the input must be in the old states.

        Where the input has its new partitions already the service cannot handle what came since: such a record may
        wait, if it lies where the new partitions would have it, for then it will meet its key's state.
        """
        self.dealing.read(self.facts)
        behind = []
        for partition, mark in enumerate(self.dealing.marks):
            position = mark.positions[self.names.input]
            for message in self.bench.unread(partition, position):
                if not self._is_placed(message, partition):
                    behind.append(f"partition {partition} at {position}, end {self.watch.ends[partition]}")
                    break
        if behind:
            raise ToolRefused(
                f"{self.names.input}: records are not handled yet: {'; '.join(behind)}. Stop the producers, let the "
                f"service handle the rest, stop it, try again. Nothing was changed"
            )
        self.dealing.weigh()

    def _is_placed(self, message: Message, partition: int) -> bool:
        if self.facts[self.names.input].partitions != self.to:
            return False
        key = message.key()
        return key is None or self.layout.of_record(key, self.to) == partition

    # After

    def _grow(self, *names: str) -> dict[str, TopicFacts]:
        topics = TopicAdmin(self.bench.admin)
        for topic in names:
            if self.facts[topic].partitions < self.to:
                topics.grow(topic, self.to)
        until, seen, facts = time.monotonic() + _GROWTH_PATIENCE, 0, self.facts
        while seen < _SEEN:
            if time.monotonic() > until:
                raise StartError(f"grown to {self.to} partitions, but not told so within {_GROWTH_PATIENCE:.0f} s")
            facts = self.bench.facts()
            seen = seen + 1 if all(facts[topic].partitions == self.to for topic in names) else 0
            time.sleep(0.05)
        return facts

    def _grow_beside(self) -> None:
        """The control topic, dead letters and retry topics, where they are."""
        wanted = [self.names.control, *failure_topics(self.bench.kind, self.names)]
        for topic, there in self.bench.admin.describe(wanted).items():
            if there is not None and there.partitions < self.to:
                TopicAdmin(self.bench.admin).grow(topic, self.to)

    def _adoption(self, partition: int, lineage: str, facts: Mapping[str, TopicFacts]) -> Adoption:
        place = self.bench.place(partition, self.to, facts)
        old = self.dealing.marks[partition] if partition < self.before else None
        if old is None and self.bench.mark(partition) is not None:
            raise ToolRefused(f"{self.names.changelog}[{partition}] holds a mark already. Nothing was adopted")
        return self.dealing.adoption(self.bench, place, lineage, old, self._position(partition))

    def _position(self, partition: int) -> int:
        """Where the old ones stand; a new one begins with its first record."""
        if partition < self.before:
            return self.dealing.marks[partition].positions[self.names.input]
        if partition < self.facts[self.names.input].partitions:
            return self.bench.bounds(self.names.input, partition)[0]
        return 0
