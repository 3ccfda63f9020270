"""The end of a rolling upgrade: from here on a partition is written in the newest format, and older releases refuse."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from statehold.admin.commands import Commander
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import NoMark, TopicMissing, UpgradeUnfinished
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import StableReader
from statehold.messages.command import FINISH_UPGRADE
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import Mark
from statehold.snapshot.restore.last_commit_record import last_mark


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """How a partition is written, and by whom last."""

    partition: int
    format: int
    #: number of the last mark, and the release and process that wrote it
    transaction: int
    release: str
    instance: str
    host: str
    #: the newest format that this process reads
    reads: int

    @property
    def writer(self) -> str:
        return f"statehold {self.release} ({self.instance}{f' on {self.host}' if self.host else ''})"


class Upgrade:
    """For tools; used by one thread. Blocks; raises KafkaTrouble when the cluster does not answer."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group)

    def look(self) -> list[Written]:
        """Every partition by its last mark.

        :raises TopicMissing, NoMark: there is no such service. :raises NewerFormat: a newer release has been here.
        """
        topic = self._names.changelog
        facts = self._admin.describe([topic])[topic]
        if facts is None:
            raise TopicMissing(f"missing on the cluster: {topic}; is the service called {self._names.service!r}?")
        return [_written(partition, self._mark(partition)) for partition in range(facts.partitions)]

    def finish(self, timeout: float, *, control: bool = False) -> list[Written]:
        """Ask the owner of each partition for the newest format, and wait for the marks; every partition afterwards.

        With `control` they are asked through the control topic, not the input.

        :raises UpgradeUnfinished: nothing was asked for, because a partition was last written by a release that would
            be shut out; or not every owner has done it in time. It may be asked for again at any time.
        """
        before = self.look()
        if all(each.format == frame.NEWEST for each in before):
            return before
        older = [each for each in before if each.reads < frame.NEWEST]
        if older:
            raise UpgradeUnfinished(
                f"{_listed(older)}, which does not read format {frame.NEWEST}. Nothing was changed. Replace those "
                f"processes first: a newer release writes a mark of its own once it is live"
            )
        until = time.monotonic() + timeout
        commander = Commander(self._settings, self._names)
        sent = commander.send(
            FINISH_UPGRADE, [each.partition for each in before if each.format < frame.NEWEST], control=control
        )
        commander.await_answers(sent, max(0.0, until - time.monotonic()), full=False)
        after = self.look()
        left = [each for each in after if each.format < frame.NEWEST]
        if left:
            raise UpgradeUnfinished(
                f"not within {timeout:.0f} s: {_listed(left)} in format {left[0].format}. If the service is stopped or "
                f"behind, it follows in its turn; if an older release has taken a partition back, replace it. "
                f"`statehold finish-upgrade` again tells"
            )
        return after

    def _mark(self, partition: int) -> Mark:
        reader = StableReader(self._settings, self._names.group, self._admin)
        try:
            mark = last_mark(reader, self._names.changelog, partition)
        finally:
            reader.close()
        if mark is None:
            raise NoMark("it holds no mark: `statehold topics create` begins it", topic=self._names.changelog)
        return mark


def _written(partition: int, mark: Mark) -> Written:
    writer = mark.writer
    return Written(
        partition=partition,
        format=mark.format,
        transaction=mark.n,
        release=writer.version or "of unknown release",
        instance=writer.instance,
        host=writer.host,
        reads=max(writer.reads, mark.format),
    )


def _listed(partitions: Sequence[Written]) -> str:
    shown = [f"{each.partition} by {each.writer}" for each in partitions[:3]]
    more = f" and {len(partitions) - 3} more" if len(partitions) > 3 else ""
    return f"last written: partition {', partition '.join(shown)}{more}"
