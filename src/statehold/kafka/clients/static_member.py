"""The name of a static member in its group: still held by a dead process, taken by another one, given back."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import InstanceTaken
from statehold.kafka.common.error_actions import describe
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.telemetry.log_events import Log

#: how often a name is asked for that is still held
_AGAIN: Final = 1.0
_TELL_EVERY: Final = 10.0
#: how long the way out of the group may take, and how often it is looked for
_LEAVE_WITHIN: Final = 5.0
_STEP: Final = 0.1
#: polls after an unsubscribe: the request to leave is sent in them
_POLLS: Final = 5


def means(error: KafkaError, code: int) -> bool:
    """Whether it is this error; a fatal one is handed over as _FATAL, and only its text tells which."""
    return error.code() == code or (error.code() == KafkaError._FATAL and KafkaError(code).str() in error.str())


class StaticName:
    """What a static member does when its name is refused. Used by the manager's thread."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._name, self._patience = client.static_id(settings), settings.group.join_patience
        self._log = log
        self._since: float | None = None
        self._told = 0.0

    def check(self, error: KafkaError) -> float | None:
        """When to ask for the name again (monotonic seconds), None for any other error.

        :raises InstanceTaken: FENCED_INSTANCE_ID, another process has joined under our name; or UNRELEASED_INSTANCE_ID
            for longer than `group.join_patience`.
        """
        if means(error, KafkaError.FENCED_INSTANCE_ID):
            raise InstanceTaken(
                f"FENCED_INSTANCE_ID: another process has joined the group as {self._name!r}; this one ends, or they "
                f"would throw each other out for ever. Each process needs its own service.instance ({describe(error)})"
            )
        if not means(error, KafkaError.UNRELEASED_INSTANCE_ID):
            return None
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._patience:
            raise InstanceTaken(
                f"UNRELEASED_INSTANCE_ID: the group has had a member called {self._name!r} for {self._patience:g} s "
                f"(group.join_patience), so it is alive. Stop that process, or give this one another service.instance"
            )
        if now - self._told >= _TELL_EVERY:
            self._told = now
            self._log.warning(
                "waiting",
                cause=f"UNRELEASED_INSTANCE_ID: the group still has a member called {self._name!r}; if it was "
                f"killed, its session ends soon and this one takes its place",
            )
        return now + _AGAIN

    def joined(self) -> None:
        self._since, self._told = None, 0.0


def unsubscribe(consumer: Consumer) -> None:
    """Leave the group, also as a static member: closing would keep its place."""
    consumer.unsubscribe()
    for _ in range(_POLLS):
        consumer.consume(1, _STEP)


def give_back(settings: Settings, names: Names, log: Log) -> None:
    """After a static member of the `consumer` protocol was closed: take its name out of the group.

    librdkafka can only say that it will be back (epoch -2). A member of the classic protocol may take the name over and
    really leave, as long as the broker lets both protocols into a group (group.consumer.migration.policy).
    """
    config: dict[str, Any] = dict(client.stand_in(settings, names.group))
    config["logger"] = quiet_logger("leave")
    consumer = Consumer(config)
    joined: list[object] = []
    try:
        consumer.subscribe([names.input], on_assign=lambda _, given: joined.append(given))
        until = time.monotonic() + _LEAVE_WITHIN
        while not joined and time.monotonic() < until:
            consumer.consume(1, _STEP)
        unsubscribe(consumer)
    except KafkaException as error:
        log.warning("kafka_retry", doing="leave the group", cause=str(error))
    finally:
        consumer.close()
    if not joined:
        log.warning(
            "kafka_retry", doing="leave the group", cause="the broker did not let a stand-in in; its session ends"
        )
