"""Whether a state fits: prediction, what two restores share, cgroups of both versions. No broker."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from statehold.common.names import Names
from statehold.errors import MemoryShort
from statehold.health import process_memory
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer
from statehold.worker.common.memory_guard import Memory, Room

MB = 1_000_000


def a_place(partition: int = 0) -> Place:
    return Place(Names("s", "in", ""), partition, 2, {}, Writer(), {})


class Process:
    """What a process has and may have."""

    def __init__(self, allowed: int) -> None:
        self.has = 0
        self.memory = Memory(lambda: self.has, lambda: (allowed, "memory.max of the unit"))

    def room(self, partition: int = 0) -> Room:
        return Room(self.memory, "auto", a_place(partition))


def test_a_state_that_fits_is_loaded_and_one_that_does_not_is_rejected_with_the_numbers() -> None:
    process = Process(1000 * MB)
    process.has = 200 * MB
    with process.room() as room:
        room.foresee(1_000_000, 400 * MB)  # 240 + 440 MB
    with process.room() as room, pytest.raises(MemoryShort) as rejected:
        room.foresee(2_000_000, 400 * MB)
    text = str(rejected.value)
    assert "in[0]: load: the state needs about 920 MB (2,000,000 keys), the process uses 200 MB" in text
    assert "may use 900 MB: nine tenths of 1,000 MB (memory.max of the unit)" in text


def test_two_restores_are_not_given_the_same_room() -> None:
    process = Process(1000 * MB)
    with process.room(0) as first, process.room(1) as second:
        first.foresee(1_000_000, 400 * MB)
        with pytest.raises(MemoryShort, match=r"in\[1\]: .* other restores will use 680 MB"):
            second.foresee(1_000_000, 400 * MB)
        # Half of the first is there: it takes no more room than before.
        process.has = 340 * MB
        first.look(1.0, 500_000)
        second.foresee(500_000, 50 * MB)
    first.look(9.0, 0)  # a replay, say, that follows
    with process.room(1) as second:
        process.has = 0
        second.foresee(1_000_000, 400 * MB)


def test_an_unforeseen_growth_is_noticed_while_it_happens() -> None:
    process = Process(1000 * MB)
    with process.room() as room:
        process.has = 899 * MB
        room.look(1.0, 1000)
        process.has = 901 * MB
        room.look(1.1, 2000)  # it does not look at every batch
        with pytest.raises(MemoryShort, match="its restore is running, the process uses 901 MB"):
            room.look(2.0, 2000)


def test_a_limit_of_the_settings_and_none_at_all() -> None:
    process = Process(1000 * MB)
    Room(process.memory, "off", a_place()).foresee(10**9, 10**12)
    with pytest.raises(MemoryShort, match=r"100 MB \(restore.memory_limit\)"):
        Room(process.memory, 100 * MB, a_place()).foresee(1_000_000, 0)
    Room(Memory(lambda: 10**12, lambda: (0, "")), "auto", a_place()).foresee(10**9, 10**12)  # no limit


def a_machine(tmp_path: Path, cgroup: str, **limits: str) -> tuple[int, str]:
    process = tmp_path / "proc" / "self"
    process.mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       16000 kB\nMemFree: 1 kB\n")
    (process / "cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = tmp_path / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    allowed, whose = process_memory.limit(process, tmp_path / "cgroup")
    return allowed, whose.removeprefix(f"{tmp_path}/")


UNIFIED = "0::/system.slice/statehold.service\n"


def test_the_least_of_unit_slice_and_machine_counts(tmp_path: Path) -> None:
    unit, slice_ = "system.slice/statehold.service/memory.max", "system.slice/memory.max"
    assert a_machine(tmp_path / "a", UNIFIED) == (16_384_000, "the machine's memory")
    assert a_machine(tmp_path / "b", UNIFIED, **{unit: "max"}) == (16_384_000, "the machine's memory")
    assert a_machine(tmp_path / "c", UNIFIED, **{unit: "5000000", slice_: "max"}) == (5_000_000, f"cgroup/{unit}")
    assert a_machine(tmp_path / "d", UNIFIED, **{unit: "5000000", slice_: "4000000"}) == (4_000_000, f"cgroup/{slice_}")
    # In a container the group is the root of what it sees.
    assert a_machine(tmp_path / "e", "0::/\n", **{"memory.max": "3000000"}) == (3_000_000, "cgroup/memory.max")


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    group = "3:cpuset:/\n4:memory:/a/b\n0::/\n"
    path = "memory/a/b/memory.limit_in_bytes"
    assert a_machine(tmp_path / "a", group, **{path: "5000000"}) == (5_000_000, f"cgroup/{path}")
    assert a_machine(tmp_path / "b", group, **{path: "9223372036854771712"})[1] == "the machine's memory"


def test_this_process_has_some() -> None:
    assert 1 * MB < process_memory.used() < process_memory.limit()[0]


def test_a_state_on_disk_is_not_predicted_and_pages_of_files_do_not_count() -> None:
    """The kernel frees them when memory is short."""
    files = [800 * MB]
    memory = Memory(lambda: 1_200 * MB, lambda: (1_000 * MB, "a limit"), lambda: files[0])
    with Room(memory, "auto", a_place(), on_disk=lambda: 0) as room:
        room.foresee(10**9, 10**12)
        room.look(1.0, 1)
        files[0] = 200 * MB
        with pytest.raises(MemoryShort, match="the process uses 1,000 MB"):
            room.look(2.0, 1)


def test_what_decoded_values_may_still_take_counts_with_a_state_on_disk() -> None:
    rest = [300 * MB]
    memory = Memory(lambda: 400 * MB, lambda: (800 * MB, "a limit"), lambda: 0)
    with Room(memory, "auto", a_place(), on_disk=lambda: rest[0]) as room:
        room.look(1.0, 1)
        rest[0] = 400 * MB
        with pytest.raises(MemoryShort) as rejected:
            room.look(2.0, 1)
    assert "decoded values of tables on disk may take 400 MB more (state.memory)" in str(rejected.value)
    assert "more memory, or lower state.memory, or start another instance" in str(rejected.value)


def test_pages_of_a_mapped_file_are_counted(tmp_path: Path) -> None:
    path, size = tmp_path / "mapped", 64 * MB
    path.write_bytes(b"x" * size)
    before = process_memory.of_files()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, size, 4096)) > 0
        assert process_memory.of_files() - before > size / 2
