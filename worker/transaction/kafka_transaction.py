"""The Kafka transaction of one partition: begun lazily, ended by exactly one of `commit` and `abort` (rules T1-T4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Final

import msgspec

from statehold.bound.output import with_origin
from statehold.messages.sent import Sent
from statehold.ports import NUMBER, Transactions
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.recorded_types import RecordedTypes
from statehold.snapshot.format.records import CommitRecord, Header, Part
from statehold.state import digest
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import ProducerDropped
from statehold.worker.transaction.participants import CommitDraft

#: outputs that go to the client at a time: what was added for their origin is still in the processor's caches then
_PIECE: Final = 128


class Stage(Enum):
    """Progress of the transaction; each stage follows the one before it, and an abort leads back to CLOSED."""

    CLOSED = auto()
    #: the header and outputs are sent
    OPEN = auto()
    #: the offsets joined: every partition of the outputs is in the transaction
    OFFSETS = auto()
    #: the delta and the commit record are sent: a torn transaction rejects the record, because it comes last
    RECORD = auto()


class KafkaTransaction:
    """Used by the partition's thread, `commit` by a thread of its own meanwhile.

    After any exception but MessageRefused from `send` or `pack`: abort or drop it.
    """

    def __init__(self, producer: Transactions, tools: Tools, record: CommitRecord, used: Iterable[str]) -> None:
        """`used`: the tables that have keys."""
        place, settings = tools.place, tools.settings
        self.producer = producer
        producer.lineage = record.lineage
        #: the last commit record that is known to be committed
        self.record = record
        #: the commit record of the last attempt; an unknown outcome is compared with it and with `record` (rule T4)
        self.expected = record
        self.increment_bytes = 0
        #: monotonic time at which the open transaction began
        self.began = 0.0
        self._place, self._wall, self._clock = place, tools.wall, tools.clock
        self._origin, self._part_bytes = settings.output.origin, settings.kafka.message_max_bytes // 2
        self._changelog, self._control = place.names.changelog, place.names.control
        #: the committed position, and that of `expected`; see `CommitRecord.position`
        self.position = self._expected_position = record.position(place.names.input)
        self._versioned = max(place.schemas.values(), default=1) > 1
        self.types = RecordedTypes(place.types, record, used)
        self._outputs = 0
        self.stage = Stage.CLOSED
        #: True from an abort until the next commit: the aborted records may still be open (KAFKA-20734)
        self._aborted = False

    def require_clean(self) -> None:
        """:raises ProducerDropped: a delayed request or an incomplete abort could harm a transaction (rule T2)."""
        if suspicion := self.producer.suspicion:
            raise ProducerDropped(f"a request may still be under way, or an abort may be incomplete: {suspicion}")

    def begin(self) -> None:
        """Begin unless it is open; the header comes first, so that a torn transaction can be seen (rule T1).

        :raises ProducerDropped: see `require_clean`.
        """
        if self.stage is Stage.CLOSED:
            self.require_clean()
            self.began = self._clock()
            self.producer.begin()
            self.stage, self._outputs, self.increment_bytes = Stage.OPEN, 0, 0
            before, writer = self.record, self._place.writer
            header = Header(before.n + 1, self.producer.attempt, before.lineage, self.position, writer)
            self._send_changelog(records.pack(header, before.format))

    def send(self, outputs: Sequence[Sent]) -> None:
        """Send outputs; begin a transaction if needed. Raises as `Transactions.send`."""
        self.begin()
        assert self.stage is Stage.OPEN, f"outputs in stage {self.stage.name}: no partition may join any more"
        for start in range(0, len(outputs), _PIECE):
            piece = outputs[start : start + _PIECE]
            if self._origin:
                piece = with_origin(piece, self._place.partition, self.record.n + 1, self._outputs)
            self.producer.send(piece)
            self._outputs += len(piece)

    def pack(self, draft: CommitDraft) -> list[bytes]:
        """Return the delta's chunks as they will be sent.

        :raises MessageRefused: a single value does not fit a message.
        """
        n, attempt = self.record.n + 1, self.producer.attempt
        chunks: list[bytes] = []
        for k, entries in enumerate(records.chunks(draft.delta or (), self._part_bytes)):
            chunks.append(records.pack(Part(n, attempt, k, entries), self.record.format))
        return chunks

    def commit(self, draft: CommitDraft, chunks: Sequence[bytes], membership: Any) -> None:
        """Send offsets, delta and commit record in this order, run `draft.before_commit`, commit.

        No other method may run meanwhile; on success call `committed` next.
        """
        self.begin()
        assert self.stage is Stage.OPEN, f"a second commit in stage {self.stage.name}: settle or abort the first one"
        if self.record.format >= frame.PINNING:  # an older release would read the number as a part of the generation
            self.producer.lineage = f"{self.record.lineage}{NUMBER}{self.record.n + 1}"
        self.producer.send_offsets(draft.positions, membership)
        self.stage = Stage.OFFSETS
        for payload in chunks:
            self._send_changelog(payload)
        self.expected = self._next_record(draft, len(chunks))
        self._send_changelog(records.pack(self.expected, self.record.format))
        self._expected_position, self.stage = draft.position, Stage.RECORD
        if draft.before_commit is not None:
            draft.before_commit()
        if self._aborted:
            self.require_clean()  # otherwise this commit may also commit what was aborted
        self.producer.commit()

    def committed(self) -> CommitRecord:
        """Note that the attempted commit record has committed."""
        self.record, self.position = self.expected, self._expected_position
        self.stage, self._aborted = Stage.CLOSED, False
        return self.record

    def abort(self) -> None:
        """Abort the open transaction; return only after the broker has confirmed it."""
        if self.stage is not Stage.CLOSED:
            self.producer.abort()
            self.stage, self._aborted = Stage.CLOSED, True

    def _next_record(self, draft: CommitDraft, chunks: int) -> CommitRecord:
        before, n, side, commands = self.record, self.record.n + 1, draft.side, draft.commands
        positions = {**draft.positions, **side.retries}
        if side.next > 0:
            positions[self._control] = side.next
        written_as, frozen = before.format_after(commands) if commands else before.format, draft.frozen
        written, types = frozen.tables, before.types
        # Otherwise the record before it has the type of each table that this one writes.
        if self.types.news or frozen.emptied or not types.keys() >= self.types.tables.intersection(written):
            types = self.types.after(before, written_as, written, frozen.emptied)
        return msgspec.structs.replace(
            before,
            n=n,
            attempt=self.producer.attempt,
            positions=positions,
            runs=draft.runs,
            start=self.position,
            topic_ids=self._place.topic_ids,
            digest=digest.to_bytes(frozen.digest),
            keys=frozen.keys,
            parts=chunks,
            last_delta=n if draft.delta is not None else before.last_delta,
            outputs=self._outputs,
            full_snapshots=draft.full_snapshots,
            commands=commands,
            pinned=side.pinned,
            time_limit=draft.time_limit,
            pace=draft.pace,
            reference=dict(draft.reference),
            take=before.take_after(n, commands, draft.full_snapshots) if before.take or commands else 0,
            paused=before.paused if side.switch is None else before.paused_after(side.switch),
            effects=draft.effects,
            format=written_as,
            reach=before.reach if draft.reach is None else draft.reach,
            schemas=self._place.merged_schemas(before, written) if self._versioned else before.schemas,
            types=types,
            writer=self._place.writer,
            time=int(self._wall() * 1000),
        )

    def _send_changelog(self, payload: bytes) -> None:
        self.increment_bytes += len(payload)
        self.producer.send_increment(self._changelog, self._place.partition, payload)
