"""The setting to change for each error code."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from statehold.errors import KafkaTrouble, Misconfigured

_E = KafkaError

#: code -> what to change; only for errors that a setting, a right or an operator can fix
ADVICE: Final[dict[int, str]] = {
    _E.INVALID_SESSION_TIMEOUT: (
        "set group.session_timeout between the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    _E.GROUP_MAX_SIZE_REACHED: (
        "the group has as many members as the brokers allow: raise their group.max.size (KIP-848: "
        "group.consumer.max.size), or run fewer instances; one that was killed counts until its session ends"
    ),
    _E.INCONSISTENT_GROUP_PROTOCOL: (
        "the other members of the group share no assignor with this one: give all of them the same group.protocol, "
        "and check that no other service uses this group id"
    ),
    _E.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator reads its log after a start or a move; no action needed",
    _E.COORDINATOR_NOT_AVAILABLE: (
        "the group has no coordinator: are the replicas of __consumer_offsets and __transaction_state alive?"
    ),
    _E.INVALID_REPLICATION_FACTOR: (
        "fewer brokers are live than replicas were requested: start the others, pass --replication, or lower the "
        "brokers' default.replication.factor"
    ),
    _E.TOPIC_ALREADY_EXISTS: "a topic of this name exists, or is being deleted: retry in a moment",
    _E.POLICY_VIOLATION: "the brokers' create.topic.policy or alter.config.policy forbids it",
    _E.NOT_ENOUGH_REPLICAS: (
        "fewer replicas are in sync than the topic's min.insync.replicas requires: start the missing brokers, or set "
        "min.insync.replicas below the replication factor"
    ),
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "fewer replicas are in sync than the topic's min.insync.replicas requires: start the missing brokers, or set "
        "min.insync.replicas below the replication factor"
    ),
    _E.LEADER_NOT_AVAILABLE: "the partition has no leader: are the brokers that hold its replicas alive?",
    _E.MSG_SIZE_TOO_LARGE: (
        "raise the topic's max.message.bytes (brokers: message.max.bytes) and kafka.message_max_bytes, or send less"
    ),
    _E.INVALID_RECORD: (
        "the topic rejects records without a key, or with this timestamp: see its cleanup.policy (statehold needs "
        "delete) and message.timestamp.type; `statehold topics check` compares them"
    ),
    _E.INVALID_TIMESTAMP: (
        "the clock of this machine is further ahead than the topic allows (message.timestamp.after.max.ms): set it "
        "right, or give the output topic message.timestamp.type=LogAppendTime"
    ),
    _E.CONCURRENT_TRANSACTIONS: (
        "the brokers still write the end of the last transaction to its partitions. If that lasts, one of them has no "
        "leader or too few replicas in sync"
    ),
    _E.KAFKA_STORAGE_ERROR: "a broker cannot use its disk: is it full? See its log.dirs and its log",
    _E.INVALID_PRODUCER_ID_MAPPING: (
        "the transactional id was idle for longer than the brokers' transactional.id.expiration.ms: keep "
        "commit.renew_after well below that"
    ),
    _E.UNKNOWN_PRODUCER_ID: (
        "the brokers have forgotten the producer: keep commit.renew_after well below their "
        "transactional.id.expiration.ms and producer.id.expiration.ms"
    ),
    **dict.fromkeys(
        (_E.TOPIC_AUTHORIZATION_FAILED, _E.GROUP_AUTHORIZATION_FAILED, _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        "a right is missing; `statehold topics acl` prints what each role needs",
    ),
    _E._AUTHENTICATION: "the brokers refuse the login: see kafka.security, the password, the certificate's dates",
    _E._SSL: "TLS fails: see kafka.security, the CA, and both sides' certificates and their dates",
    _E.SASL_AUTHENTICATION_FAILED: "the brokers refuse the login: see kafka.security and the password",
    _E.INVALID_TRANSACTION_TIMEOUT: "commit.transaction_timeout is above the brokers' transaction.max.timeout.ms",
}

#: the brokers reject the login, or the handshake before it
LOGIN: Final = frozenset({_E._AUTHENTICATION, _E.SASL_AUTHENTICATION_FAILED, _E._SSL})


def login_rejected(error: KafkaError) -> KafkaError | None:
    """Return the rejected login in a client error; None for any other error.

    With TLS 1.3 a client learns of its rejected certificate after the handshake, by an alert on an open connection.
    """
    if error.code() == _E._TRANSPORT and "SSL routines" in error.str() and "alert" in error.str():
        return KafkaError(_E._SSL, error.str())
    return error if error.code() in LOGIN else None


#: answers to a join that no repetition helps: the member would stay out of the group without an error
REFUSES_MEMBER: Final = frozenset({_E.INVALID_SESSION_TIMEOUT, _E.INCONSISTENT_GROUP_PROTOCOL})


def advice(code: int) -> str:
    """Return `: what to change`, or an empty string if there is no advice."""
    change = ADVICE.get(code)
    return f": {change}" if change else ""


def advice_to_connect(error: KafkaTrouble) -> str:
    """Return what to check if the first request of a program to its brokers has failed."""
    if isinstance(error, Misconfigured):
        return "check kafka.security and the ACLs"
    return "check kafka.bootstrap_servers; for brokers on this machine run `statehold dev status`"
