"""A login that cannot be renewed now is renewed later: nothing that a client says ends the watch over it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.clients.credential_rotation import CredentialRotation
from statehold.telemetry.log_events import Log
from statehold.testing.stepped import EventLog


class Tried(CredentialRotation):
    """The brokers take the new login."""

    def _trial(self) -> str:
        return ""


@pytest.mark.parametrize(
    "error", [KafkaTrouble("away"), KafkaException(KafkaError(KafkaError._INVALID_ARG, "half a certificate"))]
)
def test_a_client_that_cannot_be_made_is_tried_again(error: Exception) -> None:
    log, errors = EventLog(), [error]

    def renew() -> None:
        if errors:
            raise errors.pop()

    renewal = Tried(Settings(), Log(log), [renew])
    assert not renewal._renewed(b"new")
    assert renewal._renewed(b"new")
    assert [event for event, _ in log.events] == ["login_not_renewed", "login_renewed"]
