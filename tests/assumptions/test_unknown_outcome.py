"""An error of commit_transaction does not say that the transaction was aborted."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError
from tests.assumptions.lab import PATIENCE, Lab, error_of, send
from tests.support.proxy import ApiKey, Fault

pytestmark = pytest.mark.kafka


def test_a_commit_that_fails_as_fenced_can_have_been_done(lab: Lab) -> None:
    topic = lab.topic("out")
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, topic, "1")
    answer_lost = lab.proxy.trap(ApiKey.END_TXN, Fault.LOSE_ANSWER)
    retry = lab.proxy.trap(ApiKey.END_TXN, Fault.HOLD)
    errors: list[KafkaError | None] = []
    caller = threading.Thread(target=lambda: errors.append(error_of(lambda: producer.commit_transaction(PATIENCE))))
    caller.start()
    answer_lost.wait_caught()
    retry.wait_caught()
    lab.producer()  # the rival: it fences between the commit and its retry
    retry.deliver()
    caller.join(PATIENCE)

    assert errors[0] is not None
    assert (errors[0].code(), errors[0].fatal()) == (KafkaError._FENCED, True)
    assert lab.committed(topic) == ["1"], "committed, though the caller got a fenced error"


def test_a_lost_answer_alone_is_retried_to_success(lab: Lab) -> None:
    topic = lab.topic("out")
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, topic, "1")
    lab.proxy.trap(ApiKey.END_TXN, Fault.LOSE_ANSWER)
    producer.commit_transaction(PATIENCE)
    assert lab.committed(topic) == ["1"]
