"""Parses input positions of the command line: one for all partitions, one for each, or a time.

With several inputs the partition of one is TOPIC:PARTITION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from statehold.errors import UsageError

#: a partition of the only input, or an input and a partition of it
InputPartition = int | tuple[str, int]

T = TypeVar("T")


def parsed(text: str) -> dict[InputPartition, str] | None:
    """Parse `0=120,1=end`, or `trades:0=120,prices:0=end` with several inputs. None: the text is something else."""
    found: dict[InputPartition, str] = {}
    for piece in text.split(","):
        where, equals, place = piece.strip().partition("=")
        topic, colon, number = where.rpartition(":")
        if not (number.isdecimal() and equals and place and bool(topic) == bool(colon)):
            return None
        found[(topic, int(number)) if topic else int(number)] = place
    return found


def per_partition(text: str, inputs: Sequence[str], partitions: int) -> dict[tuple[str, int], str]:
    """Return the text for each partition of each input.

    :raises UsageError: the text names neither one place nor every partition; or an offset of several inputs.
    """
    if "=" not in text:
        if text.isdecimal() and len(inputs) > 1:
            raise UsageError(f"{text!r}: name each partition of each input, such as {_example(inputs, partitions)}")
        return {(topic, partition): text for topic in inputs for partition in range(partitions)}
    return everything(parsed(text), text, inputs, partitions)


def everything(
    named: Mapping[InputPartition, T] | None, text: str, inputs: Sequence[str], partitions: int
) -> dict[tuple[str, int], T]:
    """Return what is named for each partition of each input. :raises UsageError: `text` does not name all of them."""
    found = {(inputs[0], at) if isinstance(at, int) else at: given for at, given in (named or {}).items()}
    bare = len(inputs) > 1 and any(isinstance(at, int) for at in named or {})
    if bare or sorted(found) != sorted((topic, partition) for topic in inputs for partition in range(partitions)):
        of = f" of {', '.join(inputs)}" if len(inputs) > 1 else ""
        raise UsageError(
            f"{text!r}: name each of the partitions 0 to {partitions - 1}{of}, such as {_example(inputs, partitions)}"
        )
    return found


def _example(inputs: Sequence[str], partitions: int) -> str:
    if len(inputs) == 1:
        return "0=120,1=90"
    return ",".join(f"{topic}:{partition}=120" for topic in inputs for partition in range(partitions))


def offsets_of(text: str) -> Mapping[InputPartition, int] | int:
    """`120` for all partitions, `0=120,1=90`, or `trades:0=120,prices:0=90` with several inputs.

    :raises UsageError: the text is something else.
    """
    if text.isdecimal():
        return int(text)
    named = parsed(text)
    if named is None or not all(place.isdecimal() for place in named.values()):
        raise UsageError(
            f"{text!r}: write an offset such as 120, one for each partition, such as 0=120,1=90, or with several "
            f"inputs trades:0=120,prices:0=90"
        )
    return {at: int(place) for at, place in named.items()}


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
