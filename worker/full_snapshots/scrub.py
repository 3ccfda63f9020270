"""Reads the files of live partitions again in the background, and compares their digest with their label (rule X7).

One thread of the process reads them in small pieces, and rests so long after each that it stays below `state.scrub`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from statehold.common.threads import SYSTEM, Threads
from statehold.disk import label as labels
from statehold.disk.disk_state import DiskState
from statehold.disk.port import StoreClosed, StoreSnapshot
from statehold.disk.rows import DamagedRow
from statehold.disk.stored import Scanned, scan
from statehold.disk.usage import ScrubNote
from statehold.errors import LocalStoreFailed
from statehold.ports import Clock
from statehold.state import digest
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import PartitionMetrics

#: rows of a piece: about a millisecond, because the live threads share the interpreter
_ROWS: Final = 256
#: seconds between the beginnings of two passes over a partition, and the least rest
_EVERY, _REST = 600.0, 0.05
#: A snapshot keeps replaced pages in the file. When it has grown by so much, or by this part, the pass continues with
#: a new snapshot. Its rows are checked, and their digest is that of no moment.
_GROWTH, _PART = 64_000_000, 8


@dataclass(eq=False)
class _Pass:
    """One partition's files, and how far the pass over them is."""

    state: DiskState
    fail: Callable[[BaseException], None]
    metrics: PartitionMetrics
    log: Log
    due: float
    began: float = 0.0
    snapshot: StoreSnapshot | None = None
    pieces: Iterator[Scanned] = field(default_factory=lambda: iter(()))
    #: the place behind which the next snapshot continues
    at: tuple[str, bytes] | None = None
    #: all rows are of one snapshot
    whole: bool = True
    #: bytes at which the snapshot is given up
    most: int = 0
    digest: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def open(self) -> None:
        store = self.state.store
        size = store.size()
        self.most = size + min(max(_GROWTH, size // _PART), store.room() // 2)
        self.snapshot = store.snapshot()
        self.pieces = scan(self.state.codecs(), self.state.indexes(), self.snapshot, _ROWS, self.at)

    def close(self) -> None:
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            snapshot.close()

    @property
    def rows(self) -> int:
        """Return the rows read so far, without the entries of indexes."""
        return sum(self.counts.get(name, 0) for name in self.state.tables)

    def reset(self, due: float) -> None:
        self.close()
        self.at, self.whole, self.digest, self.due = None, True, 0, due
        self.counts = {}


class Scrub:
    """A `context.Scrubbing`. `run` is the thread's body; any thread may call `join`, `leave` and `close`."""

    def __init__(self, share: float, clock: Clock, wall: Clock, threads: Threads = SYSTEM) -> None:
        """`share`: the most processor time, as a part of one core."""
        self._share, self._clock, self._wall, self._threads = share, clock, wall, threads
        #: held while a piece is read, so that the files of a partition that leaves are not in use
        self._lock = threading.Lock()
        self._passes: dict[DiskState, _Pass] = {}
        self._ending = threads.event()

    def start(self) -> None:
        self._threads.thread(self.run, "scrub").start()

    def close(self) -> None:
        """Stop the thread soon, without waiting for it."""
        self._ending.set()

    def join(
        self,
        state: DiskState,
        fail: Callable[[BaseException], None],
        meters: PartitionMetrics,
        log: Log,
    ) -> None:
        """Read the files of a live partition from now on. `fail` ends the partition's work with a cause."""
        with self._lock:
            self._passes[state] = _Pass(state, fail, meters, log, self._clock())

    def leave(self, state: DiskState) -> None:
        """Read them no more; wait for one piece at most."""
        with self._lock:
            left = self._passes.pop(state, None)
            if left is not None:
                left.close()

    def run(self) -> None:
        """Work until `close`."""
        rest = _REST
        while not self._ending.wait(rest):
            began = self._threads.processor_time()
            idle = not self.turn()
            used = self._threads.processor_time() - began
            rest = 1.0 if idle else max(_REST, used * (1.0 / self._share - 1.0))

    def turn(self) -> bool:
        """Read one piece of the partition whose pass is open or is due first. False: none is due."""
        with self._lock:
            open_, now = [each for each in self._passes.values() if each.snapshot is not None], self._clock()
            due = [each for each in self._passes.values() if each.due <= now]
            chosen = open_[0] if open_ else min(due, key=lambda each: each.due, default=None)
            if chosen is None:
                return False
            try:
                self._read(chosen, now)
            except StoreClosed:
                self._passes.pop(chosen.state, None)
            except DamagedRow as error:
                self._differs(chosen, str(error))
            except LocalStoreFailed as error:
                self._stop(chosen, error)
            return True

    def _read(self, each: _Pass, now: float) -> None:
        if each.snapshot is None:
            if each.at is None:
                each.began = now
            each.open()
        piece = next(each.pieces, None)
        if piece is None:
            self._end(each, now)
            return
        each.at = piece.table, piece.last
        each.digest += piece.digest
        each.counts[piece.table] = each.counts.get(piece.table, 0) + piece.rows
        if each.state.store.size() > each.most:
            each.whole = False
            each.close()
            each.due = now

    def _end(self, each: _Pass, now: float) -> None:
        """All rows are read: compare their digest with the label of the same snapshot."""
        assert each.snapshot is not None
        data = each.snapshot.label() if each.whole else None
        label = None if data is None else labels.decoded(data)
        if label is not None and (difference := _difference(each, label)):
            self._differs(each, difference)
            return
        if label is not None:
            each.metrics.set(metrics.LOCAL_STORE_SCRUBBED, self._wall())
        outcome = "rows_only" if label is None else "equal"
        each.metrics.inc(metrics.LOCAL_STORE_SCRUBS, 1, outcome)
        each.state.scrubbed = each.state.store.scrubbed(ScrubNote(self._wall(), each.rows, outcome))
        each.log.info(
            "local_store_scrubbed",
            rows=each.rows,
            seconds=round(now - each.began, 1),
            digest_compared=label is not None,
        )
        each.reset(max(now, each.began + _EVERY))

    def _differs(self, each: _Pass, cause: str) -> None:
        each.metrics.inc(metrics.LOCAL_STORE_SCRUBS, 1, "differs")
        now = self._wall()
        each.state.store.scrubbed(ScrubNote(now, each.rows, "differs", now, cause[:500]))
        self._stop(each, each.state.store.damaged(f"a scrub has read the files again: {cause}"))

    def _stop(self, each: _Pass, error: BaseException) -> None:
        self._passes.pop(each.state, None)
        each.close()
        each.fail(error)


def _difference(each: _Pass, label: labels.StoreLabel) -> str:
    """Return how the rows that were read differ from the commit record of their snapshot; '': they do not."""
    found, counts = digest.to_bytes(each.digest), {name: each.counts.get(name, 0) for name in label.counts}
    if (found, counts) == (label.record.digest, label.counts):
        return ""
    return (
        f"the rows have digest {digest.show(found)} and keys {counts}, the commit record of transaction "
        f"{label.record.n} {digest.show(label.record.digest)} and {label.counts}"
    )
