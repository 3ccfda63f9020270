"""Requests to the cluster, each with a deadline. An AdminClient stays referenced while it is asked (pitfall P27)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from statehold.common.deadline import Deadline
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured, RestoreTimeout
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.futures import ATTEMPT, EARLIEST, LATEST, NO_TIMEOUT, ask_offsets, require_offset, result
from statehold.kafka.admin.group_offsets import PEEK, RENEW_EVERY, GroupOffsets
from statehold.kafka.admin.groups import describe_group
from statehold.kafka.admin.topic_absence import may_mean_absence, require_existing
from statehold.kafka.admin.tracked_client import TrackedClient
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import about, code_of, kafka_error, translate
from statehold.kafka.common.error_advice import login_rejected
from statehold.kafka.common.retry import OncePerMinute, call_patiently
from statehold.ports import Bounds, Cancelled, ConsumerGroup
from statehold.telemetry.log_events import Log

#: seconds to wait for a group's coordinator; grows up to the second while none answers, because a link may be slow
_GROUP_ATTEMPT: Final = 3.0
_GROUP_LONGEST: Final = 12.0
#: seconds to wait for metadata that only refreshes the client's cache
_REFRESH: Final = 1.0


class TopicFacts(NamedTuple):
    """A topic as the brokers describe it."""

    name: str
    id: str
    partitions: int
    replication: int


#: librdkafka's settings that name a file; the setting `kafka.security.ssl_...` has the same words
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")


class _Login:
    """Keeps the rejected login that a client reports when it is polled, because its calls only time out then.

    Separate from `Admin`, so that neither keeps the other alive.
    """

    def __init__(self) -> None:
        self.refused: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        self.refused = login_rejected(error) or self.refused


class Admin(GroupOffsets):
    """`ports.Offsets`, and the requests at start. Any thread may use it."""

    def __init__(self, settings: Settings, group: str, contact: NoContact | None = None) -> None:
        super().__init__(settings, group, contact or NoContact())
        self._log = Log(service=group)
        self._login = _Login()
        self.client = self.new_client("admin")
        #: the client before it, because its futures end only while it is referenced (pitfall P27)
        self._former: AdminClient | None = None
        self._renew_after = Deadline(RENEW_EVERY)
        self._group_asker: AdminClient | None = None
        #: when the coordinator first failed to answer
        self._unanswered: float | None = None
        #: a second client for topics, made because the first got no answer
        self._describer: AdminClient | None = None

    def describe(
        self, topics: list[str], cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, TopicFacts | None]:
        """Describe topics; None for each that does not exist.

        :raises KafkaTrouble: the cluster does not answer, or a right is missing. :raises Cancelled: by `cancelled`.
        """
        with self._making:
            asker, seconds = self._describer or self.client, ATTEMPT if self._describer else ATTEMPT / 2
        futures = asker.describe_topics(TopicCollection(topics), request_timeout=NO_TIMEOUT)
        try:
            found = {name: self._facts(name, future, cancelled, seconds) for name, future in futures.items()}
            self._login.refused = None
            return found
        except KafkaTrouble as error:
            self.require_login(asker, error)
            # Ask with a new client next time, because this one may keep waiting for a controller that is cut off.
            with self._making:
                if asker in (self._describer, self.client):
                    self._describer = self.new_client("topics")
            raise

    def require_login(self, asker: AdminClient, error: KafkaTrouble) -> None:
        """Raise the rejected login that a client has reported, because its call ended with a mere timeout: `error`.

        :raises Misconfigured: the brokers reject the login, or TLS fails.
        """
        asker.poll(0)
        if self._login.refused is not None and not isinstance(error, Misconfigured):
            refused = KafkaException(self._login.refused)
            raise translate(refused) from refused

    def bounds(self, topic: str, partition: int, deadline: float, cancelled: Callable[[], bool]) -> tuple[int, int]:
        """Return log start and end offset (read_uncommitted). Repeats while brokers are slow or away (requirement C5).

        :raises RestoreTimeout: no answer came within `deadline` seconds.
        """
        minute = OncePerMinute()

        def ask() -> tuple[int, int]:
            start = self._offset(topic, partition, EARLIEST, cancelled)
            return start, self._offset(topic, partition, LATEST, cancelled)

        def report(error: KafkaTrouble, waited: float) -> None:
            self._contact.broken(partition, f"{topic}[{partition}]: {error}")
            if minute():
                doing = "read the log's end offsets; its leader does not answer"
                place = {"topic": topic, "partition": partition}
                self._log.warning("kafka_retry", doing=doing, waited=round(waited, 1), cause=str(error), **place)
            inner = kafka_error(error.__cause__) if error.__cause__ else None
            if may_mean_absence(inner):
                self.require_existing(topic, partition)
            self._learn_leaders(topic)

        try:
            found = call_patiently(ask, deadline, cancelled=cancelled, report=report)
        except KafkaTrouble as error:
            if cancelled():
                raise Cancelled from error
            raise RestoreTimeout(
                f"no end offsets within {deadline:.0f} s ({error}). statehold retries by itself; "
                f"`statehold retry {partition}` retries now",
                topic=topic,
                partition=partition,
            ) from error
        self._contact.works(partition)
        return found

    def require_reachable(self, topic: str) -> None:
        """Check the cluster before a request without a timeout, so that none stays open in an outage (`NO_TIMEOUT`).

        :raises KafkaTrouble: no broker answers within `PEEK`, or none knows a controller.
        """
        try:
            with self._contact.call("list_topics", PEEK + STUCK_AFTER):
                found = self.client.list_topics(topic, PEEK)
        except KafkaException as error:
            trouble = translate(error)
            self.require_login(self.client, trouble)
            self._renew()
            raise trouble from error
        self._login.refused = None
        if found.controller_id < 0:
            raise KafkaTrouble("the cluster has no controller")

    def require_existing(self, topic: str, partition: int = -1) -> None:
        """Check that a topic or partition exists. Blocks for seconds.

        :raises TopicMissing: two live brokers, or the only one, report that it does not exist.
        """
        config: dict[str, Any] = dict(client.offsets(self._settings, self._group, isolation="read_uncommitted"))
        require_existing(self._nodes, quiet(config, "witness"), topic, partition)

    def _nodes(self) -> dict[int, str]:
        """Return the addresses of the live brokers, by number."""
        found = result(self.client.describe_cluster(request_timeout=NO_TIMEOUT), seconds=_GROUP_ATTEMPT)
        return {node.id: f"{node.host}:{node.port}" for node in found.nodes}

    def new_client(self, name: str) -> AdminClient:
        """Return a new client. Keep it referenced while it is asked."""
        config = quiet(client.admin(self._settings), name)
        config["error_cb"] = self._login.heard
        try:
            return TrackedClient(config)
        except KafkaException as error:  # such as no token within 10 s, or an invalid certificate
            inner = kafka_error(error)
            if inner is not None and inner.code() == KafkaError._INVALID_ARG:
                text = _name_file(config, inner.str())
                raise Misconfigured(f"{text}: see kafka.security and kafka.extra") from error
            raise translate(error) from error

    def describe_group(self, topic: str, seconds: float = _GROUP_ATTEMPT) -> ConsumerGroup:
        """Describe the group now; members list their partitions of `topic`. Blocks for 3 s at most, or for `seconds`.

        :raises KafkaTrouble: the coordinator does not answer.
        """
        return describe_group(self.client, self._group, topic, seconds=min(seconds, _GROUP_ATTEMPT))

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        """Return whether a member of the group owns a partition.

        A new client asks after a failure, because a client keeps waiting for a coordinator that was frozen or has died
        (librdkafka issue 5511).

        :raises KafkaTrouble: the coordinator does not answer.
        """
        with self._making:
            asker = self._group_asker = self._group_asker or self.new_client("groups")
            waited = time.monotonic() - self._unanswered if self._unanswered is not None else 0.0
        try:
            group = describe_group(asker, self._group, topic, seconds=min(max(_GROUP_ATTEMPT, waited), _GROUP_LONGEST))
            self._unanswered = None
        except KafkaTrouble:
            with self._making:
                self._unanswered = self._unanswered or time.monotonic()
                self._group_asker = None if self._group_asker is asker else self._group_asker
            raise
        return any(member.id == member_id and partition in member.partitions for member in group.members)

    def ask_bounds(self, increment: str, full: str, partition: int) -> Callable[[float], Bounds | None]:
        end = self._ask(increment, partition, LATEST)
        start = self._ask(full, partition, EARLIEST)

        def answer(wait: float) -> Bounds | None:
            if wait <= 0 and not (end.done() and start.done()):
                return None
            try:
                return Bounds(require_offset(end.result(wait).offset), require_offset(start.result(wait).offset))
            except FutureTimeout:
                return None
            except KafkaTrouble:
                self.look_again(increment, full)
                raise
            except Exception as error:
                self.look_again(increment, full)
                raise translate(error) from error

        return answer

    def look_again(self, *topics: str) -> None:
        """Let the client look up the leaders of the topics' partitions, on threads of their own. Does not wait."""
        for topic in topics:
            threading.Thread(target=self._learn_leaders, args=(topic,), daemon=True).start()

    def _learn_leaders(self, topic: str) -> None:
        """Refresh the client's leaders, because it would ask its cached leader with its cached epoch for minutes.

        After a broker's restart every answer to such a request is FENCED_LEADER_EPOCH.
        """
        try:
            self.client.list_topics(topic, timeout=_REFRESH)
        except KafkaException:
            self._renew()

    def _renew(self) -> None:
        """Let a new client ask next time, because this one may have forgotten its brokers (`lost_brokers`).

        Once in `RENEW_EVERY` at most.
        """
        with self._making:
            if self._renew_after.passed:
                self._renew_after = Deadline(RENEW_EVERY)
                self._former, self.client = self.client, self.new_client("admin")

    def renew(self) -> None:
        """Replace every client, because passwords or certificates have changed. Any thread may call it."""
        with self._making:
            self._former, self.client = self.client, self.new_client("admin")
            self._describer = self._group_asker = None
            self._consumers.clear()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        if before < 0:  # because the brokers read -1 as the end of the log
            self._log.warning("truncation_failed", topic=topic, partition=partition, before=before, cause="no offset")
            return
        place = TopicPartition(topic, partition, before)
        future = self.client.delete_records([place], request_timeout=ATTEMPT)[place]
        future.add_done_callback(lambda done: self._report_deletion(topic, partition, before, done))

    def _report_deletion(self, topic: str, partition: int, before: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self._log.warning("truncation_failed", topic=topic, partition=partition, before=before, cause=str(error))

    def _offset(self, topic: str, partition: int, spec: Any, cancelled: Callable[[], bool]) -> int:
        try:
            return require_offset(result(self._ask(topic, partition, spec), cancelled).offset)
        except Misconfigured as error:
            raise about(topic, error) from error.__cause__

    def _ask(self, topic: str, partition: int, spec: Any) -> Future[Any]:
        place = (topic, partition)
        return ask_offsets(self.client, [place], spec, IsolationLevel.READ_UNCOMMITTED, ATTEMPT)[place]

    def _facts(
        self, name: str, future: Future[Any], cancelled: Callable[[], bool], seconds: float
    ) -> TopicFacts | None:
        try:
            found = result(future, cancelled, seconds)
        except KafkaTrouble as error:
            if code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if isinstance(error, Misconfigured):
                raise about(name, error) from error.__cause__
            raise
        replicas = min((len(partition.replicas) for partition in found.partitions), default=0)
        return TopicFacts(name, str(found.topic_id), len(found.partitions), replicas)


def _name_file(config: Mapping[str, Any], text: str) -> str:
    """Return the client's text with the setting and the path of the file at fault, because the client names no path."""
    for key in _FILES:
        if not (path := config.get(key)):
            continue
        setting = f"kafka.security.{key.replace('.', '_')} = {path}"
        try:
            if not Path(path).is_dir():
                Path(path).read_bytes()
        except OSError as error:
            return f"{setting} cannot be read: {error.strerror}"
        if key in text:
            return f"{setting}: {text}"
    return text
