"""The lock of `statehold compact`, and deletions that wait for their result."""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final, Self

from confluent_kafka import Consumer, TopicPartition

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import CompactionBusy, KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import result
from statehold.kafka.admin.groups import describe_group
from statehold.kafka.common.client_log import quiet_logger
from statehold.kafka.common.closing import close_member

#: seconds after which a killed run has lost the lock
SESSION: Final = 10.0
#: seconds to join the group, because a killed run's session ends first
_JOIN: Final = 60.0
#: seconds of one poll: leaving waits for its end
_POLL: Final = 0.2
#: seconds for a deletion: every replica's leader must do it
_DELETE: Final = 30.0


class CompactionLock:
    """Holds the lock while it is the only member of group `<service>.compaction`: `with CompactionLock(...) as lock`.

    Entering raises CompactionBusy if another member is alive. It waits for a killed one, whose session ends after
    `SESSION` seconds. Two that start together may both see the other and leave; they never both stay.
    """

    def __init__(self, settings: Settings, names: Names, admin: Admin) -> None:
        self._group, self._topic, self._admin = f"{names.group}.compaction", names.snapshot, admin
        config: dict[str, Any] = dict(client.lock(settings, self._group, SESSION))
        # Members are compared by client id, because reading the member id holds the interpreter lock. librdkafka's own
        # thread may need that lock for a log line, which would be a deadlock.
        self._me = f"{settings.service.identity}-{uuid.uuid4().hex[:8]}"
        self._consumer = Consumer({**config, "client.id": self._me, "logger": quiet_logger("lock")})
        self._joined, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, name="compaction-lock", daemon=True)

    def __enter__(self) -> Self:
        # Assign nothing, so that nothing is fetched.
        self._consumer.subscribe([self._topic], on_assign=self._assigned)
        self._thread.start()
        try:
            self._await_joined()
            self.check()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(_JOIN)

    def _await_joined(self) -> None:
        if not self._joined.wait(_JOIN):
            raise KafkaTrouble(f"group {self._group!r} could not be joined within {_JOIN:.0f} s")

    def check(self) -> None:
        """Ask the group's coordinator. :raises CompactionBusy: this run is not in the group, or not alone."""
        found = describe_group(self._admin.client, self._group)
        members = {member.client_id: member for member in found.members}
        if set(members) == {self._me}:
            return
        others = ", ".join(f"{name} on {m.host}" for name, m in members.items() if name != self._me)
        raise CompactionBusy(
            f"another compaction of this service is running ({others or 'it has taken the lock over'}). "
            f"Next: wait for its end, then run the command again"
        )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([])
        self._joined.set()

    def _stay(self) -> None:
        while not self._closing.is_set():
            self._consumer.poll(_POLL)
        close_member(self._consumer)


def delete_before(admin: Admin, topic: str, topic_id: str, partition: int, before: int) -> None:
    """Delete the records before an offset and wait for the result. Check the topic's id first (rule C2).

    :raises KafkaTrouble: the deletion failed, or the topic was created again.
    """
    fact = admin.describe([topic])[topic]
    if fact is None or fact.id != topic_id:
        raise KafkaTrouble(f"{topic} was deleted or created again meanwhile. Nothing was deleted from it")
    place = TopicPartition(topic, partition, before)
    result(admin.client.delete_records([place], request_timeout=_DELETE)[place])
