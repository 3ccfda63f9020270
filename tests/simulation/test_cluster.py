"""What users get: a simulated cluster of their service, and crashes at every step of some inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.scenarios import Book, Chain, Op, book

from statehold import Handler, Output, Record, Table
from statehold.errors import UsageError
from statehold.testing.simulation import InputRecord, SimulatedCluster, fuzz_crashes

OPS = [Op("abc"[number % 3], number + 1) for number in range(6)]


class Forgetful(Handler[Op]):
    """Counts on the instance, which a crash forgets."""

    out = Output("out", value=int)
    counts = Table(key=str, value=int)

    def __init__(self) -> None:
        self.count = 0

    def on_record(self, record: Record[Op]) -> None:
        self.count += 1
        self.counts["all"] = self.counts.get("all", 0) + 1
        self.out.send(self.count)


def test_processes_take_over_from_each_other() -> None:
    with SimulatedCluster(Book, processes=3, partitions=3) as cluster:
        for number, op in enumerate(OPS):
            cluster.feed(op, partition=number % 3)
        cluster.run()
        owners = {name: partitions for name, partitions in cluster.assignment.items() if partitions}
        assert sorted(partition for each in owners.values() for partition in each) == [0, 1, 2]
        assert len(owners) == 3
        cluster.kill("a")
        cluster.halt("b", 20.0)
        for number, op in enumerate(OPS):
            cluster.feed(op, partition=number % 3)
        cluster.advance(12.0)
        assert cluster.assignment["c"] == [0, 1, 2]
        cluster.run()
        expected = [text for partition in range(3) for text in book([*OPS[partition::3], *OPS[partition::3]])]
        assert cluster.outputs("out") == expected
        assert "c1[0]     live" in cluster.timeline


def test_a_stopped_process_starts_again() -> None:
    with SimulatedCluster(Book, processes=1) as cluster:
        cluster.feed(OPS[0])
        cluster.run()
        cluster.stop("a")
        cluster.advance(5.0)
        assert cluster.assignment == {}
        with pytest.raises(UsageError, match="no process 'a' runs"):
            cluster.kill("a")
        cluster.start("a")
        cluster.feed(OPS[1])
        cluster.run()
        assert cluster.outputs("out") == book(OPS[:2])


def test_the_plugin_closes_its_clusters(simulated_cluster: Callable[..., SimulatedCluster]) -> None:
    cluster = simulated_cluster(Book, processes=1)
    cluster.feed(OPS[0])
    cluster.run()
    assert cluster.outputs("out") == book(OPS[:1])


def test_crashes_at_every_step_change_nothing() -> None:
    found = fuzz_crashes(Book, OPS[:3], most=60)
    assert found.places > 50
    assert 30 < found.schedules <= 60


def test_crashes_show_state_outside_of_tables() -> None:
    with pytest.raises(AssertionError, match=r"(?s)FAILED.*replay: Schedule.listed"):
        fuzz_crashes(Forgetful, OPS[:3], most=60)


def test_a_check_of_ones_own_replaces_the_comparison() -> None:
    seen: list[Any] = []
    inputs = [InputRecord(1.0, 0, b'{"account":"a","amount":1}', b"a")]
    fuzz_crashes(Book, inputs, check=lambda result: seen.append(result.outputs("out")), most=5)
    assert seen[0] == {0: [(None, b"a=1")]}


def test_a_cluster_feeds_each_of_several_inputs() -> None:
    with SimulatedCluster(Chain, processes=2) as cluster:
        for number, topic in enumerate(("input", "second", "second", "input")):
            cluster.feed(Op("a", number + 1), input=topic)
            cluster.run()
        cluster.kill(next(name for name, partitions in cluster.assignment.items() if partitions))
        cluster.feed(Op("a", 9), input="second")
        cluster.run()
        places = [text.rsplit(" ", 1)[0] for text in cluster.outputs("out")]
        assert places == ["input 0", "second 0", "second 1", "input 1", "second 2"]
        with pytest.raises(UsageError, match="no input 'third'; there are: input, second"):
            cluster.feed(Op("a", 1), input="third")


def test_crashes_at_every_step_of_two_inputs_change_nothing() -> None:
    inputs = [
        InputRecord(1.0 + number, 0, b'{"account":"a","amount":%d}' % number, None, topic)
        for number, topic in enumerate(("input", "second", "input"))
    ]
    assert fuzz_crashes(Chain, inputs, most=40).schedules > 20
