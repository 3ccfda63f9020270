"""Ends the process by SIGKILL at a write to the files of tables on disk: PROBE_KILL_FILE says where."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

from statehold.disk.lmdb_store import LmdbStore


def arm(file: Path) -> None:
    """The file holds a moment (before, inside or after) and the number of the write; it is removed at that write."""
    moment, number = file.read_text(encoding="ascii").split()
    apply, write, writes, pieces = LmdbStore.apply, LmdbStore._write, count(1), count(1)

    def end() -> None:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def killed_apply(store: LmdbStore, *arguments: Any) -> None:
        due = next(writes) == int(number)
        if due and moment == "before":
            end()
        apply(store, *arguments)
        if due and moment == "after":
            end()

    def killed_write(*arguments: Any) -> None:
        write(*arguments)
        if moment == "inside" and next(pieces) == int(number):
            end()

    LmdbStore.apply = killed_apply  # type: ignore[method-assign, assignment]
    LmdbStore._write = staticmethod(killed_write)  # type: ignore[method-assign, assignment]
