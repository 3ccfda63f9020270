"""Ends a rolling upgrade: partitions are written in the newest format from now on, which older releases reject."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import msgspec

from statehold.admin.commands import Commander
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import TopicMissing, UpgradeUnfinished
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.messages.command import FINISH_UPGRADE
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import require_commit_record


class PartitionFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format of a partition, and the process that wrote its last commit record."""

    partition: int
    format: int
    #: Transaction of the last commit record, and the release and process that wrote it.
    transaction: int
    release: str
    instance: str
    host: str
    #: Newest format that this process reads.
    reads: int

    @property
    def writer(self) -> str:
        return f"statehold {self.release} ({self.instance}{f' on {self.host}' if self.host else ''})"


class Upgrade:
    """Shows and raises the format of a service's partitions, for tools. Single-threaded; every method blocks.

    Every method raises KafkaTrouble when the cluster does not answer.
    """

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group)

    def look(self) -> list[PartitionFormat]:
        """Return the format of every partition, from its last commit record.

        :raises TopicMissing, NoCommitRecord: the service does not exist.
        :raises NewerFormat: a newer release wrote a record.
        """
        topic = self._names.changelog
        facts = self._admin.describe([topic])[topic]
        if facts is None:
            raise TopicMissing(
                f"{topic}: read the format: the topic does not exist. Next: check the service name "
                f"{self._names.service!r}"
            )
        with closing(CommittedReader(self._settings, self._names.group, self._admin)) as reader:
            return [
                _written(partition, require_commit_record(reader, topic, partition, "read the format"))
                for partition in range(facts.partitions)
            ]

    def finish(self, timeout: float, *, control: bool = False) -> list[PartitionFormat]:
        """Command each partition's owner to write the newest format, and wait. Return every partition's format.

        With `control` the command goes to the control topic instead of the input. You may run it again at any time.

        :raises UpgradeUnfinished: a partition's last writer cannot read the newest format, and nothing was sent; or
            an owner did not acknowledge within `timeout` seconds.
        """
        before = self.look()
        if all(each.format == frame.NEWEST for each in before):
            return before
        older = [each for each in before if each.reads < frame.NEWEST]
        if older:
            raise UpgradeUnfinished(
                f"{_listed(older)}, which does not read format {frame.NEWEST}. Nothing was changed. Next: replace "
                f"those processes by the newer release, which writes a commit record as soon as it is live; then run "
                f"`statehold finish-upgrade` again"
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
                f"not finished within {timeout:.0f} s: {_listed(left)} in format {left[0].format}. A stopped or "
                f"lagging service finishes when it reads the command. Next: replace any process of an older release, "
                f"then run `statehold finish-upgrade` again"
            )
        return after


def _written(partition: int, commit_record: CommitRecord) -> PartitionFormat:
    writer = commit_record.writer
    return PartitionFormat(
        partition=partition,
        format=commit_record.format,
        transaction=commit_record.n,
        release=writer.version or "of unknown release",
        instance=writer.instance,
        host=writer.host,
        reads=max(writer.reads, commit_record.format),
    )


def _listed(partitions: Sequence[PartitionFormat]) -> str:
    shown = [f"{each.partition} by {each.writer}" for each in partitions[:3]]
    more = f" and {len(partitions) - 3} more" if len(partitions) > 3 else ""
    return f"last written: partition {', partition '.join(shown)}{more}"
