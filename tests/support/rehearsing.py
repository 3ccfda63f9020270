"""A rehearsal over the topics in memory of a `Driver`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support import inside

from statehold.api.handler import Handler
from statehold.ports import Reader
from statehold.rehearsal.rehearse import RehearsalLimits, rehearse
from statehold.rehearsal.report import Compared, DifferenceExample, RehearsedPartition
from statehold.rehearsal.saved_results import ResultFiles
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import Point
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader


class DriverTopics:
    """A `RehearsalSource`."""

    def __init__(self, driver: Driver, *, outputs: bool = True) -> None:
        self._driver, self._outputs = driver, outputs
        self.partitions = 1

    def reader(self) -> Reader:
        return MemoryReader(self._driver.broker, lambda: False)

    def place(self, partition: int) -> Place:
        return inside.place(self._driver, partition)

    def point(self, partition: int, text: str) -> Point:
        return past.parse(text)

    def topics(self, names: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    def readable(self, topic: str) -> bool:
        return self._outputs


def rehearsed(
    driver: Driver, code: type[Handler[Any]], since: str = "n:0", files: ResultFiles | None = None, **limits: Any
) -> RehearsedPartition:
    """Rehearse the code over what the driver has committed, from the beginning."""
    driver.commit()
    return rehearse(DriverTopics(driver), code, 0, RehearsalLimits(since, **limits), files=files or ResultFiles())


def compared(found: RehearsedPartition, kind: str, name: str = "") -> Compared:
    """Return one comparison of the report."""
    (one,) = [each for each in found.compared if (each.kind, each.name) == (kind, name or kind)]
    return one


def shown(found: RehearsedPartition, kind: str) -> list[DifferenceExample]:
    return [each for each in found.examples if each.kind == kind]
