"""Lists missing ACLs. The brokers report what the asking principal may do, so nothing has to be tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, TopicCollection

from statehold.common.access_rights import GROUP, IDS, TOPIC, Right, principal_of
from statehold.common.deadline import Deadline
from statehold.config.settings import Settings
from statehold.errors import AccessRefused, KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import NO_TIMEOUT, result
from statehold.kafka.admin.groups import ask_groups, operations
from statehold.kafka.common.error_actions import code_of, kafka_error
from statehold.kafka.common.error_advice import LOGIN
from statehold.ports import Access
from statehold.telemetry.log_events import Log

#: seconds for all answers; a right that is not reported by then is left to the call that needs it, whose error names it
_PATIENCE: Final = 5.0
#: seconds for one answer after that, because it may have arrived meanwhile
_LAST_LOOK: Final = 0.1
#: error code -> kind of the thing it is about; '' for the login itself
_KINDS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: TOPIC,
    KafkaError.GROUP_AUTHORIZATION_FAILED: GROUP,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: IDS,
    **dict.fromkeys(LOGIN, ""),
}
_REFUSED: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


#: lines of Kafka's tool that an error shows
_LINES: Final = 3

#: the broker answered without rights
UNTOLD: Final = frozenset({"UNTOLD"})


def allowed(
    admin: Admin, rights: Iterable[Right], cancelled: Callable[[], bool] = lambda: False
) -> dict[tuple[str, str], frozenset[str] | None]:
    """Return the allowed operations for each kind and name of a topic or group. Blocks for some seconds at most.

    The value is `UNTOLD` if the broker reports no rights, and None if the thing is missing or no broker answers.
    """
    wanted = list(rights)
    topics = list(dict.fromkeys(right.name for right in wanted if right.kind == TOPIC))
    groups = list(dict.fromkeys(right.name for right in wanted if right.kind == GROUP))
    asked: dict[tuple[str, str], Future[Any]] = {}
    if topics:
        answers = admin.client.describe_topics(
            TopicCollection(topics), include_authorized_operations=True, request_timeout=NO_TIMEOUT
        )
        asked |= {(TOPIC, name): future for name, future in answers.items()}
    if groups:
        asked |= {(GROUP, name): future for name, future in ask_groups(admin.client, groups, rights=True).items()}
    deadline = Deadline(_PATIENCE)
    return {thing: _allowed(future, cancelled, deadline.left) for thing, future in asked.items()}


def missing(admin: Admin, rights: Iterable[Right], cancelled: Callable[[], bool] = lambda: False) -> list[Right]:
    """Return the rights that the brokers report as missing. Blocks for some seconds at most.

    They report nothing about transactional ids, nor about topics and groups that do not exist.
    """
    wanted = list(rights)
    granted = allowed(admin, wanted, cancelled)
    return [right for right in wanted if lacks(right, granted.get((right.kind, right.name)))]


class RoleAccess(Access):
    """`ports.Access` for the rights of a role. Any thread may use it."""

    def __init__(self, settings: Settings, admin: Admin, rights: Iterable[Right], role: str = "service") -> None:
        self._settings, self._admin, self._role = settings, admin, role
        self._rights = [right for right in rights if not right.optional]

    def explain(self, error: BaseException) -> str:
        # The constructor of a client without a token raises, so the cause may be one level deeper.
        inner = kafka_error(error) or (kafka_error(error.__cause__) if error.__cause__ is not None else None)
        if inner is None or inner.code() not in _KINDS:
            return ""
        kind = _KINDS[inner.code()]
        if not kind:
            return f"the brokers reject the login ({error}): check kafka.security, the password and the certificates"
        # The brokers report nothing about transactional ids. For the others, a new answer may differ.
        certain = [right for right in self._rights if right.kind == kind == IDS]
        lacking = certain or missing(self._admin, [right for right in self._rights if right.kind == kind])
        if not lacking:
            said = f"a right on a {kind} is missing ({error})"
            return f"{said}: `statehold topics acl --role {self._role}` prints them all"
        return refusal(self._settings, lacking, self._role)

    def granted(self) -> bool:
        return not missing(self._admin, self._rights)


def require_rights(
    settings: Settings, admin: Admin, rights: Iterable[Right], log: Log, cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Log a warning for each missing optional right.

    :raises AccessRefused: other rights are missing; the error lists the commands that grant them.
    """
    lacking = missing(admin, rights, cancelled)
    for right in lacking:
        if right.optional:
            log.warning("right_missing", right=str(right), cause=right.why, fix=_grant(right, settings))
    needed = [right for right in lacking if not right.optional]
    if needed:
        raise AccessRefused(refusal(settings, needed))


def refusal(settings: Settings, rights: Iterable[Right], role: str = "service") -> str:
    """Return what is missing, for whom, and the first commands that grant it."""
    who = (
        principal_of(settings) or "the service's principal (NAME, derived by the brokers from its certificate or token)"
    )
    found = list(rights)
    lines = "; ".join(_grant(right, settings) for right in found[:_LINES])
    if len(found) > _LINES:
        lines += f"; and {len(found) - _LINES} more, which `statehold topics acl --role {role}` prints"
    return f"{who} may not: {', '.join(map(str, found))}. An administrator of the cluster grants it: {lines}"


def _grant(right: Right, settings: Settings) -> str:
    return right.grant(principal_of(settings) or "User:NAME", settings.kafka.bootstrap_servers)


def _allowed(future: Future[Any], cancelled: Callable[[], bool], seconds: float) -> frozenset[str] | None:
    """Return the allowed operations; None if the brokers do not report them."""
    try:
        found = result(future, cancelled, max(_LAST_LOOK, seconds))
    except KafkaTrouble as error:
        return frozenset() if code_of(error) in _REFUSED else None
    return operations(found.authorized_operations) or UNTOLD


def lacks(right: Right, granted: frozenset[str] | None) -> bool:
    return granted is not None and granted != UNTOLD and not {right.operation, "ALL"} & granted
