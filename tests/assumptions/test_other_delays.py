"""Requests other than EndTxn that come late: none of them harms, as far as one broker can show."""

from __future__ import annotations

import pytest
from tests.assumptions.lab import PATIENCE, Lab, send
from tests.support.proxy import ApiKey, Fault

pytestmark = pytest.mark.kafka


def test_a_delayed_produce_is_known_by_its_sequence_and_dropped(lab: Lab) -> None:
    topic = lab.topic("out")
    producer = lab.producer()
    producer.begin_transaction()
    send(producer, topic, "1.a")
    delayed = lab.proxy.trap(ApiKey.PRODUCE, Fault.HOLD_AND_RESET)
    assert send(producer, topic, "1.b") == 0  # sent again by the library
    producer.commit_transaction(PATIENCE)
    producer.begin_transaction()
    send(producer, topic, "2.a")
    delayed.deliver()
    assert send(producer, topic, "2.b") == 0
    producer.commit_transaction(PATIENCE)
    assert lab.all_records(topic) == ["1.a", "1.b", "2.a", "2.b"]


@pytest.mark.parametrize("api_key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN])
def test_a_delayed_registration_joins_the_next_transaction_and_ends_with_it(lab: Lab, api_key: ApiKey) -> None:
    """It re-opens a transaction at the coordinator; the producer's next one runs inside it."""
    topic, inputs = lab.topic("increment"), lab.topic("in")
    producer = lab.producer()
    producer.begin_transaction()
    delayed = lab.proxy.trap(api_key, Fault.HOLD_AND_RESET)
    send(producer, topic, "1")
    lab.send_offset(producer, inputs, 1)
    producer.commit_transaction(PATIENCE)
    delayed.deliver()  # between two transactions

    producer.begin_transaction()
    assert send(producer, topic, "2") == 0
    lab.send_offset(producer, inputs, 2)
    producer.commit_transaction(PATIENCE)
    assert lab.committed(topic) == ["1", "2"]
    assert lab.group_offset(inputs) == 2
