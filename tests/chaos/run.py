"""One run: everything up, faults by the schedule, everything healed, stopped, read and judged."""

from __future__ import annotations

import heapq
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import libversion
from tests.chaos.arena import Arena, Shape
from tests.chaos.checking import Verdict, judge
from tests.chaos.history import Patience
from tests.chaos.schedule import Planned
from tests.chaos.workers import Worker, pause

from statehold.common.exit_codes import Exit
from statehold.common.version import __version__
from statehold.dev import Cluster
from statehold.dev.jars import DEFAULT_VERSION

_STEADY = 4.0
#: seconds without progress after which a wait ends: for the first answers, for all answers, for partitions that may
#: stop, for the input's acknowledgements, and for a process that was asked to stop
_START = 180.0
RECOVERY = 180.0
_REST = 15.0
_FEED = 60.0
_STOP = 45.0


@dataclass
class Result:
    """What a run has shown."""

    seed: int
    title: str
    verdict: Verdict = field(default_factory=Verdict)
    timeline: list[tuple[float, str]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.verdict.good

    def plain(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "run": self.title,
            "good": self.good,
            "figures": self.verdict.figures,
            "findings": dict(self.verdict.findings),
            "timeline": self.timeline,
        }


def versions() -> dict[str, str]:
    return {
        "statehold": __version__,
        "librdkafka": libversion()[0],
        "kafka": DEFAULT_VERSION,
        "python": platform.python_version(),
    }


def run(
    shape: Shape,
    planned: Sequence[Planned],
    directory: Path,
    *,
    seed: int,
    title: str,
    cluster: Cluster | None = None,
    meanwhile: Callable[[Arena], None] = lambda _: None,
    recovery: float = RECOVERY,
) -> Result:
    """Raises what keeps the run from happening; what the service did wrong is in the verdict.

    It is stuck when no answer came for `recovery` seconds after everything was healed. `meanwhile` is called every now
    and then, by the thread that runs the schedule.
    """
    result = Result(seed, title)
    with Arena(shape, directory, seed, cluster) as arena:
        arena.history.note("run", seed=seed, title=title, shape=repr(shape), versions=versions())
        arena.history.tell(f"seed {seed}: {title}")
        _begin(arena)
        _play(arena, planned, meanwhile)
        _end(arena, result.verdict, recovery)
        judge(arena, result.verdict)
        _measure(arena, planned, result.verdict)
        _say(arena, result)
        result.timeline = list(arena.history.lines)
        if not result.good:
            arena.keep_brokers()
    return result


def _begin(arena: Arena) -> None:
    for worker in arena.workers:
        worker.start()
    arena.feeder.start(arena.shape.per_second)
    patience = Patience(arena.history, _START)
    while silent := [p for p in range(arena.shape.partitions) if not arena.observer.progress[p]]:
        tails = "\n".join(f"--- {worker.name}\n{worker.tail()}" for worker in arena.workers)
        assert not patience.over(silent), f"no answer from partitions {silent}, and {_START:.0f} s without one\n{tails}"
        arena.revive()
        pause(0.1)
    arena.history.tell("every partition answers")
    arena.askers.start()


def _play(arena: Arena, planned: Sequence[Planned], meanwhile: Callable[[Arena], None]) -> None:
    """Each fault begins and ends at its time, or as soon after it as the one before it lets."""
    began = arena.history.now()
    steps: list[tuple[float, int, str, Planned]] = []
    for number, each in enumerate(planned):
        heapq.heappush(steps, (each.at, 2 * number, "inject", each))
        heapq.heappush(steps, (each.at + each.fault.hold, 2 * number + 1, "heal", each))
    while steps:
        at, _, what, each = heapq.heappop(steps)
        while (left := began + at - arena.history.now()) > 0:
            meanwhile(arena)
            arena.revive()
            pause(min(left, 0.25))
        arena.history.tell(f"{'+' if what == 'inject' else '-'} {each.fault}, victim {each.fault.victim}")
        getattr(each.fault, what)(arena)
    pause(_STEADY)


def _end(arena: Arena, verdict: Verdict, recovery: float) -> None:
    arena.ensure_all()
    arena.history.tell("healed")
    if not arena.feeder.finish(_FEED):
        arena.history.tell("the feeder waits for missing acknowledgements: the input shows what was written")
    healed = arena.history.now()
    arena.askers.finish(recovery)
    if not arena.may_stop and not arena.await_quiet(recovery):
        missing = arena.feeder.acknowledged * arena.shape.answers - len(arena.observer.seen)
        verdict.add("stuck", [f"{missing} answers are missing, and none came for {recovery:.0f} s after the faults"])
    elif arena.may_stop:
        arena.await_quiet(_REST)
    verdict.figures["recovery_seconds"] = round(arena.history.now() - healed, 1)
    for worker in arena.workers:
        worker.ask_stop()
    for worker in arena.workers:
        code = _stopped(arena, worker)
        # -15: so soon after its start that it heard nothing yet
        known = (0, -15, None, *([Exit.PARTITION_FAILED] if arena.operator.stopped else []))
        if arena.shape.target == "statehold" and code not in known:
            verdict.add("process ended by itself", [f"{worker.name}: exit code {code} after SIGTERM"])
        if code is None:
            verdict.add("did not stop", [f"{worker.name}: no partition closed for {_STOP:.0f} s after SIGTERM"])
    arena.history.tell("stopped")


def _stopped(arena: Arena, worker: Worker) -> int | None:
    """Return the exit code of a worker that was asked to stop; None if it had to be killed."""
    patience = Patience(arena.history, _STOP)
    while worker.running and not patience.over(len(worker.events("drained", "full_written", "partition_closed"))):
        pause(0.2)
    return worker.wait(0.0)


def _measure(arena: Arena, planned: Sequence[Planned], verdict: Verdict) -> None:
    """The longest time without progress of any partition, and what the faults then under way may cost."""
    longest, where, when = 0.0, -1, 0.0
    for partition, times in arena.observer.progress.items():
        for before, after in pairwise(times):
            if after - before > longest:
                longest, where, when = after - before, partition, before
    notes = [line for line in arena.history.lines if when - 15 <= line[0] <= when + longest and line[1][0] in "+"]
    verdict.figures |= {
        "faults": len(planned),
        "longest_gap": round(longest, 1),
        "gap_partition": where,
        "gap_at": round(when, 1),
        "gap_beside": sorted({text[2:].split(" ", 1)[0] for _, text in notes}),
        "allowed": round(max((each.fault.hold + each.fault.allows for each in planned), default=0.0), 1),
        "seconds": round(arena.history.now(), 1),
    }


def _say(arena: Arena, result: Result) -> None:
    figures = result.verdict.figures
    arena.history.note("verdict", **{k: v for k, v in result.plain().items() if k != "timeline"})
    arena.history.tell(
        f"{'GOOD' if result.good else 'BAD'}: {figures['records']} records, {figures['outputs']} outputs, "
        f"{figures.get('marks', 0)} marks, longest gap {figures['longest_gap']} s in partition "
        f"{figures['gap_partition']} at {figures['gap_at']} s during {figures['gap_beside'] or 'nothing'}"
    )
    for line in result.verdict.lines():
        arena.history.tell(f"  {line}")
