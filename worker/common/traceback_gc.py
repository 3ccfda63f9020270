"""Free the objects that a kept exception still references."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import FrameType


def clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error and its causes, because they reference handler, state and producer."""
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
