"""Commit records, changelog records and places for tests of the snapshot package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.ports import Bounds
from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Header, Manifest, Part, Writer
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.testing.memory.log import MemoryLog

NAMES = Names("service", "input")
PLACE = Place(NAMES, 0, 4, {}, Writer(instance="test"))


def header(n: int, attempt: str = "a", lineage: str = "l") -> Header:
    return Header(n, attempt, lineage, 10 * n)


def part(n: int, k: int = 0, attempt: str = "a", changes: Sequence[Changes] = ()) -> Part:
    return Part(n, attempt, k, [records.entry(change) for change in changes])


def commit_record(n: int, attempt: str = "a", lineage: str = "l", parts: int = 0, **more: Any) -> CommitRecord:
    fields: dict[str, Any] = {
        "n": n,
        "attempt": attempt,
        "lineage": lineage,
        "service": "service",
        "partition": 0,
        "partitions": 4,
        "positions": {"input": 10 * n},
        "digest": digest.to_bytes(0),
        "parts": parts,
        "last_delta": n,
    }
    return CommitRecord(**(fields | more))


def manifest(of: CommitRecord, **more: Any) -> Manifest:
    """The manifest of a full snapshot at this commit record, with one chunk."""
    fields: dict[str, Any] = {
        "full": "f",
        "service": of.service,
        "partition": of.partition,
        "partitions": of.partitions,
        "lineage": of.lineage,
        "first": of.n,
        "through": of.n,
        "positions": of.positions,
        "increment": 0,
        "low": 0,
        "checksums": (1,),
    }
    return Manifest(**(fields | more))


def replaced(record: CommitRecord, **changes: Any) -> CommitRecord:
    return msgspec.structs.replace(record, **changes)


class LogReader:
    """A reader of some logs, by topic."""

    def __init__(self, *logs: MemoryLog, batch: int = 3) -> None:
        self._logs = {log.topic: log for log in logs}
        self._batch = batch

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._logs[topic].start, self._logs[topic].end

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        return self._logs[topic].read(start, end, self._batch)

    def cancelled(self) -> bool:
        return False

    def close(self) -> None:
        pass


class LogSink:
    """Writes a full to a log; acknowledges what `acknowledge` allows."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.offsets: list[int] = []
        self.acknowledge = True

    def open(self, full: str, segments: int = 0) -> str:
        return ""

    @property
    def crowded(self) -> bool:
        return False

    def seal(self) -> int:
        return 0

    def send(self, payload: bytes) -> None:
        self.offsets.append(self.log.append(payload))

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return self.offsets if self.acknowledge else []

    def close(self) -> None:
        pass


def bounds(increment_end: int = 0, full_start: int = 0) -> Bounds:
    return Bounds(increment_end, full_start)
