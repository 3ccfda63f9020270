"""The note next to a position in the database of the sinks, and its consistency with a commit record (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from statehold.bound.sink import SinkPosition
from statehold.common.decoding import UNREADABLE
from statehold.common.names import Names
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.inputs import turns
from statehold.worker.inputs.turns import Turn
from statehold.worker.transaction.participants import SideInputs


class Note(msgspec.Struct, frozen=True, array_like=True):
    """The facts needed to repeat the transaction that wrote the position."""

    lineage: str
    #: digest of the state at that position, 16 bytes; b"": an operator accepts any
    digest: bytes
    #: inputs of the control topic and the clock after the last record
    side: SideInputs = SideInputs()
    #: topic and offset of each failed record, and its decision
    decisions: tuple[tuple[str, int, FailureDecision], ...] = ()
    #: with several inputs: the next offset of each before the transaction, and the order of its records
    inputs: tuple[int, ...] = ()
    order: bytes = b""
    #: see `CommitRecord.time_limit`
    time_limit: int = 0

    @property
    def turns(self) -> list[Turn]:
        """The order of the records."""
        return turns.unpack(self.order, self.inputs)


encode: Final = msgspec.msgpack.Encoder(enc_hook=dict).encode
_decode: Final = msgspec.msgpack.Decoder(Note).decode


class Disagreement(Exception):
    """The database does not match the commit record; the text says what it holds."""


def note_of(record: CommitRecord) -> bytes:
    """Return the note for a database that continues from this commit record."""
    return encode(Note(record.lineage, record.digest))


def ahead_of(held: SinkPosition | None, record: CommitRecord, names: Names) -> Note | None:
    """Return the note of the transaction that only the database holds; None if both hold the same.

    :raises Disagreement: the difference is not one transaction that follows `record`, the last commit record.
    """
    position = record.position(names.input)
    if held is None:
        raise Disagreement("it holds no position of this partition, so its rows are unknown")
    try:
        note = _decode(held.note) if held.note else Note("", b"")
        _ = note.turns
    except (*UNREADABLE, BadFrame) as error:
        raise Disagreement(f"the note at its position {held.position} cannot be read: {error}") from error
    if note.inputs and len(note.inputs) != len(names.inputs):
        has = f"{len(note.inputs)} inputs, the service has {len(names.inputs)}"
        raise Disagreement(f"the note at its position {held.position} has {has}")
    if held.position < position:
        raise Disagreement(f"it holds the rows up to {held.position} only: an older copy of it, or another database")
    if held.position == position and (note.lineage != record.lineage or _settled(note, record, names)):
        return None  # because a tool that changes the state begins a state generation and keeps the position
    if note.lineage == record.lineage:
        return note
    raise Disagreement(f"it holds the rows up to {held.position} of another history: a tool has set the state back")


def _settled(note: Note, record: CommitRecord, names: Names) -> bool:
    """Return whether Kafka holds all that the database does, commands and ticks included."""
    passed = note.side.next <= record.positions.get(names.control, 0)
    return passed and (not note.digest or note.digest == record.digest)
