"""The local disks of simulated machines: writes to the files of tables on disk take time, fail and are interrupted."""

from __future__ import annotations

from statehold.testing.memory.files import MemoryStores
from statehold.testing.simulation.schedule import mix
from statehold.testing.simulation.scheduler import TaskScheduler

#: most writes that a crash loses
_LOST = 4


class SimulatedDisk(MemoryStores):
    """The files of one machine. A crash of its process may lose the newest writes, as if the machine had stopped."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._crashes = 0
        self.on_write = self._reach

    def _reach(self, moment: str) -> None:
        action = self._scheduler.reach("disk")
        self.full = action is not None and action.argument == "disk" and moment == "before"

    def crash(self) -> None:
        """Lose none or some of the newest writes of each partition."""
        self._crashes += 1
        for partition, files in self.files.items():
            files.lose(mix(self._scheduler.schedule.order, f"lost {partition}", self._crashes) % (_LOST + 1))
