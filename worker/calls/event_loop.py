"""The event loop of a process on which all its partitions make their calls, and the threads of plain functions."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Final, Protocol

from statehold.api.call import CallOptions
from statehold.common.deadline import SharedTimers
from statehold.errors import class_and_text
from statehold.health.fork_guard import no_fork
from statehold.messages.call_outcome import CallJob
from statehold.worker.calls.gates import Gate

#: seconds without a turn of the loop after which a function blocks it
BLOCKED: Final = 2.0
_BEAT: Final = 0.5
_DEPTH: Final = 12


class Source(Protocol):
    """Has attempts that may begin. All methods run on the loop's thread."""

    def begin(self, *, plain: bool) -> bool:
        """Begin the next attempt, of a plain function or of an async one. False: none may begin now."""
        ...

    def cancel(self, job: CallJob, task: asyncio.Task[None]) -> None:
        """Cancel an attempt, and end it without its function if that does not end."""
        ...


class AttemptLimit:
    """The end of one attempt's time, as `asyncio.timeout` ends it: by cancelling its task."""

    __slots__ = ("_before", "_job", "_source", "_task", "over")

    def __init__(self, source: Source, job: CallJob) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._source, self._job = source, job
        self._task, self._before, self.over = task, task.cancelling(), False

    def end(self) -> None:
        self.over = True
        self._source.cancel(self._job, self._task)

    def ended_it(self) -> bool:
        """Return whether nothing else has cancelled the task, which has been cancelled."""
        return self.over and self._task.uncancel() <= self._before


class CallLoop:
    """One per process. Other threads use `soon`, `run`, `start` and `blocked`, the loop's own every other method.

    An attempt holds its place among `most` only while its function runs: it waits for nothing else, and a time limit
    ends it. So attempts that wait for a place always get one.
    """

    def __init__(self, patience: float = 5.0) -> None:
        """`patience`: seconds in which an async function is to end that was cancelled."""
        self.loop, self.patience = _new_loop(), patience
        self._sources: deque[Source] = deque()
        #: limits of the process, and what runs
        self.most, self.most_plain = 1, 1
        self.running, self.running_plain = 0, 0
        #: coroutines that other threads wait for
        self._started = 0
        #: functions that run although their attempts have ended: another one takes the place of each
        self.stuck, self.stuck_plain = 0, 0
        self._queue: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = (
            queue.SimpleQueue()
        )
        self._threads, self._busy = 0, 0
        #: by the identity of the options, which stay here so that it is theirs
        self._gates: dict[int, tuple[CallOptions, Gate]] = {}
        #: ends attempts whose time is over
        self.limits = SharedTimers(AttemptLimit.end)
        self._beaten, self._beating = time.monotonic(), False
        self._thread = threading.Thread(target=self._run, name="calls", daemon=True)
        self._thread.start()

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        self.loop.call_soon_threadsafe(call, *args)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Any other thread: run a coroutine to its end. Raises what it raises."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Any other thread: run a coroutine. It takes no place of an attempt; `cancel` of the future cancels it."""
        return asyncio.run_coroutine_threadsafe(self._watched(coroutine), self.loop)

    def join(self, source: Source, most: int, most_plain: int) -> None:
        """Take attempts of a partition, too. The largest limits count, because they are the process's."""
        self.most, self.most_plain = max(self.most, most), max(self.most_plain, most_plain)
        self._sources.append(source)

    def leave(self, source: Source) -> None:
        if source in self._sources:
            self._sources.remove(source)

    def gate(self, options: CallOptions) -> Gate:
        """Return the gate of a `Call`, which all partitions of the process share."""
        found = self._gates.get(id(options))
        if found is None:
            gate = Gate(self.loop.call_later, time.monotonic, options.rate, options.outage_after, options.max_backoff)
            found = self._gates[id(options)] = options, gate
        return found[1]

    def pump(self) -> None:
        """Begin attempts of all partitions in turn, as many as the limits allow."""
        if self.running < self._room:
            self._begin(plain=False)
        if self.running_plain < self._room_plain:
            self._begin(plain=True)
        self._watch()

    def ended(self, *, plain: bool) -> None:
        """An attempt has ended: one of its kind may begin."""
        if plain:
            self.running_plain -= 1
        else:
            self.running -= 1
        self._begin(plain=plain)

    def abandoned(self) -> None:
        """An attempt has ended whose async function continues."""
        self.stuck += 1
        self.ended(plain=False)

    def left(self) -> None:
        """Such a function has ended."""
        self.stuck -= 1
        self.pump()

    async def on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a plain function. A cancelled one continues on its thread, and its value is dropped."""
        future = self.loop.create_future()
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"calls.{self._threads}", daemon=True).start()
        self._queue.put((future, function, args))
        try:
            return await future
        except asyncio.CancelledError:
            self.stuck_plain += 1
            raise

    def blocked(self) -> str:
        """Any thread: return where a function blocks the loop; '' if none does."""
        if not self._beating or time.monotonic() - self._beaten < BLOCKED:
            return ""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame, _DEPTH)) if frame is not None else ""

    @property
    def _runs(self) -> int:
        """How many functions may block the loop, or wait for it."""
        return self.running + self.running_plain + self._started + self.stuck

    @property
    def _room(self) -> int:
        return min(self.most, 2 * self.most - self.stuck)

    @property
    def _room_plain(self) -> int:
        return min(self.most_plain, 2 * self.most_plain - self.stuck_plain)

    def _begin(self, *, plain: bool) -> None:
        idle = 0
        while idle < len(self._sources):
            if (self.running_plain >= self._room_plain) if plain else (self.running >= self._room):
                return
            source = self._sources[0]
            self._sources.rotate(-1)
            if not source.begin(plain=plain):
                idle += 1
                continue
            idle = 0
            if plain:
                self.running_plain += 1
            else:
                self.running += 1

    async def _watched(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(_retrieve)
        self._started += 1
        self._watch()
        try:
            return await coroutine
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise RuntimeError(class_and_text(error)) from error
        finally:
            self._started -= 1

    def _watch(self) -> None:
        """Beat from now on if something runs."""
        if not self._beating and self._runs:
            self._beating = True
            self._beat()

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        if self._runs:
            self.loop.call_later(_BEAT, self._beat)
        else:
            self._beating = False

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with no_fork():
            self.loop.run_forever()

    def _work(self) -> None:
        with no_fork():
            while True:
                future, function, args = self._queue.get()
                value, error = None, None
                try:
                    if not future.cancelled():
                        value = function(*args)
                except BaseException as raised:  # noqa: BLE001  SystemExit, too, would end this thread silently
                    error = raised
                self.soon(self._worked, future, value, error)
                del future, function, args, value, error

    def _worked(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.cancelled():
            self.stuck_plain -= 1
            self.pump()
        elif error is not None:
            future.set_exception(_settable(error))
        else:
            future.set_result(value)


def _settable(error: BaseException) -> BaseException:
    """Return an error that a future takes: no StopIteration, and no SystemExit, which would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(class_and_text(error))


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take the error, because asyncio logs one that a thread which has cancelled the task does not take."""
    if not task.cancelled():
        task.exception()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop if it is installed, else of asyncio."""
    try:
        made: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return made


_lock: Final = threading.Lock()
_loop: list[CallLoop] = []


def process_loop() -> CallLoop:
    """Return the loop of this process. It stays, because clients that functions keep belong to their loop."""
    with _lock:
        if not _loop:
            _loop.append(CallLoop())
        return _loop[0]
