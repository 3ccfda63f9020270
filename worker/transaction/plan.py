"""Decide the next step of a live partition from facts alone (rules T2, T4, T6)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import msgspec


class Mode(Enum):
    """How carefully the next records are handled; `RecordBuffer.mode` returns it, `EDGES` lists the transitions."""

    #: in batches, each transaction committing in parallel with the next one
    NORMAL = auto()
    #: one by one, because one of them is to blame for a failure
    CAREFUL = auto()
    #: a record failed: everything before it is committed, then its failure is faced
    FAILING = auto()
    #: the sinks' database holds one transaction that Kafka does not: a transaction must end exactly there
    BEHIND = auto()
    #: in ever smaller transactions, because the database rejects a row of one of them
    BISECTING = auto()


#: which mode may follow; each may also stay
EDGES: Final[dict[Mode, frozenset[Mode]]] = {
    Mode.NORMAL: frozenset({Mode.CAREFUL, Mode.FAILING, Mode.BEHIND, Mode.BISECTING}),
    Mode.CAREFUL: frozenset({Mode.NORMAL, Mode.FAILING, Mode.BEHIND, Mode.BISECTING}),
    # After its decision the record is handled again alone; an unreachable one is behind a barrier.
    Mode.FAILING: frozenset({Mode.CAREFUL, Mode.BEHIND}),
    Mode.BEHIND: frozenset({Mode.NORMAL, Mode.FAILING, Mode.CAREFUL, Mode.BISECTING}),
    Mode.BISECTING: frozenset({Mode.NORMAL, Mode.FAILING, Mode.BEHIND, Mode.CAREFUL}),
}


class Step(Enum):
    """The next step of the live loop."""

    #: wait for the commit in flight and send what was handled meanwhile
    SETTLE = auto()
    #: commit and wait for it
    COMMIT = auto()
    #: begin a commit and handle records while it runs
    BEGIN_COMMIT = auto()
    #: hand the next records to the handler
    HANDLE = auto()
    #: take records from the mailbox, or rest without records
    TAKE = auto()
    #: retry the record that failed, dead-letter it, or fail the partition
    FACE_FAILURE = auto()
    #: handle no record, because too many side effects are pending
    THROTTLE = auto()
    #: handle no record, because a command paused the partition
    PAUSED = auto()


class View(msgspec.Struct, frozen=True):
    """The facts that the decision depends on."""

    mode: Mode
    #: the last commit record says that the partition is paused
    paused: bool
    #: the open transaction has handled a record
    open: bool
    #: it is large or old enough to commit; it has no room for another record
    due: bool
    full: bool
    #: a commit is in flight; it has ended
    in_flight: bool
    landed: bool
    #: records were taken from the mailbox and not handled
    waiting: bool
    #: FAILING, BEHIND: everything before the record that failed, or before the barrier, was handled
    reached: bool
    #: the mailbox has records
    arrived: bool
    #: too many side effects are pending
    blocked: bool
    #: side inputs must be handled before the next record
    side_inputs_first: bool


def decide(view: View) -> Step:  # noqa: C901, PLR0911 - one rule after the other is what a reader needs
    """Return the next step. A failure and a barrier come before a pause, because a pause may not hide them."""
    if view.paused and view.mode not in (Mode.FAILING, Mode.BEHIND):
        if view.open:
            return Step.COMMIT
        return Step.SETTLE if view.in_flight else Step.PAUSED
    if view.side_inputs_first or (view.mode is Mode.BEHIND and view.reached):
        return Step.COMMIT
    if view.landed:
        return Step.SETTLE
    if view.mode is Mode.FAILING and view.reached:
        if view.open:
            return Step.COMMIT
        return Step.SETTLE if view.in_flight else Step.FACE_FAILURE
    if view.due and not _goes_on(view):
        # One at a time, because an abort then has one possible cause.
        return Step.COMMIT if view.mode in (Mode.CAREFUL, Mode.BISECTING) else Step.BEGIN_COMMIT
    if view.blocked:
        return Step.THROTTLE
    if view.waiting:
        return Step.HANDLE
    if view.in_flight and not view.arrived:
        return Step.SETTLE
    return Step.TAKE


def _goes_on(view: View) -> bool:
    """Return whether the open transaction takes more records although it is due, because it cannot commit yet."""
    records = view.waiting or view.arrived
    return view.in_flight and records and not view.full and not view.blocked and view.mode is Mode.NORMAL
