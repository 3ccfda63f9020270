"""A driver's partition begins with a state of a backup, handles the backup's input again, and equals a golden file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.handlers import Accounts, fold, many

from statehold import Handler, Output, Record, Table, on, renamed
from statehold.errors import TableTypeChanged, UnknownSchema, UsageError
from statehold.testing import Driver

OPS = many(24)


def save(driver: Driver, directory: Path, *, with_input: bool = True) -> Path:
    driver.save(directory, with_input=with_input)
    return directory


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """A backup of a service that has committed each half of OPS."""
    driver = Driver(Accounts)
    for op in OPS[:12]:
        driver.feed(op, key="k")
    driver.commit()
    for op in OPS[12:]:
        driver.feed(op, key="k")
    driver.commit()
    return save(driver, tmp_path / "night")


def test_the_state_of_a_backup_continues(night: Path) -> None:
    driver = Driver(Accounts)
    assert driver.load(night) == 24
    assert driver.position() == 24
    first = driver.commit_record()
    assert (first.n, first.start, first.keys) == (0, 24, len(fold(OPS)[0]))
    more = many(30)[24:]
    for op in more:
        assert driver.feed(op, key="k") >= 24
    driver.crash()
    driver.restore()
    assert driver.table("balances") == fold([*OPS, *more])[0]
    assert driver.outputs("totals") == fold([*OPS, *more])[1][24:]
    driver.replay()


def test_the_night_is_handled_again_from_the_middle(night: Path) -> None:
    driver = Driver(Accounts)
    assert driver.load(night, at="12") == 12
    assert driver.feed_backup(night) == 12
    driver.commit()
    assert driver.table("balances") == fold(OPS)[0]
    assert driver.outputs("totals") == fold(OPS)[1][12:]
    assert driver.position() == 24
    assert driver.feed_backup(night) == 0
    driver.replay()


def test_up_to_a_time(night: Path) -> None:
    driver = Driver(Accounts)
    driver.load(night, at="12")
    assert driver.feed_backup(night, until=0) == 0


def test_a_changed_backup_is_not_loaded(night: Path) -> None:
    changed = night / "increment-0.jsonl"
    changed.write_bytes(changed.read_bytes()[:-20])
    with pytest.raises(UsageError, match="increment-0"):
        Driver(Accounts).load(night)


def test_what_a_driver_cannot_load_is_explained(night: Path, tmp_path: Path) -> None:
    driver = Driver(Accounts)
    with pytest.raises(UsageError, match="is beyond the end"):
        driver.load(night, at="25")
    with pytest.raises(UsageError, match="has 1 partitions, no partition 1"):
        Driver(Accounts, partitions=2).load(night, partition=1)
    with pytest.raises(UsageError, match="is not a complete backup"):
        driver.load(tmp_path)
    driver.feed(OPS[0])
    with pytest.raises(UsageError, match="has started"):
        driver.load(night)
    without = save(driver, tmp_path / "without", with_input=False)
    with pytest.raises(UsageError, match="--with-input"):
        driver.feed_backup(without)


class Pair(Handler[int]):
    """Each output depends on all records before it, of either input."""

    links = Table(key=str, value=int)
    out = Output("out", value=int)

    @on("left", value=int)
    def left(self, record: Record[int]) -> None:
        self._link(record.value * 2)

    @on("right", value=int)
    def right(self, record: Record[int]) -> None:
        self._link(record.value * 3 + 1)

    def _link(self, number: int) -> None:
        link = self.links["all"] = (self.links.get("all", 0) * 31 + number) % 1_000_003
        self.out.send(link)


def test_two_inputs_continue_in_the_order_of_their_times(tmp_path: Path) -> None:
    first = Driver(Pair)
    for number in range(6):
        first.feed(number, timestamp=1000 + number, input="left" if number % 3 else "right")
    first.commit()
    saved = save(first, tmp_path / "saved")
    second = Driver(Pair)
    assert second.load(saved, at="n:0") == 0
    assert second.feed_backup(saved) == 6
    assert second.outputs("out") == first.outputs("out")
    with pytest.raises(UsageError, match="has the inputs left, right, not input"):
        Driver(Accounts).load(saved)


def test_a_golden_file(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "accounts.txt"
    driver = Driver(Accounts)
    for op in OPS[:5]:
        driver.feed(op)
    with pytest.raises(AssertionError, match="did not exist"):
        driver.golden(path)
    driver.golden(path)
    rows = driver.table("balances")
    assert path.read_text().splitlines()[0] == "balances:"
    assert len(path.read_text().splitlines()) == 1 + len(rows)
    for key, value in rows.items():
        shown = msgspec.json.encode(value, order="sorted").decode()
        assert f'\n  "{key}": {shown}\n' in path.read_text()
    driver.feed(OPS[5])
    with pytest.raises(AssertionError, match=r"\n\+  .*\nNext: if the new state is right, delete"):
        driver.golden(path)


def test_fuzz_crashes_as_a_method() -> None:
    assert Driver(Pair).fuzz_crashes([1, 2], most=20) > 10


class Renamed(msgspec.Struct, frozen=True):
    minor: int = 0


class Total(msgspec.Struct, frozen=True):
    cents: int = 0


def totals(kind: type[Any], **options: Any) -> type[Handler[int]]:
    class Totals(Handler[int]):
        totals = Table(key=str, value=kind, **options)

        def on_record(self, record: Record[int]) -> None:
            self.totals["ann"] = kind(record.value)

    return Totals


def test_the_state_that_a_release_has_saved_is_no_other_for_the_next_one(tmp_path: Path) -> None:
    """Its types and versions come with it, so the next release is compared with them."""
    driver = Driver(totals(Total))
    driver.feed(100)
    driver.save(tmp_path / "release-1")
    with pytest.raises(TableTypeChanged, match="cents: int is gone"):
        Driver(totals(Renamed)).load(tmp_path / "release-1")
    second = totals(Renamed, version=2, upcasters={1: renamed({"cents": "minor"})})
    driver = Driver(second)
    driver.load(tmp_path / "release-1")
    assert driver.table("totals") == {"ann": Renamed(100)}
    driver.feed(7)
    driver.save(tmp_path / "release-2")
    with pytest.raises(UnknownSchema, match="holds values of version 2, this code declares version 1"):
        Driver(totals(Total)).load(tmp_path / "release-2")


def test_a_saved_state_has_all_partitions_and_is_written_once(tmp_path: Path) -> None:
    driver = Driver(totals(Total), partitions=3)
    driver.feed(5, partition=2)
    driver.save(tmp_path / "state", with_input=True)
    later = Driver(totals(Total), partitions=3)
    later.load(tmp_path / "state", partition=2)
    assert [len(later.table("totals", partition)) for partition in range(3)] == [0, 0, 1]
    with pytest.raises(UsageError, match="state"):
        driver.save(tmp_path / "state")
