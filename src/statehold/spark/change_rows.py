"""Reads the changes of one table of one partition, on an executor: each with the value before it, proven by digests.

Does not use Spark. The task sorts the writes of a full snapshot and of the deltas after it into buckets by key, on
disk, so that its memory grows neither with the state nor with the number of changes. The digest of every commit record
that has a delta is compared, with the sum of all changes up to it, before the first row leaves.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import accumulate, product
from typing import IO, Final, NamedTuple
from zlib import crc32

import msgspec

from statehold.errors import DamagedIncrement, ToolRefused
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.fold.merge import scratch
from statehold.snapshot.spark.fold.newest import decoded_packed
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport, judge_chunks
from statehold.snapshot.spark.io.scan import ReaderOf, chunks_of
from statehold.spark.state_rows import BATCH, Chosen, mismatch
from statehold.state.digest import MODULUS, from_bytes, hash128, packed_seeds, show

#: parts of the keys, of which a task holds one at a time
_BUCKETS: Final = 64
#: bytes of writes that stay in memory before they go to the file, and of the file before it goes to the disk
_WINDOW: Final = 32_000_000
_IN_MEMORY: Final = 64_000_000
#: bytes of a write's objects in addition to its own
_EACH: Final = 120
#: number of tables without code whose two kinds of digests are tried in every combination
_MOST_TABLES: Final = 12
#: what a task proves
_CHANGES: Final = "changes"
#: the transaction of a value that is in the full snapshot
_BASE: Final = -1

_encode = msgspec.msgpack.Encoder().encode
#: transaction, table, key (msgpack), value (as stored; None: deleted)
_Write = tuple[int, str, bytes, bytes | None]
_decode = msgspec.msgpack.Decoder(list[_Write]).decode


class ChangesTask(msgspec.Struct, frozen=True):
    """The changes of the transactions after `after`, up to the plan's goal."""

    plan: FoldPlan
    table: str
    after: int
    #: whether each change has its value before; without it the task reads no full snapshot and compares no digest
    before: bool = True
    verify: bool = True
    #: table -> whether its keys are hashed as text; without a table that the code does not declare
    text: dict[str, bool] = {}


class ChangeOrigin(NamedTuple):
    """What the rows of a transaction have in common; times are in milliseconds since 1970."""

    n: int
    start: int
    position: int
    time: int
    writer: str


class ChangedKey(NamedTuple):
    """One write of a key: msgpack, and values as stored; None: absent."""

    transaction: ChangeOrigin
    key: bytes
    before: bytes | None
    after: bytes | None
    kind: str


def changes_of(reader_of: ReaderOf, task: ChangesTask, chosen: Chosen) -> Iterator[list[ChangedKey]]:
    """Yield the changes, some at a time; those of a key in order.

    :raises DigestMismatch: they do not lead to the recorded states. :raises ToolRefused: Kafka deleted the records
    meanwhile. :raises DamagedIncrement, TornTransaction: a record is damaged.
    """
    with closing(reader_of()) as reader:
        try:
            if task.before:
                yield from _proven(reader, task, chosen)
            else:
                yield from _as_read(reader, task, chosen)
        except OutOfRange as error:
            raise ToolRefused(
                f"{_where(task)}: read the changes after transaction {task.after}: Kafka has deleted their records. No "
                f"row of them was returned. Next: read again with a later `since`, or raise snapshot.keep"
            ) from error
        except frame.BadFrame as error:
            raise DamagedIncrement(
                f"read the changes: {error}. Next: run `statehold snapshot verify`",
                topic=task.plan.place.names.changelog,
                partition=task.plan.partition,
            ) from error


def transactions(reader: Reader, place: Place, start: int, end: int, chain: Chain) -> Iterator[tuple[Increment, int]]:
    """Yield the complete transactions of these changelog offsets, each with the LogAppendTime of its commit record.

    A first transaction whose header was deleted is left out, if the chain knows of none before it.
    """
    beheaded = chain.last is None
    for batch in reader.read(place.names.changelog, place.partition, start, end):
        for message in batch:
            record = records.unpack(message.value())
            if beheaded and not isinstance(record, records.Header):
                continue
            beheaded = False
            increment = chain.feed(message.offset() or 0, record)
            if increment is not None:
                yield increment, message.timestamp()[1]
    chain.finish(end)


def chain_of(plan: FoldPlan) -> Chain:
    """Return the chain that begins after the plan's base."""
    chain = Chain(plan.place.names.changelog, plan.partition)
    if plan.base is not None:
        chain.last, chain.lineage = plan.first, plan.goal.commit_record.lineage
    elif plan.first >= 0:
        chain.last = plan.first
    return chain


def _as_read(reader: Reader, task: ChangesTask, chosen: Chosen) -> Iterator[list[ChangedKey]]:
    """Yield the changes without their values before."""
    plan, some = task.plan, list[ChangedKey]()
    chain = Chain(plan.place.names.changelog, plan.partition, last=task.after, crossing=True)
    for increment, time in transactions(reader, plan.place, plan.start, plan.end, chain):
        _require_no_replacement(task, increment)
        transaction = _of(increment, time, plan.place)
        for keys, values in _entries(increment, task.table):
            numbers = chosen(keys)
            for i in range(len(keys)) if numbers is None else numbers:
                kind = "delete" if values[i] is None else "put"
                some.append(ChangedKey(transaction, keys[i], None, values[i], kind))
        if len(some) >= BATCH:
            yield some
            some = []
    if some:
        yield some


def _require_no_replacement(task: ChangesTask, increment: Increment) -> None:
    """:raises ToolRefused: a tool replaced the state, so the changelog does not have what it changed."""
    if increment.replacement is not None and increment.commit_record.n > task.after:
        by = increment.replacement
        raise replaced(_where(task), increment.commit_record.n, f"{by.tool} ({by.why})")


def replaced(where: str, n: int, by: str = "a tool") -> ToolRefused:
    return ToolRefused(
        f"{where}: {by} replaced the state in transaction {n}: no delta has what it changed. No row was returned. "
        f"Next: read the state at `latest`, and begin a new stream with since=latest"
    )


def _entries(increment: Increment, table: str) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    for name, keys, values in _all_entries(increment):
        if name == table:
            yield keys, values


def _all_entries(increment: Increment) -> Iterator[tuple[str, list[bytes], list[bytes | None]]]:
    for part in increment.parts:
        yield from map(decoded_packed, part.entries)


def _of(increment: Increment, time: int, place: Place) -> ChangeOrigin:
    made = increment.commit_record
    return ChangeOrigin(made.n, made.start, made.position(place.input), time, made.writer.instance)


class _Buckets:
    """Writes of all keys, in the order in which they were made, by bucket."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._held = file, 0
        self._writes: list[list[_Write]] = [[] for _ in range(_BUCKETS)]
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(_BUCKETS)]

    def add(self, n: int, table: str, keys: list[bytes], values: Iterable[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._writes[crc32(key) % _BUCKETS].append((n, table, key, value))
            self._held += len(key) + len(value or b"") + _EACH
        if self._held >= _WINDOW:
            self.flush()

    def flush(self) -> None:
        for bucket, writes in enumerate(self._writes):
            if writes:
                data = _encode(writes)
                self._places[bucket].append((self._file.seek(0, 2), len(data)))
                self._file.write(data)
        self._writes, self._held = [[] for _ in range(_BUCKETS)], 0

    def __iter__(self) -> Iterator[Iterator[_Write]]:
        """Yield the writes of each bucket, in order. Call `flush` before."""
        for places in self._places:
            yield (write for at, size in places for write in self._read(at, size))

    def _read(self, at: int, size: int) -> list[_Write]:
        self._file.seek(at)
        return _decode(self._file.read(size))


def _proven(reader: Reader, task: ChangesTask, chosen: Chosen) -> Iterator[list[ChangedKey]]:
    """Compare all digests; then yield the changes with their values before."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=scratch()) as file:
        buckets, ledger = _Buckets(file), _Ledger(task)
        _take_base(reader, task.plan, buckets, only=None if task.verify else task.table)
        last = task.plan.first
        for increment, time in transactions(
            reader, task.plan.place, task.plan.start, task.plan.end, chain_of(task.plan)
        ):
            last = increment.commit_record.n
            ledger.add(increment, time)
            for name, keys, values in _all_entries(increment):
                if task.verify or name == task.table:
                    buckets.add(last, name, keys, values)
        goal = task.plan.goal.commit_record
        if goal.n != last:
            raise mismatch(
                task.plan,
                _CHANGES,
                f"the changelog ends with transaction {last}, but the changes up to {goal.n} are read",
            )
        buckets.flush()
        if task.verify:
            sums = _Sums(task.text)
            for writes in buckets:
                sums.take(writes)
            ledger.require(sums)
        some: list[ChangedKey] = []
        for writes in buckets:
            some += _changed(writes, task, ledger, chosen)
            while len(some) >= BATCH:
                yield some[:BATCH]
                some = some[BATCH:]
        if some:
            yield some


def _take_base(reader: Reader, plan: FoldPlan, buckets: _Buckets, only: str | None) -> None:
    """Add the values of the full snapshot. :raises DamagedIncrement: it is not the one of its manifest."""
    if plan.base is None:
        return
    manifest, checksums = plan.base.manifest, list[int]()
    for data in chunks_of(reader, plan.place, manifest, plan.base.offset):
        try:
            chunk = records.unpack(data) if frame.kind_of(data) == b"C" else None
        except frame.BadFrame:
            continue  # the comparison with the manifest reports the chunk as missing
        if len(checksums) == len(manifest.checksums):
            break
        if isinstance(chunk, Chunk) and chunk.full == manifest.full and chunk.i == len(checksums):
            name, keys, values = decoded_packed(chunk.entry)
            checksums.append(frame.body_checksum(data))
            if only in (None, name):
                buckets.add(_BASE, name, keys, values)
    report = TaskReport(partition=plan.partition, kind="chunks", checksums=checksums)
    if finding := judge_chunks(manifest, report):
        raise DamagedIncrement(
            f"full@{plan.base.offset}: {finding}. No row was returned. Next: read the changes after a later point with "
            f"the option since, and run `statehold snapshot verify`",
            topic=plan.place.names.snapshot,
            partition=plan.partition,
        )


def _changed(writes: Iterable[_Write], task: ChangesTask, ledger: _Ledger, chosen: Chosen) -> Iterator[ChangedKey]:
    """Yield the changes of one bucket, with their values before."""
    known: dict[bytes, bytes] = {}
    own = [(n, key, value) for n, table, key, value in writes if table == task.table]
    numbers = chosen([key for _, key, _ in own])
    for n, key, value in own if numbers is None else map(own.__getitem__, numbers):
        before = known.pop(key, None)
        if value is not None:
            known[key] = value
        if n > task.after and (before is not None or value is not None):
            kind = "delete" if value is None else "insert" if before is None else "update"
            yield ChangedKey(ledger.transaction(n), key, before, value, kind)


class _Ledger:
    """The transactions after the base, in columns, and the digests of their commit records."""

    def __init__(self, task: ChangesTask) -> None:
        self._task = task
        self._first = -1
        self._start, self._position, self._time, self._writer = array("q"), array("q"), array("q"), array("l")
        self._writers: dict[str, int] = {}
        self._names: list[str] = []
        #: the recorded digest; empty: the commit record has no delta
        self._digests: list[bytes] = []

    def add(self, increment: Increment, time: int) -> None:
        found = _of(increment, time, self._task.plan.place)
        self._first = found.n if self._first < 0 else self._first
        self._start.append(found.start)
        self._position.append(found.position)
        self._time.append(time)
        number = self._writers.setdefault(found.writer, len(self._writers))
        if number == len(self._names):
            self._names.append(found.writer)
        self._writer.append(number)
        self._digests.append(increment.commit_record.digest if increment.commit_record.delta else b"")

    def transaction(self, n: int) -> ChangeOrigin:
        i = n - self._first
        return ChangeOrigin(n, self._start[i], self._position[i], self._time[i], self._names[self._writer[i]])

    def require(self, sums: _Sums) -> None:
        """:raises DigestMismatch: a state after a delta is not the recorded one."""
        base = self._task.plan.base
        through = base.manifest.through if base is not None else -1
        numbers = range(self._first, self._first + len(self._digests))
        recorded = {n: found for n, found in zip(numbers, self._digests, strict=True) if found and n >= through}
        goal = self._task.plan.goal.commit_record
        recorded.setdefault(goal.n, goal.digest)
        totals = sums.totals([_BASE, *numbers], goal.n, from_bytes(goal.digest))
        for n, found in recorded.items():
            if totals[n] % MODULUS != from_bytes(found):
                raise mismatch(
                    self._task.plan,
                    _CHANGES,
                    f"the changes up to transaction {n} give the digest {show(totals[n])}, its commit record has "
                    f"{show(found)}",
                )


class _Sums:
    """What each transaction adds to the digest. Tables without code have two sums: keys hashed as text, and packed."""

    def __init__(self, text: Mapping[str, bool]) -> None:
        self._text = text
        #: (table, as text) -> transaction -> sum
        self._found: dict[tuple[str, bool], dict[int, int]] = {}

    def take(self, writes: Iterable[_Write]) -> None:
        """Add the writes of whole keys, in their order."""
        tables: dict[str, list[_Write]] = {}
        for write in writes:
            tables.setdefault(write[1], []).append(write)
        for table, own in tables.items():
            keys = [key for _, _, key, _ in own]
            for text in (self._text[table],) if table in self._text else (True, False):
                sums, known = self._found.setdefault((table, text), {}), dict[bytes, int]()
                for (n, _, key, value), seed in zip(own, packed_seeds(table, keys, text=text), strict=True):
                    old = known.pop(key, 0)
                    new = 0
                    if value is not None:
                        new = known[key] = hash128(value, seed)
                    sums[n] = sums.get(n, 0) + new - old

    def totals(self, numbers: list[int], goal: int, wanted: int) -> dict[int, int]:
        """Return the digest after each transaction, with the kinds of sums that give `wanted` after `goal`."""
        tables = sorted({table for table, _ in self._found})
        open_tables = [table for table in tables if table not in self._text][:_MOST_TABLES]
        totals: dict[int, int] = {}
        for choice in product((True, False), repeat=len(open_tables)):
            kinds = {**self._text, **dict(zip(open_tables, choice, strict=True))}
            used = [self._found[table, kinds.get(table, True)] for table in tables]
            each = [sum(sums.get(n, 0) for sums in used) for n in numbers]
            totals = dict(zip(numbers, accumulate(each), strict=True))
            if totals.get(goal, totals[numbers[-1]]) % MODULUS == wanted:
                break
        if goal not in totals:  # the base is the state at the goal
            totals[goal] = totals[numbers[-1]]
        return totals


def _where(task: ChangesTask) -> str:
    return f"{task.plan.place.input}[{task.plan.partition}]"
