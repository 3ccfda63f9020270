"""A client that has forgotten its brokers differs from one whose brokers are away."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.support.processes import await_true

from statehold.kafka.common.lost_brokers import BrokerMemory, known_brokers, section
from statehold.kafka.common.producer_suspicion import Suspicion


def reported(*brokers: tuple[int, str]) -> dict[str, Any]:
    return {f"{source}/{node}": {"nodeid": node, "source": source} for node, source in brokers}


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
    assert known_brokers(reported((1, "logical"), (-1, "internal"))) == frozenset()
    assert known_brokers(reported((1, "logical"), (2, "learned"))) == frozenset({2})
    assert known_brokers(reported((-1, "configured"), (2, "learned"))) is None, "a bootstrap address can still be asked"
    assert known_brokers({}) == frozenset()


def test_a_client_that_knows_no_broker_is_lost_soon() -> None:
    lab = Lab({1})
    assert lab.silent(set(), 5)
    await_true(lambda: lab.memory.lost == {1}, "lost")
    lab.memory.forget()
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


def test_a_section_of_the_statistics_is_found_though_a_topic_has_its_name() -> None:
    topics = {name: {"topic": name, "brokers": {"state": "up"}} for name in ("cgrp", "brokers")}
    text = json.dumps({"brokers": reported((1, "learned")), "topics": topics, "cgrp": {"state": "init"}, "eos": {}})
    for spaced in (text, text.replace(": ", ":")):
        assert section(spaced, "brokers") == reported((1, "learned"))
        assert section(spaced, "cgrp") == {"state": "init"}
        assert section(spaced, "absent") == {}


FORGOTTEN = "FAIL [rdkafka#1] [thrd:TxnCoordinator]: Closing connection due to nodename change (after 71ms in state UP)"


def test_a_producer_that_forgets_its_coordinator_is_not_used_again() -> None:
    suspicion = Suspicion(1.0)
    suspicion.logged(FORGOTTEN.replace("state UP", "state TRY_CONNECT"))
    assert not suspicion.reason, "it has sent nothing on this connection"
    suspicion.logged(FORGOTTEN)
    assert "nodename change" in suspicion.reason


def test_the_client_may_close_its_bootstrap_connection_within_a_transaction() -> None:
    suspicion = Suspicion(1.0)
    suspicion.begun()
    suspicion.in_transaction = True
    suspicion.logged(
        "FAIL [rdkafka#producer-1] [thrd:127.0.0.1:9092/bootstrap]: 127.0.0.1:9092/bootstrap: "
        "Decommissioning this broker (after 7ms in state UP) (_DESTROY_BROKER)"
    )
    assert not suspicion.reason, "nothing of the transaction was sent on this connection"
    suspicion.logged(
        "FAIL [rdkafka#producer-1] [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: "
        "Decommissioning this broker (after 7ms in state UP) (_DESTROY_BROKER)"
    )
    assert suspicion.reason


def test_a_second_response_to_one_commit_makes_the_producer_suspect() -> None:
    """Also if librdkafka has not logged the lost connection."""
    suspicion = Suspicion(1.0)
    for _ in range(3):
        suspicion.calling()
        suspicion.logged("ENDTXN [rdkafka#1] [thrd:main]: EndTxn returned NO_ERROR in state CommittingTransaction")
    assert not suspicion.reason
    suspicion.logged("ENDTXN [rdkafka#1] [thrd:main]: EndTxn returned NO_ERROR in state CommittingTransaction")
    assert "2 requests" in suspicion.reason


LOST = "FAIL [thrd:127.0.0.1:9092/3]: 127.0.0.1:9092/3: Disconnected (after 503ms in state UP)"


def test_a_connection_that_was_lost_before_an_abort_makes_the_producer_suspect() -> None:
    suspicion = Suspicion(1.0)
    suspicion.logged(LOST)
    assert not suspicion.reason, "an output is sent again"
    suspicion.abort_ended()
    assert "state UP" in suspicion.reason


def test_a_connection_that_is_lost_after_an_abort_makes_the_producer_suspect() -> None:
    suspicion = Suspicion(1.0)
    suspicion.abort_ended()
    assert not suspicion.reason
    suspicion.logged(LOST)
    assert "state UP" in suspicion.reason


def test_a_commit_forgets_lost_connections_and_aborts() -> None:
    suspicion = Suspicion(1.0)
    suspicion.logged(LOST)
    suspicion.commit_ended()
    suspicion.abort_ended()
    assert not suspicion.reason
    suspicion.commit_ended()
    suspicion.logged(LOST)
    assert not suspicion.reason


def test_a_connection_that_was_lost_between_transactions_does_not_count() -> None:
    suspicion = Suspicion(1.0)
    suspicion.logged(LOST)
    suspicion.begun()
    suspicion.abort_ended()
    assert not suspicion.reason
    suspicion.begun()
    suspicion.logged(LOST)
    assert suspicion.reason
