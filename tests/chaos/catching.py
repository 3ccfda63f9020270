"""For each way to break statehold the schedule that catches it; without the mutation each schedule is good."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.arena import Shape
from tests.chaos.broker_faults import ConnectionsBroken, LateCommit, OutOfRange
from tests.chaos.faults import AllKilled, Fault, Storm, WorkerKilled, Zombie, ZombieAtPoint, ZombieDuringTakeover
from tests.chaos.schedule import Planned
from tests.support.proxy import Fault as Disturbance

SMALL = {"STATEHOLD_COMMIT__MAX_RECORDS": "50"}
#: a transaction is open nearly always
OPEN = {"STATEHOLD_COMMIT__INTERVAL": "1"}
MARKS_ONLY = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}


@dataclass(frozen=True)
class Catch:
    """`faults` one after the other, `rest` seconds between them; `anomalies`: by which of them it may show."""

    faults: Callable[[random.Random], list[Fault]]
    anomalies: frozenset[str]
    rest: float = 4.0
    workers: int = 2
    partitions: int = 4
    settings: Mapping[str, str] = field(default_factory=dict)
    #: one trade in this number fails by design
    failing: int = 0
    inputs: int = 1
    rekeyed: bool = False
    askers: int = 0

    def shape(self, mutant: str) -> Shape:
        return Shape(
            1,
            self.workers,
            self.partitions,
            400,
            settings=self.settings,
            mutant=mutant,
            failing=self.failing,
            inputs=self.inputs,
            rekeyed=self.rekeyed,
            askers=self.askers,
        )

    def plan(self, seed: int) -> list[Planned]:
        at, planned = 2.0, []
        for fault in self.faults(random.Random(seed)):
            planned.append(Planned(at, fault))
            at += fault.hold + self.rest
        return planned


def several(kind: type[Fault], times: int) -> Callable[[random.Random], list[Fault]]:
    return lambda draw: [kind(draw) for _ in range(times)]


def torn(draw: random.Random) -> list[Fault]:
    """Each commit request is on its way when its connection breaks, and arrives within the next transaction."""
    faults = [LateCommit(draw) for _ in range(8)]
    for fault in faults:
        fault.how, fault.hold = Disturbance.HOLD_AND_RESET, 1.4
    return list(faults)


def unbegun(draw: random.Random) -> list[Fault]:
    """Frozen with handled records of which Kafka knows nothing: no open transaction holds the heir back."""
    faults = [ZombieAtPoint(draw) for _ in range(4)]
    for fault in faults:
        fault.point = "before_begin"
    return list(faults)


def rebalanced(draw: random.Random) -> list[Fault]:
    return [Storm(draw), ConnectionsBroken(draw), Storm(draw), ConnectionsBroken(draw)]


#: of records that fail by design
FAILED = frozenset({"letter duplicated", "tried later", "partition failed", "foreign"})
#: a replay after each start
SELDOM = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "60", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}
#: of requests
ASKED = frozenset({"took effect again", "unequal answers", "wrong effect", "partition failed"})
#: of several inputs
ORDERED = frozenset({"order lost", "not merged by time"})
TWICE = frozenset({"duplicated", "lost", "wrong value", "digest differs", "broken chain", "two owners"})
CATCHES: dict[str, Catch] = {
    "no-fence": Catch(unbegun, TWICE | {"torn transaction", "partition failed"}, settings=SMALL),
    "mark-before-fence": Catch(several(ZombieDuringTakeover, 4), TWICE, partitions=2, settings=SMALL),
    "commit-on-lost": Catch(several(Zombie, 2), frozenset({"commit after lost"}), workers=1),
    "no-rollback": Catch(rebalanced, TWICE, settings=SMALL),
    "no-suspicion": Catch(torn, TWICE | {"torn transaction", "partition failed"}, rest=3.0, settings=OPEN),
    "effects-in-replay": Catch(several(WorkerKilled, 2), frozenset({"effect in a replay"}), settings=MARKS_ONLY),
    "reset-to-earliest": Catch(several(OutOfRange, 1), TWICE | {"partition failed"}),
    "no-record-follows": Catch(several(WorkerKilled, 2), TWICE | {"letter lost"}, failing=50),
    "undecided": Catch(several(WorkerKilled, 4), TWICE | FAILED, settings=SELDOM, failing=50),
    "retries-forgotten": Catch(several(WorkerKilled, 4), TWICE | FAILED, failing=50),
    "failed-skipped": Catch(several(WorkerKilled, 2), TWICE, failing=50),
    "runs-not-recorded": Catch(several(WorkerKilled, 3), ORDERED | {"partition failed"}, settings=SELDOM, inputs=2),
    "input-skipped": Catch(several(AllKilled, 3), ORDERED, inputs=2),
    "ties-by-chance": Catch(several(AllKilled, 3), ORDERED, inputs=2),
    "hop-uncommitted": Catch(several(AllKilled, 3), TWICE | {"sum", "foreign"}, settings=OPEN, rekeyed=True),
    "id-forgotten": Catch(several(AllKilled, 3), ASKED, askers=3),
}
