"""What `statehold compact` asks of Kafka: the lock, and deletions that are waited for."""

from __future__ import annotations

import threading
import uuid
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, TopicPartition

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import CompactionBusy, KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import result
from statehold.kafka.admin.groups import describe_group
from statehold.kafka.common.transaction_taint import quiet_logger

#: seconds after which a run that was killed has lost the lock
SESSION: Final = 10.0
_JOIN: Final = 60.0
_POLL: Final = 0.2


class CompactionLock:
    """Being the only member of group `<service>.compaction`: `with CompactionLock(...) as lock`.

    Raises CompactionBusy from `with` when there is another one that is alive. One that was killed is waited for: its
    session ends after `SESSION` seconds. Two that begin together may both see the other and both leave; never do both
    stay.
    """

    def __init__(self, settings: Settings, names: Names, admin: Admin) -> None:
        self._group, self._topic, self._admin = f"{names.group}.compaction", names.snapshot, admin
        config: dict[str, Any] = dict(client.lock(settings, self._group, SESSION))
        # Told apart by client id: asking for the member id holds the interpreter while librdkafka's own thread may want
        # it for a log line, and then neither goes on.
        self._me = f"{settings.service.identity}-{uuid.uuid4().hex[:8]}"
        self._consumer = Consumer({**config, "client.id": self._me, "logger": quiet_logger("lock")})
        self._joined, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, name="compaction-lock", daemon=True)

    def __enter__(self) -> Self:
        # Nothing is assigned, so nothing is fetched.
        self._consumer.subscribe([self._topic], on_assign=self._assigned)
        self._thread.start()
        try:
            self._await_joined()
            self.check()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(_JOIN)

    def _await_joined(self) -> None:
        if not self._joined.wait(_JOIN):
            raise KafkaTrouble(f"group {self._group!r} could not be joined within {_JOIN:.0f} s")

    def check(self) -> None:
        """Asks the group's coordinator, now. :raises CompactionBusy: this run is not in the group, or not alone."""
        found = describe_group(self._admin.client, self._group)
        members = {member.client_id: member for member in found.members}
        if set(members) == {self._me}:
            return
        others = ", ".join(f"{name} on {m.host}" for name, m in members.items() if name != self._me)
        raise CompactionBusy(
            f"another compaction of this service is at work ({others or 'it has taken the lock over'}): wait for its "
            f"end, then run this again"
        )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([])
        self._joined.set()

    def _stay(self) -> None:
        while not self._closing.is_set():
            self._consumer.poll(_POLL)
        self._consumer.close()


def delete_before(admin: Admin, topic: str, topic_id: str, partition: int, before: int) -> None:
    """Delete what lies before an offset, and wait for it. The topic's id is asked again (rule C2).

    :raises KafkaTrouble: it was not done, or the topic is another one than before.
    """
    fact = admin.describe([topic])[topic]
    if fact is None or fact.id != topic_id:
        raise KafkaTrouble(f"{topic} was deleted or created again meanwhile: nothing is deleted from it")
    place = TopicPartition(topic, partition, before)
    result(admin.client.delete_records([place], request_timeout=30.0)[place])
