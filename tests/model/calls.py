"""A model of the durable calls of a process: two partitions share its places, and each has a limit of pending calls.

What has to hold for all limits: whatever happens, each partition that is not paused ends all its work. So in a state in
which neither the process nor the other system can do anything, no such partition has records or calls left.

A transaction is one step. Every step but those of the operator and of Kafka brings the end nearer, so each run ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.model.search import Broken

#: plausible defects; each stops some partition
DEFECTS: Final = (
    "answers wait at the limit",
    "calls of an answer wait at the limit",
    "a call has a place while it waits for its key",
    "a call has a place until its answer is committed",
    "a paused partition does not end its attempts",
    "a lost partition keeps its places",
)
WAITS, RUNS, FAILED, ANSWERED = "waits", "runs", "failed", "answered"


class Call(NamedTuple):
    """A pending call; those of a partition are in the order of their requests, and have one key."""

    #: calls that its answer makes, each with one less
    further: int
    phase: str = WAITS
    #: attempts that may still fail
    failures: int = 1


class Partition(NamedTuple):
    """What Kafka has of it, and what its worker has in memory: the phases of its calls."""

    records: int = 2
    calls: tuple[Call, ...] = ()
    paused: bool = False

    def to(self, number: int, *call: Call) -> Partition:
        """Return it with another call instead of one, or with none."""
        return self._replace(calls=(*self.calls[:number], *call, *self.calls[number + 1 :]))


class World(NamedTuple):
    """The process, and what may still happen to it."""

    partitions: tuple[Partition, ...] = (Partition(), Partition())
    #: places that no running call has
    lost: int = 0
    pauses: int = 1
    takeovers: int = 1


class Model:
    """The rules, with the settings `calls.pending` and `calls.in_flight`."""

    def __init__(self, pending: int, in_flight: int, *, in_order: bool, further: int, defect: str = "") -> None:
        assert not defect or defect in DEFECTS
        self._pending, self._in_flight = pending, in_flight
        self._in_order, self._further, self._defect = in_order, further, defect

    def following(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield each step and the state behind it."""
        yield from self._work(world)
        for number, partition in enumerate(world.partitions):
            if partition.paused:
                yield f"resume {number}", _with(world, number, partition._replace(paused=False))
            elif world.pauses:
                paused = _with(world, number, partition._replace(paused=True))
                yield f"pause {number}", paused._replace(pauses=world.pauses - 1)
            if world.takeovers:
                yield f"take over {number}", self._taken_over(world, number)

    def check(self, world: World) -> None:
        """:raises Broken: nothing can happen, and a partition has not ended its work."""
        if next(self._work(world), None) is None:
            for number, each in enumerate(world.partitions):
                if not each.paused and (each.records or each.calls):
                    raise Broken(f"partition {number} waits without end: {each}")

    def _work(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield the steps of the process and of the other system."""
        for number, partition in enumerate(world.partitions):
            if not partition.paused and partition.records and len(partition.calls) < self._pending:
                calls = (*partition.calls, Call(self._further))
                taken = partition._replace(records=partition.records - 1, calls=calls)
                yield f"take a record of {number}", _with(world, number, taken)
            for place, call in enumerate(partition.calls):
                for step, changed in self._steps(world, partition, place, call):
                    yield f"{step} {number}.{place}", _with(world, number, changed)

    def _steps(self, world: World, partition: Partition, place: int, call: Call) -> Iterator[tuple[str, Partition]]:
        first = not self._in_order or place == 0
        if call.phase == WAITS and self._taken(world) < self._in_flight:
            if first or self._defect == "a call has a place while it waits for its key":
                yield "begin", partition.to(place, call._replace(phase=RUNS))
        elif call.phase == RUNS and first:
            if partition.paused and self._defect == "a paused partition does not end its attempts":
                return
            yield "answer", partition.to(place, call._replace(phase=ANSWERED))
            if call.failures:
                yield "fail", partition.to(place, call._replace(phase=FAILED, failures=call.failures - 1))
        elif call.phase == FAILED:
            yield "wait", partition.to(place, call._replace(phase=WAITS))
        elif call.phase == ANSWERED and not partition.paused:
            full = len(partition.calls) >= self._pending
            if full and self._defect == "answers wait at the limit":
                return
            if full and call.further and self._defect == "calls of an answer wait at the limit":
                return
            rest = partition.to(place)
            yield "commit", rest._replace(calls=rest.calls + (Call(call.further - 1),) * call.further)

    def _taken(self, world: World) -> int:
        held = {RUNS}
        if self._defect == "a call has a place until its answer is committed":
            held.add(ANSWERED)
        return world.lost + sum(call.phase in held for each in world.partitions for call in each.calls)

    def _taken_over(self, world: World, number: int) -> World:
        """Return the world in which an owner of the partition begins with what is committed."""
        partition = world.partitions[number]
        lost = world.lost
        if self._defect == "a lost partition keeps its places":
            lost += sum(call.phase == RUNS for call in partition.calls)
        calls = tuple(call._replace(phase=WAITS) for call in partition.calls)
        begun = _with(world, number, partition._replace(calls=calls))
        return begun._replace(lost=lost, takeovers=world.takeovers - 1)


def _with(world: World, number: int, partition: Partition) -> World:
    partitions = (*world.partitions[:number], partition, *world.partitions[number + 1 :])
    return world._replace(partitions=partitions)
