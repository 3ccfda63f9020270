"""Matches the outputs of one transaction: those that the live service sent with those of the new code."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from statehold.admin.inspection.output_records import OutputRecord
from statehold.rehearsal.report import How

#: a search among more pairs would take too long
_LARGE: Final = 250_000


class OutputPair(NamedTuple):
    """Two outputs that differ, by their indexes in the transaction; -1: absent on this side."""

    live: int
    new: int

    @property
    def how(self) -> How:
        return "added" if self.live < 0 else "missing" if self.new < 0 else "changed"


class MatchedOutputs(NamedTuple):
    """The pairs that differ, and those that are equal."""

    differ: list[OutputPair]
    equal: list[OutputPair]


def match(live: Sequence[OutputRecord], new: Sequence[OutputRecord]) -> MatchedOutputs:
    """Match outputs of the same topic and key in their order, so that few differ.

    The order of outputs of different keys does not count, because no reader depends on it across partitions.
    """
    differ: list[OutputPair] = []
    equal: list[OutputPair] = []
    groups: dict[tuple[str, bytes | None], tuple[list[int], list[int]]] = {}
    for side, records in enumerate((live, new)):
        for i, record in enumerate(records):
            groups.setdefault((record.topic, record.key), ([], []))[side].append(i)
    for before, after in groups.values():
        for pair in _pairs(live, new, before, after):
            same = pair.live >= 0 and pair.new >= 0 and live[pair.live] == new[pair.new]
            (equal if same else differ).append(pair)
    differ.sort(key=lambda pair: (pair.new if pair.new >= 0 else pair.live, pair))
    return MatchedOutputs(differ, equal)


def _pairs(
    live: Sequence[OutputRecord], new: Sequence[OutputRecord], before: list[int], after: list[int]
) -> list[OutputPair]:
    """Match the outputs of one key: one by one, or around added and missing ones where fewer differ then."""
    straight = [OutputPair(*pair) for pair in zip_longest(before, after, fillvalue=-1)]

    def wrong(pairs: list[OutputPair]) -> int:
        return sum(pair.live < 0 or pair.new < 0 or live[pair.live] != new[pair.new] for pair in pairs)

    if wrong(straight) <= 1 or len(before) * len(after) > _LARGE:
        return straight
    around = _around(live, new, before, after)
    return around if wrong(around) < wrong(straight) else straight


def _around(
    live: Sequence[OutputRecord], new: Sequence[OutputRecord], before: list[int], after: list[int]
) -> list[OutputPair]:
    found: list[OutputPair] = []
    matcher = SequenceMatcher(None, [live[i] for i in before], [new[i] for i in after], autojunk=False)
    for _, low, high, first, last in matcher.get_opcodes():
        found += [OutputPair(*pair) for pair in zip_longest(before[low:high], after[first:last], fillvalue=-1)]
    return found
