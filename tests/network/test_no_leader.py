"""A transaction that ends while a partition of it has no leader: brokers of 4.4 write no marker there (KAFKA-20734).

Three brokers; the topics that a test names have one replica, on the broker that dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.support.brokers import SETTINGS, started
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.admin.topics import REQUIRED
from statehold.dev import Cluster
from statehold.dev.jars import DEFAULT_VERSION
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.hanging_markers import HiddenRecords
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.ports import NUMBER
from statehold.snapshot.format.records import Header, number_of, pack
from statehold.telemetry.log_events import Log

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]

VICTIM = 3
ALONE = [[VICTIM], [VICTIM]]
#: a transaction is open until this number of records is handled or the minute is over
OPEN = {
    "STATEHOLD_COMMIT__INTERVAL": "60",
    "STATEHOLD_COMMIT__MAX_RECORDS": "100000",
    "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "300",
}
PATIENT = {"STATEHOLD_RESTORE__HANGING_AFTER": "20"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started(lambda: Cluster(3, settings=SETTINGS)) as cluster:
        yield cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """Its topics are not made yet."""
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2)
    yield stage
    stage.report()
    stage.close()
    cluster.start()


def end(admin: AdminClient, topic: str, partition: int, isolation: IsolationLevel) -> int:
    """Asked again while the leader changes."""
    place, deadline = TopicPartition(topic, partition), time.monotonic() + 60
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    while True:
        try:
            return int(admin.list_offsets({place: latest}, isolation_level=isolation)[place].result(30).offset)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            admin.list_topics(topic, 30)


def hidden(admin: AdminClient, topic: str, partition: int) -> int:
    """Offsets behind the last stable one."""
    high = end(admin, topic, partition, IsolationLevel.READ_UNCOMMITTED)
    return high - end(admin, topic, partition, IsolationLevel.READ_COMMITTED)


def leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, 30).topics[topic].partitions[0].leader)


def test_these_brokers_end_a_transaction_without_a_marker_and_the_next_one_commits_it(
    cluster: Cluster, stage: Stage
) -> None:
    """What the defence is for. When this fails with a newer Kafka, the brokers are fixed."""
    assert DEFAULT_VERSION.startswith("4.4."), "is it still so?"
    topic = f"alone-{stage.names.service}"
    stage.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[VICTIM]])])[topic].result(30)
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic}
    first = Producer({**servers, "transaction.timeout.ms": 600_000})
    first.init_transactions(60)
    first.begin_transaction()
    first.produce(topic, b"aborted")
    assert first.flush(60) == 0
    cluster.kill(VICTIM)
    await_true(lambda: leader(stage.admin, topic) < 0, "it has no leader")
    heir = Producer(servers)
    heir.init_transactions(60)  # the transaction has ended, say the brokers
    cluster.start(VICTIM)
    await_true(lambda: leader(stage.admin, topic) == VICTIM, "it has one")
    assert hidden(stage.admin, topic, 0) == 1
    heir.begin_transaction()
    heir.produce(topic, b"committed")
    heir.commit_transaction(60)
    await_true(lambda: hidden(stage.admin, topic, 0) == 0, "all is committed")
    assert [row.value for row in read_all(cluster.bootstrap_servers, topic)[0]] == [b"aborted", b"committed"]


@pytest.mark.parametrize("which", ["output", "increment", "both"])
def test_the_next_owner_discards_what_a_killed_owner_left_open(stage: Stage, cluster: Cluster, which: str) -> None:
    names = {"output": [stage.output], "increment": [stage.names.changelog]}
    alone = names.get(which, [stage.output, stage.names.changelog])
    new = [NewTopic(topic, 2, replica_assignment=ALONE, config=REQUIRED) for topic in alone]
    for future in stage.admin.create_topics(new).values():
        future.result(30)
    stage.create_topics()
    process = stage.process("first").await_live(0, 1, seconds=120)
    stage.feed(300)  # the group's offset shows a transaction of each partition
    stage.await_all()
    assert process.stop(120) == 0
    process = stage.process("second", **OPEN).await_live(0, 1, seconds=120)
    stage.feed(1000)
    places = [(topic, p) for topic in alone for p in (0, 1)]
    await_true(lambda: all(hidden(stage.admin, *place) for place in places), "each has what is not committed")
    process.kill()
    cluster.kill(VICTIM)
    await_true(lambda: all(leader(stage.admin, topic) < 0 for topic in alone), "they have no leader", 120)
    heir = stage.process("third", **PATIENT)
    heir.await_event("fencing")
    reported = "kafka_retry" if stage.output in alone else "fencing"
    heir.await_event(reported, seconds=120)
    cluster.start(VICTIM)
    heir.await_live(0, 1, seconds=180)
    found = {p for event in heir.events("hidden_records") for p in event["partitions"]}
    assert found >= {f"{topic}[{p}]" for topic, p in places}, heir.tail()
    stage.feed(500)
    stage.await_all(300)
    assert heir.stop(120) == 0
    assert not heir.events("failed", "thread_died")
    stage.verify()


def test_a_committed_transaction_without_its_marker_is_left_alone_and_logged(
    stage: Stage, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    names, settings = stage.names, stage.settings()
    new = NewTopic(names.changelog, 2, replica_assignment=ALONE, config=REQUIRED)
    stage.admin.create_topics([new])[names.changelog].result(30)
    stage.create_topics()
    admin, log = Admin(settings, names.group), Log(service=names.service)
    member = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": names.group})
    owner = KafkaTransactions(settings, names, 0, log, time.monotonic)
    owner.fence(lambda: False)
    owner.begin()
    owner.send_increment(names.changelog, 0, pack(Header(1, owner.attempt, "some", 0)))
    owner.lineage = f"some{NUMBER}1"
    owner.send_offsets({names.input: 7}, member.consumer_group_metadata())
    cluster.kill(VICTIM)
    await_true(lambda: leader(stage.admin, names.changelog) < 0, "it has no leader", 120)
    owner.commit()
    cluster.start(VICTIM)
    await_true(lambda: leader(stage.admin, names.changelog) == VICTIM, "it has one")
    assert hidden(stage.admin, names.changelog, 0) == 1
    remains = HiddenRecords(settings, admin, names, 0, {}, number_of, log)
    heir = KafkaTransactions(settings, names, 0, log, time.monotonic, hidden=remains)
    heir.fence(lambda: False)
    assert hidden(stage.admin, names.changelog, 0) == 1, "nothing was thrown away"
    reported = capsys.readouterr()
    assert "commit_hidden" in reported.out + reported.err
    member.close()


def test_a_producer_whose_abort_left_records_open_is_suspect(stage: Stage, cluster: Cluster) -> None:
    names, settings = stage.names, stage.settings()
    new = NewTopic(names.changelog, 2, replica_assignment=ALONE, config=REQUIRED)
    stage.admin.create_topics([new])[names.changelog].result(30)
    stage.create_topics()
    owner = KafkaTransactions(settings, names, 0, Log(service=names.service), time.monotonic)
    owner.fence(lambda: False)
    owner.begin()
    owner.send_increment(names.changelog, 0, pack(Header(1, owner.attempt, "some", 0)))
    await_true(lambda: hidden(stage.admin, names.changelog, 0) == 1, "the header is written")
    cluster.kill(VICTIM)
    await_true(lambda: leader(stage.admin, names.changelog) < 0, "it has no leader", 120)
    owner.abort()
    cluster.start(VICTIM)
    await_true(lambda: leader(stage.admin, names.changelog) == VICTIM, "it has one")
    assert hidden(stage.admin, names.changelog, 0) == 1, "the abort has no marker"
    assert "connection was lost" in owner.suspicion
    owner.drop()
