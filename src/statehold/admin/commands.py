"""Sends commands to a service and waits for the commit records that acknowledge them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import msgspec

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured, TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.feeds.control_topic import largest_command
from statehold.kafka.tools.command_producer import CommandProducer
from statehold.messages import command
from statehold.ports import Cancelled, OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import CommitRecord, FullRef, Manifest
from statehold.snapshot.restore.discovery import last_commit_record

_PAUSE = 0.05
_ACKNOWLEDGE = 30.0
#: seconds that one partition may keep the others waiting
_ONE_READ = 2.0


class SentCommand(msgspec.Struct, frozen=True):
    """A command that was written to one partition."""

    partition: int
    id: str
    #: Offset of the command's record.
    offset: int
    #: End offset of the changelog partition before the command was sent; the acknowledgement follows it.
    after: int
    #: Topic that the command was written to.
    topic: str


class CommandResult(msgspec.Struct, kw_only=True):
    """The acknowledgement of one command.

    `transaction` is None until a commit record acknowledges the command, `full` until one refers to a full snapshot.
    """

    partition: int
    id: str
    #: Offset of the command's record.
    offset: int
    transaction: int | None = None
    #: Next input offset according to the acknowledging commit record.
    position: int | None = None
    #: Offset of the full snapshot's manifest, and the manifest's contents.
    full: int | None = None
    first: int | None = None
    keys: int | None = None
    bytes: int | None = None


class Commander:
    """Sends commands for tools. Single-threaded; every method blocks.

    Every method raises KafkaTrouble when the cluster does not answer.
    """

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group)

    def is_stopped(self) -> bool:
        """Return whether the service's group has no member."""
        return not self._admin.describe_group(self._names.input).members

    def send(
        self, name: str, partitions: Sequence[int] = (), value: bytes | None = None, *, control: bool = False
    ) -> list[SentCommand]:
        """Write the command to each of `partitions`, by default to every partition of the input.

        With `control`, or if `commands.from_input` is off, the command goes to the control topic. The next transaction
        executes it, and the commit record stores its place in the order if it is a user's command.

        :raises TopicMissing: the service does not exist. :raises UsageError: a partition does not exist, the command
            is too long, or a partition's format cannot store the command's place.
        :raises KafkaTrouble: some records may not have been written.
        """
        names, control = self._names, control or not self._settings.commands.from_input
        topic = names.control if control else names.input
        facts = self._admin.describe([names.input, names.changelog])
        given = facts[names.input]
        missing = [topic for topic in (names.input, names.changelog) if facts[topic] is None]
        if given is None or missing:
            raise TopicMissing(
                f"{', '.join(missing)}: send {name!r}: the topic does not exist. Nothing was sent. Next: check the "
                f"service name {names.service!r}"
            )
        chosen = list(dict.fromkeys(partitions)) or list(range(given.partitions))
        wrong = [partition for partition in chosen if not 0 <= partition < given.partitions]
        if wrong:
            raise UsageError(f"{names.input} has partitions 0 to {given.partitions - 1}, not {wrong[0]}")
        if control:
            self._require_control(name, given.partitions, value, chosen)
        ends = [self._admin.bounds(names.changelog, p, _ACKNOWLEDGE, lambda: False)[1] for p in chosen]
        chosen_id = command.new_id()
        header = command.header(name, chosen_id, command.issuer())
        try:
            offsets = CommandProducer(self._settings, topic).send(chosen, header, value, _ACKNOWLEDGE)
        except Misconfigured as error:
            raise Misconfigured(f"{topic}: send {name!r}: it needs the ACL WRITE on the topic: {error}") from error
        except KafkaTrouble as error:
            raise KafkaTrouble(
                f"{topic}: send {name!r}: {error}. Some partitions may have received the command, others not"
            ) from error
        return [
            SentCommand(p, chosen_id, offset, end, topic) for p, offset, end in zip(chosen, offsets, ends, strict=True)
        ]

    def send_each(self, name: str, partition: int, values: Sequence[bytes], id: str) -> SentCommand:
        """Send one command per value, in order, to one partition of the control topic. Return the last one.

        Raises the errors of `send`.
        """
        names, topic = self._names, self._names.control
        given = self._admin.describe([names.input])[names.input]
        if given is None:
            raise TopicMissing(
                f"{names.input}: send {name!r}: the topic does not exist. Nothing was sent. Next: check the service "
                f"name {names.service!r}"
            )
        self._require_control(name, given.partitions, max(values, key=len), [partition])
        end = self._admin.bounds(names.changelog, partition, _ACKNOWLEDGE, lambda: False)[1]
        header, sink, offset = command.header(name, id, command.issuer()), CommandProducer(self._settings, topic), -1
        for value in values:
            offset = sink.send([partition], header, value, _ACKNOWLEDGE)[0]
        return SentCommand(partition, id, offset, end, topic)

    def _require_control(self, name: str, partitions: int, value: bytes | None, chosen: Sequence[int]) -> None:
        names = self._names
        there = self._admin.describe([names.control])[names.control]
        if there is None or there.partitions != partitions:
            found = "does not exist" if there is None else f"has {there.partitions} partitions, not {partitions}"
            raise TopicMissing(
                f"{names.control} {found}. Nothing was sent. Next: run `statehold topics create {names.options} "
                f"--control --start-at end`; a running service finds the topic within 10 s"
            )
        if name not in command.OWN or name in command.SWITCHES:
            self._require_pinning(name, value, chosen)

    def _require_pinning(self, name: str, value: bytes | None, chosen: Sequence[int]) -> None:
        """Check that the commit record can repeat a user's command; an older release neither writes nor replays it."""
        largest = largest_command(self._settings) - 1000
        if value is not None and len(value) > largest:
            raise UsageError(
                f"{name!r}: the value has {len(value)} bytes; a command on the control topic may have {largest}"
            )
        with closing(CommittedReader(self._settings, self._names.group, self._admin)) as reader:
            commit_records = {
                partition: last_commit_record(reader, self._names.changelog, partition) for partition in chosen
            }
        older = [
            p
            for p, commit_record in commit_records.items()
            if commit_record is None or commit_record.format < frame.PINNING
        ]
        if older:
            raise UsageError(
                f"{_list(older)}: send {name!r} to the control topic: the format is older than {frame.PINNING}, "
                f"which stores a command's place. Nothing was sent. Next: run `statehold finish-upgrade`, or send the "
                f"command through the input"
            )

    def await_answers(
        self,
        sent: Sequence[SentCommand],
        timeout: float,
        *,
        full: bool,
        report: Callable[[CommandResult], None] = lambda _: None,
    ) -> list[CommandResult]:
        """Wait for the acknowledgement of each command; with `full` also for a later full snapshot.

        All partitions are followed at once, so that a partition that does not answer delays no other. `report` receives
        each result as soon as it is complete, at last those without an answer. `timeout` is in seconds, for all
        partitions together. Fields without a value by then are None.
        """
        until = time.monotonic() + timeout
        waiting = [_Waiting(each, full=full) for each in sent]
        answers = [each.answer for each in waiting]
        limit = until
        with closing(
            KafkaReader(
                self._settings, self._names.group, self._admin, lambda: time.monotonic() > limit, time.monotonic
            )
        ) as reader:
            while True:
                for each in waiting.copy():
                    limit = time.monotonic() + _ONE_READ
                    with suppress(Cancelled):  # the brokers of this partition do not answer; the others may
                        if each.is_answered(reader, self._names):
                            waiting.remove(each)
                            report(each.answer)
                if not waiting or time.monotonic() >= until:
                    break
                time.sleep(_PAUSE)
        for each in waiting:
            report(each.answer)
        return answers


class _Waiting:
    """Follows the changelog of one partition until a commit record acknowledges the command."""

    def __init__(self, sent: SentCommand, *, full: bool) -> None:
        self._sent, self._full, self._position = sent, full, sent.after
        self.answer = CommandResult(partition=sent.partition, id=sent.id, offset=sent.offset)

    def is_answered(self, reader: Reader, names: Names) -> bool:
        """Read the commit records since the last call.

        :raises Cancelled: the read takes too long; the next call continues it.
        """
        partition = self._sent.partition
        start, end = reader.bounds(names.changelog, partition)
        with suppress(OutOfRange):  # the topic was truncated: the next call reads from its new start
            for batch in reader.read(names.changelog, partition, max(start, self._position), end):
                for message in batch:
                    self._position = (message.offset() or 0) + 1
                    if frame.kind_of(message.value()) == b"M":
                        record = records.unpack(message.value())
                        assert isinstance(record, CommitRecord)
                        if self._is_answered_by(record, reader, names):
                            return True
            self._position = max(self._position, end)
        return False

    def _is_answered_by(self, record: CommitRecord, reader: Reader, names: Names) -> bool:
        sent, answer = self._sent, self.answer
        if answer.transaction is None and record.positions.get(sent.topic, 0) > sent.offset:
            answer.transaction, answer.position = record.n, record.position(names.input)
        if answer.transaction is None or not self._full:
            return answer.transaction is not None
        later = [ref for ref in record.full_snapshots if ref.first >= answer.transaction]
        if later:
            add_full(reader, names.snapshot, later[-1], answer)
        return bool(later)


def _list(partitions: Sequence[int]) -> str:
    return f"partition{'s' * (len(partitions) > 1)} {', '.join(map(str, partitions))}"


def add_full(reader: Reader, topic: str, ref: FullRef, answer: CommandResult) -> None:
    """Add the full snapshot and the contents of its manifest to the result."""
    answer.full, answer.first = ref.offset, ref.first
    with suppress(OutOfRange):  # truncated behind newer full snapshots in the meantime
        for batch in reader.read(topic, answer.partition, ref.offset, ref.offset + 1):
            for message in batch:
                manifest = records.unpack(message.value())
                if isinstance(manifest, Manifest):
                    answer.keys, answer.bytes = manifest.keys, manifest.size
