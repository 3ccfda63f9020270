"""Reads the reference topics of a service into this process: one thread, one copy, no group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from statehold.api.record import Message
from statehold.bound.reference import Change, ReferenceView, Rows, SharedRows, Version, put
from statehold.common.threads import SYSTEM, Threads
from statehold.errors import RestoreTimeout, StateholdError, class_and_text
from statehold.ports import Cancelled, Clock, FollowingReader, OutOfRange, Reader
from statehold.snapshot.restore.throttled_reader import ThrottledReader
from statehold.telemetry.log_events import Log
from statehold.worker.replicas.reader_lease import OwnReader

#: seconds between two looks at the ends of the topics, and after one that failed: the next has a new client
_ROUND: Final = 0.2
_AGAIN: Final = 2.0
#: records in one step, which is how long a partition waits for a new version
_STEP: Final = 500
_REST: Final = 1.0
_GLANCE: Final = 0.05
#: seconds between two warnings
_COMPLAIN: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The dependencies of `References`."""

    #: the declarations of the handler
    declared: tuple[ReferenceView[Any, Any], ...]
    #: the number of partitions of each topic
    partitions: Mapping[str, int]
    #: a reader whose calls end with Cancelled once the argument returns True
    reader: Callable[[Callable[[], bool]], FollowingReader]
    #: the longest wait of a takeover for rows, in seconds
    deadline: float
    log: Log
    clock: Clock
    threads: Threads = SYSTEM


class References:
    """Keeps the reference data up to date: a `context.SharedReferences`. `run` is the thread's body."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.shared = {topic: SharedRows(count) for topic, count in sources.partitions.items()}
        self._declared = {reference.topic: reference for reference in sources.declared}
        #: topic -> monotonic time at which all that had committed was read
        self._fresh: dict[str, float] = {}
        self._warned = float("-inf")
        self._ending = sources.threads.event()
        self._reader = OwnReader(partial(sources.reader, self._ending.is_set))

    def start(self) -> None:
        self._sources.threads.thread(self.run, "reference").start()

    def close(self) -> None:
        """Stop the thread soon, without waiting for it."""
        self._ending.set()

    def renew(self) -> None:
        """Continue with a new client, because the login has changed."""
        self._reader.renew()

    def status(self) -> list[dict[str, Any]]:
        """Describe each topic: its rows, its version, and its greatest age in seconds."""
        now = self._sources.clock()
        return [
            {
                "topic": topic,
                "rows": len(shared.rows),
                "version": list(shared.version),
                "age": round(max(0.0, now - self._fresh[topic]), 3) if topic in self._fresh else None,
            }
            for topic, shared in self.shared.items()
        ]

    def await_version(self, wanted: Mapping[str, Version], partition: int, cancelled: Callable[[], bool]) -> None:
        until = self._sources.clock() + self._sources.deadline
        while missing := [topic for topic in self.shared if not self._has(topic, wanted.get(topic, ()))]:
            if cancelled():
                raise Cancelled
            if self._sources.clock() >= until:
                topic = missing[0]
                raise RestoreTimeout(
                    f"read the reference topic {topic} within restore.deadline: it is read up to offsets "
                    f"{self.shared[topic].version}, the last commit record needs {wanted.get(topic, 'none')}. "
                    f"statehold retries. Next: check that the topic has all its records; a topic that was created "
                    f"again has other offsets",
                    topic=topic,
                    partition=partition,
                )
            self._ending.wait(_GLANCE)

    def _has(self, topic: str, wanted: Version) -> bool:
        version = self.shared[topic].version
        return topic in self._fresh and all(map(int.__ge__, version, wanted)) and len(wanted) <= len(version)

    # The thread

    def run(self) -> None:
        """Read until `close`. While Kafka is down the rows stay as they are."""
        while not self._ending.is_set():
            self._ending.wait(_ROUND if self._look() else _AGAIN)
        self._reader.drop()

    def _look(self) -> bool:
        try:
            self.turn()
        except Cancelled:
            return False
        except (StateholdError, OutOfRange) as error:
            self._warn(str(error))
        except Exception as error:
            self._sources.log.error("thread_died", thread="reference", cause=class_and_text(error), exc_info=True)
        else:
            return True
        self._reader.drop()
        return False

    def turn(self) -> None:
        """Read all committed records. Raises as the reader does."""
        reader = self._reader.get()
        for topic, shared in self.shared.items():
            asked = self._sources.clock()
            for partition, end in reader.ends(topic, range(len(shared.version))).items():
                self._follow(reader, topic, shared, partition, end)
            self._fresh[topic] = asked

    def _follow(self, reader: Reader, topic: str, shared: SharedRows, partition: int, end: int) -> None:
        position = shared.version[partition]
        if position == end:
            return
        start = reader.bounds(topic, partition)[0]
        if end < position:
            raise OutOfRange(
                f"{topic}[{partition}] ends at {end}, and was read up to {position}: was it created again?"
            )
        slices = ThrottledReader(reader, self._ending, self._sources.threads.processor_time, rest=_REST, records=_STEP)
        for batch in slices.read(topic, partition, max(position, start), end):
            shared.advance(
                [change for message in batch if (change := self._change(topic, message)) is not None],
                _moved(shared.version, partition, (batch[-1].offset() or 0) + 1),
            )
        shared.advance((), _moved(shared.version, partition, end))

    def _change(self, topic: str, message: Message) -> Change | None:
        """Return the change; None if the key has the wrong type, because no handler can look such a row up."""
        change = change_of(self._declared[topic], message)
        if change is None:
            self._warn(f"{topic}[{message.partition()}]@{message.offset()} has no key of the declared type")
        return change

    def _warn(self, cause: str) -> None:
        now = self._sources.clock()
        if now - self._warned >= _COMPLAIN:
            self._warned = now
            self._sources.log.warning("reference_trouble", cause=cause)


def history(reader: Reader, reference: ReferenceView[Any, Any], version: Version) -> Rows:
    """Return the rows of that version, as far as compaction has kept them (docs/how-to/write/reference-data.md).

    :raises OutOfRange: records were deleted.
    """
    rows: Rows = {}
    for partition, end in enumerate(version):
        start = reader.bounds(reference.topic, partition)[0]
        for batch in reader.read(reference.topic, partition, start, end) if start < end else ():
            put(rows, [change for message in batch if (change := change_of(reference, message)) is not None])
    return rows


def change_of(reference: ReferenceView[Any, Any], message: Message) -> Change | None:
    key = message.key()
    try:
        return None if key is None else (reference.decode_key(key), message.value())
    except ValueError:
        return None


def _moved(version: Version, partition: int, offset: int) -> Version:
    return (*version[:partition], offset, *version[partition + 1 :])
