"""Reads full snapshots from a directory or object store, as a DataFrame with Kafka's columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statehold.config.settings import Settings
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.store.base import SegmentGone, StoreTrouble, roots_of
from statehold.snapshot.store.fetch import stored_frames

_MANIFESTS: Final = "topic string, partition int, manifest binary"
_FRAMES: Final = "topic string, partition int, offset long, value binary"
#: Bytes of chunks in one Arrow batch.
_BATCH: Final = 4_000_000


def stored(spark: SparkSession, settings: Settings, fulls: Iterable[tuple[Place, Manifest]]) -> DataFrame | None:
    """Return the chunks of full snapshots in a store as (topic, partition, offset, value); None without any.

    One task reads each full snapshot in order; offsets are just numbers. Only the configured stores are read. A missing
    or damaged chunk ends a snapshot early, which the comparison with its manifest reports. The executors need access to
    the store: credentials, directories, `statehold[s3]`.
    """
    rows = [
        (place.names.snapshot, place.partition, records.pack(manifest, manifest.format))
        for place, manifest in fulls
        if manifest.store and manifest.checksums
    ]
    if not rows:
        return None
    made = spark.createDataFrame(rows, _MANIFESTS).repartition(len(rows), "topic", "partition", "manifest")
    return made.mapInArrow(Fetch(roots_of(settings)), _FRAMES)


class Fetch:
    """Function for `mapInArrow` over `_MANIFESTS`; uses the executor's credentials for the store."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """:raises StoreTrouble: the store does not answer; the job fails."""
        for batch in batches:
            for row in batch.to_pylist():
                manifest = records.unpack(row["manifest"])
                assert isinstance(manifest, Manifest)
                yield from _chunks(row["topic"], row["partition"], manifest, self._roots)


def _chunks(topic: str, partition: int, manifest: Manifest, roots: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    offset, values, size = 0, [], 0
    try:
        for data in stored_frames(manifest, roots):
            values.append(data)
            size += len(data)
            if size >= _BATCH:
                yield _rows(topic, partition, offset, values)
                offset, values, size = offset + len(values), [], 0
    except (SegmentGone, frame.BadFrame):
        pass  # the comparison with the manifest reports too few chunks
    except StoreTrouble as error:
        raise RuntimeError(str(error)) from error  # because Spark passes only the message to the driver
    if values:
        yield _rows(topic, partition, offset, values)


def _rows(topic: str, partition: int, offset: int, values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array([topic] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(offset, offset + count), pa.int64()),
        pa.array(values, pa.binary()),
    ]
    return pa.record_batch(columns, names=["topic", "partition", "offset", "value"])
