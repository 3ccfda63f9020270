"""Failing records: the new code decides by its own policies; what an operator or another system decided stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from statehold.admin.inspection.output_records import OutputRecord
from statehold.api.failures import Policy
from statehold.api.handler import Handler
from statehold.api.record import MemoryMessage, Message
from statehold.bound.policies import policy_of, raised
from statehold.common.names import Names
from statehold.errors import RecordError
from statehold.messages.dead_letter import DeadLetter, Resolution, failure_of, read
from statehold.messages.retry_record import Retried
from statehold.worker.failures.history import At, HandledRetry
from statehold.worker.handler.dead_letters import FailureDecision, coordinates
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed

#: errors that a rehearsal cannot repeat: a broker, a database, a clock or the end of a process decided
_ELSEWHERE: Final = frozenset(
    ("DeadlyRecord", "OutputRefused", "SinkRefused", "TimestampAhead", "TooManyFailures", "HandlerStuck")
)


class FailureEntry(NamedTuple):
    """A dead letter, a resolution or a retry: which record, what became of it, and the class of the error."""

    topic: str
    offset: int
    what: str
    error: str


class NewFailures:
    """The failure decisions of the new code in one partition."""

    def __init__(self, engine: Engine, names: Names) -> None:
        self._engine, self._names = engine, names
        self._kind: type[Handler[Any]] = type(engine.handler)
        #: records that the new code has sent to a retry topic, by that topic
        self._waiting: set[tuple[str, At]] = set()

    def forget(self, most: int) -> int:
        """Forget which records wait on retry topics if there are more than `most`; return how many were forgotten."""
        if len(self._waiting) <= most:
            return 0
        forgotten = len(self._waiting)
        self._waiting.clear()
        return forgotten

    def keep(self, decisions: Mapping[At, FailureDecision]) -> None:
        """Keep the live decisions that no handler made."""
        kept = {at: each for at, each in decisions.items() if each.failure.id or each.failure.error in _ELSEWHERE}
        if kept:
            self._engine.open_dead_letters().decisions = kept
        elif self._engine.dead_letters is not None:
            self._engine.dead_letters.decisions = {}

    def decide(self, failure: HandlingFailed, message: Message, attempts: int, retry: HandledRetry | None) -> bool:
        """Return whether to handle the record again: because its policy retries, or with its decision now.

        `message`: the record; of a retry topic the original one, and `retry` names it.
        """
        error = failure.error
        policy = self._policy(error)
        book = self._engine.dead_letters
        place = coordinates(message) if retry is None else (retry.topic, retry.retried.at)
        if policy is None or (book is not None and place in book.decisions):
            return False
        if retry is None and attempts <= policy.retries:
            return True
        level = 0 if retry is None else retry.retried.level + 1
        noted = failure_of(raised(error), attempts, ordered=policy.ordered and retry is None)
        if level < len(policy.delays):
            delay = policy.delays[level]
            decision = FailureDecision(noted, delay, level, message.timestamp()[1] + int(delay * 1000))
            self._waiting.add((self._names.retry(delay), coordinates(message)))
        elif policy.end == "dead_letter":
            decision = FailureDecision(noted)
        else:
            return False
        self._engine.open_dead_letters().decisions[place] = decision
        return True

    def redriven(self, failure: HandlingFailed, message: Message) -> bool:
        """Decide about a redriven dead letter that failed again. Return whether to obey its command again."""
        book = self._engine.open_dead_letters()
        if coordinates(message) in book.decisions:
            return False
        book.decisions[coordinates(message)] = FailureDecision(failure_of(raised(failure.error), 1))
        return True

    def waits(self, retry: HandledRetry, start: Mapping[str, int]) -> bool:
        """Return whether the new code handles this record of a retry topic: it waited at the start, or failed here."""
        was = coordinates(retry.retried.message)
        return (retry.topic, was) in self._waiting or was[1] < start.get(was[0], 0)

    def handled(self, retries: Iterable[HandledRetry]) -> None:
        """Note that these records of retry topics have had their turn."""
        self._waiting.difference_update((each.topic, coordinates(each.retried.message)) for each in retries)

    @property
    def waiting(self) -> int:
        """Number of records that would still wait on a retry topic."""
        return len(self._waiting)

    def _policy(self, error: BaseException) -> Policy | None:
        if not self._kind.on_failure or not isinstance(error, RecordError) or error.topic not in self._names.inputs:
            return None
        return policy_of(self._kind, error)


def entries(outputs: Iterable[OutputRecord], names: Names, partition: int) -> Counter[FailureEntry]:
    """Return the dead letters, resolutions and retries among these outputs."""
    found: Counter[FailureEntry] = Counter()
    for output in outputs:
        message = MemoryMessage(output.topic, partition, 0, output.value, output.key, output.headers)
        if output.topic == names.dead:
            each = read(message)
            if isinstance(each, DeadLetter):
                found[FailureEntry(each.topic, each.offset, f"dead letter, {each.why}", each.error)] += 1
            elif isinstance(each, Resolution):
                found[FailureEntry(names.input, each.offset, each.what, each.error)] += 1
        elif (retried := Retried.by(message, names.inputs)) is not None:
            at = coordinates(retried.message)
            found[FailureEntry(*at, f"sent to {output.topic}", retried.failure.error)] += 1
    return found
