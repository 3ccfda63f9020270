"""A record that the decoder or the handler failed at, and how that is told."""

from __future__ import annotations

from typing import Any

from statehold.errors import HandlerFailed, PartitionError, RegistryUnreachable, StateholdError, UndecodableRecord
from statehold.record import Message, Record


class Poisoned(Exception):
    """The handler or the decoder failed at this record; the open writes hold traces of it until the rollback."""

    def __init__(
        self, offset: int, error: StateholdError, *, batch: bool = False, decided: bool = False, final: bool = False
    ) -> None:
        super().__init__(str(error))
        self.offset = offset
        self.error = error
        #: on_batch raised: which record of it is to blame is not known yet
        self.batch = batch
        #: what becomes of it is known already: undo, and it comes again
        self.decided = decided
        #: it came beside the input and was judged: the partition fails
        self.final = final


def poisoned(record: Record[Any], error: Exception, *, batch: bool = False) -> Poisoned:
    """What the handler raised at this record; with `batch` it may be another one of its batch."""
    if isinstance(error, Poisoned):
        return error
    if isinstance(error, RegistryUnreachable):
        return Poisoned(record.offset, RegistryUnreachable(str(error), **_coordinates(record.message)))
    failed = HandlerFailed(
        f"the handler raised {type(error).__name__}: {error}. Nothing of this record was kept, none was skipped; "
        f"mend what it needs, then `statehold retry {record.partition}`, or mend the handler and start it anew",
        **_coordinates(record.message),
    )
    failed.__cause__ = error
    return Poisoned(record.offset, failed, batch=batch)


def undecodable(message: Message, error: Exception) -> PartitionError:
    """What the decoder raised at this record."""
    if isinstance(error, RegistryUnreachable):
        return RegistryUnreachable(str(error), **_coordinates(message))
    failed = UndecodableRecord(
        f"{type(error).__name__}: {error}. It was not skipped; let the type accept it, or the policy make it a dead "
        f"letter (on_failure), and start the service anew; `statehold retry {message.partition()}` tries it as it is",
        **_coordinates(message),
    )
    failed.__cause__ = error
    return failed


def _coordinates(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic() or "",
        "partition": message.partition() or 0,
        "position": message.offset() or 0,
    }
