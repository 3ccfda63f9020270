"""The files of a partition: both stores keep one contract, LMDB's survive a kill, and what may be wrong is not used."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_on_disk import PLACE, TABLES, batch, contents, local

from statehold.disk.keys import NO_KEY, key_codec
from statehold.disk.port import PartitionStore, StoreClosed, Stores
from statehold.disk.rows import DamagedRow, packed, place_of, unpacked
from statehold.disk.usage import ScrubNote
from statehold.errors import LocalStoreFailed
from statehold.testing.memory.files import MemoryStores

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["lmdb", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return local(tmp_path) if request.param == "lmdb" else MemoryStores()


@pytest.fixture
def store(stores: Stores) -> Iterator[PartitionStore]:
    store = stores.open(PLACE, TABLES)
    yield store
    store.close()


# The contract of both stores


def test_rows_and_label_are_there_after_a_write_and_a_close(stores: Stores) -> None:
    store = stores.open(PLACE, TABLES)
    assert store.label() is None
    store.apply({"a": {b"1": b"x", b"2": b"y"}, "b.c": {b"1": b"z"}}, b"first")
    store.apply({"a": {b"1": None, b"3": b"w", b"9": None}}, b"second")
    for _ in range(2):
        assert store.label() == b"second"
        assert contents(store) == {b"2": b"y", b"3": b"w"}
        assert (store.get("a", b"1"), store.get("a", b"2"), store.get("b.c", b"1")) == (None, b"y", b"z")
        assert (store.count("a"), store.count("b.c")) == (2, 1)
        store.close()
        store = stores.open(PLACE, TABLES)
    store.apply({}, None)
    assert store.label() is None
    store.clear()
    assert contents(store) == {}
    store.close()


def test_ranges_in_both_directions(store: PartitionStore) -> None:
    keys = [b"%05d" % number for number in range(0, 3000, 2)]
    store.apply({"a": dict.fromkeys(keys, b"v")}, b"m")
    snapshot = store.snapshot()
    rnd = random.Random(3)
    for _ in range(60):
        low, high = (rnd.choice([None, b"%05d" % rnd.randrange(-5, 3005)]) for _ in range(2))
        wanted = [key for key in keys if (low is None or key >= low) and (high is None or key < high)]
        for reverse in (False, True):
            found = [place for place, _ in snapshot.rows("a", low, high, reverse=reverse)]
            assert found == (wanted[::-1] if reverse else wanted), (low, high, reverse)
    snapshot.close()
    snapshot.close()


def test_a_snapshot_does_not_see_later_writes(store: PartitionStore) -> None:
    store.apply({"a": {b"1": b"x"}}, b"m")
    snapshot = store.snapshot()
    rows = snapshot.rows("a")
    store.apply({"a": {b"1": b"y", b"2": b"z"}}, b"n")
    assert list(rows) == [(b"1", b"x")]
    assert contents(store) == {b"1": b"y", b"2": b"z"}
    snapshot.close()


def test_a_closed_store_says_so(store: PartitionStore) -> None:
    store.apply({"a": {b"1": b"x"}}, b"m")
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        store.label,
        partial(store.get, "a", b"1"),
        store.snapshot,
        partial(store.apply, {}, b"m"),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_damaged_files_are_not_used_again(stores: Stores) -> None:
    store = stores.open(PLACE, TABLES)
    store.apply({"a": {b"1": b"x"}}, b"m")
    assert isinstance(store.damaged("a row differs"), LocalStoreFailed)
    store.close()
    store = stores.open(PLACE, TABLES)
    assert store.label() is None
    assert contents(store) == {}
    store.close()


def test_damage_that_is_found_after_the_close_is_not_that_of_the_next_owner(stores: Stores) -> None:
    """A scrub or a query may find it late, when another worker of the process has the directory."""
    store = stores.open(PLACE, TABLES)
    store.apply({"a": {b"1": b"x"}}, b"m")
    store.close()
    assert isinstance(store.damaged("a row differs"), LocalStoreFailed)
    store = stores.open(PLACE, TABLES)
    assert store.label() == b"m"
    store.close()


# LMDB


WRITER = """
import sys
from pathlib import Path
from tests.support.files_on_disk import local, batch, PLACE, TABLES
store = local(Path(sys.argv[1])).open(PLACE, TABLES)
first = int(store.label() or b"0")
print("open", flush=True)
for number in range(first + 1, first + 100000):
    store.apply({"a": batch(number)}, b"%d" % number)
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_whole_batches(tmp_path: Path) -> None:
    """Rule X3: the files hold the batches up to their label, and all that the process knew to be written."""
    rnd = random.Random(1)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert writer.stdout is not None
        last, wanted = 0, rnd.randrange(20, 400)
        for line in writer.stdout:
            last = 0 if line == b"open\n" else int(line)
            wanted -= 1
            if wanted < 0:
                break
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        dropped: list[str] = []
        store = local(tmp_path, dropped).open(PLACE, TABLES)
        store.proven()
        label = int(store.label() or b"0")
        assert label >= last
        expected: dict[bytes, bytes] = {}
        for number in range(1, label + 1):
            for place, row in batch(number).items():
                expected.pop(place, None)
                if row is not None:
                    expected[place] = row
        assert contents(store) == expected
        assert dropped == []
        store.close()


def closed(directory: Path) -> Path:
    """Return the data of a store that was closed."""
    store = local(directory).open(PLACE, TABLES)
    store.apply({"a": {b"%d" % number: b"x" * 100 for number in range(2000)}}, b"m")
    store.close()
    (data,) = directory.glob("*/0/data.mdb")
    return data


def reopened(directory: Path, boot: str = "this") -> tuple[bytes | None, list[str]]:
    dropped: list[str] = []
    store = local(directory, dropped, boot=boot).open(PLACE, TABLES)
    found = store.label()
    store.close()
    return found, dropped


def crash(directory: Path, boot: str = "this") -> None:
    """Let a process write and end, as by a kill: nothing is closed."""
    ending = "import os, sys; from pathlib import Path; from tests.support.files_on_disk import local, PLACE, TABLES"
    ending += "; store = local(Path(sys.argv[1]), boot=sys.argv[2]).open(PLACE, TABLES)"
    ending += "; store.apply({'a': {b'1': b'x'}}, b'm'); os._exit(0)"
    subprocess.run([sys.executable, "-c", ending, str(directory), boot], check=True, cwd=ROOT)


def test_files_that_were_open_when_the_machine_stopped(tmp_path: Path) -> None:
    """Rule X3: only the same boot has the pages that were not flushed."""
    crash(tmp_path)
    assert reopened(tmp_path) == (b"m", [])
    assert reopened(tmp_path, "another") == (b"m", [])  # the last end was clean
    crash(tmp_path)
    found, dropped = reopened(tmp_path, "another")
    assert found is None
    assert "the machine has stopped" in dropped[0]


def test_an_unknown_boot_trusts_only_a_clean_end(tmp_path: Path) -> None:
    closed(tmp_path)
    assert reopened(tmp_path, "") == (b"m", [])
    crash(tmp_path, "")
    assert reopened(tmp_path, "")[0] is None


@pytest.mark.parametrize("length", [0, 1, 5000, 8192, 100_000])
def test_a_cut_file(tmp_path: Path, length: int) -> None:
    """The read of a page that is gone would end the process by a signal, so another process opens the file."""
    data = closed(tmp_path)
    os.truncate(data, length)
    opening = (
        "import sys; from pathlib import Path; from tests.support.files_on_disk import contents, local, PLACE, TABLES"
    )
    opening += "; dropped = []; store = local(Path(sys.argv[1]), dropped).open(PLACE, TABLES)"
    opening += "; print(store.label(), len(contents(store)), len(dropped))"
    done = subprocess.run([sys.executable, "-c", opening, str(tmp_path)], capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done
    assert done.stdout.decode().split() == ["None", "0", "1" if length else "0"]


def noise(data: Path) -> None:
    """Overwrite the pages of rows, in a way that LMDB reports and that does not end the process."""
    whole = bytearray(data.read_bytes())
    for at in range(0, len(whole), 4096):
        if b"x" * 100 in whole[at : at + 4096]:
            whole[at + 10 : at + 12] = b"\xff\x7f"  # what kind of page it is
    data.write_bytes(whole)


@pytest.mark.parametrize("how", ["get", "scan", "apply"])
def test_damaged_pages_that_lmdb_reports_are_not_used_again(tmp_path: Path, how: str) -> None:
    """Rule X4: otherwise each retry would start from them, and fail at the same page."""
    noise(closed(tmp_path))
    store = local(tmp_path).open(PLACE, TABLES)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: [store.get("a", b"%d" % number) for number in range(2000)],
        "scan": lambda: contents(store),
        "apply": lambda: store.apply({"a": {b"%d" % number: b"y" for number in range(2000)}}, b"n"),
    }
    with pytest.raises(LocalStoreFailed):
        calls[how]()
    store.close()
    found, dropped = reopened(tmp_path)
    assert found is None
    assert "MDB_" in dropped[0]


@pytest.mark.parametrize("name", ["data.mdb", "usage"])
def test_a_lost_or_overwritten_file(tmp_path: Path, name: str) -> None:
    data = closed(tmp_path)
    (data.parent / name).unlink()
    assert reopened(tmp_path)[0] is None
    closed(tmp_path)
    path = data.parent / name
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert reopened(tmp_path)[0] is None


def test_processes_that_end_before_a_commit_again_and_again(tmp_path: Path) -> None:
    """A damaged page may end the process: after three such ends the files are dropped."""
    for _ in range(3):
        crash(tmp_path)
    found, dropped = reopened(tmp_path)
    assert found is None
    assert "in a row" in dropped[0]


def test_closed_files_may_be_opened_any_number_of_times_before_a_commit(tmp_path: Path) -> None:
    """As while the disk is full: each retry opens the files, and closes them again."""
    closed(tmp_path)
    for _ in range(6):
        local(tmp_path).open(PLACE, TABLES).close(flush=False)
    assert reopened(tmp_path) == (b"m", [])
    local(tmp_path).open(PLACE, TABLES).close(flush=False)
    assert reopened(tmp_path, "another")[0] is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if (mounted := subprocess.run(command, capture_output=True, check=False)).returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=False)


@pytest.mark.root
def test_files_that_alone_fill_a_disk_are_used_and_changed(small_disk: Path) -> None:
    """Their free pages take further writes, so a start must not need room for anything else."""
    for number in range(20):
        store = local(small_disk).open(PLACE, TABLES)
        store.apply({"a": batch(number % 2)}, b"%d" % number)
        store.close(flush=False)
    crash(small_disk)
    with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    dropped: list[str] = []
    for number in range(3):
        store = local(small_disk, dropped).open(PLACE, TABLES)
        store.apply({"a": batch(number % 2)}, b"again %d" % number)
        store.proven()
        store.close(flush=False)
        assert dropped == []
    (small_disk / "filler").unlink()
    assert reopened(small_disk) == (b"again 2", [])


def test_a_note_without_room_for_another_file_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path)
    whole = Path.open

    def full(path: Path, *mode: Any, **options: Any) -> Any:
        if path.name == "usage.new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, *mode, **options)

    monkeypatch.setattr(Path, "open", full)
    crash(tmp_path)
    store = local(tmp_path).open(PLACE, TABLES)
    assert not list(tmp_path.rglob("usage.new"))
    monkeypatch.undo()
    store.damaged("a page")
    store.close()
    found, dropped = reopened(tmp_path)
    assert (found, dropped[0]) == (None, "a page")


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_a_file_system_that_reserves_no_room_is_used(
    libc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ramfs and some others: glibc writes zeros there, unless the file is open to append, and musl fails."""

    def allocate(file: int, offset: int, length: int) -> None:
        if libc == "musl":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
            raise OSError(errno.EBADF, "Bad file descriptor")
        os.truncate(file, offset + length)

    monkeypatch.setattr(os, "posix_fallocate", allocate, raising=False)
    closed(tmp_path)
    assert reopened(tmp_path) == (b"m", [])


def test_a_first_start_on_a_full_disk_says_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.open

    def full(path: Path, *mode: Any, **options: Any) -> Any:
        if path.name == "usage.new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, *mode, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(LocalStoreFailed, match="No space left on device"):
        local(tmp_path).open(PLACE, TABLES)


def test_a_held_directory_leaves_another_one(tmp_path: Path) -> None:
    """A process that hangs holds its lock; the next owner of the partition does not wait for it."""
    first = local(tmp_path).open(PLACE, TABLES)
    first.apply({"a": {b"1": b"x"}}, b"m")
    second = local(tmp_path).open(PLACE, TABLES)
    assert second.label() is None
    others = [local(tmp_path).open(PLACE, TABLES) for _ in range(2)]
    with pytest.raises(LocalStoreFailed, match=r"input\[3\].*hold its 4 directories.*Next: "):
        local(tmp_path).open(PLACE, TABLES)
    for store in (first, second, *others):
        store.close()


def test_a_limit_and_what_is_kept(tmp_path: Path) -> None:
    store = local(tmp_path, limit=1 << 20).open(PLACE, TABLES)
    store.apply({"a": {b"1": b"x"}}, b"m")
    with pytest.raises(LocalStoreFailed, match=r"state\.disk_limit"):
        store.apply({"a": {b"%d" % number: b"x" * 1000 for number in range(2000)}}, b"n")
    assert store.label() == b"m"
    assert contents(store) == {b"1": b"x"}
    store.apply({"a": {b"2": b"x"}}, b"o")
    store.close()
    assert reopened(tmp_path)[0] == b"o"


def test_tables_that_the_code_no_longer_has_leave_no_rows(tmp_path: Path) -> None:
    store = local(tmp_path).open(PLACE, ["a", "old", "older"])
    store.apply({each: {b"1": b"x"} for each in ("a", "old", "older")}, b"m")
    store.close()
    store = local(tmp_path).open(PLACE, ["a"])
    store.clear()
    store.close()
    store = local(tmp_path).open(PLACE, ["a", "old", "older"])
    assert [store.count(each) for each in ("a", "old", "older")] == [0, 0, 0]
    store.close()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(LocalStoreFailed, match="open"):
        local(tmp_path / "file").open(PLACE, TABLES)


# Keys and rows


KEYS: dict[object, list[object]] = {
    str: ["", "a", "a\0", "a\0b", "ab", "b", "ä", "漢", "\U0001f600", "\uffff"],
    bytes: [b"", b"\0", b"\0\0", b"\xff", b"a"],
    int: [-(2**63), -1, 0, 1, 2**63, 2**64 - 1],
    tuple[str, int]: [("", 0), ("a", -5), ("a", 5), ("a\0", 1), ("ab", 0)],
    tuple[int, bytes, str]: [(1, b"", ""), (1, b"", "\0"), (1, b"\0", ""), (1, b"\0\xff", "x"), (2, b"", "")],
}


@pytest.mark.parametrize("kind", KEYS)
def test_the_bytes_of_keys_have_their_order(kind: object) -> None:
    codec = key_codec(kind)
    assert codec is not None
    keys = KEYS[kind]
    assert [codec.decode(codec.encode(key)) for key in keys] == keys
    assert sorted(keys) == sorted(keys, key=codec.encode)  # type: ignore[type-var]
    assert all(map(codec.encode, keys)), "LMDB has no empty key"
    for wrong in (None, 1.5, "x", b"x", 7, ("x",), (1, 2)):
        if wrong not in keys and not (kind is str and wrong == "x"):
            try:
                codec.encode(wrong)
            except NO_KEY:
                continue


@pytest.mark.parametrize(
    ("kind", "key", "equals"),
    [
        (int, 1, [1.0, True, Fraction(1), Decimal(1)]),
        (str, "a", [type("Text", (str,), {})("a")]),
        (bytes, b"a", [memoryview(b"a")]),
        (tuple[str, int], ("a", 1), [("a", 1.0), ("a", True)]),
    ],
)
def test_equal_values_are_one_key_as_in_a_dict(kind: object, key: object, equals: list[object]) -> None:
    codec = key_codec(kind)
    assert codec is not None
    for each in equals:
        assert {key: 1}[each] == 1
        assert codec.encode(each) == codec.encode(key)
    for other in (1.5, "1", float("inf"), float("nan")):
        if kind is int:
            with pytest.raises(NO_KEY):
                codec.encode(other)


BOUNDS: dict[object, list[object]] = {
    str: KEYS[str],
    bytes: KEYS[bytes],
    int: [*KEYS[int], 0.5, -1.5, 1.0, float("inf"), float("-inf"), -(2**63) - 1, 2**64, 10**30, -(10**30)],
    tuple[str, int]: [
        *KEYS[tuple[str, int]],
        (),
        ("a",),
        ("a", 5, 0),
        ("a", -5.5),
        ("a", float("inf")),
        ("a", -(10**30)),
    ],
    tuple[int, bytes, str]: [(1,), (1.0,), (1.5, b"x"), (1, b"\0"), (-(2**63), b""), (float("-inf"), b"z"), (10**30,)],
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_bound_of_a_range_need_not_be_a_key(kind: object) -> None:
    codec = key_codec(kind)
    assert codec is not None
    for bound in BOUNDS[kind]:
        place = codec.cut(bound)
        for key in KEYS[kind]:
            assert (codec.encode(key) >= place) == (key >= bound), (key, bound)  # type: ignore[operator]


def test_rows_of_short_and_long_keys() -> None:
    for key in (b"", b"k", b"k" * 479, b"k" * 480, b"k" * 9000):
        place = place_of(key)
        assert len(place) <= 480
        row = packed(key, place, b"value")
        assert unpacked(place, row) == (key, b"value")
        with pytest.raises(DamagedRow):
            unpacked(place, row[:-1])
        with pytest.raises(DamagedRow):
            unpacked(place + b"x", row)
    assert place_of(b"k" * 481) != place_of(b"k" * 482)


def test_used_pages_shrink_and_the_file_does_not(tmp_path: Path) -> None:
    store = local(tmp_path).open(PLACE, TABLES)
    empty = store.used()
    store.apply({"a": {b"%05d" % number: b"x" * 100 for number in range(5_000)}}, b"m")
    used, size = store.used(), store.size()
    assert empty < 500_000 < used <= size
    store.apply({"a": {b"%05d" % number: None for number in range(5_000)}}, b"n")
    assert store.used() < 50_000
    assert store.size() >= size
    store.close()


def test_what_a_scrub_has_found_outlives_the_files(tmp_path: Path) -> None:
    store = local(tmp_path).open(PLACE, TABLES)
    assert store.last_scrub() is None
    store.scrubbed(ScrubNote(5.0, 3, "differs", 5.0, "a row"))
    store.damaged("a row")
    store.close()
    store = local(tmp_path).open(PLACE, TABLES)
    assert store.scrubbed(ScrubNote(9.0, 4, "equal")) == ScrubNote(9.0, 4, "equal", 5.0, "a row") == store.last_scrub()
    store.close()
