"""Find an operator's command that dead-letters the record at which the partition fails (`statehold dlq add`).

A failed partition reads nothing. A retry meets the record again, and only then the worker looks for the command. A
command for a stopped service names a record that the handler must not get, so a worker also looks at its start. The
transaction that writes the dead letter also acknowledges the command, so a crash before it repeats both.
"""

from __future__ import annotations

from typing import Final

from statehold.errors import StateholdError
from statehold.messages.command import BadCommand
from statehold.messages.dead_letter import AddRequest
from statehold.ports import Asked, Cancelled, OutOfRange
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals

#: most seconds for the search, because the partition fails without an answer, too
_LONG: Final = 20.0


def find_dead_letter_command(
    tools: Tools, signals: Signals, failed: tuple[str, int] | None, record: CommitRecord
) -> Asked | None:
    """Return the newest unacknowledged command for the record with this topic and offset.

    `failed` is None: the newest one for a record that the handler must not get. `record` is the last commit record.

    Reads the control topic to its end, because its feed may not have read the command yet. An error counts as None.

    :raises Cancelled: the partition leaves.
    """
    topic, partition = tools.place.names.control, tools.place.partition
    until = tools.clock() + _LONG
    found: Asked | None = None
    reader = tools.reader(lambda: signals.leaving() or tools.clock() > until)
    try:
        start, end = reader.bounds(topic, partition)
        for batch in reader.read(topic, partition, max(start, record.positions.get(topic, 0)), end):
            for message in batch:
                try:
                    asked = Asked.by(message)
                except BadCommand:  # the feed logs it
                    continue
                if asked is not None and _is_for(asked.dead_letter, failed, tools.place.input, record):
                    found = asked
    except (StateholdError, OutOfRange, Cancelled) as error:
        if signals.leaving():
            raise Cancelled from error
        tools.log.warning("kafka_retry", doing=f"look for a `dlq add` on {topic}", cause=str(error))
    finally:
        reader.close()
    return found


def _is_for(request: AddRequest | None, failed: tuple[str, int] | None, input: str, record: CommitRecord) -> bool:
    if request is None or request.position != record.position(input):
        return False
    return request.unseen if failed is None else (request.topic or input, request.offset) == failed
