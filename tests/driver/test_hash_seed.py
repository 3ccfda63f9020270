"""A replay finds results that depend on the order of a set, in a process with another hash seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statehold import Handler, Output, Record, Reference, Table
from statehold.testing import BatchesMatter, Driver
from statehold.testing import hash_seed as module
from statehold.testing.hash_seed import run_elsewhere
from statehold.testing.rerun import Past, Results

WORDS = "one two three four five six seven eight nine ten"


class Sorted(Handler[str]):
    """Sends the words of a record in an order that does not depend on the process."""

    seen = Table(key=str, value=int)
    words = Output("words", value=str)

    def on_record(self, record: Record[str]) -> None:
        for word in self.order(set(record.value.split())):
            self.seen[word] = self.seen.get(word, 0) + 1
            self.words.send(word)

    def order(self, words: set[str]) -> list[str]:
        return sorted(words)


class Unsorted(Sorted):
    """Sends them in the order of a set."""

    def order(self, words: set[str]) -> list[str]:
        return list(words)


class First(Handler[str]):
    """Stores what a set gives first."""

    first = Table(key=str, value=str)

    def on_record(self, record: Record[str]) -> None:
        self.first[record.value[-1]] = next(iter(set(record.value.split())))


class Priced(Handler[str]):
    """Reads reference data."""

    prices = Reference("prices", key=str, value=int)
    out = Output("priced", value=int)

    def on_record(self, record: Record[str]) -> None:
        self.out.send(self.prices.get(record.value, 0))


class Patched(Handler[str]):
    """A test changes what it sends."""

    factor = 1
    out = Output("patched", value=int)

    def on_record(self, record: Record[str]) -> None:
        self.out.send(self.factor)


def fed(kind: type[Handler[str]], *values: str) -> Driver:
    driver = Driver(kind)
    driver.feed_all(values or [WORDS])
    return driver


def test_the_order_of_a_set_in_an_output_is_found() -> None:
    with pytest.raises(BatchesMatter, match=r"PYTHONHASHSEED=1\): output \d of 'words' is .* Next: use sorted"):
        fed(Unsorted).replay()


def test_the_order_of_a_set_in_a_table_is_found() -> None:
    """A set may have the same first word under another hash seed; nine sets without a common word do not."""
    sets = [" ".join(f"{word}{number}" for word in WORDS.split()) for number in range(9)]
    with pytest.raises(BatchesMatter, match=r"table 'first', key '\d': the value is '\w+', it was '\w+'"):
        fed(First, *sets).replay()


def test_a_sorted_set_is_no_difference() -> None:
    fed(Sorted).replay()
    fed(Sorted).replay(batches=2)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Results | None]:
    """Return what the other process has answered."""
    found: list[Results | None] = []

    def noting(past: Past, seed: int) -> Results | None:
        found.append(run_elsewhere(past, seed))
        return found[-1]

    monkeypatch.setattr("statehold.testing.replay.run_elsewhere", noting)
    return found


def test_the_other_process_handles_the_past(answers: list[Results | None]) -> None:
    fed(Sorted).replay()
    (found,) = answers
    assert found is not None
    assert [value for value, *_ in found.outputs["words"]] == sorted(each.encode() for each in WORDS.split())


def test_reference_data_is_seen_there_too(answers: list[Results | None]) -> None:
    driver = Driver(Priced)
    driver.publish(Priced.prices, "a", 7)
    driver.feed("a")
    driver.commit()
    driver.publish(Priced.prices, "a", 8)
    driver.feed("a")
    driver.replay()
    (found,) = answers
    assert found is not None
    assert [value for value, *_ in found.outputs["priced"]] == [b"7", b"8"]


def test_what_only_this_process_has_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patched, "factor", 2)
    driver = fed(Patched)
    assert driver.outputs(Patched.out) == [2]
    driver.replay()


def test_a_handler_that_cannot_be_imported_there_is_left_out() -> None:
    class Local(Unsorted):
        pass

    fed(Local).replay()


def test_a_process_that_was_killed_is_started_again() -> None:
    fed(Sorted).replay()
    module._processes[1]._child.kill()
    module._processes[1]._child.wait()
    with pytest.raises(BatchesMatter):
        fed(Unsorted).replay()


PROGRAM = """
import subprocess
from handlers import Unsorted
from statehold.testing import Driver, BatchesMatter
from statehold.testing.hash_seed import _processes

driver = Driver(Unsorted)
driver.feed("one two three four five six seven")
try:
    driver.replay()
except BatchesMatter:
    print("found", _processes[1]._child.pid)
"""


def test_no_process_remains(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(
        "from statehold import Handler, Output\n"
        "class Unsorted(Handler[str]):\n"
        "    words = Output('words', value=str)\n"
        "    def on_record(self, record):\n"
        "        self.words.send_all(set(record.value.split()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    word, pid = done.stdout.split()
    assert (word, done.stderr) == ("found", "")
    assert not Path(f"/proc/{pid}").exists()
