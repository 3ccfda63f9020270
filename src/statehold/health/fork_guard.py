"""Rejects os.fork() on a thread that runs a handler, because the child would continue with the partition.

A forked child has a copy of the memory and the sockets, and none of the other threads. It would return from the handler
into a copy of the live loop, whose Kafka clients have no thread. `os.register_at_fork` alone cannot reject it: Python
ignores errors of its hooks. An audit hook could, and makes each `id()` three times as slow. So os.fork and os.forkpty
are wrapped, which covers multiprocessing, and a hook ends a child that was forked another way.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from statehold.errors import UsageError

#: exit code of a child that was forked another way; EX_SOFTWARE of sysexits.h
_ENDED: Final = 70
_WHY: Final = (
    "the child would have a copy of the partition and its Kafka connections, without their threads. Next: start the "
    'process with subprocess, or with multiprocessing.get_context("spawn")'
)
#: threads that run a handler
_guarded: Final[set[int]] = set()
_installed = threading.Event()


@contextmanager
def no_fork() -> Iterator[None]:
    """Reject forks on this thread: os.fork raises UsageError."""
    if not _installed.is_set():
        _install()
    thread = threading.get_ident()
    _guarded.add(thread)
    try:
        yield
    finally:
        _guarded.discard(thread)


def _install() -> None:
    """Wrap the functions once in a process; another thread may do it at the same time, which does no harm."""
    _installed.set()
    for name in ("fork", "forkpty"):
        vars(os)[name] = _rejecting(getattr(os, name))
    os.register_at_fork(after_in_child=_end_child)


def _rejecting(fork: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(fork)
    def reject_or_fork() -> int:
        if threading.get_ident() in _guarded:
            raise UsageError(f"os.{fork.__name__}() in a handler: {_WHY}")
        return fork()

    return reject_or_fork


def _end_child() -> None:
    """End a child of a guarded thread. subprocess forks if it has a preexec_fn, and starts a program at once."""
    if threading.get_ident() in _guarded and sys._getframe(1).f_globals.get("__name__") != "subprocess":
        os.write(2, f"a child of os.fork() in a handler ends at once: {_WHY}\n".encode())
        os._exit(_ENDED)
    _guarded.clear()
