"""The store of full snapshots that all simulated processes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from statehold.snapshot.store.base import Store, Stored, StoreTrouble
from statehold.testing.memory.clock import ManualClock
from statehold.testing.simulation.scheduler import TaskScheduler

#: the value of `snapshot.full_store` for this store
SIMULATED: Final = "file:///simulated"


class SimulatedStore(Store):
    """Objects in memory. A write takes time, and may fail before or after its effect; on a full disk each one fails."""

    def __init__(self, scheduler: TaskScheduler, clock: ManualClock) -> None:
        self._scheduler, self._clock = scheduler, clock
        #: virtual time until which the disk is full
        self.full_until = 0.0
        self.objects: dict[str, tuple[bytes, float]] = {}

    def put(self, key: str, data: bytes) -> None:
        action = self._scheduler.reach("store")
        fails = action is not None and action.argument == "disk"
        if self._clock() < self.full_until or (action is not None and action.kind == "fail" and fails):
            raise StoreTrouble(f"{key} cannot be written: no space left on the device")
        self.objects[key] = data, self._clock.wall()
        if action is not None and action.kind == "fail-after" and fails:
            raise StoreTrouble(f"{key}: the answer was lost")

    def get(self, key: str) -> bytes:  # a restore calls it on a thread of the operating system
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][0]

    def list(self, prefix: str) -> Iterator[Stored]:
        for key, (_, time) in [*self.objects.items()]:
            if key.startswith(f"{prefix}/"):
                yield Stored(key, time)

    def delete(self, key: str) -> None:
        self._scheduler.reach("store")
        self.objects.pop(key, None)
