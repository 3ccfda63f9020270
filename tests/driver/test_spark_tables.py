"""What `spark.read.format("statehold")` returns, without Spark: relations over topics in memory, against the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from tests.driver.test_past_states import fed
from tests.driver.test_state_replacement import Tool, double
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Interval, Op, fold

from statehold import Handler, Record, Table, dead_letter
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.errors import DigestMismatch, TableTypeChanged, ToolRefused, TornTransaction, UsageError
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Chunk, Part
from statehold.spark.opening import NamedService
from statehold.spark.options import SourceOptions, parse
from statehold.spark.pushdown import Pushed
from statehold.spark.records import CommitRecords, DeadLetterRecords
from statehold.spark.relations import ChangesTable, Points, ReadTask, Relation, StateTable
from statehold.state import digest
from statehold.testing import Driver
from statehold.testing.memory.clients import StableMemoryReader
from statehold.testing.memory.log import MemoryLog

MODES: list[Interval] = ["commit", 0.5]
NOTHING = Pushed()


class InMemory(NamedService):
    """The service of a driver; its topics have one partition."""

    def __init__(self, driver: Driver, handler: type[Any] | None = Accounts, /, **options: str) -> None:
        self.options: SourceOptions = parse({"name": "x", "input": "y", **options})
        self.service, self.names, self._driver, self._handler = None, driver.names, driver, handler
        self.backup = None

    @property
    def tables(self) -> Mapping[str, Any]:
        return tables_and_outputs(self._handler)[0] if self._handler else {}

    @contextmanager
    def view(self) -> Iterator[Any]:
        yield SimpleNamespace(
            reader=StableMemoryReader(self._driver.broker, lambda: False),
            facts_of=lambda topics: {topic: SimpleNamespace(partitions=1) for topic in topics},
            numbers=lambda wanted: [0],
        )

    topics = view

    def places(self, view: Any) -> list[Any]:
        place = inside.place(self._driver)
        types = table_types(self._handler) if self._handler else {}
        return [msgspec.structs.replace(place, types=types, schemas={})]

    def reader_factory(self) -> Any:
        return lambda: StableMemoryReader(self._driver.broker, lambda: False)


def rows(relation: Relation, pushed: Pushed = NOTHING, columns: str = "") -> list[dict[str, Any]]:
    """All rows of all tasks."""
    wanted = spark.StructType([field for field in relation.schema if not columns or field.name in columns.split()])
    return [
        row for task in relation.tasks for batch in relation.read(task, wanted, pushed) for row in batch.to_pylist()
    ]


def held(found: list[dict[str, Any]]) -> dict[str, Balance]:
    keys = [row["key"] for row in found]
    assert len(keys) == len(set(keys)), "a key has one row"
    return {row["key"]: Balance(row["total"], row["entries"], row["ballast"]) for row in found}


def state(driver: Driver, **options: str) -> StateTable:
    return StateTable(InMemory(driver, Accounts, table="balances", **options))


@pytest.mark.parametrize("interval", MODES)
def test_the_table_at_every_offset_is_the_fold_of_the_input_before_it(interval: Interval) -> None:
    driver, ops = fed(interval)
    seen = set()
    for asked in range(len(ops) + 1):
        try:
            found = state(driver, at=str(asked))
        except ToolRefused as error:
            assert "the state is not stored any more. Stored are positions" in str(error)  # noqa: PT017
            continue
        (point,) = rows(Points(InMemory(driver, mode="points", at=str(asked))))
        assert point["position"] <= asked
        assert held(rows(found)) == fold(ops[: point["position"]])[0], asked
        again = state(driver, at=f"changelog:0={point['changelog_offset']}")
        assert held(rows(again)) == held(rows(found)), "the offset of a point names the same transaction"
        seen.add(point["position"])
    assert len(seen) >= {"commit": 40}.get(str(interval), 10)


def test_a_dataframe_stays_at_the_transaction_that_it_was_loaded_at() -> None:
    driver, ops = fed("commit")
    before = state(driver)
    driver.feed(Op("late", 5))
    driver.commit()
    assert held(rows(before)) == fold(ops)[0]
    assert "late" in held(rows(state(driver)))


def test_no_row_leaves_before_the_digest_is_compared() -> None:
    driver, ops = fed("commit")
    found = state(driver)
    (task,) = found.tasks
    goal = task.work.plan.goal
    wrong = digest.to_bytes(digest.from_bytes(goal.commit_record.digest) + 1)
    other = goal._replace(commit_record=msgspec.structs.replace(goal.commit_record, digest=wrong))

    def damaged(of: StateTable) -> ReadTask:
        (own,) = of.tasks
        plan = msgspec.structs.replace(own.work.plan, goal=other)
        return msgspec.structs.replace(own, work=msgspec.structs.replace(own.work, plan=plan))

    with pytest.raises(DigestMismatch, match=r"the folded state's digest is .* No row was returned"):
        next(found.read(damaged(found), found.schema, NOTHING))
    unverified = state(driver, verify="false")
    batches = unverified.read(damaged(unverified), unverified.schema, NOTHING)
    assert held([row for batch in batches for row in batch.to_pylist()]) == fold(ops)[0]


@pytest.mark.parametrize("before", ["true", "false"])
@pytest.mark.parametrize("interval", MODES)
def test_changes_lead_from_the_oldest_stored_state_to_the_newest(interval: Interval, before: str) -> None:
    driver, ops = fed(interval)
    found = rows(ChangesTable(InMemory(driver, mode="changes", table="balances", before=before)))
    known: dict[str, Any] = {}
    assert found
    for row in sorted(found, key=lambda row: row["transaction"]):
        if before == "true":
            assert known.get(row["key"], row["before"]) == row["before"], (
                "the value before is that of the change before"
            )
            assert (
                row["kind"]
                == {(True, False): "insert", (False, False): "update", (False, True): "delete"}[
                    row["before"] is None, row["after"] is None
                ]
            )
        else:
            assert row["kind"] == ("delete" if row["after"] is None else "put")
        assert row["start"] < row["position"]
        known[row["key"]] = row["after"]
    (oldest,) = {min(row["start"] for row in found)}
    unchanged = {key: value for key, value in fold(ops[:oldest])[0].items() if key not in known}
    shown = {key: Balance(**value) for key, value in known.items() if value is not None}
    assert shown | unchanged == fold(ops)[0]


def test_changes_after_a_point_are_those_that_follow_its_transaction() -> None:
    driver, _ = fed("commit")
    everything = rows(ChangesTable(InMemory(driver, mode="changes", table="balances")))
    middle = sorted({row["position"] for row in everything})[15]
    later = sorted({row["position"] for row in everything})[25]
    found = rows(ChangesTable(InMemory(driver, mode="changes", table="balances", since=str(middle), at=str(later))))
    wanted = [row for row in everything if middle < row["position"] <= later]
    order = [(row["transaction"], row["key"]) for row in wanted]
    assert sorted((row["transaction"], row["key"]) for row in found) == sorted(order)
    by_place = {(row["transaction"], row["key"]): row for row in wanted}
    assert all(by_place[row["transaction"], row["key"]] == row for row in found)


def test_changes_are_compared_with_the_digest_of_every_commit_record() -> None:
    driver, _ = fed("commit")
    relation = ChangesTable(InMemory(driver, mode="changes", table="balances"))
    overwritten = next(row for row in rows(relation) if row["key"] == "k3" and row["kind"] == "update")
    log = driver.broker.log(driver.names.changelog, 0)
    for at, part in everything(log):
        if isinstance(part, Part) and part.n == overwritten["transaction"]:
            table, keys, values = msgspec.msgpack.decode(part.entries[0])
            values = [msgspec.msgpack.encode(Balance(4711, 1)) for _ in values]
            other = [msgspec.Raw(msgspec.msgpack.encode((table, keys, values)))]
            log.replace(at, records.pack(msgspec.structs.replace(part, entries=other)))
    assert held(rows(state(driver))), "later values of the key hide it from the digest of the state"
    with pytest.raises(DigestMismatch, match=f"up to transaction {overwritten['transaction']} give the digest"):
        rows(relation)


def everything(log: MemoryLog) -> list[tuple[int, records.Record]]:
    """The records of a log with their offsets."""
    return [(message.offset() or 0, records.unpack(message.value())) for message, _ in log.entries()]


def damage(log: MemoryLog, at: int) -> None:
    data = bytearray(next(message.value() or b"" for message, _ in log.entries(at)))
    data[-1] ^= 1
    log.replace(at, bytes(data))


def test_a_damaged_full_snapshot_is_replaced_by_an_older_one() -> None:
    driver, ops = fed("commit")
    found = state(driver)
    base = found.tasks[0].work.plan.base
    log = driver.broker.log(driver.names.snapshot, 0)

    chunks = [(at, chunk) for at, chunk in everything(log) if isinstance(chunk, Chunk)]
    for at, chunk in chunks:
        if chunk.full == base.manifest.full:
            damage(log, at)
    assert held(rows(found)) == fold(ops)[0]
    for at, chunk in chunks:
        if chunk.full != base.manifest.full:
            damage(log, at)
    beheaded = driver.broker.log(driver.names.changelog, 0)
    beheaded.truncate(base.manifest.increment)
    with pytest.raises(DigestMismatch, match=r"verify the folded state: full@\d+: .* no full snapshot .* No row"):
        rows(found)


def test_records_that_kafka_deleted_since_load_are_an_error() -> None:
    driver, _ = fed("commit")
    found = state(driver)
    changes = ChangesTable(InMemory(driver, mode="changes", table="balances"))
    driver.broker.log(driver.names.changelog, 0).truncate(found.tasks[0].work.plan.goal.offset)
    with pytest.raises(ToolRefused, match=r"deleted its records since load\(\) chose it. No row was"):
        rows(found)
    with pytest.raises(ToolRefused, match="Kafka has deleted their records"):
        rows(changes)


def test_a_stream_that_continues_does_not_need_its_begin() -> None:
    driver, _ = fed("commit")
    base = state(driver).tasks[0].work.plan.base
    driver.broker.log(driver.names.changelog, 0).truncate(base.manifest.increment)
    relation = ChangesTable(InMemory(driver, mode="changes", table="balances", since="0"))
    assert relation.schema.names[0] == "partition", "a stream asks only for the columns"
    with pytest.raises(ToolRefused, match="the state is not stored any more"):
        _ = relation.tasks
    with pytest.raises(UsageError, match="option since=60 is after option at=50"):
        ChangesTable(InMemory(driver, mode="changes", table="balances", since="60", at="50"))


class Other(msgspec.Struct, frozen=True):
    total: str = ""


class OtherCode(Handler[Op]):
    balances = Table(key=str, value=Other)


def test_types_that_changed_on_the_way_are_an_error_with_both() -> None:
    driver, _ = fed("commit")
    assert driver.commit_record().types, "the commit records name types"
    for mode in ("state", "changes"):
        with pytest.raises(TableTypeChanged, match=r"table 'balances' holds keys .*total: int .*str"):
            _open(InMemory(driver, OtherCode, mode=mode, table="balances"))


def _open(named: InMemory) -> Relation:
    return StateTable(named) if named.options.mode == "state" else ChangesTable(named)


def test_an_incomplete_transaction_is_an_error_and_no_row() -> None:
    driver, _ = fed("commit")
    relation = ChangesTable(InMemory(driver, mode="changes", table="balances", before="false"))
    (task,) = relation.tasks
    short = msgspec.structs.replace(task.work.plan, end=task.work.plan.end - 1)
    torn = msgspec.structs.replace(task, work=msgspec.structs.replace(task.work, plan=short))
    with pytest.raises(TornTransaction):
        for _ in relation.read(torn, relation.schema, NOTHING):
            pass


def test_a_table_that_is_not_is_an_error_with_those_that_are() -> None:
    driver, _ = fed("commit")
    with pytest.raises(UsageError, match=r"there is no table 'balance' in .*; there are balances"):
        StateTable(InMemory(driver, table="balance"))


def test_without_code_keys_and_values_are_json() -> None:
    driver, ops = fed("commit")
    found = rows(StateTable(InMemory(driver, None, table="balances")))
    assert {msgspec.json.decode(row["key"]) for row in found} == set(fold(ops)[0])
    assert {msgspec.json.decode(row["value"])["total"] for row in found} == {b.total for b in fold(ops)[0].values()}


def test_only_asked_columns_are_read() -> None:
    driver, ops = fed("commit")
    found = rows(state(driver), columns="key total")
    assert {row["key"]: row["total"] for row in found} == {key: b.total for key, b in fold(ops)[0].items()}
    assert set(found[0]) == {"key", "total"}


class Filter:
    """Has the shape of PySpark's filters, which PySpark 4.0 does not have."""

    def __init__(self, attribute: tuple[str, ...], value: Any) -> None:
        self.attribute, self.value = attribute, value


KINDS: dict[str, Any] = {
    "EqualTo": lambda key, value: key == value,
    "In": lambda key, value: key in value,
    "GreaterThan": lambda key, value: key > value,
    "GreaterThanOrEqual": lambda key, value: key >= value,
    "LessThan": lambda key, value: key < value,
    "LessThanOrEqual": lambda key, value: key <= value,
    "StringStartsWith": lambda key, value: True,
}
CLASSES = {name: type(name, (Filter,), {}) for name in KINDS}


@pytest.mark.parametrize("kind", [str, int])
def test_pushdown_keeps_exactly_what_the_filters_accept(kind: type[Any]) -> None:
    values: Any = (
        st.integers(-3, 3) if kind is int else st.sampled_from(["", "a", "b", "ba", "é", "\U0001f600", "\uffff"])
    )
    single = st.tuples(st.sampled_from([name for name in KINDS if name != "In"]), values)
    several = st.tuples(st.just("In"), st.lists(values, max_size=3).map(tuple))

    @settings(deadline=None)
    @given(st.lists(st.one_of(single, several), max_size=4), st.lists(values, unique=True))
    def check(given_: list[tuple[str, Any]], keys: list[Any]) -> None:
        pushed = Pushed(kind)
        pushed.take([CLASSES[name](("key",), value) for name, value in given_])
        numbers = pushed.chosen([msgspec.msgpack.encode(key) for key in keys])
        left = keys if numbers is None else [keys[i] for i in numbers]
        assert left == [key for key in keys if all(KINDS[name](key, value) for name, value in given_)]

    check()


def test_a_filter_of_another_column_or_type_leaves_nothing_out() -> None:
    pushed = Pushed(str)
    pushed.take(
        [CLASSES["EqualTo"](("total",), 1), CLASSES["EqualTo"](("key",), 1), CLASSES["In"](("key",), ("a", None))]
    )
    assert pushed.chosen([msgspec.msgpack.encode("a")]) is None
    pushed.take([CLASSES["LessThan"](("partition",), 2)])
    assert [p for p in range(4) if pushed.partition.holds(p)] == [0, 1]


def test_a_key_that_a_query_names_is_read_alone() -> None:
    driver, ops = fed("commit")
    pushed = Pushed(str)
    pushed.take([CLASSES["EqualTo"](("key",), "k3")])
    for verify in ("true", "false"):
        assert held(rows(state(driver, verify=verify), pushed)) == {"k3": fold(ops)[0]["k3"]}
    found = rows(ChangesTable(InMemory(driver, mode="changes", table="balances")), pushed)
    assert {row["key"] for row in found} == {"k3"}


@pytest.mark.parametrize("verify", ["true", "false"])
def test_keys_of_several_records_are_read_together(verify: str) -> None:
    driver, ops = fed("commit")
    expected = fold(ops)[0]
    for names in ([], ["k3", "no such key"], [*expected][:3], [*expected]):
        pushed = Pushed(str)
        pushed.take([CLASSES["In"](("key",), tuple(names))])
        found = held(rows(state(driver, verify=verify), pushed))
        assert found == {name: expected[name] for name in names if name in expected}


def test_a_stream_does_not_cross_a_replaced_state() -> None:
    driver, _ = fed("commit")
    relation = ChangesTable(InMemory(driver, mode="changes", table="balances", before="false"))
    (task,) = relation.tasks
    driver.crash()
    Tool(driver).replace_state(double)
    end = driver.broker.log(driver.names.changelog, 0).stable
    longer = msgspec.structs.replace(task.work, plan=msgspec.structs.replace(task.work.plan, end=end))
    with pytest.raises(ToolRefused, match=r"test 1 \(all totals doubled\) replaced the state"):
        for _ in relation.read(msgspec.structs.replace(task, work=longer), relation.schema, NOTHING):
            pass
    after = rows(ChangesTable(InMemory(driver, mode="changes", table="balances")))
    assert after == [], "the changes of the state before it are those of another state generation"


def test_commit_records_name_the_tool_that_replaced_a_state() -> None:
    driver, _ = fed("commit")
    driver.crash()
    replaced = Tool(driver).replace_state(double)
    found = rows(CommitRecords(InMemory(driver, mode="commits")))
    assert [row["transaction"] for row in found] == list(range(replaced.n + 1))
    assert found[-1] | {"tool": "test 1", "who": "ann", "why": "all totals doubled"} == found[-1]
    assert found[-1]["digest"] == digest.show(replaced.digest)
    assert {row["generation"] for row in found[:-1]} != {found[-1]["generation"]}
    assert [row["start"] for row in found[1:-1]] == [row["position"] for row in found[:-2]]


class Strict(Handler[Op]):
    on_failure: ClassVar = {ValueError: dead_letter()}
    sums = Table(key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        if record.value.amount < 0:
            raise ValueError(f"{record.value.amount} is negative")
        self.sums[record.value.account] = record.value.amount


def test_dead_letters_say_what_became_of_them() -> None:
    driver = Driver(Strict)
    for account, amount in (("ann", -1), ("bob", 2), ("eve", -3), ("eve", 4)):
        driver.feed(Op(account, amount), key=account)
    driver.commit()
    driver.release("ann", discard=True, why="ticket 9")
    driver.release("eve")  # its first record fails again
    driver.advance(2.0)  # an idle partition looks for commands once a second
    found = rows(DeadLetterRecords(InMemory(driver, Strict, mode="dead_letters")))
    assert [(row["offset"], row["error"], row["why"], row["resolution"], row["failed_again"]) for row in found] == [
        (0, "ValueError", "raised", "discarded", 0),
        (2, "ValueError", "raised", None, 1),
        (3, "ValueError", "followed", None, 0),
    ]
    assert (found[0]["resolved_why"], found[0]["text"], found[0]["key"]) == ("ticket 9", "-1 is negative", b"ann")
