"""A rebuild over a driver's topics: equal code gives the digest of the service, and nothing leaves the process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver.test_rehearsal import Bank, Posting, Quote, Risk, Row, released, run
from tests.support import inside
from tests.support.handlers import Interval
from tests.support.rebuilding import RebuiltTopics, rebuilt, replaced, shown
from tests.support.rehearsing import compared

from statehold import Call, CallResult, Handler, Output, Record, Reference, Sink, Table, dead_letter
from statehold.config.sections.effects_timers_sinks import TimeSettings
from statehold.config.sections.processing import CommitSettings
from statehold.config.settings import Settings
from statehold.errors import RetentionGap, ToolRefused, UnknownEffect, UsageError
from statehold.rebuild.partition import RebuiltPartition
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.rebuild.report import RebuiltState
from statehold.spread.partitions import ReleaseCode
from statehold.spread.rebuild import SpreadRebuild
from statehold.state.partition_table import Changes
from statehold.state.state import State
from statehold.state.types.description import of_text
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0]


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    Bank.down = 0
    yield
    Bank.down = 0


def ends(driver: Driver) -> dict[tuple[str, int], int]:
    return {place: log.end for place, log in driver.broker.logs.items() if log.end}


def require_equal(found: RebuiltState) -> None:
    assert (found.verdict, found.digest, found.notes) == ("equal", found.old_digest, [])


@pytest.mark.parametrize("interval", INTERVALS)
def test_equal_code_rebuilds_the_state_of_the_service(interval: Interval) -> None:
    driver = run(interval)
    before = ends(driver)
    found = rebuilt(driver, released())
    require_equal(found)
    assert found.records == driver.position()
    assert compared(found, "table", "balances").compared == len(driver.table(Bank.balances))
    assert ends(driver) == before


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_rebuild_may_begin_at_any_stored_point(interval: Interval) -> None:
    driver = run(interval)
    for n in range(driver.commit_record().n):
        require_equal(rebuilt(driver, released(), f"n:{n}"))


class Sums(Handler[Posting]):
    """The sum of each account. Class variables are what a release changes."""

    sums = Table(key=str, value=int)
    lines = Output("lines", value=str)
    rows = Sink("rows", value=Row, key="account")
    factor: ClassVar[int] = 1
    replays: ClassVar[set[bool]] = set()

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        self.replays.add(self.replaying)
        balance = self.sums[posting.account] = self.sums.get(posting.account, 0) + posting.amount * self.factor
        self.lines.send(f"{posting.account} {balance}")
        self.rows.put(Row(posting.account, balance))


def doubled() -> type[Sums]:
    return type("Sums", (Sums,), {"factor": 2, "replays": set()})


def fed(code: type[Handler[Any]] = Sums, records: int = 12, **options: Any) -> Driver:
    driver = Driver(code, **options)
    for i in range(records):
        driver.feed(Posting(f"k{i % 3}", i))
        driver.commit()
    return driver


def test_nothing_leaves_the_process() -> None:
    """The handler sees a replay, as in a restore: no output, no row, no effect."""
    driver, code = fed(), doubled()
    before, rows = ends(driver), driver.rows(Sums.rows)
    found = rebuilt(driver, code)
    assert code.replays == {True}
    assert (ends(driver), driver.rows(Sums.rows)) == (before, rows)
    assert (found.verdict, compared(found, "table", "sums").changed) == ("different", 3)
    assert [(each.key, each.live, each.new) for each in found.examples] == [
        ("k0", 18, 36),
        ("k1", 22, 44),
        ("k2", 26, 52),
    ]


def test_the_service_continues_from_the_rebuilt_state() -> None:
    driver, code = fed(), doubled()
    sent = driver.outputs(Sums.lines)
    record = replaced(driver, code)
    driver.upgrade(code)
    assert driver.table(Sums.sums) == {"k0": 36, "k1": 44, "k2": 52}
    assert driver.outputs(Sums.lines) == sent
    driver.feed(Posting("k0", 5))
    driver.commit()
    assert driver.table(Sums.sums)["k0"] == 46
    assert driver.outputs(Sums.lines) == [*sent, "k0 46"]
    assert driver.commit_record().adopted == record.n
    driver.crash()
    driver.restore()
    assert driver.table(Sums.sums)["k0"] == 46


def test_a_rebuilt_state_has_no_record_that_is_not_committed() -> None:
    driver = fed(autocommit=False)
    driver.feed(Posting("k0", 1_000))
    assert inside.lane(driver).engine().state.tables["sums"].get("k0") == 1_018
    with closing(Rebuild(RebuiltTopics(driver), Sums, RebuildOptions())) as work:
        (found,) = work.shown().partitions
    require_equal(found)
    assert (found.end, found.records) == (12, 12)


class Careful(Handler[Posting]):
    """Dead-letters what it rejects, and blocks no key."""

    on_failure: ClassVar = {ValueError: dead_letter(ordered=False)}
    sums = Table(key=str, value=int)
    rejected: ClassVar[int] = 13

    def on_record(self, record: Record[Posting]) -> None:
        if record.value.amount == self.rejected and "allowed" not in self.sums:
            raise ValueError("rejected")
        self.sums[record.value.account] = self.sums.get(record.value.account, 0) + record.value.amount


def careful(**changed: Any) -> type[Careful]:
    return type("Careful", (Careful,), changed)


def dead_lettered(amounts: tuple[int, ...] = (1, 13, 2)) -> Driver:
    driver = Driver(Careful)
    for amount in amounts:
        driver.feed(Posting("ann", amount), key="ann")
        driver.commit()
    return driver


@pytest.mark.parametrize("discard", [True, False])
def test_a_resolved_dead_letter_is_handled_once(discard: bool) -> None:
    """The new code handles the record in its place, so neither a redrive nor a discard changes that."""
    driver = dead_lettered()
    driver.feed(Posting("allowed", 1), key="allowed")
    driver.release("ann", discard=discard)
    driver.advance(2)
    driver.commit()
    assert driver.dead_letters() == []
    assert driver.table(Careful.sums)["ann"] == (3 if discard else 16)
    require_equal(rebuilt(driver, careful()))

    found = rebuilt(driver, careful(rejected=-1))
    assert found.obstacles == []
    replaced(driver, careful(rejected=-1))
    driver.upgrade(careful(rejected=-1))
    assert driver.table(Careful.sums)["ann"] == 16


def test_records_that_only_the_new_code_dead_letters_are_an_obstacle() -> None:
    driver = dead_lettered((1, 2, 3))
    found = rebuilt(driver, careful(rejected=2))
    assert found.obstacles == ["the new code dead-letters 1 record(s), first input[0]@1, which stay unresolved"]
    found = rebuilt(run(), released(rejected=105))
    assert found.obstacles == ["the new code fails at records of 1 key(s), which stay blocked"]


def test_records_that_would_wait_for_a_retry_are_an_obstacle() -> None:
    driver = Driver(Bank)
    driver.feed(Posting("ann", 5), key="ann")
    driver.commit()
    found = rebuilt(driver, released(later=5))
    assert found.obstacles == ["the new code sends 1 record(s) to a retry topic, where they would wait"]


def score(name: str, amount: int) -> int:
    """Stands for another system."""
    return amount


class Scored(Handler[Posting]):
    """Asks for the score of some amounts, and keeps their sum."""

    ask = Call(score, argument=int, result=int)
    scores = Table(key=str, value=int)
    least = 5

    def on_record(self, record: Record[Posting]) -> None:
        if record.value.amount >= self.least:
            self.ask(record.value.amount)

    @ask.on_result
    def on_score(self, done: CallResult[int, int]) -> None:
        self.scores["all"] = self.scores.get("all", 0) + done.result


class ScoredMore(Scored):
    least = 1


def test_answers_of_the_service_are_given_again_and_a_call_without_one_is_an_obstacle() -> None:
    driver = Driver(Scored)
    for amount in (2, 7, 9):
        driver.feed(Posting("ann", amount), key="ann")
    driver.commit()
    driver.answer(driver.calls[0], 70)
    driver.commit()
    found = rebuilt(driver, Scored)
    assert (found.obstacles, found.digest) == ([], found.old_digest), "the call for 9 is pending in both"
    found = rebuilt(driver, ScoredMore)
    assert found.obstacles == ["the new code leaves 1 call(s) of 'ask' without an answer, which it would make again"]


def test_a_record_at_which_the_new_code_fails_ends_the_rebuild() -> None:
    class Fails(Sums):
        def on_record(self, record: Record[Posting]) -> None:
            if record.value.amount == 7:
                raise KeyError("seven")
            super().on_record(record)

    with pytest.raises(ToolRefused, match=r"input\[0\]@7: rebuild the state: the new code fails .*Nothing was changed"):
        rebuilt(fed(), Fails)


# What is kept


def truncate(driver: Driver, records: int) -> int:
    """Delete the first transactions from the changelog; return the first one that is left."""
    log = driver.broker.log(driver.names.changelog, 0)
    driver.take_full()
    log.truncate(records)
    return rebuilt(driver, type(inside.lane(driver).engine().handler)).from_n + 1


def test_a_changelog_without_its_beginning_leaves_the_order_to_the_input() -> None:
    driver = fed()
    first = truncate(driver, 20)
    assert first > 5
    found = rebuilt(driver, Sums)
    assert (found.verdict, found.digest, found.records) == ("equal", found.old_digest, 12)
    assert f"the changelog begins with transaction {first}" in found.notes[0]


def test_a_state_that_came_from_another_input_did_not_begin_empty() -> None:
    """It continues its numbers (rule T3), and is not taken for the rest of a truncated changelog."""
    driver = fed()
    n = driver.commit_record().n + 1
    assert replaced(driver, Sums, former="orders").n == n
    driver.upgrade(Sums)
    driver.feed(Posting("k0", 5))
    driver.commit()
    with pytest.raises(ToolRefused, match=f"did not begin empty: rebuild 1 put 3 keys .*Next: `--from n:{n}`"):
        rebuilt(driver, Sums)
    require_equal(rebuilt(driver, Sums, f"n:{n}"))


def test_dead_letters_of_before_the_changelog_are_the_new_codes() -> None:
    driver = dead_lettered((1, 13, 2, 4, 5, 6))
    driver.feed(Posting("allowed", 1), key="allowed")
    driver.release("ann")
    driver.advance(2)
    driver.commit()
    truncate(driver, 10)
    found = rebuilt(driver, careful(rejected=-1))
    assert found.obstacles == []
    assert compared(found, "table", "sums").equal


def test_input_that_retention_has_deleted_is_named() -> None:
    driver = fed()
    driver.broker.log("input", 0).truncate(5)
    with pytest.raises(RetentionGap, match=r"input\[0\]: needed from offset 0 on, the oldest kept one is 5.*Nothing"):
        rebuilt(driver, Sums)
    with pytest.raises(RetentionGap, match=r"rebuild from n:4: .*needed from offset 4 on"):
        rebuilt(driver, Sums, "n:4")
    require_equal(rebuilt(driver, Sums, "n:5"))


def test_all_partitions_without_input_are_named() -> None:
    driver = Driver(Sums, partitions=3)
    for i in range(30):
        driver.feed(Posting(f"k{i % 3}", i), partition=i % 3)
        driver.commit()
    require_all_equal(driver)
    for partition in (0, 2):
        driver.broker.log("input", partition).truncate(3 + partition)
    with pytest.raises(RetentionGap, match=r"input\[0\]: .* is 3; input\[2\]: .* is 5\."):
        shown(driver, Sums, partitions=3)


def require_all_equal(driver: Driver) -> None:
    report = shown(driver, Sums, partitions=3)
    for each in report.partitions:
        require_equal(each)


def test_input_that_is_deleted_meanwhile_ends_the_rebuild() -> None:
    driver = fed()

    class Slow(Sums):
        def on_record(self, record: Record[Posting]) -> None:
            super().on_record(record)
            driver.broker.log("input", 0).truncate(12)

    driver.broker.read_batch = 2
    truncate(driver, 20)
    driver.feed(Posting("k0", 1))
    with pytest.raises(RetentionGap, match="retention has deleted records"):
        rebuilt(driver, Slow)


def test_a_service_that_truncates_its_changelog_meanwhile_is_followed_by_its_input() -> None:
    """A rebuild takes longer than a full snapshot stays the oldest one."""
    driver = fed()
    with closing(Rebuild(RebuiltTopics(driver), Sums, RebuildOptions())) as work:
        work.catch_up()
        for i in range(30):
            driver.feed(Posting(f"k{i % 3}", i))
            driver.commit()
        driver.take_full()
        log = driver.broker.log(driver.names.changelog, 0)
        log.truncate(log.end - 20)
        with work.turn(0, ends=True) as made:
            work.finish(made, driver.commit_record(), work.present(made))
    assert (made.report.verdict, made.report.digest) == ("equal", made.report.old_digest)
    assert made.report.records == driver.position() == 42
    assert "the service truncated it meanwhile" in made.report.notes[0]


def test_a_record_from_the_future_moves_no_time_when_its_commit_record_is_gone() -> None:
    driver = Driver(Bank, settings=Settings(commit=CommitSettings(max_records=1), time=TimeSettings(max_ahead=3600.0)))
    driver.feed(Posting("ann", 1), key="ann")
    driver.feed(Posting("bob", 2), key="bob", timestamp=int((driver.clock.wall() + 10 * 365 * 86_400) * 1000))
    driver.feed(Posting("ann", 5), key="ann")
    driver.commit()
    require_equal(rebuilt(driver, released()))
    for _ in range(4):
        driver.feed(Posting("cid", 1), key="cid")
    driver.commit()
    driver.take_full()
    log = driver.broker.log(driver.names.changelog, 0)
    log.truncate(log.end - 6)
    found = rebuilt(driver, released())
    assert (found.verdict, found.digest) == ("equal", found.old_digest)
    assert "time.max_ahead counts from the time of that transaction" in found.notes[0]


def test_several_inputs_keep_their_recorded_order() -> None:
    driver = Driver(Risk)
    for i in range(30):
        driver.feed(Posting("ann", i), input="trades")
        if i % 3 == 0:
            driver.feed(Quote(i), input="prices")
        driver.advance(0.2)
    driver.commit()
    require_equal(rebuilt(driver, Risk))
    require_equal(rebuilt(driver, Risk, "n:7"))
    driver.take_full()
    driver.broker.log(driver.names.changelog, 0).truncate(20)
    with pytest.raises(ToolRefused, match=r"only commit records know the order of several inputs.*--from n:"):
        rebuilt(driver, Risk)


def test_commands_whose_place_is_not_known_any_more_are_rejected() -> None:
    driver = run()
    driver.command("clear", via_control_topic=True)
    driver.advance(2)
    driver.take_full()
    require_equal(rebuilt(driver, released()))
    log = driver.broker.log(driver.names.changelog, 0)
    log.truncate(log.end - 3)
    with pytest.raises(ToolRefused, match=r"Bank got commands before it.*--from n:"):
        rebuilt(driver, released())


# Other code


class Prices(Handler[Posting]):
    reference = Reference("prices", key=str, value=int)

    def on_record(self, record: Record[Posting]) -> None:
        """Do nothing."""


def test_reference_data_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"reads reference data.*Nothing was changed"):
        rebuilt(fed(), Prices)


class Entry(msgspec.Struct, frozen=True):
    cents: int = 0


class Renamed(msgspec.Struct, frozen=True):
    minor: int = 0


class Ledger(Handler[Posting]):
    entries = Table(key=str, value=Entry)

    def on_record(self, record: Record[Posting]) -> None:
        self.entries[record.value.account] = Entry(record.value.amount)


class NextLedger(Handler[Posting]):
    entries = Table(key=str, value=Renamed)

    def on_record(self, record: Record[Posting]) -> None:
        self.entries[record.value.account] = Renamed(record.value.amount)


def test_any_type_of_a_table_may_change_because_no_stored_value_is_read() -> None:
    next_ledger = type("Ledger", (NextLedger,), {})
    driver = fed(Ledger)
    found = rebuilt(driver, next_ledger)
    assert compared(found, "table", "entries").changed == 3
    with pytest.raises(ToolRefused, match=r"TableTypeChanged: table 'entries'.*--from beginning"):
        rebuilt(driver, next_ledger, "n:3")
    replaced(driver, next_ledger)
    driver.upgrade(next_ledger)
    driver.commit()
    assert driver.table(NextLedger.entries) == {"k0": Renamed(9), "k1": Renamed(10), "k2": Renamed(11)}
    assert "table_types_taken" not in [name for name, _ in driver.events]


def test_values_from_before_a_point_keep_their_version() -> None:
    driver = Driver(Ledger)
    driver.feed(Posting("old", 1))
    driver.commit()
    for i in range(3):
        driver.feed(Posting("new", i))
        driver.commit()
    next_ledger = type("Ledger", (NewLedger,), {})
    replaced(driver, next_ledger, "n:1")
    driver.upgrade(next_ledger)
    assert driver.table(NewLedger.entries) == {"old": Renamed(1), "new": Renamed(2)}
    record = driver.commit_record()
    assert record.schemas == {"entries": 2}
    values = of_text(record.types["entries"]).values
    assert [field.name for number in (1, 2) for field in values[number].shapes[0].fields] == ["cents", "minor"]
    assert "optional" not in record.types["entries"]


class NewLedger(Handler[Posting]):
    entries = Table(key=str, value=Renamed, version=2, upcasters={1: lambda old: Renamed(old["cents"])})

    def on_record(self, record: Record[Posting]) -> None:
        self.entries[record.value.account] = Renamed(record.value.amount)


def test_another_table_or_key_is_a_difference() -> None:
    class Others(Handler[Posting]):
        others = Table(key=int, value=int)
        sums = Table(key=int, value=int)

        def on_record(self, record: Record[Posting]) -> None:
            self.others[1] = self.sums[2] = 3

    found = rebuilt(fed(), Others)
    assert (compared(found, "table", "sums").missing, compared(found, "table", "sums").added) == (3, 1)
    assert compared(found, "table", "others").added == 1
    assert "the new code reads no key of the service's state" in found.notes[0]


def test_pending_effects_stay_pending_and_must_be_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Bank)
    driver.fail_effects(OSError("no answer"))
    driver.feed(Posting("ann", 7), key="ann")
    driver.commit()
    (call,) = driver.pending_effects
    record = replaced(driver, released(said="said"))
    assert len(record.effects) == 1
    driver.upgrade(released(said="said"))
    assert driver.pending_effects == [call]
    with closing(Rebuild(RebuiltTopics(driver), released(), RebuildOptions())) as work:
        work.catch_up()
        monkeypatch.delattr("tests.driver.test_rehearsal.note")
        with work.turn(0, ends=True) as made, pytest.raises(UnknownEffect, match="has no attribute 'note'"):
            work.finish(made, driver.commit_record(), None)
    with pytest.raises(ToolRefused, match=r"UnknownEffect: .*has no attribute 'note'"):
        rebuilt(driver, released())


def test_timers_of_the_new_code_are_set_and_those_of_the_past_have_fired() -> None:
    driver = run()
    sent = driver.outputs(Bank.lines)
    driver.release(None, discard=True)
    driver.advance(2)
    later = released(wait=600_000, rejected=-1)
    replaced(driver, later)
    driver.upgrade(later)
    assert set(driver.outputs(Bank.lines)) == set(sent)
    driver.feed(Posting("zoe", 1), key="zoe", timestamp=int((driver.clock.wall() + 700) * 1000))
    driver.commit()
    assert driver.outputs(Bank.lines).count("timer of ann") == sent.count("timer of ann") + 1


def test_a_replacement_that_moved_nothing_is_passed_and_named() -> None:
    driver, code = fed(), doubled()
    replaced(driver, code)
    driver.upgrade(code)
    driver.feed(Posting("k0", 5))
    driver.commit()
    found = rebuilt(driver, code)
    assert (found.verdict, found.digest) == ("equal", found.old_digest)
    by = "transaction 13: rebuild 1 by ann (ticket 7)"
    assert found.notes == [f"{by} replaced the state already; it is rebuilt again"]


def test_a_replacement_that_moved_the_position_cannot_be_crossed() -> None:
    driver = fed(Careful)
    driver.broker.log("input", 0).append(b"a record that nothing can read")
    replaced(driver, careful(), skipped=1)
    driver.restore()
    driver.feed(Posting("k0", 5))
    driver.commit()
    with pytest.raises(ToolRefused, match=r"across transaction 13: rebuild 1 by ann .*moved keys .*--from n:13"):
        rebuilt(driver, careful())
    found = rebuilt(driver, careful(), "n:13")
    assert (found.start, found.records, found.digest) == (13, 1, found.old_digest)


def test_a_service_whose_state_cannot_be_read_is_rebuilt_without_a_comparison() -> None:
    driver = fed(delta_interval="off")
    driver.take_full()
    driver.feed(Posting("k0", 1))
    driver.commit()
    found = rebuilt(driver, Sums)
    assert found.compared_with == found.compared_at == found.to_n - 2 == 13
    assert (found.verdict, found.digest, found.notes) == ("equal", found.old_digest, [])
    lost = driver.broker.log(driver.names.snapshot, 0)
    lost.truncate(lost.end)
    driver.broker.log(driver.names.changelog, 0).truncate(10)
    found = rebuilt(driver, Sums)
    assert (found.compared_with, found.digest) == (-1, found.old_digest)
    assert "not compared, because the service's state cannot be read" in found.notes[-1]


# Next to the running service


def test_a_rebuild_follows_the_service_until_it_stops() -> None:
    driver, code = fed(), doubled()
    told: list[str] = []
    members = iter([2, 2, 1, 0])

    def look() -> int:
        driver.feed(Posting("k0", 1))
        driver.commit()
        return next(members)

    with closing(Rebuild(RebuiltTopics(driver), code, RebuildOptions(), tell=told.append)) as work:
        work.catch_up()
        assert work.behind() == 0
        work.await_stop(look, pause=lambda seconds: None)
        assert "Stop the service now, all of its 2 process(es)" in told[0]
        with work.turn(0, ends=True) as made:
            last = driver.commit_record()
            work.finish(made, last, work.present(made))
        assert made.report.records == 16
        assert made.position == driver.position()


def test_states_of_several_partitions_leave_memory_in_turns() -> None:
    """The state of a partition is on the disk while another one has its turn; nothing is lost on the way."""
    driver = Driver(Bank, partitions=3)
    for i in range(60):
        driver.feed(Posting(f"k{i % 7}", i), key=f"k{i % 7}", partition=i % 3)
        driver.advance(0.3)
    with closing(Rebuild(RebuiltTopics(driver, 3), released(), RebuildOptions())) as work:
        for begin in (60, 75):
            work.catch_up()
            driver.advance(6.0)  # timers are gone, which the files of the turn before have
            for i in range(begin, begin + 15):
                driver.feed(Posting(f"k{i % 7}", i), key=f"k{i % 7}", partition=i % 3)
            driver.advance(0.3)
        work.catch_up()
        driver.commit()
        for partition in range(3):
            with work.turn(partition, ends=True) as made:
                last = driver.commit_record(partition)
                work.finish(made, last, work.present(made))
            require_equal(made.report)


def test_executors_open_no_spool() -> None:
    """A partition has an executor for itself, and the driver has no state in memory."""
    driver, missing = Driver(Bank, partitions=3), Path("/nowhere")
    with pytest.raises(FileNotFoundError):
        Rebuild(RebuiltTopics(driver, 3), released(), RebuildOptions(spool_dir=missing))
    code = ReleaseCode("app:service", Settings(), driver.names)
    spark: Any = None
    with closing(SpreadRebuild(spark, RebuiltTopics(driver, 3), released(), code, RebuildOptions(spool_dir=missing))):
        pass
    with closing(Rebuild(RebuiltTopics(driver, 3), released(), RebuildOptions(spool_dir=missing, spools=False))):
        pass


def elsewhere(driver: Driver, code: type[Handler[Any]], before: RebuiltPartition) -> Rebuild:
    """Return a rebuild that continues with what another process has stored of a partition."""
    left = pickle.loads(pickle.dumps(before.leave_memory()))  # noqa: S301  bytes of this line
    stored = {name: dict(table.stored) for name, table in before.state.tables.items()}

    def fill(state: State) -> None:
        for name, held in stored.items():
            state.load(Changes(name, list(held), list(held.values())))
        state.loaded()

    work = Rebuild(RebuiltTopics(driver), code, RebuildOptions())
    work.resume(0, left, fill)
    return work


def finished(driver: Driver, work: Rebuild) -> RebuiltState:
    with work.turn(0, ends=True) as made:
        last = driver.commit_record()
        work.finish(made, last, work.present(made))
    return made.report


def test_another_process_continues_with_a_partition() -> None:
    """No record is handled twice or passed over, and failures that are open stay obstacles."""
    driver, more = run(), ("ann", "bob", "cid")
    with closing(Rebuild(RebuiltTopics(driver), released(), RebuildOptions())) as work:
        work.catch_up()
        with work.turn(0) as made:
            handled = made.report.records
            continued = elsewhere(driver, released(), made)
    for account in more:
        driver.feed(Posting(account, 1), key=account)
        driver.advance(0.3)
    driver.commit()
    with closing(continued):
        found = finished(driver, continued)
    require_equal(found)
    assert found.records == handled + len(more) == driver.position()

    driver, code = dead_lettered((1, 2, 3)), careful(rejected=2)
    with closing(Rebuild(RebuiltTopics(driver), code, RebuildOptions())) as work:
        work.catch_up()
        with work.turn(0) as made, closing(elsewhere(driver, code, made)) as continued:
            assert "dead-letters 1 record(s), first input[0]@1" in finished(driver, continued).obstacles[0]

    driver, later = Driver(Bank), released(later=5)
    driver.feed(Posting("ann", 5), key="ann")
    driver.commit()
    with closing(Rebuild(RebuiltTopics(driver), later, RebuildOptions())) as work:
        work.catch_up()
        with work.turn(0) as made, closing(elsewhere(driver, later, made)) as continued:
            assert "sends 1 record(s) to a retry topic" in finished(driver, continued).obstacles[0]


AMOUNTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 29), st.booleans()), max_size=40)


@settings(max_examples=60, deadline=None)
@given(AMOUNTS, st.data())
def test_any_life_is_rebuilt_from_anywhere(postings: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    driver = Driver(Bank, delta_interval=data.draw(st.sampled_from(["commit", 2.0])))
    for account, amount, pause in postings:
        driver.feed(Posting(account, amount), key=account)
        if pause:
            driver.advance(1.5)
    driver.release(None, discard=data.draw(st.booleans()))
    driver.advance(61)
    driver.commit()
    n = data.draw(st.integers(0, driver.commit_record().n))
    require_equal(rebuilt(driver, released(), data.draw(st.sampled_from(["beginning", f"n:{n}"]))))
