"""Decides what to do about a Kafka error: by its code first, because the flags are wrong in places (pitfall P6)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from statehold.errors import (
    KafkaTrouble,
    MessageRefused,
    Misconfigured,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from statehold.kafka.common.error_advice import advice


class Action(Enum):
    #: repeat the same call, and only that, until its deadline (P5)
    RESUME = auto()
    #: abort, roll back, redo
    ABORT = auto()
    #: the same, with newly fetched group metadata
    ABORT_STALE = auto()
    #: drop the producer; never again from memory (P3, P4)
    FENCED = auto()
    #: drop the producer; the last commit record shows the outcome
    UNKNOWN = auto()
    #: the brokers reject this message, and would reject it again
    REFUSED = auto()
    #: no repetition helps until a right or a setting changes
    MISCONFIGURED = auto()


_E = KafkaError
ACTIONS: Final[dict[int, Action]] = {
    _E._FENCED: Action.FENCED,
    _E.INVALID_PRODUCER_EPOCH: Action.FENCED,
    90: Action.FENCED,  # PRODUCER_FENCED, not named by the binding
    # An expired id, because librdkafka would continue with a new one and revive a zombie (P3).
    _E.INVALID_PRODUCER_ID_MAPPING: Action.FENCED,
    _E.UNKNOWN_PRODUCER_ID: Action.FENCED,
    # A partition has left its transaction, which may be torn. The fence and the chain check decide (P1).
    _E.INVALID_TXN_STATE: Action.UNKNOWN,
    _E._FATAL: Action.UNKNOWN,
    _E._STATE: Action.UNKNOWN,
    _E._CONFLICT: Action.UNKNOWN,
    _E.UNKNOWN_MEMBER_ID: Action.ABORT_STALE,
    _E.ILLEGAL_GENERATION: Action.ABORT_STALE,
    _E.FENCED_INSTANCE_ID: Action.ABORT_STALE,
    _E.REBALANCE_IN_PROGRESS: Action.ABORT_STALE,
    _E.STALE_MEMBER_EPOCH: Action.ABORT_STALE,
    _E._INCONSISTENT: Action.ABORT,
    _E._MSG_TIMED_OUT: Action.ABORT,
    _E.MSG_SIZE_TOO_LARGE: Action.REFUSED,
    _E.INVALID_RECORD: Action.REFUSED,
    _E._UNKNOWN_PARTITION: Action.REFUSED,
    _E._UNKNOWN_TOPIC: Action.REFUSED,
    _E.TOPIC_AUTHORIZATION_FAILED: Action.MISCONFIGURED,
    _E.GROUP_AUTHORIZATION_FAILED: Action.MISCONFIGURED,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.MISCONFIGURED,
    _E.CLUSTER_AUTHORIZATION_FAILED: Action.MISCONFIGURED,
    _E._AUTHENTICATION: Action.MISCONFIGURED,
    _E._SSL: Action.MISCONFIGURED,
    _E.SASL_AUTHENTICATION_FAILED: Action.MISCONFIGURED,
    _E.INVALID_TRANSACTION_TIMEOUT: Action.MISCONFIGURED,
    _E._TIMED_OUT: Action.RESUME,
    _E.REQUEST_TIMED_OUT: Action.RESUME,
    _E.CONCURRENT_TRANSACTIONS: Action.RESUME,
    _E.COORDINATOR_LOAD_IN_PROGRESS: Action.RESUME,
    _E.COORDINATOR_NOT_AVAILABLE: Action.RESUME,
    _E.NOT_COORDINATOR: Action.RESUME,
    _E._TRANSPORT: Action.RESUME,
    _E._ALL_BROKERS_DOWN: Action.RESUME,
}

#: the group's coordinator moves or loads; the first group of a new broker waits for some seconds
COORDINATOR_MOVES: Final = frozenset(
    (_E.NOT_COORDINATOR, _E.COORDINATOR_NOT_AVAILABLE, _E.COORDINATOR_LOAD_IN_PROGRESS),
)


def action(error: KafkaError) -> Action:
    """Decide by the table, then by the flags. An error in neither is fatal, as librdkafka's introduction says."""
    known = ACTIONS.get(error.code())
    if known is not None:
        return known
    if error.fatal():
        return Action.UNKNOWN
    if error.txn_requires_abort():
        return Action.ABORT
    return Action.RESUME if error.retriable() else Action.UNKNOWN


def describe(error: KafkaError) -> str:
    """Return the error's name, the client's text, and the setting to change if one helps."""
    return f"{error.name()}({error.code()}): {error.str()}{advice(error.code())}"


def about(thing: str, error: KafkaTrouble) -> KafkaTrouble:
    """Return the same error with its subject, because many answers of the brokers do not name it."""
    named = type(error)(f"{thing}: {error}")
    named.__cause__ = error.__cause__
    return named


def kafka_error(error: BaseException) -> KafkaError | None:
    """Return the KafkaError inside an exception of the binding, if there is one."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def code_of(error: KafkaTrouble) -> int | None:
    """Return the code of the client error that caused it, if there is one."""
    inner = kafka_error(error.__cause__) if error.__cause__ else None
    return inner.code() if inner is not None else None


def translate(error: BaseException) -> KafkaTrouble:  # noqa: PLR0911  one line for each action
    """Return the exception for a failed transactional call. Without a KafkaError the outcome is unknown (P7)."""
    inner = kafka_error(error)
    if inner is None:
        return OutcomeUnknown(f"{type(error).__name__}: {error}")
    text = describe(inner)
    match action(inner):
        case Action.FENCED:
            return ProducerFenced(text)
        case Action.ABORT:
            return TransactionAborted(text)
        case Action.ABORT_STALE:
            return TransactionAborted(text, stale=True)
        case Action.REFUSED:
            return MessageRefused(text)
        case Action.MISCONFIGURED:
            return Misconfigured(text)
        case _:
            return OutcomeUnknown(text)
