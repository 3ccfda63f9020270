"""Finds the missing right behind a tool's failure, after it has failed.

The brokers reject most requests with an error. A lookup of a group's coordinator without the right gets none: the
client searches until its timeout and reports only that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError

from statehold.common.access_rights import GROUP, TOPIC, Right
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, StateholdError
from statehold.kafka.admin.acl_check import RoleAccess, missing, refusal
from statehold.kafka.admin.admin import Admin
from statehold.kafka.common.error_actions import kafka_error
from statehold.kafka.common.error_advice import LOGIN

_SILENCE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD})


def missing_right(settings: Settings, group: str, rights: Sequence[Right], role: str, error: BaseException) -> str:
    """Return the missing rights and the commands that grant them; '' if the error has another cause.

    Blocks for some seconds at most, and raises nothing.
    """
    raised = _raised(error)
    cause = kafka_error(raised)
    silent = isinstance(raised, KafkaTrouble) or (cause is not None and cause.code() in _SILENCE)
    if not silent and (cause is None or cause.code() in LOGIN):
        return ""
    try:
        admin = Admin(settings, group)
        if not silent:
            return RoleAccess(settings, admin, rights, role).explain(raised)
        topic = next((right.name for right in rights if right.kind == TOPIC), "")
        admin.require_reachable(topic)
        lacking = missing(admin, [right for right in rights if right.kind == GROUP])
        return refusal(settings, lacking, role) if lacking else ""
    except StateholdError:
        return ""


def _raised(error: BaseException) -> BaseException:
    """Return the innermost error, which the client raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
