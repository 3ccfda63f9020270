"""Joins of two streams against a join that compares every record with every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import Interval, commit_records, events, rewrite
from tests.support.joins import Ask, Bid, BruteForce, Joined

from statehold import BufferedRecord, Handler, JoinBuffer, Json, Output, Record, Table, Timer, Tumbling, on
from statehold.bound.attributes import tables_and_outputs
from statehold.config.sections.effects_timers_sinks import TimersSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, UpgradeUnfinished, UsageError
from statehold.messages.command import FINISH_UPGRADE
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.state.kinds import due_index
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.worker.handler.event_time import WindowTime

INTERVALS: list[Interval] = ["commit", 5.0, "off"]


def happened_to(driver: Driver) -> list[tuple[Bid | Ask | None, int]]:
    """Records and ticks in their order, from the input and what the commit records pin."""
    found: list[tuple[Bid | Ask | None, int]] = []
    messages = list(driver.broker.log("input", 0).committed())
    read = 0
    for commit_record in commit_records(driver, past=True):
        upto = commit_record.positions["input"]
        for message in messages:
            if read <= (message.offset() or 0) < upto:
                value = msgspec.json.decode(message.value() or b"", type=Bid | Ask)
                found.append((value, message.timestamp()[1]))
        found += [(None, pinned.time) for pinned in commit_record.pinned]
        read = upto
    return found


#: a side, a key, seconds before or after the driver's clock; or seconds to wait; or an event
FED = st.tuples(
    st.sampled_from([Bid, Ask]),
    st.sampled_from("ab"),
    st.one_of(st.integers(-5, 1), st.floats(-6, 2).map(lambda x: round(x, 3))),
)
WAITS = st.one_of(st.integers(1, 4).map(float), st.floats(0.1, 5.0))
Event = Literal["commit", "crash", "rebalance", "full", "standby", "fail"]
EVENTS: list[Event] = ["commit", "crash", "rebalance", "full", "standby", "fail"]
STEPS = st.lists(st.one_of(FED, FED, FED, FED, WAITS, st.sampled_from(EVENTS)), max_size=40)
Step = tuple[type[Bid] | type[Ask], str, float] | float | Event
#: the clock of the idle partition ticks at 4.0, and the second full snapshot behind it truncates the commit record
TICK_IN_A_TRUNCATED_COMMIT_RECORD: list[Step] = [
    *[(Bid, "a", 0)] * 3,
    2.0,
    4.0,
    "full",
    (Bid, "a", -4),
    *[(Bid, "a", 0)] * 2,
    "full",
    "full",
]


@pytest.fixture(autouse=True, scope="module")
def indexes_are_rebuilt_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_index, "_SLACK", 0)
        yield


def restart(driver: Driver) -> None:
    driver.crash()
    driver.restore()


def do(driver: Driver, event: Event) -> None:
    match event:
        case "crash":
            restart(driver)
        case "rebalance":
            driver.rebalance()
        case "full":
            driver.take_full()
        case "standby":
            driver.commit()
            driver.stand_by()
            restart(driver)
        case _:
            driver.commit()


def feed(driver: Driver, value: Bid | Ask, seconds: float, input: str = "", *, fails: bool = False) -> None:
    Joined.failing = value.id if fails else -1
    try:
        driver.feed(value, timestamp=int((driver.clock.wall() + seconds) * 1000), input=input)
    except HandlerFailed:
        driver.restore()


@pytest.mark.parametrize("interval", ["commit", "off", pytest.param(5.0, marks=pytest.mark.long)])
@given(steps=STEPS, batch=st.integers(1, 4))
@example(steps=TICK_IN_A_TRUNCATED_COMMIT_RECORD, batch=1)
@hypothesis_settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_joins_of_all_kinds_equal_a_comparison_of_all_pairs(interval: Interval, steps: list[Step], batch: int) -> None:
    driver = Driver(Joined, delta_interval=interval, batch=batch, autocommit=False)
    failing, fed = False, 0
    for step in steps:
        if isinstance(step, tuple):
            feed(driver, step[0](step[1], fed), step[2], fails=failing and batch == 1)
            failing, fed = False, fed + 1
        elif isinstance(step, float):
            driver.advance(step)
        elif step == "fail":
            failing = True
        else:
            do(driver, step)
    driver.commit()
    BruteForce(happened_to(driver)).agrees(driver)
    restart(driver)
    BruteForce(happened_to(driver)).agrees(driver)
    driver.advance(60.0)
    BruteForce(happened_to(driver)).agrees(driver)
    for name in ("inner", "left", "outer"):
        assert not any(row.waiting for row in driver.table(name).values()), (
            "the ticks of an idle partition end the rest"
        )
    if fed:
        driver.replay()


class OfTwoInputs(Joined):
    """The same joins of records of two inputs."""

    on_record = Handler.on_record

    @on("bids", value=Bid)
    def bid(self, record: Record[Bid]) -> None:
        self.join(record, record.value)

    @on("asks", value=Ask)
    def ask(self, record: Record[Ask]) -> None:
        self.join(record, record.value)


#: ticks would come between the records, and their place is not in the outputs
WITHOUT_TICKS: dict[Interval, Settings] = {
    interval: Settings(
        service=ServiceSettings(mode="development"),
        snapshot=SnapshotSettings(delta_interval=interval),
        commit=CommitSettings(max_records=1000),
        timers=TimersSettings(idle=3600.0),
    )
    for interval in INTERVALS
}


@pytest.mark.parametrize("interval", INTERVALS)
@given(steps=st.lists(st.one_of(FED, FED, FED, st.sampled_from(EVENTS)), max_size=40), batch=st.integers(1, 4))
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_joins_of_two_inputs_equal_a_comparison_of_all_pairs(interval: Interval, steps: list[Step], batch: int) -> None:
    driver = Driver(OfTwoInputs, settings=WITHOUT_TICKS[interval], batch=batch, autocommit=False)
    fed: list[tuple[Bid | Ask, int]] = []
    for step in steps:
        if isinstance(step, tuple):
            driver.clock.advance(0.001)
            value = step[0](step[1], len(fed))
            feed(driver, value, step[2], "bids" if isinstance(value, Bid) else "asks")
            fed.append((value, int((driver.clock.wall() + step[2]) * 1000)))
        elif not isinstance(step, float):
            do(driver, step)
    driver.commit()
    # The order in which the two inputs were handled is given; the joins follow from it.
    order = [int(line.split()[1]) for line in driver.outputs("out") if line.startswith("record")]
    assert sorted(order) == list(range(len(fed)))
    expected = BruteForce([fed[number] for number in order])
    expected.agrees(driver)
    restart(driver)
    expected.agrees(driver)


class Order(msgspec.Struct, frozen=True):
    key: str
    amount: int


def late_records(driver: Driver, name: str) -> float:
    labels = {"service": driver.names.group, "partition": "0", "window": name}
    return driver.metrics.registry.get_sample_value(metrics.LATE_RECORDS.name, labels) or 0.0


class Payments(Handler[Bid | Ask]):
    """Joins bids with asks; it has no on_late, and timers and windows besides."""

    pairs = JoinBuffer(5, key=str, left=Bid, right=int, join="outer")
    a_window = Tumbling(1, key=str, value=int, grace=9.001)
    out = Output("out", value=str)
    broken = False

    def on_record(self, record: Record[Bid | Ask]) -> None:
        value = record.value
        if isinstance(value, Bid):
            self.out.send(f"{value.id} {self.pairs.left(record, value.key)}")
        else:
            self.out.send(f"{value.id} {self.pairs.right(record, value.key, value.id * 100)}")
            self.a_window.update(record, value.key, lambda count: (count or 0) + 1)
            self.schedule(record.timestamp + 5_001, value.id)

    def on_unmatched(self, name: str, key: str, side: str, value: Any, timestamp: int) -> None:
        self.out.send(f"{side} {value}")
        self.schedule(timestamp + 6_000, side)
        if self.broken:
            raise ValueError("cannot do that")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"window {start}")

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"timer {timer.payload} of {timer.record_key!r}")


class InnerByHand(Handler[Bid | Ask]):
    """It says of a row that it waits, in a join that reports none."""

    inner = JoinBuffer(1, key=str, left=Bid, right=Ask)
    left = JoinBuffer(1, key=str, left=Bid, right=Ask, join="left")
    out = Output("out", value=str)

    def on_record(self, record: Record[Bid | Ask]) -> None:
        value = record.value
        if isinstance(value, Bid):
            for buffer in (self.inner, self.left):
                buffer[value.key, "left", record.timestamp, 0] = BufferedRecord(left=value, waiting=True)

    def on_unmatched(self, name: str, key: str, side: str, value: Any, timestamp: int) -> None:
        self.out.send(f"{name} {key}")


@pytest.mark.parametrize("starts_again", [True, False])
def test_a_row_of_a_side_that_is_not_reported_is_never_handed_over(starts_again: bool) -> None:
    """A restore knows nothing of it, so a replay would arrive at another state."""
    driver = Driver(InnerByHand)
    driver.feed(Bid("a", 1), timestamp=1_000)
    driver.commit()
    if starts_again:
        restart(driver)
    driver.feed(Ask("b", 2), timestamp=9_000)
    driver.commit()
    assert driver.outputs("out") == ["left a"]


def test_what_is_kept_of_a_record_is_its_value_or_the_value_given() -> None:
    driver = Driver(Payments)
    driver.feed(Ask("a", 3), timestamp=1_000)
    driver.feed(Bid("a", 4), timestamp=6_000)
    driver.feed(Bid("a", 5), timestamp=6_001)
    assert driver.outputs("out")[:2] == ["3 []", "4 [300]"]
    assert driver.outputs("out")[-1] == "5 []", "they are 5.001 seconds apart"


def test_rows_of_joins_windows_and_timers_come_in_the_order_of_their_due_times() -> None:
    driver = Driver(Payments)
    driver.feed(Ask("a", 3), "k", timestamp=0)
    driver.feed(Ask("a", 4), "k", timestamp=5_000)
    driver.feed(Bid("b", 5), "k", timestamp=100_000)
    assert driver.outputs("out")[2:] == [
        *("right 300", "timer 3 of b'k'"),  # at 5.001
        "timer right of b'a'",  # at 6.000, belongs to the key of the join
        *("window 0", "right 400", "timer 4 of b'k'"),  # at 10.001
        "timer right of b'a'",
        "window 5000",
        "5 []",
    ]
    driver.replay()


def test_an_on_unmatched_that_raises_is_rolled_back_and_gets_the_record_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Payments)
    driver.feed(Bid("a", 1), timestamp=1_000)
    monkeypatch.setattr(Payments, "broken", True)
    with pytest.raises(HandlerFailed, match="cannot do that") as failed:
        driver.feed(Bid("a", 2), timestamp=60_000)
    note = "in on_unmatched of 'pairs', key 'a', left side, timestamp 1000"
    assert note in str(failed.value)
    monkeypatch.setattr(Payments, "broken", False)
    driver.restore()
    assert driver.outputs("out") == ["1 []", "left Bid(key='a', id=1)", "timer left of b'a'", "2 []"]


def test_a_late_record_is_counted_once_and_logged_without_an_on_late() -> None:
    driver = Driver(Payments, delta_interval="off", autocommit=False)
    driver.feed(Bid("a", 1), timestamp=100_000)
    driver.feed(Bid("a", 2), timestamp=95_000)
    driver.feed(Bid("a", 3), timestamp=94_999)
    driver.rebalance()
    driver.commit()
    assert late_records(driver, "pairs") == 1
    (event,) = events(driver, "late_records")
    assert event["windows"] == {"pairs": 1}
    restart(driver)
    assert late_records(driver, "pairs") == 1, "a replay counts none again"
    assert sorted(row[2] for row in driver.table("pairs")) == [95_000, 100_000]


def test_rows_leave_with_their_segment_and_join_nothing_meanwhile() -> None:
    driver = Driver(Joined)
    for number in range(9):
        driver.feed(Bid("a", number), timestamp=1_000)
    driver.feed(Ask("a", 9), timestamp=4_000)
    driver.feed(Ask("a", 10), timestamp=4_001)
    assert [line for line in driver.outputs("out") if line.startswith("inner")] == [], "2 seconds are within"
    driver.feed(Ask("b", 11), timestamp=1_002)
    driver.feed(Ask("a", 12), timestamp=1_002)
    said = driver.outputs("out")
    assert "record 12" in said, "it is not late"
    assert [line for line in said if line.startswith("inner")] == [], "its partners are over, and still there"
    stored = inside.lane(driver).engine().state.tables["inner"].stored
    assert sum(row[1] == "left" for row in stored) == 9, "their segment is not over"
    assert [row for row in driver.table("inner") if row[1] == "left"] == [], "the handler finds them no more"
    driver.feed(Ask("b", 13), timestamp=4_001 + 375)
    driver.commit()
    assert not any(row[1] == "left" for row in inside.lane(driver).engine().state.tables["inner"].stored)
    driver.replay()


class Inner(Handler[Bid]):
    """Keeps every record for five seconds."""

    pairs = JoinBuffer(5, key=str, left=Bid, right=Ask)

    def on_record(self, record: Record[Bid]) -> None:
        self.pairs.left(record, record.value.key)


def stored_rows(driver: Driver, table: str = "pairs") -> list[int]:
    """Return the timestamps of the rows that the state holds."""
    return sorted(row[2] for row in inside.lane(driver).engine().state.tables[table].stored)


@given(stamps=st.lists(st.integers(0, 30_000), min_size=1, max_size=30), cuts=st.sets(st.integers(0, 30)))
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_rows_of_a_state_do_not_depend_on_where_transactions_end(stamps: list[int], cuts: set[int]) -> None:
    each, cut = Driver(Inner), Driver(Inner, autocommit=False)
    for number, stamp in enumerate(stamps):
        for driver in (each, cut):
            driver.feed(Bid("a", number), timestamp=stamp)
        each.commit()
        if number in cuts:
            cut.commit()
    cut.commit()
    assert stored_rows(each) == stored_rows(cut)
    assert each.commit_record().digest == cut.commit_record().digest


def test_a_rolled_back_transaction_keeps_the_rows_that_it_would_have_removed() -> None:
    driver = Driver(Inner, autocommit=False)
    driver.feed(Bid("a", 1), timestamp=1_000)
    driver.commit()
    driver.feed(Bid("b", 2), timestamp=60_000)
    driver.rebalance()
    driver.commit()
    assert stored_rows(driver) == [60_000]
    driver.replay()


def test_the_first_transaction_after_a_restore_removes_what_is_over() -> None:
    driver = Driver(Inner)
    driver.feed(Bid("a", 1), timestamp=1_000)
    driver.commit()
    restart(driver)
    driver.feed(Bid("b", 2), timestamp=60_000)
    driver.commit()
    assert stored_rows(driver) == [60_000]


def of_an_older_release(record: CommitRecord) -> CommitRecord:
    writer = msgspec.structs.replace(record.writer, reads=frame.SEGMENTS - 1, version="0.0.9", instance="web1")
    return msgspec.structs.replace(record, writer=writer)


def test_a_gap_of_a_release_that_removed_rows_one_by_one_is_not_repeated() -> None:
    driver = Driver(Inner, delta_interval=60.0)
    driver.feed(Bid("a", 1), timestamp=1_000)
    driver.commit()
    driver.crash()
    rewrite(driver, of_an_older_release)
    with pytest.raises(
        UpgradeUnfinished, match=r"statehold 0\.0\.9 \(web1\) removed the rows of pairs one by one"
    ) as error:
        driver.restore()
    assert 'Next: run that release with snapshot.delta_interval = "commit"' in str(error.value)


def test_a_state_of_such_a_release_without_a_gap_goes_live() -> None:
    driver = Driver(Inner)
    driver.feed(Bid("a", 1), timestamp=1_000)
    driver.commit()
    driver.crash()
    rewrite(driver, of_an_older_release)
    driver.restore()
    driver.feed(Bid("b", 2), timestamp=60_000)
    driver.commit()
    assert stored_rows(driver) == [60_000]


def test_in_an_older_format_each_commit_carries_a_delta_because_older_releases_cannot_repeat_it() -> None:
    class Old(Driver):
        _format = frame.SEGMENTS - 1

    driver = Old(Inner, delta_interval=60.0)
    for number in range(3):
        driver.feed(Bid("a", number), timestamp=1_000)
        driver.commit()
        assert driver.commit_record().delta
    driver.command(FINISH_UPGRADE)
    driver.commit()
    driver.feed(Bid("a", 4), timestamp=1_000)
    driver.commit()
    assert not driver.commit_record().delta


class Forgetful(Handler[Order]):
    """Uses a buffer as a table."""

    pairs = JoinBuffer(5, key=tuple[str, int], left=Order, right=Order, join="left")
    out = Output("out", value=int)

    def on_record(self, record: Record[Order]) -> None:
        order = record.value
        match order.key:
            case "delete":
                for row in self.pairs:
                    self.pairs.delete(row)
            case "over":
                self.pairs[("a", 1), "left", record.timestamp - 5_001, 0] = BufferedRecord(left=order)
            case "other":
                self.pairs.left(record, ("a", 1), Bid("a", 1))  # type: ignore[arg-type]
            case _:
                self.out.send(len(self.pairs.left(record, (order.key, 1))) + len(self.pairs))

    def on_unmatched(self, name: str, key: tuple[str, int], side: str, value: Order, timestamp: int) -> None:
        self.out.send(-value.amount)


def test_a_row_of_one_transaction_leaves_no_tombstone() -> None:
    driver = Driver(Forgetful, autocommit=False)
    driver.feed(Order("a", 1), timestamp=1_000)
    driver.commit()
    cost = inside.lanes(driver)[0].live().full_snapshots.cost
    before = cost.work.entries
    driver.feed(Order("b", 2), timestamp=2_000)
    driver.feed(Order("c", 3), timestamp=100_000)
    driver.commit()
    assert cost.work.entries - before == 3, "the row of a leaves, that of c comes, the clock"


def test_a_row_that_the_handler_deletes_does_not_reach_on_unmatched() -> None:
    driver = Driver(Forgetful)
    driver.feed(Order("a", 7), timestamp=1_000)
    driver.feed(Order("delete", 0), timestamp=2_000)
    driver.feed(Order("b", 8), timestamp=3_000)
    driver.feed(Order("c", 9), timestamp=60_000)
    assert driver.outputs("out") == [1, 1, -8, 1]
    assert [row[0] for row in driver.table("pairs")] == [("c", 1)]


def test_what_a_handler_must_not_do_with_a_join_is_an_error() -> None:
    with pytest.raises(HandlerFailed, match=r"the time of \(\('a', 1\), 'left', 4999, 0\) is over"):
        Driver(Forgetful).feed(Order("over", 0), timestamp=10_000)
    with pytest.raises(HandlerFailed, match=r"pairs\.left: the value has type Bid, its declaration left=Order"):
        Driver(Forgetful).feed(Order("other", 0), timestamp=10_000)

    class Nulls(Handler[Order | None]):
        pairs = JoinBuffer(5, key=str, left=Order, right=Order)

        def on_record(self, record: Record[Order | None]) -> None:
            self.pairs.right(record, "a")

    with pytest.raises(HandlerFailed, match=r"pairs\.right: the value is None.*skip it"):
        Driver(Nulls).feed(None, timestamp=1_000)
    driver = Driver(Forgetful)
    driver.feed(Order("a", 1), timestamp=1_000)
    message = next(iter(driver.broker.log("input", 0).committed()))
    with pytest.raises(UsageError, match="this JoinBuffer is a declaration"):
        Forgetful.pairs.left(Record(message, Order("a", 1)), ("a", 1))


def test_bad_declarations_are_rejected() -> None:
    text: Any = {"key": str, "left": int, "right": int}
    for declare, said in (
        (lambda: JoinBuffer(0, **text), r"JoinBuffer\(within=0\): it must be at least 1"),
        (lambda: JoinBuffer(5, grace=-1, **text), r"JoinBuffer\(grace=-1\)"),
        (
            lambda: JoinBuffer(5, **text | {"join": "right"}),
            r"JoinBuffer\(join='right'\): it is one of inner, left, outer",
        ),
        (lambda: JoinBuffer(5, key=float, left=int, right=int), "cannot be a key"),
        (lambda: JoinBuffer(5, **text | {"left": Json(int)}), r"JoinBuffer\(left=Json\(...\)\).*give the type"),
        (lambda: JoinBuffer(5, key=str, left=int, right=list[int]), "can be changed in place"),
    ):
        with pytest.raises(UsageError, match=said):
            declare()

    class Silent(Handler[int]):
        pairs = JoinBuffer(5, join="left", **text)

        def on_record(self, record: Record[int]) -> None: ...

    class Never(Handler[int]):
        pairs = JoinBuffer(5, **text)

        def on_record(self, record: Record[int]) -> None: ...

        def on_unmatched(self, name: str, key: str, side: str, value: int, timestamp: int) -> None: ...

    class Batched(Handler[int]):
        pairs = JoinBuffer(5, **text)

        def on_batch(self, records: Sequence[Record[int]]) -> None: ...

    with pytest.raises(UsageError, match=r"Silent has left or outer joins \(pairs\) and no on_unmatched"):
        tables_and_outputs(Silent)
    with pytest.raises(UsageError, match=r"Never has on_unmatched, and its joins \(pairs\) are inner"):
        tables_and_outputs(Never)
    with pytest.raises(UsageError, match="time passes from record to record"):
        tables_and_outputs(Batched)


def test_only_a_handler_with_joins_or_windows_runs_their_code() -> None:
    class Timed(Handler[int]):
        recent = Table(key=str, value=int, ttl=5)

        def on_record(self, record: Record[int]) -> None: ...

    assert not isinstance(inside.lane(Driver(Timed)).engine().event_time, WindowTime)
    assert isinstance(inside.lane(Driver(Joined)).engine().event_time, WindowTime)
    assert set(tables_and_outputs(Joined)[0]) == {"inner", "left", "outer", "alone", "statehold.clock"}


def test_joins_are_restored_from_a_full_snapshot_with_their_order() -> None:
    driver = Driver(Joined)
    ahead = 2_000_000_000_000  # of the driver's clock, so no tick ends a row
    for number, second in enumerate((5, 3, 4, 3)):
        driver.feed(Bid("a", number), timestamp=ahead + second * 1_000)
    assert driver.take_full() is not None
    restart(driver)
    driver.feed(Ask("a", 9), timestamp=ahead + 5_000)
    assert [line for line in driver.outputs("out") if line.startswith("inner")] == [
        *("inner 9 1", "inner 9 3", "inner 9 2", "inner 9 0")
    ]


class Draft(msgspec.Struct):
    """A value that its owner may change."""

    amount: int


class Mutable(Handler[Draft]):
    """Changes a record's value after the join has kept it."""

    pairs = JoinBuffer(60, key=str, left=Draft, right=Draft, mutable=True)
    found = Output("found", value=int)

    def on_record(self, record: Record[Draft]) -> None:
        if record.value.amount < 0:
            for draft in self.pairs.right(record, "a"):
                self.found.send(draft.amount)
                draft.amount = 0
        else:
            self.pairs.left(record, "a")
            record.value.amount = 99


def test_a_mutable_value_that_is_changed_after_the_join_has_kept_it_changes_no_row() -> None:
    driver = Driver(Mutable, settings=Settings())  # not in development mode, which traces instead of copying
    driver.feed(Draft(3), timestamp=1_000)
    driver.feed(Draft(-1), timestamp=2_000)
    driver.feed(Draft(-2), timestamp=3_000)
    assert driver.outputs("found") == [3, 3]
    driver.crash()
    driver.restore()
    driver.feed(Draft(-3), timestamp=4_000)
    assert driver.outputs("found") == [3, 3, 3]


def test_a_join_that_is_used_on_another_thread_is_found() -> None:
    class Threaded(Inner):
        def on_record(self, record: Record[Bid]) -> None:
            super().on_record(record)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self.pairs.left, record, "other").result()

    with pytest.raises(HandlerFailed, match="table 'pairs' belongs to thread"):
        Driver(Threaded).feed(Bid("a", 1), timestamp=1_000)


def test_a_join_has_no_row_of_a_key_of_another_form() -> None:
    pairs: Any = inside.lane(Driver(Inner)).engine().state.tables["pairs"]
    assert pairs.get("a") is None
    assert "a" not in pairs
    with pytest.raises(KeyError, match="table 'pairs' has no key 'a'"):
        pairs["a"]
