"""`statehold snapshot export` on a real broker with a real Spark, against a recomputation of the input."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
from tests.golden import bank_v1, bank_v2
from tests.support.apps.tally import Event, Tally, Total
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import Row, digest_of, read_all

from statehold import Table
from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import TopicView, topic_view
from statehold.api.values import serde
from statehold.bound.table import bind
from statehold.errors import ToolRefused, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def recomputed(rows: list[Row], position: int) -> dict[str, Total]:
    """The state before `position`, from the first record of all."""
    totals: dict[str, Total] = {}
    for row in rows:
        if row.offset < position:
            old, event = totals.get(row.key, Total()), msgspec.json.decode(row.value, type=Event)
            totals[row.key] = Total(old.count + 1, old.sum + event.amount)
    return totals


@pytest.fixture
def view(staged: Stage) -> Iterator[TopicView]:
    with topic_view(staged.settings(), staged.names) as opened:
        yield opened


def read(directory: Path, form: str) -> dict[int, dict[str, Total]]:
    """What is in the files, without Spark."""
    import pyarrow.parquet as pq

    if form == "parquet":
        rows = [row for file in directory.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    else:
        rows = [json.loads(line) for file in directory.glob("*.json") for line in file.read_text().splitlines()]
    found: dict[int, dict[str, Total]] = {}
    for row in rows:
        assert sorted(row) == ["count", "key", "partition", "sum"]
        assert row["key"] not in found.setdefault(row["partition"], {})
        found[row["partition"]][row["key"]] = Total(row["count"], row["sum"])
    return found


def test_an_export_equals_a_recomputation_and_the_state_that_a_service_restores(
    spark: SparkSession, staged: Stage, view: TopicView, tmp_path: Path
) -> None:
    from statehold.snapshot.spark.export.export import Form, export, plan
    from statehold.snapshot.spark.export.point_in_time import PointInTime, time_of

    for _ in range(2):
        with Local(staged, STATEHOLD_COMMIT__MAX_RECORDS="50"):
            staged.feed(1000, keys=300)
            staged.await_all()
    rows = read_all(staged.servers, staged.names.input)
    middle = {p: len(each) // 2 - 7 for p, each in rows.items()}
    cases: list[tuple[str, dict[int, int], Form]] = [("latest", {}, "jsonl"), ("middle", middle, "parquet")]
    for name, positions, form in cases:
        done = export(
            spark,
            ReaderFactory(staged.settings(), staged.names),
            view.reader,
            view.places(None),
            {p: PointInTime("position", asked, str(asked)) for p, asked in positions.items()},
            [bind(Tally.totals)],
            tmp_path / name,
            form,
        )
        wanted = {each.partition: recomputed(rows[each.partition], each.position) for each in done.partitions}
        assert read(tmp_path / name / "totals", form) == wanted
        for each in done.partitions:
            assert each.digest == digest_of(wanted[each.partition])
            asked = positions.get(each.partition, len(rows[each.partition]))
            assert asked - 50 < each.position <= asked, "rounded down to a mark with a delta"
        assert done.rows == {"totals": sum(map(len, wanted.values()))}
        assert msgspec.json.decode((tmp_path / name / "export.json").read_bytes())["partitions"]
    restored = {p: dict(staged.snapshots.restored(p).state.tables["totals"].items()) for p in rows}
    assert read(tmp_path / "latest" / "totals", "jsonl") == restored
    reader_of = ReaderFactory(staged.settings(), staged.names)
    export(spark, reader_of, view.reader, view.places(None), {}, [], tmp_path / "untyped", "jsonl")
    lines = [
        json.loads(line) for file in tmp_path.glob("untyped/totals/*.json") for line in file.read_text().splitlines()
    ]
    untyped = {
        p: {json.loads(line["key"]): json.loads(line["value"]) for line in lines if line["partition"] == p}
        for p in restored
    }
    assert untyped == {p: {k: msgspec.to_builtins(total) for k, total in each.items()} for p, each in restored.items()}
    for planned in plan(view.reader, view.places(None), {p: PointInTime("position", middle[p]) for p in rows}):
        taken_in, topic = time_of(view.reader, planned.place, planned.goal), staged.names.changelog
        by_time = [
            plan(view.reader, [planned.place], {planned.partition: PointInTime("increment", offset)})[
                0
            ].goal.commit_record.n
            for offset in (view.reader.offset_at(topic, planned.partition, taken_in + more) for more in (0, 1))
        ]
        assert by_time[0] < planned.goal.commit_record.n <= by_time[1], "a time takes the marks that Kafka had by then"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left next to the exports"
    with pytest.raises(UsageError, match="is not empty"):
        export(spark, reader_of, view.reader, view.places(None), {}, [bind(Tally.totals)], tmp_path / "latest")


def test_an_error_of_a_deleted_position_names_those_that_exist(
    spark: SparkSession, staged: Stage, view: TopicView, tmp_path: Path
) -> None:
    from statehold.snapshot.spark.export.export import export
    from statehold.snapshot.spark.export.point_in_time import PointInTime

    for _ in range(3):
        with Local(staged, STATEHOLD_SNAPSHOT__KEEP="1"):
            staged.feed(300)
            staged.await_all()
    assert view.reader.bounds(staged.names.changelog, 0)[0] > 0, "the test is about a truncated head"
    ends = {p: len(rows) for p, rows in read_all(staged.servers, staged.names.input).items()}
    early, places = PointInTime("position", 3, "3"), view.places(None)
    with pytest.raises(ToolRefused) as rejected:
        export(
            spark,
            ReaderFactory(staged.settings(), staged.names),
            view.reader,
            places,
            {0: early, 1: early},
            [bind(Tally.totals)],
            tmp_path / "early",
        )
    for p, end in ends.items():
        reported = rf"\[{p}\]: the state is not stored any more. Stored are positions \d+ to {end} "
        assert re.search(reported, str(rejected.value))
    assert not (tmp_path / "early").exists()


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Level(msgspec.Struct):
    price: Decimal
    open: bool | None = None


class Tree(msgspec.Struct):
    name: str
    below: list[Tree] = []


class Everything(msgspec.Struct):
    key: int
    ratio: float
    side: Side
    at: datetime
    day: date
    took: timedelta
    who: uuid.UUID
    raw: bytes
    levels: list[Level]
    by_name: dict[str, Level]
    pair: tuple[int, str]
    some: int | None
    mixed: int | str
    lot: Literal[1, 2]
    tree: Tree


def test_each_type_has_its_column() -> None:
    import pyarrow as pa

    from statehold.snapshot.spark.export.columns import Columns

    table: Table[Any, Any] = Table(key=tuple[str, int], value=Everything, mutable=True)
    table.__set_name__(object, "everything")
    who, now = uuid.UUID(int=7), datetime(2026, 11, 21, 5, 6, 7, 123456, tzinfo=UTC)
    level = Level(Decimal("1.25"), open=True)
    value = Everything(
        *(
            1,
            0.5,
            Side.SELL,
            now,
            date(2026, 1, 2),
            timedelta(seconds=1.5),
            who,
            b"\x00",
            [level],
            {"a": Level(Decimal(3))},
        ),
        *((4, "four"), None, "text", 2, Tree("a", [Tree("b")])),
    )
    bound = bind(table)
    columns = Columns(bound)
    stored = [[3], [msgspec.msgpack.encode(("x", 9))], [bound.encode(value)]]
    batch = pa.record_batch([pa.array(stored[0], pa.int32()), *map(pa.array, stored[1:])], names=["p", "k", "v"])
    (row,) = [row for made in columns(iter([batch])) for row in made.to_pylist()]
    assert row == {
        "partition": 3,
        "key": {"_1": "x", "_2": 9},
        "value_key": 1,
        "ratio": 0.5,
        "side": "sell",
        "at": now,
        "day": date(2026, 1, 2),
        "took": 1.5,
        "who": str(who),
        "raw": b"\x00",
        "levels": [{"price": Decimal("1.25"), "open": True}],
        "by_name": [("a", {"price": Decimal(3), "open": None})],
        "pair": {"_1": 4, "_2": "four"},
        "some": None,
        "mixed": '"text"',
        "lot": 2,
        "tree": {"name": "a", "below": ['{"name":"b","below":[]}']},
    }
    plain = bind(Table(key=str, value=int))
    assert Columns(plain).schema.simpleString() == "struct<partition:int,key:string,value:bigint>"
    batch = pa.record_batch(
        [
            pa.array([0], pa.int32()),
            pa.array([msgspec.msgpack.encode("k")]),
            pa.array([msgspec.msgpack.encode(2**64 - 1)]),
        ],
        names=["p", "k", "v"],
    )
    with pytest.raises(UsageError, match="convert a value to its column"):
        list(Columns(plain)(iter([batch])))


def upcast(old: bank_v1.Account) -> bank_v1.Account:
    return bank_v1.Account(old.cents * 10, old.moves)


def test_what_travels_to_an_executor_reads_older_versions_and_serdes() -> None:
    import pyarrow as pa
    from pyspark import cloudpickle

    from statehold.snapshot.spark.export.columns import Columns

    def row(table: Table[Any, Any], stored: bytes) -> dict[str, Any]:
        columns = cloudpickle.loads(cloudpickle.dumps(Columns(bind(table))))  # type: ignore[no-untyped-call]
        data = [pa.array([0], pa.int32()), pa.array([msgspec.msgpack.encode("k")]), pa.array([stored])]
        made: dict[str, Any] = next(columns(iter([pa.record_batch(data, names=["p", "k", "v"])]))).to_pylist()[0]
        return made

    old = msgspec.msgpack.encode(bank_v1.Account(1234, 2))
    new = {"whole": 12, "hundredths": 34, "currency": "EUR", "entries": 2}
    assert row(bank_v2.Bank.accounts, old) == {"partition": 0, "key": "k"} | new
    json_table: Table[str, Any] = Table(key=str, value=serde.Json(bank_v1.Account))
    assert row(json_table, b'{"cents":5,"moves":1}') == {"partition": 0, "key": "k", "cents": 5, "moves": 1}
    versioned: Table[str, Any] = Table(key=str, value=serde.Json(bank_v1.Account), version=2, upcasters={1: upcast})
    assert row(versioned, b'{"cents":5,"moves":1}')["cents"] == 50
