"""Questions to the cluster, each with a deadline; an AdminClient is kept referenced while it is asked (pitfall P27)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured, RestoreTimeout
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.futures import ATTEMPT, EARLIEST, LATEST, NO_TIMEOUT, result, told
from statehold.kafka.admin.group_offsets import PEEK, RENEW_EVERY, GroupOffsets
from statehold.kafka.admin.groups import describe_group
from statehold.kafka.admin.topic_absence import require_there, tells_of_absence
from statehold.kafka.admin.tracked_client import TrackedClient
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.error_actions import about, kafka_error, translate
from statehold.kafka.common.error_advice import login_refused
from statehold.kafka.common.retry import OncePerMinute, patiently
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.ports import Bounds, Cancelled, ConsumerGroup
from statehold.telemetry.log_events import Log

#: a group is asked for so long; longer and longer while nobody answers, because a link may be slow
_GROUP_ATTEMPT, _GROUP_LONGEST = 3.0, 12.0


class TopicFacts(NamedTuple):
    """What the brokers say about a topic."""

    name: str
    id: str
    partitions: int
    replication: int


class _Login:
    """What a client's thread says of its login, when it is polled: its calls only run out of time then.

    Apart from `Admin`, so that neither keeps the other.
    """

    def __init__(self) -> None:
        self.refused: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        self.refused = login_refused(error) or self.refused


class Admin(GroupOffsets):
    """`ports.Offsets` and what the wiring asks at start; may be used by any thread."""

    def __init__(self, settings: Settings, group: str, contact: NoContact | None = None) -> None:
        super().__init__(settings, group, contact or NoContact())
        self._log = Log(service=group)
        self._login = _Login()
        self.client = self.new_client("admin")
        #: the one before it: its futures end only while it is referenced (pitfall P27)
        self._former: AdminClient | None = None
        self._renew_at = time.monotonic() + RENEW_EVERY
        self._group_asker: AdminClient | None = None
        #: since when nobody has told about the group
        self._unanswered: float | None = None
        #: asked for topics since another one got no answer
        self._describer: AdminClient | None = None

    def describe(
        self, topics: list[str], cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, TopicFacts | None]:
        """Each topic as it is, None where it is missing.

        :raises KafkaTrouble: the cluster does not answer, or forbids the question. :raises Cancelled: as it says.
        """
        with self._making:
            asker, seconds = self._describer or self.client, ATTEMPT if self._describer else ATTEMPT / 2
        futures = asker.describe_topics(TopicCollection(topics), request_timeout=NO_TIMEOUT)
        try:
            found = {name: self._facts(name, future, cancelled, seconds) for name, future in futures.items()}
            self._login.refused = None
            return found
        except KafkaTrouble as error:
            asker.poll(0)
            if self._login.refused is not None and not isinstance(error, Misconfigured):
                refused = KafkaException(self._login.refused)
                raise translate(refused) from refused
            # Its controller may be a broker that is cut off: it would go on waiting for that one. A new client is told
            # of another.
            with self._making:
                if asker in (self._describer, self.client):
                    self._describer = self.new_client("topics")
            raise

    def bounds(self, topic: str, partition: int, deadline: float, cancelled: Callable[[], bool]) -> tuple[int, int]:
        """Log start and end, read uncommitted; asked again while brokers are slow or away (requirement C5).

        :raises RestoreTimeout: nothing came within `deadline` seconds.
        """
        minute = OncePerMinute()

        def ask() -> tuple[int, int]:
            start = self._offset(topic, partition, EARLIEST, cancelled)
            return start, self._offset(topic, partition, LATEST, cancelled)

        def tell(error: KafkaTrouble, waited: float) -> None:
            self._contact.broken(partition, f"{topic}[{partition}]: {error}")
            if minute():
                doing = "find the ends of the log; its leader is away"
                place = {"topic": topic, "partition": partition}
                self._log.warning("kafka_retry", doing=doing, waited=round(waited, 1), cause=str(error), **place)
            inner = kafka_error(error.__cause__) if error.__cause__ else None
            if tells_of_absence(inner):
                self.require_there(topic, partition)
            self._learn_leaders(topic)

        try:
            found = patiently(ask, deadline, cancelled=cancelled, tell=tell)
        except KafkaTrouble as error:
            if cancelled():
                raise Cancelled from error
            raise RestoreTimeout(
                f"the ends of the log did not come within {deadline:.0f} s ({error}); it is tried again by itself, "
                f"and `statehold retry {partition}` tries now",
                topic=topic,
                partition=partition,
            ) from error
        self._contact.works(partition)
        return found

    def require_reachable(self, topic: str) -> None:
        """Before a question that can wait, so that none is left open in an outage (`NO_TIMEOUT`).

        :raises KafkaTrouble: no broker answers within two seconds, or none knows a controller.
        """
        try:
            with self._contact.call("list_topics", PEEK + STUCK_AFTER):
                found = self.client.list_topics(topic, PEEK)
        except KafkaException as error:
            self._renew()
            raise translate(error) from error
        if found.controller_id < 0:
            raise KafkaTrouble("the cluster has no controller")

    def require_there(self, topic: str, partition: int = -1) -> None:
        """:raises TopicMissing: two live brokers, or the only one, say that it is not there. Blocks for seconds."""
        config: dict[str, Any] = dict(client.offsets(self._settings, self._group, isolation="read_uncommitted"))
        require_there(self._nodes, {**config, "logger": quiet_logger("witness")}, topic, partition)

    def _nodes(self) -> dict[int, str]:
        """Broker number -> address, of those that live."""
        found = result(self.client.describe_cluster(request_timeout=NO_TIMEOUT), seconds=_GROUP_ATTEMPT)
        return {node.id: f"{node.host}:{node.port}" for node in found.nodes}

    def new_client(self, name: str) -> AdminClient:
        """One of its own; keep it referenced while it is asked."""
        config: dict[str, Any] = dict(client.admin(self._settings))
        config["logger"] = quiet_logger(name)
        config["error_cb"] = self._login.heard
        try:
            return TrackedClient(config)
        except KafkaException as error:  # no token within 10 s, for one; or a file that is no certificate
            inner = kafka_error(error)
            if inner is not None and inner.code() == KafkaError._INVALID_ARG:
                raise Misconfigured(f"{inner.str()}: see kafka.security and kafka.extra") from error
            raise translate(error) from error

    def describe_group(self, topic: str) -> ConsumerGroup:
        """Describe the group now; members list their partitions of `topic`. Blocks for seconds at most.

        :raises KafkaTrouble: the coordinator does not answer.
        """
        return describe_group(self.client, self._group, topic, seconds=_GROUP_ATTEMPT)

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        """Asked anew with a client of its own after a failure: one whose coordinator was frozen or has died goes on
        waiting for that broker (librdkafka issue 5511).
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
                return Bounds(told(end.result(wait).offset), told(start.result(wait).offset))
            except FutureTimeout:
                return None
            except KafkaTrouble:
                self._learn_later(increment, full)
                raise
            except Exception as error:
                self._learn_later(increment, full)
                raise translate(error) from error

        return answer

    def look_again(self, topic: str) -> None:
        """Have the client look who leads the topic's partitions; does not wait."""
        self._learn_later(topic)

    def _learn_later(self, *topics: str) -> None:
        """The next full may go better; nothing here may wait."""
        for topic in topics:
            threading.Thread(target=self._learn_leaders, args=(topic,), daemon=True).start()

    def _learn_leaders(self, topic: str) -> None:
        """The client asks its cached leader, with its cached epoch, until somebody makes it look again: after a
        broker's restart every answer would be FENCED_LEADER_EPOCH, for minutes.
        """
        try:
            self.client.list_topics(topic, timeout=ATTEMPT / 10)
        except KafkaException:
            self._renew()

    def _renew(self) -> None:
        """The client gets no answers: perhaps it has forgotten its brokers (`core.kafka.forgotten`). A new one asks
        next time, every half minute at most.
        """
        with self._making:
            if time.monotonic() >= self._renew_at:
                self._renew_at = time.monotonic() + RENEW_EVERY
                self._former, self.client = self.client, self.new_client("admin")

    def renew(self) -> None:
        """Any thread: passwords and certificates have changed, and new clients ask from now on."""
        with self._making:
            self._former, self.client = self.client, self.new_client("admin")
            self._describer = self._group_asker = self._consumer = self._peeking = None

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        if before < 0:  # to the brokers -1 means the end of the log
            self._log.warning("truncation_failed", topic=topic, partition=partition, before=before, cause="no offset")
            return
        place = TopicPartition(topic, partition, before)
        future = self.client.delete_records([place], request_timeout=ATTEMPT)[place]
        future.add_done_callback(lambda done: self._tell_deletion(topic, partition, before, done))

    def _tell_deletion(self, topic: str, partition: int, before: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self._log.warning("truncation_failed", topic=topic, partition=partition, before=before, cause=str(error))

    def _offset(self, topic: str, partition: int, spec: Any, cancelled: Callable[[], bool]) -> int:
        try:
            return told(result(self._ask(topic, partition, spec), cancelled).offset)
        except Misconfigured as error:
            raise about(topic, error) from error.__cause__

    def _ask(self, topic: str, partition: int, spec: Any) -> Future[Any]:
        place = TopicPartition(topic, partition)
        futures = self.client.list_offsets(
            {place: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ATTEMPT
        )
        future: Future[Any] = futures[place]
        return future

    def _facts(
        self, name: str, future: Future[Any], cancelled: Callable[[], bool], seconds: float
    ) -> TopicFacts | None:
        try:
            found = result(future, cancelled, seconds)
        except KafkaTrouble as error:
            inner = kafka_error(error.__cause__) if error.__cause__ else None
            if inner is not None and inner.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if isinstance(error, Misconfigured):
                raise about(name, error) from error.__cause__
            raise
        replicas = min((len(partition.replicas) for partition in found.partitions), default=0)
        return TopicFacts(name, str(found.topic_id), len(found.partitions), replicas)
