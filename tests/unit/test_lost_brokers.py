"""A client that has forgotten its brokers differs from one whose brokers are away."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.system.processes import await_true

from statehold.kafka.common.lost_brokers import BrokerMemory, known_brokers
from statehold.kafka.common.transaction_taint import Taint


def statistics(*brokers: tuple[int, str]) -> dict[str, Any]:
    return {"brokers": {f"{source}/{node}": {"nodeid": node, "source": source} for node, source in brokers}}


class Lab:
    """A memory with a clock of the test's; `there` is what another client learns, None: nothing."""

    def __init__(self, there: set[int] | None) -> None:
        self.now, self.there, self.asked = 100.0, there, threading.Semaphore(0)
        self.memory = BrokerMemory(self.ask, lambda: self.now)

    def ask(self) -> frozenset[int]:
        try:
            if self.there is None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return frozenset(self.there)
        finally:
            self.asked.release()

    def silent(self, brokers: set[int] | None, seconds: float) -> bool:
        """So long without contact, a look each second; whether another client was asked."""
        self.look(brokers, seconds)
        return self.asked.acquire(timeout=0.2)

    def look(self, brokers: set[int] | None, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            self.memory.saw(None if brokers is None else frozenset(brokers), works=False)


def test_stand_ins_for_coordinators_are_no_brokers() -> None:
    assert known_brokers(statistics((1, "logical"), (-1, "internal"))) == frozenset()
    assert known_brokers(statistics((1, "logical"), (2, "learned"))) == frozenset({2})
    assert known_brokers(statistics((-1, "configured"), (2, "learned"))) is None, (
        "a bootstrap address can still be asked"
    )
    assert known_brokers({}) == frozenset()


def test_a_client_that_knows_no_broker_is_lost_soon() -> None:
    lab = Lab({1})
    assert lab.silent(set(), 5)
    await_true(lambda: lab.memory.lost == {1}, "lost")
    lab.memory.anew()
    assert not lab.memory.lost


def test_a_client_that_knows_only_dead_brokers_is_lost_later() -> None:
    lab = Lab({1, 2})
    assert not lab.silent({3}, 20), "a broker's restart is no reason"
    assert lab.silent({3}, 15)
    await_true(lambda: lab.memory.lost == {1, 2}, "lost")


@pytest.mark.parametrize("there", [None, {1, 2, 3}], ids=["no broker answers", "it knows all"])
def test_an_outage_is_waited_out(there: set[int] | None) -> None:
    lab = Lab(there)
    assert lab.silent({1, 2, 3}, 60)
    assert not lab.memory.lost


def test_contact_ends_the_waiting() -> None:
    lab = Lab({1})
    for _ in range(20):
        lab.look(set(), 2)
        lab.memory.saw(frozenset({1}), works=True)
    assert not lab.silent(None, 60), "it has a bootstrap address"


def test_a_producer_without_brokers_is_not_used_again() -> None:
    taint = Taint(1.0)
    taint.statistics('{"brokers": {"a": {"nodeid": 1, "source": "learned", "req": {}}}}')
    assert not taint.reason
    taint.statistics('{"brokers": {"TxnCoordinator": {"nodeid": 1, "source": "logical"}}}')
    assert "forgotten" in taint.reason


LOST = "FAIL [thrd:127.0.0.1:9092/3]: 127.0.0.1:9092/3: Disconnected (after 503ms in state UP)"


def test_a_connection_that_was_lost_before_an_abort_makes_the_producer_suspect() -> None:
    taint = Taint(1.0)
    taint.logged(LOST)
    assert not taint.reason, "an output is sent again"
    taint.abort_ended()
    assert "state UP" in taint.reason


def test_a_connection_that_is_lost_after_an_abort_makes_the_producer_suspect() -> None:
    taint = Taint(1.0)
    taint.abort_ended()
    assert not taint.reason
    taint.logged(LOST)
    assert "state UP" in taint.reason


def test_a_commit_forgets_lost_connections_and_aborts() -> None:
    taint = Taint(1.0)
    taint.logged(LOST)
    taint.commit_ended()
    taint.abort_ended()
    assert not taint.reason
    taint.commit_ended()
    taint.logged(LOST)
    assert not taint.reason


def test_a_connection_that_was_lost_between_transactions_does_not_count() -> None:
    taint = Taint(1.0)
    taint.logged(LOST)
    taint.begun()
    taint.abort_ended()
    assert not taint.reason
    taint.begun()
    taint.logged(LOST)
    assert taint.reason
