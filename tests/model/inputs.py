"""A model of one partition that reads two inputs: its owners, their crashes, the merge, and what a replay repeats.

What has to hold before the product may read several inputs:

I1  The runs of a commit record cover exactly the offsets between its positions and those of the one before, per input.
I2  A replay handles the records of a transaction in the order in which they were handled live.
I3  A partition whose replay needs deleted records stops; it skips none.
I4  A restore waits for no input that has no records.
I5  With order="time", records that were there before the owner started are handled in the order of a merge by time.

A transaction is one step, because the protocol of its commit is the same for one input or more. The handler's result
depends on the order of all records, so another order shows in the digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from tests.model.search import Broken

#: times of the records, by input and offset; a tie between the inputs, and one within an input
TIMES: Final = ((1, 3), (2, 3))
A, B = 0, 1

Pair = tuple[int, int]
#: (input, number of records), as a commit record keeps them
Runs = tuple[tuple[int, int], ...]
#: records in the order of their handling, as (input, offset)
Order = tuple[tuple[int, int], ...]

#: plausible defects; each breaks a rule
DEFECTS: Final = (
    "runs are not recorded",
    "runs of a rolled back transaction stay",
    "one input's position is not in the commit record",
    "the replay begins at the newest position of one input",
    "an input without a known record is skipped",
    "ends are not read at the start",
    "a tie is broken by chance",
    "deleted records are skipped",
    "a restore waits for a record of each input",
    "fence after reading the last commit record",
)


class Commit(NamedTuple):
    """A commit record."""

    positions: Pair
    runs: Runs
    digest: Order
    #: the state, if this commit record has a delta; the handled records stand for it
    state: Order | None


class Owner(NamedTuple):
    """One assignment: a worker's memory and what it knows of the inputs."""

    phase: Literal["new", "fenced", "live", "stopped"] = "new"
    epoch: int = 0
    #: number of commit records when it restored
    commits: int = -1
    positions: Pair = (0, 0)
    state: Order = ()
    runs: Runs = ()
    #: number of records since the last commit
    open: int = 0
    #: offsets up to which it has fetched, and ends that it knows of
    fetched: Pair = (0, 0)
    ends: Pair = (0, 0)
    #: inputs that it no longer waits for, because `inputs.idle` has passed
    idle: frozenset[int] = frozenset()


class World(NamedTuple):
    """Kafka, and the owners; an older owner may still believe that it is one."""

    #: ends of the inputs, and first offsets that retention has left
    ends: Pair
    first: Pair = (0, 0)
    epoch: int = 0
    commits: tuple[Commit, ...] = ()
    owners: tuple[Owner, ...] = (Owner(),)
    #: how often each fault may still happen
    takeovers: int = 1
    rollbacks: int = 1
    deletions: int = 0
    #: how often an owner may cease to wait for an input
    idles: int = 0


def count(runs: Runs, name: int) -> int:
    return sum(number for each, number in runs if each == name)


def add(runs: Runs, name: int) -> Runs:
    if runs and runs[-1][0] == name:
        return (*runs[:-1], (name, runs[-1][1] + 1))
    return (*runs, (name, 1))


def plus(pair: Pair, name: int) -> Pair:
    return (pair[0] + 1, pair[1]) if name == A else (pair[0], pair[1] + 1)


def at(pair: Pair, name: int, value: int) -> Pair:
    return (value, pair[1]) if name == A else (pair[0], value)


def merged(first: Pair, ends: Pair) -> Order:
    """The merge by time of the records from `first` to `ends`; ties in the order of the declaration."""
    order: list[tuple[int, int]] = []
    position = first
    while position != ends:
        heads = [name for name in (A, B) if position[name] < ends[name]]
        name = min(heads, key=lambda each: (TIMES[each][position[each]], each))
        order.append((name, position[name]))
        position = plus(position, name)
    return tuple(order)


class Model:
    """Steps of all that takes part, with at most one defect."""

    def __init__(self, *, order: Literal["time", "arrival"], deltas: int, defect: str = "", most: int = 2) -> None:
        """`deltas`: every how many commits a delta is written, 0 for never; `most`: records in a transaction."""
        self._by_time, self._deltas, self._defect, self._most = order == "time", deltas, defect, most

    def has(self, defect: str) -> bool:
        return self._defect == defect

    # What must hold

    def check(self, world: World) -> None:
        handled: Order = ()
        before: Pair = (0, 0)
        for number, commit in enumerate(world.commits):
            for name in (A, B):
                if count(commit.runs, name) != commit.positions[name] - before[name]:
                    raise Broken(f"I1: runs {commit.runs} from {before} to {commit.positions}")
            handled, before = commit.digest, commit.positions
            for name in (A, B):
                offsets = [offset for each, offset in handled if each == name]
                if offsets != list(range(commit.positions[name])):
                    raise Broken(f"commit {number}: offsets {offsets} of input {name}, position {commit.positions}")
        for owner in world.owners:
            if owner.phase == "live" and owner.commits == len(world.commits) and not owner.open:
                newest = world.commits[-1].digest if world.commits else ()
                if owner.state != newest:
                    raise Broken(f"I2: live with {owner.state}, committed {newest}")

    def check_merge(self, world: World) -> None:
        """For inputs that were complete before the start."""
        self.check(world)
        handled = world.commits[-1].digest if world.commits else ()
        if handled != merged((0, 0), world.ends)[: len(handled)]:
            raise Broken(f"I5: {handled} is no merge by time")

    def check_progress(self, world: World) -> None:
        """An owner that is fenced goes live or stops: some step of its own must lead there."""
        self.check(world)
        for number, owner in enumerate(world.owners):
            if owner.phase == "fenced" and owner.epoch == world.epoch and not list(self._restore(world, number, owner)):
                raise Broken("I4: the restore waits")

    # Steps

    def following(self, world: World) -> Iterator[tuple[str, World]]:
        for name in (A, B):
            if world.ends[name] < len(TIMES[name]):
                yield f"append {name}", world._replace(ends=plus(world.ends, name))
            if world.deletions and world.first[name] < world.ends[name]:
                first = plus(world.first, name)
                yield f"delete {name}", world._replace(first=first, deletions=world.deletions - 1)
        if world.takeovers:
            owners = (*world.owners, Owner())
            yield "takeover", world._replace(owners=owners, takeovers=world.takeovers - 1)
        for number, owner in enumerate(world.owners):
            if owner.phase == "new":
                yield from self._fence(world, number, owner)
            elif owner.phase == "fenced":
                yield from self._restore(world, number, owner)
            elif owner.phase == "live":
                yield from self._live(world, number, owner)

    @staticmethod
    def _with(world: World, number: int, owner: Owner) -> World:
        return world._replace(owners=(*world.owners[:number], owner, *world.owners[number + 1 :]))

    def _fence(self, world: World, number: int, owner: Owner) -> Iterator[tuple[str, World]]:
        if self.has("fence after reading the last commit record") and owner.commits < 0:
            yield f"{number} reads", self._with(world, number, owner._replace(commits=len(world.commits)))
            return
        seen = owner.commits if owner.commits >= 0 else len(world.commits)
        fenced = owner._replace(phase="fenced", epoch=world.epoch + 1, commits=seen)
        yield f"{number} fences", self._with(world._replace(epoch=world.epoch + 1), number, fenced)

    def _restore(self, world: World, number: int, owner: Owner) -> Iterator[tuple[str, World]]:
        commits = world.commits[: owner.commits]
        base = max((i for i, commit in enumerate(commits) if commit.state is not None), default=-1)
        state: Order = commits[base].state or () if base >= 0 else ()
        position: Pair = commits[base].positions if base >= 0 else (0, 0)
        if self.has("the replay begins at the newest position of one input") and commits:
            position = at(position, B, commits[-1].positions[B])
        for commit in commits[base + 1 :]:
            if any(position[name] < min(world.first[name], commit.positions[name]) for name in (A, B)):
                if not self.has("deleted records are skipped"):
                    yield f"{number} stops", self._with(world, number, owner._replace(phase="stopped"))
                    return
                position = (max(position[A], world.first[A]), max(position[B], world.first[B]))
            for name in self._replayed(commit, position):
                if position[name] < commit.positions[name]:
                    state, position = (*state, (name, position[name])), plus(position, name)
        if self.has("a restore waits for a record of each input") and 0 in world.ends:
            return
        if self.has("one input's position is not in the commit record"):
            position = at(position, B, 0)
        ends = (0, 0) if self.has("ends are not read at the start") else world.ends
        live = owner._replace(phase="live", state=state, positions=position, fetched=position, ends=ends)
        if commits and state != commits[-1].digest:
            raise Broken(f"I2: the replay gives {state}, its commit record says {commits[-1].digest}")
        yield f"{number} is live", self._with(world, number, live)

    def _replayed(self, commit: Commit, position: Pair) -> Iterator[int]:
        if self.has("runs are not recorded"):
            yield from (name for name, _ in merged(position, commit.positions))
        else:
            for name, number in commit.runs:
                yield from [name] * number

    def _live(self, world: World, number: int, owner: Owner) -> Iterator[tuple[str, World]]:
        if owner.epoch < world.epoch:  # whatever it still handles, its next commit is rejected
            yield f"{number} is fenced", self._with(world, number, owner._replace(phase="stopped"))
            return
        for name in (A, B):
            end = world.ends[name]
            if owner.fetched[name] < end:  # the answer to a fetch also has the end
                fetched = owner._replace(fetched=at(owner.fetched, name, end), ends=at(owner.ends, name, end))
                yield f"{number} fetches {name}", self._with(world, number, fetched)
            if world.idles and owner.fetched[name] == owner.positions[name] and name not in owner.idle:
                waived = self._with(world, number, owner._replace(idle=owner.idle | {name}))
                yield f"{number} waits no longer for {name}", waived._replace(idles=world.idles - 1)
        if owner.open < self._most:
            for name in self._next(owner):
                handled = owner._replace(
                    state=(*owner.state, (name, owner.positions[name])),
                    positions=plus(owner.positions, name),
                    runs=add(owner.runs, name),
                    open=owner.open + 1,
                    idle=owner.idle - {name},
                )
                yield f"{number} handles {name}", self._with(world, number, handled)
        if owner.open:
            yield from self._commit(world, number, owner)

    def _next(self, owner: Owner) -> Iterator[int]:
        """The inputs whose record may come next: a function of the known records, the ends, and who is idle."""
        heads = [name for name in (A, B) if owner.positions[name] < owner.fetched[name]]
        if not self._by_time:
            yield from heads
            return
        missing = [name for name in (A, B) if name not in heads and name not in owner.idle]
        awaited = [name for name in missing if owner.positions[name] < owner.ends[name]]
        if heads and (not awaited or self.has("an input without a known record is skipped")):
            earliest = min(TIMES[name][owner.positions[name]] for name in heads)
            ties = [name for name in heads if TIMES[name][owner.positions[name]] == earliest]
            yield from ties if self.has("a tie is broken by chance") else ties[:1]

    def _commit(self, world: World, number: int, owner: Owner) -> Iterator[tuple[str, World]]:
        last = world.commits[-1] if world.commits else Commit((0, 0), (), (), ())
        delta = bool(self._deltas) and (len(world.commits) + 1) % self._deltas == 0
        commit = Commit(owner.positions, owner.runs, owner.state, owner.state if delta else None)
        done = owner._replace(runs=(), open=0, commits=len(world.commits) + 1)
        committed = world._replace(commits=(*world.commits, commit))
        yield f"{number} commits", self._with(committed, number, done)
        if world.takeovers:  # the answer is lost: the process crashes, and another one takes over
            owners = (*committed.owners[:number], owner._replace(phase="stopped"), Owner())
            lost = committed._replace(owners=owners, takeovers=world.takeovers - 1)
            yield f"{number} commits and dies", lost
        if world.rollbacks:
            runs = owner.runs if self.has("runs of a rolled back transaction stay") else ()
            again = owner._replace(state=last.digest, positions=last.positions, runs=runs, open=0)
            rolled_back = self._with(world, number, again)
            yield f"{number} rolls back", rolled_back._replace(rollbacks=world.rollbacks - 1)
