"""Keeps standby copies of partitions that other instances own, so that a takeover reads only the last records.

One thread keeps all copies. It has no group and no producer, so it cannot disturb an owner. It shares the interpreter
with live partitions, so it works in small slices and rests after each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from statehold.common.threads import SYSTEM, ThreadEvent, Threads
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.port import PartitionStore
from statehold.disk.start import FollowingFiles, keep, start_from_files
from statehold.errors import KafkaTrouble, RestoreTimeout, StateholdError, class_and_text
from statehold.ports import Cancelled, Clock, FollowingReader, OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.restore.restore import Note, restore
from statehold.snapshot.restore.standby_copy import Copy, Unfit, copied
from statehold.snapshot.restore.throttled_reader import ThrottledReader
from statehold.state.state import State
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import Meters
from statehold.worker.common.memory_guard import Memory, Room
from statehold.worker.replicas.queries import Committed
from statehold.worker.replicas.reader_lease import OwnReader

#: seconds between two reads of the log ends: a takeover reads at least so much, and a query's answer is so old
_ROUND: Final = 0.2
#: seconds between two reads of the standby assignment
_LOOK: Final = 3.0
#: the rest after a slice, as a multiple of the slice's duration
_REST: Final = 1.0
#: seconds without data after which Kafka counts as down, because other copies wait
PATIENCE: Final = 10.0
#: seconds that a new owner waits for a copy of its partition that is being built, and has its files
_LETS_GO: Final = 5.0
#: seconds until a dropped copy is rebuilt, doubled each time, and their limit; in an outage of Kafka a lower one,
#: because the copy is wanted as soon as Kafka answers
_AGAIN, _LONGEST, _LONGEST_IN_OUTAGE = 5.0, 300.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyTools:
    """The dependencies of `Standbys`. The standby thread may call everything here."""

    #: asks the brokers, because topics may have been created again
    locate: Callable[[int], Place]
    new_state: Callable[[], State]
    #: the files of tables on disk; None: the handler has no table there
    disk: DiskTables | None = None
    #: a reader whose calls end with Cancelled once the argument returns True
    reader: Callable[[Callable[[], bool]], FollowingReader]
    #: the partitions to keep copies of; None: unchanged
    chosen: Callable[[], Collection[int] | None]
    #: the partitions that the group has assigned to this process
    assigned: Callable[[], Collection[int]]
    memory_limit: Any
    memory: Memory
    increment: str
    metrics: Meters
    log: Log
    clock: Clock
    threads: Threads = SYSTEM


class Standbys:
    """Keeps the standby copies: a `context.Standby`. `run` is the thread's body; any thread may call the rest."""

    def __init__(self, around: StandbyTools) -> None:
        self._around = around
        self._lock = threading.Lock()
        self._copies: dict[int, Copy] = {}
        #: the copy that is being built
        self._loading: tuple[int, Progress] | None = None
        self._wanted: frozenset[int] = frozenset()
        #: partition -> how often in a row its copy was dropped, and when to rebuild it
        self._failures: dict[int, tuple[int, float]] = {}
        self._looked = float("-inf")
        self._round = float("-inf")
        #: no copy is being built
        self._built = around.threads.event()
        self._built.set()
        self._ending = around.threads.event()
        self._reader = OwnReader(partial(around.reader, self._ending.is_set))

    def start(self) -> None:
        self._around.threads.thread(self.run, "standby").start()

    def close(self) -> None:
        """Stop the thread soon, without waiting for it."""
        self._ending.set()
        self.give_way()

    def renew(self) -> None:
        """Continue with new clients, because the login has changed."""
        self._reader.renew()

    def take(self, partition: int) -> Copy | None:
        """Hand the copy over to its new owner; wait for one slice at most, or until one that is built lets go."""
        loading = self._loading
        if self._around.disk is not None and loading is not None and loading[0] == partition:
            self._built.wait(_LETS_GO)  # because its files are locked until then
        with self._lock:
            copy = self._copies.pop(partition, None)
            if copy is not None:
                copy.taken = True
            return copy

    def give_way(self) -> bool:
        with self._lock:
            held = sorted(self._copies)
            for partition in held:
                self._copies.pop(partition).state.close(flush=False)
                self._postpone(partition)
        for partition in held:
            self._around.log.warning("standby_dropped", partition=partition, cause="its memory is needed")
        return bool(held)

    def committed(self, oldest: float) -> dict[int, Committed]:
        """Return the copies that are at most `oldest` seconds old, for queries."""
        now = self._around.clock()
        return {
            partition: Committed.of_copy(copy, self._around.clock)
            for partition, copy in self.copies().items()
            if now - copy.fresh <= oldest
        }

    def copies(self) -> dict[int, Copy]:
        """Return the complete copies; drop them soon."""
        with self._lock:
            return dict(sorted(self._copies.items()))

    def status(self) -> list[dict[str, Any]]:
        """Describe each copy for people: its transaction, its greatest age in seconds, its progress."""
        now = self._around.clock()
        shown: list[dict[str, Any]] = [
            {
                "partition": partition,
                "transaction": copy.shown.n,
                "position": copy.shown.position(copy.place.input),
                "keys": copy.state.keys,
                "age": round(max(0.0, now - copy.fresh), 3),
                "loading": None,
            }
            for partition, copy in self.copies().items()
        ]
        if (loading := self._loading) is not None:
            none = dict.fromkeys(("transaction", "position", "keys", "age"))
            shown.append({"partition": loading[0], **none, "loading": loading[1].view() or {}})
        return sorted(shown, key=lambda each: each["partition"])

    # The thread

    def run(self) -> None:
        """Work until `close`."""
        while not self._ending.wait(_ROUND):
            try:
                self.turn()
            except Cancelled:
                continue
            except (KafkaTrouble, RestoreTimeout) as error:  # the copies grow old until Kafka answers
                self._around.log.debug("kafka_retry", doing="follow the changelog", cause=str(error))
                self._reader.drop()
            except Exception as error:
                self._around.log.error("thread_died", thread="standby", cause=class_and_text(error), exc_info=True)
                self.give_way()
                self._reader.drop()
        self._reader.drop()

    def turn(self) -> None:
        """Read the standby assignment, follow with all copies, build one that is missing."""
        self._look()
        self.follow()
        missing = sorted(self._wanted - self._copies.keys() - set(self._around.assigned()))
        now = self._around.clock()
        for partition in missing:
            if self._failures.get(partition, (0, now))[1] <= now:
                self._build(partition)
                return

    def _look(self) -> None:
        now = self._around.clock()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        found = self._around.chosen()
        if found is None:
            return
        # Keep it for one more round, because the group may just have assigned it to this process.
        before, self._wanted = self._wanted, frozenset(found)
        for partition in self._copies.keys() - self._wanted - before - set(self._around.assigned()):
            if (copy := self.take(partition)) is not None:
                copy.state.close(flush=False)
                self._around.log.info("standby_dropped", partition=partition, cause="this member no longer keeps it")

    def follow(self) -> None:
        """Feed every copy with the committed records; at most once in a round."""
        asked = self._around.clock()
        copies = self.copies()
        if asked - self._round < _ROUND or not copies:
            return
        self._round = asked
        reader = self._reader.get()
        ends = reader.ends(self._around.increment, list(copies))
        for partition, copy in copies.items():
            try:
                self._follow(reader, partition, copy, ends[partition], asked)
            except (OutOfRange, frame.BadFrame, StateholdError) as error:
                if isinstance(error, (KafkaTrouble, RestoreTimeout)):
                    raise
                self._drop_copy(partition, copy, error)

    def _follow(self, reader: Reader, partition: int, copy: Copy, end: int, asked: float) -> None:
        if end < copy.offset:
            raise Unfit(f"the log ends at {end}, and was read up to {copy.offset}")
        self._room(copy.place).look(asked, 0)
        slices = ThrottledReader(reader, self._ending, self._around.threads.processor_time, rest=_REST)
        for batch in slices.read(self._around.increment, partition, copy.offset, end):
            with self._lock:
                if self._copies.get(partition) is not copy:
                    return  # its new owner took it
                copy.feed(batch)
        with self._lock:
            if self._copies.get(partition) is copy:
                copy.read_up_to(end, asked)
                self._failures.pop(partition, None)

    def _drop_copy(self, partition: int, copy: Copy | None, error: BaseException) -> None:
        with self._lock:
            if copy is not None and self._copies.get(partition) is not copy:
                return
            if copy is not None:
                self._copies.pop(partition, None)
                copy.state.close(flush=False)
            outage = isinstance(error, (KafkaTrouble, RestoreTimeout))
            again = self._postpone(partition, _LONGEST_IN_OUTAGE if outage else _LONGEST)
        self._around.metrics.inc(metrics.STANDBYS_DROPPED)
        kind, cause = type(error).__name__, str(error)
        self._around.log.warning("standby_dropped", partition=partition, error=kind, cause=cause, again_in=again)

    def _postpone(self, partition: int, longest: float = _LONGEST) -> float:
        times = self._failures.get(partition, (0, 0.0))[0]
        again = min(longest, _AGAIN * 2.0 ** min(times, 10))
        self._failures[partition] = times + 1, self._around.clock() + again
        return again

    # Building a copy

    def _build(self, partition: int) -> None:
        """Restore without a fence. The owner continues meanwhile, and a later round follows."""
        around, began = self._around, self._around.clock()

        def cancelled() -> bool:
            return self._ending.is_set() or partition in around.assigned()

        reader, store = around.reader(cancelled), None
        self._built.clear()
        try:
            place = around.locate(partition)
            room = self._room(place)
            progress = Progress(around.clock, guard=room)
            self._loading = partition, progress
            store = None if around.disk is None else around.disk.open(place)
            slowly = _FixedEnd(reader, place, self._ending, around.threads, self.follow)
            note = partial(self._note, partition)
            with room:
                copy = self._copy(slowly, reader, place, store, note, progress)
            copy.fresh = began
            with self._lock:
                if cancelled():
                    return
                self._copies[partition], store = copy, None
        except (OutOfRange, frame.BadFrame, StateholdError) as error:
            self._drop_copy(partition, None, error)
            return
        finally:
            if store is not None:
                store.close(flush=False)
            self._loading = None
            self._built.set()
            reader.close()
        around.log.info(
            "standby_ready",
            partition=partition,
            n=copy.commit_record.n,
            keys=copy.state.keys,
            from_files=(isinstance(copy, FollowingFiles) and copy.from_files) or None,
            seconds=round(around.clock() - began, 3),
        )

    def _copy(
        self,
        slowly: Reader,
        reader: Reader,
        place: Place,
        store: PartitionStore | None,
        note: Note,
        progress: Progress,
    ) -> Copy:
        around = self._around
        if store is None or around.disk is None:
            restored = restore(slowly, place, around.new_state, note, around.clock, progress=progress)
            return copied(reader, place, restored, Copy)
        found = start_from_files(slowly, place, around.disk.replica(store), note, around.clock, progress)
        if found is None:
            new_state = partial(around.disk.empty_replica, store)
            found = restore(slowly, place, new_state, note, around.clock, progress=progress)
            keep(place, found)
        return copied(reader, place, found, FollowingFiles)

    def _room(self, place: Place) -> Room:
        around = self._around
        rest = None if around.disk is None else around.disk.budget.rest
        return Room(around.memory, around.memory_limit, place, on_disk=rest)

    def _note(self, partition: int, event: str, fields: dict[str, object]) -> None:
        """Log the notes of a restore at debug level, because the owner handles missing full snapshots."""
        self._around.log.debug(event, partition=partition, standby=True, **fields)  # type: ignore[arg-type]


class _FixedEnd(ThrottledReader):
    """Reads the changelog up to the end that it had when the reader was made.

    The owner is not fenced and continues to write, but a restore must reach the commit record that it found last.
    """

    def __init__(
        self, reader: Reader, place: Place, ending: ThreadEvent, threads: Threads, follow: Callable[[], None]
    ) -> None:
        super().__init__(reader, ending, threads.processor_time, rest=_REST, after_slice=follow)
        self._changelog = place.names.changelog
        self._end = reader.bounds(self._changelog, place.partition)[1]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        start, end = super().bounds(topic, partition)
        return start, self._end if topic == self._changelog else end
