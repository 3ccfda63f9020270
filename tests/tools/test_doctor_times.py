"""The doctor compares the newest timestamp of each input with the clock, on a real broker."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.tools.test_doctor_keys import Inputs

from statehold.config import load
from statehold.dev import Cluster
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding, Level

YEAR_2100 = 4_102_444_800_000


class Timed(Inputs):
    def write(self, topic: str, partition: int, *timestamps: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for each in timestamps:
            producer.produce(topic, b"x", None, partition, timestamp=each)
        assert producer.flush(30) == 0

    def seen(self, **values: str) -> list[Finding]:
        settings = load(env=self.environment | {f"STATEHOLD_{key}": value for key, value in values.items()})
        return examine(Case(settings, self.names, probes=False), ["record-times"])


@pytest.fixture
def timed(kafka: Cluster) -> Timed:
    inputs = Timed(kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": inputs.servers})
    # Brokers reject such records by default.
    entry = ConfigEntry("message.timestamp.after.max.ms", str(2**62), incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.TOPIC, each, incremental_configs=[entry]) for each in inputs.topics]
    for done in admin.incremental_alter_configs(resources).values():
        done.result(30)
    return inputs


@pytest.mark.kafka
def test_a_record_of_the_year_2100_is_named_with_its_partition_and_offset(timed: Timed) -> None:
    trades, prices = timed.topics
    now = int(time.time() * 1000)
    timed.write(trades, 2, now - 5000, YEAR_2100, now)
    timed.write(prices, 1, now - 7_200_000)

    ahead, right = timed.seen()

    assert (ahead.level, ahead.about) == (Level.WARN, f"{trades}[2]@1")
    assert "has the timestamp 2100-01-01T00:00:00.000Z, " in ahead.reason
    assert "days ahead of this machine's clock; time.max_ahead is off" in ahead.reason
    assert "statehold repair time MODULE:SERVICE" in ahead.fix
    assert (right.level, right.about) == (Level.PASS, prices)
    assert "2:00:" in right.reason
    assert "behind this machine's clock" in right.reason


@pytest.mark.kafka
def test_with_a_limit_it_is_held_back(timed: Timed) -> None:
    timed.write(timed.topics[0], 0, int(time.time() * 1000) + 600_000)
    assert timed.seen()[0].level is Level.PASS
    (ahead,) = timed.seen(TIME__MAX_AHEAD="60s")
    assert (ahead.level, "time.max_ahead holds it back" in ahead.reason) == (Level.WARN, True)


@pytest.mark.kafka
def test_empty_inputs_are_no_finding(timed: Timed) -> None:
    (found,) = timed.seen()
    assert (found.level, found.about) == (Level.PASS, "-")
