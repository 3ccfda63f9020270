"""Requests about groups and topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from statehold.errors import KafkaTrouble
from statehold.ports import Bounds, ConsumerGroup, Noted
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.cluster import NoSuchTopic

T = TypeVar("T")
#: seconds that each request waits for its answer
_ASK = 10.0
#: seconds for the answers of a group's coordinator that is asked for members
_GROUP_ASK = 3.0


class SimulatedTopicFacts(NamedTuple):
    """A topic as the brokers describe it; the same fields as the Kafka adapter's."""

    name: str
    id: str
    partitions: int
    replication: int = 1


class SimulatedAdmin:
    """`ports.Offsets` of one group, and the requests about topics."""

    def __init__(self, process: SimulatedProcess, group: str) -> None:
        self._process, self._kafka, self._group = process, process.kafka, group

    # ports.Offsets

    def committed(self, topic: str, partition: int) -> int | None:
        offsets, place = self._kafka.group_offsets(self._group), (topic, partition)

        def ask() -> int | None:
            # A stable offset: the coordinator has the client ask again while a transaction is open.
            if not self._process.wait(lambda: not offsets.unstable(place), self._kafka.clock() + _ASK):
                raise KafkaTrouble("UNSTABLE_OFFSET_COMMIT(88): an open transaction has an offset of the partition")
            found = offsets.committed.get(place)
            return found.offset if found is not None else None

        return self._ask("committed", ask, partition=partition)

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        committed = self._kafka.group_offsets(self._group).committed

        def ask() -> dict[int, Noted]:
            found = {p: committed[topic, p].metadata for p in range(partitions) if (topic, p) in committed}
            return {p: Noted.of(text) for p, text in found.items() if text}

        return self._ask("lineages", ask)

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        group = self._ask("is_member", self._describe, seconds=_GROUP_ASK, partition=partition)
        return any(member.id == member_id and partition in member.partitions for member in group.members)

    def ask_bounds(self, increment: str, full: str, partition: int) -> Callable[[float], Bounds | None]:
        kafka, process = self._kafka, self._process
        process.alive()
        answer: list[Bounds | KafkaTrouble] = []

        def arrive() -> None:
            fault = process.background_fault("ask_bounds", increment, partition)
            if fault.error is not None:
                answer.append(fault.error if isinstance(fault.error, KafkaTrouble) else KafkaTrouble(str(fault.error)))
            elif not fault.never:
                try:
                    answer.append(Bounds(kafka.log(increment, partition).high, kafka.log(full, partition).start))
                except NoSuchTopic as error:
                    answer.append(KafkaTrouble(str(error)))

        process.after(0.0, arrive)
        process.after(_ASK, lambda: answer.append(KafkaTrouble("_TIMED_OUT(-185)")))

        def take(wait: float) -> Bounds | None:
            process.wait(lambda: bool(answer), kafka.clock() + max(wait, 0.0))
            if answer and isinstance(answer[0], KafkaTrouble):
                raise answer[0]
            return answer[0] if answer and isinstance(answer[0], Bounds) else None

        return take

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._process.alive()
        if before < 0:  # because the brokers read -1 as the end of the log
            return

        def arrive() -> None:
            fault = self._process.background_fault("delete_records", topic, partition)
            if not fault.never or fault.after:
                try:
                    self._kafka.delete_records(topic, partition, before)
                except NoSuchTopic:
                    return

        self._process.after(0.0, arrive)

    # Topics and groups

    def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        """Create a topic. Return False if it exists already."""
        return self._ask("create", lambda: self._kafka.create_topic(name, partitions, settings), subject=name)

    def delete(self, name: str) -> None:
        self._ask("delete", lambda: self._kafka.delete_topic(name), subject=name)

    def grow(self, name: str, partitions: int) -> None:
        def grow() -> None:
            if partitions <= self._kafka.partitions(name):
                raise KafkaTrouble(f"INVALID_PARTITIONS(37): {name} has {self._kafka.partitions(name)} already")
            self._kafka.grow_topic(name, partitions)

        self._ask("grow", grow, subject=name)

    def describe(
        self, topics: list[str], cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, SimulatedTopicFacts | None]:
        """Describe topics; None for each that does not exist."""
        known = self._kafka.topics

        def ask() -> dict[str, SimulatedTopicFacts | None]:
            return {
                name: SimulatedTopicFacts(name, known[name].id, len(known[name].logs)) if name in known else None
                for name in topics
            }

        return self._ask("describe", ask)

    def settings(self, topic: str) -> dict[str, str]:
        return self._ask("settings", lambda: dict(self._kafka.topics[topic].settings), subject=topic)

    def describe_group(self, topic: str) -> ConsumerGroup:
        return self._ask("describe_group", self._describe, seconds=_GROUP_ASK)

    def positions(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """Return the committed offsets that exist, without waiting for open transactions."""
        committed = self._kafka.group_offsets(self._group).committed
        return self._ask(
            "positions", lambda: {p: committed[topic, p].offset for p in partitions if (topic, p) in committed}
        )

    def _describe(self) -> ConsumerGroup:
        group = self._kafka.group(self._group)
        return group.describe() if group is not None else ConsumerGroup("dead", ())

    def _ask(
        self, name: str, effect: Callable[[], T], *, seconds: float = _ASK, subject: str = "", partition: int = -1
    ) -> T:
        def asked() -> T:
            try:
                return effect()
            except NoSuchTopic as error:
                raise KafkaTrouble(str(error)) from error

        return self._process.request(
            name,
            asked,
            deadline=self._kafka.clock() + seconds,
            timed_out=lambda: KafkaTrouble(f"{name}: _TIMED_OUT(-185)"),
            subject=subject or self._group,
            partition=partition,
        )[0]
