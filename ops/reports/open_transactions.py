"""Finds open transactions that block readers, with owner, age and partitions, and ends one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from statehold.admin.topics import reaching
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.dev.errors import DevError
from statehold.errors import KafkaTrouble, ToolRefused, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.kafka.survey.open_transactions import fence_id, open_transaction_at
from statehold.kafka.tools.group_lock import holders
from statehold.ops.reports.transaction_tool import Owner, TransactionTool
from statehold.telemetry.log_events import Log

#: by default the brokers look for expired transactions every 10 s
_GRACE: Final = 15.0
#: a live service opens a new transaction well within that; timestamps of records may be those of old events
_RECHECK: Final = 1.0
_UNKNOWN: Final = "unknown: its coordinator has no such transaction"


class OpenPartition(msgspec.Struct, frozen=True):
    """One partition whose end is hidden from readers of committed records."""

    topic: str
    partition: int
    #: the transaction's first offset here
    offset: int
    #: high watermark
    end: int
    #: how many offsets are hidden
    records: int
    seconds: float
    #: transactional id; a guess where `known` is false
    owner: str
    known: bool
    producer_id: int | None = None
    #: age of the whole transaction, by its coordinator
    state: str = ""
    #: seconds after which the broker ends it; None if unknown
    timeout: float | None = None
    #: every partition that it blocks
    partitions: tuple[str, ...] = ()
    #: it has exceeded its timeout by far
    hanging: bool = False


class OpenTransactions:
    """Finds open transactions of some topics; `names` is the service. Used by one thread; everything blocks."""

    def __init__(self, settings: Settings, names: Names | None) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group if names else "statehold-txn")
        self._cluster = ClusterSurvey(settings, self._admin)
        self._tool: TransactionTool | None = None
        #: the reason why owners are guesses; '' if they are known
        self.blind = ""

    def held(self, topics: Sequence[str], older_than: float) -> list[OpenPartition]:
        """Return the partitions of these topics that an open transaction of at least that age blocks.

        :raises StartError: the brokers do not answer. :raises UsageError: the topic does not exist.
        """
        with reaching(self._settings):
            facts = self._cluster.topics(topics)
        found = []
        now = time.time()
        for topic, fact in facts.items():
            if fact is None:
                raise UsageError(f"there is no topic {topic!r}")
            for each in fact.partitions:
                opened = open_transaction_at(self._settings, self._cluster, topic, each.partition)
                if opened is not None and now - opened.since >= older_than:
                    found.append(opened)
        if found:
            time.sleep(_RECHECK)
            found = [each for each in found if self._cluster.ends(each.topic, each.partition)[1] == each.stable]
        ids = self._ids() if found else {}
        return [
            self._described(each.topic, each.partition, each.stable, each.end, now - each.since, ids) for each in found
        ]

    def end(self, topic: str, partition: int, *, foreign: bool) -> OpenPartition:
        """End the oldest open transaction of a partition.

        :raises ToolRefused: the group has members; or it is another application's, without `foreign`.
        :raises UsageError: no transaction is open there, or its owner is unknown.
        """
        found = next((each for each in self.held([topic], 0.0) if each.partition == partition), None)
        if found is None:
            raise UsageError(f"no transaction is open on {topic}[{partition}]")
        if not found.known:
            raise UsageError(
                f"its owner is unknown ({self.blind}). Next: for an id of the service run `statehold txn abort --id ID`"
            )
        own = self.own_partition(found.owner)
        if own is not None:
            self.fence(own)
        elif not foreign:
            raise ToolRefused(
                f"the transaction on {topic}[{partition}] belongs to {found.owner}, which is not of this service; "
                f"nothing was changed. --foreign ends it all the same: what it wrote is thrown away"
            )
        else:
            assert self._tool is not None
            if found.owner == _UNKNOWN:
                self._tool.abort(topic, partition, found.offset)
            else:
                fence_id(self._settings, found.owner)
        return found

    def fence(self, partition: int) -> None:
        """Abort the transaction of the service's id of this partition, and fence its producer.

        :raises ToolRefused: the group has members, and one of them would be fenced during its work.
        """
        assert self._names is not None
        present = holders(self._admin, self._names.group)
        if present:
            raise ToolRefused(
                f"group {self._names.group!r} has {len(present)} member(s): {', '.join(map(str, present))}. Its owner "
                f"ends the transaction itself, or who takes over; stop the service first. Nothing was changed"
            )
        producer = KafkaTransactions(
            self._settings, self._names, partition, Log(service=self._names.group), time.monotonic
        )
        producer.fence(lambda: False)
        producer.drop()

    def own_partition(self, transactional_id: str) -> int | None:
        """Return the service's partition that this id belongs to; None for another application's."""
        if self._names is None:
            return None
        prefix = self._names.transactional_id(0)[:-1]
        tail = transactional_id.removeprefix(prefix)
        return int(tail) if transactional_id.startswith(prefix) and tail.isdecimal() else None

    def _ids(self) -> dict[int, str]:
        try:
            self._tool = self._tool or TransactionTool(self._settings)
            return self._tool.ids()
        except (DevError, KafkaTrouble) as error:
            self.blind = str(error)
            return {}

    def _described(
        self, topic: str, partition: int, offset: int, end: int, seconds: float, ids: dict[int, str]
    ) -> OpenPartition:
        plain = OpenPartition(
            topic, partition, offset, end, end - offset, round(seconds, 3), self._guess(topic, partition), False
        )
        if self._tool is None or self.blind:
            return msgspec.structs.replace(plain, hanging=seconds > self._settings.restore.hanging_after)
        producers = self._tool.open_on(topic, partition)
        if not producers:
            return plain  # it ended this moment
        first = producers[0]
        name = ids.get(first.producer_id)
        owner = self._tool.owner(name) if name is not None else None
        if owner is None or owner.producer_id != first.producer_id or owner.state != "Ongoing":
            return msgspec.structs.replace(
                plain, owner=_UNKNOWN, known=True, producer_id=first.producer_id, offset=first.start, hanging=True
            )
        return _with_owner(plain, owner, first.start)

    def _guess(self, topic: str, partition: int) -> str:
        names = self._names
        if names is not None and topic in (names.changelog, names.snapshot):
            return names.transactional_id(partition)
        if names is not None and topic not in names.inputs:
            return f"{names.transactional_id(0)[:-1]}*, or a stranger's"
        return "a producer of that topic"


def _with_owner(plain: OpenPartition, owner: Owner, start: int) -> OpenPartition:
    # The coordinator knows its start; the record's timestamp may be that of an old event.
    seconds = time.time() - owner.since if owner.since else plain.seconds
    return msgspec.structs.replace(
        plain,
        offset=start,
        owner=owner.transactional_id,
        known=True,
        producer_id=owner.producer_id,
        state=owner.state,
        timeout=owner.timeout,
        partitions=owner.partitions,
        seconds=round(seconds, 3),
        hanging=seconds > owner.timeout + _GRACE,
    )
