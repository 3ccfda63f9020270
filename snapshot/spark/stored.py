"""Fulls that are in a directory or object store, as a DataFrame that looks like Kafka's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.snapshot import frame, records
from holdfast.snapshot.place import Place
from holdfast.snapshot.records import Manifest
from holdfast.snapshot.store.base import StoreTrouble
from holdfast.snapshot.store.fetch import SegmentGone, stored_frames

_MANIFESTS: Final = "topic string, partition int, manifest binary"
_FRAMES: Final = "topic string, partition int, offset long, value binary"
#: bytes of chunks in one Arrow batch
_BATCH: Final = 4_000_000


def stored(spark: SparkSession, fulls: Iterable[tuple[Place, Manifest]]) -> DataFrame | None:
    """The chunks of those fulls that are not in Kafka, as (topic, partition, offset, value); None when all are.

    One task reads each full, in order; offsets only count. What is missing or damaged ends a full early, which its
    manifest tells. The store must be open to the workers as to us: credentials, directories, `holdfast[s3]`.
    """
    rows = [
        (place.names.full, place.partition, records.pack(manifest, manifest.format))
        for place, manifest in fulls
        if manifest.store and manifest.checksums
    ]
    if not rows:
        return None
    return spark.createDataFrame(rows, _MANIFESTS).mapInArrow(_fetch, _FRAMES)


def _fetch(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """:raises StoreTrouble: the store does not answer; the job fails."""
    for batch in batches:
        for row in batch.to_pylist():
            manifest = records.unpack(row["manifest"])
            assert isinstance(manifest, Manifest)
            yield from _chunks(row["topic"], row["partition"], manifest)


def _chunks(topic: str, partition: int, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    offset, values, size = 0, [], 0
    try:
        for data in stored_frames(manifest):
            values.append(data)
            size += len(data)
            if size >= _BATCH:
                yield _rows(topic, partition, offset, values)
                offset, values, size = offset + len(values), [], 0
    except (SegmentGone, frame.BadFrame):
        pass  # too few chunks: whoever counts them says so
    except StoreTrouble as error:
        raise RuntimeError(str(error)) from error  # its message alone passes from a worker to the driver
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
