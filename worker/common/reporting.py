"""Log the progress of restores, and failures."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from statehold.errors import Lost, OwnershipError, PartitionError, text_of
from statehold.ports import WorkerReport
from statehold.snapshot.format import frame, recorded_types
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools

#: differences of a table's types that an event shows
_SHOWN = 20


def log_pause(tools: Tools, record: CommitRecord) -> None:
    """Log that a command has paused or resumed the partition."""
    by = record.paused.issuer if record.paused is not None else None
    position = record.position(tools.place.input)
    tools.log.info("paused" if record.paused else "resumed", by=by, position=position)


def log_types(tools: Tools, record: CommitRecord, untyped: Collection[str]) -> None:
    """Log how the types of tables differ from those of the last commit record, and which tables take a first one."""
    for table, changes in recorded_types.changes(record, tools.place.types).items():
        if changes:
            tools.log.info(
                "table_type_changed", table=table, changes=[f"{each.text:.200}" for each in changes[:_SHOWN]]
            )
    if untyped:
        tools.log.info("table_types_taken", tables=sorted(untyped))


class PinningFormat:
    """Says whether commit records may pin an entry; logs once that an entry waits for a newer format."""

    def __init__(self, waits: Callable[..., None], what: str) -> None:
        """`waits`: logs the event with its cause. `what`: what has happened, and which entries it makes."""
        self._waits, self._what, self._logged = waits, what, False

    def allows(self, record: CommitRecord) -> bool:
        """`record`: the last one."""
        if record.format >= frame.PINNING:
            return True
        if not self._logged:
            self._logged = True
            cause = f"{self._what} need format {frame.PINNING}. Next: run `statehold finish-upgrade`"
            self._waits(cause=cause)
        return False


def log_progress(tools: Tools, view: dict[str, Any]) -> None:
    """Log the progress of a long restore or replay every few seconds; see `statehold.snapshot.restore.progress`."""
    tools.log.info("restore_progress", **view)


def log_failure(tools: Tools, cause: BaseException | None) -> None:
    """Log and count the failure; a partition that another owner took is only logged."""
    if cause is None:
        return
    tools.metrics.inc(metrics.FAILURES, 1, type(cause).__name__)
    lost = isinstance(cause, OwnershipError)
    explained = isinstance(cause, PartitionError) and (lost or cause.__cause__ is None)
    tools.log.error(
        "fenced_by_new_owner" if lost else "failed",
        error=type(cause).__name__,
        cause=text_of(cause),
        exc_info=None if explained else cause,
    )
    if not isinstance(cause, Lost):
        tools.report(WorkerReport(tools.place.partition, "failed", cause=cause))
