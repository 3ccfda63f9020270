"""What each error of a transactional call leads to, and the order of calls that a commit needs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from statehold.common.names import Names
from statehold.config import Settings
from statehold.errors import (
    KafkaTrouble,
    MessageRefused,
    Misconfigured,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.common.error_actions import Action, action, translate
from statehold.telemetry.log_events import Log


def error(code: int, **flags: bool) -> KafkaError:
    return KafkaError(code, "a test", **flags)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._FENCED, ProducerFenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (90, ProducerFenced),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, ProducerFenced),
        (KafkaError.UNKNOWN_PRODUCER_ID, ProducerFenced),
        (KafkaError.INVALID_TXN_STATE, OutcomeUnknown),
        (KafkaError._FATAL, OutcomeUnknown),
        (KafkaError._STATE, OutcomeUnknown),
        (KafkaError._TIMED_OUT, OutcomeUnknown),
        (KafkaError.ILLEGAL_GENERATION, TransactionAborted),
        (KafkaError.REBALANCE_IN_PROGRESS, TransactionAborted),
        (KafkaError.STALE_MEMBER_EPOCH, TransactionAborted),
        (KafkaError._MSG_TIMED_OUT, TransactionAborted),
        (KafkaError.MSG_SIZE_TOO_LARGE, MessageRefused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Misconfigured),
    ],
)
def test_an_error_leads_to_what_its_code_says(code: int, kind: type[KafkaTrouble]) -> None:
    found = translate(KafkaException(error(code, retriable=True)))  # whatever the flags say
    assert type(found) is kind
    if code in (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH):
        assert isinstance(found, TransactionAborted)
        assert found.stale


def test_an_error_that_no_table_names_is_fatal_unless_its_flags_say_otherwise() -> None:
    code = KafkaError._RESOLVE
    assert action(error(code)) is Action.UNKNOWN
    assert action(error(code, retriable=True)) is Action.RESUME
    assert action(error(code, txn_requires_abort=True)) is Action.ABORT
    assert action(error(code, fatal=True, retriable=True)) is Action.UNKNOWN


def test_without_an_error_of_kafka_the_outcome_is_unknown() -> None:
    assert type(translate(SystemError("returned NULL"))) is OutcomeUnknown


class Client:
    """A producer's client that notes the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> int:
            self.calls.append(name)
            return 0

        return call


def test_outputs_are_acknowledged_before_the_offsets_of_a_commit_count(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = KafkaTransactions(Settings(), Names("service", "input"), 0, Log(lambda *_: None), time.monotonic)
    client = Client()
    monkeypatch.setattr(producer._handle, "get", lambda: client)
    producer.send_offsets({"input": 1}, None)
    assert client.calls == ["send_offsets_to_transaction", "flush"]
    producer.drop()


def message(offset: int, code: int | None = None) -> Message:
    """Return a record, or an event of the client."""
    return Message(topic="input", partition=0, offset=offset, error=None if code is None else error(code))


class Consumer:
    """Gives out what the test says, then nothing."""

    def __init__(self, *polls: list[Message]) -> None:
        self.polls = list(polls)

    def consume(self, most: int, wait: float) -> list[Message]:
        return self.polls.pop(0)


def test_a_reader_goes_on_behind_an_end_that_precedes_the_one_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = None
    reader = KafkaReader(Settings(), "group", admin, lambda: False, time.monotonic)
    eof = KafkaError._PARTITION_EOF
    consumer = Consumer([message(0), message(1), message(2, eof)], [message(2)], [message(4, eof)])
    monkeypatch.setattr(reader, "_consumer", consumer)
    found = [each.offset() for batch in reader._read("input", 0, 0, 4, 10) for each in batch]
    assert found == [0, 1, 2]  # offset 3 is a marker
    assert consumer.polls == []
