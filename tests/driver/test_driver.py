"""The driver as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.support.handlers import Accounts, Balance, Caller, Op, call

from statehold import Handler, Output, Record, Table, on
from statehold.api.handler import EffectKey
from statehold.errors import HandlerFailed, MutatedInPlace, UndecodableRecord, UsageError
from statehold.testing import Driver
from statehold.testing.memory.log import LogMessage, MemoryLog


def test_a_first_test_is_short() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 30), key="ann")
    driver.feed(Op("ann", 12), key="ann")
    assert driver.outputs("totals") == [30, 42]
    assert driver.table("balances") == {"ann": Balance(42, 2)}


def test_sent_shows_all_of_an_output() -> None:
    class Echo(Handler[str]):
        replies = Output("replies-v1", value=str)

        def on_record(self, record: Record[str]) -> None:
            self.replies.send(
                record.value, key=record.key, headers=record.headers, partition=3, timestamp=record.timestamp + 1
            )

    driver = Driver(Echo)
    driver.feed("hello", key="k", headers=[("trace", b"7")], timestamp=41)
    (reply,) = driver.sent("replies-v1")
    assert reply == ("hello", b"k", (("trace", b"7"),), 3, 42)
    assert driver.outputs("replies") == ["hello"]  # by attribute name, too


def test_bytes_are_passed_unchanged_and_a_wrong_one_is_named_with_its_place() -> None:
    driver = Driver(Accounts, input="orders")
    driver.feed(b'{"account": "ann", "amount": 5}')
    with pytest.raises(UndecodableRecord, match=r"orders\[0\]@1") as failure:
        driver.feed(b"{")
    assert (failure.value.topic, failure.value.partition, failure.value.position) == ("orders", 0, 1)
    assert driver.outputs("totals") == [5]


class Strict(Handler[int]):
    total = Table(key=str, value=int)
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.total["sum"] = self.total.get("sum", 0) + record.value
        self.out.send(self.total["sum"])
        self.effect(call, record.value)
        if record.value < 0:
            raise ValueError("negative")


def test_a_record_that_raises_leaves_no_trace_and_nothing_is_skipped() -> None:
    driver = Driver(Strict)
    driver.feed(1)
    with pytest.raises(HandlerFailed, match=r"input\[0\]@1: the handler raised ValueError: negative") as failure:
        driver.feed(-5)
    assert isinstance(failure.value.__cause__, ValueError)
    assert (driver.table("total"), driver.outputs("out")) == ({"sum": 1}, [1])
    assert [each.arguments for each in driver.effects] == [(1,)]
    with pytest.raises(UsageError, match=r"has failed.*restore"):
        driver.feed(2)
    with pytest.raises(HandlerFailed, match="@1"):
        driver.restore()
    driver.withdraw()
    driver.feed(2)
    assert (driver.table("total"), driver.outputs("out")) == ({"sum": 3}, [1, 3])


def test_what_came_before_a_failing_record_in_its_batch_is_kept() -> None:
    driver = Driver(Strict, batch=4)
    driver.feed_all([1, 2, -3])
    with pytest.raises(HandlerFailed, match="@2"):
        driver.feed(4)
    assert (driver.table("total"), driver.outputs("out")) == ({"sum": 3}, [1, 3])


class OfTwoInputs(Handler[None]):
    total = Table(key=str, value=int)

    @on("one", value=int)
    def of_one(self, record: Record[int]) -> None:
        self.total["sum"] = self.total.get("sum", 0) + record.value

    @on("two", value=int)
    def of_two(self, record: Record[int]) -> None:
        self.of_one(record)


@pytest.mark.parametrize(("kind", "inputs"), [(Strict, ["one"]), (OfTwoInputs, ["one", "two"])])
def test_a_large_batch_is_not_read_again_with_each_record(
    kind: type[Handler[Any]], inputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    visible = MemoryLog.committed

    def counted(log: MemoryLog, start: int = 0, end: int | None = None) -> Iterator[LogMessage]:
        nonlocal read
        for message in visible(log, start, end):
            read += 1
            yield message

    driver = Driver(kind, batch=200, inputs=inputs)
    driver.feed(0, input="one")
    monkeypatch.setattr(MemoryLog, "committed", counted)
    for number in range(300):
        driver.feed(1, input=inputs[number % len(inputs)])
    assert driver.table("total") == {"sum": 300}
    assert read < 1_500


def test_an_unknown_output_or_table_names_those_that_exist() -> None:
    driver = Driver(Accounts)
    with pytest.raises(UsageError, match="there are: totals"):
        driver.outputs("sums")
    with pytest.raises(UsageError, match="there are: balances"):
        driver.table("sums")
    with pytest.raises(UsageError, match=r"Driver\(partitions=\)"):
        driver.feed(Op("a"), partition=1)


class Basket(Handler[str]):
    items = Table(key=str, value=list[str], mutable=True)

    def on_record(self, record: Record[str]) -> None:
        self.items.get("all", []).append(record.value)
        if "all" not in self.items:
            self.items["all"] = [record.value]


def test_a_value_changed_in_place_is_caught() -> None:
    driver = Driver(Basket)
    driver.feed("apple")
    driver.commit()
    driver.feed("pear")
    with pytest.raises(MutatedInPlace, match=r"table 'items', key 'all'"):
        driver.commit()
    increment = driver.broker.log(driver.names.changelog, 0)
    assert increment.stable == increment.end, "a failed partition leaves no transaction open"
    assert driver.table("items") == {"all": ["apple"]}


def test_partitions_are_apart() -> None:
    driver = Driver(Accounts, partitions=2)
    driver.feed(Op("ann", 1), partition=0)
    driver.feed(Op("ann", 2), partition=1)
    assert driver.table("balances", 0) == {"ann": Balance(1, 1)}
    assert driver.table("balances", 1) == {"ann": Balance(2, 1)}
    assert driver.handler(1).partition == 1
    driver.replay(partition=1)


def test_time_passes_only_in_advance() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(Op("ann", 1))
    assert (driver.outputs("totals"), driver.table("balances")) == ([], {"ann": Balance(1, 1)})
    driver.advance(0.05)
    assert driver.outputs("totals") == []
    driver.advance(0.05)
    assert driver.outputs("totals") == [1]


def test_a_crash_takes_what_was_not_committed_and_a_restore_handles_it_again() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.feed(Op("ann", 2))
    driver.crash()
    assert driver.outputs("totals") == [1]
    with pytest.raises(UsageError, match="restore"):
        driver.feed(Op("ann", 4))
    driver.restore()
    driver.commit()
    assert driver.outputs("totals") == [1, 3]


def test_a_clean_stop_takes_a_full_snapshot_and_the_next_start_applies_no_delta_of_before() -> None:
    driver = Driver(Accounts)
    driver.feed_all([Op("ann", 1), Op("bob", 2)])
    driver.stop()
    driver.restore()
    restored = [fields for event, fields in driver.events if event == "restored"][-1]
    assert restored["full"] is not None
    assert (restored["keys"], driver.table("balances")) == (2, {"ann": Balance(1, 1), "bob": Balance(2, 1)})


def test_commands_are_part_of_the_order() -> None:
    class Switch(Handler[int]):
        log = Output("log", value=str)

        def on_batch(self, records: Sequence[Record[int]]) -> None:
            self.log.send(",".join(str(record.value) for record in records))

        def on_command(self, command: str, record: Record[bytes]) -> None:
            self.log.send(f"{command} {record.value.decode()}")

    driver = Driver(Switch, batch=10)
    driver.feed_all([1, 2])
    driver.command("close", b"now")
    driver.feed(3)
    assert driver.outputs("log") == ["1,2", "close now", "3"]


def test_a_write_in_on_live_is_rejected_because_no_replay_would_repeat_it() -> None:
    class Eager(Handler[int]):
        seen = Table(key=str, value=int)

        def on_record(self, record: Record[int]) -> None: ...

        def on_live(self) -> None:
            self.seen["starts"] = self.seen.get("starts", 0) + 1

    with pytest.raises(UsageError, match="on_live wrote to seen: that belongs to no record"):
        Driver(Eager).commit_record()


def test_an_effect_without_a_recorded_end_runs_again_with_its_key() -> None:
    driver = Driver(Caller)
    driver.feed(7)
    driver.commit()
    driver.crash()
    driver.restore()
    assert [each.key for each in driver.effects] == [("input", 0, 0, 0)] * 2


def test_effects_run_after_the_commit_with_the_same_key_again_and_never_in_a_replay() -> None:
    driver = Driver(Caller, delta_interval="off")
    driver.feed_all([7, 8])
    assert [(each.key, each.function, each.arguments) for each in driver.effects] == [
        (("input", 0, 0, 0), "call", (7,)),
        (("input", 0, 1, 0), "call", (8,)),
    ]
    driver.advance(1)  # a mark says that they are done
    driver.crash()
    driver.restore()
    assert len(driver.effects) == 2
    assert [fields["records"] for event, fields in driver.events if event == "replayed"][-1] == 2


_failing: list[EffectKey] = []


def flaky(key: EffectKey) -> None:
    """Fails the first time."""
    _failing.append(key)
    if len(_failing) == 1:
        raise ConnectionError("down")


def test_an_effect_that_raises_is_pending_until_it_succeeds() -> None:
    class Notifier(Handler[int]):
        def on_record(self, record: Record[int]) -> None:
            self.effect(flaky)

    _failing.clear()
    driver = Driver(Notifier, run_effects=True)
    driver.feed(1)
    driver.commit()
    assert (driver.effects, len(driver.commit_record().effects)) == ([], 1)
    driver.advance(0.2)
    assert [each.key for each in driver.effects] == [("input", 0, 0, 0)]
    driver.advance(0.2)
    assert driver.commit_record().effects == ()
    assert [event for event, _ in driver.events].count("effect_failed") == 1


def test_a_declaration_is_not_a_table() -> None:
    with pytest.raises(UsageError, match="declaration"):
        Accounts.balances.get("ann")
    with pytest.raises(UsageError, match="declaration"):
        Accounts.totals.send(1)


def test_the_input_type_determines_how_values_are_encoded() -> None:
    class Raw(Handler[bytes]):
        seen = Table(key=int, value=bytes)

        def on_record(self, record: Record[bytes]) -> None:
            self.seen[record.offset] = record.value

    class Structs(Handler[dict[str, int]]):
        seen = Table(key=int, value=dict[str, int], mutable=True)

        def on_record(self, record: Record[dict[str, int]]) -> None:
            self.seen[record.offset] = record.value

    raw, structs = Driver(Raw), Driver(Structs)
    raw.feed(b"\x00\xff")
    structs.feed({"a": 1})
    structs.feed(msgspec.json.encode({"b": 2}))
    assert raw.table("seen") == {0: b"\x00\xff"}
    assert structs.table("seen") == {0: {"a": 1}, 1: {"b": 2}}


def test_the_driver_needs_no_kafka_client() -> None:
    code = "import statehold.testing, sys; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
