"""Ends a process in which no Python thread runs any more: `with FreezeGuard(60.0):`.

A C function that waits with the interpreter's lock freezes every Python thread, so no watchdog written in Python sees
it. The threads of librdkafka go on with the heartbeats, the group keeps the member, and its partitions stand still.
This guard needs no Python: a POSIX timer, which a Python thread sets again every second. If none did for most of the
time, the timer calls `alarm`, and the signal writes the stacks of all threads and ends the process.

The two steps make it safe to stop the process: a timer that expired while the machine slept, or between SIGSTOP and
SIGCONT, only starts the alarm, and the Python thread, which runs again, takes the alarm back.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self

from statehold.errors import UsageError

#: SIGALRM's number: the C function `_exit` is its handler, and gets the number as its argument
EXIT_CODE: Final = 14
#: longest time in seconds between two signs of life
_RENEW_EVERY: Final = 1.0
#: the part of the time that passes between the expiry of the timer and the end, at least a second
_LAST_PART: Final = 6
#: seconds for the thread to end, which sleeps most of the time
_END: Final = 5.0
_SIGEV_THREAD: Final = 2
_CLOCK_MONOTONIC: Final = 1


class _Sigevent(ctypes.Structure):
    """`struct sigevent` of Linux, for a function that a thread of the C library calls with one argument."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


class _Itimerspec(ctypes.Structure):
    """`struct itimerspec`: an interval of zero, and when it expires."""

    _fields_ = (
        ("interval", ctypes.c_long * 2),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class FreezeGuard:
    """Ends this process with exit code 14 if no Python thread has run for `seconds`.

    `statehold run` has one (`service.freeze_exit`); a program of your own writes `with FreezeGuard(60.0):` around the
    time in which its services run. Enter it on the main thread. It takes SIGALRM, and there is one in a process. It
    does nothing where the C library has no POSIX timers (`works` is False then), as on macOS.

    :raises UsageError: `seconds` is less than 2, this is not the main thread, or SIGALRM has a handler already.
    :raises OSError: the system gives the process no timer.
    """

    def __init__(self, seconds: float) -> None:
        if seconds < 2:
            raise UsageError(f"FreezeGuard({seconds:g}): the shortest time is 2 s, because a sign of life takes 1 s")
        last = max(1, round(seconds / _LAST_PART))
        self._first, self._last = seconds - last, last
        self._renew_every = min(_RENEW_EVERY, self._first / 4)
        self._library = _library()
        self._timers: list[ctypes.c_void_p] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freeze-guard", daemon=True)
        # The timer's thread reads it when the process is frozen.
        self._text = ctypes.create_string_buffer(
            f"statehold: no Python thread has run for {self._first:g} s. Unless one does, this process ends in {last} s"
            f" with exit code {EXIT_CODE} and the stacks of all threads".encode()
        )

    @property
    def works(self) -> bool:
        """Whether this platform has what the guard needs."""
        return self._library is not None

    def __enter__(self) -> Self:
        if self._library is None:
            return self
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("FreezeGuard: enter it on the main thread, because only that may set a signal's handler")
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
            raise UsageError(
                "FreezeGuard: the process has another FreezeGuard, or a handler of SIGALRM, which the guard needs"
            )
        # The timers first, because the system may give none, and then nothing is to be undone.
        self._timers = [
            self._timer(self._library.warnx, ctypes.addressof(self._text)),
            self._timer(self._library.alarm, self._last),
        ]
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # so that a second guard finds it taken
        self._library.signal(int(signal.SIGALRM), ctypes.cast(self._library._exit, ctypes.c_void_p))
        faulthandler.register(signal.SIGALRM, file=sys.__stderr__ or 2, all_threads=True, chain=True)
        self._renew()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._library is None:
            return
        self._ending.set()
        self._thread.join(_END)
        for timer in self._timers:
            self._library.timer_delete(timer)
        signal.alarm(0)
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _run(self) -> None:
        while not self._ending.wait(self._renew_every):
            self._renew()

    def _renew(self) -> None:
        """Set the timers again, and take the alarm back that an expired timer has set."""
        assert self._library is not None
        whole = int(self._first)
        value = _Itimerspec((0, 0), whole, int((self._first - whole) * 1e9))
        for timer in self._timers:
            _require(self._library.timer_settime(timer, 0, ctypes.byref(value), None))
        self._library.alarm(0)

    def _timer(self, function: Any, argument: int) -> ctypes.c_void_p:
        """Make a timer that calls a C function with one argument, on a thread of the C library."""
        assert self._library is not None
        event = _Sigevent(argument, 0, _SIGEV_THREAD, ctypes.cast(function, ctypes.c_void_p), None)
        timer = ctypes.c_void_p()
        _require(self._library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)))
        return timer


def _library() -> ctypes.CDLL | None:
    """Return the C library, None without POSIX timers. glibc has them in librt before 2.34."""
    if not sys.platform.startswith("linux"):
        return None
    for name in (None, "librt.so.1"):
        try:
            library = ctypes.CDLL(name, use_errno=True)
            if all(hasattr(library, each) for each in ("timer_create", "warnx", "alarm", "_exit", "signal")):
                return library
        except OSError:
            continue
    return None


def _require(result: int) -> None:
    """:raises OSError: the C function has failed."""
    if result != 0:
        number = ctypes.get_errno() or errno.EINVAL
        raise OSError(number, f"the freeze guard's timer: {os.strerror(number)}")
