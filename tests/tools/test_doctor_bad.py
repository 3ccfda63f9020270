"""Every check of `statehold doctor` seen to fail, on a broker that is set badly and topics that were spoiled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.support.brokers import started
from tests.support.members import close_members
from tests.support.processes import await_true
from tests.tools.recorded import Ledger

from statehold.dev import Cluster
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding, Level
from statehold.snapshot.format import records
from statehold.snapshot.restore.discovery import last_commit_record

pytestmark = pytest.mark.kafka

BAD = {
    "transactional.id.expiration.ms": "60000",
    "transaction.max.timeout.ms": "10000",
    "offsets.retention.minutes": "60",
    "group.initial.rebalance.delay.ms": "3500",
    "group.max.session.timeout.ms": "8000",
    "group.coordinator.rebalance.protocols": "classic",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
#: what a service needs to run on it all the same
BEARING = {
    "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "9",
    "STATEHOLD_COMMIT__TIMEOUT": "5",
    "STATEHOLD_RESTORE__HANGING_AFTER": "9",
}


class Patient:
    """A service on the bad broker."""

    def __init__(self, servers: str, ledger: Ledger) -> None:
        self.servers, self.ledger = servers, ledger
        self.admin = AdminClient({"bootstrap.servers": servers})

    def look(self, check: str, **settings: str) -> list[Finding]:
        """What is not good, by one check, with the settings of the environment."""
        case = Case(self.ledger.settings(**settings), self.ledger.names, [f"{self.ledger.name}.booked"])
        found = examine(case, [check])
        assert {each.check for each in found} == {check}
        return [each for each in found if each.level is not Level.PASS]

    def set(self, topic: str, **values: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    @contextmanager
    def acls(self, *bindings: AclBinding) -> Iterator[None]:
        for future in self.admin.create_acls(list(bindings)).values():
            future.result(30)
        try:
            yield
        finally:
            filters = [
                AclBindingFilter(
                    b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type
                )
                for b in bindings
            ]
            for removed in self.admin.delete_acls(filters).values():
                removed.result(30)


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with started(lambda: Cluster(settings=BAD)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def make(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Patient]:
    def made() -> Patient:
        ledger = _Bearing(broker.bootstrap_servers, tmp_path_factory.mktemp("bad"))
        return Patient(broker.bootstrap_servers, ledger.create())

    return made


class _Bearing(Ledger):
    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**(BEARING | more))


@pytest.fixture(scope="module")
def patient(make: Callable[[], Patient]) -> Patient:
    """Its settings are looked at, its topics left alone."""
    return make()


def levels(found: list[Finding]) -> set[str]:
    assert all(each.fix and each.reason for each in found if each.level in (Level.WARN, Level.FAIL))
    return {str(each.level) for each in found}


@pytest.mark.parametrize(
    ("check", "level", "settings", "reported"),
    [
        ("id-expiration", "FAIL", {}, "ids expire after 1m"),
        ("id-expiration", "WARN", {"COMMIT__RENEW_AFTER": "40"}, "commit.renew_after is 40s"),
        ("id-expiration", None, {"COMMIT__RENEW_AFTER": "20"}, ""),
        (
            "transaction-timeouts",
            "FAIL",
            {"COMMIT__TRANSACTION_TIMEOUT": "20", "RESTORE__HANGING_AFTER": "30"},
            "allows",
        ),
        ("transaction-timeouts", "WARN", {"RESTORE__HANGING_AFTER": "8"}, "is less than commit.transaction_timeout"),
        ("transaction-timeouts", None, {}, ""),
        ("offsets-retention", "WARN", {}, "forgets offsets after 1h, doctor.longest_outage is 2d"),
        ("offsets-retention", None, {"DOCTOR__LONGEST_OUTAGE": "30m"}, ""),
        ("rebalance-delay", "WARN", {}, "3500 ms"),
        ("session-bounds", "FAIL", {"GROUP__SESSION_TIMEOUT": "10"}, "allows 1s to 8s"),
        ("session-bounds", None, {"GROUP__SESSION_TIMEOUT": "7"}, ""),
        ("log-directory", "FAIL", {}, "which a restart of the machine may empty"),
        ("log-directory", "WARN", {"SERVICE__MODE": "development"}, "which a restart of the machine may empty"),
        ("replication", "FAIL", {}, "one replica"),
        ("replication", "WARN", {"SERVICE__MODE": "development"}, "one replica"),
    ],
)
def test_a_setting(patient: Patient, check: str, level: str | None, settings: dict[str, str], reported: str) -> None:
    found = patient.look(check, **{f"STATEHOLD_{key}": value for key, value in settings.items()})

    assert levels(found) == ({level} if level else set())
    assert all(reported in each.reason for each in found)


def test_a_protocol_that_the_brokers_do_not_offer(patient: Patient) -> None:
    auto = {"STATEHOLD_GROUP__SESSION_TIMEOUT": "auto", "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "auto"}
    found = patient.look("group-protocol", STATEHOLD_GROUP__PROTOCOL="consumer", **auto)

    assert "offers the protocols classic" in found[0].reason
    assert levels(found) == {"FAIL"}
    assert patient.look("group-protocol") == []


def test_a_topic_is_missing(patient: Patient) -> None:
    assert patient.look("topics") == []
    case = Case(patient.ledger.settings(), patient.ledger.names, ["never-made"])

    (found,) = examine(case, ["topics"])

    assert (found.level, found.about, "--partitions N" in found.fix) == (Level.FAIL, "never-made", True)


def test_strangers_in_the_group(patient: Patient) -> None:
    """Three members for two partitions, one of them with the service's own static id, by another assignor."""
    for check in ("instances", "static-members", "group-protocol"):
        assert patient.look(check, STATEHOLD_GROUP__INSTANCE_ID="one") == []
    settings = {
        "bootstrap.servers": patient.servers,
        "group.id": patient.ledger.names.group,
        "partition.assignment.strategy": "range",
        "session.timeout.ms": 7000,
        "enable.auto.commit": False,
    }
    members = [Consumer({**settings, **({"group.instance.id": "one"} if not i else {})}) for i in range(3)]
    try:
        for each in members:
            each.subscribe([patient.ledger.names.input])

        def joined() -> bool:
            for each in members:
                each.poll(0.05)
            return bool(patient.look("instances")) and bool(patient.look("group-protocol"))

        await_true(joined, "three members, and how they assign")
        (crowd,) = patient.look("instances")
        assert (crowd.level, crowd.reason.partition(":")[0]) == (Level.WARN, "3 members for 2 partitions")
        (twin,) = patient.look("static-members", STATEHOLD_GROUP__INSTANCE_ID="one")
        assert (twin.level, twin.about) == (Level.WARN, "one")  # on this host: it may be the one that is asked about
        assert patient.look("static-members", STATEHOLD_GROUP__INSTANCE_ID="two") == []
        (stranger,) = patient.look("group-protocol")
        assert (stranger.level, "assign by 'range'" in stranger.reason) == (Level.FAIL, True)
    finally:
        close_members(*members)


# Topics that were spoiled


@pytest.fixture(scope="module")
def spoiled(make: Callable[[], Patient]) -> Patient:
    """Each test spoils another topic, or another setting of one."""
    made = make()
    for check in ("cleanup-policy", "message-size", "unclean-election", "input-retention", "hanging-transactions"):
        assert made.look(check) == [], check
    return made


def test_topics_that_are_set_wrongly(spoiled: Patient) -> None:
    names = spoiled.ledger.names
    output = f"{spoiled.ledger.name}.booked"
    spoiled.set(names.snapshot, cleanup_policy="compact", max_message_bytes="100000")
    spoiled.set(names.input, cleanup_policy="compact,delete", retention_ms="3600000", retention_bytes="1000000")
    spoiled.set(output, unclean_leader_election_enable="true")

    assert {(each.about, str(each.level)) for each in spoiled.look("cleanup-policy")} == {
        (names.snapshot, "FAIL"),
        (names.input, "WARN"),
    }
    (small,) = spoiled.look("message-size")
    assert (small.about, small.level) == (names.snapshot, Level.FAIL)
    assert small.fix.endswith("--add-config max.message.bytes=1001024")
    (unclean,) = spoiled.look("unclean-election")
    assert (unclean.about, unclean.level) == (output, Level.FAIL)
    assert [str(each.level) for each in spoiled.look("input-retention")] == ["FAIL", "WARN"]


def test_an_old_open_transaction(spoiled: Patient) -> None:
    output = f"{spoiled.ledger.name}.booked"
    stranger = Producer(
        {"bootstrap.servers": spoiled.servers, "transactional.id": output, "transaction.timeout.ms": 9000}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    then = int((time.time() - 120) * 1000)
    stranger.produce(output, b"x", partition=1, timestamp=then)
    stranger.flush(30)

    (found,) = spoiled.look("hanging-transactions")
    stranger.abort_transaction(30)

    assert (found.level, found.about) == (Level.FAIL, f"{output}[1]")
    assert f"statehold txn abort '{output}[1]'" in found.fix
    assert spoiled.look("hanging-transactions") == []


@pytest.mark.long  # several JVMs, one after the other
def test_a_transaction_that_has_outlived_its_time(spoiled: Patient) -> None:
    """This broker does not look for such ones: it hangs, is reported so, and is ended on request."""
    output, owner = f"{spoiled.ledger.name}.booked", f"late-{spoiled.ledger.name}"
    names = ("--name", spoiled.ledger.names.service, "--input", spoiled.ledger.names.input)
    stranger = Producer(
        {"bootstrap.servers": spoiled.servers, "transactional.id": owner, "transaction.timeout.ms": 1000}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(output, b"x", partition=0)
    stranger.flush(30)
    listed = ("txn", "list", "--topic", output, *names, "--json")

    await_true(lambda: spoiled.ledger.run(*listed).returncode == 12, "it hangs", 240)
    (held,) = json.loads(spoiled.ledger.run(*listed).stdout)["held"]
    assert (held["owner"], held["state"], held["timeout"], held["hanging"]) == (owner, "Ongoing", 1.0, True)
    assert spoiled.ledger.run("txn", "abort", f"{output}[0]", *names, "--foreign").returncode == 0
    await_true(lambda: spoiled.ledger.run(*listed, "--older-than", "0").returncode == 0, "it has ended", 240)


def test_records_that_are_gone_before_they_were_read(make: Callable[[], Patient]) -> None:
    gone = make()
    topic = gone.ledger.names.input
    gone.ledger.feed(5)
    for future in gone.admin.delete_records([TopicPartition(topic, 1, 3)]).values():
        future.result(30)

    (found,) = gone.look("input-retention")

    assert (found.level, found.about) == (Level.FAIL, f"{topic}[1]")
    assert "begins at offset 3, the service must read on from 0" in found.reason


def test_an_input_that_has_grown_and_one_crowded_partition(make: Callable[[], Patient]) -> None:
    grown = make()
    topic = grown.ledger.names.input
    assert grown.look("partition-counts") == []
    for future in grown.admin.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(30)
    await_true(lambda: bool(grown.look("partition-counts")), "three partitions")
    producer = Producer({"bootstrap.servers": grown.servers})
    for i in range(1200):
        producer.produce(topic, b"x", partition=0 if i else 1)
    assert producer.flush(60) == 0

    found = grown.look("partition-counts")
    assert {each.about for each in found} >= {grown.ledger.names.changelog, f"{topic}[0]", f"{topic}[1]"}
    assert levels(found) == {"FAIL"}
    (crowded,) = grown.look("record-skew")
    assert (crowded.level, crowded.about) == (Level.WARN, f"{topic}[0]")


def test_a_recreated_topic_and_a_state_that_is_gone(make: Callable[[], Patient]) -> None:
    replaced = make()
    names = replaced.ledger.names
    assert replaced.look("topic-ids") == []
    assert replaced.look("snapshots-provable") == []
    replaced.admin.delete_topics([names.input])[names.input].result(30)

    def made() -> bool:
        future = replaced.admin.create_topics([NewTopic(names.input, 2, 1)])[names.input]
        return future.exception(30) is None

    await_true(made, "the new input")
    await_true(lambda: levels(replaced.look("topic-ids")) == {"FAIL"}, "another id")
    (found,) = replaced.look("topic-ids")
    assert (found.level, found.about) == (Level.FAIL, names.input)

    increments = [TopicPartition(names.changelog, partition, -1) for partition in range(2)]
    for future in replaced.admin.delete_records(increments).values():
        future.result(30)
    provable = replaced.look("snapshots-provable")
    assert levels(provable) == {"FAIL"}
    assert "hold no commit record" in provable[0].reason


def test_a_state_that_differs_from_its_commit_record_is_found_without_deep(make: Callable[[], Patient]) -> None:
    """The chain is complete: only rebuilding the state shows it."""
    patient = make()
    names = patient.ledger.names
    settings = patient.ledger.settings()
    reader = CommittedReader(settings, names.group, Admin(settings, names.group))
    commit_record = last_commit_record(reader, names.changelog, 0)
    reader.close()
    assert commit_record is not None
    n = commit_record.n + 1
    forged = msgspec.structs.replace(commit_record, n=n, attempt="x", digest=b"\1" * 16, last_delta=n, start=0)
    producer = Producer({"bootstrap.servers": patient.servers})
    for record in (records.Header(n, "x", commit_record.lineage, 0), forged):
        producer.produce(names.changelog, records.pack(record), partition=0)
    assert producer.flush(30) == 0

    (found,) = patient.look("snapshots-provable")

    assert (found.level, found.about) == (Level.FAIL, f"{names.input}[0]")
    assert "digest" in found.reason


# Rights


def acl(kind: ResourceType, name: str, principal: str, operation: AclOperation, allow: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, allow)


def test_a_right_that_is_missing(patient: Patient) -> None:
    """An ACL for another principal on a topic shuts out all without one."""
    assert patient.look("rights") == []
    output = f"{patient.ledger.name}.booked"
    allow = AclPermissionType.ALLOW
    reading = acl(ResourceType.TOPIC, output, "User:ANONYMOUS", AclOperation.DESCRIBE, allow)
    other = acl(ResourceType.TOPIC, output, "User:bob", AclOperation.WRITE, allow)
    with patient.acls(reading, other):
        await_true(lambda: bool(patient.look("rights")), "the ACL holds")
        found, wished = patient.look("rights")
        assert (found.level, found.about, found.reason) == (Level.FAIL, output, "WRITE is not allowed")
        assert (wished.level, wished.about, wished.reason) == (Level.WARN, output, "READ is not allowed")
        assert found.fix.endswith(
            f"kafka-acls --bootstrap-server {patient.servers} --add --allow-principal "
            f"User:NAME --operation Write --topic {output}"
        )


def test_a_right_on_the_transactional_ids_that_is_missing(patient: Patient) -> None:
    prefix = patient.ledger.names.transactional_id(0)[:-1]
    anyone, allow = "User:ANONYMOUS", AclPermissionType.ALLOW
    of_bob = AclBinding(
        ResourceType.TRANSACTIONAL_ID,
        prefix,
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.WRITE,
        allow,
    )
    # So that the broker itself, which is ANONYMOUS too, is no super user and still may do what it must.
    everything = acl(ResourceType.BROKER, "kafka-cluster", anyone, AclOperation.ALL, allow)
    no_changes = acl(ResourceType.BROKER, "kafka-cluster", anyone, AclOperation.ALTER_CONFIGS, AclPermissionType.DENY)
    with patient.acls(everything, no_changes, of_bob):
        await_true(lambda: levels(patient.look("rights")) == {"FAIL"}, "the ACL holds")
        (found,) = patient.look("rights")
        assert found.about == f"{prefix}*"
        assert f"--operation Write --transactional-id {prefix} --resource-pattern-type prefixed" in found.fix
        assert patient.look("rights", STATEHOLD_KAFKA__SECURITY__SASL_USERNAME="bob") == []


def test_a_cluster_that_does_not_show_its_settings(patient: Patient) -> None:
    """As managed clusters do: no client can look, so the check is unknown."""
    anyone, deny = "User:ANONYMOUS", AclPermissionType.DENY
    everything = acl(ResourceType.BROKER, "kafka-cluster", anyone, AclOperation.ALL, AclPermissionType.ALLOW)
    no_configs = acl(ResourceType.BROKER, "kafka-cluster", anyone, AclOperation.DESCRIBE_CONFIGS, deny)
    no_acls = acl(ResourceType.BROKER, "kafka-cluster", anyone, AclOperation.DESCRIBE, deny)
    with patient.acls(everything, no_configs, no_acls):
        await_true(lambda: bool(patient.look("id-expiration", STATEHOLD_COMMIT__RENEW_AFTER="20")), "the ACL holds")
        for check in ("id-expiration", "broker-settings-differ", "rebalance-delay", "rights"):
            assert levels(patient.look(check)) == {"UNKNOWN"}, check
