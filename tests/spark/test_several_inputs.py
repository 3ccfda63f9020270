"""Compaction, export and migration by Spark of a service with two inputs, windows and a join."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.spark.compactions import NO_SNAPSHOTS
from tests.support import verify
from tests.support.apps.keyed import keyed
from tests.support.apps.tally import Event
from tests.support.stage import Stage
from tests.system.test_moving_inputs import Keyed, positions

from statehold import Handler
from statehold.admin.compaction import Compaction
from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import topic_view
from statehold.admin.state import migrate_spark
from statehold.admin.state.migrate import migrate
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.dev import Cluster
from statehold.snapshot.spark.export.export import export
from statehold.snapshot.spark.export.point_in_time import PointInTime
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.state_replacement import ReplacementReason

REASON = ReplacementReason(tool="test", who="ann", why="ticket 7")


@pytest.fixture
def pair(spark_broker: Cluster, tmp_path: Path) -> Iterator[Keyed]:
    """400 records of each input, of which only deltas and commit records are stored."""
    (tmp_path / "stage").mkdir()
    pair = Keyed(Stage(spark_broker.bootstrap_servers, tmp_path / "stage", 2))
    pair.create_topics()
    pair.feed(400)
    pair.run("first", **NO_SNAPSHOTS)
    yield pair
    pair.stage.close()


def exported(directory: Path, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in (directory / table).glob("*.json") for line in file.read_text().splitlines()]


def made(first: str, second: str, output: str) -> Handler[Event]:
    """Return a handler; Spark's executors import this function, and no class of a function."""
    return keyed(first, second, output)()


def changed(key: str, link: int) -> int | None:
    return None if key == "key-7" else link + 1


@pytest.mark.long
def test_spark_compacts_exports_and_migrates_the_state_of_two_inputs(
    spark: Session, pair: Keyed, tmp_path: Path
) -> None:
    settings, names = pair.stage.settings(), pair.names
    handler = partial(made, names.input, pair.second, pair.stage.output)
    ends = {p: sum(at for (_, of), at in positions(pair).items() if of == p) for p in range(2)}
    done = Compaction(settings, names, report=print).run(spark, ())
    assert [(each.status, each.proven, each.position) for each in done] == [("compacted", True, ends[p]) for p in ends]

    rows = [each for topic in names.inputs for each in verify.read_all(pair.stage.servers, topic).values()]
    wanted = Counter(row.key for each in rows for row in each)
    with topic_view(settings, names) as view:
        tables, places = list(tables_and_outputs(class_of(pair.service().handler))[0].values()), view.places(None)
        export(spark, ReaderFactory(settings, names), view.reader, places, {}, tables, tmp_path / "newest", "jsonl")
        middle = {p: end // 2 for p, end in ends.items()}
        points = {p: PointInTime("position", at, str(at)) for p, at in middle.items()}
        past = export(
            spark, ReaderFactory(settings, names), view.reader, places, points, tables, tmp_path / "middle", "jsonl"
        )
        states = [view.state(p, str(at)) for p, at in middle.items()]
    windows: Counter[str] = Counter()
    for row in exported(tmp_path / "newest", "minutes"):
        windows[row["key"]["_1"]] += row["value"]
    assert windows == wanted, "the window of a key counts its records of both inputs"
    joined = Counter(row["key"]["_1"] for row in exported(tmp_path / "newest", "pairs"))
    assert joined == wanted, "the join keeps each record"
    assert {row["key"]["_2"] for row in exported(tmp_path / "newest", "pairs")} == {"left", "right"}
    assert [each.position for each in past.partitions] == [each.position for each in states]
    assert all(middle[each.partition] - 150 < each.position <= middle[each.partition] for each in past.partitions)
    assert past.input == ",".join(names.inputs)
    assert past.rows["links"] == sum(len(each.contents.tables["links"]) for each in states)

    functions = {"links": changed}
    plain = migrate(settings, names, handler, functions, [], REASON, dry_run=True)
    edited = migrate_spark.migrate(spark, settings, names, handler, functions, [], REASON)
    assert [(each.position, each.counts, each.digest) for each in edited.partitions] == [
        (each.position, each.counts, each.digest) for each in plain.partitions
    ]
    assert [each.position for each in edited.partitions] == list(ends.values())
    before = positions(pair)
    pair.feed(100)
    pair.run("migrated")
    assert {at - before[topic, p] for (topic, p), at in positions(pair).items()} != {0}
    offsets = Counter(
        (each.topic, each.partition, each.offset) for chain in pair.key_links().values() for each in chain
    )
    assert len(offsets) == 1000
    assert set(offsets.values()) == {1}
