"""The engine behind a `Driver`, for tests that look into a worker or replace a part of it.

A Driver has no public way to its workers, because a user's test that depends on them breaks with each release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statehold.snapshot.format.partition_identity import Place
from statehold.testing import Driver
from statehold.testing.lane import Lane
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.calls import DriverCalls
from statehold.testing.memory.database import MemoryDatabase
from statehold.testing.memory.log import MemoryLog
from statehold.worker.common.context import Tools
from statehold.worker.replicas.standby import StandbyTools


def lane(driver: Driver, partition: int = 0) -> Lane:
    """Return the lane of a partition, which starts if it has not."""
    return driver._lane(partition)


def lanes(driver: Driver) -> dict[int, Lane]:
    """Return the lanes by partition; a test may put another one there."""
    return driver._lanes


def replace_lane(driver: Driver, inputs: Sequence[MemoryLog]) -> None:
    """Put a new owner of partition 0 in the place of the present one, which continues as a zombie."""
    driver._lanes[0] = Lane(driver._tools, driver.clock, inputs, 1)


def change_code(driver: Driver, before: Driver) -> None:
    """Let a driver of another release of the service continue with the topics and lanes of `before`."""
    driver.names, driver.broker, driver.offsets = before.names, before.broker, before.offsets
    driver._lanes = before._lanes
    driver._lanes[0]._tools = driver._tools


def calls(driver: Driver, partition: int = 0) -> DriverCalls:
    """Return the calls of the partition's owner; those of a former one stay usable."""
    return driver._calls[partition]


def place(driver: Driver, partition: int = 0) -> Place:
    return driver._place(partition)


def tools(driver: Driver, partition: int = 0) -> Tools:
    """Return what a worker of the partition gets."""
    return driver._tools(partition)


def replica_tools(driver: Driver) -> StandbyTools:
    return driver._around_standbys()


def encode(driver: Driver, topic: str, value: Any) -> bytes | None:
    """Return the bytes of a value of an input or a reference topic."""
    return driver._encoders[topic](value)


def forget_faults(of: MemoryBroker | MemoryDatabase) -> None:
    """Drop the faults that no call has met yet."""
    of._faults.clear()
