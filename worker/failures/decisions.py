"""Decide about a failed record: retry it, send it to another topic, or fail the partition.

A decision does not touch the state. The engine carries it out when the record is handled again, alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from statehold.api.failures import Policy
from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.bound.policies import policy_of, raised
from statehold.errors import DeadlyRecord, HandlerFailed, RecordError, StateholdError, TooManyFailures, class_and_text
from statehold.messages.dead_letter import AddRequest, Failure, failure_of
from statehold.messages.retry_record import Retried
from statehold.ports import WorkerReport
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.failures.requested_dead_letters import find_dead_letter_command
from statehold.worker.handler.dead_letters import DeadLetterBook, FailureDecision, coordinates
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed, RecordSuspected, SideInputFailed


class FailureDecisions:
    """The decisions of one live partition; used by its thread."""

    def __init__(self, tools: Tools, signals: Signals, engine: Engine, on_first: Callable[[], None]) -> None:
        """`on_first` is called when the handler declares no dead letters and gets the first one."""
        self._tools, self._signals, self._on_first = tools, signals, on_first
        self._kind: type[Handler[Any]] = type(engine.handler)
        self._engine, self._limits = engine, FailureLimits(tools)
        self._inputs = tools.place.names.inputs
        #: the record that is retried in place, and its failed attempts
        self._at, self._attempts = -1, 0
        #: records before this place cannot become dead letters, because a sink has their rows
        self.handled_until = -1
        #: topic and offset of the last record that an operator's command dead-lettered
        self.commanded = "", -1

    @property
    def has_policies(self) -> bool:
        """Return whether the handler declares a failure policy."""
        return bool(self._kind.on_failure)

    def failed(self, failure: HandlingFailed) -> None:
        """Count the attempt."""
        if not isinstance(failure, BatchFailed):
            self._attempts = self._attempts + 1 if failure.at == self._at else 1
            self._at = failure.at

    def face(self, failure: HandlingFailed | None, message: Message | None, record: CommitRecord) -> None:
        """Return if the record is to be handled again: after a pause, or at once with its decision.

        `message`: the record, if it is one of the input. `record`: the last commit record.

        :raises PartitionError: the partition fails. :raises Cancelled: the partition leaves.
        """
        assert failure is not None
        if isinstance(failure, BatchFailed):  # its records are handled again one by one
            return
        if isinstance(failure.error, DeadlyRecord):
            self._at, self._attempts = failure.at, failure.error.deaths
        if isinstance(failure, RecordSuspected):
            self._face_suspect(failure, message, record)
            return
        policy = None if isinstance(failure, SideInputFailed) else self._policy(failure.error)
        place = (self._inputs[0], failure.at) if message is None else coordinates(message)
        book = self._engine.dead_letters
        if book is not None and place in book.decisions:
            raise failure.error from failure.error.__cause__
        if policy is not None and self._attempts <= policy.retries:
            self._retry(failure, policy)
            return
        if failure.at < self.handled_until:
            raise failure.error from failure.error.__cause__
        decision = self._decide(failure, policy, self._attempts) if policy is not None else None
        if decision is not None:
            self._limits.require(failure)
        elif (
            # A side input fails at the next record's offset, and that record has not failed.
            isinstance(failure, SideInputFailed) or (decision := self._ask_operator(failure, message, record)) is None
        ):
            if policy is not None:
                self._end(policy, failure.error)
            raise failure.error from failure.error.__cause__
        self._book().decisions[place] = decision
        self._log(failure, decision)

    def _face_suspect(self, failure: RecordSuspected, message: Message | None, record: CommitRecord) -> None:
        """Decide before the handler gets the record: the last owner died at it, or an operator wants it away."""
        if message is not None and (decision := self._ask_operator(failure, message, record)) is not None:
            self._book().decisions[coordinates(message)] = decision
            self._log(failure, decision)

    def _ask_operator(
        self, failure: HandlingFailed, message: Message | None, record: CommitRecord
    ) -> FailureDecision | None:
        """Return the decision of a `dlq add` for this record; None without one, or if it is rejected."""
        error, tools = failure.error, self._tools
        if (
            message is None
            or not isinstance(error, RecordError)
            or error.topic not in self._inputs
            or tools.control is None
            or not tools.control_exists()
        ):
            return None
        found = find_dead_letter_command(tools, self._signals, coordinates(message), record)
        if found is None or found.dead_letter is None:
            return None
        command, request = found.command, found.dead_letter
        if cause := self._rejects(request, message, error):
            tools.log.warning("command_rejected", offset=command.offset, cause=f"{command.name}: {cause}")
            return None
        self.commanded = coordinates(message)
        noted = failure_of(raised(error), self._attempts, ordered=not request.overtake)
        by = {"id": command.id or str(command.offset), "who": command.issuer, "reason": request.why}
        return FailureDecision(msgspec.structs.replace(noted, **by))

    def _rejects(self, request: AddRequest, message: Message, error: RecordError) -> str:
        """Return why the record cannot become a dead letter; '' if it can."""
        if isinstance(error, HandlerFailed) and error.due:
            return f"the record is not at fault: {error.due} raised, and stays due. Next: fix the handler"
        if self._tools.settings.snapshot.delta_interval == "off":
            return (
                "snapshot.delta_interval is off, so a replay would handle the record again. Next: set it to a time, "
                "such as 10s, and restart the service"
            )
        keeps_order = self._engine.dead_letters is not None and self._engine.dead_letters.keeps_order
        if message.key() is None or keeps_order or request.overtake:
            return ""
        return (
            f"{self._kind.__name__} declares no dead_letter policy, so later records of the key would overtake "
            f"this one. Next: `statehold dlq add {self._tools.place.partition} {request.offset} --overtake "
            f"--why TEXT`, or declare the policy"
        )

    def repeat(self, decisions: Mapping[tuple[str, int], FailureDecision]) -> None:
        """Repeat the decisions of a transaction that only the sinks' database holds."""
        if decisions:
            self._book().decisions.update(decisions)

    def _book(self) -> DeadLetterBook:
        book = self._engine.dead_letters
        if book is None:
            book = self._engine.open_dead_letters()
            self._on_first()
        return book

    def decide_retried(self, place: tuple[str, int], retried: Retried, failure: HandlingFailed) -> bool:
        """Decide about a record of a retry topic that failed again: the next delay, or the end of its policy.

        False: the partition fails, or the service stops. The limits counted it at its first failure.
        """
        if self._decided_already(place):
            return False
        policy = replace(self._policy(failure.error) or Policy(), ordered=False)
        decision = self._decide(failure, policy, retried.failure.attempts + 1, retried.level + 1)
        if decision is None:
            self._end(policy, failure.error)
            return False
        self._book().decisions[place] = decision
        self._log(failure, decision)
        return True

    def decide_redriven(self, place: tuple[str, int], failure: HandlingFailed) -> bool:
        """Decide about a redriven dead letter that failed again.

        False: the partition fails.
        """
        if self._decided_already(place):
            return False
        noted = failure_of(raised(failure.error), 1)
        self._book().decisions[place] = FailureDecision(noted)
        self._tools.log.warning("replay_failed", offset=failure.offset, cause=f"{noted.error}: {noted.text}")
        return True

    def _decided_already(self, place: tuple[str, int]) -> bool:
        """Return whether the record has a decision, which then failed: the broker rejects the dead letter itself."""
        book = self._engine.dead_letters
        return book is not None and place in book.decisions

    def _policy(self, error: StateholdError) -> Policy | None:
        """Return the policy for a record of the input; a command of the control topic has no policy."""
        if not self._kind.on_failure or not isinstance(error, RecordError) or error.topic not in self._inputs:
            return None
        policy = policy_of(self._kind, error)
        if policy is not None and isinstance(error, DeadlyRecord):
            policy = replace(policy, retries=-1, delays=())  # because the handler must not get it again
        return policy

    def _retry(self, failure: HandlingFailed, policy: Policy) -> None:
        seconds, cause = policy.backoff(self._attempts), raised(failure.error)
        self._tools.metrics.inc(metrics.FAILED_RECORDS, 1, "retry")
        self._tools.log.warning(
            "record_retried",
            offset=failure.offset,
            attempt=self._attempts,
            seconds=round(seconds, 3),
            cause=class_and_text(cause),
        )
        self._signals.pause(seconds)

    def _decide(self, failure: HandlingFailed, policy: Policy, attempts: int, level: int = 0) -> FailureDecision | None:
        noted = failure_of(raised(failure.error), attempts, ordered=policy.ordered)
        if level < len(policy.delays):
            delay = policy.delays[level]
            return FailureDecision(noted, delay, level, int((self._tools.wall() + delay) * 1000))
        return FailureDecision(noted) if policy.end == "dead_letter" else None

    def _end(self, policy: Policy, error: StateholdError) -> None:
        self._tools.metrics.inc(metrics.FAILED_RECORDS, 1, policy.end)
        if policy.end == "stop":
            self._tools.report(WorkerReport(self._tools.place.partition, "stop", cause=error))

    def _log(self, failure: HandlingFailed, decision: FailureDecision) -> None:
        noted: Failure = decision.failure
        self._tools.log.warning(
            "retry_later" if decision.delay else "dead_letter",
            offset=failure.offset,
            attempts=noted.attempts,
            cause=f"{noted.error}: {noted.text}",
            **({"seconds": decision.delay} if decision.delay else {"ordered": noted.ordered}),
            **({"who": noted.who, "why": noted.reason} if noted.id else {}),
        )


class FailureLimits:
    """Counts failed records since the partition went live: too many of them are an outage, not bad data."""

    def __init__(self, tools: Tools) -> None:
        self._settings, self._place = tools.settings.failure, tools.place
        #: places of failed records in the partition's order, the newest last
        self._failed: deque[int] = deque()
        self._row = 0

    def require(self, failure: HandlingFailed) -> None:
        """Count a record that becomes a dead letter.

        :raises TooManyFailures: it exceeds a limit.
        """
        settings, at = self._settings, failure.at
        self._row = self._row + 1 if self._failed and at == self._failed[-1] + 1 else 1
        while self._failed and self._failed[0] <= at - settings.dead_window:
            self._failed.popleft()
        most = settings.dead_percent * settings.dead_window / 100
        if self._row > settings.dead_row:
            raise self._too_many(failure, f"{self._row} records in a row have failed (failure.dead_row)")
        if len(self._failed) + 1 > most:
            said = f"{len(self._failed) + 1} of the newest {settings.dead_window} records have failed"
            raise self._too_many(failure, f"{said} (failure.dead_percent)")
        self._failed.append(at)

    def _too_many(self, failure: HandlingFailed, why: str) -> TooManyFailures:
        place, cause = self._place, raised(failure.error)
        error = TooManyFailures(
            f"{why}, this one by {class_and_text(cause)}. This counts as an outage, not as bad records: no "
            f"more dead letters are written and nothing is skipped. Next: fix the cause, then `statehold retry "
            f"{place.partition}`",
            topic=failure.topic or place.input,
            partition=place.partition,
            position=failure.offset,
        )
        error.__cause__ = cause
        return error
