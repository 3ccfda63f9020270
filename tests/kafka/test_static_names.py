"""Errors about static member names, of transactions and of the consumer."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from statehold.config.sections.connection import GroupSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import InstanceTaken, TransactionAborted
from statehold.kafka.clients.static_member import StaticName, has_code
from statehold.kafka.common.error_actions import translate
from statehold.telemetry.log_events import Log
from statehold.testing.stepped import EventLog

#: a transaction that is rejected so is rolled back and handled again, with fresh group metadata
STALE = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID", "STALE_MEMBER_EPOCH")


@pytest.mark.parametrize("name", STALE)
def test_a_transaction_that_a_moved_group_rejects_is_handled_again_and_the_error_is_named(name: str) -> None:
    rejected = translate(KafkaException(KafkaError(getattr(KafkaError, name))))
    assert isinstance(rejected, TransactionAborted)
    assert rejected.stale
    assert str(rejected).startswith(f"{name}(")


def fatal(name: str) -> KafkaError:
    """As librdkafka hands a fatal error over: under another code, and its flag says that it is not fatal."""
    text = KafkaError(getattr(KafkaError, name)).str()
    return KafkaError(KafkaError._FATAL, f"Fatal error: {text}: ConsumerGroupHeartbeat fatal error: {text}")


def taken(patience: float) -> tuple[StaticName, EventLog]:
    log = EventLog()
    group = GroupSettings(membership="static", protocol="consumer", join_patience=patience)
    settings = Settings(group=group, service=ServiceSettings(instance="twin"))
    return StaticName(settings, Log(log)), log


def test_a_member_whose_name_was_taken_ends_and_says_by_which_rule() -> None:
    with pytest.raises(InstanceTaken, match="FENCED_INSTANCE_ID: another process has joined the group as 'twin'"):
        taken(10)[0].check(fatal("FENCED_INSTANCE_ID"))


def test_a_name_in_use_is_waited_for_and_logged_now_and_then() -> None:
    name, log = taken(1000)
    assert name.check(fatal("UNRELEASED_INSTANCE_ID")) is not None
    assert name.check(fatal("UNRELEASED_INSTANCE_ID")) is not None
    assert [event for event, _ in log.events] == ["waiting"]
    assert "UNRELEASED_INSTANCE_ID" in log.events[0][1]["cause"]


def test_any_other_error_is_not_about_names() -> None:
    assert taken(10)[0].check(KafkaError(KafkaError._TRANSPORT)) is None
    assert not has_code(KafkaError(KafkaError._FATAL, "Fatal error: something else"), KafkaError.FENCED_INSTANCE_ID)
