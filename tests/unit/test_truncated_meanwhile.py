"""A service truncates its topics behind a full snapshot while a tool reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Message
from tests.support.snapshot_records import commit_record

from statehold.ops.cli import main
from statehold.ops.cli.common import lasting_output
from statehold.ops.cli.entry import main as statehold
from statehold.ports import OutOfRange
from statehold.snapshot.format import records
from statehold.snapshot.restore.discovery import last_commit_record


class Truncated:
    """No offset below 500 can be read, and the log begins at `then` when asked again; a commit record is at 900."""

    def __init__(self, then: int) -> None:
        self.then, self.asked = then, 0

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        self.asked += 1
        return (0, 400) if self.asked == 1 else (self.then, 901)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Any]]:
        if start < 500:
            raise OutOfRange(f"{topic}[{partition}]: offset {start}")
        value = records.pack(commit_record(7))
        yield [Message(topic=topic, partition=partition, offset=900, value=value)] if start <= 900 < end else []

    def cancelled(self) -> bool:
        return False

    def close(self) -> None: ...


def test_the_search_for_the_newest_commit_record_starts_again() -> None:
    found = last_commit_record(Truncated(500), "topic", 3)
    assert found is not None
    assert found.n == 7


def test_the_search_fails_if_the_log_begins_where_it_did() -> None:
    """Another cause than a truncation would make it search forever."""
    with pytest.raises(OutOfRange):
        last_commit_record(Truncated(0), "topic", 3)


def test_a_command_says_that_it_may_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def truncated() -> None:
        raise OutOfRange("ledger.changelog[3]: offset 12")

    monkeypatch.setattr(lasting_output, "install", lambda: None)
    monkeypatch.setattr(main, "app", truncated)
    with pytest.raises(SystemExit, match=r"deleted .* ledger\.changelog\[3\]: offset 12.*run the command again"):
        statehold()
