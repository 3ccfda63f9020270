"""The manager's state of each assigned partition. Manager thread only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from statehold.api.record import Message
from statehold.common.threads import ThreadEvent
from statehold.ports import WorkerReport


class Worker(Protocol):
    """The manager's interface to one partition's thread. No method blocks."""

    @property
    def closed(self) -> ThreadEvent: ...

    @property
    def depth(self) -> int: ...

    @property
    def stuck(self) -> bool: ...

    def attend(self, now: float) -> None: ...

    def start(self, since: float) -> None: ...

    def offer(self, stream: int, previous: int, messages: Sequence[Message]) -> None: ...

    def revoke(self, deadline: float, *, final: bool) -> None: ...

    def lose(self) -> None: ...

    def fail(self, cause: BaseException) -> None: ...

    def retry(self) -> None: ...

    def status(self) -> msgspec.Struct: ...


@dataclass(slots=True)
class Track:
    """One assignment of one partition. The manager hands records over only after `go_live`."""

    worker: Worker
    live: bool = False
    #: True while flow control has paused the partition.
    paused: bool = False
    stream: int = -1
    #: Offset of the next record to hand over.
    next: int = -1
    #: Id of the input whose offset that is.
    topic_id: str = ""
    #: True if the worker reads its inputs itself, because there are several: the consumer delivers none of them.
    reads_itself: bool = False

    def go_live(self, report: WorkerReport) -> None:
        self.live, self.paused, self.next, self.stream = True, False, report.position, report.stream
        self.topic_id, self.reads_itself = report.topic_id, report.reads_itself

    @property
    def delivers(self) -> bool:
        """True if the consumer's records of this partition are handed over, unless flow control has paused it."""
        return self.live and not self.reads_itself

    def reads_another(self, topic_id: str) -> bool:
        return self.live and "" not in (topic_id, self.topic_id) and topic_id != self.topic_id

    def hand_over(self, messages: Sequence[Message]) -> None:
        previous, self.next = self.next, (messages[-1].offset() or 0) + 1
        self.worker.offer(self.stream, previous, messages)


@dataclass(slots=True)
class Assignment:
    """The partitions assigned to this member, and the paused ones among them (rule A2)."""

    tracks: dict[int, Track] = field(default_factory=dict)
    #: those whose queue may hold records: a look at all partitions in each turn would cost more than the turn
    _fed: dict[int, Track] = field(default_factory=dict)

    def add(self, partition: int, track: Track) -> Track:
        self.tracks[partition] = track
        return track

    def remove(self, partitions: Sequence[int]) -> list[Worker]:
        """Remove `partitions` and return their workers; skip those not assigned here."""
        return [self.tracks.pop(partition).worker for partition in partitions if partition in self.tracks]

    def live(self, partition: int) -> Track | None:
        track = self.tracks.get(partition)
        return track if track is not None and track.live else None

    def of_another_topic(self, topic_id: str) -> dict[int, Track]:
        """Return the live partitions whose offsets are of another input than this one."""
        return {partition: track for partition, track in self.tracks.items() if track.reads_another(topic_id)}

    def hand_over(self, partition: int, messages: Sequence[Message]) -> None:
        """Hand records to the partition's worker; drop them if the partition is not live."""
        if (track := self.live(partition)) is not None:
            track.hand_over(messages)
            self._fed[partition] = track

    def depths(self) -> dict[int, int]:
        """Return the lengths of the queues that hold records, and of those that flow control has paused."""
        found = {}
        for partition, track in list(self._fed.items()):
            depth = track.worker.depth
            if self.tracks.get(partition) is track and track.delivers and (depth or track.paused):
                found[partition] = depth
            else:
                del self._fed[partition]
        return found

    def paused(self) -> set[int]:
        """Return the partitions that flow control has paused; only a queue with records is."""
        return {partition for partition, track in self._fed.items() if track.delivers and track.paused}

    def has_empty(self, depths: Mapping[int, int]) -> bool:
        """Return True if a partition delivers and its queue holds no records."""
        return any(track.delivers and partition not in depths for partition, track in self.tracks.items())

    def delivering(self) -> dict[int, int]:
        """Return the next offset of each live partition that is not paused."""
        return {p: track.next for p, track in self.tracks.items() if track.delivers and not track.paused}

    def not_delivering(self) -> list[int]:
        """Return every partition that must not deliver now: not live yet, failed, paused, or read by its worker."""
        return [partition for partition, track in self.tracks.items() if not track.delivers or track.paused]

    def is_settled(self) -> bool:
        """Return True if every partition is live."""
        return all(track.live for track in self.tracks.values())

    def workers(self) -> Iterator[Worker]:
        return (track.worker for track in self.tracks.values())
