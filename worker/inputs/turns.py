"""The order of records that only the sinks' database has committed, as the note at its position keeps it.

A commit record counts the records of each run. Here a run ends at an offset instead: Kafka may have committed a part of
the transaction since, and then the first runs are over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from statehold.api.record import MergedMessage
from statehold.snapshot.format import runs


class Turn(NamedTuple):
    """The records of one input that come next: those below the offset `end`."""

    input: int
    end: int


def pack(messages: Iterable[MergedMessage], positions: Sequence[int]) -> bytes:
    """Return the order of a transaction's records; `positions`: the next offset of each input before it."""
    at, turns = list(positions), list[runs.Run]()
    for message in messages:
        index, end = message.input, (message.offset() or 0) + 1
        if turns and turns[-1].input == index:
            turns[-1] = runs.Run(index, turns[-1].length + end - at[index])
        else:
            turns.append(runs.Run(index, end - at[index]))
        at[index] = end
    return runs.pack(turns)


def unpack(data: bytes, positions: Sequence[int]) -> list[Turn]:
    """Return the order from bytes that `pack` made with the same positions.

    :raises frame.BadFrame: it did not.
    """
    at, turns = list(positions), list[Turn]()
    for index, length in runs.unpack(data, len(positions)):
        at[index] += length
        turns.append(Turn(index, at[index]))
    return turns
