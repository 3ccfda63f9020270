"""The failures of handling a record, and their error texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statehold.api.record import Message, Record, at
from statehold.bound.inputs import InputKeys
from statehold.errors import (
    DeadlyRecord,
    HandlerFailed,
    LocalStoreFailed,
    MessageRefused,
    PartitionError,
    RegistryUnreachable,
    StateholdError,
    UndecodableRecord,
    UnreadableValue,
    UnstorableValue,
    class_and_text,
    text_of,
)
from statehold.snapshot.format.partition_identity import Place
from statehold.state.partition_table import PartitionTable
from statehold.worker.common.errors import output_refused

_NULL = "the record's value is null; to receive tombstones as None, declare them, such as Handler[Order | None]"


class HandlingFailed(Exception):
    """The handler or the decoder failed; its writes stay in the open transaction until the rollback."""

    def __init__(self, at: int, error: StateholdError, message: Message | None = None) -> None:
        """`at`: the record's place in the partition's order. `message`: the record, if its topic could be another."""
        super().__init__(text_of(error))
        self.at, self.error = at, error
        #: of the record; its place stands for the offset where the message is not known
        self.topic = "" if message is None else message.topic() or ""
        self.offset = at if message is None else message.offset() or 0


class DueFailed(Exception):
    """A timer, a window or a record without a partner was due, and its method raised; the cause is chained."""

    def __init__(self, what: str, cause: Exception) -> None:
        super().__init__(f"{what}: {text_of(cause)}")
        self.what, self.cause = what, cause


class RecordFailed(HandlingFailed):
    """The input record at this place failed."""


class BatchFailed(HandlingFailed):
    """on_batch failed for the batch that begins there; the record to blame is not known yet."""


class RecordSuspected(HandlingFailed):
    """The handler may not survive the input record at this place: it gets the record alone, or an operator decides."""


class SideInputFailed(HandlingFailed):
    """A command, a tick or a record of a retry topic failed behind the records before this place."""


class FailureDecided(HandlingFailed):
    """A side input failed and its failure decision is known: the rollback is followed by the decision."""


class RecordUnknown(Exception):
    """One record of the open transaction is to blame. All are handled again one by one, which finds it."""


def output_rejected(place: Place, what: str, error: MessageRefused, record: Message | int) -> RecordFailed:
    """Return the failure of the input record, or of a side input at this position, whose output the broker rejected."""
    why = f"{what}: the broker rejected it: {error}"
    if isinstance(record, int):
        rejected = RecordFailed(record, output_refused(place, why, record))
    else:
        cause = output_refused(place, why, record.offset() or 0, record.topic() or "")
        rejected = RecordFailed(at(record), cause, record)
    rejected.error.__cause__ = error
    return rejected


def failed(record: Record[Any], error: Exception) -> HandlingFailed:
    """Return the failure for what the handler raised at this record."""
    if isinstance(error, HandlingFailed):
        return error
    due = ""
    if isinstance(error, DueFailed):
        due, error = error.what, error.cause
    return RecordFailed(at(record.message), _handler_error(record, error, due), record.message)


def batch_failed(record: Record[Any], error: Exception, *, can_single: bool) -> HandlingFailed:
    """Return the failure for what on_batch raised; `record` is the batch's first one."""
    if can_single and not isinstance(error, (HandlingFailed, RegistryUnreachable, UnreadableValue, LocalStoreFailed)):
        return BatchFailed(at(record.message), _handler_error(record, error), record.message)
    return failed(record, error)


def require_storable(tables: Mapping[str, PartitionTable[Any, Any]], found: UnstorableValue, message: Message) -> None:
    """Check after a record what a commit could not store.

    :raises HandlingFailed: this record has written it.
    """
    try:
        tables[found.table].require_storable(found.key)
    except UnstorableValue as error:
        raise failed(Record(message, None), error) from error


def decode_until_bad(
    decode: Callable[[Message], Any], messages: Sequence[Message]
) -> tuple[list[Any], HandlingFailed | None]:
    """Return the values up to the first that cannot be decoded, and its failure."""
    values: list[Any] = []
    for message in messages:
        try:
            values.append(decode(message))
        except Exception as error:  # noqa: BLE001  a decoder may raise anything
            return values, undecodable(message, error if message.value() is not None else TypeError(_NULL))
    return values, None


def decoded_keys(
    keys: InputKeys, messages: Sequence[Message], given: Sequence[bytes | None]
) -> tuple[list[Any], HandlingFailed | None]:
    """Return the keys up to the first that cannot be decoded, and its failure. `given`: the bytes of the keys."""
    try:
        return keys.decode_all(messages, given), None
    except Exception:  # noqa: BLE001  a decoder may raise anything; find the record
        found: list[Any] = []
        for message in messages:
            try:
                found.append(keys.decode(message))
            except Exception as error:  # noqa: BLE001  a decoder may raise anything
                return found, undecodable(message, error)
        return found, None


def undecodable(message: Message, error: Exception) -> HandlingFailed:
    """Return the failure for what the decoder raised at this record."""
    if isinstance(error, RegistryUnreachable):
        return RecordFailed(at(message), RegistryUnreachable(text_of(error), **_coordinates(message)), message)
    wrapped = UndecodableRecord(
        f"{class_and_text(error)}. Nothing was skipped. Next: change the type, or let the "
        f"policy dead-letter the record (on_failure), and restart the service; without a change of code run `statehold "
        f"retry {message.partition()}`",
        **_coordinates(message),
    )
    wrapped.__cause__ = error
    return RecordFailed(at(message), wrapped, message)


def deadly(message: Message, deaths: int, command: str) -> DeadlyRecord:
    """Return the error of a record at which the process has died. `command` dead-letters it.

    Without deaths it is an operator's decision about a record that the handler did not get.
    """
    if deaths:
        times = f"the last {deaths} processes" if deaths > 1 else "the last process"
        text = (
            f"{times} died while the handler had this record, by a crash, a memory limit or an exit. Everything before "
            f"it is committed, and nothing was skipped. Next: `{command}`, which dead-letters it; or fix the handler, "
            f"and run `statehold retry {message.partition()}`, which gives it the record again"
        )
    else:
        text = "the command came while the service was stopped, and the handler did not get the record"
    error = DeadlyRecord(text, **_coordinates(message))
    error.deaths = deaths
    return error


def _handler_error(record: Record[Any], error: Exception, due: str = "") -> PartitionError:
    """`due`: what failed was due at the record, and is not the record itself."""
    if isinstance(error, LocalStoreFailed):
        return error
    if isinstance(error, RegistryUnreachable | UnreadableValue):
        return type(error)(text_of(error), **_coordinates(record.message))
    where, which = (f", in {due}", "The record and what was due were") if due else ("", "The record was")
    wrapped = HandlerFailed(
        f"the handler raised {class_and_text(error)}{where}. {which} rolled back, and nothing was skipped. "
        f"Next: fix what the handler needs and run `statehold retry {record.message.partition()}`, or fix the handler "
        f"and restart the service",
        **_coordinates(record.message),
    )
    wrapped.__cause__, wrapped.due = error, due
    return wrapped


def _coordinates(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic() or "",
        "partition": message.partition() or 0,
        "position": message.offset() or 0,
    }
