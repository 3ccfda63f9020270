"""Which of a role's rights are missing: asked of the brokers, which tell what whoever asks may do; nothing is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, TopicCollection

from statehold.common.access_rights import GROUP, IDS, TOPIC, Right, principal_of
from statehold.config.settings import Settings
from statehold.errors import AccessRefused, KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import NO_TIMEOUT, result
from statehold.kafka.admin.groups import ask_groups, operations
from statehold.kafka.common.error_actions import kafka_error
from statehold.kafka.common.error_advice import LOGIN
from statehold.ports import Access
from statehold.telemetry.log_events import Log

#: seconds; what is not told by then is left to the call that needs it, whose error names it too
_PATIENCE: Final = 5.0
#: what is refused -> the kind of thing; '' where the login itself is
_KINDS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: TOPIC,
    KafkaError.GROUP_AUTHORIZATION_FAILED: GROUP,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: IDS,
    **dict.fromkeys(LOGIN, ""),
}
_REFUSED: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


#: so many lines of Kafka's tool are shown in an error
_LINES: Final = 3

#: the answer came, and says nothing of rights
UNTOLD: Final = frozenset({"UNTOLD"})


def allowed(
    admin: Admin, rights: Iterable[Right], cancelled: Callable[[], bool] = lambda: False
) -> dict[tuple[str, str], frozenset[str] | None]:
    """Kind and name of a topic or group -> what we may do with it; `UNTOLD`; None where it is not there or nobody
    answers. Blocks for some seconds at most.
    """
    wanted = list(rights)
    topics = list(dict.fromkeys(right.name for right in wanted if right.kind == TOPIC))
    groups = list(dict.fromkeys(right.name for right in wanted if right.kind == GROUP))
    asked: dict[tuple[str, str], Future[Any]] = {}
    if topics:
        told = admin.client.describe_topics(
            TopicCollection(topics), include_authorized_operations=True, request_timeout=NO_TIMEOUT
        )
        asked |= {(TOPIC, name): future for name, future in told.items()}
    if groups:
        asked |= {(GROUP, name): future for name, future in ask_groups(admin.client, groups, rights=True).items()}
    until = time.monotonic() + _PATIENCE
    return {thing: _allowed(future, cancelled, until - time.monotonic()) for thing, future in asked.items()}


def missing(admin: Admin, rights: Iterable[Right], cancelled: Callable[[], bool] = lambda: False) -> list[Right]:
    """Those that the brokers say are not given. What they do not tell (transactional ids, a topic or group that is not
    there) is not among them. Blocks for some seconds at most.
    """
    wanted = list(rights)
    told = allowed(admin, wanted, cancelled)
    return [right for right in wanted if lacks(right, told.get((right.kind, right.name)))]


class RoleAccess(Access):
    """`ports.Access` by the rights of a role; any thread."""

    def __init__(self, settings: Settings, admin: Admin, rights: Iterable[Right], role: str = "service") -> None:
        self._settings, self._admin, self._role = settings, admin, role
        self._rights = [right for right in rights if not right.optional]

    def explain(self, error: BaseException) -> str:
        # A client that gets no token is refused by its own constructor.
        inner = kafka_error(error) or (kafka_error(error.__cause__) if error.__cause__ is not None else None)
        if inner is None or inner.code() not in _KINDS:
            return ""
        kind = _KINDS[inner.code()]
        if not kind:
            return f"the brokers refuse our login ({error}): check kafka.security, the password and the certificates"
        # Of transactional ids nobody tells; of the others whoever is asked now may know better than before.
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
    """Warn of optional ones that are missing.

    :raises AccessRefused: others are, each with the line that grants it.
    """
    lacking = missing(admin, rights, cancelled)
    for right in lacking:
        if right.optional:
            log.warning("right_missing", right=str(right), cause=right.why, mend=_grant(right, settings))
    needed = [right for right in lacking if not right.optional]
    if needed:
        raise AccessRefused(refusal(settings, needed))


def refusal(settings: Settings, rights: Iterable[Right], role: str = "service") -> str:
    """What is missing, for whom, and the lines that mend it: the first of them, where there are many."""
    who = principal_of(settings) or "our principal (NAME, as the brokers' rules make it of our certificate or token)"
    found = list(rights)
    lines = "; ".join(_grant(right, settings) for right in found[:_LINES])
    if len(found) > _LINES:
        lines += f"; and {len(found) - _LINES} more, which `statehold topics acl --role {role}` prints"
    return f"{who} may not: {', '.join(map(str, found))}. Whoever administers the cluster grants it: {lines}"


def _grant(right: Right, settings: Settings) -> str:
    return right.grant(principal_of(settings) or "User:NAME", settings.kafka.bootstrap_servers)


def _allowed(future: Future[Any], cancelled: Callable[[], bool], seconds: float) -> frozenset[str] | None:
    """None where the brokers do not tell."""
    try:
        found = result(future, cancelled, max(0.1, seconds))
    except KafkaTrouble as error:
        inner = kafka_error(error.__cause__) if error.__cause__ else None
        return frozenset() if inner is not None and inner.code() in _REFUSED else None
    return operations(found.authorized_operations) or UNTOLD


def lacks(right: Right, told: frozenset[str] | None) -> bool:
    return told is not None and told != UNTOLD and not {right.operation, "ALL"} & told
