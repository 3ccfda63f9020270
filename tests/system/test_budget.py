"""The predicted restore time against the measured one, on a real broker."""

from __future__ import annotations

import statistics

import pytest
from tests.support.figures import Figure
from tests.support.local_service import Local
from tests.support.stage import StageFactory

pytestmark = pytest.mark.kafka

KEYS = 200_000
MORE = 30_000
NO_FULL = {"STATEHOLD_SNAPSHOT__PERIODIC_FULL": "off", "STATEHOLD_SNAPSHOT__ON_STOP": "off"}
FULL_AT_STOP = {"STATEHOLD_SNAPSHOT__PERIODIC_FULL": "off"}


@pytest.mark.long
def test_the_prediction_is_within_a_factor_of_two(stages: StageFactory, figure: Figure) -> None:
    """The worker that stops says how long the next one will take: from deltas alone, and from a full and deltas.

    Others use this machine, too: a single restore may be held up for as long as it takes, so the median counts.
    """
    stage = stages(1).create_topics()
    stage.feed(KEYS, keys=10**9, padding=40)
    ratios: list[float] = []
    predicted = 0.0
    for ending in (NO_FULL, NO_FULL, FULL_AT_STOP, NO_FULL, NO_FULL, NO_FULL):
        with Local(stage, **ending) as local:
            local.await_live(0)
            measured = sum(event["seconds"] for event in local.events("restored", "replayed"))
            if predicted:
                ratios.append(predicted / measured)
            stage.feed(MORE, keys=10**9, padding=40)
            stage.await_all()
            predicted = local.partitions()[0]["restore_predicted"]
        if ending is FULL_AT_STOP:
            predicted = 0.0  # the full was written after the worker said how long it would take
    figure("restores predicted / measured, median", round(statistics.median(ratios), 2), "ratio")
    assert len(ratios) == 4
    assert 0.5 <= statistics.median(ratios) <= 2.0, ratios
