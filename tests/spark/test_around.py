"""What effects, timers, duplicates and dead letters remember goes through a compaction like every table."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from tests.golden import around
from tests.golden.generate import moves
from tests.support.desk import await_true, create_topics

from statehold import Output, Service, retry_later
from statehold.admin.compaction import Compaction
from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import topic_view
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.config.sections.connection import KafkaSettings
from statehold.config.sections.effects_timers_sinks import TimersSettings
from statehold.config.sections.processing import SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.snapshot.spark.export.export import export
from statehold.snapshot.spark.io.source import Session
from statehold.state.system_names import PREFIX, default_name

pytestmark = pytest.mark.long


def test_a_compaction_keeps_timers_effects_and_dead_letters(
    spark: Session, spark_broker: Cluster, tmp_path: Path
) -> None:
    run = uuid.uuid4().hex[:8]
    # With a retry topic, so that its position is in the marks.
    policies = {**around.Around.on_failure, TimeoutError: retry_later(3600, any_order=True)}
    kind = type("Around", (around.Around,), {"answers": Output(f"answers-{run}", value=str), "on_failure": policies})
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=spark_broker.bootstrap_servers),
        service=ServiceSettings(mode="development"),
        snapshot=SnapshotSettings(periodic_full=False, on_stop=False),
        timers=TimersSettings(idle=3600.0),  # its own clock is years after the records
    )

    def service() -> Service:
        return Service(f"around-{run}", input=f"moves-{run}", handler=kind, settings=settings)

    create_topics(service(), partitions=1)
    producer = Producer({"bootstrap.servers": spark_broker.bootstrap_servers})
    for number, move in enumerate(moves(400, seed=11)):
        at = 1_750_000_000_000 + 200 * number
        producer.produce(f"moves-{run}", msgspec.json.encode(move), move.account, timestamp=at)
    assert producer.flush(60) == 0
    before = tables_at(service(), 400)
    assert {default_name(name) for name, rows in before.items() if rows} >= {
        f"{PREFIX}timers",
        f"{PREFIX}clock",
        f"{PREFIX}parked",
        f"{PREFIX}expiry.lately",
    }

    (done,) = Compaction(settings, service().names, report=print).run(spark, ())
    assert (done.status, done.proven) == ("compacted", True), done
    assert done.full is not None
    assert tables_at(service(), 400) == before
    for name, tables in (("typed", list(tables_and_outputs(class_of(service().handler))[0].values())), ("untyped", [])):
        with topic_view(settings, service().names) as view:
            reader_of = ReaderFactory(settings, service().names)
            reported = export(spark, reader_of, view.reader, view.places(None), {}, tables, tmp_path / name, "jsonl")
        assert reported.rows == {each: len(rows) for each, rows in before.items() if each in reported.rows}
        assert reported.rows.keys() >= {"accounts", "lately"}


def tables_at(service: Service, position: int) -> dict[str, dict[Any, bytes]]:
    """What the service has stored once its only partition is live at `position`."""
    with service:
        await_true(lambda: [each["position"] for each in service.status()["partitions"]] == [position], "all handled")
        overview = service.overview
        assert overview is not None
        await_true(lambda: len(overview.committed()) == 1, "a state to read")
        (partition,) = overview.committed().values()
        stored, _ = partition.read(lambda tables: {name: dict(table.stored) for name, table in tables.items()})
        return stored
