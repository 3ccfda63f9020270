"""The changes of a stage's table, as a test compares them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.stage import Stage

from statehold.spark.opening import NamedService
from statehold.spark.options import parse
from statehold.spark.pushdown import Pushed
from statehold.spark.relations import ChangesTable

#: PySpark gives its planning processes ten seconds to start, which a busy machine may exceed
BUSY = "Timed out while waiting for the Python worker to connect back"


def stored_changes(stage: Stage, service: str) -> Counter[tuple[int, int, str]]:
    """Partition, transaction and key of every stored change, read without Spark."""
    options = {"service": service, "table": "totals", "mode": "changes", "kafka.bootstrap_servers": stage.servers}
    relation = ChangesTable(NamedService(parse(options)))
    return counted(
        row
        for task in relation.tasks
        for batch in relation.read(task, relation.schema, Pushed())
        for row in batch.to_pylist()
    )


def counted(rows: Any) -> Counter[tuple[int, int, str]]:
    return Counter((row["partition"], row["transaction"], row["key"]) for row in rows)
