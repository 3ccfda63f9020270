"""Threads, and how they wait for each other: a seam, because a simulation runs them as tasks of one thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol


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


def until_set(event: ThreadEvent) -> Callable[[float], None]:
    """Return a sleep that the event ends."""

    def sleep(seconds: float) -> None:
        event.wait(seconds)

    return sleep


class Threads(Protocol):
    """Makes what the threads of a service consist of."""

    def event(self) -> ThreadEvent: ...

    def condition(self) -> ThreadCondition: ...

    def queue(self) -> ThreadQueue: ...

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """Return a daemon thread that is not started."""
        ...

    def processor_time(self) -> float:
        """Return the seconds of processor time that the calling thread has used."""
        ...


class SystemThreads:
    """Threads of the operating system."""

    event = staticmethod(threading.Event)
    processor_time = staticmethod(time.thread_time)

    def queue(self) -> ThreadQueue:
        return queue.SimpleQueue()

    def condition(self) -> ThreadCondition:
        return threading.Condition(threading.RLock())

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=run, name=name, daemon=True)


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
        self._thread = threads.thread(partial(self._run, call), name)
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
        return RuntimeError(f"{type(error).__name__}: {error}")
