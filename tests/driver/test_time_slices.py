"""What is due before one record is handed over in slices: outputs and state are those of one call (rule E6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.handlers import Interval, commit_records
from tests.support.rebuilding import RebuiltTopics
from tests.support.rehearsing import compared, rehearsed
from tests.support.shadowing import DriverShadow

from statehold import Handler, JoinBuffer, Output, Record, Rekey, Session, Sink, Table, Timer, Tumbling, dead_letter, on
from statehold.config.sections.effects_timers_sinks import TimersSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, OutcomeUnknown, SinkRefused, StateholdError, TransactionAborted
from statehold.messages.command import FINISH_UPGRADE, GO_ON, PAUSE, SLICE, BadCommand, command_of
from statehold.messages.pinned_command import PinnedMessage
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.state import digest
from statehold.testing import Driver
from statehold.testing.simulation import InputRecord, fuzz_crashes, quick_settings
from statehold.worker.handler import time_slices
from statehold.worker.participants import idle_clock

Step = tuple[str, int] | Literal["crash", "full", "rebalance", "commit", "stop"]
Fault = Literal["raise", "unknown", "committed", "aborted"]
#: more than any test has
ALL = 1_000_000
FAULTS: dict[str, tuple[Any, StateholdError, bool]] = {
    "unknown": ("commit", OutcomeUnknown("?"), False),
    "committed": ("commit", OutcomeUnknown("?"), True),
    "aborted": ("offsets", TransactionAborted("no"), False),
}


class Failing(Exception):
    """Raised at the rows that a test names."""


class Due(Handler[str]):
    """Windows, sessions, rows of a join without a partner, and timers, of which much is due at one record."""

    minutes = Tumbling(4, key=str, value=int, grace=1)
    visits = Session(3, key=str, value=int, merge=lambda a, b: a + b)
    pairs = JoinBuffer(2, key=str, left=str, right=str, join="outer")
    closed = Table(key=str, value=int)
    lately = Table(key=str, value=int, ttl=6)
    out = Output("out", value=str)
    #: called with the number of each row
    at_row: Callable[[int], None] | None = None
    rows = 0

    def on_record(self, record: Record[str]) -> None:
        key = record.value
        self.minutes.update(record, key, lambda count: (count or 0) + 1)
        self.visits.update(record, key, lambda count: (count or 0) + 1)
        for other in self.pairs.left(record, key, key) if record.offset % 3 else self.pairs.right(record, key, key):
            self.out.send(f"pair {other}")
        self.lately[key] = record.offset
        self.schedule(record.timestamp + 2_500, key, id=f"{key}-{record.offset % 5}")
        self.out.send(f"record {record.offset} {sorted(self.lately.items())}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.row(f"{name} {key} {start} {value}")
        self.schedule(end + 500, key, id=f"after {name} {key}")

    def on_unmatched(self, name: str, key: str, side: str, value: str, timestamp: int) -> None:
        self.row(f"{name} {key} {side} {timestamp}")

    def on_timer(self, timer: Timer) -> None:
        self.row(f"timer {timer.id}")
        if timer.id.startswith("after"):
            self.schedule(timer.due, timer.payload, id=f"again {timer.id}")

    def on_late(self, name: str, key: str, record: Record[str]) -> None:
        self.out.send(f"late {name} {key} {record.offset}")

    def row(self, text: str) -> None:
        self.closed["rows"] = count = self.closed.get("rows", 0) + 1
        if Due.at_row is not None:
            Due.at_row(count)
        self.out.send(f"{text} number {count}")


class Kept(msgspec.Struct, frozen=True):
    number: int
    text: str


class InDatabase(Due):
    """Each row is also one of a sink's table."""

    kept = Sink("kept", value=Kept, key="number")

    def row(self, text: str) -> None:
        super().row(text)
        number = self.closed["rows"]
        self.kept.put(Kept(number, text))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ann", "bob", "cid", "dan", "eve"]), st.sampled_from([0, 0, 100, 700, 9_000])),
        st.sampled_from(["crash", "full", "rebalance", "commit", "stop"]),
    ),
    max_size=30,
)


def settings(room: int, interval: Interval = "commit", idle: float = 86_400.0) -> Settings:
    return Settings(
        commit=CommitSettings(max_records=room),
        snapshot=SnapshotSettings(delta_interval=interval),
        timers=TimersSettings(idle=idle),
    )


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the rows of a call."""
    yield lambda count: monkeypatch.setattr(time_slices, "ROWS", count)
    Due.at_row = None


def is_slice(entry: Any) -> bool:
    command = command_of(PinnedMessage("", 0, entry))
    return command is not None and command.name == SLICE


def slices(driver: Driver) -> list[CommitRecord]:
    return [record for record in commit_records(driver) if any(map(is_slice, record.pinned))]


def run(driver: Driver, steps: list[Step], begin: int) -> None:
    """Feed the records; a partition that has failed is retried."""
    now = begin
    for step in steps:
        try:
            if isinstance(step, tuple):
                now += step[1]
                driver.feed(step[0], timestamp=now)
            elif step == "crash":
                driver.crash()
                driver.restore()
            elif step == "stop":
                driver.stop()
                driver.restore()
            elif step == "full":
                driver.take_full()
            elif step == "rebalance":
                driver.rebalance()
            else:
                driver.commit()
        except HandlerFailed:
            retry(driver)
    for _ in range(10):
        try:
            driver.commit()
            return
        except HandlerFailed:
            retry(driver)


def retry(driver: Driver) -> None:
    for _ in range(10):
        try:
            driver.restore()
            return
        except HandlerFailed:
            pass


class Windowed(Handler[str]):
    """A window of a second for each key, and what happens around its closing."""

    windows = Tumbling(1, key=str, value=int)
    seen = Table(key=str, value=int)
    out = Output("out", value=str)
    on_failure: ClassVar = {Failing: dead_letter()}
    #: a key whose window schedules a timer and requests an effect without a name of its own
    naming = ""

    def on_record(self, record: Record[str]) -> None:
        self.windows.update(record, record.value, lambda count: (count or 0) + 1)
        self.out.send(f"record {record.value}")
        if record.value == "bad":
            raise Failing

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{key} closed")
        if key == Windowed.naming:
            self.schedule(end + 5_000, key)
            self.effect(nothing, key)

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"timer {timer.id}")

    def on_command(self, name: str, record: Record[bytes]) -> None:
        self.out.send(f"command {name} with {len(self.windows)} windows")


def nothing(key: Any, of: str) -> None:
    """An effect."""


KEYS = [f"k{number}" for number in range(9)]
CLOSED = [f"{key} closed" for key in KEYS]


def with_windows(room: int = 3, interval: Interval = "commit", idle: float = 86_400.0, **options: Any) -> Driver:
    driver = Driver(Windowed, settings=settings(room, interval, idle), **options)
    for key in KEYS:
        driver.feed(key, timestamp=int(driver.clock.wall() * 1000) // 1000 * 1000)
    driver.commit()
    return driver


def later(driver: Driver, seconds: int = 1) -> int:
    return (int(driver.clock.wall()) + seconds) * 1000


def closed(driver: Driver) -> list[str]:
    return [text for text in driver.outputs("out") if text not in {f"record {key}" for key in KEYS}]


@pytest.mark.parametrize("interval", ["commit", 60.0])
def test_each_slice_is_a_transaction_with_a_delta_and_the_record_comes_after_all(
    rows: Callable[[int], None], interval: Interval
) -> None:
    rows(2)
    driver = with_windows(interval=interval)
    driver.feed("next", timestamp=later(driver))
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    found = slices(driver)
    assert [record.position("input") for record in found] == [9, 9]
    assert [time_slices.rows_of(entry.value) for record in found for entry in record.pinned] == [4, 4]
    assert all(record.delta and record.start == 9 for record in found)
    assert driver.commit_record().position("input") == 10
    driver.replay()


@pytest.fixture
def sixth_fails() -> Iterator[Callable[[], None]]:
    """The window of `k6` raises, until it is called."""
    before = Windowed.on_window

    def on_window(self: Windowed, name: str, key: str, start: int, end: int, value: int) -> None:
        if key == "k6":
            raise ValueError(key)
        before(self, name, key, start, end, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Windowed, "on_window", on_window)
        yield patch.undo


@pytest.mark.parametrize("interval", ["commit", 60.0])
@pytest.mark.parametrize("size", [2, ALL], ids=["a release with slices", "a release that closes all at once"])
def test_another_owner_continues_behind_the_last_slice(
    rows: Callable[[int], None], sixth_fails: Callable[[], None], interval: Interval, size: int
) -> None:
    rows(2)
    driver = with_windows(interval=interval)
    with pytest.raises(HandlerFailed, match=r"on_window of 'windows', key 'k6'"):
        driver.feed("next", timestamp=later(driver))
    assert closed(driver) == CLOSED[:4], "what was committed stays"
    assert [key for key, *_ in driver.table("windows")] == KEYS[4:]
    sixth_fails()
    driver.crash()
    rows(size)
    driver.restore()
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    driver.replay()


def test_a_stop_inside_commits_what_was_handed_over(
    rows: Callable[[int], None], sixth_fails: Callable[[], None]
) -> None:
    rows(2)
    driver = with_windows()
    with pytest.raises(HandlerFailed):
        driver.feed("next", timestamp=later(driver))
    sixth_fails()
    driver.restore()
    driver.stop()
    driver.restore()
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]


def test_a_slice_that_is_rolled_back_is_counted_once(
    rows: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(2)
    driver, before = with_windows(), Windowed.on_window

    def on_window(self: Windowed, name: str, key: str, start: int, end: int, value: int) -> None:
        before(self, name, key, start, end, value)
        if key == "k6":
            monkeypatch.setattr(Windowed, "on_window", before)
            driver.broker.fail("offsets", TransactionAborted("no"))

    monkeypatch.setattr(Windowed, "on_window", on_window)
    driver.feed("next", timestamp=later(driver))
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    assert [time_slices.rows_of(record.pinned[0].value) for record in slices(driver)] == [4, 4]
    driver.replay()


def test_a_record_that_becomes_a_dead_letter_has_closed_windows(rows: Callable[[int], None]) -> None:
    """The windows of its last transaction close at the next record, so each of them closes once and in order."""
    rows(2)
    driver = with_windows()
    driver.feed("bad", timestamp=later(driver))
    driver.commit()
    assert closed(driver) == CLOSED[:8]
    driver.feed("next", timestamp=later(driver, 0))
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    assert [letter.offset for letter in driver.dead_letters()] == [9]
    driver.crash()
    driver.restore()
    driver.replay()


def test_no_slice_ends_behind_a_row_that_named_something_after_the_record(rows: Callable[[int], None]) -> None:
    """Otherwise the next owner would give the same name to another timer, effect or call."""
    rows(1)
    Windowed.naming = "k4"
    try:
        driver = with_windows(room=1, run_effects=True)
        driver.feed("next", timestamp=later(driver))
        driver.commit()
        driver.feed("later", timestamp=later(driver, 60))
        driver.commit()
        found = [record for record in slices(driver) if record.position("input") == 9]
        assert [time_slices.rows_of(record.pinned[0].value) for record in found] == [1, 1, 1, 1]
        assert closed(driver) == [*CLOSED, "record next", "next closed", "timer input/0/9/0", "record later"]
        assert [call.key for call in driver.effects] == [("input", 0, 9, 0)]
        driver.replay()
    finally:
        Windowed.naming = ""


def test_without_deltas_all_windows_close_in_one_transaction(
    rows: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore without deltas repeats every transaction, also by a release that knows no slices."""
    rows(1)
    monkeypatch.setattr(Windowed, "on_failure", {})
    driver = with_windows(interval="off")
    driver.feed("next", timestamp=later(driver))
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    assert not slices(driver)


def test_a_partition_of_format_2_closes_all_windows_in_one_transaction(rows: Callable[[int], None]) -> None:
    class Old(Driver):
        _format = frame.PINNING - 1

    rows(1)
    driver = Old(Windowed, settings=settings(1))
    for key in (*KEYS, "next"):
        driver.feed(key, timestamp=later(driver, key == "next"))
    driver.commit()
    assert closed(driver) == [*CLOSED, "record next"]
    assert not slices(driver)
    driver.command(FINISH_UPGRADE)
    driver.commit()
    for key in (*KEYS, "last"):
        driver.feed(key, timestamp=later(driver, 7 if key == "last" else 5))
    driver.commit()
    assert len(slices(driver)) == 8


def test_an_idle_partition_closes_windows_in_slices(rows: Callable[[int], None], monkeypatch: Any) -> None:
    monkeypatch.setattr(idle_clock, "_SLICES", 2)
    rows(2)
    driver = with_windows(idle=1.0)
    driver.advance(10.0)
    assert closed(driver) == CLOSED
    found = slices(driver)
    assert [time_slices.rows_of(entry.value) for record in found for entry in record.pinned] == [4, 4]
    assert all(record.delta for record in found)
    ticks = [record for record in commit_records(driver) if record.pinned and record not in found]
    assert len(ticks) == 1, "the last one has reached the clock's time"
    driver.crash()
    driver.restore()
    driver.replay()


def test_commands_wait_for_the_record(rows: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    rows(2)
    driver, before = with_windows(), Windowed.on_window

    def on_window(self: Windowed, name: str, key: str, start: int, end: int, value: int) -> None:
        before(self, name, key, start, end, value)
        if key == "k1":
            driver.command("meanwhile", via_control_topic=True)

    monkeypatch.setattr(Windowed, "on_window", on_window)
    driver.feed("next", timestamp=later(driver))
    driver.advance(2.0)
    assert closed(driver) == [*CLOSED, "record next", "command meanwhile with 1 windows"]
    assert len(slices(driver)) == 2


def test_a_pause_that_commits_inside_a_boundary_can_be_ended(rows: Callable[[int], None]) -> None:
    """The transaction in flight carries it, while slices fill the next one: the record waits for `resume`."""
    rows(2)
    driver = Driver(Windowed, autocommit=False, settings=settings(10))
    at, keys = later(driver, 0), [f"k{number:02}" for number in range(35)]
    for key in keys[:-1]:
        driver.feed(key, timestamp=at)
    driver.commit()
    driver.command(PAUSE, via_control_topic=True)
    for key in ("k00",) * 9:
        driver.feed(key, timestamp=at)
    driver.feed(keys[-1], timestamp=at)  # the transaction is full, and takes the command
    driver.command(GO_ON, via_control_topic=True)
    driver.feed("next", timestamp=at + 1000)
    driver.advance(1.0)
    assert any(record.paused is not None for record in commit_records(driver))
    assert driver.commit_record().paused is None
    assert closed(driver)[-len(keys) - 1 :] == [*(f"{key} closed" for key in keys), "record next"]


def test_a_command_of_the_input_closes_windows_in_slices(rows: Callable[[int], None]) -> None:
    rows(2)
    driver = with_windows()
    driver.advance(1.0)
    driver.command("count")
    driver.commit()
    assert closed(driver) == [*CLOSED, "command count with 0 windows"]
    assert len(slices(driver)) == 2
    assert [command.name for record in commit_records(driver) for command in record.commands] == ["count"]
    driver.replay()


def test_a_slice_sent_by_hand_does_nothing(rows: Callable[[int], None]) -> None:
    driver = with_windows()
    with pytest.raises(BadCommand):
        time_slices.rows_of(b"many")
    driver.command(SLICE, msgspec.msgpack.encode(5))
    driver.command(SLICE, msgspec.msgpack.encode(5), via_control_topic=True)
    driver.advance(2.0)
    assert closed(driver) == []


class Booked(Handler[str]):
    """Each window is a row; the database does not accept that of `k4`."""

    on_failure: ClassVar = {SinkRefused: dead_letter()}
    windows = Tumbling(1, key=str, value=int)
    kept = Sink("kept", value=Kept, key="number")
    numbers = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.windows.update(record, record.value, lambda count: (count or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        number = self.numbers["all"] = self.numbers.get("all", 0) + 1
        self.kept.put(Kept(number, key))


@pytest.mark.parametrize(("size", "room", "kept"), [(2, 3, 4), (2, 100, 0), (ALL, 3, 0)])
def test_a_rejected_row_of_a_window_is_found_in_the_same_way(
    rows: Callable[[int], None], size: int, room: int, kept: int
) -> None:
    """`kept`: rows of slices that have committed. A boundary of many slices may fit one transaction."""
    rows(size)
    driver = Driver(Booked, settings=settings(room))
    driver.database.refuses = lambda table, row: "check constraint" if row["text"] == "k4" else ""
    for key in KEYS:
        driver.feed(key, timestamp=later(driver, 0))
    driver.feed("next", timestamp=later(driver))
    driver.commit()
    assert [letter.offset for letter in driver.dead_letters()] == [9]
    assert [row.text for row in driver.rows("kept")] == KEYS[:kept]
    driver.database.refuses = lambda table, row: ""
    driver.feed("last", timestamp=later(driver, 2))
    driver.commit()
    assert [row.text for row in driver.rows("kept")] == KEYS
    driver.replay()


class OfTwoInputs(Handler[None]):
    windows = Tumbling(1, key=str, value=int)
    out = Output("out", value=str)

    @on("first", value=str)
    def of_first(self, record: Record[str]) -> None:
        self.windows.update(record, record.value, lambda count: (count or 0) + 1)
        self.out.send(f"first {record.value}")

    @on("second", value=str)
    def of_second(self, record: Record[str]) -> None:
        self.windows.update(record, record.value, lambda count: (count or 0) + 1)
        self.out.send(f"second {record.value}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{key} closed {value}")


@pytest.mark.parametrize("interval", ["commit", 60.0])
def test_with_several_inputs_the_record_comes_after_all(rows: Callable[[int], None], interval: Interval) -> None:
    rows(2)
    driver = Driver(OfTwoInputs, settings=settings(3, interval))
    for number, key in enumerate((*KEYS, *KEYS)):
        driver.feed(key, input=("first", "second")[number % 2], timestamp=later(driver, 0))
    driver.feed("next", input="second", timestamp=later(driver))
    driver.feed("next", input="first", timestamp=later(driver))
    driver.commit()
    assert driver.outputs("out")[18:] == [*(f"{key} closed 2" for key in KEYS), "second next", "first next"]
    assert [record.runs for record in slices(driver)] == [b"", b""]
    driver.crash()
    driver.restore()
    driver.replay()


class Newer(Windowed):
    """Another release, which sends something else for one window."""

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        super().on_window(name, key + ("!" if key == "k5" else ""), start, end, value)


def with_slices() -> Driver:
    driver = with_windows()
    driver.feed("next", timestamp=later(driver))
    driver.commit()
    assert len(slices(driver)) == 2
    return driver


def test_a_rehearsal_stops_where_the_service_did(rows: Callable[[int], None]) -> None:
    rows(2)
    driver = with_slices()
    equal = rehearsed(driver, Windowed)
    assert (equal.verdict, equal.notes) == ("equal", [])
    report = rehearsed(driver, Newer)
    found = compared(report, "outputs", "out")
    assert (found.changed, found.missing, found.added) == (1, 0, 0)
    (note,) = report.notes
    assert note.startswith(f"2 transaction(s) of the service, first {slices(driver)[0].n}, have a slice of the rows")


class Sending(Handler[None]):
    """Each window and each timer sends on."""

    on_way = Rekey("on_way", key=str, value=int)
    windows = Tumbling(1, key=str, value=int)

    @on("keys", value=str)
    def key(self, record: Record[str]) -> None:
        if record.value == "send":
            self.on_way.send(1, key="end", timestamp=record.timestamp + 1_000)
        elif record.value == "timers":
            for number in range(9):
                self.schedule(record.timestamp - 1, b"", id=str(number))
        else:
            self.windows.update(record, record.value, lambda count: (count or 0) + 1)

    @on(on_way)
    def arrived(self, record: Record[int, str]) -> None:
        pass

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.on_way.send(value, key=key)

    def on_timer(self, timer: Timer) -> None:
        self.on_way.send(0, key=timer.id)


@pytest.mark.parametrize("what", ["next", "send", "timers"])
def test_what_a_slice_sends_to_another_key_is_the_same_in_a_replay(rows: Callable[[int], None], what: str) -> None:
    """Its hops and its time are those of the record after the slice, which has come by a send, or is an old one."""
    rows(2)
    driver = Driver(Sending, settings=settings(3))
    for key in KEYS:
        driver.feed(key, timestamp=later(driver, 0))
    driver.feed(what, timestamp=later(driver, 1 if what == "next" else 0))
    if what == "timers":
        driver.feed("old", timestamp=later(driver, -1))
    driver.commit()
    after = {time_slices.before(PinnedMessage("", 0, each)) for record in slices(driver) for each in record.pinned}
    assert {message.timestamp()[1] for message in after} == {later(driver, -1 if what == "timers" else 1)}
    found = rehearsed(driver, Sending)
    assert found.verdict == "equal", found.examples
    driver.replay()


def test_a_shadow_stops_where_the_service_did(rows: Callable[[int], None]) -> None:
    rows(2)
    driver = with_windows()
    shadow = DriverShadow(driver, Windowed)
    driver.feed("next", timestamp=later(driver))
    found = shadow.look()
    assert len(slices(driver)) == 2
    assert (found.verdict, found.to_n) == ("equal", driver.commit_record().n)


def test_a_rebuild_has_closed_the_windows_that_the_service_has_closed(
    rows: Callable[[int], None], sixth_fails: Callable[[], None]
) -> None:
    rows(2)
    driver = with_windows()
    with pytest.raises(HandlerFailed):
        driver.feed("next", timestamp=later(driver))
    sixth_fails()
    source = RebuiltTopics(driver)
    last = require_commit_record(source.reader(), driver.names.changelog, 0, "rebuild the state")
    assert any(map(is_slice, last.pinned))
    with closing(Rebuild(source, Windowed, RebuildOptions("beginning"))) as work, work.turn(0, ends=True) as made:
        work.finish(made, last, work.present(made))
        assert digest.to_bytes(made.state.digest) == last.digest
        (obstacle,) = made.report.obstacles
        assert "let the service go on" in obstacle


@pytest.mark.parametrize("interval", ["commit", 60.0])
def test_a_crash_at_every_step_changes_nothing(rows: Callable[[int], None], interval: Interval) -> None:
    """Two processes, of which one is killed, suspended or gets an error at each place of the run."""
    rows(1)
    quick = quick_settings(settings(2, interval))
    values = replace(quick, timers=TimersSettings(idle=86_400.0))
    given = [*((key, 0) for key in KEYS[:5]), ("next", 1_000), ("last", 2_000)]
    inputs = [
        InputRecord(1.0 + 0.1 * i, 0, key.encode(), None, "", 1_000_000 + at) for i, (key, at) in enumerate(given)
    ]
    assert fuzz_crashes(Windowed, inputs, settings=values, most=150).schedules > 100


@pytest.mark.parametrize("kind", [Due, InDatabase])
@pytest.mark.parametrize("interval", ["commit", 5.0])
@given(
    steps=STEPS,
    room=st.integers(1, 6),
    count=st.integers(1, 4),
    batch=st.integers(1, 5),
    faults=st.dictionaries(st.integers(1, 40), st.sampled_from(["raise", *FAULTS]), max_size=4),
)
@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_slices_of_any_size_give_what_one_call_gives(
    rows: Callable[[int], None],
    interval: Interval,
    kind: type[Due],
    steps: list[Step],
    room: int,
    count: int,
    batch: int,
    faults: dict[int, Fault],
) -> None:
    begin, left = 1_750_000_000_000, dict(faults)
    last: list[Step] = [("end", 60_000), ("end", 0)]
    rows(ALL)
    Due.at_row = None
    whole = Driver(kind, settings=settings(ALL, interval))
    run(whole, [step for step in steps if isinstance(step, tuple)] + last, begin)
    assert not slices(whole)
    rows(count)
    driver = Driver(kind, settings=settings(room, interval), batch=batch)

    def at_row(number: int) -> None:
        fault = left.pop(number, None)
        if fault == "raise":
            raise Failing
        if fault is not None:
            call, error, after = FAULTS[fault]
            driver.broker.fail(call, error, after=after)

    Due.at_row = at_row
    run(driver, [*steps, *last], begin)
    assert driver.outputs("out") == whole.outputs("out")
    assert driver.commit_record().digest == whole.commit_record().digest
    assert all(record.delta for record in slices(driver))
    if kind is InDatabase:
        assert driver.rows("kept") == whole.rows("kept")
    driver.crash()
    driver.restore()
    Due.at_row = None
    driver.replay()
