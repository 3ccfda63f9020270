"""Reference data: one version per transaction, named by its mark, and seen again by a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.handlers import Interval

from statehold import Handler, Output, Record, Reference, Table
from statehold.bound.reference import Rows, SharedRows, put, references
from statehold.errors import HandlerFailed, NonDeterministicReplay, RegistryUnreachable, UsageError
from statehold.testing import Driver

PRICES = "prices-v1"


class Valued(Handler[str]):
    """What each record saw is in its state and its output."""

    prices = Reference(PRICES, key=str, value=int)
    seen = Table(key=int, value=int)
    sent = Output("sent", value=int)

    def on_record(self, record: Record[str]) -> None:
        price = self.prices.get(record.value, -1)
        self.seen[record.offset] = price
        self.sent.send(price)

    def on_command(self, command: str, record: Record[bytes]) -> None:
        self.seen[-1 - len(self.seen)] = sum(price for _, price in self.prices.items())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("price"), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 9))),
        st.tuples(st.just("feed"), st.sampled_from("abc"), st.none()),
        st.tuples(st.sampled_from(["commit", "crash", "wait", "abort", "command", "full"]), st.just(""), st.none()),
    ),
    max_size=25,
)


@given(steps=STEPS, interval=st.sampled_from(["commit", 5.0]))
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_replay_sees_what_live_saw(steps: list[tuple[str, str, Any]], interval: Interval) -> None:
    """Outputs are what was seen live and committed; the state after any crash says the same of every record."""
    driver = Driver(Valued, delta_interval=interval, autocommit=False)
    driver.feed("a")
    for what, key, value in steps:
        match what:
            case "price":
                driver.publish("prices", key, value)
            case "feed":
                driver.feed(key)
            case "commit":
                driver.commit()
            case "crash":
                driver.crash()
                driver.restore()  # raises NonDeterministicReplay when the gap sees anything else
            case "wait":
                driver.advance(2.0)
            case "abort":
                driver.rebalance()
            case "command":
                driver.command("sum", via_control_topic=True)
            case _:
                driver.take_full()
    driver.commit()
    driver.crash()
    driver.restore()
    driver.commit()
    state = driver.table("seen")
    assert [state[offset] for offset in sorted(state) if offset >= 0] == driver.outputs("sent")
    if driver.broker.log(driver.names.changelog, 0).start == 0:
        driver.replay(batches=2)


def test_a_transaction_sees_one_version_and_its_commit_record_names_it() -> None:
    driver = Driver(Valued, autocommit=False)
    driver.publish(PRICES, "a", 1)
    driver.feed("a")
    driver.publish(PRICES, "a", 2)
    driver.publish(PRICES, "b", 5)
    driver.feed("a")
    driver.feed("b")
    driver.commit()
    assert driver.outputs("sent") == [1, 1, -1], "all of one transaction"
    assert driver.commit_record().reference == {PRICES: (1,)}
    driver.feed("a")
    driver.publish(PRICES, "a", None)
    driver.feed("b")
    driver.commit()
    assert driver.outputs("sent")[3:] == [2, 5]
    assert driver.commit_record().reference == {PRICES: (3,)}
    driver.feed("a")
    driver.commit()
    assert driver.outputs("sent")[5:] == [-1]


def test_a_transaction_with_a_new_version_carries_a_delta() -> None:
    driver = Driver(Valued, delta_interval=1000.0, autocommit=False)
    driver.publish(PRICES, "a", 1)
    deltas = []
    for price in (None, 2, None, None, 3, None):
        if price is not None:
            driver.publish(PRICES, "a", price)
        driver.feed("a")
        driver.commit()
        deltas.append(driver.commit_record().delta)
    assert deltas == [True, True, False, False, True, False]
    driver.crash()
    driver.publish(PRICES, "a", 9)  # the replay of the gap must not see it, live must
    driver.restore()
    assert [event for event, _ in driver.events].count("replayed") >= 1
    driver.feed("a")
    driver.commit()
    assert list(driver.table("seen").values()) == [1, 2, 2, 2, 3, 3, 9]


def test_a_replay_names_a_version_that_compaction_has_removed() -> None:
    """Never another state: the digest refuses it. With a delta in every commit nothing is replayed."""
    for interval, rejected in ((1000.0, True), ("commit", False)):
        driver = Driver(Valued, delta_interval=interval, autocommit=False)  # type: ignore[arg-type]
        driver.publish(PRICES, "a", 1)
        for _ in range(3):
            driver.feed("a")
            driver.commit()
        driver.crash()
        driver.publish(PRICES, "a", 2)
        driver.broker.log(PRICES, 0).abort_record(0)  # as compaction would: a newer value is there
        if rejected:
            with pytest.raises(NonDeterministicReplay):
                driver.restore()
            continue
        driver.restore()
        driver.feed("a")
        driver.commit()
        assert driver.outputs("sent") == [1, 1, 1, 2]


def test_a_new_owner_never_sees_an_older_version() -> None:
    driver = Driver(Valued, autocommit=False)
    driver.publish(PRICES, "a", 7)
    driver.feed("a")
    driver.commit()
    driver.crash()
    shared = driver._references.shared[PRICES] = SharedRows(1)  # a process that has just begun to read
    assert shared.version == (0,)
    driver._references._fresh.clear()
    calls = []

    def reads_meanwhile(seconds: float) -> bool:
        calls.append(seconds)
        driver._references.turn()
        return False

    driver._references._ending.wait = reads_meanwhile  # type: ignore[method-assign, assignment]
    driver.restore()
    assert calls, "it waited for the rows"
    driver.feed("a")
    driver.commit()
    assert driver.outputs("sent") == [7, 7]


def test_a_recreated_topic_does_not_get_a_new_client_five_times_a_second() -> None:
    driver = Driver(Valued, autocommit=False)
    driver.publish(PRICES, "a", 7)
    del driver.broker.logs[PRICES, 0]
    feed, pauses = driver._references, list[float]()

    def paused(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            feed.close()
        return False

    feed._ending.wait = paused  # type: ignore[method-assign, assignment]
    feed.run()
    assert min(pauses) >= 1.0
    reported = [fields["cause"] for event, fields in driver.events if event == "reference_trouble"]
    assert len(reported) == 1
    assert "was it created again?" in reported[0]


def test_a_copy_takes_the_version_over_too() -> None:
    driver = Driver(Valued, autocommit=False)
    driver.publish(PRICES, "a", 7)
    driver.feed("a")
    driver.commit()
    driver.stand_by()
    driver.crash()
    driver.restore()
    driver.feed("a")
    driver.commit()
    assert driver.outputs("sent") == [7, 7]


class Typed(Handler[int]):
    names = Reference("names", key=int, value=dict[str, int])
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.out.send(self.names[record.value]["n"])


def test_a_value_that_cannot_be_decoded_fails_the_record_that_reads_it() -> None:
    driver = Driver(Typed, autocommit=False)
    driver.publish("names", 1, {"n": 5})
    driver.broker.log("names", 0).append(b"{", b"2", None, 0)
    driver.broker.log("names", 0).append(b"{}", b"no number", None, 0)
    driver.publish("names", 3, {"n": 6})
    driver.feed(1)
    driver.feed(3)
    driver.commit()
    assert driver.outputs("out") == [5, 6]
    assert [fields["cause"] for event, fields in driver.events if event == "reference_trouble"]
    with pytest.raises(HandlerFailed, match="names: decode a value"):
        driver.feed(2)


class Schemed:
    """A serde whose schemas are elsewhere."""

    away = False

    def encode(self, value: int, /) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes, /) -> int:
        if self.away:
            raise RegistryUnreachable("no answer")
        return int(data)


class Elsewhere(Valued):
    prices = Reference(PRICES, key=str, value=Schemed())


def test_a_registry_that_is_away_is_no_fault_of_the_record_that_reads_a_value() -> None:
    driver = Driver(Elsewhere, autocommit=False)
    driver.publish(PRICES, "a", 7)
    Schemed.away = True
    try:
        with pytest.raises(RegistryUnreachable, match=r"input\[0\]@0: no answer"):
            driver.feed("a")
    finally:
        Schemed.away = False
    driver.restore()
    driver.commit()
    assert driver.outputs("sent") == [7]


def test_a_transaction_reads_the_rows_of_its_version() -> None:
    driver = Driver(Valued, autocommit=False)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", None)):
        driver.publish(PRICES, key, value)
    driver.feed("a")
    handler: Any = driver.handler()
    assert dict(handler.prices.items()) == {"a": 3, "c": 4}
    assert (len(handler.prices), "b" in handler.prices, handler.prices["c"]) == (2, False, 4)
    driver.publish(PRICES, "d", 9)
    assert sorted(handler.prices) == ["a", "c"], "not within the transaction"
    with pytest.raises(KeyError):
        handler.prices["b"]
    with pytest.raises(UsageError, match="declaration"):
        Valued.prices.get("a")
    with pytest.raises(UsageError, match="delta_interval is off"):
        Driver(Valued, delta_interval="off")

    class Twice(Valued):
        again = Reference(PRICES, key=str, value=int)

    with pytest.raises(UsageError, match="two references"):
        references(Twice)


def test_changes_are_hidden_until_a_view_renews() -> None:
    """Two partitions of one process at two versions, one copy of the rows."""
    shared = SharedRows(1)
    shared.advance([("a", b"1"), ("b", b"2")], (2,))
    old, new = references(Valued)["prices"].bind(shared), references(Valued)["prices"].bind(shared)
    shared.advance([("a", b"3"), ("b", None), ("c", b"4")], (5,))
    new.renew()
    shared.advance([("a", None)], (6,))
    assert (dict(old.items()), old.version) == ({"a": 1, "b": 2}, (2,))
    assert (dict(new.items()), new.version) == ({"a": 3, "c": 4}, (5,))
    old.renew()
    assert (dict(old.items()), old.version) == ({"c": 4}, (6,))


class Interrupted(list[Any]):
    """Changes with which the feed is interrupted, between two of them."""

    def __init__(self, changes: list[Any], meanwhile: Callable[[], None]) -> None:
        super().__init__(changes)
        self.meanwhile: Callable[[], None] | None = meanwhile

    def __iter__(self) -> Iterator[Any]:
        for change in super().__iter__():
            yield change
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()


def test_a_replay_that_goes_back_while_rows_change_sees_nothing_of_the_change() -> None:
    shared = SharedRows(1)
    shared.advance([("a", b"1"), ("b", b"2")], (2,))
    view = references(Valued)["prices"].bind(shared)
    then: Rows = {}
    put(then, [("a", b"10"), ("b", b"20")])
    back = Thread(target=view.go_back, args=(then, (1,)), daemon=True)

    def meanwhile() -> None:
        back.start()
        back.join(0.2)

    shared.advance(Interrupted([("a", b"3"), ("b", b"4")], meanwhile), (4,))
    back.join(60)
    assert (dict(view.items()), view.version) == ({"a": 10, "b": 20}, (1,))
