"""The watches of a client: each follows the changelog on a thread of its own, or on the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.watch.changes import TableChange, WatchedTable
from statehold.watch.position import WatchedTo, parse
from statehold.watch.watcher import Watcher

#: most changes that are handed to an event loop at a time
_BATCH: Final = 500
_numbers: Final = count(1)


#: a position, and the change before it; None: all that was committed has been handed over
Look = tuple[str, TableChange[Any] | None]


class WatchOrder(NamedTuple):
    """What to watch: `after` is the text of a position, '' from now on; no partitions: all."""

    table: WatchedTable
    after: str
    partitions: tuple[int, ...] = ()

    def choose(self, existing: int) -> tuple[list[int], dict[int, WatchedTo]]:
        """Return the partitions to read, and the position.

        :raises UsageError: there is no such partition, or the position misses one.
        """
        position, chosen = parse(self.after), sorted(set(self.partitions)) or list(range(existing))
        if wrong := [each for each in chosen if not 0 <= each < existing]:
            raise UsageError(f"partition {wrong[0]}: the input has {existing} partitions. Nothing was read")
        if position and (missing := [each for each in chosen if each not in position]):
            raise UsageError(
                f"the position has no partition {missing[0]}. Nothing was read. Next: read the table, and watch from "
                f"the position of that page; or name the partitions of the position"
            )
        return chosen, position


class Watches:
    """Any thread may use it."""

    def __init__(self, settings: Settings, names: Names, admin: Callable[[], Admin]) -> None:
        self._settings, self._names, self._admin = settings, names, admin
        self._open: set[threading.Event] = set()

    def blocking(self, order: WatchOrder, existing: int) -> Iterator[TableChange[Any]]:
        """Yield changes on this thread until `close`, or until the generator is closed."""
        with closing(self.looks(order, existing)) as looks:
            yield from (change for _, change in looks if change is not None)

    def looks(self, order: WatchOrder, existing: int) -> Generator[Look, None, None]:
        """Do the same as `blocking`, with the position behind each change, and after each look without a change."""
        with self._watcher(order, existing) as (watcher, _), closing(watcher.changes()) as changes:
            for change in changes:
                yield watcher.position, change

    async def on_a_thread(self, order: WatchOrder, existing: int) -> AsyncGenerator[TableChange[Any], None]:
        """Do the same as `blocking`, on a thread of its own."""
        thread = ThreadPoolExecutor(1, f"client-watch-{next(_numbers)}")
        with self._watcher(order, existing) as (watcher, ending):
            batches = batches_of(watcher.changes())
            try:
                take = partial(asyncio.get_running_loop().run_in_executor, thread, next, batches, None)
                while (batch := await take()) is not None:
                    for change in batch:
                        yield change
            finally:
                ending.set()
                thread.submit(batches.close)
                thread.shutdown(wait=False)

    def close(self) -> None:
        """End all watches soon."""
        for ending in list(self._open):
            ending.set()

    @contextmanager
    def _watcher(self, order: WatchOrder, existing: int) -> Iterator[tuple[Watcher, threading.Event]]:
        chosen, position = order.choose(existing)
        ending = threading.Event()
        make = partial(CommittedReader, self._settings, self._names.group, self._admin(), ending.is_set, small=True)
        self._open.add(ending)
        try:
            yield Watcher(self._names, order.table, chosen, position, make, ending.wait), ending
        finally:
            self._open.discard(ending)


def batches_of(
    changes: Iterator[TableChange[Any] | None], most: int = _BATCH
) -> Generator[list[TableChange[Any]], None, None]:
    """Yield changes in lists: those of one look, up to `most`."""
    batch: list[TableChange[Any]] = []
    for change in changes:
        if change is not None:
            batch.append(change)
        if batch and (change is None or len(batch) >= most):
            yield batch
            batch = []
