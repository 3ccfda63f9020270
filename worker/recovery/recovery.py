"""From an assignment to a state and its last mark: fence, restore or settle, compare (invariants 1 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import tenacity

from statehold.errors import KafkaTrouble, MemoryShort, Misconfigured, OffsetDisagrees, RestoreTimeout, StateholdError
from statehold.ports import Cancelled, Reader, Transactions
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark
from statehold.snapshot.restore.last_commit_record import last_mark
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.restore.restore import Restored, restore
from statehold.snapshot.restore.standby_copy import Copy, go_on
from statehold.snapshot.state import State
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import gap
from statehold.worker.common.memory_guard import Room
from statehold.worker.common.reporting import tell_progress
from statehold.worker.common.signals import Signals
from statehold.worker.common.traceback_gc import clear_frames
from statehold.worker.handler.engine import Engine
from statehold.worker.participants.retry_topics import tell_unread
from statehold.worker.recovery.generation_check import require_newest, require_one_lineage
from statehold.worker.recovery.recheck import surely

T = TypeVar("T")


class Opened(msgspec.Struct, frozen=True):
    """A restored state with the engine it lives in."""

    engine: Engine
    restored: Restored
    #: the group's offset is not the mark's position: commit soon, even without a record (rule D6)
    offset_behind: bool = False


class Opening:
    """Used by the partition's thread; every call ends with Cancelled soon after the partition is revoked or lost."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals = tools, signals
        self._names, self._partition = tools.place.names, tools.place.partition
        #: what this process has kept of the state while another one owned it; None once it is used
        self._copy: Copy | None = None
        self._room = Room(tools.memory, tools.settings.restore.memory_limit, tools.place)
        #: of the restore and the replay that go on, or were the last ones
        self.progress = Progress(tools.clock, partial(tell_progress, tools), self._room)

    def fence(self, ascertain: Callable[[], None]) -> Transactions:
        """A new producer whose epoch shuts every older owner out; retried until it works or the partition leaves.

        `ascertain` is called right before each attempt, and raises when we are not the owner any more.

        :raises Misconfigured: a right is missing. :raises Cancelled:
        """
        return self._patiently("fence", partial(self._fence_once, ascertain), tenacity.stop_never)

    def locate(self) -> Place:
        """The topics as they are now: one may have been deleted, created again or grown while this process ran.

        While no controller answers, what was seen last counts: a takeover must not wait for one.
        """
        try:
            return self._tools.locate()
        except Misconfigured:
            raise
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="describe the topics", cause=str(error))
            return self._tools.place

    def restore(self) -> Opened:
        """The newest committed state; see `statehold.snapshot.restore.restore` for what it raises."""
        self._copy = self._tools.standby.take(self._partition)
        try:
            with self._room:
                try:
                    return surely(self._restore_once, self._tools, self._signals)
                except MemoryShort:
                    if not self._tools.standby.give_way():
                        raise
                return surely(self._restore_once, self._tools, self._signals)
        finally:
            self._copy = None  # a partition that fails holds no state

    def _restore_once(self) -> Opened:
        engines: list[Engine] = []

        def new_state() -> State:
            engines[:] = [self._new_engine()]
            return engines[0].state

        reader = self._tools.reader(self._leaving)
        try:
            restored = self._go_on(reader) or restore(
                reader,
                self._tools.place,
                new_state,
                self._note,
                self._tools.clock,
                self._tools.settings.restore.attempts,
                self.progress,
                self._tools.local(),
            )
            behind = self._offset_behind(restored.mark)
            require_one_lineage(self._tools, restored.mark)
            self._check_input(reader.bounds(self._names.input, self._partition), restored)
            self._tools.referring.await_version(restored.mark.reference, self._partition, self._leaving)
            engine = self._new_engine(restored.state) if restored.from_standby else engines[0]
            tell_unread(self._tools, engine, reader, restored.mark)
        finally:
            reader.close()
        self._copy = None
        engine.renew()
        return Opened(engine, restored, behind)

    def _go_on(self, reader: Reader) -> Restored | None:
        """From the copy that this process has kept, after the fence as any restore; None: there is none of use."""
        if (copy := self._copy) is None:
            return None
        self._copy = None
        restored = go_on(reader, self._tools.place, copy, self._note, self._tools.clock, self.progress)
        if restored is not None:
            self._copy = copy  # what follows may have to look again
        return restored

    def last_mark(self) -> Mark | None:
        """After a fence: how the transaction before it ended (rule T4).

        The group's offset was committed with it: a mark that is older than that is not the last one.
        """
        return surely(self._last_mark_once, self._tools, self._signals)

    def _last_mark_once(self) -> Mark | None:
        reader = self._tools.reader(self._signals.leaving)
        try:
            mark = last_mark(reader, self._names.changelog, self._partition)
        finally:
            reader.close()
        if mark is not None:
            self._offset_behind(mark)
            require_newest(self._tools, mark)
        return mark

    def _leaving(self) -> bool:
        """Asked by the reader all the time, so it also keeps the progress told while nothing comes."""
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
            shared=self._tools.referring.shared,
        )

    def _offset_behind(self, mark: Mark) -> bool:
        """The mark is the truth; a group offset that is further off than one transaction is a warning of worse (D6).

        True: the offset has expired, or is the one before the last transaction, and is to be written again.
        """
        position = mark.positions[self._names.input]
        committed = self._committed()
        if committed == position:
            return False
        if committed in (None, mark.start):
            self._tools.log.warning("offset_behind", group_offset=committed, position=position)
            return True
        raise OffsetDisagrees(
            f"group {self._names.group!r} has committed {committed}, the last mark says {position} (transaction "
            f"{mark.n}, from {mark.start}): somebody has reset the group's offsets. Nothing was skipped. Stop the "
            f"service and say which is right: `statehold repair adopt-offsets MODULE:SERVICE --from mark|group --why "
            f"... --dry-run`",
            topic=self._names.input,
            partition=self._partition,
            position=position,
        )

    def _committed(self) -> int | None:
        """:raises RestoreTimeout: the group's coordinator did not answer within `restore.deadline`."""
        until = self._tools.clock() + self._tools.settings.restore.deadline
        try:
            return self._patiently(
                "read the group's offset",
                lambda: self._tools.offsets.committed(self._names.input, self._partition),
                lambda _: self._tools.clock() >= until,
            )
        except Misconfigured:
            raise
        except KafkaTrouble as error:
            raise RestoreTimeout(
                f"the offset of group {self._names.group!r} did not come within restore.deadline ({error}); is its "
                f"coordinator reachable? `statehold retry {self._partition}` tries again",
                topic=self._names.input,
                partition=self._partition,
            ) from error

    def _patiently(self, doing: str, call: Callable[[], T], stop: Callable[[tenacity.RetryCallState], bool]) -> T:
        """Brokers come and go: repeat until it works, until `stop`, or until the partition leaves.

        :raises Cancelled: it leaves. :raises KafkaTrouble: the last one, or the first that no repetition mends.
        """
        any_signal = self._signals.any
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, KafkaTrouble) and not isinstance(e, Misconfigured)
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            stop=lambda state: any_signal.is_set() or stop(state),
            sleep=tenacity.sleep_using_event(any_signal),
            before_sleep=lambda state: self._tell(doing, state),
            reraise=True,
        )
        try:
            return retrying(call)
        except KafkaTrouble as error:
            if self._signals.leaving() and not isinstance(error, Misconfigured):
                raise Cancelled from error
            self._signals.raise_failure()  # what ended the patience tells more than the last answer
            raise

    def _check_input(self, bounds: tuple[int, int], restored: Restored) -> None:
        start, end = bounds
        if restored.position < start:
            raise gap(self._tools.place, restored.position, f"the topic begins at {start}")
        position = restored.mark.positions[self._names.input]
        if position > end:
            raise gap(self._tools.place, position, f"the topic ends at {end}: records that were handled are gone")

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        self._tools.log.warning(event, **fields)  # type: ignore[arg-type]

    def _tell(self, doing: str, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._tools.log.warning("kafka_retry", doing=doing, attempt=state.attempt_number, cause=str(error))
        clear_frames(
            error
        )  # a failed attempt's producer would live on in them (`src/statehold/common/background_call.py`)
