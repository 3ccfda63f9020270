"""The status of a partition, as consoles, metrics and health checks read it. Any thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from statehold.disk.disk_state import DiskState
from statehold.disk.usage import ScrubNote
from statehold.errors import DeadlyRecord, text_of
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.state import digest
from statehold.worker.calls.participant import DurableCalls
from statehold.worker.common.context import Pending
from statehold.worker.common.lifecycle import Lifecycle, Phase
from statehold.worker.full_snapshots.scheduler import FullFacts
from statehold.worker.loop import LiveLoop
from statehold.worker.participants.retry_topics import RetryTopics
from statehold.worker.participants.side_effects import SideEffects
from statehold.worker.takeover import Takeover


class FullStatus(msgspec.Struct, frozen=True):
    """A full snapshot that the commit record refers to."""

    #: of its manifest
    offset: int
    #: transactions at its start and at its end
    first: int
    through: int
    #: None for a snapshot that this owner neither wrote nor loaded
    keys: int | None = None
    #: before compression
    bytes: int | None = None
    #: of its completion, in seconds since 1970
    time: float | None = None

    @classmethod
    def of(cls, ref: FullRef, facts: FullFacts | None) -> FullStatus:
        return cls(ref.offset, ref.first, ref.through, *(facts or ()))


class CommitRecordStatus(msgspec.Struct, frozen=True):
    """The last commit record."""

    n: int
    positions: dict[str, int]
    keys: int
    digest: str
    #: seconds since 1970
    time: float
    lineage: str
    outputs: int
    full_snapshots: list[FullStatus]

    @classmethod
    def of(cls, record: CommitRecord, known: Mapping[int, FullFacts]) -> CommitRecordStatus:
        full_snapshots = [FullStatus.of(ref, known.get(ref.offset)) for ref in record.full_snapshots]
        shown = digest.show(record.digest)
        time = record.time / 1000
        return cls(record.n, record.positions, record.keys, shown, time, record.lineage, record.outputs, full_snapshots)


class LiveStatus(msgspec.Struct, frozen=True):
    """Details of a live partition."""

    #: input records that have committed since it went live
    records: int
    #: of the state: keys and values
    bytes: int
    #: bytes of changelog since the newest full snapshot began
    since_full: int
    #: keys whose records wait as dead letters; None where there is no policy for them
    blocked_keys: int | None
    #: records that were read from retry topics and wait for their time, at most 2,000 per topic; None: no retry topics
    later: int | None
    #: side effects that are pending, and the time of the record that asked for the oldest, in seconds since 1970
    effects: int
    effects_since: float | None
    #: durable calls that wait for an answer, the time of the record that asked for the oldest, in seconds since 1970,
    #: and those that are dead; None: the handler declares none
    calls: int | None
    calls_since: float | None
    calls_dead: int | None
    #: the `Call`s whose other system is down
    calls_down: tuple[str, ...]
    #: ids of requests that are kept, those taken by this owner that have no answer yet, and the time of the oldest
    #: one's record, in seconds since 1970; None: the handler declares no `Replies`
    requests: int | None
    requests_waiting: int | None
    requests_since: float | None
    #: when the next timer is due, in seconds since 1970; None: no timer is set
    timer: float | None
    #: the partition's own time, in seconds since 1970; None for a handler that has no use for it, and before a record
    time: float | None
    #: the last pass of the scrub over files of this partition on this machine; None: none yet, or no table on disk
    scrub: ScrubNote | None
    commit_record: CommitRecordStatus

    @classmethod
    def of(cls, live: LiveLoop) -> LiveStatus:
        engine, event_time = live.engine, live.engine.event_time
        effects, retries = _find(live, SideEffects), _find(live, RetryTopics)
        calls = _find(live, DurableCalls)
        pending = effects.pending if effects is not None else Pending()
        requests = engine.requests
        waiting, oldest = requests.waiting if requests is not None else (0, 0)
        return cls(
            records=live.transaction.records,
            bytes=live.full_snapshots.cost.state_bytes,
            since_full=live.full_snapshots.unsaved,
            blocked_keys=engine.dead_letters.keys if engine.dead_letters is not None else None,
            later=retries.held if retries is not None else None,
            effects=pending.number,
            effects_since=pending.oldest / 1000 or None,
            calls=calls.pending.number if calls is not None else None,
            calls_since=calls.pending.oldest / 1000 or None if calls is not None else None,
            calls_dead=calls.dead if calls is not None else None,
            calls_down=calls.outages() if calls is not None else (),
            requests=requests.kept if requests is not None else None,
            requests_waiting=waiting if requests is not None else None,
            requests_since=oldest / 1000 or None,
            timer=None if event_time is None or math.isinf(due := event_time.known) else due / 1000,
            time=event_time.now / 1000 if event_time is not None and event_time.now else None,
            scrub=engine.state.scrubbed if isinstance(engine.state, DiskState) else None,
            commit_record=CommitRecordStatus.of(live.record, live.full_snapshots.known),
        )


class PartitionStatus(msgspec.Struct, frozen=True):
    """Phase, position and cause of one assigned partition."""

    partition: int
    phase: str
    #: next offset of the input, as committed
    position: int | None
    transaction: int | None
    mailbox: int
    cause: str | None
    #: the cause's class, which `statehold explain` explains
    error: str | None
    #: of the record at which it has failed because processes died there
    deadly_offset: int | None
    #: who paused it
    paused: str | None
    #: progress of the restore or the replay; None in every other phase
    restore: dict[str, Any] | None
    #: input offsets that a restore would handle again
    gap: int | None
    #: predicted seconds of a restore now
    restore_predicted: float | None
    #: start of this phase, in seconds since 1970
    since: float
    #: seconds of its last fence, restore and replay
    timings: dict[str, float]
    live: LiveStatus | None
    #: the watchdog has abandoned the thread inside the handler
    stuck: bool

    @classmethod
    def of(
        cls,
        place: Place,
        life: Lifecycle,
        since: float,
        takeover: Takeover,
        *,
        mailbox: int,
        stuck: Exception | None,
    ) -> PartitionStatus:
        """`stuck`: the watchdog's reason to abandon the thread."""
        if stuck is not None:
            life = Lifecycle(Phase.FAILED, stuck)
        live = takeover.live
        record = live.record if live is not None else None
        return cls(
            partition=place.partition,
            phase=life.phase.value,
            position=record.position(place.input) if record else None,
            transaction=record.n if record else None,
            mailbox=mailbox,
            cause=text_of(life.cause) if life.cause is not None else None,
            error=type(life.cause).__name__ if life.cause is not None else None,
            deadly_offset=life.cause.position if isinstance(life.cause, DeadlyRecord) else None,
            paused=record.paused.issuer if record and record.paused else None,
            restore=takeover.recovery.progress.view(),
            gap=live.full_snapshots.cost.work.gap if live else None,
            restore_predicted=round(live.full_snapshots.cost.seconds, 3) if live else None,
            since=since,
            timings=takeover.timings.copy(),
            live=LiveStatus.of(live) if live else None,
            stuck=stuck is not None,
        )


P = TypeVar("P")


def _find(live: LiveLoop, kind: type[P]) -> P | None:
    return next((each for each in live.participants.members if isinstance(each, kind)), None)
