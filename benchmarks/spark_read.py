"""The session of `spark`: `python -m benchmarks.spark_read JOB.json OUT`; writes seconds and rows of each reader.

The attribute `GROUP/INPUT/OUTPUT` is the service of `keys_app` by these names.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.compact import PARTITIONS
from benchmarks.keys import key_of, partition_of
from benchmarks.keys_app import handler_of
from benchmarks.statehold_app import settings_of
from statehold import Service
from statehold.admin.compaction import Compaction
from statehold.admin.executor_clients import ReaderFactory
from statehold.common.names import Names
from statehold.snapshot.spark.io.scan import ReaderOf, Stretch, forget_pandas, stretches_of
from statehold.snapshot.spark.io.session import SparkOptions, spark_session
from statehold.spark import StateholdSource
from statehold.spark.opening import NamedService
from statehold.spark.options import parse
from statehold.spark.relations import StateTable

#: the columns that Parquet has of the export; and those of them that are not the key
ALL, SOME = "key string, version bigint, text string", "version bigint, text string"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def __getattr__(name: str) -> Service:
    group, slash, rest = name.partition("/")
    source, _, output = rest.partition("/")
    if not slash:
        raise AttributeError(name)
    return Service(group, input=source, handler=handler_of(output, None))


class Session:
    """One warm session, and what each contender does in it."""

    def __init__(self, spark: SparkSession, job: dict[str, Any]) -> None:
        self._spark, self._job = spark, job
        self._service = f"benchmarks.spark_read:{job['group']}/{job['input']}/{job['output']}"
        self._options = {
            "service": self._service,
            "table": "stored",
            "kafka.bootstrap_servers": job["bootstrap"],
        }
        self.parquet, self.checkpoint = (f"{job['folder']}/{name}" for name in ("export", "checkpoint"))
        spark.dataSource.register(StateholdSource)

    def prepare(self) -> None:
        """Fold the state, write it as Parquet, and as the state of a streaming query."""
        job = self._job
        settings, names = settings_of({**job, "settings": {}}), Names(job["group"], job["input"])
        outcomes = Compaction(settings, names).run(self._spark)
        assert all(each.proven for each in outcomes), outcomes
        self._load().write.option("compression", "zstd").parquet(self.parquet)
        if "statestore" in job["only"]:
            self._query()

    def _query(self) -> None:
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        schema = "key string, version bigint, text string"
        stream = self._spark.readStream.schema(schema).parquet(self.parquet)
        held = stream.groupBy("key").agg(F.max("version").alias("version"), F.first("text").alias("text"))
        writing = held.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        writing.option("checkpointLocation", self.checkpoint).start().awaitTermination()

    def _load(self, columns: str = ALL, **options: str) -> DataFrame:
        return self._spark.read.format("statehold").schema(columns).options(**self._options, **options).load()

    def statehold(self) -> dict[str, Any]:
        return _aggregated(self._load())

    def unverified(self) -> dict[str, Any]:
        return _aggregated(self._load(verify="false"))

    def columns(self) -> dict[str, Any]:
        return _aggregated(self._load(SOME))

    def parquet_(self) -> dict[str, Any]:
        return _aggregated(self._spark.read.parquet(self.parquet))

    def parquet_columns(self) -> dict[str, Any]:
        return _aggregated(self._spark.read.parquet(self.parquet).drop("key"))

    def statestore(self) -> dict[str, Any]:
        found = self._spark.read.format("statestore").load(self.checkpoint)
        return _aggregated(found.selectExpr("key.key AS key", "value.max AS version", "value.first AS text"))

    def transfer(self) -> None:
        """Read the records that `statehold` reads, with its client, one task for each partition; drop them."""
        named = NamedService(parse(self._options))
        plans = [task.work.plan for task in StateTable(named).tasks]
        tasks = [[stretch for some in stretches_of(plan) for stretch in some] for plan in plans]
        reader_of: ReaderOf = ReaderFactory(named.settings, named.names)
        rdd = self._spark.sparkContext.parallelize(tasks, len(tasks))
        rdd.mapPartitions(lambda each: _dropped(reader_of, each)).sum()

    def key(self) -> None:
        """Read one key: of its partition, and pushed down where PySpark can (4.1 and later)."""
        name = key_of(4711 % self._job["keys"])
        options = {"partitions": str(partition_of(name, PARTITIONS))}
        if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1):
            self._spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            options["pushdown"] = "true"
        assert self._load(**options).where(F.col("key") == name).count() == 1


def _aggregated(rows: DataFrame) -> dict[str, Any]:
    """Read every column of `rows`, so that no reader does less than another."""
    length = F.sum(F.length("text"))
    wanted = [F.count("*").alias("rows"), F.sum("version").alias("versions"), length.alias("length"), F.max("text")]
    wanted += [F.max("key")] if "key" in rows.columns else []
    return dict(rows.agg(*wanted).collect()[0].asDict())


def _dropped(reader_of: ReaderOf, tasks: Iterable[list[Stretch]]) -> Iterator[int]:
    forget_pandas()
    with closing(reader_of()) as reader:
        for stretches in tasks:
            for each in stretches:
                for batch in reader.read(each.topic, each.scan.partition, each.start, each.end, 100):
                    yield sum(len(message.value() or b"") for message in batch)


def main() -> None:
    """Run it."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    with spark_session("bench", SparkOptions(memory=job["memory"])) as spark:
        session = Session(spark, job)
        session.prepare()
        calls: dict[str, Callable[[], Any]] = {
            name: getattr(session, "parquet_" if name == "parquet" else name) for name in job["only"]
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        rows: dict[str, Any] = {}
        for number in range(job["rounds"] + 1):
            for name, call in calls.items():
                began = time.perf_counter()
                found = call()
                if number:
                    seconds[name].append(time.perf_counter() - began)
                if found is not None:
                    rows[name] = found
    versions = f"PySpark {pyspark.__version__}, Python {platform.python_version()}"
    Path(sys.argv[2]).write_text(json.dumps({"seconds": seconds, "rows": rows, "versions": versions}))


if __name__ == "__main__":
    main()
