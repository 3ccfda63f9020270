"""A shadow over the topics in memory of a `Driver`."""

from __future__ import annotations

from typing import Any

from tests.support.rehearsing import DriverTopics

from statehold.api.handler import Handler
from statehold.shadow.report import ShadowedPartition
from statehold.shadow.shadow import ROUND, Shadow
from statehold.testing import Driver
from statehold.testing.memory.clients import StableMemoryReader


class GrowingTopics(DriverTopics):
    """A `ShadowSource`."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._broker = driver.broker

    def reader(self) -> StableMemoryReader:
        return StableMemoryReader(self._broker, lambda: False)

    def look_again(self) -> None:
        """Nothing changes."""

    def written(self, topic: str, partition: int) -> int:
        return self._broker.log(topic, partition).end


class DriverShadow:
    """A shadow of partition 0. Its clock is the driver's."""

    def __init__(self, driver: Driver, code: type[Handler[Any]], **options: Any) -> None:
        self._driver, self.names = driver, driver.names
        self.now = 0.0
        self.shadow = Shadow(GrowingTopics(driver), code, [0], clock=lambda: self.now, **options)

    def look(self, *, commit: bool = True) -> ShadowedPartition:
        """Let the driver commit, and the shadow compare what it can read, for at most two seconds of waiting."""
        if commit:
            self._driver.commit()
        waits = 0
        while (rest := self.shadow.turn()) < ROUND and waits < 20:
            waits += rest > 0
            self.now += rest
        (found,) = self.shadow.report(ended=True).partitions
        return found

    def hide(self, topic: str, *, hidden: bool = True) -> None:
        """Let readers see what the topic has now and nothing later, as behind an open transaction; or all again."""
        log = self._driver.broker.log(topic, 0)
        log.held_high = log.end if hidden else None

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
