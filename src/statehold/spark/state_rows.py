"""Reads one table of one partition at a point, on an executor: no row leaves before the digest is compared.

Does not use Spark. The task reads a full snapshot with the deltas after it, and converts the wanted rows to columns at
once. The rows wait, above a limit in a temporary file, until the sums of all tables prove the state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import IO, Any, Final

import msgspec
import pyarrow as pa

from statehold.errors import DigestMismatch, PartitionError, ToolRefused, UsageError
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.merge import scratch
from statehold.snapshot.spark.fold.newest import Keys
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.proof import KnownSums, Sums
from statehold.snapshot.spark.fold.report import TaskReport, gathered
from statehold.snapshot.spark.io.overlay import TablePart, state_rows
from statehold.snapshot.spark.io.scan import ReaderOf
from statehold.snapshot.spark.io.source import base_finding, unread, verdict

#: rows, or bytes, that leave a task together
BATCH: Final = 10_000
_BATCH_BYTES: Final = 16_000_000
#: bytes of rows that stay in memory until the digest is compared
_IN_MEMORY: Final = 64_000_000
#: what a task proves
_STATE: Final = "folded state"
#: full snapshots that a task tries
_ATTEMPTS: Final = 4

#: Returns the numbers of the wanted keys; None: all of them.
Chosen = Callable[[Keys], list[int] | None]
#: Returns the wanted columns of keys and values (as stored).
Convert = Callable[[Keys, list[bytes]], pa.RecordBatch]


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


def rows_of(
    reader_of: ReaderOf, task: StateTask, chosen: Chosen, convert: Convert, sought: Sequence[bytes] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows, after the proof of the state.

    A damaged full snapshot is replaced by an older one. `sought`: the bytes of all chosen keys, so that a task that
    compares no digest decodes only entries with one of them.

    :raises DigestMismatch: the state is not the recorded one. :raises ToolRefused: Kafka deleted the records meanwhile.
    :raises UsageError: a value does not fit its column.
    """
    damaged: list[str] = []
    while True:
        with tempfile.TemporaryFile(dir=scratch()) as file:
            rows = _WaitingRows(file, convert)
            finding = _spool(reader_of, task, chosen, rows, damaged, sought)
            if not finding:
                yield from rows.release()
                return
        damaged.append(finding)
        task = msgspec.structs.replace(task, plan=_without_base(reader_of, task.plan, damaged))


class _WaitingRows:
    """Converts rows, and keeps them until the proof: in memory up to a limit, the others in a temporary file."""

    def __init__(self, file: IO[bytes], convert: Convert) -> None:
        self._file, self._convert = file, convert
        self._error: UsageError | None = None
        #: Rows that become a batch, and their bytes.
        self._keys: list[Any] = []
        self._values: list[bytes] = []
        self._bytes = 0
        self._kept: list[pa.RecordBatch] = []
        self._held = 0
        self._stream: Any = None

    def add(self, keys: Keys, values: list[bytes]) -> None:
        if self._keys and keys and isinstance(keys[0], str) != isinstance(self._keys[0], str):
            self._end_batch()
        for low in range(0, len(keys), BATCH):
            self._keys += keys[low : low + BATCH]
            self._values += values[low : low + BATCH]
            self._bytes += sum(map(len, values[low : low + BATCH]))
            if len(self._keys) >= BATCH or self._bytes >= _BATCH_BYTES:
                self._end_batch()

    def _end_batch(self) -> None:
        keys, values = self._keys, self._values
        self._keys, self._values, self._bytes = [], [], 0
        if not keys or self._error is not None:
            return
        try:
            self._keep(self._convert(keys, values))
        except UsageError as error:
            self._error = error  # a state that is not proven is the worse fault

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._stream is None and self._held < _IN_MEMORY:
            self._held += batch.nbytes
            self._kept.append(batch)
            return
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, batch.schema)
        self._stream.write_batch(batch)

    def release(self) -> Iterator[pa.RecordBatch]:
        """:raises UsageError: a value does not fit its column."""
        self._end_batch()
        if self._error is not None:
            raise self._error
        self._kept.reverse()
        while self._kept:
            yield self._kept.pop()
        if self._stream is not None:
            self._stream.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as batches:
                yield from batches


def _spool(
    reader_of: ReaderOf,
    task: StateTask,
    chosen: Chosen,
    rows: _WaitingRows,
    damaged: Sequence[str],
    sought: Sequence[bytes],
) -> str:
    """Take in the chosen rows. Return '' if the state is proven, the finding if its base is damaged."""
    plan, sums, reports = task.plan, dict[str, Sums](), list[TaskReport]()
    only = None if task.verify else TablePart(task.table, sought)
    for name, keys, values in state_rows(reader_of, plan, reports, only):
        if task.verify:
            _add(sums, name, keys, values, task.text.get(name))
        if name == task.table:
            numbers = chosen(keys)
            if numbers is None:
                rows.add(keys, values)
            elif numbers:
                every: Any = keys
                rows.add([every[i] for i in numbers], [values[i] for i in numbers])
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


def _add(sums: dict[str, Sums], name: str, keys: Keys, values: list[bytes], text: bool | None) -> None:
    """Add to the sums of a table; `text` is how its keys are hashed, None if only the handler knows."""
    if text is None:
        sums.setdefault(name, Sums()).add(name, keys, values)
    else:
        found = sums.setdefault(name, KnownSums())
        assert isinstance(found, KnownSums), "a table is known, or it is not"
        found.of(name, keys, values, text=text)


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
