"""A stopped service's state dealt out to other partitions: read one by one, spooled to disk, loaded one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from statehold.admin.state.key_layout import Layout, leave_own
from statehold.admin.state.open_failures import unsettled
from statehold.admin.state.spool import Spool
from statehold.admin.state.stopped_service import Bench
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.snapshot.format import digest
from statehold.snapshot.format.digest import MODULUS
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark
from statehold.snapshot.state import State
from statehold.snapshot.state_replacement import Adoption


class Share(msgspec.Struct, kw_only=True):
    """One partition before and after; what did not exist before, or does not exist any more, is None."""

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
    #: the input from now on, where that is another one
    into: str = ""


class Weight(msgspec.Struct, frozen=True):
    """What of a partition's state stays in memory."""

    keys: int
    digest: int


class Dealing:
    """The states of `before` old partitions, on their way into `to` new ones. Used by one thread."""

    def __init__(self, bench: Bench, layout: Layout, before: int, to: int, spool_dir: Path | None) -> None:
        self._bench, self._layout, self.before, self.to = bench, layout, before, to
        self._spool = Spool(to, spool_dir)
        #: of the old partitions
        self.marks: list[Mark] = []
        self.old: list[Weight] = []
        self.new: list[Weight] = []
        self.moved = 0

    def read(self, facts: Mapping[str, TopicFacts]) -> None:
        """Take the old partitions' states, one after the other.

        :raises ToolRefused: a key lies where the layout would not have put it, a side effect is owed, or a letter or a
            record that is tried later waits.
        :raises StateRefused: a partition could not be restored.
        """
        waiting: list[str] = []
        for partition in range(self.before):
            found = self._bench.find(self._bench.place(partition, self.before, facts))
            if text := unsettled(self._bench, found, partition):
                waiting.append(text)
                continue
            leave_own(found.state)
            for there, changes in self._layout.deal(found.state, partition, self.before, self.to):
                self._spool.add(there, changes)
                self.moved += len(changes.keys) if there != partition else 0
            self.marks.append(found.mark)
            self.old.append(Weight(found.state.keys, found.state.digest))
        if waiting:
            raise ToolRefused(f"records that failed are not settled: {'; '.join(waiting)}. Nothing was changed")
        owed = [f"partition {p}: {len(mark.effects)}" for p, mark in enumerate(self.marks) if mark.effects]
        if owed:
            raise ToolRefused(
                f"side effects are owed ({', '.join(owed)}) and belong to a partition: run the service until they are "
                f"done. Nothing was changed"
            )

    def weigh(self) -> None:
        """Counts and digests together must be what they were: a digest is a sum over keys.

        :raises ToolRefused: they are not.
        """
        for partition in range(self.to):
            state = self.state(partition)
            self.new.append(Weight(state.keys, state.digest))
        (old_keys, old_sum), (new_keys, new_sum) = _sums(self.old), _sums(self.new)
        if (old_sum, old_keys) != (new_sum, new_keys):
            raise ToolRefused(
                f"{old_keys} keys with digest {digest.show(old_sum)} have become {new_keys} with "
                f"{digest.show(new_sum)}: a key was in several partitions. Nothing was changed"
            )

    def state(self, partition: int) -> State:
        """The state of a new partition, made anew by each call."""
        return self._spool.load(partition, self._bench.new_state(partition))

    def like(self) -> Mark:
        """What the new partitions come from: no state of their own, the newest format, the highest versions."""
        schemas: dict[str, int] = {}
        for mark in self.marks:
            schemas |= {table: max(version, schemas.get(table, 1)) for table, version in mark.schemas.items()}
        return msgspec.structs.replace(
            self.marks[0],
            format=max(mark.format for mark in self.marks),
            schemas=schemas,
            positions={},
            digest=digest.to_bytes(0),
            keys=0,
            partitions=self.before,
            effects=(),
        )

    def adoption(
        self, bench: Bench, place: Place, lineage: str, old: Mark | None, position: int, control: int | None = None
    ) -> Adoption:
        """A new partition's state, written by its own bench as the full that the adopt record after `old` will name.

        :raises ToolRefused: it is not on the topic as it was written.
        """
        like, state = self.like(), self.state(place.partition)
        base = bench.write(place, lineage, 0 if old is None else old.n + 1, position, state, like)
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
            control=control,
        )

    def adopted(self, adoptions: Sequence[Adoption], marks: Mapping[int, Mark]) -> Repartitioned:
        """For people, when it is done; `marks` are those that were adopted."""
        told = self.told([each.position for each in adoptions])
        told.lineage = adoptions[0].lineage
        for share in told.partitions:
            share.transaction = marks[share.partition].n
        return told

    def told(self, positions: Sequence[int]) -> Repartitioned:
        """For people; `positions` are those of the new partitions."""
        keys, total = _sums(self.new)
        shares = [
            Share(
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


def _sums(weights: Sequence[Weight]) -> tuple[int, int]:
    return sum(each.keys for each in weights), sum(each.digest for each in weights) % MODULUS


class Watch:
    """The ends of the input since the tool began: whoever writes meanwhile is noticed, if not silent for that long."""

    def __init__(self, bench: Bench, quiet: float) -> None:
        self._bench, self._quiet = bench, quiet
        self._since = time.monotonic()
        self.ends = self._now()

    def require_quiet(self) -> None:
        """Waits until it was watched for long enough. :raises ToolRefused: the input has grown since it began."""
        time.sleep(max(0.0, self._since + self._quiet - time.monotonic()))
        ends = self._now()
        before = {partition: self.ends.get(partition, 0) for partition in ends}
        grown = [f"partition {p} from {before[p]} to {end}" for p, end in ends.items() if end > before[p]]
        if grown:
            raise ToolRefused(
                f"{self._bench.names.input}: producers keep writing: {'; '.join(grown)}. Stop them, let the service "
                f"handle the rest, stop it, try again. Nothing was adopted"
            )

    def _now(self) -> dict[int, int]:
        topic = self._bench.names.input
        return {p: self._bench.bounds(topic, p)[1] for p in range(self._bench.facts()[topic].partitions)}
