"""The watches of a client: each follows the changelog on a thread of its own, or on the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.watch.changes import TableChange, WatchedTable
from statehold.watch.position import WatchedTo, parse
from statehold.watch.watcher import Watcher

V = TypeVar("V")

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

    def looks(self, order: WatchOrder, existing: int) -> Generator[Look, None, None]:
        """Yield changes on this thread until `close`, or until the generator is closed; None after each look."""
        with self._watcher(order, existing) as (watcher, _), closing(watcher.changes()) as changes:
            for change in changes:
                yield watcher.position, change

    async def on_a_thread(self, order: WatchOrder, existing: int) -> AsyncGenerator[Look, None]:
        """Do the same as `looks`, on a thread of its own; None only where the position has moved."""
        thread = ThreadPoolExecutor(1, f"client-watch-{next(_numbers)}")
        with self._watcher(order, existing) as (watcher, ending):
            batches = batches_of((watcher.position, change) for change in watcher.changes())
            try:
                take = partial(asyncio.get_running_loop().run_in_executor, thread, next, batches, None)
                while (batch := await take()) is not None:
                    for look in batch:
                        yield look
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


def batches_of(looks: Iterator[Look], most: int = _BATCH) -> Generator[list[Look], None, None]:
    """Yield changes in lists, up to `most` at a time, and a look without a change where the position has moved."""
    batch: list[Look] = []
    told = ""
    for position, change in looks:
        if change is not None or position != told:
            batch.append((position, change))
            told = position
        if batch and (change is None or len(batch) >= most):
            yield batch
            batch = []


class TableWatch(AsyncGenerator[TableChange[V], None]):
    """What `Client.watch` returns: an asynchronous iterator over the changes of a table, with `aclose`.

    `position` is where a watch continues behind all that it has handed over. It moves also while no change comes, so
    store it now and then for a table that seldom changes: the position of an old change may not be kept any more.
    """

    def __init__(self, looks: AsyncGenerator[Look, None], position: str) -> None:
        self._looks, self.position = looks, position

    async def __anext__(self) -> TableChange[V]:
        async for position, change in self._looks:
            self.position = position or self.position
            if change is not None:
                return change
        raise StopAsyncIteration

    async def asend(self, value: None) -> TableChange[V]:
        return await self.__anext__()

    async def athrow(self, kind: Any, error: Any = None, trace: Any = None) -> TableChange[V]:
        await self._looks.athrow(kind if error is None else error)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._looks.aclose()


class BlockingTableWatch(Generator[TableChange[V], None, None]):
    """What `Client.watch_blocking` returns: an iterator over the changes of a table, with `close`.

    `position` is as in `TableWatch`. Another thread may read it.
    """

    def __init__(self, looks: Generator[Look, None, None], position: str) -> None:
        self._looks, self.position = looks, position

    def __next__(self) -> TableChange[V]:
        for position, change in self._looks:
            self.position = position or self.position
            if change is not None:
                return change
        raise StopIteration

    def send(self, value: None) -> TableChange[V]:
        return next(self)

    def throw(self, kind: Any, error: Any = None, trace: Any = None) -> TableChange[V]:
        self._looks.throw(kind if error is None else error)
        raise StopIteration

    def close(self) -> None:
        self._looks.close()
