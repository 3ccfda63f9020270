"""The group.instance.id of a static member: waits until it is free, detects a second owner, releases it."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from statehold.common.deadline import Deadline
from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import InstanceTaken
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.closing import close_member
from statehold.kafka.common.error_actions import describe
from statehold.telemetry.log_events import Log

#: seconds between two joins while the id is still taken: a fraction of a session timeout
_REJOIN_EVERY: Final = 1.0
#: seconds between two log events while it waits
_REPORT_EVERY: Final = 10.0
#: seconds to leave the group, and for one poll meanwhile
_LEAVE_WITHIN: Final = 5.0
_STEP: Final = 0.1


def has_code(error: KafkaError, code: int) -> bool:
    """Return whether it is this error. A fatal error has the code _FATAL, and only its text names the cause."""
    return error.code() == code or (error.code() == KafkaError._FATAL and KafkaError(code).str() in error.str())


class StaticName:
    """Handles the rejection of a static member's id, on the manager's thread."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._name, self._patience = client.static_id(settings), settings.group.join_patience
        self._log = log
        self._since: float | None = None
        self._reported = 0.0

    def check(self, error: KafkaError) -> float | None:
        """Return when to join again (monotonic seconds); None for any other error.

        :raises InstanceTaken: another process has joined with this id (FENCED_INSTANCE_ID), or the id was taken for
            longer than `group.join_patience` (UNRELEASED_INSTANCE_ID).
        """
        if has_code(error, KafkaError.FENCED_INSTANCE_ID):
            raise InstanceTaken(
                f"FENCED_INSTANCE_ID: another process has joined the group as {self._name!r}; this one ends, "
                f"because they would fence each other forever. Give each process its own service.instance "
                f"({describe(error)})"
            )
        if not has_code(error, KafkaError.UNRELEASED_INSTANCE_ID):
            return None
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._patience:
            raise InstanceTaken(
                f"UNRELEASED_INSTANCE_ID: the group has had a member called {self._name!r} for {self._patience:g} s "
                f"(group.join_patience), so it is alive. Stop that process, or give this one another service.instance"
            )
        if now - self._reported >= _REPORT_EVERY:
            self._reported = now
            self._log.warning(
                "waiting",
                cause=f"UNRELEASED_INSTANCE_ID: the group still has a member called {self._name!r}; if it was "
                f"killed, its session ends soon and this one takes its place",
            )
        return now + _REJOIN_EVERY

    def joined(self) -> None:
        self._since, self._reported = None, 0.0


def release_id(settings: Settings, names: Names, log: Log) -> None:
    """Release the id of a closed static member of the `consumer` protocol.

    librdkafka can only announce that the member comes back (epoch -2). A member of the classic protocol may take the id
    over and leave, if the broker allows both protocols in a group (group.consumer.migration.policy).
    """
    config = quiet(client.stand_in(settings, names.group), "leave")
    consumer = Consumer(config)
    joined: list[object] = []
    try:
        consumer.subscribe([names.input], on_assign=lambda _, given: joined.append(given))
        deadline = Deadline(_LEAVE_WITHIN)
        while not joined and not deadline.passed:
            consumer.consume(1, _STEP)
    except KafkaException as error:
        log.warning("kafka_retry", doing="leave the group", cause=str(error))
    finally:
        close_member(consumer)
    if not joined:
        log.warning(
            "kafka_retry",
            doing="leave the group",
            cause="the broker admitted no substitute; the id is free after its session",
        )
