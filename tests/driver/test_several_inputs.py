"""A handler with several inputs: the order of their records, and its repetition by every replay."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import inside

from statehold import Handler, Output, Record, Table, on
from statehold.config import Settings
from statehold.config.sections.inputs import InputsSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.errors import DamagedIncrement, NonDeterministicReplay, RetentionGap, StateRefused, UsageError
from statehold.snapshot.format.records import pack, unpack
from statehold.snapshot.inspect.summaries import of_survey
from statehold.snapshot.inspect.survey import choose_far, survey
from statehold.snapshot.restore.estimate import Workload
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader


class Price(msgspec.Struct, frozen=True):
    symbol: str
    price: int


class Trade(msgspec.Struct, frozen=True):
    symbol: str
    quantity: int


class Risk(Handler[None]):
    """Values each trade by the newest price; the chain of values depends on the order of all records."""

    prices = Table(key=str, value=int)
    chain = Table(key=str, value=int)
    values = Output("values", value=int)

    @on("trades", value=Trade)
    def trade(self, record: Record[Trade]) -> None:
        trade = record.value
        value = trade.quantity * self.prices.get(trade.symbol, 0)
        self.chain[trade.symbol] = (self.chain.get(trade.symbol, 7) * 31 + value + 1) % 1_000_003
        self.values.send(value, trade.symbol)

    @on("prices", value=Price)
    def price(self, record: Record[Price]) -> None:
        self.prices[record.value.symbol] = record.value.price
        self.chain[record.value.symbol] = (self.chain.get(record.value.symbol, 7) * 37 + record.value.price) % 1_000_003


def driver_of(
    *, batch: int = 1, deltas: float | Literal["commit", "off"] = "commit", order: Literal["time", "arrival"] = "time"
) -> Driver:
    values = Settings(
        service=ServiceSettings(mode="development"),
        snapshot=SnapshotSettings(delta_interval=deltas),
        inputs=InputsSettings(order=order),
    )
    return Driver(Risk, settings=values, batch=batch)


def test_each_record_goes_to_the_method_of_its_input() -> None:
    driver = driver_of()
    driver.feed(Price("a", 5), "a", input="prices")
    driver.feed(Trade("a", 3), "a", input="trades")
    driver.feed(Price("a", 6), "a", input="prices")
    driver.feed(Trade("a", 3), "a", input="trades")
    assert driver.outputs("values") == [15, 18]
    assert driver.commit_record().positions == {"trades": 2, "prices": 2}
    assert driver.commit_record().inputs == ("trades", "prices")
    assert driver.position() == 4


def test_snapshot_list_counts_the_records_of_every_input() -> None:
    driver = driver_of()
    driver.feed(Price("a", 5), "a", input="prices")
    driver.feed(Trade("a", 3), "a", input="trades")
    driver.take_full()
    seen = survey(MemoryReader(driver.broker, lambda: False), inside.place(driver))
    summary = of_survey(seen, Workload(), driver.names.input)
    assert (summary["commit_record"]["position"], summary["full_snapshots"][0]["position"]) == (2, 2)


def test_a_replay_that_lacks_records_of_the_second_input_is_foreseen() -> None:
    """The deltas are off, so a restore replays both inputs from the full snapshot on."""
    driver = driver_of(deltas="off")
    for number in range(4):
        driver.feed(Price("a", number), "a", input="prices")
    driver.take_full()
    for number in range(3):
        driver.feed(Price("a", number), "a", input="prices")
        driver.feed(Trade("a", number), "a", input="trades")
    driver.commit()

    place, reader = inside.place(driver), MemoryReader(driver.broker, lambda: False)
    seen = survey(reader, place)
    assert seen.begins == {"trades": 0, "prices": 0}
    assert seen.commit_record is not None
    known = place, seen.commit_record, seen.full_snapshots, seen.increment
    choice, why, fault = choose_far(*known, {"trades": 0, "prices": 4})
    assert (choice, fault) == (seen.full_snapshots[0], "")
    assert "6 records from 4 are replayed" in why
    choice, _, fault = choose_far(*known, {"trades": 0, "prices": 5})
    assert choice is None
    assert "needs prices from 4" in fault
    assert "trades at 0, prices at 5. Next" in fault


def test_the_type_of_the_handler_may_be_the_union_of_its_inputs() -> None:
    class Typed(Handler[Trade | Price]):
        values = Output("values", value=int)

        @on("trades", value=Trade)
        def trade(self, record: Record[Trade]) -> None:
            self.values.send(record.value.quantity, record.value.symbol)

        @on("prices", value=Price)
        def price(self, record: Record[Price]) -> None:
            self.values.send(record.value.price, record.value.symbol)

    driver = Driver(Typed)
    driver.feed(Price("a", 5), "a", input="prices")
    driver.feed(Trade("a", 3), "a", input="trades")
    assert driver.outputs("values") == [5, 3]


Fed = tuple[Literal["trades", "prices"], int, int]


def records() -> st.SearchStrategy[list[Fed]]:
    return st.lists(
        st.tuples(st.sampled_from(["trades", "prices"]), st.integers(0, 9), st.integers(0, 20)), max_size=40
    )


def feed(driver: Driver, fed: Fed) -> None:
    topic, number, time = fed
    driver.feed(Trade("a", number) if topic == "trades" else Price("a", number), "a", timestamp=time, input=topic)


def merged(records: list[Fed]) -> list[int]:
    """The outputs of a plain merge by timestamp; of equal ones trades first."""
    trades, prices = ([each for each in records if each[0] == topic] for topic in ("trades", "prices"))
    price, outputs = 0, []
    while trades or prices:
        if trades and (not prices or trades[0][2] <= prices[0][2]):
            outputs.append(trades.pop(0)[1] * price)
        else:
            price = prices.pop(0)[1]
    return outputs


@given(records(), st.sampled_from(["commit", 2.0, "off"]))
@settings(max_examples=60, deadline=None)
def test_inputs_that_are_complete_are_merged_by_time(
    given: list[Fed], deltas: float | Literal["commit", "off"]
) -> None:
    driver = driver_of(batch=7, deltas=deltas)
    for each in given:
        topic, number, time = each
        data = msgspec.json.encode(Trade("a", number) if topic == "trades" else Price("a", number))
        driver.broker.log(topic, 0).append(data, b"a", None, time)
    driver.table("prices")
    driver.commit()
    assert driver.outputs("values") == merged(given)
    driver.replay()


class Killed(BaseException):
    """The process ends, like SIGKILL."""


def kill_at(driver: Driver, call: int) -> None:
    """Kill the process before the call of this number to the brokers, whatever that call is."""
    calls = itertools.count(1)

    def count(_: object) -> None:
        if next(calls) == call:
            raise Killed

    driver.broker.on_call = count


@given(
    records(),
    st.sampled_from(["commit", 2.0, "off"]),
    st.integers(1, 7),
    st.lists(st.integers(1, 40), max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_inputs_that_are_complete_are_merged_by_time_whatever_is_killed_when(
    given: list[Fed], deltas: float | Literal["commit", "off"], most: int, kills: list[int]
) -> None:
    """Both inputs at any speed, one silent or late; restores are killed, too."""
    driver = driver_of(batch=most, deltas=deltas)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=most))
    assert driver.position() == 0  # the initial commit record is there
    driver.crash()
    for topic, number, time in given:
        data = msgspec.json.encode(Trade("a", number) if topic == "trades" else Price("a", number))
        driver.broker.log(topic, 0).append(data, b"a", None, time)
    for call in kills:
        kill_at(driver, call)
        with suppress(Killed):
            driver.restore()
            driver.table("prices")
            driver.commit()
        driver.broker.on_call = None
        with suppress(UsageError):  # it was killed before it ran
            driver.crash()
    driver.restore()
    driver.table("prices")
    driver.commit()
    assert driver.outputs("values") == merged(given)
    driver.replay()


@given(
    st.data(),
    records(),
    st.sampled_from(["commit", 2.0, "off"]),
    st.sampled_from(["time", "arrival"]),
    st.integers(1, 5),
)
@settings(max_examples=120, deadline=None)
def test_a_replay_repeats_the_order_of_live(
    data: st.DataObject,
    given: list[Fed],
    deltas: float | Literal["commit", "off"],
    order: Literal["time", "arrival"],
    batch: int,
) -> None:
    driver = driver_of(batch=batch, deltas=deltas, order=order)
    for each in given:
        feed(driver, each)
        match data.draw(st.integers(0, 9)):
            case 0:
                driver.crash()
                driver.restore()
            case 1:
                driver.commit()
            case 2:
                driver.advance(1.0)
            case 3:
                driver.rebalance()
            case 4:
                driver.take_full()
            case 5:
                driver.stand_by()
                driver.crash()
                driver.restore()
    driver.commit()
    before = driver.table("chain"), driver.outputs("values")
    driver.crash()
    driver.restore()
    assert (driver.table("chain"), driver.outputs("values")) == before
    assert driver.position() == len(given)
    assert len(driver.outputs("values")) == sum(topic == "trades" for topic, _, _ in given)


def test_a_method_of_an_input_may_not_replace_one_of_the_handler() -> None:
    class Named(Handler[None]):
        @on("trades", value=Trade)
        def cancel(self, record: Record[Trade]) -> None:  # type: ignore[override]
            """Replace Handler.cancel, which cancels a timer."""

    with pytest.raises(UsageError, match=r"Named\.cancel handles the input 'trades' and replaces Handler\.cancel"):
        Driver(Named)


@pytest.mark.parametrize(
    ("runs", "error", "reported"),
    [
        (b"\x09\x01", DamagedIncrement, "is not the order of the records of 2 inputs"),
        (b"\x00", DamagedIncrement, "is not the order of the records of 2 inputs"),
        (b"", RetentionGap, "trades[0]@0: handle the gap again: up to offset 3 the input has more records"),
        (b"\x01\x03\x00\x04", RetentionGap, "trades[0]@3: handle the gap again: up to offset 3 the input has fewer"),
        (b"\x01\x03\x00\x03", NonDeterministicReplay, "replaying 0 to 6 gave digest"),
    ],
)
def test_a_commit_record_with_other_runs_is_rejected(runs: bytes, error: type[StateRefused], reported: str) -> None:
    driver = driver_of(deltas="off")
    for number in range(3):
        feed(driver, ("trades", number, number))
        feed(driver, ("prices", number, number))
    written = driver.commit_record()
    driver.crash()
    log = driver.broker.log(driver.names.changelog, 0)
    at = max(each.offset() for each in log.committed() if unpack(each.value()) == written)
    log.replace(at, pack(msgspec.structs.replace(written, runs=runs)))
    with pytest.raises(error, match=re.escape(reported)):
        driver.restore()


def test_only_the_first_of_several_inputs_has_commands() -> None:
    class Obeying(Handler[None]):
        seen = Table(key=str, value=str)

        @on("first", value=str)
        def first(self, record: Record[str]) -> None:
            self.seen[record.value] = "first"

        @on("second", value=str)
        def second(self, record: Record[str]) -> None:
            self.seen[record.value] = "second"

        def on_command(self, command: str, record: Record[bytes]) -> None:
            self.seen[record.value.decode()] = command

    driver = Driver(Obeying, batch=6)
    header = [("statehold-command", b"note")]
    for name, topic, headers in [
        ("a", "second", header), ("b", "second", None), ("c", "first", None),
        ("d", "first", header), ("e", "second", header), ("f", "first", None),
    ]:  # fmt: skip
        driver.feed(name, headers=headers, input=topic)
    driver.commit()
    kinds = {"a": "second", "b": "second", "c": "first", "d": "note", "e": "second", "f": "first"}
    assert driver.table("seen") == kinds
    driver.replay()
