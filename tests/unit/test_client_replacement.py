"""Clients that are replaced: whatever comes when, one client is a member, and no call reaches one that has lost all."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.clients import consumer as module
from statehold.kafka.clients import static_member
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.telemetry.log_events import Log
from statehold.testing.stepped import EventLog


class Time:
    """The clock of both modules."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def failure(code: int) -> Message:
    return Message(topic="input", error=KafkaError(code))


class Client:
    """A `confluent_kafka.Consumer` that does what the test has planned for its next poll."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.owned: set[int] = set()
        self.subscribed = self.over = False
        self.callbacks: dict[str, Callable[[Any, list[TopicPartition]], None]] = {}
        self.planned: Callable[[Client], Sequence[Message]] = lambda client: ()

    def _alive(self) -> None:
        assert not self.over, "a call to a client that has lost its partitions"

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._alive()
        self.subscribed, self.callbacks = True, callbacks

    def consume(self, records: int, timeout: float) -> Sequence[Message]:
        self._alive()
        assert self.subscribed
        planned, self.planned = self.planned, lambda client: ()
        return planned(self)

    def call_back(self, name: str, partitions: Sequence[int]) -> Sequence[Message]:
        self.callbacks[name](self, [TopicPartition("input", each) for each in partitions])
        return ()

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self._alive()
        self.owned |= {place.partition for place in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self._alive()
        self.owned -= {place.partition for place in places}

    def pause(self, places: list[TopicPartition]) -> None:
        self._alive()

    def consumer_group_metadata(self) -> object:
        self._alive()
        return self

    def memberid(self) -> str:
        return f"member {id(self)}"


class World:
    """A consumer with the listener that the manager is, and all clients that it makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time, self.log = Time(), EventLog()
        self.clients: list[Client] = []
        self.closed: queue.SimpleQueue[Client] = queue.SimpleQueue()
        self.owned: set[int] = set()
        patch.setattr(module, "time", self.time)
        patch.setattr(static_member, "time", self.time)
        patch.setattr(module, "Consumer", self._made)
        patch.setattr(module, "close_member", lambda client, stays: self.closed.put(client))
        self.consumer = KafkaGroupConsumer(Settings(), Names("service", "input"), Log(self.log))
        self.consumer.subscribe(self)

    def _made(self, config: dict[str, Any]) -> Client:
        self.clients.append(Client(config))
        return self.clients[-1]

    @property
    def client(self) -> Client:
        return self.clients[-1]

    def on_assign(self, partitions: Sequence[int]) -> None:
        self.consumer.assign(partitions)
        self.owned |= set(partitions)

    def on_revoke(self, partitions: Sequence[int]) -> None:
        assert self.consumer.membership()[0] is self.client, "the drain cannot commit"
        self.owned -= set(partitions)
        self.consumer.unassign(partitions)

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.client.over = True
        self.owned -= set(partitions)
        self.consumer.unassign(partitions)

    def poll(self, planned: Callable[[Client], Sequence[Message]] = lambda client: ()) -> None:
        self.client.planned = planned
        messages, troubles = self.consumer.consume(10, 0.1)
        assert (messages, troubles) == ((), ())

    def check(self) -> None:
        for former in self.clients[:-1]:
            former.over = True
        if not self.client.over and self.owned:
            assert self.client.owned == self.owned
        assert self.consumer.membership() == ((None, "") if self.client.over else (self.client, self.client.memberid()))

    # What happens

    def assigned(self) -> None:
        free = {0, 1, 2} - self.owned
        self.poll(lambda client: client.call_back("on_assign", sorted(free)[:1]))

    def revoked(self) -> None:
        self.poll(lambda client: client.call_back("on_revoke", sorted(self.owned)[:1]))

    def thrown_out(self) -> None:
        self.poll(lambda client: [failure(KafkaError.GROUP_ID_NOT_FOUND)])

    def taken(self) -> None:
        if not self.owned:  # the group rejects a member that joins
            self.poll(lambda client: [failure(KafkaError.UNRELEASED_INSTANCE_ID)])

    def forgetful(self) -> None:
        self.consumer._memory.lost = frozenset({1})  # found by a probe of the brokers
        self.poll()

    def renewed(self) -> None:
        self.consumer.renew()
        self.poll()
        assert not self.owned

    def waits(self) -> None:
        self.time.sleep(1.0)
        self.poll()


ACTIONS = (World.assigned, World.revoked, World.thrown_out, World.taken, World.forgetful, World.renewed, World.waits)


@settings(max_examples=100, deadline=None)
@given(actions=st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_whatever_comes_when_one_client_is_a_member(actions: list[Callable[[World], None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch)
        for action in actions:
            action(world)
            world.check()
        for _ in range(2):
            world.waits()
        assert world.client.subscribed
        assert not world.client.over
        world.assigned()
        world.check()
        assert world.owned
        former = {id(world.closed.get(timeout=10)) for _ in world.clients[1:]}
        assert former == {id(client) for client in world.clients[:-1]}, "each former client is closed once"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(monkeypatch)
    found.assigned()
    assert found.owned == {0}
    return found


def test_a_member_that_the_group_threw_out_joins_a_second_later(world: World) -> None:
    world.thrown_out()
    assert not world.owned
    assert world.consumer.membership() == (None, "")
    world.time.now += 0.8
    world.poll()
    assert len(world.clients) == 1
    world.time.now += 0.2
    world.poll()
    assert len(world.clients) == 2
    assert world.client.subscribed
    world.check()


def test_a_client_without_brokers_is_replaced_at_once(world: World) -> None:
    world.forgetful()
    assert len(world.clients) == 2
    assert not world.owned
    assert world.log.events == [("client_replaced", {"cause": "it has forgotten brokers [1] (issue 5301)"})]


def test_a_member_that_waits_for_the_group_waits_without_brokers_too(world: World) -> None:
    world.thrown_out()
    world.forgetful()
    assert len(world.clients) == 1


def test_a_renewed_client_hands_its_partitions_over_first(world: World) -> None:
    world.renewed()
    assert len(world.clients) == 2
    assert not world.clients[0].owned
    assert not world.log.events


def test_a_member_whose_id_is_taken_loses_nothing_and_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.taken()
    assert world.consumer.membership()[0] is world.client
    world.renewed()
    assert len(world.clients) == 1, "it waits already"
    world.waits()
    assert len(world.clients) == 2
