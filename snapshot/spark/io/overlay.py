"""Reads the state of one partition as one task: the deltas first, then the full snapshot, whose rows pass through.

Does not use Spark. The keys of a full snapshot are different ones, so only those that a delta wrote are left out, and
no other key is grouped or sorted. Where the deltas have more keys than a task collects, or chunks of the full snapshot
replace rows of earlier ones, `merge` does the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, compress
from typing import Any, Final, NamedTuple

import msgspec

from statehold.ports import Reader
from statehold.snapshot.spark.fold.merge import merge
from statehold.snapshot.spark.fold.newest import REPORT, KeyBlock, Keys, Newest, as_msgpack, present, table_of
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport, decode_report
from statehold.snapshot.spark.io.scan import ReaderOf, Stretch, blocks_of, fed, stretches_of, taking_of

#: Rows of deltas that leave together.
_PORTION: Final = 10_000
#: Table, keys and values (as stored) of some rows; each key once.
TableRows = tuple[str, Keys, list[bytes]]


class TablePart(NamedTuple):
    """The part of a state that a read without a digest needs."""

    table: str
    #: the bytes of keys, if only their rows are asked for: an entry without any of them is not decoded
    sought: Sequence[bytes] = ()

    def holds(self, raw: msgspec.Raw) -> bool:
        """Return whether an entry may have a row of it. :raises frame.BadFrame: the bytes are not an entry."""
        if table_of(raw) != self.table:
            return False
        if not self.sought:
            return True
        data = bytes(raw)
        return any(each in data for each in self.sought)


def state_rows(
    reader_of: ReaderOf, plan: FoldPlan, reports: list[TaskReport], only: TablePart | None = None
) -> Iterator[TableRows]:
    """Yield the state at the plan's goal, and add the reports; `only` a part of it. The caller must prove it.

    Raises as `read_stretches`.
    """
    stretches = [stretch for some in stretches_of(plan) for stretch in some]
    replacing = plan.base is not None and (plan.base.manifest.rows or plan.base.manifest.shared)
    with closing(reader_of()) as reader:
        if replacing:
            yield from _merged(_blocks(reader, stretches, only), reports)
            return
        newest = _newest(only)
        for number, stretch in enumerate(stretches):
            if stretch.topic != stretch.scan.topic:
                continue
            taking = taking_of(stretch, newest)
            feeding = fed(reader, stretch, taking)
            if any(newest.crowded for _ in feeding):
                others = [*stretches[:number], *stretches[number + 1 :]]
                blocks = chain(blocks_of(stretch, taking, feeding), _blocks(reader, others, only))
                yield from _merged(blocks, reports)
                return
            reports.append(taking.done())
        deltas = _Deltas(newest)
        for stretch in stretches:
            if stretch.topic != stretch.scan.topic:
                passing = _Passing(only)
                taking = taking_of(stretch, passing)
                for _ in fed(reader, stretch, taking):
                    yield from map(deltas.without, passing.taken())
                reports.append(taking.done())
        yield from deltas.rows()


def _newest(only: TablePart | None) -> Newest:
    return Newest() if only is None else NewestOf(only)


def _blocks(reader: Reader, stretches: list[Stretch], only: TablePart | None) -> Iterator[KeyBlock]:
    for stretch in stretches:
        taking = taking_of(stretch, _newest(only))
        yield from blocks_of(stretch, taking, fed(reader, stretch, taking))


def _merged(blocks: Iterator[KeyBlock], reports: list[TaskReport]) -> Iterator[TableRows]:
    for _, name, keys, values in merge(blocks):
        if name == REPORT:
            reports.append(decode_report(values[0]))
        else:
            yield name, keys, values


class NewestOf(Newest):
    """Keeps a part of the state only."""

    def __init__(self, only: TablePart) -> None:
        super().__init__()
        self._only = only

    def add(self, raw: msgspec.Raw) -> int:
        return super().add(raw) if self._only.holds(raw) else 0


class _Passing(Newest):
    """Hands over the rows of each chunk, of the whole state or of `only` a part."""

    def __init__(self, only: TablePart | None) -> None:
        super().__init__()
        self._only = only
        self._rows: list[TableRows] = []

    def add(self, raw: msgspec.Raw) -> int:
        if self._only is not None and not self._only.holds(raw):
            return 0
        name, keys, values = present(raw)
        self._rows.append((name, keys, values))
        return len(keys)

    def taken(self) -> list[TableRows]:
        """Return and forget the rows."""
        rows, self._rows = self._rows, []
        return rows


class _Deltas:
    """The newest value of each key that a delta wrote."""

    def __init__(self, newest: Newest) -> None:
        self._tables: dict[str, dict[Any, bytes | None]] = {
            name: dict(zip(keys, values, strict=True)) for name, keys, values in newest.rows()
        }

    def without(self, rows: TableRows) -> TableRows:
        """Return the rows whose keys no delta wrote."""
        name, keys, values = rows
        written = self._tables.get(name)
        if not written or not keys:
            return rows
        if isinstance(keys[0], str) != isinstance(next(iter(written)), str):
            keys, written = as_msgpack(keys), self._packed(name)
        replaced = written.keys() & keys
        if not replaced:
            return rows
        left = [key not in replaced for key in keys]
        rest: Any = list(compress(keys, left))
        return name, rest, list(compress(values, left))

    def _packed(self, name: str) -> dict[Any, bytes | None]:
        found = self._tables[name]
        packed = self._tables[name] = dict(zip(as_msgpack([*found]), found.values(), strict=True))
        return packed

    def rows(self) -> Iterator[TableRows]:
        """Yield what the deltas wrote, without deleted keys."""
        for name, written in self._tables.items():
            held = [value is not None for value in written.values()]
            keys: Any = list(compress(written, held))
            values: Any = list(compress(written.values(), held))
            for low in range(0, len(keys), _PORTION):
                yield name, keys[low : low + _PORTION], values[low : low + _PORTION]
