"""Results of an earlier run that no topic holds: sink rows, time and memory. JSON lines, in the order of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from statehold.bound.sink import Rows
from statehold.errors import UsageError
from statehold.rehearsal.report import RehearsedPartition
from statehold.snapshot.inspect import typed

#: by table, then by the text of a key: the columns, or None for a deleted row
RowChanges = dict[str, dict[str, dict[str, Any] | None]]


class SavedLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: where a partition begins, the sink rows of one transaction, or where it ends."""

    partition: int
    begin: int = -1
    n: int = -1
    rows: RowChanges = {}
    end: int = -1
    handler_seconds: float = 0.0
    records: int = 0
    memory: int = 0


def row_changes(rows: Sequence[Rows]) -> RowChanges:
    """Return the last change of each key."""
    found: RowChanges = {}
    for each in rows:
        table = found.setdefault(each.table, {})
        for put in each.puts:
            columns = dict(zip(each.columns, map(typed.builtins, put), strict=True))
            table[_text([columns[name] for name in each.key])] = columns
        for key in each.deletes:
            table[_text(typed.builtins(list(key)))] = None
    return found


def _text(key: Any) -> str:
    return msgspec.json.encode(key).decode()


class ResultsWriter:
    """Writes the file of `--save`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def begin(self, partition: int, n: int) -> None:
        self._write(SavedLine(partition, begin=n))

    def add(self, partition: int, n: int, rows: RowChanges) -> None:
        if rows:
            self._write(SavedLine(partition, n=n, rows=rows))

    def end(self, found: RehearsedPartition) -> None:
        self._write(
            SavedLine(
                found.partition,
                end=found.to_n,
                handler_seconds=found.handler_seconds,
                records=found.records,
                memory=found.memory,
            )
        )

    def _write(self, line: SavedLine) -> None:
        self._file.write(msgspec.json.encode(line).decode() + "\n")


class EarlierResults:
    """Reads the file of `--against` once, in its order."""

    def __init__(self, path: Path) -> None:
        """:raises UsageError: it is no such file."""
        self._path = path
        self._lines = self._read()
        self._next: SavedLine | None = None
        self._forward()

    def begin(self, partition: int, n: int) -> None:
        """Go to a partition. :raises UsageError: the file does not have it, or begins elsewhere."""
        while self._next is not None and (self._next.partition != partition or self._next.begin < 0):
            self._forward()
        if self._next is None:
            raise UsageError(f"{self._path} has no results of partition {partition}. Next: save that partition, too")
        if self._next.begin != n:
            raise UsageError(
                f"{self._path} begins with transaction {self._next.begin} of partition {partition}, this run with {n}. "
                f"Next: --from n:{self._next.begin} --partitions {partition}"
            )
        self._forward()

    def rows(self, n: int) -> RowChanges | None:
        """Return the rows of a transaction; ask for growing ones. None: the earlier run ended before."""
        while self._next is not None and 0 <= self._next.n < n:
            self._forward()
        found = self._next
        if found is None or found.begin >= 0:
            return None
        if found.end >= 0:
            return {} if n <= found.end else None
        if found.n > n:
            return {}
        self._forward()
        return found.rows

    def end(self, found: RehearsedPartition) -> None:
        """Give the report time and memory of the earlier run."""
        while self._next is not None and self._next.end < 0:
            self._forward()
        if self._next is not None and self._next.records:
            each = self._next.handler_seconds / self._next.records
            found.old_handler_seconds, found.old_memory = each * found.records, self._next.memory

    def _forward(self) -> None:
        self._next = next(self._lines, None)

    def _read(self) -> Iterator[SavedLine]:
        decode = msgspec.json.Decoder(SavedLine).decode
        try:
            with self._path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        yield decode(line)
                    except (msgspec.DecodeError, RecursionError) as error:
                        raise UsageError(f"{self._path}:{number}: this is no result of --save: {error}") from error
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{self._path}: this is no file of --save: {error}") from error


class ResultFiles(msgspec.Struct, frozen=True):
    """The files of one run; each may be absent."""

    save: ResultsWriter | None = None
    against: EarlierResults | None = None

    def begin(self, partition: int, n: int) -> None:
        """:raises UsageError: see `EarlierResults.begin`."""
        if self.save is not None:
            self.save.begin(partition, n)
        if self.against is not None:
            self.against.begin(partition, n)

    def end(self, found: RehearsedPartition) -> None:
        if self.save is not None:
            self.save.end(found)
        if self.against is not None:
            self.against.end(found)
