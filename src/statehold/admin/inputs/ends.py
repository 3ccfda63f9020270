"""Looks at the topics of a change: where added inputs start, and what inputs that end still hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from statehold.admin.inputs.report import InputResult
from statehold.admin.inputs.requested import InputRequest, StartPosition, start_in
from statehold.admin.state.stopped_service import StoppedService
from statehold.errors import ToolRefused, TopicMissing, UsageError
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.snapshot.format.records import CommitRecord

#: limit of the count of unread records, so that a dry run does not read a whole topic
COUNTED: Final = 1000


class InputEnds:
    """The inputs of one change. Every method blocks, and raises KafkaTrouble when the cluster does not answer."""

    def __init__(
        self, stopped: StoppedService, request: InputRequest, inputs: Iterable[str], partitions: int, quiet: float
    ) -> None:
        """`inputs`: the state's. :raises TopicMissing, ToolRefused: an added topic does not fit."""
        self._stopped, self._request, self._partitions, self._quiet = stopped, request, partitions, quiet
        self._topics, self._reader = TopicAdmin(stopped.admin), stopped.reader()
        self._inputs = tuple(inputs)
        wanted = [*self._inputs, *request.added, *request.renamed.values()]
        self.facts: dict[str, TopicFacts | None] = stopped.admin.describe(list(dict.fromkeys(wanted)))
        self._require_topics()
        self._since = time.monotonic()
        self._watched = self._ends()

    def _require_topics(self) -> None:
        for topic, fact in self.facts.items():
            if topic in self._request.removed:
                continue  # it may be gone, or be another topic now
            if fact is None:
                raise TopicMissing(
                    f"{topic}: change the inputs: the topic does not exist. Nothing was changed. Next: create it with "
                    f"{self._partitions} partitions, then run the command again"
                )
            if fact.partitions != self._partitions:
                raise ToolRefused(
                    f"{topic} has {fact.partitions} partitions, the state has {self._partitions}: one partition of a "
                    f"service reads the same partition of each input. Nothing was changed. Next: give it "
                    f"{self._partitions} partitions, or change the service's with `statehold state repartition` first"
                )

    def start(self, topic: str, partition: int) -> int:
        """Return the first offset that the service will read from an added input.

        :raises ToolRefused: the topic does not hold it. :raises UsageError: the option does not name this partition.
        """
        wanted = start_in(self._request.added[topic], topic, partition, self._partitions)
        low, end = self._stopped.bounds(topic, partition)
        found = self._offset(topic, partition, wanted, low, end)
        if not low <= found <= end:
            raise ToolRefused(
                f"{topic}[{partition}] holds offsets {low} to {end}, not {found}. Nothing was changed. Next: name a "
                f"position that it holds with --add {topic}=beginning|end|TIME"
            )
        return found

    def _offset(self, topic: str, partition: int, wanted: StartPosition, low: int, end: int) -> int:
        if wanted.kind == "time":
            offset = self._topics.offset(topic, partition, wanted.number)
            return offset if offset >= 0 else end
        return {"beginning": low, "end": end}.get(wanted.kind, wanted.number)

    def start_of_renamed(self, topic: str, partition: int) -> int:
        """Return the first offset of the topic that replaces an input.

        :raises ToolRefused: retention has deleted records of it, which the service has not processed.
        """
        low, _ = self._stopped.bounds(topic, partition)
        if low > 0:
            raise ToolRefused(
                f"{topic}[{partition}] begins at {low}: retention has deleted unprocessed records. Nothing was "
                f"changed. Next: if they may be lost, use --remove for the former topic and --add {topic}=beginning"
            )
        return 0

    def removed(self, topic: str, partition: int, commit_record: CommitRecord) -> InputResult:
        """Return what an input that ends still holds.

        :raises ToolRefused: a record of it is not processed yet, and --discard does not accept that.
        """
        position = commit_record.positions[topic]
        found = InputResult(topic=topic, what="removed", old_position=position)
        discard = self._request.discard and topic in self._request.removed
        fact, known = self.facts[topic], commit_record.topic_ids.get(topic, "")
        if fact is None or known not in ("", fact.id):
            if not discard:
                what = "does not exist any more" if fact is None else "was deleted and created again"
                raise ToolRefused(
                    f"{topic}[{partition}]@{position}: the topic {what}, so its unread records are unknown. Nothing "
                    f"was changed. Next: --remove {topic} with --discard accepts that they are never processed"
                )
            return found
        low, end = self._stopped.bounds(topic, partition)
        found.gone = max(0, low - position)
        found.unread, found.more = self._count(topic, partition, max(low, position), end)
        if (found.unread or found.gone) and not discard:
            raise ToolRefused(self._unprocessed(found, partition))
        return found

    def _unprocessed(self, found: InputResult, partition: int) -> str:
        count = f"{'at least ' if found.more else ''}{found.unread} records"
        text = f"{found.topic}[{partition}]@{found.old_position}: {count} are not processed yet"
        if found.gone:
            text += f", and retention has deleted {found.gone} offsets before them"
        ways = "stop its producers, let the service with the former code process the rest, and stop it"
        if found.topic in self._request.removed:
            ways += "; or add --discard, and they are never processed"
        return f"{text}. Nothing was changed. Next: {ways}"

    def behind(self, topic: str, partition: int, position: int) -> tuple[int, bool]:
        """Return how many records wait behind a position, and whether there are more (see `COUNTED`)."""
        low, end = self._stopped.bounds(topic, partition)
        return self._count(topic, partition, max(low, position), end)

    def older(self, topic: str, partition: int, position: int, now: int) -> int:
        """Return how many offsets behind a position are older than the partition's time, in milliseconds."""
        low, end = self._stopped.bounds(topic, partition)
        newer = self._topics.offset(topic, partition, now)
        return max(0, (newer if newer >= 0 else end) - max(low, position))

    def _count(self, topic: str, partition: int, start: int, end: int) -> tuple[int, bool]:
        """Count records one by one, because offsets also count transaction markers."""
        records = chain.from_iterable(self._reader.read(topic, partition, start, end))
        count = sum(1 for _ in islice(records, COUNTED))
        return count, count == COUNTED

    def close(self) -> None:
        self._reader.close()

    def require_quiet(self) -> None:
        """Wait until `quiet` seconds have passed. :raises ToolRefused: an input that ends has grown meanwhile."""
        if not self._watched:
            return
        time.sleep(max(0.0, self._since + self._quiet - time.monotonic()))
        for (topic, partition), end in self._ends().items():
            before = self._watched[topic, partition]
            if end > before:
                ways = "stop its producers, let the service process the rest, and run the command again"
                if topic in self._request.removed:
                    ways += "; or add --discard"
                raise ToolRefused(
                    f"{topic}[{partition}]: a producer keeps writing, from {before} to {end}. The state was not "
                    f"replaced. Next: {ways}"
                )

    def _ends(self) -> dict[tuple[str, int], int]:
        """Return the ends of the inputs whose records must all be processed."""
        closed = self._request.renamed if self._request.discard else self._request.closed
        there = [fact for topic in closed if (fact := self.facts.get(topic)) is not None]
        return {
            (fact.name, partition): self._stopped.bounds(fact.name, partition)[1]
            for fact in there
            for partition in range(min(fact.partitions, self._partitions))
        }


def require_named(request: InputRequest) -> None:
    """:raises UsageError: --discard without --remove."""
    if request.discard and not request.removed:
        raise UsageError("--discard needs --remove, which names the inputs")
