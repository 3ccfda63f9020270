"""The commands that change the state or the positions of a stopped service with two inputs, on a real broker."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from tests.support.processes import await_true
from tests.support.stage import StageFactory
from tests.system.test_dead_letter_requests import statehold
from tests.system.test_several_inputs import GAPS, Pair

from statehold.admin.inspection.topic_view import topic_view
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.chained_service:service"


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


def test_two_gaps_are_accepted_each_where_the_operator_says(stopped: Pair) -> None:
    first, second = stopped.names.inputs
    for topic in (first, second):
        stopped.produce(topic, list(range(2000, 2010)))
        stopped.stage.delete_records(topic, 0, stopped.stage.group.positions(topic)[0] + 3)
    words = ("repair", "accept-gap", "--why", "a test", "--yes")
    said = statehold(stopped.stage, *words, "--to", "305", TARGET, code=1)
    assert "another input has a gap, too, so an offset does not say where to continue" in said
    assert f"use --to beginning, --to end, or --to {first}:0=OFFSET" in said
    said = command(stopped, *words, "--to", f"{first}:0=305,{second}:0=beginning")
    assert f"{first}: offsets 300 to 303 are deleted" in said
    process = stopped.process("after").start()
    process.await_live(0)
    await_true(lambda: stopped.has_handled(310 + 210), "the rest committed", 60)
    assert process.stop() == 0
    found = [(each.topic, each.offset) for each in stopped.links()[0]]
    assert sorted(offset for topic, offset in found if topic == first)[300:] == [*range(305, 310)]
    assert sorted(offset for topic, offset in found if topic == second)[200:] == [*range(203, 210)]


@pytest.mark.parametrize("source", ["commit-record", pytest.param("group", marks=pytest.mark.long)])
def test_offsets_of_the_second_input_that_were_reset_are_adopted_or_put_right(stopped: Pair, source: str) -> None:
    stage, second = stopped.stage, stopped.second
    place = ConsumerGroupTopicPartitions(stopped.names.group, [TopicPartition(second, 0, 160)])
    stage.admin.alter_consumer_group_offsets([place])[stopped.names.group].result(30)
    failing = stopped.process("failing").start()
    cause = failing.await_event("failed")["cause"]
    assert f"has committed {second} 160, the last commit record has {second} 200" in cause
    failing.stop()
    said = command(stopped, "repair", "adopt-offsets", "--from", source, "--why", "a test", "--yes")
    assert f"{second}: the group's offset is 160, the last commit record has 200" in said
    process = stopped.process("after").start()
    process.await_live(0)
    stopped.await_all()
    assert process.stop() == 0
    if source == "commit-record":
        stopped.verify()
    else:
        offsets = [each.offset for each in stopped.links()[0] if each.topic == second]
        assert offsets == [*range(200), *range(160, 200)], "40 records are processed twice, as the operator chose"


@pytest.fixture
def gap(stopped: Pair) -> Pair:
    """A service that was killed; 600 records of two inputs in turns follow its only full snapshot, and no deltas."""
    process = stopped.process("killed", STATEHOLD_SNAPSHOT__DELTA_INTERVAL="off", STATEHOLD_SNAPSHOT__PERIODIC_FULL="0")
    process.start().await_live(0)
    for begin in range(1000, 1300, 100):
        stopped.produce(stopped.names.input, list(range(begin, begin + 100)))
        stopped.produce(stopped.second, list(range(begin, begin + 100)))
        stopped.await_all()
    process.kill()
    stopped.stage.await_empty_group()
    return stopped


@pytest.mark.long
def test_a_rebase_replays_both_inputs_in_the_order_of_live(gap: Pair) -> None:
    with topic_view(gap.stage.settings(), gap.names) as view:
        last = view.survey(0)[0].commit_record
    assert last is not None
    torn = records.pack(Header(last.n + 1, "torn", last.lineage, 0))
    producer = Producer({"bootstrap.servers": gap.stage.servers})
    producer.produce(gap.names.changelog, torn, partition=0)
    assert producer.flush(30) == 0
    failing = gap.process("failing").start()
    assert "repair rebase" in failing.await_event("failed")["cause"]
    failing.stop()

    again = command(gap, "repair", "rebase", "--records", "again", "--why", "a test")
    assert "position 500; 600 offsets are processed again" in again
    done = command(gap, "repair", "rebase", "--records", "replay", "--why", "a test", "--yes")
    assert "replayed up to 1100, which gives the state of the last commit record" in done
    gap.produce(gap.second, [4000])
    process = gap.process("after").start()
    process.await_live(0)
    gap.await_all()
    assert process.stop() == 0
    gap.verify()


@pytest.mark.long
def test_a_rebase_without_commit_records_does_not_guess_the_order(gap: Pair) -> None:
    gap.stage.delete_records(gap.names.changelog, 0)
    words = ("repair", "rebase", "--why", "a test", "--records")
    said = statehold(gap.stage, *words, "replay", TARGET, code=1)
    assert f"the order in which the records of {gap.names.input}, {gap.second} were processed" in said
    assert "600 offsets are processed again" in command(gap, *words, "again")


def test_a_migration_keeps_the_position_of_every_input(stopped: Pair) -> None:
    changed = "links=tests.system.test_tools_of_inputs:as_it_is"
    command(stopped, "state", "migrate", "--table", changed, "--why", "a test", "--yes")
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
