"""What only the simulation does: faults, processes, time. Real brokers cannot be asked for these on the spot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contracts.simulated import Simulated
from tests.contracts.world import SESSION, Member, poll_until, sent, settled

from statehold.bound.sink import DatabaseTrouble, Outdated, Rows, SinkPosition
from statehold.errors import (
    DamagedIncrement,
    HangingTransaction,
    KafkaTrouble,
    OutcomeUnknown,
    ProducerFenced,
    RestoreTimeout,
)
from statehold.testing.kafka.clients.clients import Clients
from statehold.testing.kafka.faults import CallFault, PassTime, ProcessCrashed
from statehold.testing.memory.database import MemoryDatabase


@pytest.fixture
def world() -> Simulated:
    return Simulated()


def plan(world: Simulated, name: str, fault: CallFault, times: int = 1) -> None:
    assert isinstance(world.kafka.scheduler, PassTime)
    world.kafka.scheduler.plan(name, fault, times=times)


@pytest.mark.parametrize(
    ("fault", "committed"),
    [
        (CallFault(error=OutcomeUnknown("before")), False),
        (CallFault(error=OutcomeUnknown("after"), after=True), True),
        (CallFault(never=True), False),
        (CallFault(never=True, after=True), True),
        (CallFault(delay=100.0), False),
    ],
    ids=["fails-before", "fails-after", "never-arrives", "never-answers", "too-slow"],
)
def test_a_commit_that_fails_may_or_may_not_have_happened(world: Simulated, fault: CallFault, committed: bool) -> None:
    names, topic = world.names(), world.topic()
    producer = world.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, world.no_member(names))
    plan(world, "commit", fault)
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    world.producer(names)  # the next owner
    assert world.visible(topic) == ([b"a"] if committed else [])
    assert world.offsets(names).committed(names.input, 0) == (1 if committed else None)


def test_a_slow_commit_makes_its_producer_suspect(world: Simulated) -> None:
    names, topic = world.names(), world.topic()
    producer = world.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    plan(world, "commit", CallFault(delay=3.0))
    producer.commit()
    assert "took" in producer.suspicion


def test_the_records_of_a_crashed_process_that_were_not_sent_are_gone(world: Simulated) -> None:
    names, topic = world.names(), world.topic()
    process = Clients(world.kafka, "a", names, world.settings(output={"linger": 1.0}))
    producer = process.transactions(0)
    producer.fence(lambda: False)
    producer.begin()
    producer.send(sent(topic, b"a"))
    process.crash()
    world.pass_time(5.0)
    assert world.end(topic) == 0
    with pytest.raises(ProcessCrashed):
        producer.commit()


def test_a_lost_produce_request_is_sent_again(world: Simulated) -> None:
    names, topic = world.names(), world.topic()
    producer = world.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    plan(world, "send", CallFault(never=True), times=3)
    producer.commit()
    assert world.visible(topic) == [b"a"]


def test_records_that_were_queued_during_a_cut_are_sent_after_it(world: Simulated) -> None:
    names, topic = world.names(), world.topic()
    process = Clients(world.kafka, "a", names, world.settings())
    producer = process.transactions(0)
    producer.fence(lambda: False)
    producer.begin()
    process.cut()
    producer.send(sent(topic, b"a"))
    world.pass_time(3.0)
    assert world.end(topic) == 0
    process.heal()
    world.pass_time(1.0)
    assert world.end(topic) == 1


def test_calls_of_a_process_that_is_cut_off_time_out(world: Simulated) -> None:
    names = world.names()
    process = Clients(world.kafka, "a", names, world.settings())
    producer, reader, admin = process.transactions(0), process.reader(), process.admin()
    process.cut()
    with pytest.raises(OutcomeUnknown):
        producer.fence(lambda: False)
    with pytest.raises(RestoreTimeout):
        reader.bounds(names.input, 0)
    with pytest.raises(KafkaTrouble):
        admin.committed(names.input, 0)
    process.heal()
    assert reader.bounds(names.input, 0) == (0, 0)


def test_a_call_continues_when_its_process_is_reachable_again(world: Simulated) -> None:
    names = world.names()
    process = Clients(world.kafka, "a", names, world.settings())
    process.cut()
    world.later(2.0, process.heal)
    assert process.reader().bounds(names.input, 0) == (0, 0)
    assert world.now() == pytest.approx(2.0, abs=0.2)


def test_a_frozen_owner_wakes_up_as_a_zombie_and_cannot_commit(world: Simulated) -> None:
    names, topic = world.names(2), world.topic()
    zombie, heir = Member(world, names, "a").join(), Member(world, names, "b")
    settled(zombie, partitions=2)
    process = Clients(world.kafka, "a", names, world.settings())
    producer = process.transactions(0)
    producer.fence(lambda: False)
    producer.begin()
    producer.send(sent(topic, b"zombie"))
    producer.send_offsets({names.input: 1}, zombie.metadata)
    for each in [process, *world.processes["a"]]:
        each.freeze()
    heir.join()
    poll_until([heir], lambda: heir.owned == {0, 1}, "the takeover")
    assert world.now() > SESSION
    world.producer(names)
    for each in [process, *world.processes["a"]]:
        each.thaw()
    with pytest.raises(ProducerFenced):
        producer.commit()
    poll_until([zombie, heir], lambda: zombie.released("lost") == {0, 1}, "the loss")
    assert world.visible(topic) == []


def test_a_lost_answer_with_an_assignment_makes_the_member_join_again(world: Simulated) -> None:
    names = world.names(2)
    member = Member(world, names, "a", protocol="consumer", session_timeout="auto", heartbeat_interval="auto")
    plan(world, "heartbeat", CallFault(never=True, after=True))
    member.join()
    settled(member, partitions=2)
    assert world.now() > 10


def test_an_expired_transactional_id_does_not_bring_a_zombie_back(world: Simulated) -> None:
    names, topic = world.names(), world.topic()
    zombie = world.producer(names)
    world.kafka.transactions.expire(names.transactional_id(0))
    owner = world.producer(names)
    zombie.begin()
    zombie.send(sent(topic, b"zombie"))
    with pytest.raises(ProducerFenced):
        zombie.commit()
    owner.begin()
    owner.send(sent(topic, b"a"))
    owner.commit()
    assert world.visible(topic) == [b"a"]


def test_a_damaged_batch_ends_a_read_with_its_position(world: Simulated) -> None:
    topic = world.topic()
    world.write(topic, [b"0", b"1", b"2"])
    world.kafka.log(topic, 0).damaged.add(1)
    found: list[bytes] = []
    with pytest.raises(DamagedIncrement) as raised:
        found.extend(m.value() for batch in world.reader().read(topic, 0, 0, 3) for m in batch)
    assert found == [b"0"]
    assert raised.value.position == 1


def test_a_new_leader_may_report_a_short_log_for_a_while(world: Simulated) -> None:
    topic = world.topic()
    world.write(topic, [b"0", b"1", b"2"])
    log = world.kafka.log(topic, 0)
    log.held_high = 1
    assert world.reader().bounds(topic, 0) == (0, 1)
    with pytest.raises(HangingTransaction):
        list(world.reader().read(topic, 0, 0, 3))
    log.held_high = None
    assert world.visible(topic) == [b"0", b"1", b"2"]


def test_the_same_calls_take_the_same_course(world: Simulated) -> None:
    def course() -> tuple[object, ...]:
        made = Simulated(markers=0.2)
        names = made.names(4)
        members = [Member(made, names, process).join() for process in "abc"]
        settled(*members, partitions=4)
        made.crash("b")
        settled(members[0], members[2], partitions=4)
        return made.now(), [member.events for member in members]

    assert course() == course()


ROWS = Rows("rows", ("id", "amount"), ("id",), [(1, 5)], ())


@pytest.mark.parametrize(
    ("fault", "committed"),
    [
        (CallFault(never=True), False),
        (CallFault(never=True, after=True), True),
        (CallFault(never=True, copy=True), True),
        (CallFault(delay=1000.0), False),
    ],
    ids=["never-arrives", "never-answers", "arrives-late", "too-slow"],
)
def test_the_outcome_of_a_database_commit_without_an_answer_is_open(
    world: Simulated, fault: CallFault, committed: bool
) -> None:
    database = MemoryDatabase()
    database.held[0] = SinkPosition(0, 0)
    session = Clients(world.kafka, "a", world.names(), world.settings()).database(database)(0, bool)
    held = session.take(again=False)
    assert held is not None
    plan(world, "commit_rows", fault)
    with pytest.raises(DatabaseTrouble):
        session.commit(held, 1, b"", [ROWS])
    world.pass_time(1.0)
    assert database.held[0].position == (1 if committed else 0)


def test_a_database_commit_that_arrives_after_a_takeover_is_rejected(world: Simulated) -> None:
    database = MemoryDatabase()
    database.held[0] = SinkPosition(0, 0)
    owner, heir = (Clients(world.kafka, name, world.names(), world.settings()).database(database) for name in "ab")
    session = owner(0, bool)
    held = session.take(again=False)
    assert held is not None
    heirs = heir(0, bool)
    take: Callable[[], object] = lambda: heirs.take(again=False)  # noqa: E731
    world.later(1.0, take)
    plan(world, "commit_rows", CallFault(never=True, copy=True))
    with pytest.raises(DatabaseTrouble):
        session.commit(held, 1, b"", [ROWS])
    world.pass_time(1.0)
    assert database.held[0].position == 0
    with pytest.raises(Outdated):
        session.commit(held, 1, b"", [ROWS])
