"""The note next to a position in the database of the sinks, and whether it follows from a commit record (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from statehold.common.names import Names
from statehold.sink import SinkPosition
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.transaction.participants import SideInputs


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What the same records need to be handled alike once more; of the transaction that wrote the position."""

    lineage: str
    #: of the state at that position, 16 bytes; b"": an operator has said that any will do
    digest: bytes
    #: what the control topic and the clock have added behind the last record
    side: SideInputs = SideInputs()
    #: topic and offset of each record that had failed, and what became of it
    decisions: tuple[tuple[str, int, FailureDecision], ...] = ()


encode: Final = msgspec.msgpack.Encoder(enc_hook=dict).encode
_decode: Final = msgspec.msgpack.Decoder(Note).decode


class Disagreement(Exception):
    """The database does not hold what the mark leads to; the text says what it holds."""


def note_of(mark: CommitRecord) -> bytes:
    """For a database that is to go on from this mark."""
    return encode(Note(mark.lineage, mark.digest))


def ahead_of(held: SinkPosition | None, mark: CommitRecord, names: Names) -> Note | None:
    """What the database holds and Kafka does not; None where both hold the same.

    :raises Disagreement: it is anything but one transaction that follows `mark`, the last one.
    """
    position = mark.positions[names.input]
    if held is None:
        raise Disagreement("it holds no position of this partition, so nobody knows which rows it has")
    try:
        note = _decode(held.note) if held.note else Note("", b"")
    except msgspec.MsgspecError as error:
        raise Disagreement(f"what stands beside its position {held.position} cannot be read: {error}") from error
    if held.position < position:
        raise Disagreement(f"it holds the rows up to {held.position} only: an older copy of it, or another database")
    if held.position == position and (note.lineage != mark.lineage or _settled(note, mark, names)):
        return None  # a tool that changes the state begins a lineage and leaves the position
    if note.lineage == mark.lineage:
        return note
    raise Disagreement(f"it holds the rows up to {held.position} of another history: a tool has set the state back")


def _settled(note: Note, mark: CommitRecord, names: Names) -> bool:
    """Kafka holds what the database does, commands and the clock included."""
    passed = note.side.next <= mark.positions.get(names.control, 0)
    return passed and (not note.digest or note.digest == mark.digest)
