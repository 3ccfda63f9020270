"""One contender of `compact`: `python -m benchmarks.compact_run read|python|compact JOB.json`; prints JSON.

`started` is how many seconds passed before the work began: interpreter, imports, JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.keys_app import Stored
from benchmarks.statehold_app import settings_of
from statehold import Table
from statehold.bound.table import bind
from statehold.common.names import Names
from statehold.config import Settings
from statehold.dev.jars import JarBundle, cached
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.reader import KafkaReader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.restore import restore
from statehold.state.state import State

#: Spark's Kafka source, and what it needs in addition to PySpark
CONNECTOR = JarBundle(
    "spark-kafka",
    "4.0.0",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    "10 MB",
)


def main() -> None:
    """Run it."""
    name, file = sys.argv[1:]
    job: dict[str, Any] = json.loads(Path(file).read_text())
    settings = settings_of({**job, "settings": job.get("of_compaction", {})})
    names = Names(job["group"], job["input"], "")
    said = {"read": _read, "python": _fold, "compact": _compact}[name](settings, names, job)
    sys.stdout.write(json.dumps(said) + "\n")


def _read(settings: Settings, names: Names, job: dict[str, Any]) -> dict[str, Any]:
    """Spark reads every committed record with its own Kafka source, to the last byte, and keeps nothing."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    admin = Admin(settings, names.group)
    topic, partitions = names.changelog, range(_facts(admin, names)[names.changelog].partitions)
    bounds = {str(p): admin.bounds(topic, p, 60, lambda: False) for p in partitions}
    jars = cached(CONNECTOR, lambda _: None).glob("*.jar")
    session = SparkSession.builder.appName("reading").master("local[2]").config("spark.jars", ",".join(map(str, jars)))
    options = {"spark.driver.memory": job["memory"], "spark.ui.enabled": "false", "spark.log.level": "OFF"}
    spark = session.config(map=options).getOrCreate()
    started = _since_start()
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
    reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic)
    reader = reader.option("kafka.max.partition.fetch.bytes", "8000000")
    for at, option in enumerate(("startingOffsets", "endingOffsets")):
        reader = reader.option(option, json.dumps({topic: {p: each[at] for p, each in bounds.items()}}))
    rows = reader.load()
    found = rows.agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes")).collect()[0]
    spark.stop()
    return {"started": started, "records": found["records"], "bytes": found["bytes"]}


def _fold(settings: Settings, names: Names, _job: dict[str, Any]) -> dict[str, Any]:
    """One process brings back every partition's state, one after the other, and checks its digest."""
    admin = Admin(settings, names.group)
    facts = _facts(admin, names)
    started, keys = _since_start(), 0
    for partition in range(facts[names.changelog].partitions):
        place = Place(names, partition, facts[names.input].partitions, {name: f.id for name, f in facts.items()})
        reader = KafkaReader(settings, names.group, admin, lambda: False, time.monotonic)
        restored = restore(reader, place, _new_state, lambda _event, _fields: None, time.monotonic)
        reader.close()
        keys += restored.state.keys
    return {"started": started, "keys": keys}


def _new_state() -> State:
    table: Table[str, Stored] = Table(key=str, value=Stored)
    table.__set_name__(object, "stored")
    return State([bind(table)])


def _compact(settings: Settings, names: Names, job: dict[str, Any]) -> dict[str, Any]:
    """What `statehold compact` does, in this process."""
    from statehold.admin.compaction import Compaction
    from statehold.snapshot.spark.io.session import SparkOptions, spark_session

    options = SparkOptions(memory=job["memory"], brief=True)
    with spark_session("compact", options) as spark:
        started = _since_start()
        outcomes = Compaction(settings, names).run(spark)
    names_of = "partition", "proven", "keys", "bytes_written", "shared", "status"
    rows = [{name: getattr(each, name) for name in names_of} for each in outcomes]
    return {"started": started, "outcomes": rows}


def _facts(admin: Admin, names: Names) -> dict[str, Any]:
    return {
        name: facts for name, facts in admin.describe([names.input, names.changelog, names.snapshot]).items() if facts
    }


def _since_start() -> float:
    """Seconds since this process began, by the kernel's clock."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
