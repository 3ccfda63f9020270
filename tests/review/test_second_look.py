"""A log that is short for a moment is no damage; a log that stays so is (rules T4, D6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.driver.apps import Accounts, Op, agrees, events, many

from holdfast.errors import TornTransaction
from holdfast.testing import Driver
from holdfast.testing.log import MemoryLog

OPS = many(6)


def filled() -> tuple[Driver, MemoryLog]:
    driver = Driver(Accounts)
    for op in OPS:
        driver.feed(op)
        driver.commit()
    return driver, driver.broker.log(driver.names.increment, 0)


def short_for(driver: Driver, log: MemoryLog, missing: int, looks: int) -> Callable[[str, int], None]:
    """The increment topic's end is told without the last records, for so many questions."""
    whole, asked = log.end, [0]

    def on_bounds(topic: str, partition: int) -> None:
        if topic == driver.names.increment:
            asked[0] += 1
            log.end = whole - missing if asked[0] <= looks else whole

    return on_bounds


@pytest.mark.parametrize("missing", [1, 2, 3, 4, 5, 8], ids=lambda each: f"{each} short")
def test_a_leader_that_does_not_tell_the_whole_log_yet(missing: int) -> None:
    driver, log = filled()
    driver.crash()
    driver.broker.on_bounds = short_for(driver, log, missing, looks=2)
    driver.restore()
    driver.broker.on_bounds = None
    assert agrees(driver, OPS)
    driver.feed(Op("last", 1))
    assert agrees(driver, [*OPS, Op("last", 1)])


def test_what_stays_torn_is_refused() -> None:
    driver, log = filled()
    driver.crash()
    marks = [m.offset() for m in log.committed() if (m.value() or b"")[1:2] == b"M"]
    log.abort_record(marks[-1])
    with pytest.raises(TornTransaction):
        driver.restore()
    assert len([e for e in events(driver, "kafka_retry") if e["doing"] == "look again"]) == 5
