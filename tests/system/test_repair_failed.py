"""`statehold repair rebase` over records that failed: what was decided of them stays decided."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from tests.support.apps.tally import Event, Line, Tally, Total
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory
from tests.system.test_dead_letters import read_all, set_up
from tests.system.test_repair import REASON

from statehold import Output, Record, dead_letter, retry_later
from statehold.admin.dead_letters import DeadLetters
from statehold.admin.repair import repair as repairing
from statehold.admin.repair.rebase import Rebase
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.errors import NoUsableFull, ToolRefused
from statehold.messages.dead_letter import REPLAY

pytestmark = [pytest.mark.kafka, pytest.mark.long]

REFUSED, LATER = -10, -11
#: no full at the end of a run: the next start replays
NO_FULL = {"STATEHOLD_SNAPSHOT__ON_STOP": "false", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}


def failing(output: str, poison_file: Path) -> type[Tally]:
    class Bound(Tally):
        """Some events fail while the file exists."""

        on_failure: ClassVar = {ValueError: dead_letter(), TimeoutError: retry_later(1, any_order=True)}
        lines = Output(output, value=Line)
        poison = poison_file

        def on_record(self, record: Record[Event]) -> None:
            super().on_record(record)
            if poison_file.exists() and record.value.amount in (REFUSED, LATER):
                raise ValueError("refused") if record.value.amount == REFUSED else TimeoutError("later")

    return Bound


class Service(Local):
    def __init__(self, stage: Stage, kind: type[Tally], **settings: str) -> None:
        super().__init__(stage, **settings)
        self.service.handler = kind


def send(stage: Stage, *events: tuple[str, int]) -> None:
    for key, amount in events:
        stage.send(msgspec.json.encode(Event(1, amount)), 0, key)


def answered(stage: Stage) -> int:
    return len(read_all(stage.servers, stage.output))


def found(stage: Stage, kind: type[Tally]) -> LastState:
    """The state of the last mark, as a tool sees it."""
    with closing(StoppedService(stage.settings(), stage.names, kind, "test")) as stopped:
        return stopped.find(stopped.place(0, 1, stopped.facts()))


def test_a_rebase_knows_which_records_had_failed(stages: StageFactory) -> None:
    stage = stages(1)
    kind = failing(stage.output, stage.poison)
    set_up(stage, kind)
    send(stage, ("ann", 1), ("bob", 2))
    with Service(stage, kind):
        stage.await_partition(0, 2)
    stage.poison.touch()
    send(stage, ("ann", 4), ("ann", REFUSED), ("bob", LATER), ("ann", 8), ("bob", 16))
    with Service(stage, kind, **NO_FULL):
        stage.await_partition(0, 7)
        stage.poison.unlink()
        await_true(lambda: answered(stage) == 5, "what is tried later is answered", 60)
    last = found(stage, kind).commit_record
    end = max(each.offset for each in read_all(stage.servers, stage.names.changelog))
    stage.delete_records(stage.names.changelog, 0, end)  # the last mark is left alone

    def rebase(*how: Any, act: bool = True, **more: Any) -> repairing.RepairStep:
        return repairing.run(stage.settings(), stage.names, kind, Rebase(*how, **more), REASON, act=act).partitions[0]

    with Service(stage, kind) as local:
        local.await_failed(0, NoUsableFull)
    with pytest.raises(ToolRefused, match="2 of them failed, and 1 came from a retry topic"):
        rebase("again", act=False)
    assert "2 of them failed" in rebase("again", act=False, accept_difference=True).consequence
    done = rebase("replay")
    assert "the state of the last commit record" in done.consequence
    assert done.position == last.positions[stage.names.input]

    with Service(stage, kind):
        send(stage, ("ann", 32))
        stage.await_partition(0, 8)
        dead = DeadLetters(stage.settings(), stage.names)
        assert [each.offset for each in dead.waiting()[0]] == [3, 5, 7]
        assert [outcome.done for outcome in dead.resolve(REPLAY, (), lambda _: True, "fixed", 60)] == [3]
    stored = found(stage, kind).state.tables["totals"].stored
    totals = {key: msgspec.msgpack.decode(value, type=Total) for key, value in stored.items()}
    assert answered(stage) == 8, "nothing is answered twice"
    assert totals == {"ann": Total(5, 45 + REFUSED), "bob": Total(3, 18 + LATER)}
