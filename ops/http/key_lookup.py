"""Finds one key of the committed state on any instance, for the HTTP routes and for embedding programs."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from statehold.bound.inputs import RecordKeys, input_names, key_types
from statehold.bound.topics import class_of
from statehold.client.owner_reads import PartitionState
from statehold.common.partitioner import murmur2
from statehold.ports import GroupMember
from statehold.service import Service
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.replicas.queries import Committed, Tables

#: the phase of a partition here that has not committed a record yet, or is paused before it
BEHIND: Final = "behind"
PAUSED: Final = "paused"
#: seconds for the answer of the group
_WAIT: Final = 3.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class Found(NamedTuple):
    """A value as of transaction `transaction`, which covers the input below `position`.

    `age` is absent if this instance owns the partition. A standby replica is at most `age` seconds behind the commits.
    """

    value: Any
    partition: int
    transaction: int
    position: int
    age: float | None = None


class NotFound(LookupError):
    """The key's partition is here and does not have the key; without `partition` all partitions are here.

    `age` as in `Found`, the highest of the searched partitions.
    """

    def __init__(self, why: str, partition: int | None, age: float | None = None) -> None:
        super().__init__(why)
        self.partition, self.age = partition, age


class NotLive(LookupError):
    """The key's partition is restoring here, or has no owner at the moment; retry soon, unless it is `stopped`.

    `stopped`: it has failed, or is paused before the record that was asked for, until an operator lets it continue.
    """

    def __init__(self, why: str, partition: int, phase: str, *, stopped: bool = False) -> None:
        super().__init__(why)
        self.partition, self.phase, self.stopped = partition, phase, stopped


class Elsewhere(LookupError):
    """Another instance owns the partition; `url` is that of its ops server, if it can be reached.

    `holder` describes its owner. Without both, the partition of the key is unknown; `others` are then all the
    instances that may have it.
    """

    def __init__(self, why: str, partition: int | None, holder: dict[str, Any] | None, others: list[Any]) -> None:
        super().__init__(why)
        self.partition, self.holder, self.others = partition, holder, others
        self.url: str | None = holder["url"] if holder is not None else None


class Whereabouts:
    """Caches the group's answer for 5 s. During a rebalance a partition may have no owner."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def holder(self, partition: int) -> GroupMember | None:
        return next((member for member in self._members() if partition in member.partitions), None)

    def others(self) -> list[GroupMember]:
        return [member for member in self._members() if not self._is_us(member)]

    def shown(self, member: GroupMember) -> dict[str, Any]:
        """Describe a member; without a `url` that this machine can reach, `url` is null."""
        url = member.url
        if urlsplit(url).hostname in _LOOPBACK and not self._same_machine(member):
            url = ""
        return {"instance": member.client_id, "host": member.host, "url": url or None, "partitions": member.partitions}

    def _same_machine(self, member: GroupMember) -> bool:
        return any(self._is_us(us) and us.host == member.host for us in self._members())

    def _is_us(self, member: GroupMember) -> bool:
        return bool(self._service.url) and member.url == self._service.url

    def _members(self) -> tuple[GroupMember, ...]:
        overview = self._service.overview
        return overview.members.look(_WAIT) if overview is not None else ()


class Finder:
    """Any thread may use it. A lookup elsewhere waits up to 3 s for the group's answer, which is cached for 5 s."""

    def __init__(self, service: Service) -> None:
        self._service, self._whereabouts = service, Whereabouts(service)

    def find(
        self, table: str, key: Any, partition: int | None = None, oldest: float | None = None, after: int = -1
    ) -> Found:
        """Find the committed value of `key` in every partition here, or in `partition` only.

        `oldest`: search standby replicas, too, that are at most this many seconds old. `after`: an offset of the input
        in `partition`, whose record the state must include; NotLive with the phase "behind" if it does not yet.

        :raises LookupError: NotFound, NotLive or Elsewhere. :raises Busy: commits came too fast to read between them.
        """
        overview = self._service.overview
        states = overview.committed(oldest) if overview is not None else {}
        ages: list[float] = []
        for number, committed in states.items():
            if partition is not None and number != partition:
                continue
            if (age := committed.age) is not None:
                ages.append(age)
            data, commit_record = committed.read(partial(_stored, table, key))
            self._require_reached(number, commit_record, after, age)
            if data is not None:
                value = committed.tables[table].decoded(key, data)
                return Found(value, number, commit_record.n, commit_record.position(self._service.names.input), age)
        home = self._home(key) if partition is None else partition
        raise self._why_not(table, key, home, set(states), max(ages, default=None))

    def require(self, partition: int, after: int, committed: Committed | None) -> None:
        """Check that a partition is here and has committed the record at the offset `after` of the input.

        :raises LookupError: NotLive or Elsewhere. :raises Busy: commits came too fast to read between them.
        """
        if committed is None:
            raise self._not_here(partition)
        _, commit_record = committed.read(lambda _: None)
        self._require_reached(partition, commit_record, after, committed.age)

    def require_running(self, partition: int) -> None:
        """:raises NotLive: the partition is here and has failed."""
        state = self._state(partition)
        if state is not None and state.failed:
            raise self._not_here(partition)

    def _require_reached(self, number: int, commit_record: CommitRecord, after: int, age: float | None) -> None:
        """:raises NotLive: the partition, or its standby replica, which has an `age`, is not at this record yet."""
        if (reached := commit_record.positions.get(self._service.names.input, 0)) > after:
            return
        text = f"partition {number} has committed {reached}, and not yet {after}"
        if commit_record.paused is not None and age is None:  # a replica may be older than the end of the pause
            why = PartitionState(partition=number, paused=commit_record.paused.issuer).why
            raise NotLive(f"{text}: it {why}", number, PAUSED, stopped=True)
        raise NotLive(text, number, BEHIND)

    def _why_not(self, table: str, key: Any, home: int | None, here: set[int], age: float | None) -> LookupError:
        overview = self._service.overview
        if home in here or (overview is not None and here == set(range(overview.partitions))):
            return NotFound(f"table {table!r} has no key {key!r}", home, age)
        if home is None:
            others = [self._whereabouts.shown(member) for member in self._whereabouts.others()]
            return Elsewhere(f"key {key!r} is in no partition that is here", None, None, others)
        return self._not_here(home)

    def _not_here(self, home: int) -> LookupError:
        if (state := self._state(home)) is not None:
            if state.failed:
                return NotLive(f"partition {home} {state.why}", home, state.phase, stopped=True)
            return NotLive(f"partition {home} is here and {state.phase}", home, state.phase)
        holder = self._whereabouts.holder(home)
        if holder is None:
            return NotLive(f"partition {home} has no owner at the moment", home, "unassigned")
        return Elsewhere(f"partition {home} is held by {holder.client_id}", home, self._whereabouts.shown(holder), [])

    def _home(self, key: Any) -> int | None:
        """Return the partition of records with this key, if the table's keys are the records' keys."""
        overview = self._service.overview
        data = self._record_keys.of(key)
        return murmur2(data, overview.partitions) if data is not None and overview is not None else None

    @cached_property
    def _record_keys(self) -> RecordKeys:
        handler, names = self._service.handler, self._service.names
        return RecordKeys(input_names(class_of(handler), names), key_types(handler, names))

    def _state(self, number: int) -> PartitionState | None:
        """Return what is known of a partition that is assigned here."""
        found = (each for each in self._service.status()["partitions"] if each["partition"] == number)
        return next((msgspec.convert(each, PartitionState) for each in found), None)


def _stored(table: str, key: Any, tables: Tables) -> bytes | None:
    return tables[table].stored.get(key)
