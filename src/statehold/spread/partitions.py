"""Runs one function for each partition on Spark's executors; the driver receives its small results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from statehold import errors, service_lookup
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import (
    KafkaTrouble,
    PartitionError,
    RestoreTimeout,
    StartError,
    StateholdError,
    UsageError,
    text_of,
)
from statehold.snapshot.spark.io.scan import forget_pandas, forget_zip_finders
from statehold.snapshot.spark.io.source import JobFailed, Session, collect

Found = TypeVar("Found")
#: how Spark names the task that it abandons; its number is that of the partition in the list
_TASK: Final = re.compile(r"\bTask (\d+) in stage ")


class ReleaseCode(msgspec.Struct, frozen=True):
    """The code of a release, which executors import, and its service."""

    #: module:service
    target: str
    settings: Settings
    names: Names


class FailedPartition(NamedTuple):
    """The error of a partition, as the executor reports it."""

    #: name of its class, often one of `statehold.errors`
    error: str
    text: str


def each_partition(spark: Session, what: str, work: Callable[[int], Found], partitions: Sequence[int]) -> list[Found]:
    """Call `work`, which is pickled, for each partition in a task of its own. Return the results in this order.

    :raises StateholdError: the error of the first partition that failed, of the class that `work` raised.
    :raises JobFailed: Spark failed, or Kafka did not answer an executor; run it again.
    """
    context = spark.sparkContext
    tasks = context.parallelize(partitions, max(1, len(partitions))).mapPartitions(_Guarded(what, work))
    try:
        rows = collect(tasks)
    except JobFailed as error:
        lost = _TASK.search(str(error.__cause__))
        if lost is None or int(lost[1]) >= len(partitions):
            raise
        raise JobFailed(f"{_where(what, partitions[int(lost[1])])}: {error}", reading=error.reading) from error
    found = []
    for partition, result in rows:
        if isinstance(result, FailedPartition):
            raise raised(result, _where(what, partition))
        found.append(result)
    return found


def waves(spark: Session, partitions: int) -> int:
    """Return how many tasks an executor's slot runs one after the other."""
    return max(1, -(-partitions // spark.sparkContext.defaultParallelism))


def handler_of(target: str) -> HandlerFactory:
    """Import the service's code on an executor. :raises StartError: it is not there, or cannot be imported."""
    try:
        return service_lookup.find(target).handler
    except (UsageError, StartError) as error:
        raise StartError(
            f"the executor cannot import {target}: {error}. Nothing was changed. Next: give Spark the code, with "
            f"--py-files CODE.zip of spark-submit or installed in the environment of --archives"
        ) from error


class _Guarded:
    """Returns an error as a result, so that Spark does not repeat what fails each time."""

    def __init__(self, what: str, work: Callable[[int], Any]) -> None:
        self._what, self._work = what, work

    def __call__(self, partitions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        forget_zip_finders()
        forget_pandas()
        for partition in partitions:
            try:
                yield partition, self._work(partition)
            except (KafkaTrouble, RestoreTimeout) as error:  # Spark tries this task again
                raise KafkaTrouble(f"{_where(self._what, partition)}: {error}") from error
            except Exception as error:  # noqa: BLE001  the user's code may raise anything
                yield partition, FailedPartition(type(error).__name__, text_of(error))


def _where(what: str, partition: int) -> str:
    return f"partition {partition}: {what}"


def raised(failure: FailedPartition, where: str) -> StateholdError:
    """Return the error to raise on the driver; of another class, if one text does not make it."""
    kind = getattr(errors, failure.error, None)
    if not (isinstance(kind, type) and issubclass(kind, StateholdError)):
        return JobFailed(f"{where}: {failure.error}: {failure.text}")
    named = issubclass(kind, PartitionError)  # its text begins with the partition
    text = failure.text if named else f"{where}: {failure.text}"
    with suppress(TypeError, ValueError):  # some have other arguments
        made = kind(text)
        if str(made) == text:
            return made
    return JobFailed(f"{where}: {failure.error}: {failure.text}")
