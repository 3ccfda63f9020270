"""Assumption: a produce to a partition that has left its transaction is answered INVALID_TXN_STATE (48)."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Producer
from tests.assumptions.lab import PATIENCE, Lab, error_of, send
from tests.support.proxy import Fault

pytestmark = pytest.mark.kafka

LEFT = KafkaError.INVALID_TXN_STATE
BOTH_FAULTS = pytest.mark.parametrize("fault", [Fault.HOLD, Fault.HOLD_AND_RESET], ids=["timeout", "reset"])


def torn(lab: Lab, fault: Fault, *, commit: bool) -> tuple[Producer, str]:
    """Transaction 2 has sent a record when the end of transaction 1 arrives once more."""
    output = lab.topic("out")
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, output, "1.a")
    delayed = lab.retried_end(producer, commit=commit, fault=fault)
    producer.begin_transaction()
    assert send(producer, output, "2.a") == 0
    lab.land(delayed, output)
    return producer, output


@BOTH_FAULTS
def test_after_a_delayed_commit_a_produce_answers_48(lab: Lab, fault: Fault) -> None:
    producer, output = torn(lab, fault, commit=True)
    assert send(producer, output, "2.b") == LEFT
    failed = error_of(lambda: producer.commit_transaction(PATIENCE))
    assert failed is not None
    # The flags say "abort and go on"; the abort then shows that there is nothing left to abort.
    assert (failed.code(), failed.fatal(), failed.txn_requires_abort()) == (LEFT, False, True)
    aborted = error_of(lambda: producer.abort_transaction(PATIENCE))
    assert aborted is not None
    assert (aborted.code(), aborted.fatal()) == (LEFT, True)
    assert lab.committed(output) == ["1.a", "2.a"], "half of transaction 2 is visible: a torn commit"


@BOTH_FAULTS
def test_after_a_delayed_abort_a_produce_answers_48(lab: Lab, fault: Fault) -> None:
    producer, output = torn(lab, fault, commit=False)
    assert send(producer, output, "2.b") == LEFT
    failed = error_of(lambda: producer.commit_transaction(PATIENCE))
    assert failed is not None
    assert (failed.code(), failed.txn_requires_abort()) == (LEFT, True)
    assert error_of(lambda: producer.abort_transaction(PATIENCE)) is None
    assert lab.committed(output) == []


def test_a_successful_abort_after_48_may_have_aborted_nothing(lab: Lab) -> None:
    """The offsets opened a fresh transaction after the tear; it is that one which the abort ends."""
    increment, inputs = lab.topic("increment"), lab.topic("in")
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, increment, "1.H")
    delayed = lab.retried_end(producer, commit=True, fault=Fault.HOLD_AND_RESET)
    producer.begin_transaction()
    send(producer, increment, "2.H")
    lab.land(delayed, increment)
    lab.send_offset(producer, inputs, 2)

    assert send(producer, increment, "2.F") == LEFT
    assert error_of(lambda: producer.abort_transaction(PATIENCE)) is None
    assert lab.committed(increment) == ["1.H", "2.H"], "aborted with success, and yet 2.H is visible"
