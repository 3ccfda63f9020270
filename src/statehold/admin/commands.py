"""Sends commands to a service through its input, and waits for the marks that acknowledge them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured, TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import StableReader
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.feeds.control_topic import largest_command
from statehold.kafka.tools.command_producer import CommandSink
from statehold.messages import command
from statehold.ports import Cancelled, OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import FullRef, Manifest, Mark
from statehold.snapshot.restore.last_commit_record import last_mark

_PAUSE = 0.05
_ACKNOWLEDGE = 30.0


class Sent(msgspec.Struct, frozen=True):
    """A command on one partition: the offset of its record, and where on the increment topic the answer follows."""

    partition: int
    id: str
    offset: int
    after: int
    #: the topic that it was written to
    topic: str


class Answer(msgspec.Struct, kw_only=True):
    """What became of it: `transaction` is None while no mark has acknowledged it, `full` while no mark names one."""

    partition: int
    id: str
    #: of the command's record
    offset: int
    transaction: int | None = None
    #: the input position of the mark that acknowledged it
    position: int | None = None
    #: offset of the full's manifest, and what that says
    full: int | None = None
    first: int | None = None
    keys: int | None = None
    bytes: int | None = None


class Commander:
    """For tools; used by one thread. Blocks; raises KafkaTrouble when the cluster does not answer."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group)

    def send(
        self, name: str, partitions: Sequence[int] = (), value: bytes | None = None, *, control: bool = False
    ) -> list[Sent]:
        """One record for each of the partitions, by default all of the input's.

        With `control` it goes to the control topic: the next mark obeys it, and pins a user's one to its place.

        :raises TopicMissing: there is no such service. :raises UsageError: no such partition, or a command that is too
            long, or a partition that is still written in a format that pins none.
        :raises KafkaTrouble: not every record is known to be written.
        """
        names = self._names
        topic = names.control if control else names.input
        facts = self._admin.describe([names.input, names.changelog])
        given = facts[names.input]
        missing = [topic for topic in (names.input, names.changelog) if facts[topic] is None]
        if given is None or missing:
            raise TopicMissing(
                f"missing on the cluster: {', '.join(missing)}; is the service called {names.service!r}?"
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
            offsets = CommandSink(self._settings, topic).send(chosen, header, value, _ACKNOWLEDGE)
        except Misconfigured as error:
            raise Misconfigured(f"a command is a record of {topic}, which takes the right WRITE: {error}") from error
        except KafkaTrouble as error:
            raise KafkaTrouble(f"{name!r} may have reached some partitions of {topic} only: {error}") from error
        return [Sent(p, chosen_id, offset, end, topic) for p, offset, end in zip(chosen, offsets, ends, strict=True)]

    def send_each(self, name: str, partition: int, values: Sequence[bytes], id: str) -> Sent:
        """Several commands of one name to one partition, by the control topic and in this order; the last of them.

        Raises as `send`.
        """
        names, topic = self._names, self._names.control
        given = self._admin.describe([names.input])[names.input]
        if given is None:
            raise TopicMissing(f"{names.input} is missing; is the service called {names.service!r}?")
        self._require_control(name, given.partitions, max(values, key=len), [partition])
        end = self._admin.bounds(names.changelog, partition, _ACKNOWLEDGE, lambda: False)[1]
        header, sink, offset = command.header(name, id, command.issuer()), CommandSink(self._settings, topic), -1
        for value in values:
            offset = sink.send([partition], header, value, _ACKNOWLEDGE)[0]
        return Sent(partition, id, offset, end, topic)

    def _require_control(self, name: str, partitions: int, value: bytes | None, chosen: Sequence[int]) -> None:
        names = self._names
        there = self._admin.describe([names.control])[names.control]
        if there is None or there.partitions != partitions:
            found = "does not exist" if there is None else f"has {there.partitions} partitions, not {partitions}"
            raise TopicMissing(
                f"{names.control} {found}: `statehold topics create ... --control` creates it; a service reads it from "
                f"its next start on"
            )
        if name not in command.OWN or name in command.SWITCHES:
            self._require_pinning(name, value, chosen)

    def _require_pinning(self, name: str, value: bytes | None, chosen: Sequence[int]) -> None:
        """A user's command is repeated by its mark, which an older release would neither write nor replay."""
        largest = largest_command(self._settings) - 1000
        if value is not None and len(value) > largest:
            raise UsageError(f"{name!r}: a value of {len(value)} bytes; by the control topic it may have {largest}")
        reader = StableReader(self._settings, self._names.group, self._admin)
        try:
            marks = {partition: last_mark(reader, self._names.changelog, partition) for partition in chosen}
        finally:
            reader.close()
        older = [p for p, mark in marks.items() if mark is None or mark.format < frame.PINNING]
        if older:
            raise UsageError(
                f"{name!r}: partitions {', '.join(map(str, older))} are not yet written in format {frame.PINNING}, "
                f"which pins a command that comes by the control topic: `statehold finish-upgrade` first, or send it "
                f"through the input"
            )

    def await_answers(
        self, sent: Sequence[Sent], timeout: float, *, full: bool, tell: Callable[[Answer], None] = lambda _: None
    ) -> list[Answer]:
        """Follow each partition until its mark, and with `full` until a later mark names a full; `tell` as they come.

        What has not come within `timeout` seconds, for all partitions together, is None in the answer.
        """
        until = time.monotonic() + timeout
        answers = []
        for each in sent:
            answer = Answer(partition=each.partition, id=each.id, offset=each.offset)
            reader = KafkaReader(
                self._settings, self._names.group, self._admin, lambda: time.monotonic() > until + 1, time.monotonic
            )
            try:
                with suppress(Cancelled):  # the time is over, in the middle of a read
                    self._follow(reader, each, answer, until, full)
            finally:
                reader.close()
            answers.append(answer)
            tell(answer)
        return answers

    def _follow(self, reader: Reader, sent: Sent, answer: Answer, until: float, full: bool) -> None:
        for mark in _marks(reader, self._names.changelog, sent, until):
            if answer.transaction is None and mark.positions.get(sent.topic, 0) > sent.offset:
                answer.transaction, answer.position = mark.n, mark.positions[self._names.input]
            if answer.transaction is None:
                continue
            if not full:
                return
            later = [ref for ref in mark.fulls if ref.first >= answer.transaction]
            if later:
                describe(reader, self._names.snapshot, later[-1], answer)
                return


def describe(reader: Reader, topic: str, ref: FullRef, answer: Answer) -> None:
    """Add to the answer which full it was, and what its manifest says."""
    answer.full, answer.first = ref.offset, ref.first
    with suppress(OutOfRange):  # truncated since: newer ones have taken its place
        for batch in reader.read(topic, answer.partition, ref.offset, ref.offset + 1):
            for message in batch:
                manifest = records.unpack(message.value())
                if isinstance(manifest, Manifest):
                    answer.keys, answer.bytes = manifest.keys, manifest.size


def _marks(reader: Reader, topic: str, sent: Sent, until: float) -> Iterator[Mark]:
    """The marks from before the command on, as they come, until the time is over."""
    position = sent.after
    while True:
        start, end = reader.bounds(topic, sent.partition)
        try:
            for batch in reader.read(topic, sent.partition, max(start, position), end):
                for message in batch:
                    if frame.kind_of(message.value()) == b"M":
                        mark = records.unpack(message.value())
                        assert isinstance(mark, Mark)
                        yield mark
            position = max(position, end)
        except OutOfRange:
            continue  # truncated meanwhile: from the new start on
        if time.monotonic() >= until:
            return
        time.sleep(_PAUSE)
