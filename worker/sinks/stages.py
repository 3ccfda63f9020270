"""The stages of a partition's sink database as seen from Kafka, with their legal edges: no thread, no clock, no I/O.

    Disconnected -> Even <-> Written
         |           ^         |  Kafka did not commit
         +--------> Ahead <----+

Each stage may go back to Disconnected: after a failed write, because only the position read next shows its outcome, and
at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statehold.bound.sink import Session, SinkPosition
from statehold.errors import UsageError
from statehold.worker.sinks.position import Note
from statehold.worker.transaction.participants import SideInputs


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Nothing can be written. `held` is the last position that was read or written."""

    held: SinkPosition


@dataclass(frozen=True, slots=True)
class Even:
    """The database holds what Kafka does."""

    held: SinkPosition
    session: Session


@dataclass(frozen=True, slots=True)
class Written:
    """The database has committed the transaction in flight, and Kafka has not yet."""

    held: SinkPosition
    session: Session
    note: Note


@dataclass(frozen=True, slots=True)
class Ahead:
    """The database has committed the transaction of `note`, and Kafka has not: its records are handled again."""

    held: SinkPosition
    session: Session
    note: Note

    def ends_with(self, position: int, side: SideInputs) -> bool:
        """Return whether a transaction up to `position` with these side inputs ends where the database is."""
        return position >= self.held.position and side is self.note.side


SinkStage = Disconnected | Even | Written | Ahead

EDGES: Final[dict[type[SinkStage], frozenset[type[SinkStage]]]] = {
    Disconnected: frozenset({Even, Ahead}),
    Even: frozenset({Written, Disconnected}),
    Written: frozenset({Even, Ahead, Disconnected}),
    Ahead: frozenset({Even, Disconnected}),
}


def require_edge(stage: SinkStage, following: SinkStage) -> None:
    """:raises UsageError: `stage` does not lead to `following`."""
    if type(following) not in EDGES[type(stage)]:
        raise UsageError(f"a sink database cannot go from {type(stage).__name__} to {type(following).__name__}")
