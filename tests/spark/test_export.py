"""`holdfast snapshot export` on a real broker with a real Spark, against a recomputation of the input."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
from tests.system.apps.tally import Event, Tally, Total
from tests.system.local import Local
from tests.system.stage import Stage
from tests.system.verify import Row, digest_of, read_all

from holdfast import Table
from holdfast.errors import UsageError
from holdfast.ops.looking import Looking, looking

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
def view(staged: Stage) -> Iterator[Looking]:
    with looking(staged.settings(), staged.names) as opened:
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
    spark: SparkSession, staged: Stage, view: Looking, tmp_path: Path
) -> None:
    from holdfast.snapshot.spark.export import Form, export

    for _ in range(2):
        with Local(staged, HOLDFAST_COMMIT__MAX_RECORDS="50"):
            staged.feed(1000, keys=300)
            staged.await_all()
    rows = read_all(staged.servers, staged.names.input)
    middle = {p: len(each) // 2 - 7 for p, each in rows.items()}
    cases: list[tuple[str, dict[int, int], Form]] = [("latest", {}, "jsonl"), ("middle", middle, "parquet")]
    for name, positions, form in cases:
        done = export(
            spark,
            staged.settings(),
            view.reader,
            view.places(None),
            positions,
            [Tally.totals],
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
    with pytest.raises(UsageError, match="is not empty"):
        export(spark, staged.settings(), view.reader, view.places(None), {}, [Tally.totals], tmp_path / "latest")


def test_a_position_that_is_not_kept_is_told_with_those_that_are(
    spark: SparkSession, staged: Stage, view: Looking, tmp_path: Path
) -> None:
    from holdfast.snapshot.spark.export import export

    for _ in range(3):
        with Local(staged, HOLDFAST_SNAPSHOT__KEEP="1"):
            staged.feed(300)
            staged.await_all()
    place = view.place(0)
    assert view.reader.bounds(staged.names.increment, 0)[0] > 0, "the test is about a truncated head"
    end = len(read_all(staged.servers, staged.names.input)[0])
    with pytest.raises(UsageError, match=rf"\[0\]: 3 is not kept: the positions that have a state are \d+ to {end}"):
        export(spark, staged.settings(), view.reader, [place], {0: 3}, [Tally.totals], tmp_path / "early")
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

    from holdfast.snapshot.spark.columns import Columns

    table: Table[Any, Any] = Table(key=tuple[str, int], value=Everything)
    table.name = "everything"
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
    columns = Columns(table)
    stored = [[3], [msgspec.msgpack.encode(("x", 9))], [table._serde.encode(value)]]
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
    plain: Table[str, int] = Table(key=str, value=int)
    assert Columns(plain).schema.simpleString() == "struct<partition:int,key:string,value:bigint>"
    batch = pa.record_batch(
        [
            pa.array([0], pa.int32()),
            pa.array([msgspec.msgpack.encode("k")]),
            pa.array([msgspec.msgpack.encode(2**64 - 1)]),
        ],
        names=["p", "k", "v"],
    )
    with pytest.raises(UsageError, match="a value does not fit its column"):
        list(Columns(plain)(iter([batch])))
