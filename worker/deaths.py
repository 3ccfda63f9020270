"""Handles the records carefully after a death of the partition's last owner.

The first death does not name the record. The next owner handles one by one and notes each record before the handler
gets it, so the second death names one. From then on everything before the record commits first. After the third death
the handler does not get the record any more: the partition fails, unless a policy or an operator has decided otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from statehold.api.record import Message, at
from statehold.health.death_notes import DeathNotes, Handled
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.failures.requested_dead_letters import find_dead_letter_command
from statehold.worker.handler.record_failure import HandlingFailed, RecordFailed, RecordSuspected, deadly
from statehold.worker.transaction.pipeline import RunHandler
from statehold.worker.transaction.record_buffer import Messages, RecordBuffer
from statehold.worker.transaction.suspect_buffer import CAREFUL, SuspectBuffer

#: deaths in a row at one record, after which the handler does not get it any more
DEADLY: Final = 3


def record_buffer(tools: Tools, signals: Signals, record: CommitRecord) -> RecordBuffer:
    """Return the buffer of a live phase that begins behind this commit record; log a death."""
    notes, position = tools.deaths, record.position(tools.place.names.input)
    died = notes is not None and notes.open(input_positions(tools, record))
    suspect = None if notes is None else notes.suspect
    if notes is not None and died:
        _report(tools, notes)
    if notes is not None and suspect is not None and suspect.single:
        failure_at = partial(_failure_at, tools, notes)
        return SuspectBuffer(position, (suspect.topic, suspect.offset), failure_at)
    if (unseen := _requested_unseen(tools, signals, record)) is not None:
        return SuspectBuffer(position, unseen, partial(_suspected, tools, 0))
    buffer = RecordBuffer(position)
    if suspect is not None:
        buffer.careful_until = suspect.last + 1
    elif notes is not None and notes.deaths:
        buffer.careful_until = position + CAREFUL
    return buffer


def input_positions(tools: Tools, record: CommitRecord) -> dict[str, int]:
    """Return the committed position of each input, without those of statehold's own topics."""
    return {topic: record.positions[topic] for topic in tools.place.names.inputs}


def noted(notes: DeathNotes, run: RunHandler, position: int) -> RunHandler | None:
    """Return `run` with a note on disk before each call; None without a death, so that it costs nothing."""
    return partial(_run_noted, notes, run, position + CAREFUL) if notes.deaths else None


def _run_noted(notes: DeathNotes, run: RunHandler, until: int, messages: Messages, *, one_by_one: bool = False) -> int:
    first = messages[0]
    if at(first) >= until and notes.suspect is None and notes.deaths:
        notes.forget()
    notes.begin(Handled(first.topic() or "", first.offset() or 0, at(first), at(messages[-1])))
    try:
        return run(messages, one_by_one=one_by_one)
    finally:
        notes.end()


def _failure_at(tools: Tools, notes: DeathNotes, message: Message) -> HandlingFailed:
    """Return the failure of the suspect, now that everything before it was handled."""
    if notes.deaths < DEADLY or notes.faced:
        return _suspected(tools, notes.deaths, message)
    notes.faced = True
    return RecordFailed(at(message), deadly(message, notes.deaths, _command(tools, message)), message)


def _suspected(tools: Tools, deaths: int, message: Message) -> RecordSuspected:
    return RecordSuspected(at(message), deadly(message, deaths, _command(tools, message)), message)


def _command(tools: Tools, message: Message) -> str:
    names = tools.place.names
    topic = f" --topic {message.topic()}" if names.others else ""
    return f"statehold dlq add {message.partition()} {message.offset()} {names.options}{topic} --why TEXT"


def _requested_unseen(tools: Tools, signals: Signals, record: CommitRecord) -> tuple[str, int] | None:
    """Return topic and offset of the record that a `dlq add` names while the service was stopped."""
    if tools.control is None or record.paused is not None or not tools.control_exists():
        return None
    found = find_dead_letter_command(tools, signals, None, record)
    if found is None or found.dead_letter is None:
        return None
    return found.dead_letter.topic or tools.place.input, found.dead_letter.offset


def _report(tools: Tools, notes: DeathNotes) -> None:
    suspect = notes.suspect
    if suspect is None:
        does = "records are handled one by one, and each is noted first"
    elif not suspect.single:
        does = "these records are handled one by one"
    elif notes.deaths < DEADLY:
        does = "everything before the record commits first, then it is handled alone"
    else:
        does = "the handler does not get the record any more"
    tools.log.warning(
        "process_died",
        deaths=notes.deaths,
        **({} if suspect is None else {"topic": suspect.topic, "offset": suspect.offset, "last": suspect.last}),
        does=does,
    )
