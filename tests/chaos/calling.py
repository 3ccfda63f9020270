"""The faults of the other system of `tests.chaos.caller`, and what must come of the calls.

The answer to a trade comes with the result of its call. So the oracle of the other runs holds here, too: each result is
in the state once, in the order of the account. `check_calls` compares with what the other system says of itself.
"""

from __future__ import annotations

import random
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from tests.chaos.arena import Arena
from tests.chaos.chain import Chain
from tests.chaos.faults import Fault
from tests.chaos.observer import read_all
from tests.chaos.remote import MODES
from tests.chaos.rows import Row
from tests.chaos.workload import Fold, Running

if TYPE_CHECKING:
    from tests.chaos.checking import Verdict

#: settings of such a service: few calls at a time, so that records wait for answers
SETTINGS = {"STATEHOLD_CALLS__PENDING": "50", "STATEHOLD_CALLS__IN_FLIGHT": "100"}


class RemoteMisbehaves(Fault):
    """It answers late, breaks the connection after it has done its work, says 503, or ends in the middle."""

    code, title = "H1", "called system answers otherwise"
    holds = (2.0, 6.0)
    only_statehold = calls = True

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.mode = draw.choice([*MODES])

    def inject(self, arena: Arena) -> None:
        arena.other_system.misbehave(self.mode)

    def heal(self, arena: Arena) -> None:
        arena.other_system.misbehave("")

    def __str__(self) -> str:
        return f"{self.code} {self.title}: {MODES[self.mode]}"


class RemoteHangs(Fault):
    code, title = "H2", "called system hangs"
    holds = (1.0, 8.0)
    only_statehold = calls = True

    def inject(self, arena: Arena) -> None:
        arena.other_system.signal(signal.SIGSTOP)

    def heal(self, arena: Arena) -> None:
        arena.other_system.signal(signal.SIGCONT)


class RemoteDies(Fault):
    code, title = "H3", "called system killed"
    only_statehold = calls = True

    def inject(self, arena: Arena) -> None:
        arena.other_system.kill()

    def heal(self, arena: Arena) -> None:
        arena.other_system.start()


class KilledAmongCalls(Fault):
    """A worker dies while the other system hangs, so that its calls are in flight; the next owner makes them again."""

    code, title = "H4", "worker killed with calls in flight"
    holds = (1.0, 4.0)
    only_statehold = calls = True

    def inject(self, arena: Arena) -> None:
        arena.other_system.misbehave("twice")
        arena.await_answers(0.3)
        arena.worker(self.victim).kill()

    def heal(self, arena: Arena) -> None:
        arena.other_system.misbehave("")
        arena.worker(self.victim).start()


def check_calls(verdict: Verdict, arena: Arena, expected: Fold, rows: Sequence[Row]) -> None:
    """Each booked result is one that the other system gave, and each transaction is whole."""
    said = Counter[str]()
    for trade, value in arena.other_system.answered():
        said[trade] += 1
        if trade in expected.amounts and value != expected.amounts[trade]:
            verdict.add("wrong answer of the other system", [f"{trade}: {value}"])
    decode = msgspec.json.Decoder(Running).decode
    booked = [decode(row.value).id for row in rows]
    verdict.add("result without an answer", [one for one in booked if not said[one]])
    asked = sum(said.values())
    verdict.figures |= {"calls": len(said), "calls_repeated": asked - len(said)}
    check_transactions(verdict, arena, rows)


def check_transactions(verdict: Verdict, arena: Arena, outputs: Sequence[Row]) -> None:
    """Each transaction is whole, also its outputs."""
    origins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in outputs:
        if row.origin is not None:
            origins[row.origin[0]].append(row.origin[1:])
    marks = 0
    changelog: dict[int, list[Row]] = defaultdict(list)
    for row in read_all(arena.servers, arena.names.changelog, arena.history):
        changelog[row.partition].append(row)
    for partition in range(arena.shape.partitions):
        marks += _check_partition(verdict, arena, partition, changelog[partition], origins[partition])
    verdict.figures["marks"] = marks


def _check_partition(
    verdict: Verdict, arena: Arena, partition: int, rows: Sequence[Row], origins: Sequence[tuple[int, int]]
) -> int:
    chain = Chain(partition, arena.names.inputs, arena.feeder.sent[partition])
    chain.walk(rows)
    kept: set[Any] = {record["n"] for record in chain.commit_records[1:]}
    newest = max(kept, default=0)
    chain.check_outputs([one for one in origins if one[0] in kept or one[0] > newest])
    verdict.add("broken chain", chain.findings)
    return len(chain.commit_records)
