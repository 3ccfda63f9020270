"""Read past failure decisions from the topics, for tools that handle the input again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.bound.policies import delays
from statehold.common.names import Names
from statehold.messages.dead_letter import FAILED_AGAIN, DeadLetter, Failure, Resolution, read
from statehold.messages.retry_record import Retried
from statehold.ports import Reader
from statehold.worker.handler.dead_letters import FailureDecision, coordinates
from statehold.worker.handler.engine import Engine

#: topic and offset
At = tuple[str, int]


class HandledRetry(NamedTuple):
    """A record of a retry topic that a transaction handled."""

    topic: str
    retried: Retried


def recall(engine: Engine, reader: Reader, names: Names, partition: int, *, dead: bool) -> RetryHistory:
    """Give the engine the decisions about its failed records; return the records of the retry topics.

    `dead`: the topic of dead letters exists. An operator may use it although the handler declares none.
    """
    tried = RetryHistory(type(engine.handler), names)
    if not dead:
        return tried

    def everything(topic: str) -> Iterator[Message]:
        for batch in reader.read(topic, partition, *reader.bounds(topic, partition)):
            yield from batch

    for topic in tried.topics:
        tried.add(topic, everything(topic))
    engine.open_dead_letters().decisions = tried.decisions(map(read, everything(names.dead)), names.control)
    return tried


class RetryHistory:
    """The records of one partition's retry topics."""

    def __init__(self, kind: type[Handler[object]], names: Names) -> None:
        self._inputs = names.inputs
        self._delays = {names.retry(delay): delay for delay in delays(kind)} if kind.on_failure else {}
        self._found: dict[str, list[Retried]] = {topic: [] for topic in self._delays}

    @property
    def topics(self) -> list[str]:
        """Return the retry topics in the order in which a transaction reads them."""
        return list(self._delays)

    def add(self, topic: str, messages: Iterable[Message]) -> None:
        """Add the records of one retry topic, in their order."""
        found = (Retried.by(message, self._inputs) for message in messages)
        self._found[topic] += [each for each in found if each is not None]

    @property
    def records(self) -> set[At]:
        """Return the records that were sent to a retry topic, by their input and offset."""
        return {coordinates(each.message) for found in self._found.values() for each in found}

    def passed(self, positions: Mapping[str, int]) -> None:
        """Forget the records below these positions, which have been handled."""
        for topic, found in self._found.items():
            self._found[topic] = [each for each in found if each.at >= positions.get(topic, 0)]

    def between(self, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[HandledRetry]:
        """Return the records that a transaction with these positions handled after its records of the input."""
        for topic, found in self._found.items():
            low, high = before.get(topic, 0), after.get(topic, 0)
            yield from (HandledRetry(topic, each) for each in found if low <= each.at < high)

    def decisions(
        self, dead_letters: Iterable[DeadLetter | Resolution | None], control: str
    ) -> dict[At, FailureDecision]:
        """Return the decision about each failed record, by topic and offset."""
        found: dict[At, FailureDecision] = {}
        last: dict[At, At] = {}
        for record, tries in self._by_record().items():
            for (place, _), (_, decision) in pairwise([(record, None), *tries]):
                assert decision is not None
                found[place] = decision
            last[record] = tries[-1][0]
        for each in dead_letters:
            if isinstance(each, DeadLetter) and each.why == "raised":
                by = {"id": each.id, "who": each.who, "reason": each.reason}
                failure = Failure(each.error, each.text, each.attempts, each.ordered, **by)
                found[last.get((each.topic, each.offset), (each.topic, each.offset))] = FailureDecision(failure)
            elif isinstance(each, Resolution) and each.what == FAILED_AGAIN:
                found[control, each.command] = FailureDecision(Failure(each.error, each.text, 1))
        return found

    def _by_record(self) -> dict[At, list[tuple[At, FailureDecision]]]:
        """Return the attempts by record, in order: topic and offset, and the decision that led there."""
        found: dict[At, list[tuple[At, FailureDecision]]] = {}
        for topic, tries in self._found.items():
            for each in tries:
                decision = FailureDecision(each.failure, self._delays[topic], each.level, each.due)
                found.setdefault(coordinates(each.message), []).append(((topic, each.at), decision))
        for tried in found.values():
            tried.sort(key=lambda each: each[1].level)
        return found
