"""Recovers an assigned partition: fence, restore, compare with the group (rules A1 and A4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import tenacity

from statehold.disk.disk_state import DiskState
from statehold.disk.port import PartitionStore
from statehold.disk.start import keep, start_from_files
from statehold.errors import (
    KafkaTrouble,
    MemoryShort,
    Misconfigured,
    OffsetDisagrees,
    RecordError,
    RestoreTimeout,
    StateholdError,
    StateRefused,
    UnstorableValue,
)
from statehold.ports import Cancelled, Reader, Transactions
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.restore.restore import Restored, restore
from statehold.snapshot.restore.standby_copy import Copy, go_on
from statehold.state import digest
from statehold.state.state import State
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.memory_guard import Room
from statehold.worker.common.reporting import log_progress
from statehold.worker.common.signals import Signals
from statehold.worker.common.traceback_gc import clear_frames
from statehold.worker.failures.retry_records import log_unread_retries
from statehold.worker.handler.engine import Engine
from statehold.worker.recovery.checks import compare_with_group, contradicting, recheck, require_inputs

T = TypeVar("T")


class Recovered(msgspec.Struct, frozen=True):
    """A restored state and the engine that holds it."""

    engine: Engine
    restored: Restored
    #: the group's offset is not the mark's position: commit soon, even without a record (rule D6)
    offset_behind: bool = False


class Recovery:
    """Used by the partition's thread. Every call ends with Cancelled soon after the partition is revoked or lost."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals = tools, signals
        self._names, self._partition = tools.place.names, tools.place.partition
        #: this process's standby copy of the state; None once it is used
        self._copy: Copy | None = None
        limit = tools.settings.restore.memory_limit
        rest = None if tools.disk is None else tools.disk.budget.rest
        self._room = Room(tools.memory, limit, tools.place, on_disk=rest)
        #: of the current or last restore and replay
        self.progress = Progress(tools.clock, partial(log_progress, tools), self._room)

    def fence(self, ascertain: Callable[[], None]) -> Transactions:
        """Return a new producer, whose epoch fences every older owner. Retry until it works or the partition leaves.

        `ascertain` is called right before each attempt, and raises if this process is no longer the owner.

        :raises Misconfigured: a right is missing. :raises Cancelled:
        """
        return self._retrying("fence", partial(self._fence_once, ascertain), tenacity.stop_never)

    def locate(self) -> Place:
        """Return the current topics: one may have been deleted, created again or extended while this process ran.

        If no controller answers, return the last known topics, because a takeover must not wait for a controller.
        """
        try:
            return self._tools.locate()
        except Misconfigured:
            raise
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="describe the topics", cause=str(error))
            return self._tools.place

    @contextmanager
    def comparing_topics(self) -> Iterator[None]:
        """Look at the topics again if the step fails: it may have read those that were created again meanwhile.

        :raises TopicReplaced, PartitionCountChanged: a topic is another one than when the takeover began.
        """
        try:
            yield
        except (RecordError, StateRefused):
            self._tools.place.require_same(self.locate())
            raise

    def restore(self) -> Recovered:
        """Restore the newest committed state; see `statehold.snapshot.restore.restore` for the errors."""
        standby = self._tools.standby
        self._copy = None if standby is None else standby.take(self._partition)
        try:
            with self._room:
                try:
                    return recheck(self._restore_once, self._tools, self._signals)
                except MemoryShort:
                    if standby is None or not standby.give_way():
                        raise
                return recheck(self._restore_once, self._tools, self._signals)
        finally:
            left, self._copy = self._copy, None  # a partition that fails holds no state
            if left is not None:
                left.state.close(flush=False)

    def _restore_once(self) -> Recovered:
        tools = self._tools
        engines: list[Engine] = []

        copy, self._copy = self._copy, None
        disk = tools.disk
        store = None if disk is None else _files_of(copy) or disk.open(tools.place)

        def new_state() -> State:
            state = None if disk is None or store is None else disk.empty_state(store)
            engines[:] = [self._new_engine(state)]
            return engines[0].state

        reader = tools.reader(self._leaving)
        try:
            restored = self._continued(reader, copy, store) if copy or store else None
            if restored is None:
                restored = restore(
                    reader,
                    tools.place,
                    new_state,
                    self._note,
                    tools.clock,
                    tools.settings.restore.attempts,
                    self.progress,
                    tools.local() if tools.settings.snapshot.local_dir else None,
                )
            commit_record = restored.commit_record
            behind = self._offset_behind(commit_record)
            compare_with_group(tools, commit_record, others=True)
            require_inputs(tools, reader, restored.positions, commit_record)
            if tools.references.shared:
                tools.references.await_version(commit_record.reference, self._partition, self._leaving)
            taken_over = restored.from_standby or restored.from_files
            engine = self._new_engine(restored.state) if taken_over else engines[0]
            if disk is not None and not restored.from_files:
                keep(tools.place, restored)
            if len(commit_record.positions) > 1:
                log_unread_retries(tools, engine, reader, commit_record)
        except BaseException as error:
            if store is not None:
                store.close(flush=False)
            self._name_place(error)
            raise
        finally:
            reader.close()
        self._copy = None
        if engine.references:
            engine.renew()
        self._log_restored(restored)
        return Recovered(engine, restored, behind)

    def _name_place(self, error: BaseException) -> None:
        """:raises UnstorableValue: the files cannot hold a key of the state of this partition."""
        if isinstance(error, UnstorableValue):
            where = f"{self._tools.place.input}[{self._partition}]"
            raise UnstorableValue(f"{where}: restore: {error}", error.table, error.key) from error

    def _continued(self, reader: Reader, copy: Copy | None, store: PartitionStore | None) -> Restored | None:
        """Return the state from the standby copy, or from the files; None if neither can continue."""
        tools, disk = self._tools, self._tools.disk
        restored = go_on(reader, tools.place, copy, self._note, tools.clock, self.progress) if copy else None
        if disk is None or store is None:
            self._copy = copy if restored is not None else None  # a recheck needs it again
            return restored
        if restored is None:
            restored = start_from_files(reader, tools.place, disk.state(store), self._note, tools.clock, self.progress)
        if restored is not None:
            disk.own(restored.state)
        return restored

    def last_commit_record(self) -> CommitRecord | None:
        """Return the last mark after a fence: it shows how the transaction before the fence ended (rule T4).

        The group's offset was committed with the last mark, so an older mark than the offset's is not the last one.
        """
        return recheck(self._last_commit_record_once, self._tools, self._signals)

    def _last_commit_record_once(self) -> CommitRecord | None:
        reader = self._tools.reader(self._signals.leaving)
        try:
            commit_record = last_commit_record(reader, self._names.changelog, self._partition)
        finally:
            reader.close()
        if commit_record is not None:
            self._offset_behind(commit_record)
            compare_with_group(self._tools, commit_record, others=False)
        return commit_record

    def _leaving(self) -> bool:
        """Return whether to stop reading. The reader asks often, so this also logs the progress while no data comes."""
        self.progress.tick()
        return self._signals.leaving()

    def _fence_once(self, ascertain: Callable[[], None]) -> Transactions:
        producer = self._tools.producer()
        try:
            ascertain()
            producer.fence(self._signals.leaving)
        except (StateholdError, Cancelled):
            producer.drop()
            raise
        return producer

    def _new_engine(self, state: State | None = None) -> Engine:
        settings = self._tools.settings
        return Engine(
            self._tools.handler,
            self._partition,
            track_delta=settings.snapshot.delta_interval != "off",
            traced=settings.service.mode == "development",
            output_partitions=self._tools.output_partitions,
            handling=self._tools.handling,
            tracing=self._tools.tracing,
            settings=settings,
            names=self._names,
            state=state,
            shared=self._tools.references.shared,
        )

    def _offset_behind(self, commit_record: CommitRecord) -> bool:
        """Compare the group's offset with the mark, which is the truth (rule D6).

        Return True if the offset has expired, or is the one before the last transaction: it must be written again.

        :raises OffsetDisagrees: the offset differs by more. :raises RestoreTimeout: the group's coordinator did not
            answer within `restore.deadline`.
        """
        names, partition, position = self._names, self._partition, commit_record.position(self._names.input)
        until = self._tools.clock() + self._tools.settings.restore.deadline
        #: of each input; None: it is missing or expired
        committed: dict[str, int | None] = {}
        try:
            for topic in names.inputs:
                read = partial(self._tools.offsets.committed, topic, partition)
                committed[topic] = self._retrying(
                    "read the group's offset", read, lambda _: self._tools.clock() >= until
                )
        except Misconfigured:
            raise
        except KafkaTrouble as error:
            raise RestoreTimeout(
                f"the offset of group {names.group!r} did not arrive within restore.deadline ({error}). statehold "
                f"retries. Next: check that the group's coordinator is reachable; `statehold retry {partition}` "
                f"retries now",
                topic=names.input,
                partition=partition,
            ) from error
        if committed.items() <= commit_record.positions.items():
            return False
        differing = contradicting(commit_record, committed)
        if not differing:
            known = [at for at in committed.values() if at is not None]
            total = sum(known) if len(known) == len(committed) else None
            self._tools.log.warning("offset_behind", group_offset=total, position=position)
            return True
        several = len(committed) > 1
        shown = ", ".join(f"{topic} {at}" if several else str(at) for topic, at in differing.items())
        recorded = ", ".join(f"{t} {commit_record.positions[t]}" if several else str(position) for t in differing)
        raise OffsetDisagrees(
            f"group {names.group!r} has committed {shown}, the last commit record has {recorded} (transaction "
            f"{commit_record.n}, from {commit_record.start}): the group's offsets were reset. Nothing was skipped. "
            "Next: stop the service and choose the right position: `statehold repair adopt-offsets MODULE:SERVICE "
            "--from commit-record|group --why TEXT --dry-run`",
            topic=names.input,
            partition=partition,
            position=position,
        )

    def _retrying(self, doing: str, call: Callable[[], T], stop: Callable[[tenacity.RetryCallState], bool]) -> T:
        """Call until it works, until `stop` returns True, or until the partition leaves; brokers come and go.

        :raises Cancelled: the partition leaves.
        :raises KafkaTrouble: the last one, or the first that a repetition cannot fix.
        """
        any_signal = self._signals.any
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, KafkaTrouble) and not isinstance(e, Misconfigured)
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            stop=lambda state: any_signal.is_set() or stop(state),
            sleep=any_signal.wait,  # type: ignore[arg-type]  # tenacity ignores its result
            before_sleep=lambda state: self._log_retry(doing, state),
            reraise=True,
        )
        try:
            return retrying(call)
        except KafkaTrouble as error:
            if self._signals.leaving() and not isinstance(error, Misconfigured):
                raise Cancelled from error
            self._signals.raise_failure()  # the cause that the manager saw says more than the last answer
            raise

    def _log_restored(self, restored: Restored) -> None:
        state = restored.state
        self._tools.log.info(
            "restored",
            full=restored.full.offset if restored.full else None,
            from_disk=restored.from_disk or None,
            from_standby=restored.from_standby or None,
            from_files=restored.from_files or None,
            deltas=restored.deltas,
            keys=state.keys,
            bytes=state.stored_bytes(),
            seconds=round(restored.seconds, 3),
            n=restored.commit_record.n,
            position=restored.commit_record.position(self._names.input),
            digest=digest.show(state.digest),
        )

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        if fields.get("differs"):
            self._tools.metrics.inc(metrics.FULL_SNAPSHOTS, 1, "differs")
        self._tools.log.warning(event, **fields)  # type: ignore[arg-type]

    def _log_retry(self, doing: str, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._tools.log.warning("kafka_retry", doing=doing, attempt=state.attempt_number, cause=str(error))
        clear_frames(error)  # because its frames keep the failed attempt's producer alive


def _files_of(copy: Copy | None) -> PartitionStore | None:
    """Return the files of a standby copy with tables on disk, which are locked."""
    return copy.state.store if copy is not None and isinstance(copy.state, DiskState) else None
