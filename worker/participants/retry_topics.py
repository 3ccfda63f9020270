"""Records of the retry topics: those that are due are handled when a transaction closes, in no order of the input.

Their positions stand in the mark, beside the input's. A transaction that handles one carries a delta, so that no replay
meets it (docs/design.md, "Failing records").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from statehold.declared.policies import retry_topics
from statehold.errors import StateholdError
from statehold.messages.retry_record import Retried
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format.records import Mark
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import Failing
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import Poisoned

#: in one transaction: of each topic, and seconds for all of them
_MOST: Final = 500
_LONG: Final = 1.0
#: after one that failed: what was handled before it is undone and handled again
_FEW: Final = 20


class Retries:
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, engine: Engine, mark: Mark) -> None:
        self._tools, self._engine = tools, engine
        names, topics = tools.place.names, retry_topics(type(engine.handler), tools.place.names)
        self._lanes = {topic: tools.delayed(topic) for topic in topics}
        #: topic -> next offset; what this code does not read any more stays as it was
        kept = {topic: at for topic, at in mark.positions.items() if names.is_for_retries(topic)}
        self._next: Mapping[str, int] = dict.fromkeys(topics, 0) | kept
        self._most = _MOST

    @property
    def waiting(self) -> bool:
        """Something is due that no mark has passed yet."""
        now = self._now() if self._lanes else 0
        return any(lane.due(self._next[topic], now)[1] > self._next[topic] for topic, lane in self._lanes.items())

    @property
    def held(self) -> int | None:
        """Records that have been read and wait for their time; None where nothing is tried later. Any thread."""
        return sum(lane.held for lane in self._lanes.values()) if self._lanes else None

    def hold(self) -> Mapping[str, int]:
        """None now: something that failed comes first, the partition stands still, or too many effects are owed."""
        return self._next

    def take(self, failing: Failing, send: Callable[[], None]) -> Mapping[str, int]:
        """Handle what is due; the positions after it. `send` is called after each record, and sends what it has sent.

        :raises Poisoned: undo; one with a verdict then comes again and meets it.
        """
        if not self._lanes:
            return self._next
        positions, until = dict(self._next), self._tools.clock() + _LONG
        for topic, lane in self._lanes.items():
            found, end = lane.due(positions[topic], self._now())
            for count, each in enumerate(found):
                if count == self._most or self._engine.effects.crowded or self._tools.clock() > until:
                    end = each.at
                    break
                self._handle(topic, each, failing, send)
            positions[topic] = end
        return positions

    def committed(self, positions: Mapping[str, int]) -> None:
        """The mark with these positions is the truth now."""
        self._next = positions
        self._most = min(_MOST, self._most * 2)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _handle(self, topic: str, retried: Retried, failing: Failing, send: Callable[[], None]) -> None:
        try:
            handle(self._engine, topic, retried)
            send()
        except Poisoned as poison:
            if not failing.judge_retried((topic, retried.at), retried, poison):
                raise
            self._most = _FEW
            raise Poisoned(poison.offset, poison.error, decided=True) from poison

    def _now(self) -> int:
        return int(self._tools.wall() * 1000)


def tell_unread(tools: Tools, engine: Engine, reader: Reader, mark: Mark) -> None:
    """A delay is no longer in the code and records wait for it: they stay where they are, and somebody must be told."""
    place, kind = tools.place, type(engine.handler)
    read = retry_topics(kind, place.names)
    for topic, position in mark.positions.items():
        if not place.names.is_for_retries(topic) or topic in read:
            continue
        try:
            start, end = reader.bounds(topic, place.partition)
            waits = any(reader.read(topic, place.partition, max(start, position), end))
        except (StateholdError, OutOfRange) as error:  # a topic that nobody needs keeps no partition down
            tools.log.warning("kafka_retry", doing=f"look whether records wait on {topic}", cause=str(error))
            continue
        if waits:
            delay = topic.removeprefix(place.names.retries)
            tools.log.error(
                "retries_unread",
                topic=topic,
                offset=position,
                cause=f"records wait there for a delay that {kind.__name__}.on_failure has no more, and nobody reads "
                f"them. Nothing is lost: put retry_later({delay}) back until `statehold lag` counts none",
            )


def handle(engine: Engine, topic: str, retried: Retried) -> None:
    """It meets its verdict, or the handler is given it once more. :raises Poisoned: it fails again."""
    letters = engine.letters
    assert letters is not None
    verdict = letters.verdicts.get((topic, retried.at))
    if verdict is not None:
        letters.carry_out(verdict, retried.message)
        return
    letters.handled()
    engine.try_letter(retried.message)
