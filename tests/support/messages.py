"""Records for tests of the pure parts."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.api.record import MemoryMessage


def message(
    offset: int, value: bytes | None = b"0", headers: Sequence[tuple[str, bytes]] | None = None
) -> MemoryMessage:
    return MemoryMessage("input", 0, offset, value, headers=headers)


def batch(*offsets: int) -> list[MemoryMessage]:
    return [message(offset, b"%d" % offset) for offset in offsets]
