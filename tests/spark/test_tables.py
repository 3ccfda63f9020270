"""`spark.read.format("statehold")` with a real Spark on a real broker, against a recomputation of the input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.apps.tally import Event, Total
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import digest_of, read_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

Load = Callable[..., "DataFrame"]


def service_of(stage: Stage) -> str:
    return f"tests.support.apps.named:{stage.names.service}/{stage.names.input}/{stage.output}"


@pytest.fixture
def load(spark: SparkSession, staged: Stage) -> Load:
    """Load a table of the stage's service with these options."""
    from statehold.spark import StateholdSource

    spark.dataSource.register(StateholdSource)

    def made(schema: str = "", **options: Any) -> DataFrame:
        given = {"service": service_of(staged), "kafka.bootstrap_servers": staged.servers, **options}
        reader = spark.read.format("statehold").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    return made


def folded(stage: Stage, positions: dict[int, int] | None = None) -> dict[int, dict[str, Total]]:
    """The totals of each partition, of the records before a position."""
    found: dict[int, dict[str, Total]] = {}
    for partition, rows in read_all(stage.servers, stage.names.input).items():
        totals = found.setdefault(partition, {})
        for row in rows:
            if positions is None or row.offset < positions[partition]:
                old, event = totals.get(row.key, Total()), msgspec.json.decode(row.value, type=Event)
                totals[row.key] = Total(old.count + 1, old.sum + event.amount)
    return found


def collected(frame: DataFrame) -> dict[int, dict[str, Total]]:
    found: dict[int, dict[str, Total]] = {}
    for row in frame.collect():
        assert row["key"] not in found.setdefault(row["partition"], {}), "a key has one row"
        found[row["partition"]][row["key"]] = Total(row["count"], row["sum"])
    return found


def fed(stage: Stage, count: int = 400, keys: int = 120) -> None:
    with Local(stage, STATEHOLD_COMMIT__MAX_RECORDS="50"):
        stage.feed(count, keys=keys)
        stage.await_all()


def test_a_table_at_a_point_equals_a_recomputation_of_the_input(load: Load, staged: Stage) -> None:
    fed(staged)
    between = datetime.now(UTC)
    middle = {p: len(rows) for p, rows in read_all(staged.servers, staged.names.input).items()}
    fed(staged)

    frame = load(table="totals")

    assert frame.schema.simpleString() == "struct<partition:int,key:string,count:bigint,sum:bigint>"
    assert frame.rdd.getNumPartitions() == staged.partitions
    assert collected(frame) == folded(staged)
    then = ",".join(f"{p}={offset}" for p, offset in middle.items())
    for at in (then, between.isoformat()):
        assert collected(load(table="totals", at=at)) == folded(staged, middle)
    points = {row["partition"]: row for row in load(mode="points", at=then).collect()}
    assert {p: row["position"] for p, row in points.items()} == middle
    assert {p: row["digest"] for p, row in points.items()} == {
        p: digest_of(totals) for p, totals in folded(staged, middle).items()
    }
    some = load("key string, sum bigint", table="totals", partitions="1")
    assert {row["key"]: row["sum"] for row in some.collect()} == {k: t.sum for k, t in folded(staged)[1].items()}
    key = min(folded(staged)[0])
    assert [row["sum"] for row in frame.where(frame.key == key).collect()] == [folded(staged)[0][key].sum]


def test_changes_commits_and_outputs_agree(load: Load, staged: Stage) -> None:
    for _ in range(2):
        fed(staged, 200, 40)
    changes = load(mode="changes", table="totals")
    commits = load(mode="commits")
    outputs = load(mode="outputs")

    last = changes.groupBy("partition", "key").agg({"transaction": "max"})
    newest = changes.join(
        last.withColumnRenamed("max(transaction)", "transaction"), ["partition", "key", "transaction"]
    )
    found: dict[int, dict[str, Total]] = {}
    for row in newest.collect():
        found.setdefault(row["partition"], {})[row["key"]] = Total(row["after"]["count"], row["after"]["sum"])
    assert found == folded(staged)
    sent = outputs.groupBy("from_partition", "transaction").count()
    counted = {(r["from_partition"], r["transaction"]): r["count"] for r in sent.collect()}
    recorded = {(r["partition"], r["transaction"]): r["outputs"] for r in commits.collect() if r["outputs"]}
    assert counted == recorded
    assert sum(counted.values()) == 400
    joined = changes.join(commits, ["partition", "transaction"]).where(changes.time == commits.time)
    assert joined.count() == changes.count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "total"}, "there is no table 'total' in .*; there are totals"),
        ({"table": "totals", "at": "999999"}, "999999 is beyond the end: the last commit record has position"),
        ({"table": "totals", "at": "noon"}, "option at='noon': write latest, an offset such as 1200"),
        ({"table": "totals", "partitions": "7"}, "has partitions 0 to 1, not 7"),
        ({"table": "totals", "mode": "dead_letters"}, "mode=dead_letters has no option table"),
        ({"mode": "dead_letters"}, "list dead letters: the topic does not exist"),
        ({"table": "totals", "service": "tests.support.apps.tally:tally"}, "tally is a function, not a Service"),
        ({"tabel": "totals"}, "there is no option 'tabel'; there are service"),
    ],
)
def test_wrong_options_are_errors_at_load(load: Load, options: dict[str, str], text: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=text):
        load(**options)


def test_filters_and_views_have_the_rows_of_the_whole_table(spark: SparkSession, load: Load, staged: Stage) -> None:
    import pyspark

    from statehold.spark import views

    fed(staged)
    everything = folded(staged)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(table="totals", pushdown="true")
    keys = sorted({key for totals in everything.values() for key in totals})
    low, high = keys[len(keys) // 4], keys[len(keys) // 2]
    one = frame.where("partition = 1")
    some = frame.where((frame.key >= low) & (frame.key < high))
    named = frame.where(frame.key.isin(low, high, "no such key"))
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1):
        assert one.rdd.getNumPartitions() == 1
    assert collected(one) == {1: everything[1]}
    within = {p: {k: t for k, t in totals.items() if low <= k < high} for p, totals in everything.items()}
    assert collected(some) == {p: totals for p, totals in within.items() if totals}
    assert {row["key"] for row in named.collect()} == {low, high}
    unproven = load(table="totals", pushdown="true", verify="false")
    assert collected(unproven.where(unproven.key.isin(low, high))) == collected(named)

    service = {"kafka.bootstrap_servers": staged.servers}
    made = views(spark, service_of(staged), prefix="v_", **service)

    assert made[:4] == ["v_statehold_points", "v_statehold_commits", "v_totals", "v_totals_changes"]
    fed(staged, 50)  # the views stay where they are
    query = """
        SELECT t.partition, t.key, t.count, t.sum, max_by(c.after.sum, c.transaction) newest, count(*) changes
        FROM v_totals t JOIN v_totals_changes c ON t.partition = c.partition AND t.key = c.key
        GROUP BY ALL
    """
    found = spark.sql(query).collect()
    assert all(row["sum"] == row["newest"] for row in found)
    totals = {p: {r["key"]: Total(r["count"], r["sum"]) for r in found if r["partition"] == p} for p in everything}
    assert totals == everything
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    for view in made:
        spark.catalog.dropTempView(view)
