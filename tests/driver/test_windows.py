"""Tumbling, hopping and session windows against recomputations that keep nothing but lists of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import MODES, Interval, Mode, commit_records, events, in_mode

from statehold import Handler, Hopping, Json, Output, Record, Session, Table, Timer, Tumbling, dead_letter
from statehold.bound.attributes import tables_and_outputs
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, MutatedInPlace, UsageError
from statehold.state.kinds import due_index
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.worker.handler.event_time import WindowTime

INTERVALS: list[Interval] = ["commit", 5.0, "off"]
#: seconds: size, every and grace of the windows below
TUMBLING, HOPPING, SESSION = (4, 0), (7, 3, 2), (3, 1)

Offsets = tuple[int, ...]


def appended(offset: int) -> Callable[[Offsets | None], Offsets]:
    return lambda offsets: (*(offsets or ()), offset)


class Windowed(Handler[str]):
    """Windows of offsets by key, a table that on_window writes, and a timer that each window sets."""

    tumbling = Tumbling(TUMBLING[0], key=str, value=Offsets, grace=TUMBLING[1])
    hopping = Hopping(HOPPING[0], HOPPING[1], key=str, value=Offsets, grace=HOPPING[2])
    session = Session(SESSION[0], key=str, value=Offsets, grace=SESSION[1], merge=lambda a, b: a + b)
    closed = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        for windows in (self.tumbling, self.hopping, self.session):
            windows.update(record, record.value, appended(record.offset))
        self.out.send(f"record {record.offset}")

    def on_window(self, name: str, key: str, start: int, end: int, value: Offsets) -> None:
        count = self.closed[name] = self.closed.get(name, 0) + 1
        self.out.send(f"{name} {key} {start} {end} {list(value)} number {count}")

    def on_late(self, name: str, key: str, record: Record[str]) -> None:
        self.out.send(f"late {name} {key} {record.offset}")


class Recomputed:
    """What is expected of records (key, time) and ticks (None, time), each with the time of the partition at it."""

    def __init__(self, events: Sequence[tuple[str | None, int]]) -> None:
        offset = -1
        #: number of the event, offset, key, its own time, the partition's time
        self.records: list[tuple[int, int, str, int]] = []
        self.times: list[int] = []
        for number, (key, time) in enumerate(events):
            self.times.append(max([time, 0, *self.times[-1:]]))
            if key is not None:
                offset += 1
                self.records.append((number, offset, key, time))
        self.lines: list[tuple[Any, ...]] = [(number, 1, offset, "") for number, offset, _, _ in self.records]
        self.open: dict[str, dict[tuple[str, int, int], Offsets]] = {}
        self._fixed("tumbling", TUMBLING[0], TUMBLING[0], TUMBLING[1])
        self._fixed("hopping", *HOPPING)
        self._sessions("session", *SESSION)

    def _closes(self, end: int, grace: int) -> int | None:
        """The first event at which the partition's time has reached end and grace."""
        return next((number for number, now in enumerate(self.times) if now >= end + grace * 1000), None)

    def _fixed(self, name: str, size: int, every: int, grace: int) -> None:
        late: set[int] = set()
        rest = self.open[name] = {}
        starts = {t // 1000 * 1000 - back * 1000 for *_, t in self.records for back in range(size + 1)}
        for key in {key for _, _, key, _ in self.records}:
            for start in sorted(starts):
                end = start + size * 1000
                inside = [each for each in self.records if each[2] == key and start <= each[3] < end]
                if start % (every * 1000) or not inside:
                    continue
                closes = self._closes(end, grace)
                late |= {each[1] for each in inside if closes is not None and each[0] >= closes}
                offsets = tuple(each[1] for each in inside if closes is None or each[0] < closes)
                self._window(name, key, start, end, grace, closes, offsets, rest)
        self._late(name, late)

    def _sessions(self, name: str, gap: int, grace: int) -> None:
        late: set[int] = set()
        groups: list[list[tuple[int, int, str, int]]] = []
        ended: list[list[tuple[int, int, str, int]]] = []
        values: dict[int, Offsets] = {}

        def end(group: list[tuple[int, int, str, int]]) -> int:
            return max(each[3] for each in group) + gap * 1000

        for number, now in enumerate(self.times):
            over = [group for group in groups if end(group) + grace * 1000 <= now]
            ended += over
            groups = [group for group in groups if group not in over]
            for record in self.records:
                if record[0] != number:
                    continue
                near = [
                    g for g in groups if g[0][2] == record[2] and any(abs(u[3] - record[3]) < gap * 1000 for u in g)
                ]
                near.sort(key=lambda group: min(each[3] for each in group))
                if not near and record[3] + (gap + grace) * 1000 <= now:
                    late.add(record[1])
                    continue
                merged = [*(each for group in near for each in group), record]
                value = (*(each for group in near for each in values[group[0][1]]), record[1])
                groups = [*(group for group in groups if group not in near), merged]
                values[merged[0][1]] = value
        rest = self.open[name] = {}
        for group in ended + groups:
            start, closes = min(each[3] for each in group), self._closes(end(group), grace) if group in ended else None
            self._window(name, group[0][2], start, end(group), grace, closes, values[group[0][1]], rest)
        self._late(name, late)

    def _window(
        self,
        name: str,
        key: str,
        start: int,
        end: int,
        grace: int,
        closes: int | None,
        offsets: Offsets,
        rest: dict[tuple[str, int, int], Offsets],
    ) -> None:
        if closes is None:
            rest[key, start, end] = offsets
        elif offsets:
            line = f"{name} {key} {start} {end} {list(offsets)}"
            self.lines.append((closes, 0, end + grace * 1000, name, key, start, line))

    def _late(self, name: str, late: set[int]) -> None:
        place = ["tumbling", "hopping", "session"].index(name)
        for number, offset, key, _ in self.records:
            if offset in late:
                self.lines.append((number, 0.5, place, f"late {name} {key} {offset}"))

    def said(self) -> list[str]:
        counts: dict[str, int] = {}
        found = []
        for line in sorted(self.lines, key=lambda line: line[:6]):
            if line[1] == 0:
                counts[line[3]] = counts.get(line[3], 0) + 1
                found.append(f"{line[-1]} number {counts[line[3]]}")
            else:
                found.append(line[-1] or f"record {line[2]}")
        return found


def events_of(driver: Driver) -> list[tuple[str | None, int]]:
    """Records and ticks in their order, from the input and what the commit records pin."""
    found: list[tuple[str | None, int]] = []
    messages = list(driver.broker.log("input", 0).committed())
    read = 0
    for commit_record in commit_records(driver, past=True):
        upto = commit_record.positions["input"]
        found += [((m.value() or b"").decode(), m.timestamp()[1]) for m in messages if read <= (m.offset() or 0) < upto]
        found += [(None, pinned.time) for pinned in commit_record.pinned]
        read = upto
    return found


KEYS = st.sampled_from("ab")
#: a key, seconds before or after the driver's clock; or seconds to wait; or an event
FED = st.tuples(KEYS, st.one_of(st.integers(-6, 1), st.floats(-9, 3).map(lambda x: round(x, 3))))
WAITS = st.one_of(st.integers(1, 4).map(float), st.floats(0.1, 8.0))
Event = Literal["commit", "crash", "rebalance", "full", "standby"]
EVENTS: list[Event] = ["commit", "crash", "rebalance", "full", "standby"]
STEPS = st.lists(st.one_of(FED, FED, FED, WAITS, st.sampled_from(EVENTS)), max_size=40)


@pytest.fixture(autouse=True, scope="module")
def heaps_are_rebuilt_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_index, "_SLACK", 0)
        yield


@pytest.mark.parametrize("interval", INTERVALS)
@given(steps=STEPS, batch=st.integers(1, 4), mode=st.sampled_from(MODES))
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_window_closes_once_and_equals_a_recomputation(
    interval: Interval, steps: list[tuple[str, float] | float | Event], batch: int, mode: Mode
) -> None:
    driver = Driver(Windowed, settings=in_mode(mode, interval), batch=batch, autocommit=False)
    for step in steps:
        if isinstance(step, tuple):
            driver.feed(step[0], timestamp=int((driver.clock.wall() + step[1]) * 1000))
        elif isinstance(step, float):
            driver.advance(step)
        elif step == "crash":
            driver.crash()
            driver.restore()
        elif step == "rebalance":
            driver.rebalance()
        elif step == "full":
            driver.take_full()
        else:
            driver.commit()
            if step == "standby":
                driver.stand_by()
                driver.crash()
                driver.restore()
    driver.commit()
    expected = Recomputed(events_of(driver))
    assert driver.outputs("out") == expected.said()
    for name, rows in expected.open.items():
        assert driver.table(name) == rows
    driver.crash()
    driver.restore()
    assert {name: driver.table(name) for name in expected.open} == expected.open
    driver.advance(60.0)
    assert all(driver.table(name) == {} for name in expected.open), "the ticks of an idle partition close the rest"
    expected = Recomputed(events_of(driver))
    assert driver.outputs("out") == expected.said()
    if any(isinstance(step, tuple) for step in steps):
        driver.replay()


class Sums(Handler[int]):
    """Adds up ten seconds, and keeps for five more what a window came to."""

    sums = Tumbling(10, key=str, value=int)
    recent = Table(key=str, value=int, ttl=5)
    out = Output("out", value=str)
    broken = False

    def on_record(self, record: Record[int]) -> None:
        self.sums.update(record, "all", lambda total: (total or 0) + record.value)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.recent[key] = value
        self.schedule(end + 1_000, value)
        self.out.send(f"{start} {value}")
        if self.broken:
            raise ValueError("cannot do that")

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"timer {timer.payload} of {timer.record_key!r}, recent {self.recent.get('all')}")


def test_windows_and_timers_share_the_partitions_time() -> None:
    driver = Driver(Sums)
    driver.feed(1, key="ann", timestamp=1_000)
    driver.feed(2, key="bob", timestamp=12_000)
    assert driver.outputs("out") == ["0 1", "timer 1 of b'all', recent 1"]
    assert driver.table("recent") == {"all": 1}
    driver.feed(3, timestamp=100_000)
    assert driver.outputs("out")[2:] == ["10000 2", "timer 2 of b'all', recent 2"]
    assert driver.table("recent") == {}, "it expired five seconds after its window, not after the record"
    driver.replay()


def test_an_on_window_that_raises_is_rolled_back_and_the_window_closes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Sums)
    driver.feed(1, timestamp=1_000)
    monkeypatch.setattr(Sums, "broken", True)
    with pytest.raises(HandlerFailed, match="cannot do that") as failed:
        driver.feed(2, timestamp=12_000)
    assert ", in on_window of 'sums', key 'all', from 0 to 10000." in str(failed.value)
    monkeypatch.setattr(Sums, "broken", False)
    driver.restore()
    assert driver.outputs("out") == ["0 1", "timer 1 of b'all', recent 1"]
    assert driver.table("sums") == {("all", 10_000, 20_000): 2}


def late_records(driver: Driver) -> float:
    labels = {"service": driver.names.group, "partition": "0", "window": "sums"}
    return driver.metrics.registry.get_sample_value(metrics.LATE_RECORDS.name, labels) or 0.0


def test_late_records_are_counted_once_and_logged_at_most_once_a_minute() -> None:
    driver = Driver(Sums, delta_interval="off", autocommit=False)
    driver.feed(1, timestamp=100_000)
    driver.feed(1, timestamp=1_000)
    driver.rebalance()
    driver.commit()
    assert late_records(driver) == 1
    for _ in range(3):
        driver.feed(1, timestamp=1_000)
        driver.commit()
    (event,) = events(driver, "late_records")
    assert event["windows"] == {"sums": 1}
    driver.crash()
    driver.restore()
    assert late_records(driver) == 4, "a replay counts none again"
    driver.advance(61.0)
    driver.feed(1, timestamp=1_000)
    driver.commit()
    assert len(events(driver, "late_records")) == 2


def test_with_an_on_late_nothing_is_logged() -> None:
    driver = Driver(Windowed)
    driver.feed("a", timestamp=100_000)
    driver.feed("a", timestamp=1_000)
    assert driver.outputs("out") == [
        "record 0",
        *("late tumbling a 1", "late hopping a 1", "late session a 1"),
        "record 1",
    ]
    assert events(driver, "late_records") == []


class TooFarAhead(Exception):
    """The record's time is more than an hour ahead."""


class Guarded(Sums):
    """Knows what time it is, which a test can set."""

    on_failure = {TooFarAhead: dead_letter()}  # noqa: RUF012
    wall = 0

    def on_record(self, record: Record[int]) -> None:
        if record.timestamp > self.wall + 3_600_000:
            raise TooFarAhead(record.now.isoformat())
        super().on_record(record)


YEAR_2100 = 4_102_444_800_000


def test_a_record_of_the_year_2100_closes_every_window_unless_the_handler_rejects_it() -> None:
    driver = Driver(Sums)
    driver.feed(1, timestamp=1_000)
    driver.feed(2, timestamp=YEAR_2100)
    assert driver.outputs("out")[0] == "0 1"
    driver.feed(4, timestamp=2_000)
    assert (list(driver.table("sums").values()), late_records(driver)) == ([2], 1), "every record is late from now on"

    guarded = Driver(Guarded)
    guarded.feed(1, key="ann", timestamp=1_000)
    guarded.feed(2, key="bob", timestamp=YEAR_2100)
    guarded.feed(4, key="ann", timestamp=2_000)
    assert guarded.outputs("out") == []
    assert guarded.table("sums") == {("all", 0, 10_000): 5}
    assert guarded.table("statehold.clock") == {"now": 2_000}
    assert len(guarded.dead_letters()) == 1
    guarded.crash()
    guarded.restore()
    assert guarded.table("statehold.clock") == {"now": 2_000}
    guarded.replay()


class Lists(Handler[str]):
    """What the record says is done with windows of lists."""

    plain = Tumbling(10, key=str, value=tuple[int, ...])
    lists = Session(10, key=str, value=list[int], mutable=True, merge=lambda a, b: a + b)
    out = Output("out", value=list[tuple[int, int, list[int]]])

    def on_record(self, record: Record[str]) -> None:
        window = "a", record.timestamp // 10_000 * 10_000, record.timestamp // 10_000 * 10_000 + 10_000
        if record.value == "none":
            self.plain.update(record, "a", lambda value: None)  # type: ignore[arg-type, return-value]
        elif record.value == "put":
            self.plain["a", 0, 10_000] = (1,)
        elif record.value == "delete":
            self.plain.delete(window)
        else:
            self.plain.update(record, "a", lambda value: (*(value or ()), record.offset))
            self.lists.update(record, "a", lambda value: [*(value or []), record.offset])
            self.out.send(self.lists.at(record, "a"))
            for _, _, value in self.lists.at(record, "a") if record.value == "change" else ():
                value.append(-1)  # a copy, unless in development mode

    def on_window(self, name: str, key: str, start: int, end: int, value: Any) -> None: ...


def test_what_a_handler_must_not_do_with_windows_is_an_error() -> None:
    with pytest.raises(HandlerFailed, match=r"plain\.update: the function returned None"):
        Driver(Lists).feed("none", timestamp=1_000)
    with pytest.raises(HandlerFailed, match="has closed, and a window closes once"):
        Driver(Lists).feed("put", timestamp=11_000)
    with pytest.raises(UsageError, match="this Tumbling is a declaration"):
        Lists.plain.update(Record(driver_message(), ""), "a", lambda value: ())


def driver_message() -> Any:
    driver = Driver(Lists)
    driver.feed("x", timestamp=1_000)
    return next(iter(driver.broker.log("input", 0).committed()))


def test_a_window_can_be_read_and_deleted() -> None:
    driver = Driver(Lists)
    driver.feed("x", timestamp=1_000)
    driver.feed("x", timestamp=8_000)
    assert driver.outputs("out") == [[(1_000, 11_000, [0])], [(1_000, 18_000, [0, 1])]]
    assert driver.table("plain") == {("a", 0, 10_000): (0, 1)}
    driver.feed("delete", timestamp=9_000)
    assert driver.table("plain") == {}
    driver.crash()
    driver.restore()
    assert (driver.table("plain"), driver.table("lists")) == ({}, {("a", 1_000, 18_000): [0, 1]})


def test_windows_of_mutable_values_give_copies() -> None:
    driver = Driver(Lists, settings=Settings())
    driver.feed("change", timestamp=1_000)
    driver.feed("change", timestamp=2_000)
    assert driver.outputs("out") == [[(1_000, 11_000, [0])], [(1_000, 12_000, [0, 1])]]


def test_a_window_that_begins_and_ends_in_one_transaction_leaves_no_tombstone() -> None:
    driver = Driver(Lists, autocommit=False)
    driver.feed("x", timestamp=1_000)
    driver.commit()
    cost = inside.lanes(driver)[0].live().full_snapshots.cost
    before = cost.work.entries
    for second in range(2, 9):
        driver.feed("x", timestamp=second * 1_000)
    driver.commit()
    assert cost.work.entries - before == 4, "one tumbling window, the session's old and new row, the clock"


class InPlace(Handler[str]):
    """Changes the value of a window in place, which its serde does not prevent."""

    items = Tumbling(10, key=str, value=Json(dict[str, int]))

    def on_record(self, record: Record[str]) -> None:
        if record.value == "new":
            self.items.update(record, "a", lambda value: {"n": 1})
        else:
            self.items.at(record, "a")[0][2]["n"] = 2

    def on_window(self, name: str, key: str, start: int, end: int, value: dict[str, int]) -> None: ...


def test_a_value_that_is_changed_in_place_is_noticed_in_development() -> None:
    driver = Driver(InPlace)
    driver.feed("new", timestamp=1_000)
    driver.commit()
    driver.feed("change", timestamp=1_000)
    with pytest.raises(MutatedInPlace, match="'items', key"):
        driver.commit()


class Colour(Enum):
    RED = "red"


def test_bad_declarations_are_rejected() -> None:
    text: Any = {"key": str, "value": int}
    for declare, said in (
        (lambda: Tumbling(0, **text), r"Tumbling\(size=0\)"),
        (lambda: Tumbling(-1, **text), r"Tumbling\(size=-1\)"),
        (lambda: Tumbling(0.0001, **text), "at least 1 millisecond"),
        (lambda: Tumbling(10, grace=-1, **text), r"Tumbling\(grace=-1\)"),
        (lambda: Hopping(10, 0, **text), r"Hopping\(every=0\)"),
        (lambda: Hopping(10, -5, **text), r"Hopping\(every=-5\)"),
        (lambda: Hopping(10, 11, **text), "longer than the size"),
        (lambda: Session(0, merge=max, **text), r"Session\(gap=0\)"),
        (lambda: Session(10, merge=max, grace=-1, **text), r"Session\(grace=-1\)"),
        (lambda: Tumbling(10, key=str, value=list[int]), "can be changed in place"),
        (lambda: Tumbling(10, key=float, value=int), "cannot be a key"),
        (lambda: Tumbling(10, key=Colour, value=int), "Colour has no order"),
        (lambda: Tumbling(10, key=tuple[str, Colour], value=int), "has no order"),
    ):
        with pytest.raises(UsageError, match=said):
            declare()

    class Silent(Handler[int]):
        sums = Tumbling(10, **text)

        def on_record(self, record: Record[int]) -> None: ...

    class Batched(Sums):
        def on_batch(self, records: Sequence[Record[int]]) -> None: ...

    with pytest.raises(UsageError, match=r"Silent has windows \(sums\) and no on_window"):
        tables_and_outputs(Silent)
    with pytest.raises(UsageError, match="time passes from record to record"):
        tables_and_outputs(Batched)
    with pytest.raises(UsageError, match="on_late is async"):

        class Async(Sums):
            async def on_late(self, name: str, key: str, record: Record[Any]) -> None: ...  # type: ignore[override]


def test_only_a_handler_with_windows_runs_their_code() -> None:
    class Timed(Handler[int]):
        recent = Table(key=str, value=int, ttl=5)

        def on_record(self, record: Record[int]) -> None: ...

    assert not isinstance(inside.lane(Driver(Timed)).engine().event_time, WindowTime)
    assert isinstance(inside.lane(Driver(Sums)).engine().event_time, WindowTime)
    assert set(tables_and_outputs(Windowed)[0]) == {"tumbling", "hopping", "session", "closed", "statehold.clock"}


def test_an_index_that_a_commit_rebuilds_has_the_windows_of_the_next_transaction() -> None:
    table: Any = inside.lane(Driver(Sums)).engine().state.tables["sums"]
    table["a", 0, 10_000] = 1
    table.freeze()
    table["b", 0, 10_000] = table["c", 0, 10_000] = 2
    table.commit()
    found = []
    while (window := table.take(10_000)) is not None:
        found.append(window[0])
        table.delete(window)
    assert found == ["a", "b", "c"]


class Visits(Handler[str]):
    """Sessions that each record extends."""

    visits = Session(60, key=str, value=int, merge=lambda a, b: a + b)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.visits.update(record, record.value, lambda count: (count or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{key} {value}")


def test_an_idle_partition_gets_one_tick_for_a_session_that_was_extended_many_times() -> None:
    driver = Driver(Visits)
    for _ in range(50):
        driver.feed("ann")
        driver.advance(1.0)
    last = driver.commit_record().n
    driver.advance(100.0)
    assert driver.outputs("out") == ["ann 50"]
    assert driver.commit_record().n == last + 1
    assert sum(len(record.pinned) for record in commit_records(driver)) == 1
    driver.replay()
