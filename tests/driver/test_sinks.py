"""Sinks: whatever fails, the database holds what the committed outputs say, once (docs/how-to/write/sinks.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import commit_records, events, with_interval

from statehold import Handler, Output, Record, Reference, Sink, Table, Timer, dead_letter, retry_later
from statehold.bound.sink import DatabaseTrouble, Rows, RowsRefused, SinkPosition
from statehold.config.sections.processing import CommitSettings
from statehold.errors import (
    HandlerFailed,
    NonDeterministicReplay,
    OutcomeUnknown,
    SinkDisagrees,
    SinkFenced,
    SinkRefused,
    SinkUnreachable,
    TransactionAborted,
    UsageError,
)
from statehold.messages import command
from statehold.state.state import Frozen
from statehold.testing import BatchesMatter, Driver
from statehold.worker.common.lifecycle import Phase
from statehold.worker.sinks.coordinator import SinkCoordinator
from statehold.worker.transaction.participants import CommitDraft, SideInputs


class Op(msgspec.Struct, frozen=True):
    account: str
    amount: int = 0
    close: bool = False


class Account(msgspec.Struct, frozen=True):
    account: str
    total: int = 0
    number: int = 0


class Entry(msgspec.Struct, frozen=True):
    account: str
    number: int
    total: int
    why: str


class Books(Handler[Op]):
    """Says each row to the database and to Kafka; a row that came twice, or at another place, has another total."""

    on_failure: ClassVar = {ConnectionError: dead_letter()}
    #: accounts whose records fail now: by no fault of the record, and not permanently
    down: ClassVar[set[str]] = set()
    states = Table(key=str, value=Account)
    accounts = Sink("accounts", value=Account, key="account")
    entries = Sink("entries", value=Entry, key=("account", "number"))
    said = Output("said", value=Entry)
    closed = Output("closed", value=str)

    def on_record(self, record: Record[Op]) -> None:
        op = record.value
        if op.account in self.down:
            self._book(op.account, 1_000_000, "never committed")
            raise ConnectionError(op.account)
        if op.close:
            self.states.delete(op.account)
            self.accounts.delete(op.account)
            self.closed.send(op.account)
            return
        self._book(op.account, op.amount, "record")
        if op.amount == 7:
            self.schedule(record.timestamp + 3000, op.account, id=op.account)

    def on_command(self, command: str, record: Record[bytes]) -> None:
        for account in sorted(self.states):
            self._book(account, self.states[account].total, command)

    def on_timer(self, timer: Timer) -> None:
        self._book(timer.payload, 100, f"timer {timer.at}")

    def _book(self, account: str, amount: int, why: str) -> None:
        before = self.states.get(account, Account(account))
        after = Account(account, before.total + amount, before.number + 1)
        entry = Entry(account, self._count(account), after.total, why)
        self.states[account] = after
        self.accounts.put(after)
        self.entries.put(entry)
        self.said.send(entry)

    numbers = Table(key=str, value=int)

    def _count(self, account: str) -> int:
        """Of all entries of the account, before and after it was closed."""
        number = self.numbers[account] = self.numbers.get(account, 0) + 1
        return number


@pytest.fixture(autouse=True)
def _up() -> None:
    Books.down.clear()


def books(**options: Any) -> Driver:
    """Whose database sees nothing twice, and never goes back."""
    driver, seen = Driver(Books, autocommit=False, **options), set[tuple[Any, ...]]()

    def look(before: SinkPosition, now: SinkPosition, rows: Sequence[Rows]) -> None:
        assert now.position >= before.position
        fresh = [row[:2] for each in rows if each.table == "entries" for row in each.puts]
        assert not seen.intersection(fresh)
        seen.update(fresh)

    driver.database.on_commit = look
    return driver


def agrees(driver: Driver) -> bool:
    """The committed outputs are exactly once (tests/driver/test_faults.py): the database has to say the same."""
    said = sorted(driver.outputs("said"), key=lambda entry: (entry.account, entry.number))
    accounts = driver.table("states")
    assert driver.rows("entries") == said
    assert driver.rows("accounts") == [accounts[name] for name in sorted(accounts)]
    return True


def ahead(driver: Driver) -> None:
    """The database has committed the open transaction, Kafka has not, and the process is gone."""
    before = driver.database.commits
    driver.broker.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.commit()
    driver.crash()
    assert driver.database.commits == before + 1


def test_rows_come_with_their_transaction_and_the_last_word_counts() -> None:
    driver = books()
    driver.feed_all([Op("ann", 1), Op("bob", 2), Op("ann", 3), Op("bob", close=True)])
    assert driver.database.tables == {}
    driver.commit()
    assert driver.rows("accounts") == [Account("ann", 4, 2)]
    assert agrees(driver)
    assert driver.database.held[0].position == driver.position() == 4
    driver.replay()


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize("crashed", [False, True], ids=["lives", "crashes"])
def test_a_commit_whose_outcome_is_unknown_is_resolved_by_the_position(after: bool, crashed: bool) -> None:
    driver = books()
    driver.feed_all([Op("ann", 1), Op("bob", 2)])
    driver.commit()
    driver.database.fail("commit", KeyboardInterrupt() if crashed else DatabaseTrouble("reset"), after=after)
    driver.feed_all([Op("ann", 3), Op("ann", 4)])
    if crashed:
        with pytest.raises(KeyboardInterrupt):
            driver.commit()
        driver.crash()
        driver.restore()
    driver.commit()
    assert agrees(driver)
    assert driver.database.commits == 2, "what the database had was not sent again"
    driver.feed(Op("bob", 5))
    driver.commit()
    assert agrees(driver)


def test_a_rerun_ends_where_the_database_is() -> None:
    """Records that have come meanwhile are no part of that transaction; nor is it cut at another place."""
    driver = books(batch=50)
    driver.feed_all([Op("ann", number) for number in range(20)])
    ahead(driver)
    log = driver.broker.log("input", 0)
    for number in range(20):
        log.append(msgspec.json.encode(Op("ann", number)), None, [], 0)
    driver.restore()
    driver.commit()
    assert agrees(driver)
    assert 20 in [commit_record.positions["input"] for commit_record in commit_records(driver)]


def test_smaller_transactions_on_the_way_change_nothing() -> None:
    """The settings were changed meanwhile; commands wait for their turn."""
    driver = books(batch=4)
    driver.feed_all([Op("ann", number) for number in range(20)])
    driver.command("double", via_control_topic=True)
    ahead(driver)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=5))
    log = driver.broker.log(driver.names.control, 0)
    log.append(None, None, [command.header("double", "", "test")], 0)
    driver.restore()
    driver.commit()
    driver.advance(1)
    assert [commit_record.positions["input"] for commit_record in commit_records(driver)][:5] == [0, 5, 10, 15, 20]
    assert driver.rows("accounts") == [Account("ann", 760, 22)]
    assert agrees(driver)


def test_a_command_of_the_control_topic_keeps_its_place() -> None:
    """It doubles what every account has: a record before or behind it is not the same."""
    driver = books()
    driver.feed_all([Op("ann", 1), Op("bob", 2)])
    driver.command("double", via_control_topic=True)
    ahead(driver)
    log = driver.broker.log("input", 0)
    log.append(msgspec.json.encode(Op("ann", 10)), None, [], 0)
    driver.restore()
    driver.feed(Op("bob", 20))
    driver.commit()
    assert agrees(driver)
    assert driver.rows("accounts") == [Account("ann", 12, 3), Account("bob", 24, 3)]


def test_a_tick_of_the_clock_is_the_same_tick() -> None:
    driver = books()
    driver.feed(Op("ann", 7))
    driver.commit()
    driver.broker.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.advance(10)
    driver.crash()
    held = driver.database.held[0].position
    assert held == 1, "no record, but a tick"
    driver.clock.advance(30)
    driver.restore()
    driver.advance(20)
    driver.feed(Op("ann", 1))
    driver.commit()
    assert agrees(driver)
    assert driver.rows("accounts") == [Account("ann", 108, 3)]


def test_a_dead_lettered_record_is_dead_lettered_again() -> None:
    driver = books()
    driver.feed(Op("bob", 1), key="bob")
    driver.commit()
    Books.down.add("ann")
    driver.feed(Op("ann", 5), key="ann")
    driver.feed(Op("bob", 6), key="bob")
    driver.advance(0.01)
    ahead(driver)
    Books.down.clear()
    driver.restore()
    driver.commit()
    assert [letter.offset for letter in driver.dead_letters()] == [1]
    assert agrees(driver)
    driver.release("ann")
    driver.advance(1)
    assert driver.rows("accounts") == [Account("ann", 5, 1), Account("bob", 7, 2)]
    assert agrees(driver)


class Unpoliced(Books):
    """Declares no dead letters, so only an operator makes one."""

    on_failure: ClassVar = {}


def test_what_an_operator_dead_lettered_is_dead_lettered_again_without_a_policy() -> None:
    driver = Driver(Unpoliced, autocommit=False)
    driver.feed(Op("bob", 1), key="bob")
    driver.commit()
    Books.down.add("ann")
    with pytest.raises(HandlerFailed):
        driver.feed(Op("ann", 5), key="ann")
    driver.dead_letter(1, overtake=True, why="ticket")
    driver.restore()
    driver.feed(Op("bob", 6), key="bob")
    ahead(driver)
    Books.down.clear()
    driver.restore()
    driver.commit()
    assert [(letter.offset, letter.reason) for letter in driver.dead_letters()] == [(1, "ticket")]
    assert agrees(driver)
    assert driver.rows("accounts") == [Account("bob", 7, 2)]
    digest = driver.commit_record().digest
    driver.crash()
    driver.restore()
    assert driver.commit_record().digest == digest
    driver.replay()


def test_a_record_whose_rows_are_there_becomes_no_dead_letter() -> None:
    driver = books()
    driver.feed(Op("ann", 5), key="ann")
    ahead(driver)
    Books.down.add("ann")
    with pytest.raises(HandlerFailed):
        driver.restore()
    Books.down.clear()
    driver.restore()
    driver.commit()
    assert driver.dead_letters() == []
    assert agrees(driver)


def test_an_owner_with_an_older_epoch_commits_nothing() -> None:
    """The new owner takes the epoch; the old one's Kafka transaction is not looked at before."""
    driver = books()
    driver.feed(Op("ann", 1))
    driver.commit()
    zombie = inside.lanes(driver)[0].worker
    driver.feed(Op("ann", 2))
    assert zombie.live is not None
    sinks = next(each for each in zombie.live.participants.members if isinstance(each, SinkCoordinator))
    driver.restore()
    driver.commit()
    held = driver.database.held[0]
    frozen, positions = Frozen((), (), 0, 0), {driver.names.input: 3}
    draft = CommitDraft(
        zombie.live.record, 3, positions, b"", frozen, SideInputs(), records=1, seconds=0.0, commands=()
    )
    sinks.contribute(draft)
    assert draft.before_commit is not None
    with pytest.raises(SinkFenced, match="epoch"):
        draft.before_commit()
    with pytest.raises(SinkFenced):
        sinks.recover(zombie.live.record)
    assert driver.database.held[0] == held
    assert agrees(driver)


def test_a_database_that_stays_away_fails_the_partition_and_loses_nothing() -> None:
    driver = books()
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.feed(Op("ann", 2))
    driver.database.fail("commit", DatabaseTrouble("gone"))
    driver.database.fail("connect", DatabaseTrouble("refused"), times=1000)
    began = driver.clock()
    with pytest.raises(SinkUnreachable, match="refused"):
        driver.commit()
    assert 60 <= driver.clock() - began < 120
    assert len(events(driver, "sink_retry")) > 5
    inside.forget_faults(driver.database)
    driver.restore()
    driver.commit()
    assert agrees(driver)


def test_a_stop_ends_the_wait_for_the_database() -> None:
    driver = books()
    driver.feed(Op("ann", 1))
    driver.database.fail("commit", DatabaseTrouble("gone"), times=1000)
    driver.database.fail("connect", DatabaseTrouble("refused"), times=1000)
    worker = inside.lanes(driver)[0].worker
    began = driver.clock()
    with pytest.raises(SinkUnreachable):
        driver.stop()
    assert worker.phase is Phase.CLOSED
    assert driver.clock() - began < 5
    inside.forget_faults(driver.database)
    driver.restore()
    driver.commit()
    assert agrees(driver)


def test_rows_that_are_rejected_stop_the_partition() -> None:
    driver = books()
    driver.feed(Op("ann", 1))
    driver.database.fail("commit", RowsRefused("null value"))
    with pytest.raises(SinkRefused, match=r"input\[0\]@0: .* null value"):
        driver.commit()
    assert driver.rows("accounts") == []
    driver.restore()
    driver.commit()
    assert agrees(driver)


def test_an_exception_of_a_commit_fails_its_partition_alone() -> None:
    """It is raised by the commit's thread, and waited for once more when the partition lets go of it."""
    driver = books()
    driver.feed(Op("ann", 1))
    driver.database.fail("commit", ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        driver.commit()
    worker = inside.lanes(driver)[0].worker
    assert (worker.phase, type(worker.cause)) == (Phase.FAILED, ValueError)
    assert driver.broker.log("said", 0).stable == driver.broker.log("said", 0).end, "a transaction was left open"
    driver.restore()
    driver.commit()
    assert agrees(driver)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (None, "holds no position"),
        (SinkPosition(1, 0, b""), "up to 0 only"),
        (SinkPosition(1, 9, b""), "another history"),
        (SinkPosition(1, 1, b"\xc1"), "cannot be read"),
    ],
    ids=["lost", "older copy", "other history", "forged"],
)
def test_a_database_that_does_not_follow_from_the_commit_record_is_rejected(
    held: SinkPosition | None, why: str
) -> None:
    driver = books()
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    before = driver.database.held.pop(0)
    if held is not None:
        driver.database.held[0] = held
    with pytest.raises(SinkDisagrees, match=why) as refused:
        driver.restore()
    command = "statehold sink init MODULE:SERVICE" + (" --adopt" if held is not None else "")
    assert f"`{command}`" in str(refused.value)
    driver.database.held[0] = before
    driver.restore()
    driver.feed(Op("ann", 2))
    driver.commit()
    assert agrees(driver)


class Whim(Handler[Op]):
    """What it writes depends on more than its records."""

    mood: ClassVar[int] = 0
    moods = Table(key=str, value=int)
    rows = Sink("moods", value=Account, key="account")

    def on_record(self, record: Record[Op]) -> None:
        self.moods["now"] = self.mood
        self.rows.put(Account("now", self.mood))


def again(driver: Driver) -> None:
    driver.restore()
    driver.commit()


def test_a_state_that_does_not_match_the_rows_is_rejected() -> None:
    driver = Driver(Whim, autocommit=False)
    driver.feed(Op("ann"))
    ahead(driver)
    Whim.mood = 1
    with pytest.raises(NonDeterministicReplay, match="the code has changed"):
        again(driver)
    Whim.mood = 0
    driver.restore()
    driver.commit()
    assert driver.rows("rows") == [Account("now", 0)]


class PerBatch(Handler[Op]):
    """A row that shows how the records were cut into batches."""

    rows = Sink("rows", value=Account, key="account")

    def on_batch(self, records: Sequence[Record[Op]]) -> None:
        self.rows.put(Account("all", len(records)))


def test_a_replay_in_other_batches_compares_the_rows() -> None:
    driver = Driver(PerBatch, batch=3)
    driver.feed_all([Op("ann"), Op("bob"), Op("ann")])
    assert driver.rows("rows") == [Account("all", 3)]
    with pytest.raises(BatchesMatter, match="the sinks hold"):
        driver.replay()


def test_partitions_write_side_by_side() -> None:
    driver = Driver(Books, partitions=2)
    for number in range(6):
        driver.feed(Op(f"a{number % 2}", number), partition=number % 2)
    driver.crash()
    driver.restore()
    assert driver.rows("accounts") == [Account("a0", 6, 3), Account("a1", 9, 3)]
    assert {partition: held.position for partition, held in driver.database.held.items()} == {0: 3, 1: 3}
    driver.replay(partition=1)


class Early(Whim):
    def on_live(self) -> None:
        self.rows.put(Account("x"))


def test_rows_belong_to_a_record() -> None:
    with pytest.raises(UsageError, match="on_live wrote to moods"):
        Driver(Early).feed(Op("ann"))


class Mixed(Whim):
    def on_record(self, record: Record[Op]) -> None:
        self.rows.put(Op("ann"))  # type: ignore[arg-type]


def test_a_row_of_another_type_fails_its_record() -> None:
    with pytest.raises(HandlerFailed, match=r"input\[0\]@0: .* is not of type Account"):
        Driver(Mixed).feed(Op("ann"))


class Later(Books):
    on_failure: ClassVar = {ConnectionError: retry_later(1.0, any_order=True)}


def test_tries_by_way_of_a_retry_topic_are_rejected() -> None:
    with pytest.raises(UsageError, match="retry_later"):
        Driver(Later)


class Priced(Books):
    prices = Reference("prices", key=str, value=int)


def test_reference_data_is_rejected() -> None:
    with pytest.raises(UsageError, match="reference data"):
        Driver(Priced)


def test_a_declaration_is_checked() -> None:
    with pytest.raises(UsageError, match="not among the fields"):
        Sink("t", value=Account, key="id")
    with pytest.raises(UsageError, match="Struct"):
        Sink("t", value=int, key="id")
    with pytest.raises(UsageError, match="declaration"):
        Books.accounts.put(Account("ann"))
    driver = Driver(Books)
    with pytest.raises(UsageError, match="2 values"):
        driver.handler().accounts.delete("a", "b")  # type: ignore[attr-defined]


def takeover(driver: Driver) -> None:
    """The old owner does not know, and continues."""
    old = inside.lanes(driver)[0].worker
    driver.restore()
    old.commit()
    assert old.phase is not Phase.CLOSED


def restart(driver: Driver) -> None:
    driver.crash()
    driver.restore()


ACTIONS = {
    "commit": Driver.commit,
    "crash": restart,
    "rebalance": Driver.rebalance,
    "full": Driver.take_full,
    "wait": lambda driver: driver.advance(1.0),
    "long wait": lambda driver: driver.advance(8.0),
    "double": lambda driver: driver.command("double", via_control_topic=True),
    "double in the input": lambda driver: driver.command("double in the input"),
    "takeover": takeover,
    "release": lambda driver: driver.release(),
}

steps = st.lists(
    st.one_of(
        st.builds(Op, account=st.sampled_from("abc"), amount=st.sampled_from([1, 2, 7]), close=st.booleans()),
        st.sampled_from(sorted(ACTIONS)),
        st.tuples(st.just("kafka"), st.sampled_from(["offsets", "commit", "abort", "fence"]), st.booleans()),
        st.tuples(st.just("database"), st.sampled_from(["commit", "take", "connect"]), st.booleans()),
        st.tuples(st.just("die at"), st.sampled_from(["kafka", "database"]), st.booleans()),
        st.tuples(st.just("down"), st.sampled_from("abc")),
        st.just(("up",)),
    ),
    max_size=40,
)


def apply(driver: Driver, step: Any) -> None:
    match step:
        case Op():
            driver.feed(step, key=step.account)
        case str():
            ACTIONS[step](driver)  # type: ignore[operator]
        case ("kafka", call, after):
            unknown = call in ("commit", "abort")
            error: Exception = OutcomeUnknown("fault") if unknown else TransactionAborted("fault")
            driver.broker.fail(call, error, after=after)
        case ("database", call, after):
            driver.database.fail(call, DatabaseTrouble("fault"), after=after)
        case ("die at", "kafka", after):
            driver.broker.fail("commit", KeyboardInterrupt(), after=after)
        case ("die at", _, after):
            driver.database.fail("commit", KeyboardInterrupt(), after=after)
        case ("down", account):
            Books.down.add(account)
        case ("up",):
            Books.down.clear()


def endure(driver: Driver, step: Any) -> None:
    """What surfaces is cured by a restart, as a supervisor or `statehold retry` would."""
    try:
        apply(driver, step)
    except (TransactionAborted, OutcomeUnknown, SinkFenced, HandlerFailed, KeyboardInterrupt):
        inside.forget_faults(driver.broker)
        inside.forget_faults(driver.database)
        Books.down.clear()  # what is handled again may not fail again
        driver.restore()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(steps=steps, interval=st.sampled_from(["commit", 0.5]), batch=st.sampled_from([1, 2, 5]))
@example(
    steps=[("kafka", "commit", True), ("die at", "kafka", False), Op("a", 7, False), "long wait"],
    interval="commit",
    batch=1,
)
def test_any_history_leaves_the_database_at_what_was_committed(steps: list[Any], interval: Any, batch: int) -> None:
    """Records, commands, ticks, letters; crashes and faults of Kafka and of the database at any of their calls."""
    Books.down.clear()
    driver = books(batch=batch, delta_interval=interval)
    driver.commit_record()
    for step in steps:
        endure(driver, step)
    inside.forget_faults(driver.broker)
    inside.forget_faults(driver.database)
    Books.down.clear()
    with_interval(driver, interval)
    driver.restore()
    driver.commit()
    assert agrees(driver)
    assert driver.database.held[0].position == driver.position()
    restart(driver)
    assert agrees(driver)
