"""`statehold doctor` on three brokers: one not reached, one gone, replicas and settings that differ."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.support.processes import await_true
from tests.support.proxy import Proxy

from statehold.common.names import Names
from statehold.config import load
from statehold.dev.pytest_plugin import ClusterFactory
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding, Level

pytestmark = [pytest.mark.kafka, pytest.mark.long]
NAMES = Names("three", "three.in")


def test_brokers_that_are_not_alike_not_reached_and_gone(kafka_cluster: ClusterFactory) -> None:
    """One start of three brokers for all of it, in the order in which things get worse."""
    with Proxy() as proxy:
        cluster = kafka_cluster(brokers=3, advertised={3: proxy.port})
        proxy.connect(cluster.ports[3])
        servers = f"127.0.0.1:{cluster.ports[1]},127.0.0.1:{cluster.ports[2]}"
        _make_topics(servers)

        sound = _all(servers)
        assert not {"brokers-reachable", "broker-versions", "broker-settings-differ", "partitions-now"} & set(sound)
        (brittle,) = sound["replication"]
        assert (brittle.level, brittle.about) == (Level.FAIL, NAMES.snapshot)
        assert "the death of one broker stops every write" in brittle.reason
        assert brittle.fix.endswith("min.insync.replicas=2")

        _set(servers, "2", "message.max.bytes", "2000000")
        await_true(lambda: "broker-settings-differ" in _look(servers, "broker-settings-differ"), "another value")
        (differs,) = _look(servers, "broker-settings-differ")["broker-settings-differ"]
        assert (differs.level, differs.about) == (Level.WARN, "message.max.bytes")

        proxy.close()
        (unreached,) = _look(servers, "brokers-reachable")["brokers-reachable"]
        assert (unreached.level, unreached.about) == (Level.FAIL, f"broker 3 at 127.0.0.1:{proxy.port}")

    cluster.kill(3)
    await_true(lambda: any("no leader" in each.reason for each in _now(servers)), "a partition without a leader")
    levels = {(each.about, str(each.level)) for each in _now(servers)}
    assert ("three.in[0]", "WARN") in levels  # two of three, two are needed
    assert (f"{NAMES.snapshot}[0]", "FAIL") in levels  # two of three, three are needed
    assert ("alone[0]", "FAIL") in levels  # was on that broker only


def _make_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    three = [[1, 2, 3]]
    ours = {"cleanup.policy": "delete", "min.insync.replicas": "2"}
    topics = [
        NewTopic(NAMES.input, 1, replica_assignment=three, config=ours),
        NewTopic(NAMES.changelog, 1, replica_assignment=three, config=ours),
        NewTopic(NAMES.snapshot, 1, replica_assignment=three, config={"min.insync.replicas": "3"}),
        NewTopic("alone", 1, replica_assignment=[[3]], config={"min.insync.replicas": "1"}),
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)
    await_true(lambda: "topics" not in _look(servers, "topics"), "every topic is known")


def _set(servers: str, broker: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})  # dropped, it would take its answer along
    admin.incremental_alter_configs([resource])[resource].result(30)


def _case(servers: str) -> Case:
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers, "STATEHOLD_KAFKA__CONNECTION_TIMEOUT": "5"})
    return Case(settings, NAMES, ["alone"])


def _look(servers: str, *checks: str) -> dict[str, list[Finding]]:
    """What is not good, by check."""
    found: dict[str, list[Finding]] = {}
    for each in examine(_case(servers), checks):
        if each.level is not Level.PASS:
            found.setdefault(each.check, []).append(each)
    return found


def _all(servers: str) -> dict[str, list[Finding]]:
    """Of three replicas alone: `alone` has one on purpose."""
    found = _look(
        servers, "brokers-reachable", "broker-versions", "broker-settings-differ", "partitions-now", "replication"
    )
    found["replication"] = [each for each in found["replication"] if each.about != "alone"]
    return found


def _now(servers: str) -> list[Finding]:
    return _look(servers, "partitions-now").get("partitions-now", [])
