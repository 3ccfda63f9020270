"""A log that is short for a moment is no damage; a log that stays so is (rules T4, D6)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, commit_records, events, many

from statehold.errors import DamagedIncrement, OutcomeUnknown, TornTransaction
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
from statehold.testing.memory.log import MemoryLog

OPS = many(6)


def filled() -> tuple[Driver, MemoryLog]:
    driver = Driver(Accounts)
    for op in OPS:
        driver.feed(op)
        driver.commit()
    return driver, driver.broker.log(driver.names.changelog, 0)


def short_for(driver: Driver, log: MemoryLog, missing: int, looks: int) -> Callable[[str, int], None]:
    """The broker reports an early end of the changelog topic, for a number of requests."""
    whole, asked = log.end, [0]

    def on_bounds(topic: str, partition: int) -> None:
        if topic == driver.names.changelog:
            asked[0] += 1
            log.end = whole - missing if asked[0] <= looks else whole

    return on_bounds


@pytest.mark.parametrize("missing", [1, 2, 3, 4, 5, 8], ids=lambda each: f"{each} short")
def test_a_leader_that_does_not_return_the_whole_log_yet(missing: int) -> None:
    driver, log = filled()
    driver.crash()
    driver.broker.on_bounds = short_for(driver, log, missing, looks=2)
    driver.restore()
    driver.broker.on_bounds = None
    assert agrees(driver, OPS)
    driver.feed(Op("last", 1))
    assert agrees(driver, [*OPS, Op("last", 1)])


def test_a_transaction_that_stays_torn_is_rejected() -> None:
    driver, log = filled()
    driver.crash()
    commit_records = [m.offset() for m in log.committed() if (m.value() or b"")[1:2] == b"M"]
    log.abort_record(commit_records[-1])
    with pytest.raises(TornTransaction):
        driver.restore()
    assert len([e for e in events(driver, "kafka_retry") if e["doing"] == "recheck"]) == 5


def renewed() -> tuple[Driver, MemoryLog, int]:
    """The last transaction is a mark alone: its position is that of the one before. How many offsets it takes."""
    driver, log = filled()
    before, n = log.end, driver.commit_record().n
    inside.lane(driver).live().transaction.policy.last_commit = -math.inf
    driver.advance(1.0)
    assert (driver.commit_record().n, driver.commit_record().start) == (n + 1, driver.position())
    return driver, log, log.end - before


def test_an_end_without_the_last_commit_record_only_transaction_is_noticed_by_its_number() -> None:
    driver, log, size = renewed()
    n = driver.commit_record().n
    driver.crash()
    driver.broker.on_bounds = short_for(driver, log, size, looks=2)
    driver.restore()
    driver.broker.on_bounds = None
    assert [
        e["cause"] for e in events(driver, "kafka_retry") if "has committed, as the group's offset shows" in e["cause"]
    ]
    driver.feed(Op("last", 1))
    assert agrees(driver, [*OPS, Op("last", 1)])
    assert driver.commit_record().n == n + 1, "no number is given twice"


def test_one_that_stays_away_is_damage() -> None:
    driver, log, size = renewed()
    driver.crash()
    driver.broker.on_bounds = short_for(driver, log, size, looks=1_000_000)
    with pytest.raises(DamagedIncrement, match=r"transaction 7 has committed,.* the last commit record is 6"):
        driver.restore()


def test_memory_is_not_kept_on_the_word_of_a_short_log() -> None:
    """The outcome of an empty commit is unknown: it has committed, and the log does not show it yet."""
    driver, log = filled()
    before = log.end
    inside.lane(driver).live().transaction.policy.last_commit = -math.inf
    driver.broker.fail("commit", OutcomeUnknown("no answer"), after=True)
    short: list[int] = []

    def hide(topic: str, partition: int) -> None:
        if topic == driver.names.changelog and short:
            log.end = max(short[0], log.end)
        elif topic == driver.names.changelog and log.end > before:
            short.append(log.end)
            log.end = before

    def show(call: Call) -> None:
        if short:
            log.end = max(short[0], log.end)

    driver.broker.on_bounds, driver.broker.on_call = hide, show
    driver.advance(3.0)
    driver.broker.on_bounds = driver.broker.on_call = None
    assert short
    driver.feed(Op("last", 1))
    assert agrees(driver, [*OPS, Op("last", 1)])
    numbers = [commit_record.n for commit_record in commit_records(driver)]
    assert numbers == list(range(len(numbers))), "no number is given twice"
