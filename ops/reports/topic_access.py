"""Opens what a command looks at: the topics of one service, read only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from statehold.admin.topics import reaching, require
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import Point
from statehold.snapshot.store.base import roots_of


class Looking:
    """The topics of one service as the brokers tell them now. Used by one thread."""

    def __init__(self, settings: Settings, names: Names, admin: Admin, facts: dict[str, TopicFacts]) -> None:
        self.settings, self.names, self.admin, self._facts = settings, names, admin, facts
        self.partitions = facts[names.input].partitions
        self.reader = CommittedReader(settings, names.group, admin)

    def hidden_from(self, topic: str, partition: int) -> int:
        """The offset from which on an open transaction hides the log; -1 when none does."""
        end = self.reader.end(topic, partition)
        stable = self.reader.bounds(topic, partition)[1]
        return stable if stable < end else -1

    def another_reader(self) -> CommittedReader:
        """For reading two topics in turns; whoever asks closes it."""
        return CommittedReader(self.settings, self.names.group, self.admin)

    def facts_of(self, topics: Sequence[str]) -> dict[str, TopicFacts | None]:
        """Other topics, None where one is missing."""
        return self.admin.describe(list(dict.fromkeys(topics))) if topics else {}

    def place(self, partition: int) -> Place:
        names = self.names
        ids = {topic: self._facts[topic].id for topic in (names.input, names.changelog, names.snapshot)}
        return Place(names, partition, self.partitions, ids, roots=roots_of(self.settings))

    def places(self, wanted: Sequence[int] | None) -> list[Place]:
        """All partitions, or those that are wanted.

        :raises UsageError: there is no such partition.
        """
        for each in wanted or ():
            if not 0 <= each < self.partitions:
                raise UsageError(f"{self.names.input} has partitions 0 to {self.partitions - 1}, not {each}")
        return [self.place(each) for each in (wanted or range(self.partitions))]


@contextmanager
def looking(settings: Settings, names: Names) -> Iterator[Looking]:
    """:raises StartError, TopicMissing, TopicMismatch: the message names the next command."""
    admin = Admin(settings, names.group)
    with reaching(settings):
        facts = require(admin, names, ())
    view = Looking(settings, names, admin, facts)
    try:
        yield view
    finally:
        view.reader.close()


def point_of(view: Looking, partition: int, text: str) -> Point:
    """A point as it was typed; a time becomes the position of the first record of that time or later.

    :raises UsageError: it is neither.
    """
    try:
        return past.parse(text)
    except UsageError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(
                f"{text!r} is no point: give latest, a position of the input such as 1200, a transaction such as n:17, "
                f"a full by its offset such as full:1234, or a time such as 2026-11-21T17:30:00Z"
            ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Point("position", view.reader.offset_at(view.names.input, partition, int(moment.timestamp() * 1000)))
