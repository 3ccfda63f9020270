"""Threads, and how they wait for each other: a seam, because a simulation runs them as tasks of one thread."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol

from statehold.errors import class_and_text


class ThreadEvent(Protocol):
    """A flag that threads wait for: `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether it is set."""
        ...


class ThreadCondition(Protocol):
    """A lock with a wait: `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify(self) -> None: ...


class ThreadQueue(Protocol):
    """A queue without bounds: `queue.SimpleQueue`."""

    def put(self, item: Any) -> None: ...

    def get(self) -> Any:
        """Wait for the next item."""
        ...

    def empty(self) -> bool: ...


class Thread(Protocol):
    """A thread: `threading.Thread`."""

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Threads(Protocol):
    """Makes what the threads of a service consist of."""

    def event(self) -> ThreadEvent: ...

    def condition(self) -> ThreadCondition: ...

    def queue(self) -> ThreadQueue: ...

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """Return a daemon thread that is not started."""
        ...

    def short_thread(self, run: Callable[[], None], name: str) -> Thread:
        """Return the same for a call that is short: its thread may be one that has made others."""
        ...

    def processor_time(self) -> float:
        """Return the seconds of processor time that the calling thread has used."""
        ...


class SystemThreads:
    """Threads of the operating system."""

    event = staticmethod(threading.Event)
    condition = staticmethod(threading.Condition)
    processor_time = staticmethod(time.thread_time)

    def queue(self) -> ThreadQueue:
        return queue.SimpleQueue()

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def short_thread(self, run: Callable[[], None], name: str) -> Thread:
        return _ShortThread(run, name)


class _ShortThread:
    """One call on a thread that waits for the next one afterwards: a new thread costs more than most of a commit."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run: Callable[[], None] | None = run
        self.name, self._ended = name, threading.Event()

    def start(self) -> None:
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _ReusedThread()
        worker.given.put(self)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def make(self) -> None:
        """Make the call, and keep nothing of it."""
        run, self._run = self._run, None
        assert run is not None
        run()

    def end(self) -> None:
        self._ended.set()


class _ReusedThread:
    """Makes calls, one after the other, until none comes for a second."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[_ShortThread] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        """Return whether to wait for another call. A frame of its own, because a kept error refers to it."""
        try:
            call = self.given.get(timeout=_IDLE)
        except queue.Empty:
            try:
                _idle.remove(self)
            except ValueError:  # it has just been taken, and its call is on its way
                return True
            return False
        self._thread.name = call.name
        try:
            call.make()
            self._thread.name = "idle"
            _idle.append(self)  # first, because who waits for the end may begin the next call at once
        finally:
            call.end()
        return True


#: seconds without a call after which a reused thread ends
_IDLE: Final = 1.0
#: those that wait for a call. A fork leaves the threads to the parent
_idle: Final[list[_ReusedThread]] = []
os.register_at_fork(after_in_child=_idle.clear)

SYSTEM: Final[Threads] = SystemThreads()


class CallInProgress(Protocol):
    """A call in progress. Only the thread that began it uses this object."""

    def ended(self, within: float = 0.0) -> bool:
        """Return whether it has ended, with or without an error; wait at most `within` seconds."""
        ...

    def wait(self) -> None:
        """Wait for the end of the call; raise what it raised."""
        ...


#: begins a call; the name is for its thread
BeginCall = Callable[[Callable[[], None], str], CallInProgress]


class Background:
    """Starts at once. The thread is a daemon, so a call that Kafka does not answer does not keep a process alive."""

    def __init__(self, call: Callable[[], None], name: str, threads: Threads = SYSTEM) -> None:
        self._error: BaseException | None = None
        self._again: BaseException | None = None
        self._thread = threads.short_thread(partial(self._run, call), name)
        self._thread.start()

    def ended(self, within: float = 0.0) -> bool:
        self._thread.join(max(0.0, within))
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        # The waiting caller has this object in a frame of the error's traceback. If the error stayed here, it would be
        # in a reference cycle with its frames and their producer, which the collector finds weeks later, or never.
        error, self._error = self._error or self._again, None
        if error is None:
            return
        try:
            self._again = _like(error)
            raise error
        finally:
            del error

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error


def _like(error: BaseException) -> BaseException:
    """Return the same error without frames, for a caller that waits once more."""
    try:
        return type(error)(*error.args)
    except Exception:  # noqa: BLE001  a class may want other arguments than it keeps
        return RuntimeError(class_and_text(error))
