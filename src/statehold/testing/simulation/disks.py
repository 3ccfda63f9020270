"""The local disks of simulated machines: writes to the files of tables on disk take time, fail and are interrupted."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.disk.disk_state import WriteBehind
from statehold.snapshot.format.partition_identity import Place
from statehold.testing.memory.files import MemoryStore, MemoryStores, PartitionFiles
from statehold.testing.simulation.schedule import mix
from statehold.testing.simulation.scheduler import TaskScheduler

#: most writes that a crash loses
_LOST = 4
#: directories of one partition, and the distance of their numbers in `files`
_SLOTS, SLOT = 4, 1000


class SimulatedDisk(MemoryStores):
    """The files of one machine. A crash of its process may lose the newest writes, as if the machine had stopped."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._crashes = 0
        #: the open stores
        self._held: dict[int, MemoryStore] = {}
        self.on_write = self._reach

    def _reach(self, moment: str) -> None:
        action = self._scheduler.reach("disk")
        self.full = action is not None and action.argument == "disk" and moment == "before"

    def open(self, place: Place, tables: Sequence[str]) -> MemoryStore:
        """Open the first directory of the partition that no other store of this process holds, as `LocalStores`."""
        for slot in range(_SLOTS):
            partition = place.partition + slot * SLOT
            held = self._held.get(partition)
            if held is None or held.is_closed:
                files = self.files.setdefault(partition, PartitionFiles())
                store = self._held[partition] = MemoryStore(self, files, place)
                return store
        raise AssertionError(f"partition {place.partition} is open {_SLOTS} times in one process")

    def behind(self) -> WriteBehind:
        """Return a moment to write: at each delta, after a few, or only when a full snapshot reads the files."""
        order = self._scheduler.schedule.order
        return WriteBehind((0, 6, 30, 50_000)[mix(order, "behind") % 4])

    def begin(self) -> None:
        """A process starts: the kernel has freed the locks of the one before."""
        self._held.clear()

    def crash(self) -> None:
        """Lose none or some of the newest writes of each partition."""
        self._crashes += 1
        for partition, files in self.files.items():
            files.lose(mix(self._scheduler.schedule.order, f"lost {partition}", self._crashes) % (_LOST + 1))
