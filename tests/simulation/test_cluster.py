"""What users get: a simulated cluster of their service, and crashes at every step of some inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest
from tests.simulation.scenarios import Book, Chain, Op, book

from statehold import Call, CallResult, Handler, Output, Record, Table, Tumbling, renamed
from statehold.api.handler import EffectKey
from statehold.errors import UsageError
from statehold.testing import Driver
from statehold.testing.simulation import InputRecord, RunResult, SimulatedCluster, fuzz_crashes, quick_settings

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


class Posting(Handler[Op]):
    """An effect that is an `async def`."""

    posted: ClassVar[list[int]] = []
    counts = Table(key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        self.counts[record.value.account] = record.offset
        self.effect(self.post, record.offset)

    async def post(self, key: EffectKey, offset: int) -> None:
        self.posted.append(offset)


def test_an_async_effect_runs() -> None:
    Posting.posted.clear()
    with SimulatedCluster(Posting, processes=1) as cluster:
        for op in OPS:
            cluster.feed(op)
        cluster.run()
        assert Posting.posted == list(range(len(OPS)))


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


class Keyed(Handler[int, int]):
    out = Output("out", value=int, key=int)

    def on_record(self, record: Record[int, int]) -> None:
        self.out.send(record.value, key=record.key)


class Optional(Handler[int, int | None]):
    out = Output("out", value=int)

    def on_record(self, record: Record[int, int | None]) -> None:
        self.out.send(record.value)


def test_crashes_at_every_step_of_records_with_typed_keys_change_nothing() -> None:
    seen: list[Any] = []
    inputs = [InputRecord(1.0, 0, b"1", 7), InputRecord(2.0, 0, b"2", b"8"), InputRecord(3.0, 0, b"3", 9)]
    fuzz_crashes(Keyed, inputs, check=lambda result: seen.append(result.outputs("out")), most=5)
    assert seen[0] == {0: [(b"7", b"1"), (b"8", b"2"), (b"9", b"3")]}
    with pytest.raises(
        UsageError, match=r"^5 has no key, and Keyed takes keys of the type int. Next: give InputRecord"
    ):
        fuzz_crashes(Keyed, [5])
    assert fuzz_crashes(Optional, [1, 2], most=5).schedules


class Seconds(Handler[str]):
    """Windows of a second, which a record from the future would close."""

    counts = Tumbling(1.0, key=str, value=int, grace=20.0)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.counts.update(record, record.value, lambda count: (count or 0) + 1)
        self.out.send(f"{record.value} {record.offset}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"closed {key} {value}")

    def on_late(self, name: str, key: str, record: Record[str]) -> None:
        self.out.send(f"late {key}")


@pytest.mark.parametrize("delta_interval", ["commit", 2.0])
def test_after_crashes_at_every_step_a_record_from_the_future_has_moved_no_time(delta_interval: Any) -> None:
    keys = ("ann", "eve", "bob", "eve", "ann")
    inputs = [
        InputRecord(1.0 + 0.4 * number, 0, key.encode(), None, "", 4_102_444_800_000 if key == "eve" else 0)
        for number, key in enumerate(keys)
    ]
    base = quick_settings()
    settings = replace(
        base,
        time=replace(base.time, max_ahead=60.0),
        snapshot=replace(base.snapshot, delta_interval=delta_interval),
    )
    expected = [f"{key} {offset}" for offset, key in enumerate(keys)]

    def check(result: RunResult) -> None:
        said = [(value or b"").decode() for _, value in result.outputs("out")[0]]
        assert [each for each in said if not each.startswith("closed")] == expected
        assert not [each for each in said if each.startswith("closed eve")]

    assert fuzz_crashes(Seconds, inputs, settings=settings, check=check, most=60).schedules > 30


def tenfold(name: str, amount: int) -> int:
    """A remote system."""
    return amount * 10


class Asked(Handler[Op]):
    """Asks for each amount, and sends the running total of the answers."""

    ask = Call(tenfold, argument=int, result=int, backoff=0.1, per_key_order=True)
    totals = Table(key=str, value=int)
    out = Output("out", value=int)

    def on_record(self, record: Record[Op]) -> None:
        self.ask(record.value.amount, key="all")

    @ask.on_result
    def on_answer(self, done: CallResult[int, int]) -> None:
        self.totals["all"] = self.totals.get("all", 0) * 3 + done.result
        self.out.send(self.totals["all"])


def test_crashes_between_call_answer_and_commit_change_nothing() -> None:
    found = fuzz_crashes(Asked, OPS[:3], most=120)
    assert found.schedules > 60


class Sum(msgspec.Struct, frozen=True):
    cents: int = 0


class Total(msgspec.Struct, frozen=True):
    minor: int = 0
    count: int = 0


class FirstRelease(Handler[int]):
    sums = Table(key=str, value=Sum)
    out = Output("sums", value=tuple[int, int])

    def on_record(self, record: Record[int]) -> None:
        cents = self.sums.get("all", Sum()).cents + record.value
        self.sums["all"] = Sum(cents)
        self.out.send((record.partition, cents), key=str(record.partition))


class SecondRelease(Handler[int]):
    """Another version of the same table, with a renamed and a new field."""

    sums = Table(key=str, value=Total, version=2, upcasters={1: renamed({"cents": "minor"})})
    out = Output("sums", value=tuple[int, int])

    def on_record(self, record: Record[int]) -> None:
        total = self.sums.get("all", Total())
        total = Total(total.minor + record.value, total.count + 1)
        self.sums["all"] = total
        self.out.send((record.partition, total.minor), key=str(record.partition))


@pytest.mark.parametrize("seed", range(4))
def test_a_rolling_upgrade_with_kills_in_the_middle(seed: int) -> None:
    with SimulatedCluster(FirstRelease, processes=3, partitions=3, seed=seed) as cluster:
        fed = 0

        def feed() -> None:
            nonlocal fed
            fed += 1
            for partition in range(3):
                cluster.feed(fed, partition=partition)

        feed()
        cluster.run()
        for name in "abc":
            if seed % 2:
                cluster.stop(name)
                cluster.advance(5.0)
            else:
                cluster.kill(name)
            feed()
            cluster.advance(0.2 * seed)
            cluster.start(name, SecondRelease)
            feed()
        cluster.run()
        cluster.kill("b")
        feed()
        cluster.start("b")  # the same release again
        cluster.run()
        sums: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for partition, cents in cluster.outputs("out"):
            sums[partition].append(cents)
        right = [sum(range(n + 1)) for n in range(1, fed + 1)]
        assert sums == {0: right, 1: right, 2: right}


def test_crashes_in_the_middle_of_an_upgrade_change_nothing() -> None:
    found = fuzz_crashes(FirstRelease, [1, 2, 3, 4, 5, 6], most=40, upgrade=SecondRelease)
    assert found.places > 100
    assert Driver(FirstRelease).fuzz_crashes([1, 2, 3], most=10, upgrade=SecondRelease) > 5


def test_crashes_in_the_middle_of_an_upgrade_meet_both_releases() -> None:
    class Named(SecondRelease):
        names = Output("names", value=str)

        def on_record(self, record: Record[int]) -> None:
            super().on_record(record)
            self.names.send("second")

    handled: list[int] = []

    def check(result: RunResult) -> None:
        sums = [msgspec.json.decode(value or b"")[1] for _, value in result.outputs("sums")[0]]
        assert sums == [1, 3, 6, 10, 15, 21]
        handled.append(len(result.outputs("names")[0]))

    fuzz_crashes(FirstRelease, [1, 2, 3, 4, 5, 6], most=30, upgrade=Named, check=check)
    assert 2 <= min(handled) < max(handled)


def test_crashes_in_the_middle_of_an_upgrade_show_an_upcaster_that_loses_a_value() -> None:
    class Lossy(SecondRelease):
        sums = Table(key=str, value=Total, version=2, upcasters={1: lambda old: Total()})

    with pytest.raises(AssertionError, match=r"(?s)stops for its next release.*FAILED.*replay: Schedule.listed"):
        fuzz_crashes(FirstRelease, [1, 2, 3, 4, 5, 6], most=60, upgrade=Lossy)


def test_crashes_in_the_middle_of_an_upgrade_that_would_misread_the_state() -> None:
    class Misread(SecondRelease):
        sums = Table(key=str, value=Total)

    with pytest.raises(AssertionError, match="TableTypeChanged"):
        fuzz_crashes(FirstRelease, [1, 2, 3], most=5, upgrade=Misread)


def test_an_upgrade_that_reads_other_inputs_is_an_error() -> None:
    with pytest.raises(UsageError, match="Chain reads input, second, FirstRelease reads input"):
        fuzz_crashes(FirstRelease, [1], upgrade=Chain)


def test_a_process_that_is_started_right_after_its_kill_runs_once() -> None:
    with SimulatedCluster(FirstRelease, processes=1) as cluster:
        cluster.run()
        cluster.kill("a")
        cluster.start("a")
        cluster.advance(60.0)
        assert "a3 " not in cluster.timeline


def test_a_release_that_would_misread_the_state_is_seen() -> None:
    class Misread(Handler[int]):
        sums = Table(key=str, value=Total)
        on_record = FirstRelease.on_record

    with SimulatedCluster(FirstRelease, processes=1) as cluster:
        cluster.feed(1)
        cluster.run()
        cluster.kill("a")
        cluster.start("a", Misread)
        with pytest.raises(AssertionError, match="TableTypeChanged"):
            cluster.run()


def test_a_release_with_other_outputs_is_an_error() -> None:
    class More(FirstRelease):
        more = Output("more", value=int)

    with SimulatedCluster(FirstRelease, processes=1) as cluster:
        cluster.run()
        cluster.kill("a")
        with pytest.raises(UsageError, match="More sends to more, which was not created"):
            cluster.start("a", More)
