"""`statehold rehearse --spark-master`: an executor rehearses each partition, and the driver receives the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from statehold.admin.inspection.topic_view import topic_view
from statehold.rehearsal import rehearse as one
from statehold.rehearsal.rehearse import RehearsalLimits
from statehold.rehearsal.report import RehearsedPartition
from statehold.rehearsal.source import BackupFiles, LiveTopics, RehearsalSource
from statehold.snapshot.spark.io.source import Session
from statehold.spread.partitions import ReleaseCode, each_partition, handler_of, waves


def rehearse(
    spark: Session, code: ReleaseCode, partitions: Sequence[int], limits: RehearsalLimits, backup: Path | None = None
) -> list[RehearsedPartition]:
    """Rehearse the partitions as `statehold.rehearsal.rehearse` does. `limits.seconds`: of all partitions.

    :raises StateholdError: as that function. :raises StartError: an executor cannot import the code.
    :raises JobFailed: Spark failed, or Kafka did not answer an executor.
    """
    share = limits.seconds / waves(spark, len(partitions))
    task = _Task(code, msgspec.structs.replace(limits, seconds=share), backup)
    return each_partition(spark, "rehearse a release", task, partitions)


class _Task:
    def __init__(self, code: ReleaseCode, limits: RehearsalLimits, backup: Path | None) -> None:
        self._code, self._limits, self._backup = code, limits, backup

    def __call__(self, partition: int) -> RehearsedPartition:
        factory = handler_of(self._code.target)
        with self._source() as source:
            return one.rehearse(source, factory, partition, self._limits, self._code.settings)

    @contextmanager
    def _source(self) -> Iterator[RehearsalSource]:
        code = self._code
        if self._backup is not None:
            yield BackupFiles(self._backup, code.names)
            return
        with topic_view(code.settings, code.names) as view:
            yield LiveTopics(view)
