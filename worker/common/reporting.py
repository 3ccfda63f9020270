"""What an operator is told of a restore, of a failure, and in figures of each commit."""

from __future__ import annotations

from typing import Any

from statehold.errors import Lost, OwnershipError, PartitionError
from statehold.snapshot.format import digest
from statehold.snapshot.format.records import Mark
from statehold.snapshot.restore.restore import Restored
from statehold.telemetry import metrics
from statehold.worker.common.context import Report, Tools
from statehold.worker.transaction.commit_contents import Flight
from statehold.worker.transaction.transaction import Committer


def tell_restored(tools: Tools, restored: Restored) -> None:
    tools.log.info(
        "restored",
        full=restored.full.offset if restored.full else None,
        from_disk=restored.from_disk or None,
        from_standby=restored.from_standby or None,
        deltas=restored.deltas,
        keys=restored.state.keys,
        bytes=sum(sum(map(len, table.stored.values())) for table in restored.state.tables.values()),
        seconds=round(restored.seconds, 3),
        n=restored.mark.n,
        position=restored.mark.positions[tools.place.input],
        digest=digest.show(restored.state.digest),
    )


def tell_progress(tools: Tools, view: dict[str, Any]) -> None:
    """Every few seconds of a long restore or replay; see `statehold.snapshot.restore.progress`."""
    tools.log.info("restore_progress", **view)


def tell_failed(tools: Tools, cause: BaseException | None) -> None:
    """Losing a partition is no failure of it: who owned it says so and lets go."""
    if cause is None:
        return
    tools.metrics.inc(metrics.FAILURES, 1, type(cause).__name__)
    gone = isinstance(cause, OwnershipError)
    explained = isinstance(cause, PartitionError) and (gone or cause.__cause__ is None)
    tools.log.error(
        "fenced_away" if gone else "failed",
        error=type(cause).__name__,
        cause=str(cause),
        exc_info=None if explained else cause,
    )
    if not isinstance(cause, Lost):
        tools.report(Report(tools.place.partition, "failed", cause=cause))


def tell_committed(tools: Tools, flight: Flight, mark: Mark, committer: Committer) -> None:
    """In figures only: this happens ten times a second."""
    meters, size = tools.metrics, committer.increment_bytes
    meters.observe(metrics.COMMIT_SECONDS, tools.clock() - flight.began)
    meters.observe(metrics.COMMIT_RECORDS, flight.records)
    meters.observe(metrics.COMMIT_BYTES, size)
    meters.observe(metrics.HANDLER_SECONDS, flight.handling)
    meters.inc(metrics.TRANSACTIONS, 1, "committed")
    meters.inc(metrics.RECORDS, flight.records)
    meters.inc(metrics.OUTPUTS, flight.outputs)
    meters.inc(metrics.INCREMENT_BYTES, size)
    meters.set(metrics.POSITION, committer.position)
    meters.set(metrics.KEYS, mark.keys)
    if flight.newest > 0:
        meters.set(metrics.RECORD_TIME, flight.newest / 1000)
