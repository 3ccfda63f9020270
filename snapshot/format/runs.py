"""Order of several inputs' records in a transaction: run lengths, as commit records keep it (docs/reference/format.md).

A run is a number of records of one input that were handled one after the other. It takes two bytes up to 127 records,
so the order costs at most two bytes for each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from statehold.api.record import MergedMessage, input_of_all
from statehold.snapshot.format.frame import BadFrame

_INPUT: Final = itemgetter(0)
_LENGTH: Final = itemgetter(1)


class Run(NamedTuple):
    """`length` records of the input with this index."""

    input: int
    length: int


def of(batches: Iterable[Sequence[MergedMessage]]) -> Iterator[tuple[int, int]]:
    """Yield input and length of each run of records, in the order of their handling.

    They are plain pairs, because a `Run` for each takes as long as all else here. No batch is empty.
    """
    for index, group in groupby(chain.from_iterable(map(_of_batch, batches)), _INPUT):
        yield index, sum(map(_LENGTH, group))


def _of_batch(messages: Sequence[MergedMessage]) -> Iterable[tuple[int, int]]:
    if (only := input_of_all(messages)) is not None:
        return ((only, len(messages)),)
    return [(index, len(list(group))) for index, group in groupby(map(attrgetter("input"), messages))]


def pack(runs: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes for a commit record: for each run the input, then the count in groups of 7 bits, low first."""
    packed = bytearray()
    for index, length in runs:
        packed.append(index)
        left = length
        while left > 0x7F:
            packed.append(left & 0x7F | 0x80)
            left >>= 7
        packed.append(left)
    return bytes(packed)


def unpack(data: bytes, inputs: int) -> Iterator[Run]:
    """Yield the runs in the bytes of a commit record of a service with this number of inputs.

    :raises BadFrame: they are no runs.
    """
    numbers = iter(data)
    for index in numbers:
        count = shift = 0
        while (byte := next(numbers, -1)) > 0x7F and shift < 56:
            count |= (byte & 0x7F) << shift
            shift += 7
        if not 0 <= byte <= 0x7F or index >= inputs:
            raise BadFrame(f"runs: {data[:20]!r} is not the order of the records of {inputs} inputs")
        yield Run(index, count | byte << shift)
