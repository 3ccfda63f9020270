"""Parses input positions of the command line: one for all partitions, one for each, or a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from statehold.errors import UsageError


def per_partition(text: str, partitions: int) -> dict[int, str]:
    """Return the text for each partition. :raises UsageError: the text names neither one place nor every partition."""
    if "=" not in text:
        return dict.fromkeys(range(partitions), text)
    pairs = [piece.split("=", 1) for piece in text.split(",")]
    found = {int(piece[0]): piece[1] for piece in pairs if len(piece) == 2 and piece[0].strip().isdecimal()}
    if sorted(found) != list(range(partitions)):
        raise UsageError(f"{text!r}: name each of the partitions 0 to {partitions - 1}, such as 0=120,1=90")
    return found


def positions_of(text: str) -> Mapping[int, int] | int:
    """`120` for all partitions, or `0=120,1=90` for some.

    :raises UsageError: the text is neither.
    """
    if text.isdecimal():
        return int(text)
    pairs = [piece.split("=", 1) for piece in text.split(",")]
    if all(len(piece) == 2 and piece[0].isdecimal() and piece[1].isdecimal() for piece in pairs):
        return {int(partition): int(offset) for partition, offset in pairs}
    raise UsageError(f"{text!r}: write an offset such as 120, or one for each partition, such as 0=120,1=90")


def milliseconds(text: str, option: str) -> int:
    """Return milliseconds since 1970 for an ISO 8601 time. :raises UsageError: the text is not a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        others = "an offset, 0=120,1=90, beginning, same, or " if option == "--input-at" else ""
        raise UsageError(f"{option} {text!r}: {others}a time such as 2026-11-21T17:30:00Z") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def shown(moment: int) -> str:
    """Return milliseconds since 1970 as ISO 8601 text."""
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds") if moment >= 0 else "no time"
