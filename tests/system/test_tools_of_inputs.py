"""The commands that change the state or the positions of a stopped service with two inputs, on a real broker."""

from __future__ import annotations

import json

import pytest
from tests.system.conftest import StageFactory
from tests.system.processes import await_true
from tests.system.test_bury import statehold
from tests.system.test_several_inputs import GAPS, Pair

pytestmark = pytest.mark.kafka

TARGET = "tests.system.apps.chained_service:service"


def command(pair: Pair, *words: str) -> str:
    return statehold(pair.stage, *words, TARGET)


@pytest.fixture
def stopped(stages: StageFactory, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A service that has processed 300 and 200 records, and stopped."""
    pair = Pair(stages(1)).create_topics()
    monkeypatch.setenv("PROBE_SECOND", pair.second)
    times = list(range(600))
    pair.produce(pair.names.input, times[::2])
    pair.produce(pair.second, times[::3])
    process = pair.process("first", **GAPS).start()
    process.await_live(0)
    pair.await_all()
    assert process.stop() == 0
    return pair


def test_a_gap_in_the_second_input_is_accepted(stopped: Pair) -> None:
    second = stopped.second
    stopped.produce(second, list(range(2000, 2007)))
    stopped.stage.delete_records(second, 0)
    stopped.produce(second, list(range(2007, 2010)))
    failing = stopped.process("failing").start()
    assert second in failing.await_event("failed")["cause"]
    failing.stop()

    said = command(stopped, "repair", "accept-gap", "--why", "a test", "--yes")
    assert f"{second}: offsets 200 to 207 are deleted: the input begins at 207" in said
    process = stopped.process("after").start()
    process.await_live(0)
    await_true(lambda: stopped.has_handled(300 + 210), "the rest committed", 60)
    assert process.stop() == 0
    assert [each.offset for each in stopped.links()[0] if each.topic == second] == [*range(200), 207, 208, 209]


def test_a_migration_keeps_the_position_of_every_input(stopped: Pair) -> None:
    changed = "links=tests.system.test_tools_of_inputs:as_it_is"
    command(stopped, "state", "migrate", "--table", changed, "--why", "a test")
    (listed,) = json.loads(command(stopped, "snapshot", "list", "--json"))
    assert listed["commit_record"]["position"] == 500
    stopped.produce(stopped.second, [3000])
    process = stopped.process("after").start()
    process.await_live(0)
    stopped.await_all()
    assert process.stop() == 0
    stopped.verify()


def as_it_is(key: int, value: int) -> int:
    """Return the value as it is: the function of a migration."""
    return value
