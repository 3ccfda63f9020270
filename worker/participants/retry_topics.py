"""Handle due records of the retry topics when a transaction closes, outside the input's order.

The commit record holds their positions, next to the input's. A transaction that handles one carries a delta, so that
no replay handles it (docs/design.md, "Failing records").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from statehold.messages.retry_record import Retried
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import FailureDecided, HandlingFailed
from statehold.worker.transaction.participants import CommitDraft, Participant, SideWork

#: limits of one transaction: records of each topic, and seconds for all of them
_MOST: Final = 500
_LONG: Final = 1.0
#: limit after a failure, because the records before a failure are rolled back and handled again
_FEW: Final = 20


class RetryTopics(Participant):
    """Used by the partition's thread, during one live phase; `blocked`: records wait for side effects."""

    def __init__(
        self,
        tools: Tools,
        engine: Engine,
        topics: list[str],
        decisions: Callable[[], FailureDecisions],
        record: CommitRecord,
        blocked: Callable[[], bool],
    ) -> None:
        self._tools, self._engine, self._decisions, self._blocked = tools, engine, decisions, blocked
        names = tools.place.names
        self._lanes = {topic: tools.delayed(topic) for topic in topics}
        #: topic -> next offset; a topic that this code no longer reads keeps its position
        kept = {topic: at for topic, at in record.positions.items() if names.is_for_retries(topic)}
        self._next: Mapping[str, int] = dict.fromkeys(topics, 0) | kept
        self._most = _MOST

    @property
    def held(self) -> int:
        """Number of records that were read and are not due yet. Any thread."""
        return sum(lane.held for lane in self._lanes.values())

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        return self._waiting() and self._may_handle(record)

    def side_inputs(self, work: SideWork) -> None:
        """Handle the due records. :raises FailureDecided: one failed again; it is retried with its decision."""
        if work.inside:
            return
        positions = dict(self._next)
        if not self._waiting() or self._may_handle(work.before):
            self._handle_due(positions, work)
        work.done = work.done._replace(retries=positions)

    def _handle_due(self, positions: dict[str, int], work: SideWork) -> None:
        until = self._tools.clock() + _LONG
        for topic, lane in self._lanes.items():
            found, end = lane.due(positions[topic], self._now())
            for count, each in enumerate(found):
                if count == self._most or self._engine.effects.crowded or self._tools.clock() > until:
                    end = each.at
                    break
                self._handle(topic, each, work)
            positions[topic] = end

    def _handle(self, topic: str, retried: Retried, work: SideWork) -> None:
        try:
            handle(self._engine, topic, retried)
            work.send(retried.message)
        except HandlingFailed as failure:
            if not self._decisions().decide_retried((topic, retried.at), retried, failure):
                raise
            self._most = _FEW
            raise FailureDecided(failure.at, failure.error) from failure

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._next = {**self._next, **draft.side.retries}
        self._most = min(_MOST, self._most * 2)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _waiting(self) -> bool:
        """Return whether a due record waits behind the committed positions."""
        now = self._now()
        return any(lane.due(self._next[topic], now)[1] > self._next[topic] for topic, lane in self._lanes.items())

    def _may_handle(self, record: CommitRecord) -> bool:
        """Return whether records may be handled, as for the input's own."""
        return record.paused is None and not self._blocked()

    def _now(self) -> int:
        return int(self._tools.wall() * 1000)
