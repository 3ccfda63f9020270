"""Reads one table of one partition at a point, on an executor: no row leaves before the digest is compared.

Does not use Spark. The task reads a full snapshot and the deltas after it, merges them bucket by bucket, and writes the
wanted rows to a temporary file. Only when the sums of all tables prove the state, it gives the rows out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import IO, Any, Final

import msgspec
import pyarrow as pa

from statehold.errors import DigestMismatch, PartitionError, ToolRefused
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.merge import merge, scratch
from statehold.snapshot.spark.fold.newest import REPORT, KeyBlock, Newest, packed, unpacked
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.proof import KnownSums, Sums
from statehold.snapshot.spark.fold.report import TaskReport, decode_report, gathered
from statehold.snapshot.spark.io.scan import ReaderOf, read_stretches, stretches_of
from statehold.snapshot.spark.io.source import base_finding, unread, verdict

#: rows that leave a task together
BATCH: Final = 10_000
#: bytes of rows that stay in memory until the digest is compared
_IN_MEMORY: Final = 64_000_000
#: what a task proves
_STATE: Final = "folded state"
#: full snapshots that a task tries
_ATTEMPTS: Final = 4
_entry_table = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, msgspec.Raw]).decode

#: Returns the numbers of the wanted keys (msgpack); None: all of them.
Chosen = Callable[[list[bytes]], list[int] | None]
KeysAndValues = tuple[list[bytes], list[bytes]]


class StateTask(msgspec.Struct, frozen=True):
    """One table of one partition at the plan's goal."""

    plan: FoldPlan
    table: str
    verify: bool = True
    #: table -> whether its keys are hashed as text; without a table that the code does not declare
    text: dict[str, bool] = {}


def text_keys(tables: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each table of the code whether its keys are hashed as text."""
    return {name: table.key_type in (str, bytes) for name, table in tables.items()}


def lean(plan: FoldPlan) -> FoldPlan:
    """Return the plan without the parts that a task does not need, so that little travels."""
    goal = plan.goal._replace(commit_record=without_contents(plan.goal.commit_record))
    place = msgspec.structs.replace(plan.place, types={}, schemas={})
    full_snapshots = (plan.base,) if plan.base else ()
    return msgspec.structs.replace(plan, place=place, last=goal.commit_record, goal=goal, full_snapshots=full_snapshots)


def without_contents(commit_record: CommitRecord) -> CommitRecord:
    return msgspec.structs.replace(
        commit_record, pinned=(), commands=(), effects=(), runs=b"", paused=None, full_snapshots=(), types={}
    )


class OneTable(Newest):
    """Keeps one table only, for a read that compares no digest."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table

    def add(self, raw: msgspec.Raw) -> int:
        try:
            name, _, _ = _entry_table(raw)
        except msgspec.DecodeError as error:
            raise frame.BadFrame(f"entry: {error}") from error
        return super().add(raw) if name == self._table else 0


def rows_of(reader_of: ReaderOf, task: StateTask, chosen: Chosen) -> Iterator[KeysAndValues]:
    """Yield the keys (msgpack) and values (as stored), after the proof of the state.

    A damaged full snapshot is replaced by an older one.

    :raises DigestMismatch: the state is not the recorded one. :raises ToolRefused: Kafka deleted the records meanwhile.
    """
    damaged: list[str] = []
    while True:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=scratch()) as file:
            finding = _spool(reader_of, task, chosen, file, damaged)
            if not finding:
                yield from _read_back(file)
                return
        damaged.append(finding)
        task = msgspec.structs.replace(task, plan=_without_base(reader_of, task.plan, damaged))


def _spool(reader_of: ReaderOf, task: StateTask, chosen: Chosen, file: IO[bytes], damaged: Sequence[str]) -> str:
    """Write the wanted rows to the file. Return '' if the state is proven, the finding if its base is damaged."""
    plan, sums, reports = task.plan, dict[str, Sums](), list[TaskReport]()
    for _, name, keys, values in merge(_blocks(reader_of, plan, None if task.verify else task.table)):
        if name == REPORT:
            reports.append(decode_report(values[0]))
            continue
        if task.verify:
            _add(sums, name, keys, values, task.text.get(name))
        if name == task.table:
            _write(file, name, keys, values, chosen(keys))
    found = gathered(reports).get(plan.partition, {})
    if any(each.overtaken for each in found.values()):
        raise _overtaken(plan)
    finding = base_finding(plan, found)
    if finding:
        return finding
    finding = verdict(plan, found, sums) if task.verify else unread(plan, found)
    if finding:
        raise mismatch(plan, _STATE, "; ".join((*damaged, finding)))
    return ""


def _add(sums: dict[str, Sums], name: str, keys: list[bytes], values: list[bytes], text: bool | None) -> None:
    """Add to the sums of a table; `text` is how its keys are hashed, None if only the handler knows."""
    if text is None:
        sums.setdefault(name, Sums()).add(name, keys, values)
    else:
        found = sums.setdefault(name, KnownSums())
        assert isinstance(found, KnownSums), "a table is known, or it is not"
        found.of(name, keys, values, text=text)


def _blocks(reader_of: ReaderOf, plan: FoldPlan, only: str | None) -> Iterator[KeyBlock]:
    newest = Newest if only is None else lambda: OneTable(only)
    for stretches in stretches_of(plan):
        yield from read_stretches(reader_of, stretches, newest)


def _write(file: IO[bytes], table: str, keys: list[bytes], values: list[bytes], numbers: list[int] | None) -> None:
    if numbers is not None:
        keys, values = [keys[i] for i in numbers], [values[i] for i in numbers]
    for low in range(0, len(keys), BATCH):
        some = slice(low, low + BATCH)
        data = packed(table, (pa.array(keys[some], pa.binary()), pa.array(values[some], pa.binary())))
        file.write(len(data).to_bytes(8, "little"))
        file.write(data)


def _read_back(file: IO[bytes]) -> Iterator[KeysAndValues]:
    file.seek(0)
    while size := int.from_bytes(file.read(8), "little"):
        _, (keys, values) = unpacked(file.read(size))
        yield keys.to_pylist(), values.to_pylist()


def _without_base(reader_of: ReaderOf, plan: FoldPlan, damaged: list[str]) -> FoldPlan:
    """Return a plan of the same state from an older full snapshot.

    :raises DigestMismatch: no other full snapshot is usable.
    """
    assert plan.base is not None, "only a base is damaged"
    known = {plan.base.offset} | {int(each.partition("@")[2].partition(":")[0]) for each in damaged}
    try:
        with closing(reader_of()) as reader:
            found = planning.make(reader, plan.place, damaged=known, before=plan.goal.offset + 1)
    except PartitionError as error:
        raise mismatch(plan, _STATE, f"{'; '.join(damaged)}; {error}") from error
    if found.goal.offset != plan.goal.offset or len(damaged) == _ATTEMPTS:
        raise mismatch(plan, _STATE, "; ".join(damaged))
    return lean(found)


def mismatch(plan: FoldPlan, what: str, finding: str) -> DigestMismatch:
    """Return the error for what a task was to prove: `what`."""
    return DigestMismatch(
        f"verify the {what}: {finding}. No row was returned. Next: run `statehold snapshot verify`, which finds "
        f"the first difference",
        topic=plan.place.input,
        partition=plan.partition,
        position=plan.goal.commit_record.position(plan.place.input),
    )


def _overtaken(plan: FoldPlan) -> ToolRefused:
    return ToolRefused(
        f"{plan.place.input}[{plan.partition}]: read the state of transaction {plan.goal.commit_record.n}: Kafka has "
        f"deleted its records since load() chose it. No row was returned. Next: call load() again, or raise "
        f"snapshot.keep"
    )
