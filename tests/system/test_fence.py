"""Fence first, then read the mark (rule A1); who is asked, and who is a member, meanwhile (4.9)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.support.apps.tally import Line, Total
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import digest_of

from statehold.kafka.clients.producer import KafkaTransactions
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header, Part
from statehold.state.partition_table import Changes

pytestmark = pytest.mark.kafka


class OldOwner:
    """Owns partition 0 by its transactional id, and has handled the record at offset 0 in a transaction still open."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.producer = Producer(
            {
                "bootstrap.servers": stage.servers,
                "transactional.id": stage.names.transactional_id(0),
                "partitioner": "murmur2_random",
            }
        )
        self.producer.init_transactions(30)

    def handle_first_record(self) -> None:
        """Everything that an owner writes for {"id": 0, "amount": 5} with key k, but for the commit."""
        stage, total = self._stage, Total(1, 5)
        commit_record = stage.snapshots.restored(0).commit_record
        packed = msgspec.msgpack.encode(total)
        footer = msgspec.structs.replace(
            commit_record,
            n=1,
            attempt="old",
            positions={stage.names.input: 1},
            start=0,
            digest=int(digest_of({"k": total}), 16).to_bytes(16, "little"),
            keys=1,
            parts=1,
            last_delta=1,
            outputs=1,
        )
        part = Part(1, "old", 0, [records.entry(Changes("totals", ["k"], [packed]))])
        self.producer.begin_transaction()
        self.producer.produce(stage.output, msgspec.json.encode(Line(0, 0, 0, 1, 5)), "k")
        for record in (Header(1, "old", commit_record.lineage, 0), part, footer):
            self.producer.produce(stage.names.changelog, records.pack(record), partition=0)
        assert self.producer.flush(30) == 0

    def commit(self) -> KafkaError | None:
        """None, or why the broker refuses it."""
        try:
            self.producer.commit_transaction(30)
        except KafkaException as error:
            rejected: KafkaError = error.args[0]
            return rejected
        return None


@pytest.fixture
def around_fence(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run something just before, and just after, the new owner's fence of partition 0."""
    fence = KafkaTransactions.fence

    def wrap(*, before: Callable[[], object] = bool, after: Callable[[], object] = bool) -> None:
        def fenced(self: KafkaTransactions, *args: object) -> None:
            first = self._partition == 0
            if first:
                before()
            fence(self, *args)  # type: ignore[arg-type]
            if first:
                after()

        monkeypatch.setattr(KafkaTransactions, "fence", fenced)

    return wrap


def test_a_commit_record_that_an_old_owner_commits_at_the_last_moment_is_not_missed(
    two_partitions: Stage, around_fence: Callable[..., None]
) -> None:
    stage = two_partitions
    for number in range(2):
        stage.send(b'{"id":%d,"amount":5}' % number, 0)
    old = OldOwner(stage)
    old.handle_first_record()
    around_fence(before=lambda: check(old.commit() is None))
    with Local(stage) as local:
        local.await_live(0, 1)
        assert local.events("restored")[0]["n"] in (0, 1)
        stage.count(2).await_all()
    stage.verify()


def test_what_an_old_owner_commits_after_the_fence_never_becomes_visible(
    two_partitions: Stage, around_fence: Callable[..., None]
) -> None:
    stage = two_partitions
    for number in range(2):
        stage.send(b'{"id":%d,"amount":5}' % number, 0)
    old = OldOwner(stage)
    old.handle_first_record()
    rejected: list[KafkaError | None] = []
    around_fence(after=lambda: rejected.append(old.commit()))
    with Local(stage):
        stage.count(2).await_all()
    assert rejected[0] is not None
    assert rejected[0].code() == KafkaError._FENCED
    stage.verify()


def test_an_owner_that_is_fenced_by_a_stranger_asks_its_group_and_comes_back(two_partitions: Stage) -> None:
    """The group says that it is the owner: a stranger took the id, not a successor (rule T8)."""
    stage = two_partitions
    with Local(stage) as local:
        stage.feed(100)
        stage.await_all()
        OldOwner(stage)
        stage.feed(100)
        stage.await_all()
        assert [event["partition"] for event in local.events("fenced_by_new_owner")] == [0]
        assert [event["partition"] for event in local.events("retrying")] == [0]
    stage.verify()


def test_a_restore_joins_no_group_and_waits_for_an_open_transaction(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    stranger = Producer({"bootstrap.servers": stage.servers, "transactional.id": f"stranger-{stage.names.group}"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    for topic in (stage.names.changelog, stage.names.snapshot):
        stranger.produce(topic, b"never committed", partition=0)
    assert stranger.flush(30) == 0
    with Local(stage) as local:
        local.await_live(1)
        local.await_phase(0, "restoring")  # and there it stays: its end is hidden by the open transaction
        assert [member.client_id for member in stage.group.members()] == [local.service.status()["instance"]]
        others = {group.group_id for group in stage.admin.list_consumer_groups().result(30).valid}
        assert {group for group in others if stage.names.group in group} == {stage.names.group}
        stranger.abort_transaction(30)
        local.await_live(0)
        stage.feed(100)
        stage.await_all()
    stage.verify()


def check(condition: bool) -> None:
    assert condition


def test_trailing_markers_and_aborted_transactions_end_every_read(two_partitions: Stage) -> None:
    """At the end of input, changelog and snapshot topics: a replay and a restore end, and not short (proof 5.4)."""
    stage = two_partitions
    commit_record_only = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}
    source = Producer({"bootstrap.servers": stage.servers, "transactional.id": f"source-{stage.names.group}"})
    source.init_transactions(30)
    feed_transaction(stage, source, 100, commit=True)
    feed_transaction(stage, source, 50, commit=False)
    feed_transaction(stage, source, 100, commit=True)
    feed_transaction(stage, source, 50, commit=False)
    process = stage.process("first", **commit_record_only).await_live(0, 1)
    stage.await_partition(0, 250)
    stage.await_partition(1, 250)
    process.kill()
    source.begin_transaction()
    for topic in (stage.names.changelog, stage.names.snapshot):
        for partition in (0, 1):
            source.produce(topic, b"aborted", partition=partition)
    assert source.flush(30) == 0
    source.abort_transaction(30)

    second = stage.process("second", **commit_record_only).await_live(0, 1)
    assert {event["records"] for event in second.events("replayed")} == {200}
    feed_transaction(stage, source, 10, commit=True)
    await_true(lambda: all(end == 314 for end in stage.group.positions(stage.names.input).values()), "the end")
    assert second.stop() == 0
    stage.count(420).verify()


def feed_transaction(stage: Stage, source: Producer, count: int, *, commit: bool) -> None:
    """Write `count` records to each partition; an aborted transaction leaves its records and a marker, too."""
    source.begin_transaction()
    for number in range(count):
        for partition in (0, 1):
            source.produce(stage.names.input, b'{"id":%d,"amount":1}' % number, f"{partition}-{number % 7}", partition)
    assert source.flush(30) == 0
    if commit:
        source.commit_transaction(30)
    else:
        source.abort_transaction(30)
