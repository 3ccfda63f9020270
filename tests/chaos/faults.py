"""The faults, each a small class registered by its number in the fault matrix (docs/explanation/reliability.md).

A fault is drawn from a random generator alone, so that a schedule is the same for the same seed; whom it hits is a
number that the arena takes modulo what there is. `inject` begins it, `heal` ends it `hold` seconds later.
"""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final

from tests.chaos import clock
from tests.chaos.arena import SESSION, Arena
from tests.chaos.points import POINTS
from tests.chaos.workers import pause

REGISTRY: Final[dict[str, type[Fault]]] = {}


class Fault(ABC):
    """`code` and `title` name it; `holds` is the range from which `hold` is drawn, in seconds."""

    code: ClassVar[str]
    title: ClassVar[str]
    holds: ClassVar[tuple[float, float]] = (0.5, 3.0)
    #: seconds without progress that it may cost beyond `hold`: detection and takeover
    allows: ClassVar[float] = SESSION + 8
    #: what it needs
    brokers: ClassVar[int] = 1
    proxied: ClassVar[bool] = False
    #: only statehold has what it touches
    only_statehold: ClassVar[bool] = False
    #: it touches the other system of a service that makes calls
    calls: ClassVar[bool] = False
    #: it touches processes that ask, or is for them
    asks: ClassVar[bool] = False
    #: drawn when no list of faults is given
    usual: ClassVar[bool] = True

    def __init__(self, draw: random.Random) -> None:
        self.victim = draw.randrange(1000)
        self.hold = round(draw.uniform(*self.holds), 2)

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):
            assert cls.code not in REGISTRY, cls.code
            REGISTRY[cls.code] = cls

    @abstractmethod
    def inject(self, arena: Arena) -> None: ...

    def heal(self, arena: Arena) -> None:  # noqa: B027  most faults need it, not all
        """Nothing by default: what was done heals by itself."""

    def __str__(self) -> str:
        return f"{self.code} {self.title}"


class WorkerKilled(Fault):
    code, title = "F1", "worker killed"

    def inject(self, arena: Arena) -> None:
        arena.worker(self.victim).kill()

    def heal(self, arena: Arena) -> None:
        arena.worker(self.victim).start()


class KilledAtPoint(Fault):
    """The first worker that comes by a named point dies there; what ended is started again."""

    code, title = "F1p", "worker killed at a named point"
    only_statehold = True
    holds = (2.0, 5.0)

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.point = draw.choice([*POINTS])

    def inject(self, arena: Arena) -> None:
        arena.points.arm(self.point, "kill")
        if self.point in ("before_fence", "after_fence", "mid_restore", "mid_replay", "mid_drain"):
            victim = arena.worker(self.victim)  # a worker must have something to restore
            if self.point == "mid_drain":
                victim.ask_stop()
            else:
                victim.kill()
                victim.start()

    def heal(self, arena: Arena) -> None:
        arena.points.disarm(self.point)
        for worker in arena.workers:
            if worker.starts:
                worker.start()

    def __str__(self) -> str:
        return f"{self.code} {self.title}: {self.point}"


class KilledWhileRestoring(Fault):
    code, title = "F2", "worker killed again while it restores"
    holds = (0.8, 2.5)

    def inject(self, arena: Arena) -> None:
        victim = arena.worker(self.victim)
        victim.kill()
        victim.start()

    def heal(self, arena: Arena) -> None:
        victim = arena.worker(self.victim)
        victim.kill()
        victim.start()


class AllKilled(Fault):
    code, title = "F3", "all workers killed at once"

    def inject(self, arena: Arena) -> None:
        for worker in arena.workers:
            worker.kill()

    def heal(self, arena: Arena) -> None:
        for worker in arena.workers:
            worker.start()


class Zombie(Fault):
    code, title = "F4", "worker frozen past its session, woken"
    holds = (SESSION + 2, 2 * SESSION + 1)

    def inject(self, arena: Arena) -> None:
        arena.worker(self.victim).signal(signal.SIGSTOP)

    def heal(self, arena: Arena) -> None:
        arena.worker(self.victim).signal(signal.SIGCONT)


class BusyZombie(Zombie):
    """It has more records in memory than it can handle before the others have taken over."""

    code, title = "F4b", "worker frozen past its session with a backlog, woken"

    def inject(self, arena: Arena) -> None:
        for partition in range(arena.shape.partitions):
            arena.feeder.burst(500, partition)
        arena.feeder.flush()
        super().inject(arena)


class ZombieDuringTakeover(Fault):
    """Frozen with everything in its transaction; it wakes while its heir has begun and has not fenced yet."""

    code, title = "F4t", "worker frozen before a commit, woken while its heir takes over"
    only_statehold = True
    holds = (SESSION + 4, SESSION + 4)

    def inject(self, arena: Arena) -> None:
        arena.points.arm("before_commit", "freeze")
        reached = arena.history.now() + 20
        while not arena.points.reached("before_commit") and arena.history.now() < reached:
            pause(0.05)
        arena.points.arm("before_fence", "hold 9")

    def heal(self, arena: Arena) -> None:
        arena.points.disarm("before_commit")
        arena.points.disarm("before_fence")
        for worker in arena.workers:
            worker.signal(signal.SIGCONT)
        pause(6.0)


class ShortFreeze(Zombie):
    code, title = "F4s", "worker frozen for less than its session"
    holds = (0.3, 4.0)


class ZombieAtPoint(Fault):
    """Frozen exactly there; woken when others own its partitions."""

    code, title = "F4p", "worker frozen at a named point, woken"
    only_statehold = True
    holds = (SESSION + 4, 2 * SESSION + 2)

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.point = draw.choice(["before_begin", "after_produce", "after_offsets", "before_commit", "after_commit"])

    def inject(self, arena: Arena) -> None:
        arena.points.arm(self.point, "freeze")

    def heal(self, arena: Arena) -> None:
        arena.points.disarm(self.point)
        for worker in arena.workers:
            worker.signal(signal.SIGCONT)

    def __str__(self) -> str:
        return f"{self.code} {self.title}: {self.point}"


class IdleZombie(Fault):
    """No transaction is open when it is frozen; records come while it sleeps."""

    code, title = "F5", "idle worker frozen past its session, woken"
    holds = (SESSION + 3, 2 * SESSION)

    def inject(self, arena: Arena) -> None:
        arena.feeder.silent = frozenset(range(arena.shape.partitions))
        arena.await_quiet(5.0)
        arena.worker(self.victim).signal(signal.SIGSTOP)
        arena.feeder.silent = frozenset()

    def heal(self, arena: Arena) -> None:
        arena.worker(self.victim).signal(signal.SIGCONT)


class CleanRestart(Fault):
    code, title = "term", "worker stopped with SIGTERM and started again"
    holds = (0.1, 3.0)

    def inject(self, arena: Arena) -> None:
        arena.worker(self.victim).ask_stop()

    def heal(self, arena: Arena) -> None:
        worker = arena.worker(self.victim)
        if worker.running and worker.wait(40) is None:
            arena.history.note("finding", text=f"{worker.name} did not stop within 40 s of SIGTERM")
        worker.start()


class TwiceTerminated(CleanRestart):
    code, title = "term2", "worker stopped with SIGTERM twice"

    def inject(self, arena: Arena) -> None:
        arena.worker(self.victim).ask_stop()
        arena.worker(self.victim).ask_stop()


class Storm(Fault):
    """One member more, one fewer, again and again, in the rhythm of a few seconds."""

    code, title = "F18", "members join and leave"
    holds = (8.0, 8.0)

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.moves = [(draw.randrange(1000), draw.choice(("kill", "stop")), draw.uniform(0.2, 1.5)) for _ in range(5)]

    def inject(self, arena: Arena) -> None:
        for number, how, rest in self.moves:
            worker = arena.worker(number)
            if not worker.running:
                worker.start()
            elif how == "kill":
                worker.kill()
            else:
                worker.ask_stop()
            pause(rest)

    def heal(self, arena: Arena) -> None:
        for worker in arena.workers:
            if worker.running and not worker.asked_to_end:
                continue
            worker.wait(40)
            worker.start()


class ClockStepped(Fault):
    """The wall clock of one worker jumps by days, and back (F32); no record and no budget may go by it."""

    code, title = "F32", "wall clock of a worker stepped"
    holds = (4.0, 10.0)
    usual = False
    only_statehold = True

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.days = draw.choice((-10, 2))

    def inject(self, arena: Arena) -> None:
        self._file(arena).write_text(str(self.days * 86_400))

    def heal(self, arena: Arena) -> None:
        self._file(arena).unlink(missing_ok=True)

    def _file(self, arena: Arena) -> Path:
        return clock.file_of(arena.points.directory, arena.worker(self.victim).name)

    def __str__(self) -> str:
        return f"{self.code} {self.title}: {self.days:+} days"
