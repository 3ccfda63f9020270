"""A ledger that sends to itself by account, under random schedules of crashes, faults and rebalances."""

from __future__ import annotations

import pytest
from tests.simulation.scenarios import SHORT_SCENARIOS
from tests.support.rekeyed import Ledger, Transfer, balances

from statehold.testing import Driver
from statehold.testing.simulation.cluster import SimulatedCluster
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import shrink, timeline
from statehold.testing.simulation.simulation import run

LEDGERS = [each for each in SHORT_SCENARIOS if each.name.startswith("another key")]


@pytest.mark.parametrize("number", range(len(LEDGERS)))
def test_no_money_is_lost_or_made(number: int) -> None:
    for seed in range(40):
        report = run(LEDGERS[number], Schedule.random(seed))
        if report.violation is not None:
            pytest.fail(f"seed {seed}, {report.scenario.name}, shrunk:\n{timeline(shrink(report))}", pytrace=False)


def test_a_cluster_runs_the_handler_as_a_driver_does() -> None:
    transfers = [Transfer("ann", "bob", 5), Transfer("bob", "cy", 3), Transfer("cy", "ann", 1)]
    driver = Driver(Ledger, partitions=2)
    with SimulatedCluster(Ledger, processes=2, partitions=2) as cluster:
        for number, transfer in enumerate([*transfers, transfers[0]]):
            cluster.feed(transfer, partition=number % 2)
            driver.feed(transfer, partition=number % 2)
            cluster.run()
            driver.commit()
            if number == 2:
                cluster.kill("a")
        assert sorted(cluster.outputs("moved")) == sorted(driver.outputs("moved"))
    found = {**driver.table("totals", 0), **driver.table("totals", 1)}
    assert found == balances([*transfers, transfers[0]])


def test_a_crash_at_every_step_leaves_the_same_outputs() -> None:
    inputs = [Transfer("ann", "bob", 5), Transfer("bob", "ann", 3)]
    assert Driver(Ledger).fuzz_crashes(inputs, most=60) > 40
