"""Opens the topics of one service, read only, for commands that inspect it."""

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
from statehold.snapshot.inspect import compare, forecast, past
from statehold.snapshot.inspect.compare import Change
from statehold.snapshot.inspect.past import PastState, Point
from statehold.snapshot.inspect.survey import Survey, survey
from statehold.snapshot.inspect.verify import PartitionVerification, verify
from statehold.snapshot.restore.estimate import Workload
from statehold.snapshot.store.base import roots_of


class TopicView:
    """The topics of one service, as the brokers describe them when it is opened. Used by one thread."""

    def __init__(self, settings: Settings, names: Names, admin: Admin, facts: dict[str, TopicFacts]) -> None:
        self.settings, self.names, self.admin, self._facts = settings, names, admin, facts
        self.partitions = facts[names.input].partitions
        self.reader = CommittedReader(settings, names.group, admin)

    def look_again(self) -> None:
        """Describe the topics again. :raises StartError, TopicMissing, TopicMismatch:"""
        self._facts = require(self.admin, self.names, ())

    def hidden_from(self, topic: str, partition: int) -> int:
        """Return the offset from which an open transaction hides the log, or -1."""
        end = self.reader.end(topic, partition)
        stable = self.reader.bounds(topic, partition)[1]
        return stable if stable < end else -1

    def another_reader(self) -> CommittedReader:
        """Return a second reader, to read two topics in turns; the caller closes it."""
        return CommittedReader(self.settings, self.names.group, self.admin)

    def facts_of(self, topics: Sequence[str]) -> dict[str, TopicFacts | None]:
        """Describe other topics; None for a missing one."""
        return self.admin.describe(list(dict.fromkeys(topics))) if topics else {}

    def place(self, partition: int) -> Place:
        names = self.names
        ids = {topic: self._facts[topic].id for topic in (*names.inputs, names.changelog, names.snapshot)}
        return Place(names, partition, self.partitions, ids, roots=roots_of(self.settings))

    def state(self, partition: int, text: str) -> PastState:
        """Return the state at `latest`, an input position, `n:17`, `full:1234` or a time.

        :raises UsageError: the text names no point, or one that is not stored any more.
        :raises DigestMismatch, TornTransaction, DamagedIncrement, NoCommitRecord: as a restore.
        """
        return past.at(self.reader, self.place(partition), self.point(partition, text))

    def point(self, partition: int, text: str) -> Point:
        """Parse a point; a time becomes the position before the first record of that time or later in each input.

        :raises UsageError: it is neither.
        """
        try:
            return past.parse(text)
        except UsageError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                raise UsageError(
                    f"{text!r} is not a point: use latest, an input position such as 1200, a transaction such as n:17, "
                    f"a full snapshot by its offset such as full:1234, or a time such as 2026-11-21T17:30:00Z"
                ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        since = int(moment.timestamp() * 1000)
        return Point("position", sum(self.reader.offset_at(topic, partition, since) for topic in self.names.inputs))

    def history(self, partition: int, key: str, table: str | None) -> list[Change]:
        """Return every stored delta that wrote the key, oldest first."""
        return list(compare.history(self.reader, self.place(partition), compare.readings(key), table))

    def survey(self, partition: int, *, everything: bool = False) -> tuple[Survey, Workload]:
        """Return what the partition has on its topics, and the work of a restore."""
        place = self.place(partition)
        found = survey(self.reader, place, everything=everything)
        return found, forecast.workload(self.reader, place, found)

    def verify(self, partition: int, *, everything: bool = False) -> PartitionVerification:
        """Read everything stored and compare it; damage is reported, not raised."""
        return verify(self.reader, self.place(partition), everything=everything)

    def numbers(self, wanted: Sequence[int] | None) -> list[int]:
        """Return the wanted partitions, or all of them.

        :raises UsageError: one does not exist.
        """
        return [place.partition for place in self.places(wanted)]

    def places(self, wanted: Sequence[int] | None) -> list[Place]:
        """Return the wanted partitions, or all of them.

        :raises UsageError: one does not exist.
        """
        for each in wanted or ():
            if not 0 <= each < self.partitions:
                raise UsageError(f"{self.names.input} has partitions 0 to {self.partitions - 1}, not {each}")
        return [self.place(each) for each in (wanted or range(self.partitions))]


@contextmanager
def topic_view(settings: Settings, names: Names) -> Iterator[TopicView]:
    """:raises StartError, TopicMissing, TopicMismatch: the message names the next command."""
    admin = Admin(settings, names.group)
    with reaching(settings):
        facts = require(admin, names, ())
    view = TopicView(settings, names, admin, facts)
    try:
        yield view
    finally:
        view.reader.close()
