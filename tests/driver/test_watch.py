"""A watch: its changes in order are the committed table after each transaction (W4), and it never skips one (W5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.driver.test_state_replacement import Tool, double
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Interval, Op

from statehold import Handler, Record, Table
from statehold.common.names import Names
from statehold.errors import (
    ChangesLost,
    DamagedIncrement,
    KafkaTrouble,
    NoCommitRecord,
    TornTransaction,
    TransactionAborted,
    UnreadableValue,
    UsageError,
)
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header
from statehold.snapshot.inspect import past
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
from statehold.testing.memory.clients import StableMemoryReader
from statehold.watch.changes import TableChange, WatchedTable
from statehold.watch.position import WatchedTo, as_text, parse
from statehold.watch.watcher import Watcher

NAMES = ("ann", "bob", "cyd", "dee", "eve")
BALANCES = WatchedTable.typed("balances", str, Balance, None)

OPS = st.builds(Op, account=st.sampled_from(NAMES), amount=st.integers(1, 9), close=st.booleans())
MANY = st.lists(OPS, min_size=2, max_size=8)
RESUMES = st.tuples(st.just("resume"), st.integers(0, 12))
ACTIONS = st.sampled_from(["look", "full", "crash", "stop", "command", "wait", "abort", "fail", "outage"])
STEPS = st.lists(st.one_of(OPS, MANY, RESUMES, ACTIONS), max_size=40)


class Commanded(Accounts):
    """A command of the control topic changes the state, too."""

    def on_command(self, command: str, record: Record[bytes]) -> None:
        before = self.balances.get("fees", Balance())
        self.balances["fees"] = Balance(before.total + 1, 0)


class Watched:
    """A watcher of partition 0, and the table that it makes of the changes."""

    def __init__(self, driver: Driver, table: WatchedTable = BALANCES, after: str = "") -> None:
        self.driver, self.table, self.after = driver, table, after
        #: a watch from now on begins with the table of now
        self.rows: dict[Any, Any] = {} if after else self.committed(driver.commit_record().n)
        self.seen: list[TableChange[Any]] = []
        self.outages = 0
        self.again()

    def again(self) -> None:
        """Begin with the position, as another process would."""
        position = parse(self.after)
        self.watcher = Watcher(self.driver.names, self.table, [0], position, self._reader, lambda _: False)
        self.changes: Iterator[TableChange[Any] | None] = self.watcher.changes()

    def look(self, most: int = 1_000_000) -> list[TableChange[Any]]:
        """Take the changes that are there, up to `most`."""
        found: list[TableChange[Any]] = []
        while len(found) < most:
            if (change := next(self.changes)) is None:
                self.after = self.watcher.position or self.after
                break
            found.append(change)
            self.take(change)
        return found

    def take(self, change: TableChange[Any]) -> None:
        self.seen.append(change)
        self.after = change.position
        if change.deleted:
            self.rows.pop(change.key, None)
        else:
            self.rows[change.key] = change.value
        if change.last:
            assert self.rows == self.committed(change.transaction)

    def committed(self, n: int) -> dict[Any, Any]:
        """Read the table as of a transaction, from a full snapshot and the deltas after it; it compares digests."""
        driver = self.driver
        reader = StableMemoryReader(driver.broker, lambda: False)
        state = past.at(reader, inside.place(driver), past.Point("n", n))
        rows = state.contents.tables.get(self.table.name, {})
        prefix = self.table.prefix or ""
        return {key: self.table.decode(key, data) for key, data in rows.items() if key.startswith(prefix)}

    def reread(self) -> None:
        """Read the table, as a reader does whose changes are not kept any more."""
        record = self.driver.commit_record()
        self.rows, self.after = self.committed(record.n), as_text({0: WatchedTo.of(record)})
        self.again()

    def _reader(self) -> Any:
        return Away(self)


class Away(StableMemoryReader):
    """A reader whose brokers may be away."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched.driver.broker, lambda: False)
        self._watched = watched

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        if self._watched.outages:
            self._watched.outages -= 1
            raise KafkaTrouble("no broker answers")
        return super().ends(topic, partitions)


def act(step: str, driver: Driver, watched: Watched) -> None:
    if step in ("look", "full", "stop"):  # a full snapshot, which a stop takes, may delete what was not read
        watched.look()
    match step:
        case "full":
            driver.take_full()
        case "outage":
            watched.outages = 2
        case "crash" | "stop":
            (driver.crash if step == "crash" else driver.stop)()
            driver.restore()
        case "command":
            driver.command("fee", via_control_topic=True)
        case "wait":
            driver.advance(1.0)
        case "abort":
            driver.rebalance()
        case "fail":
            driver.broker.fail("commit", TransactionAborted("no"))


@given(steps=STEPS, interval=st.sampled_from(["commit", 0.5]))
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_changes_are_the_table_after_each_transaction_and_a_watch_continues_anywhere(
    steps: Sequence[Any], interval: Interval
) -> None:
    driver = Driver(Commanded, delta_interval=interval)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    watched = Watched(driver, after="0:0:" + driver.commit_record().lineage[:8])
    for step in steps:
        match step:
            case Op():
                driver.feed(step, key=step.account)
            case list():
                driver.feed_all(step, key="all")
            case ("resume", most):
                watched.look(most)
                watched.again()
            case str():
                act(step, driver, watched)
    driver.commit()
    driver.advance(1.0)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    for _ in range(4):  # outages count as looks
        watched.look()
    assert watched.rows == dict(driver.table("balances")) or interval != "commit"
    ends = [(each.transaction, each.key) for each in watched.seen]
    assert len(ends) == len(set(ends)), "a change was repeated"
    assert [n for n, _ in ends] == sorted(n for n, _ in ends)


def fed(*names: str, handler: type[Handler[Any]] = Accounts, **more: Any) -> Driver:
    driver = Driver(handler, **more)
    for name in names:
        driver.feed(Op(name, 5), key=name)
        driver.commit()
    return driver


def keys(changes: Sequence[TableChange[Any]]) -> list[str]:
    return [each.key for each in changes]


def test_a_watch_begins_with_what_commits_from_now_on() -> None:
    driver = fed("ann", "bob")
    watched = Watched(driver)
    assert watched.look() == []
    driver.feed(Op("cyd", 5), key="cyd")
    assert watched.look() == []  # it is not committed yet
    driver.commit()
    (change,) = watched.look()
    record = driver.commit_record()
    assert (change.key, change.value, change.deleted, change.last) == ("cyd", Balance(5, 1), False, True)
    assert (change.partition, change.transaction, change.offsets) == (0, record.n, {"input": 3})
    assert (change.time, change.position) == (record.time, WatchedTo.of(record).text(0))
    driver.feed(Op("cyd", close=True), key="cyd")
    driver.commit()
    (change,) = watched.look()
    assert (change.key, change.value, change.deleted) == ("cyd", None, True)


def test_what_is_not_committed_is_not_seen() -> None:
    driver = fed("ann")
    watched = Watched(driver)
    looks: list[Sequence[TableChange[Any]]] = []

    def looked(call: Call) -> None:
        if call == "commit":  # the delta is written, and hidden until the commit
            looks.append(watched.look())

    driver.broker.on_call = looked
    driver.broker.fail("commit", TransactionAborted("no"))
    driver.feed_all([Op("bob", 1), Op("cyd", 1)], key="k")
    driver.commit()
    driver.broker.on_call = None
    assert looks == [[], []]
    assert sorted(keys(watched.look())) == ["bob", "cyd"]


def test_a_watch_continues_within_a_transaction() -> None:
    driver = fed("ann")
    watched = Watched(driver)
    watched.look()
    driver.feed_all([Op(name, 1) for name in NAMES], key="k")
    driver.commit()
    parts: list[str] = []
    for most in (1, 2, 1, 5):
        found = watched.look(most)
        parts += keys(found)
        assert [each.last for each in found] == [len(parts) == 5 and each is found[-1] for each in found]
        watched.again()
    assert sorted(parts) == sorted(NAMES)
    assert watched.look() == []


def test_a_prefix_chooses_changes_and_the_position_passes_the_others() -> None:
    driver = fed("DE-1")
    watched = Watched(driver, WatchedTable.typed("balances", str, Balance, "DE-"))
    watched.look()
    driver.feed_all([Op("FR-1", 1), Op("DE-2", 1), Op("DE-3", 1), Op("AT-1", 1)], key="k")
    driver.commit()
    found = list(islice(filter(None, watched.changes), 2))
    assert (keys(found), [each.last for each in found]) == (["DE-2", "DE-3"], [False, True])
    assert next(watched.changes) is None
    driver.feed(Op("FR-1", 1), key="k")
    driver.commit()
    assert next(watched.changes) is None
    assert watched.watcher.position == WatchedTo.of(driver.commit_record()).text(0)


def test_a_watch_with_a_prefix_continues_within_a_transaction() -> None:
    driver = fed("DE-0")
    watched = Watched(driver, WatchedTable.typed("balances", str, Balance, "DE-"))
    watched.look()
    driver.feed_all([Op(name, 1) for name in ("AT-1", "AT-2", "DE-1", "AT-3", "DE-2", "DE-3")], key="k")
    driver.commit()
    found = keys(watched.look(1))
    everything = Watched(driver, after=watched.after)
    everything.rows = everything.committed(driver.commit_record().n)
    for _ in range(4):
        watched.again()
        found += keys(watched.look(1))
    assert found == ["DE-1", "DE-2", "DE-3"]
    assert keys(everything.look()) == ["AT-3", "DE-2", "DE-3"], "a position does not depend on the prefix"


def lost(watched: Watched, cause: str) -> None:
    """The watch ends with this cause, also the next one from the same position, and after a new read it continues."""
    for _ in range(2):
        with pytest.raises(ChangesLost, match=cause):
            watched.look()
        watched.again()
    watched.reread()
    watched.look()
    driver = watched.driver
    driver.feed(Op("eve", 5), key="eve")
    driver.commit()
    assert keys(watched.look()) == ["eve"]


def test_a_watch_whose_next_changes_are_deleted_ends() -> None:
    driver = fed("ann", "bob")
    watched = Watched(driver, after=WatchedTo.of(driver.commit_record()).text(0))
    for _ in range(5):
        driver.feed(Op("cyd", 1), key="cyd")
        driver.commit()
        driver.take_full()
    assert driver.broker.log(driver.names.changelog, 0).start > 0
    lost(watched, "after transaction 2 are not all there: .*begins with transaction")


def test_a_watch_whose_log_is_deleted_while_it_reads_ends() -> None:
    driver = fed("ann", "bob")
    watched = Watched(driver)
    watched.look()
    for _ in range(5):
        driver.feed(Op("cyd", 1), key="cyd")
        driver.commit()
        driver.take_full()
    with pytest.raises(ChangesLost):
        watched.look()


def test_a_watch_ends_when_a_tool_replaces_the_state() -> None:
    driver = fed("ann", "bob")
    watched = Watched(driver)
    watched.look()
    driver.crash()
    Tool(driver).replace_state(double)
    driver.restore()
    lost(watched, "replaced the state: test 1, ann")


def test_a_position_of_another_state_ends_a_watch() -> None:
    driver = fed("ann", "bob")
    n = driver.commit_record().n
    for after in (f"0:{n}:01234567", f"0:{n}.0:01234567"):
        lost(Watched(driver, after=after), "is of another state")
    lost(Watched(driver, after=f"0:{n + 99}:01234567"), "its newest transaction is")


class Two:
    """A watch of two partitions; the second one gets the changelog of another driver, with its commit records."""

    def __init__(self, driver: Driver, after: str = "") -> None:
        self.driver, position = driver, parse(after)
        self.watcher = Watcher(driver.names, BALANCES, [0, 1], position, self._reader, lambda _: False)
        self.changes = self.watcher.changes()

    def look(self) -> list[Any]:
        return [(each.partition, each.key) for each in iter(lambda: next(self.changes), None)]

    def begin_the_second(self, other: Driver) -> None:
        log = other.broker.log(other.names.changelog, 0)
        for message in [message for batch in log.read(log.start, log.stable, 1000) for message in batch]:
            self.driver.broker.log(self.driver.names.changelog, 1).append(message.value() or b"")

    def _reader(self) -> Any:
        return StableMemoryReader(self.driver.broker, lambda: False)


def test_a_partition_without_a_commit_does_not_end_the_watch_of_the_others() -> None:
    driver = fed("ann")
    watched, position = Two(driver), f"{WatchedTo.of(driver.commit_record()).text(0)},1:0:new"
    assert (watched.look(), watched.watcher.position) == ([], position)
    driver.feed(Op("bob", 5), key="bob")
    driver.commit()
    assert watched.look() == [(0, "bob")]
    watched.begin_the_second(fed("cyd", "dee"))
    assert watched.look() == [(1, "cyd"), (1, "dee")]
    assert "new" not in watched.watcher.position
    assert Two(driver, position).look() == [(0, "bob"), (1, "cyd"), (1, "dee")], "the position is before them"


def test_a_partition_whose_first_transactions_are_deleted_ends_a_watch_from_before_them() -> None:
    driver = fed("ann")
    position = f"{WatchedTo.of(driver.commit_record()).text(0)},1:0:new"
    other = fed("cyd")
    for _ in range(5):
        other.feed(Op("cyd", 1), key="cyd")
        other.commit()
        other.take_full()
    watched, log = Two(driver, position), driver.broker.log(driver.names.changelog, 1)
    log.append(b"deleted")
    log.start = 1
    watched.begin_the_second(other)
    with pytest.raises(ChangesLost, match=r"\[1\]: the changes after transaction 0 are not all there"):
        watched.look()


def test_a_position_has_all_partitions_or_none() -> None:
    """The second partition does not begin in the first look; a position without it could not be continued."""
    driver = fed("ann")

    class Half(StableMemoryReader):
        def bounds(self, topic: str, partition: int) -> tuple[int, int]:
            if partition == 1:
                raise KafkaTrouble("no broker answers")
            return super().bounds(topic, partition)

    found = Watcher(driver.names, BALANCES, [0, 1], {}, lambda: Half(driver.broker, lambda: False), lambda _: False)
    changes = found.changes()
    assert (next(changes), found.position) == (None, "")
    changes.close()


def test_a_service_that_never_committed_has_nothing_to_watch() -> None:
    driver = fed("ann")
    nothing = Names("nothing", "input", "")
    reader = StableMemoryReader(driver.broker, lambda: False)
    watcher = Watcher(nothing, BALANCES, [0], {}, lambda: reader, lambda _: False)
    with pytest.raises(NoCommitRecord, match="start the service, and watch again"):
        next(watcher.changes())
    begun = WatchedTo.of(driver.commit_record())
    watcher = Watcher(nothing, BALANCES, [0], {0: begun}, lambda: reader, lambda _: False)
    with pytest.raises(ChangesLost, match="it has no transaction, so the topic was created again"):
        next(watcher.changes())


def test_a_table_that_only_the_new_code_has_is_watched_before_its_first_commit() -> None:
    driver = fed("ann")
    table = WatchedTable.typed("of_the_next_release", str, Balance, None)
    with pytest.raises(UsageError, match="there is no table 'of_the_next_release'"):
        Watched(driver, table).look()
    watched = Watched(driver, table._replace(declared=True))
    assert watched.look() == []
    assert watched.watcher.position == WatchedTo.of(driver.commit_record()).text(0)


def test_a_damaged_chain_ends_a_watch() -> None:
    driver = fed("ann")
    watched = Watched(driver)
    watched.look()
    log = driver.broker.log(driver.names.changelog, 0)
    log.append(records.pack(Header(99, "foreign", driver.commit_record().lineage, 0)))
    log.append(records.pack(Header(100, "foreign", driver.commit_record().lineage, 0)))
    with pytest.raises((TornTransaction, ChangesLost)):
        watched.look()


@pytest.mark.parametrize(
    "entry",
    [7, ["balances"], ["balances", ["ann"], [b"1", b"2"]], ["balances", ["ann"], ["text"]], [1, ["ann"], [b"1"]]],
    ids=["no entry", "no values", "more values than keys", "values that are text", "no name"],
)
def test_a_damaged_entry_ends_a_watch_with_its_place(entry: object) -> None:
    driver = fed("ann")
    watched = Watched(driver)
    watched.look()
    last = driver.commit_record()
    n, log = last.n + 1, driver.broker.log(driver.names.changelog, 0)
    log.append(records.pack(Header(n, "foreign", last.lineage, last.reach)))
    log.append(records.pack(records.Part(n, "foreign", 0, [msgspec.Raw(msgspec.msgpack.encode(entry))])))
    closing = msgspec.structs.replace(last, n=n, attempt="foreign", last_delta=n, parts=1)
    log.append(records.pack(closing))
    with pytest.raises(DamagedIncrement, match=r"changelog\[0\]@\d+"):
        watched.look()


def test_wrong_types_tables_and_positions_are_named() -> None:
    driver = fed("ann")
    with pytest.raises(UsageError, match="no table 'balance'; there are balances"):
        Watched(driver, WatchedTable.typed("balance", str, Balance, None)).look()
    watched = Watched(driver, WatchedTable.typed("balances", int, Balance, None))
    watched.look()
    driver.feed(Op("bob", 1), key="bob")
    driver.commit()
    with pytest.raises(UnreadableValue, match="its keys are of another type"):
        watched.look()
    for text in ("0", "0:1", "a:1:b", "0:1.x:ab", "0:1:abcdefghi", "0:1:", "0:1:a/b", "-1:1:a", "0:" + "1" * 30 + ":a"):
        with pytest.raises(UsageError, match="is no position of a watch"):
            parse(text)
    position = {0: WatchedTo(17, "1f3a0c2e"), 3: WatchedTo(5, "1f3a0c2e", 2)}
    assert parse(as_text(position)) == position
    assert as_text(position) == "0:17:1f3a0c2e,3:5.2:1f3a0c2e"


def test_an_outage_is_waited_out() -> None:
    driver = fed("ann")
    watched = Watched(driver)
    watched.outages = 2
    assert [next(watched.changes) for _ in range(3)] == [None] * 3
    for name in ("bob", "cyd"):
        driver.feed(Op(name, 5), key=name)
        driver.commit()
        assert keys(watched.look()) == [name]
        watched.outages = 1
        assert next(watched.changes) is None


class Versions(Handler[Op]):
    """A table whose values have a version."""

    balances = Table(key=str, value=tuple[int, str], version=2, upcasters={1: lambda total: (total, "")})

    def on_record(self, record: Record[Op]) -> None:
        self.balances[record.value.account] = record.value.amount, "new"


def test_values_with_a_version_are_read() -> None:
    driver = Driver(Versions)
    driver.feed(msgspec.json.encode(Op("ann", 1)), key="ann")
    driver.commit()
    watched = Watched(driver, WatchedTable.typed("balances", str, tuple[int, str], None))
    watched.look()
    driver.feed(msgspec.json.encode(Op("bob", 3)), key="bob")
    driver.commit()
    assert [each.value for each in watched.look()] == [(3, "new")]


def test_a_prefix_that_the_keys_cannot_have_ends_at_the_call() -> None:
    for kind in (int, UUID):
        with pytest.raises(UsageError, match=r"prefix='a' is for keys of str and bytes, and `key` is"):
            WatchedTable.typed("balances", kind, int, "a")
    with pytest.raises(UsageError, match=r"is no text, and `key` is str"):
        WatchedTable.typed("balances", str, int, b"\xff")
    assert WatchedTable.typed("balances", bytes, int, "a").prefix == b"a"
    assert WatchedTable.typed("balances", str, int, b"a").prefix == "a"


def test_what_a_watch_cannot_read_is_named_with_its_place() -> None:
    driver = Driver(Accounts, batch=1)
    driver.feed(Op("ann", 1, False))
    driver.commit()
    wrong, keys = Watched(driver), Watched(driver)
    wrong.table = WatchedTable.typed("balances", str, int, None)
    keys.table = WatchedTable.typed("balances", Any, Balance, b"a")
    for each in (wrong, keys):
        each.again()
        each.look()
    before = wrong.after
    driver.feed(Op("bob", 1, False))
    driver.commit()
    with pytest.raises(UnreadableValue, match=f"table 'balances', partition 0.* {before}: the value of the key 'bob'"):
        wrong.look()
    assert wrong.watcher.position == before, "a watch with the right type continues there"
    with pytest.raises(UnreadableValue, match=r"the key 'bob' has no prefix such as b'a'"):
        keys.look()
    found = next(Watched(driver, after=before).changes)
    assert found is not None
    assert found.key == "bob"
