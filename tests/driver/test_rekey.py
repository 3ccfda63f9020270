"""A handler that sends to itself by another key: each record once, at its owner, whatever dies when."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.rebuilding import rebuilt
from tests.support.rehearsing import compared, rehearsed
from tests.support.rekeyed import Ledger, LedgerBase, Movement, Transfer, balances

from statehold import Handler, Output, Record, Rekey, Table, Timer, dead_letter, on
from statehold.api.record import MemoryMessage
from statehold.bound.output import ORIGIN, ORIGIN_HEADER
from statehold.bound.rekey import HOPS_HEADER, hops_of
from statehold.common.partitioner import murmur2
from statehold.config import Settings
from statehold.config.sections.inputs import InputsSettings, RekeySettings
from statehold.config.sections.processing import OutputSettings
from statehold.config.sections.service import ServiceSettings
from statehold.errors import HandlerFailed, RekeyLoop, UndecodableRecord, UsageError
from statehold.messages.request import headers_of
from statehold.testing import Driver

PARTITIONS = 4
TOPIC = "ledger.by_account.rekey"


def made(count: int, seed: int = 1) -> list[Transfer]:
    source = random.Random(seed)
    pairs = (source.sample("abcdefgh", 2) for _ in range(count))
    return [Transfer(first, second, source.randrange(1, 90)) for first, second in pairs]


def totals(driver: Driver, partitions: int = PARTITIONS) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition in range(partitions):
        table = driver.table(Ledger.totals, partition)
        assert all(murmur2(account.encode(), partitions) == partition for account in table)
        found |= table
    return found


def test_each_account_is_where_its_key_belongs_and_the_sum_is_zero() -> None:
    driver, transfers = Driver(Ledger, partitions=PARTITIONS), made(60)
    for number, transfer in enumerate(transfers):
        driver.feed(transfer, key=str(number), partition=number % PARTITIONS)
    assert totals(driver) == balances(transfers)
    assert sum(totals(driver).values()) == 0
    assert len(driver.outputs(Ledger.moved)) == 2 * len(transfers)
    for partition in range(PARTITIONS):
        driver.replay(partition=partition)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["feed", "feed", "feed", "commit", "crash", "stop", "rebalance", "tick"]), max_size=60))
def test_nothing_is_lost_or_doubled_whatever_dies_when(steps: list[str]) -> None:
    driver = Driver(Ledger, partitions=PARTITIONS, autocommit=False, delta_interval=5.0)
    transfers, fed = made(len(steps)), []
    for number, step in enumerate(steps):
        match step:
            case "feed":
                driver.feed(transfers[number], partition=number % PARTITIONS)
                fed.append(transfers[number])
            case "commit":
                driver.commit()
            case "rebalance":
                driver.rebalance()
            case "tick":
                driver.advance(0.2)
            case _:
                (driver.crash if step == "crash" else driver.stop)()
                driver.restore()
    driver.commit()
    assert totals(driver) == {account: total for account, total in balances(fed).items() if account in totals(driver)}
    assert sum(totals(driver).values()) == 0
    assert len(driver.sent(Ledger.moved)) == 2 * len(fed)


def test_what_a_transaction_sends_is_unread_until_it_commits() -> None:
    driver = Driver(Ledger, autocommit=False)
    driver.feed(Transfer("a", "b", 5))
    assert not driver.table(Ledger.totals)
    driver.crash()
    assert list(driver.broker.log(TOPIC, 0).committed()) == []
    driver.restore()
    driver.commit()
    assert driver.table(Ledger.totals) == {"a": -5, "b": 5}


def test_event_time_passes_through() -> None:
    driver = Driver(Ledger)
    driver.feed(Transfer("a", "b", 5), timestamp=1_700_000_000_123)
    driver.commit()
    assert [each.timestamp()[1] for each in driver.broker.log(TOPIC, 0).committed()] == [1_700_000_000_123] * 2


def test_the_position_of_the_topic_is_in_the_commit_record() -> None:
    driver = Driver(Ledger)
    driver.feed(Transfer("a", "b", 5))
    assert driver.commit_record().positions["transfers"] == 1
    assert driver.commit_record().positions[TOPIC] == 2


@pytest.mark.parametrize("key", [None, 7, b"a"])
def test_a_key_of_another_type_fails_the_record(key: object) -> None:
    class Wrong(LedgerBase):
        @on("transfers", value=Transfer)
        def transfer(self, record: Record[Transfer]) -> None:
            self.by_account.send(Movement(1), key=key)  # type: ignore[arg-type]

    with pytest.raises(HandlerFailed, match=r"declared with key=str: the key decides which partition"):
        Driver(Wrong).feed(Transfer("a", "b", 5))


def test_another_programs_records_meet_the_failure_policy() -> None:
    class Careful(Ledger):
        on_failure: ClassVar = {ValueError: dead_letter(), UndecodableRecord: dead_letter()}

    driver = Driver(Careful)
    topic = driver.names.rekeys[0]
    driver.feed(b"{", key="a", input=topic)
    driver.feed(b'{"amount":1}', key=None, input=topic)
    driver.feed(b'{"amount":1}', key=b"\xff", input=topic)
    driver.feed(b'{"amount":1}', key="c", headers=[(HOPS_HEADER, b"not two bytes")], input=topic)
    assert driver.table(Careful.totals) == {"c": 1}
    assert [(each.topic, each.offset) for each in driver.dead_letters()] == [(topic, 0), (topic, 1), (topic, 2)]


class Endless(Handler[None]):
    """Sends each record to itself again, up to a number."""

    again = Rekey("again", key=int, value=int)
    handled = Table(key=int, value=int)

    @on("numbers", value=int)
    def begin(self, record: Record[int]) -> None:
        self.again.send(record.value, key=0)

    @on(again)
    def proceed(self, record: Record[int, int]) -> None:
        self.handled[record.key] = record.value
        if record.value:
            self.again.send(record.value - 1, key=record.value)


def _driver(most: int, **inputs: Any) -> Driver:
    mode, order = ServiceSettings(mode="development"), InputsSettings(**inputs)
    tree = Settings(service=mode, inputs=order, rekey=RekeySettings(max_hops=most))
    return Driver(Endless, partitions=2, settings=tree)


def hops(driver: Driver) -> list[int]:
    return [fields["hops"] for event, fields in driver.events if event == "rekey_hops"]


def test_a_loop_is_shown_and_ends_at_the_limit() -> None:
    driver = _driver(10)
    driver.feed(3)
    driver.feed(8)
    driver.commit()
    assert hops(driver)[0] >= 5
    driver.feed(50)
    with pytest.raises(HandlerFailed, match=r"by 11 sends of a Rekey, and rekey.max_hops is 10") as failed:
        driver.commit()
    assert isinstance(failed.value.__cause__, RekeyLoop)


class Forwarding(Handler[None]):
    """Sends each record to itself again, with its headers."""

    again = Rekey("again", key=int, value=int)

    @on("numbers", value=int)
    def begin(self, record: Record[int]) -> None:
        self.again.send(record.value, key=0, headers=record.headers)

    @on(again)
    def proceed(self, record: Record[int, int]) -> None:
        if record.value:
            self.again.send(record.value - 1, key=0, headers=record.headers)


@pytest.mark.parametrize("origin", [True, False])
def test_a_record_does_not_inherit_the_headers_of_statehold(origin: bool) -> None:
    tree = Settings(service=ServiceSettings(mode="development"), output=OutputSettings(origin=origin))
    driver, upstream = Driver(Forwarding, settings=tree), (ORIGIN_HEADER, ORIGIN.pack(5, 999, 0))
    driver.feed(2, headers=[upstream, ("trace", b"t"), (HOPS_HEADER, b"\x09\x00"), *headers_of("1", b"x")])
    driver.commit()
    found = [message.headers() or () for message in driver.broker.log(driver.names.rekeys[0], 0).committed()]
    ours = [ORIGIN_HEADER] * origin
    assert [[name for name, _ in headers] for headers in found] == [
        ["trace", *ours],
        ["trace", HOPS_HEADER, *ours],
        ["trace", HOPS_HEADER, *ours],
    ]
    assert upstream not in [header for headers in found for header in headers]
    driver.feed(200)
    with pytest.raises(HandlerFailed, match="by 101 sends of a Rekey"):
        driver.commit()


def test_the_last_number_of_hops_counts() -> None:
    headers = [(HOPS_HEADER, b"\x02\x00"), (HOPS_HEADER, b"\x03\x00"), (HOPS_HEADER, b"short")]
    assert hops_of(MemoryMessage(TOPIC, 0, 0, b"1", None, headers)) == 3


class Periodic(Handler[None]):
    """Each timer sends a record that makes the next timer due."""

    wait, ahead = 1, 10
    again = Rekey("again", key=int, value=int)
    fired = Table(key=str, value=int)

    @on("numbers", value=int)
    def begin(self, record: Record[int]) -> None:
        self.again.send(record.value, key=0)

    @on(again)
    def proceed(self, record: Record[int, int]) -> None:
        self.schedule(record.timestamp + self.wait, None)

    def on_timer(self, timer: Timer) -> None:
        fired = self.fired["all"] = self.fired.get("all", 0) + 1
        if fired < 100:
            self.again.send(0, key=0, timestamp=timer.due + self.ahead)


class Waiting(Periodic):
    """Each timer sends a record that schedules the next one, which is due by the clock."""

    wait, ahead = 10_000, 0


def _periodic(kind: type[Periodic]) -> Driver:
    tree = Settings(service=ServiceSettings(mode="development"), rekey=RekeySettings(max_hops=10))
    return Driver(kind, settings=tree)


def test_a_timer_that_feeds_itself_ends_at_the_limit() -> None:
    driver = _periodic(Periodic)
    for timestamp in (1_000, 1_005):
        driver.feed(1, timestamp=timestamp)
    with pytest.raises(HandlerFailed, match="by 11 sends of a Rekey"):
        driver.commit()


def test_a_timer_that_is_due_at_a_tick_starts_a_new_count() -> None:
    driver = _periodic(Waiting)
    driver.feed(1)
    for _ in range(20):
        driver.advance(30.0)
        driver.commit()
    assert driver.table(Waiting.fired)["all"] > 12
    assert not hops(driver)
    driver.replay()


def test_few_hops_are_no_loop() -> None:
    driver = _driver(100)
    driver.feed(3)
    driver.commit()
    assert not hops(driver)


@pytest.mark.parametrize("order", ["time", "arrival"])
def test_no_order_waits_for_what_the_service_has_yet_to_send(order: str) -> None:
    """With `inputs.idle` a merge by time waits a minute for a silent input, but not for its own records."""
    driver = _driver(100, order=order, idle=60.0)
    for number in range(5):
        driver.feed(number, timestamp=1_000 * number)
    driver.commit()
    assert driver.commit_record().positions["numbers"] == 5


class Twice(Handler[None]):
    """Counts by row and then by account: two levels, in one service."""

    rows = Table(key=str, value=int)
    accounts = Table(key=str, value=int)
    by_account = Rekey("by_account", key=str, value=int)
    by_all = Rekey("by_all", key=bytes, value=int)
    every = Table(key=str, value=int)
    out = Output("out", value=int)

    @on("rows", value=str)
    def row(self, record: Record[str]) -> None:
        self.rows[record.value] = self.rows.get(record.value, 0) + 1
        self.by_account.send(1, key=record.value[0])

    @on(by_account)
    def account(self, record: Record[int, str]) -> None:
        account = self.by_account.key(record)
        self.accounts[account] = self.accounts.get(account, 0) + record.value
        self.by_all.send(record.value, key=b"")

    @on(by_all)
    def all(self, record: Record[int]) -> None:
        self.every["all"] = self.every.get("all", 0) + record.value
        self.out.send(self.every["all"])


def test_two_levels_follow_each_other() -> None:
    driver = Driver(Twice, partitions=3)
    for number in range(30):
        driver.feed(f"{'xyz'[number % 3]}{number % 7}", partition=number % 3)
    assert driver.outputs("out")[-1] == 30
    found = [dict(driver.table(Twice.accounts, partition)) for partition in range(3)]
    assert {name: count for each in found for name, count in each.items()} == {"x": 10, "y": 10, "z": 10}


def test_a_partitioner_places_the_records() -> None:
    class Placed(Endless):
        again = Rekey("again", key=int, value=int, partitioner=lambda key, partitions: int(key or b"0") % partitions)

        @on(again)
        def proceed(self, record: Record[int, int]) -> None:
            self.handled[record.key] = record.value
            if record.value:
                self.again.send(record.value - 1, key=record.value)

    driver = Driver(Placed, partitions=2)
    driver.feed(4)
    assert [dict(driver.table(Placed.handled, partition)) for partition in (0, 1)] == [{0: 4, 4: 3, 2: 1}, {3: 2, 1: 0}]


def test_a_full_snapshot_and_a_standby_replica_have_the_positions() -> None:
    driver = Driver(Ledger, partitions=2)
    for number, transfer in enumerate(made(20)):
        driver.feed(transfer, partition=number % 2)
    driver.commit()
    before = totals(driver, 2)
    assert driver.take_full(0) is not None
    driver.stand_by()
    driver.crash()
    driver.restore()
    assert totals(driver, 2) == before


def test_a_release_keeps_the_same_streams() -> None:
    driver = Driver(Ledger)
    driver.feed(Transfer("a", "b", 5))
    driver.upgrade(type("Next", (Ledger,), {}))
    driver.feed(Transfer("a", "b", 5))
    assert driver.table("totals") == {"a": -10, "b": 10}

    class Fewer(Handler[None]):
        totals = Table(key=str, value=int)

        @on("transfers", value=Transfer)
        def transfer(self, record: Record[Transfer]) -> None: ...

    with pytest.raises(UsageError, match="declare different Rekeys"):
        driver.upgrade(Fewer)


def test_what_is_declared_wrongly_is_rejected() -> None:
    class Unread(Handler[None]):
        by_account = Rekey("by_account", key=str, value=int)

        @on("rows", value=str)
        def row(self, record: Record[str]) -> None: ...

    class Double(Ledger):
        second = Rekey("by_account", key=str, value=Movement)

    with pytest.raises(UsageError, match=r"Unread\.by_account is a Rekey whose records no method handles"):
        Driver(Unread)
    with pytest.raises(UsageError, match="by_account and second are both a Rekey"):
        Driver(Double)
    with pytest.raises(UsageError, match="use letters, digits, '_' and '-'"):
        Rekey("a.b", key=str, value=int)
    with pytest.raises(UsageError, match="keys of the type Unread are not supported"):
        Rekey("a", key=Unread, value=int)
    with pytest.raises(UsageError, match="the type of its values is missing"):
        on("rows")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="is a declaration"):
        Ledger.by_account.send(Movement(1), key="a")


def test_a_send_outside_of_a_record_is_rejected() -> None:
    class Live(Ledger):
        def on_live(self) -> None:
            self.by_account.send(Movement(1), key="a")

    with pytest.raises(UsageError, match="no record is being handled"):
        Driver(Live).feed(Transfer("a", "b", 1))


def test_the_engine_of_a_replay_is_mute() -> None:
    driver = Driver(Ledger, delta_interval=60.0)
    driver.feed(Transfer("a", "b", 5))
    driver.commit()
    end = driver.broker.log(TOPIC, 0).end
    driver.crash()
    driver.restore()
    assert driver.table(Ledger.totals) == {"a": -5, "b": 5}
    assert inside.lane(driver).engine().outputs == []
    assert driver.broker.log(TOPIC, 0).end == end


@pytest.mark.parametrize(("keep", "deleted"), [("snapshots", True), ("all", False)])
def test_records_are_deleted_once_the_oldest_kept_full_snapshot_covers_them(keep: Any, deleted: bool) -> None:
    tree = Settings(service=ServiceSettings(mode="development"), rekey=RekeySettings(keep=keep))
    driver = Driver(Ledger, settings=tree)
    log, positions = driver.broker.log(TOPIC, 0), list[int]()
    for _ in range(5):
        driver.feed(Transfer("a", "b", 5))
        driver.commit()
        positions.append(driver.commit_record().positions[TOPIC])
        assert driver.take_full() is not None
        driver.advance(5.0)
        assert log.start == (positions[-tree.snapshot.keep] if deleted and len(positions) >= tree.snapshot.keep else 0)
    driver.crash()
    driver.restore()
    assert driver.table(Ledger.totals) == {"a": -25, "b": 25}


def test_a_replay_handles_also_what_was_deleted() -> None:
    driver = Driver(Ledger, partitions=2)
    for number, transfer in enumerate(made(40)):
        driver.feed(transfer, partition=number % 2)
        if number % 8 == 7:
            for partition in range(2):
                assert driver.take_full(partition) is not None
    driver.advance(5.0)
    assert all(driver.broker.log(TOPIC, partition).start > 0 for partition in range(2))
    for partition in range(2):
        driver.replay(partition=partition)


def test_a_rehearsal_compares_what_is_sent_by_another_key() -> None:
    class Twofold(Ledger):
        """The next release, which sends other amounts."""

        def split(self, record: Record[Transfer]) -> None:
            self.by_account.send(Movement(-2 * record.value.amount), key=record.value.source)
            self.by_account.send(Movement(record.value.amount), key=record.value.target)

    driver = Driver(Ledger)
    for transfer in made(5):
        driver.feed(transfer)
    same, other = rehearsed(driver, Ledger), rehearsed(driver, Twofold)
    assert (compared(same, "outputs", TOPIC).compared, compared(same, "outputs", TOPIC).differ) == (10, 0)
    assert compared(other, "outputs", TOPIC).differ == 5
    assert compared(other, "table", "totals").differ == 0, "the partition handles what the live service has sent"


def test_a_rebuild_is_rejected() -> None:
    driver = Driver(Ledger)
    driver.feed(Transfer("a", "b", 5))
    driver.commit()
    with pytest.raises(UsageError, match="sends to itself by another key"):
        rebuilt(driver, Ledger)
