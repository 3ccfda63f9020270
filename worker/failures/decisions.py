"""A record has failed, and all before it is committed: try it again, send it elsewhere, or fail the partition.

Nothing here touches the state. A decision is a verdict that the record meets when it comes again, alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from statehold.declared.policies import policy_of, raised
from statehold.errors import RecordError, StateholdError, TooManyFailures
from statehold.failures import Policy
from statehold.handler import Handler
from statehold.messages.dead_letter import Failure, failure_of
from statehold.messages.retry_record import Retried
from statehold.telemetry import metrics
from statehold.worker.common.context import Report, Tools
from statehold.worker.common.signals import Signals
from statehold.worker.handler.dead_letters import Verdict
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import Poisoned


class Failing:
    """Of one live partition; used by its thread."""

    def __init__(self, tools: Tools, signals: Signals, engine: Engine) -> None:
        self._tools, self._signals = tools, signals
        self._kind: type[Handler[Any]] = type(engine.handler)
        self._letters = engine.letters
        self._limits = Limits(tools)
        #: the record that is tried in place, and how often it has failed
        self._at, self._attempts = -1, 0
        #: records below this offset were handled before, and a sink has their rows: no letter may be made of one
        self.handled_until = -1

    @property
    def has_policies(self) -> bool:
        """The handler says for some class of errors what becomes of a record."""
        return bool(self._kind.on_failure)

    def failed(self, poison: Poisoned) -> None:
        """The handler was given it once more."""
        if not poison.batch:
            self._attempts = self._attempts + 1 if poison.offset == self._at else 1
            self._at = poison.offset

    def spare(self, poison: Poisoned) -> bool:
        """Whether the record may come again: after a pause, that a signal ends, or at once, to meet a verdict.

        False: the partition fails. :raises RecordError: it fails, and the error says more than the record's own.
        """
        if poison.final:
            return False
        policy = self._policy(poison.error)
        place = self._tools.place.input, poison.offset
        if policy is None or self._judged(place):
            return False
        if self._attempts <= policy.retries:
            return self._retry(poison, policy)
        if poison.offset < self.handled_until:
            return False
        verdict = self._verdict(poison, policy, self._attempts)
        if verdict is None or self._letters is None:
            self._end(policy, poison.error)
            return False
        self._limits.require(poison)
        self._letters.verdicts[place] = verdict
        self._tell(poison, verdict)
        return True

    def judge_retried(self, place: tuple[str, int], retried: Retried, poison: Poisoned) -> bool:
        """A record of a retry topic has failed again: on to the next delay, or to its end, where no record follows.

        False: the partition fails, or the service stops. The limits counted it when it failed first.
        """
        if self._judged(place):
            return False
        policy = replace(self._policy(poison.error) or Policy(), ordered=False)
        verdict = self._verdict(poison, policy, retried.failure.attempts + 1, retried.level + 1)
        if verdict is None or self._letters is None:
            self._end(policy, poison.error)
            return False
        self._letters.verdicts[place] = verdict
        self._tell(poison, verdict)
        return True

    def judge(self, place: tuple[str, int], poison: Poisoned) -> bool:
        """A letter that was to be replayed has failed again; it meets a verdict when it comes again.

        False: the partition fails.
        """
        if self._letters is None or self._judged(place):
            return False
        failure = failure_of(raised(poison.error), 1)
        self._letters.verdicts[place] = Verdict(failure)
        self._tools.log.warning("replay_failed", offset=poison.offset, cause=f"{failure.error}: {failure.text}")
        return True

    def _judged(self, place: tuple[str, int]) -> bool:
        """It has a verdict, which cannot be carried out: the letter itself is refused."""
        return self._letters is not None and place in self._letters.verdicts

    def _policy(self, error: StateholdError) -> Policy | None:
        """A command of the control topic is no record of the input, and has no policy."""
        if not self._kind.on_failure or not isinstance(error, RecordError) or error.topic != self._tools.place.input:
            return None
        return policy_of(self._kind, error)

    def _retry(self, poison: Poisoned, policy: Policy) -> bool:
        seconds, cause = policy.backoff(self._attempts), raised(poison.error)
        self._tools.metrics.inc(metrics.FAILED_RECORDS, 1, "retry")
        self._tools.log.warning(
            "record_retried",
            offset=poison.offset,
            attempt=self._attempts,
            seconds=round(seconds, 3),
            cause=f"{type(cause).__name__}: {cause}",
        )
        self._signals.pause(seconds)
        return True

    def _verdict(self, poison: Poisoned, policy: Policy, attempts: int, level: int = 0) -> Verdict | None:
        failure = failure_of(raised(poison.error), attempts, ordered=policy.ordered)
        if level < len(policy.delays):
            delay = policy.delays[level]
            return Verdict(failure, delay, level, int((self._tools.wall() + delay) * 1000))
        return Verdict(failure) if policy.end == "dead_letter" else None

    def _end(self, policy: Policy, error: StateholdError) -> None:
        self._tools.metrics.inc(metrics.FAILED_RECORDS, 1, policy.end)
        if policy.end == "stop":
            self._tools.report(Report(self._tools.place.partition, "stop", cause=error))

    def _tell(self, poison: Poisoned, verdict: Verdict) -> None:
        failure: Failure = verdict.failure
        self._tools.log.warning(
            "retry_later" if verdict.delay else "dead_letter",
            offset=poison.offset,
            attempts=failure.attempts,
            cause=f"{failure.error}: {failure.text}",
            **({"seconds": verdict.delay} if verdict.delay else {"ordered": failure.ordered}),
        )


class Limits:
    """How many records may fail before it is no matter of records any more; counted since the partition went live."""

    def __init__(self, tools: Tools) -> None:
        self._settings, self._place = tools.settings.failure, tools.place
        #: offsets of those that failed, the newest last
        self._failed: deque[int] = deque()
        self._row = 0

    def require(self, poison: Poisoned) -> None:
        """One more record is to become a letter.

        :raises TooManyFailures: it is one too many.
        """
        settings, offset = self._settings, poison.offset
        self._row = self._row + 1 if self._failed and offset == self._failed[-1] + 1 else 1
        while self._failed and self._failed[0] <= offset - settings.dead_window:
            self._failed.popleft()
        most = settings.dead_percent * settings.dead_window / 100
        if self._row > settings.dead_row:
            raise self._refused(poison, f"{self._row} records in a row have failed (failure.dead_row)")
        if len(self._failed) + 1 > most:
            said = f"{len(self._failed) + 1} of the newest {settings.dead_window} records have failed"
            raise self._refused(poison, f"{said} (failure.dead_percent)")
        self._failed.append(offset)

    def _refused(self, poison: Poisoned, why: str) -> TooManyFailures:
        place, cause = self._place, raised(poison.error)
        error = TooManyFailures(
            f"{why}, this one by {type(cause).__name__}: {cause}. That is an outage, not bad records: no more dead "
            f"letters are written and nothing is skipped; mend it, then `statehold retry {place.partition}`",
            topic=place.input,
            partition=place.partition,
            position=poison.offset,
        )
        error.__cause__ = cause
        return error
