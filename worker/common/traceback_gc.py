"""Frees what a kept exception still holds."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import FrameType


def clear_frames(error: BaseException | None) -> None:
    """A kept cause keeps the frames that it passed through, and with them handler, state and producer."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        waiting += [error.__cause__, error.__context__]
        for frame, _ in traceback.walk_tb(error.__traceback__):
            outer: FrameType | None = frame
            while outer is not None:
                with suppress(RuntimeError):  # still running
                    outer.clear()
                outer = outer.f_back
