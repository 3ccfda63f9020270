"""`holdfast state repartition`: a stopped service's state dealt out to more partitions of its input (rule M2)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

import msgspec

from holdfast.config.settings import Settings
from holdfast.errors import StartError, ToolRefused
from holdfast.kafka.admin import TopicFacts
from holdfast.kafka.hold import GroupHold
from holdfast.kafka.topic_admin import TopicAdmin
from holdfast.names import Names
from holdfast.record import Message
from holdfast.snapshot import adopt, digest
from holdfast.snapshot.adopt import Adoption, Reason
from holdfast.snapshot.digest import MODULUS
from holdfast.snapshot.records import FullRef, Mark
from holdfast.snapshot.state import State
from holdfast.surgery.bench import Bench, Found, HandlerOf
from holdfast.surgery.layout import KeyOf, Layout, Partitioner

TOOL: Final = "state repartition"
#: so often in a row a grown topic must be told with its new size
_SEEN: Final = 8
_GROWTH_PATIENCE: Final = 30.0


class Share(msgspec.Struct, kw_only=True):
    """One partition before and after; what did not exist before is None."""

    partition: int
    position: int
    old_keys: int | None = None
    keys: int
    digest: str
    transaction: int | None = None


class Repartitioned(msgspec.Struct, kw_only=True):
    """`lineage` is the new one, '' in a dry run; the digest is that of all partitions together, before and after."""

    lineage: str = ""
    before: int
    after: int
    keys: int
    moved: int
    digest: str
    partitions: list[Share]


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
) -> Repartitioned:
    """Deal the state of a stopped service out to `to` partitions, growing its topics. All of it is held in memory.

    The producers must have stopped: the input is watched for `quiet` seconds at least. The input may have been grown
    already.

    :raises ToolRefused: somebody is in the group, a record is not handled yet or comes meanwhile, an effect is owed,
        or a key lies where the partitioner would not have put it. Nothing was changed, except perhaps topics grown.
    :raises StateRefused: a partition could not be restored. :raises UsageError: see `Layout`.
    """
    with closing(Bench(settings, names, handler, TOOL)) as bench:
        work = _Repartition(bench, to, Layout(partitioner, keys, bench.new_state(0).tables), quiet)
        if dry_run:
            return work.shown()
        with GroupHold(settings, names, bench.admin, work.facts[names.input].partitions) as hold:
            return work.adopt(hold, reason)


class _Repartition:
    def __init__(self, bench: Bench, to: int, layout: Layout, quiet: float) -> None:
        self.bench, self.to, self.layout, self.quiet = bench, to, layout, quiet
        self.names = bench.names
        self.facts = bench.facts()
        self.before = self._count_before()
        self._since = time.monotonic()
        self._ends = self._input_ends()

    def shown(self) -> Repartitioned:
        found = self._found()
        new, moved = self._dealt(found)
        return self._told(found, new, moved)

    def adopt(self, hold: GroupHold, reason: Reason) -> Repartitioned:
        self.bench.fence(range(self.to))
        found = self._found()
        new, moved = self._dealt(found)
        # Ours first and the input last, when all is written: while it grows, a producer may begin to place keys anew.
        facts = self._grow(self.names.increment, self.names.full)
        self._grow_control()
        lineage = adopt.new_lineage()
        adoptions = [self._adoption(p, found, new[p], lineage, facts) for p in range(self.to)]
        self._require_quiet()
        self._grow(self.names.input)
        self._require_quiet()
        marks = self.bench.adopt(adoptions, hold.membership(), reason)
        told = self._told(found, new, moved)
        told.lineage = lineage
        for share in told.partitions:
            share.transaction = marks[share.partition].n
        return told

    # Before

    def _count_before(self) -> int:
        """:raises ToolRefused: there is nothing to do, or no way to do it."""
        topic, first = self.names.input, self.bench.mark(0)
        if first is None:
            raise ToolRefused(f"{self.names.increment}[0] holds no mark: there is no state to deal out")
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

    def _found(self) -> list[Found]:
        """The states of all old partitions; every record of the input must be in them.

        Where the input has its new partitions already the service cannot handle what came since: such a record may
        wait, if it lies where the new partitions would have it, for then it will meet its key's state.
        """
        found = [self.bench.find(self.bench.place(p, self.before, self.facts)) for p in range(self.before)]
        behind = []
        for partition, each in enumerate(found):
            position = each.mark.positions[self.names.input]
            for message in self.bench.unread(partition, position):
                if not self._is_placed(message, partition):
                    behind.append(f"partition {partition} at {position}, end {self._ends[partition]}")
                    break
        if behind:
            raise ToolRefused(
                f"{self.names.input}: records are not handled yet: {'; '.join(behind)}. Stop the producers, let the "
                f"service handle the rest, stop it, try again. Nothing was changed"
            )
        owed = [f"partition {p}: {len(each.mark.effects)}" for p, each in enumerate(found) if each.mark.effects]
        if owed:
            raise ToolRefused(
                f"side effects are owed ({', '.join(owed)}) and belong to a partition: run the service until they are "
                f"done. Nothing was changed"
            )
        return found

    def _is_placed(self, message: Message, partition: int) -> bool:
        if self.facts[self.names.input].partitions != self.to:
            return False
        key = message.key()
        return key is None or self.layout.of_record(key, self.to) == partition

    def _dealt(self, found: Sequence[Found]) -> tuple[list[State], int]:
        """The new states; counts and digests together must be what they were: a digest is a sum over keys."""
        new = [self.bench.new_state(partition) for partition in range(self.to)]
        moved = self.layout.deal([each.state for each in found], new)
        old_sum, new_sum = (sum(state.digest for state in s) % MODULUS for s in ([f.state for f in found], new))
        old_keys, new_keys = sum(each.state.keys for each in found), sum(state.keys for state in new)
        if (old_sum, old_keys) != (new_sum, new_keys):
            raise ToolRefused(
                f"{old_keys} keys with digest {digest.show(old_sum)} have become {new_keys} with "
                f"{digest.show(new_sum)}: a key was in several partitions. Nothing was changed"
            )
        return new, moved

    def _require_quiet(self) -> None:
        """:raises ToolRefused: the input has grown since this began."""
        time.sleep(max(0.0, self._since + self.quiet - time.monotonic()))
        ends = self._input_ends()
        before = {partition: self._ends.get(partition, 0) for partition in ends}
        grown = [f"partition {p} from {before[p]} to {end}" for p, end in ends.items() if end > before[p]]
        if grown:
            raise ToolRefused(
                f"{self.names.input}: producers keep writing: {'; '.join(grown)}. Stop them, let the service handle "
                f"the rest, stop it, try again. Nothing was adopted"
            )

    def _input_ends(self) -> dict[int, int]:
        count = self.bench.facts()[self.names.input].partitions
        return {p: self.bench.bounds(self.names.input, p)[1] for p in range(count)}

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

    def _grow_control(self) -> None:
        there = self.bench.admin.describe([self.names.control])[self.names.control]
        if there is not None and there.partitions < self.to:
            TopicAdmin(self.bench.admin).grow(self.names.control, self.to)

    def _adoption(
        self, partition: int, found: Sequence[Found], state: State, lineage: str, facts: Mapping[str, TopicFacts]
    ) -> Adoption:
        place = self.bench.place(partition, self.to, facts)
        like = _like([each.mark for each in found], self.before)
        old = found[partition].mark if partition < self.before else None
        if old is None and self.bench.mark(partition) is not None:
            raise ToolRefused(f"{self.names.increment}[{partition}] holds a mark already. Nothing was adopted")
        position = self._position(partition, found)
        n = 0 if old is None else old.n + 1
        base: FullRef | None = self.bench.write(place, lineage, n, position, state, like)
        return Adoption(
            place=place,
            old=old,
            source=like,
            lineage=lineage,
            base=base,
            digest=state.digest,
            keys=state.keys,
            position=position,
            schemas=like.schemas,
        )

    def _position(self, partition: int, found: Sequence[Found]) -> int:
        """Where the old ones stand; a new one begins with its first record."""
        if partition < self.before:
            return found[partition].mark.positions[self.names.input]
        if partition < self.facts[self.names.input].partitions:
            return self.bench.bounds(self.names.input, partition)[0]
        return 0

    def _told(self, found: Sequence[Found], new: Sequence[State], moved: int) -> Repartitioned:
        shares = [
            Share(
                partition=p,
                position=self._position(p, found),
                old_keys=found[p].state.keys if p < self.before else None,
                keys=state.keys,
                digest=digest.show(state.digest),
            )
            for p, state in enumerate(new)
        ]
        return Repartitioned(
            before=self.before,
            after=self.to,
            keys=sum(state.keys for state in new),
            moved=moved,
            digest=digest.show(sum(state.digest for state in new) % MODULUS),
            partitions=shares,
        )


def _like(marks: Sequence[Mark], partitions: int) -> Mark:
    """What the new partitions come from: no state of their own, the newest format, the highest versions of values."""
    schemas: dict[str, int] = {}
    for mark in marks:
        schemas |= {table: max(version, schemas.get(table, 1)) for table, version in mark.schemas.items()}
    return msgspec.structs.replace(
        marks[0],
        format=max(mark.format for mark in marks),
        schemas=schemas,
        positions={},
        digest=digest.to_bytes(0),
        keys=0,
        partitions=partitions,
        effects=(),
    )
