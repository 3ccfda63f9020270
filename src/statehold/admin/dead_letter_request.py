"""Makes a service dead-letter the record at which a partition has failed, without a release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec

from statehold.admin.commands import Commander, SentCommand
from statehold.admin.dead_letters import DeadLetters
from statehold.api.record import Message
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.messages import command
from statehold.messages.dead_letter import ADD, AddRequest, DeadLetter
from statehold.snapshot.restore.discovery import last_commit_record


class FailedRecord(NamedTuple):
    """The record at which a partition continues, and the partition's position, which may be lower."""

    message: Message
    position: int


class RequestedDeadLetter:
    """Of one record. Single-threaded; every method blocks, and raises KafkaTrouble when the cluster does not answer."""

    def __init__(self, settings: Settings, names: Names, topic: str, partition: int, offset: int) -> None:
        """`topic`: the record's input."""
        self._settings, self._names = settings, names
        self._topic, self._partition, self._offset = topic, partition, offset
        self._admin = Admin(settings, names.group)
        #: of the command
        self.id = command.new_id()
        #: end of the partition's dead letters before the command; older ones may be of another life of the record
        self._dead_letters_before = 0
        self._where = f"{topic}[{partition}]@{offset}"
        self._dead_letter_name = names.dead_letter_name(topic, partition, offset)

    def find(self) -> FailedRecord:
        """Return the record, if the partition has to process it next.

        :raises TopicMissing: a topic is missing.
        :raises UsageError: the record is committed, or not the next one; or the partition is paused.
        """
        self._require_topics()
        names, partition = self._names, self._partition
        with closing(CommittedReader(self._settings, names.group, self._admin)) as reader:
            _, self._dead_letters_before = reader.bounds(names.dead, partition)
            record = last_commit_record(reader, names.changelog, partition)
            if record is None:
                raise UsageError(f"{self._where}: dead-letter the record: the partition has no commit record yet")
            position = record.positions.get(self._topic, 0)
            if self._offset < position:
                raise UsageError(
                    f"{self._where}: dead-letter the record: it is committed, the partition continues at {position}. "
                    f"Nothing was sent. Next: `statehold dlq show {self._dead_letter_name} "
                    f"{names.options}` shows whether it is a dead letter"
                )
            if record.paused is not None:
                raise UsageError(
                    f"{self._where}: dead-letter the record: the partition is paused, so it would not meet the record. "
                    f"Nothing was sent. Next: `statehold resume --partitions {partition}`, then run this command again"
                )
            start, end = reader.bounds(self._topic, partition)
            found = next(_each(reader, self._topic, partition, max(start, position), end), None)
        if found is None or found.offset() != self._offset:
            there = (
                "holds no committed record from there" if found is None else f"has its next record at {found.offset()}"
            )
            raise UsageError(
                f"{self._where}: dead-letter the record: the partition continues at {position} and {there}; only the "
                f"record at which it has failed can be dead-lettered. Nothing was sent. Next: `statehold status "
                f"--name {names.service}` names that record"
            )
        return FailedRecord(found, record.position(names.input))

    def is_stopped(self) -> bool:
        """Return whether the service's group has no member."""
        return Commander(self._settings, self._names).is_stopped()

    def send(self, found: FailedRecord, why: str, *, overtake: bool, unseen: bool = False) -> SentCommand:
        """Send the command. The worker obeys when it meets the record again. Raises the errors of `Commander.send`.

        `unseen`: it obeys before the handler gets the record, because the service is stopped.
        """
        names, partition = self._names, self._partition
        topic = self._topic if names.others else ""
        value = msgspec.msgpack.encode(AddRequest(self._offset, found.position, overtake, why, topic, unseen))
        sent = Commander(self._settings, names).send_each(ADD, partition, [value], self.id)
        return SentCommand(partition, self.id, self._offset, sent.after, names.input)

    def passed(self, sent: SentCommand, timeout: float) -> bool:
        """Wait until the partition has passed the record, at most `timeout` seconds. False: it has not."""
        (answer,) = Commander(self._settings, self._names).await_answers([sent], timeout, full=False)
        if answer.transaction is None:
            return False
        names = self._names
        with closing(CommittedReader(self._settings, names.group, self._admin)) as reader:
            record = last_commit_record(reader, names.changelog, self._partition)
        return record is not None and record.positions.get(self._topic, 0) > self._offset

    def dead_letter(self) -> DeadLetter | None:
        """Return the record's dead letter; None if the record was processed instead.

        Its `id` is another one if another command or a policy has made it. Call it after `find` and `passed`.
        """
        dead_letters = (
            each
            for _, records in DeadLetters(self._settings, self._names).records([self._partition])
            for each in records
            if isinstance(each, DeadLetter) and each.at >= self._dead_letters_before
        )
        return next((each for each in dead_letters if each.name == self._dead_letter_name), None)

    def _require_topics(self) -> None:
        names = self._names
        facts = self._admin.describe([names.input, names.dead, names.control])
        given = facts[names.input]
        if given is None:
            raise TopicMissing(
                f"{names.input}: dead-letter a record: the topic does not exist. Nothing was sent. Next: check the "
                f"service name {names.service!r}"
            )
        if self._partition >= given.partitions:
            raise UsageError(f"{names.input} has partitions 0 to {given.partitions - 1}, not {self._partition}")
        for topic in (names.dead, names.control):
            fact = facts[topic]
            if fact is None or fact.partitions < given.partitions:
                what = "does not exist" if fact is None else f"has {fact.partitions} of {given.partitions} partitions"
                raise TopicMissing(
                    f"{topic}: dead-letter a record: the topic {what}. Nothing was sent. Next: run `statehold topics "
                    f"create {names.options} --output {names.dead} --start-at end`, which creates it; "
                    f"grant the service WRITE on {names.dead} and READ on {names.control}, and run this "
                    f"command again; a running service finds the topics"
                )


def _each(reader: CommittedReader, topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
    for batch in reader.read(topic, partition, start, end):
        yield from batch
