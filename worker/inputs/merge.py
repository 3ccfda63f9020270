"""Decides which input's record comes next. It uses no Kafka and no clock: time is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice, repeat, takewhile
from typing import Final, Literal

from statehold.api.record import MergedMessage, Message
from statehold.worker.inputs.turns import Turn

Order = Literal["time", "arrival"]

#: least records of one input in sequence that are handed over together, without a look at each
_ROW: Final = 64


@dataclass(slots=True)
class Queue:
    """What is known of one input: its records that wait, in their order."""

    #: next offset to hand over
    position: int
    messages: deque[Message] = field(default_factory=deque)
    #: what decides about each of them: its timestamp, or its batch's place in the order of arrival
    ranks: deque[int] = field(default_factory=deque)
    #: the broker has no record behind the last one
    at_end: bool = False
    #: the rank of the last record that was not ahead of the clock
    rank: int = 0
    #: since when it is empty and at its end, in monotonic seconds; infinite: it is not
    idle_since: float = math.inf
    #: for how many seconds it is waited for then
    idle: float = 0.0


class Merge:
    """Used by one thread at a time.

    `order="time"`: the waiting record with the lowest timestamp, of equal ones the input that is declared first. An
    input without a waiting record is waited for until the broker says that it has no more, and then for `idle` seconds.
    An input that the service writes itself is not waited for then, because its next record may follow from one that
    waits (rule H3). `order="arrival"`: the record that came first; no input is waited for.
    """

    def __init__(
        self,
        positions: Sequence[int],
        *,
        order: Order,
        idle: float,
        first: Sequence[Turn] = (),
        latest: Callable[[], int] | None = None,
        own: Container[int] = (),
    ) -> None:
        """`positions`: next offset of each input. `first`: the order of the first records, whatever `order` says.

        `own`: the inputs that the service writes itself, by index.

        `latest`: the highest timestamp that counts now. A record with a later one comes directly behind the record
        before it in its input, because otherwise its input would wait as long as the others have records.
        """
        self._queues = [Queue(at, idle=0.0 if index in own else idle) for index, at in enumerate(positions)]
        self._by_time, self._latest = order == "time", latest
        #: the sum of the positions: where the next record follows
        self.position = sum(positions)
        self._arrived = 0
        self._turns = deque(first)
        self._drop_turns()

    def held(self, input: int) -> int:
        """Return how many records of an input wait."""
        return len(self._queues[input].messages)

    @property
    def depth(self) -> int:
        """Number of waiting records."""
        return sum(len(queue.messages) for queue in self._queues)

    def add(self, input: int, messages: Sequence[Message]) -> None:
        """Take records of one input, which follow those that it has given before."""
        queue = self._queues[input]
        queue.at_end, queue.idle_since = False, math.inf
        queue.messages.extend(messages)
        self._arrived += 1
        if self._by_time and self._latest is not None:
            self._add_ranks(queue, messages, self._latest())
        elif self._by_time:
            queue.ranks.extend([message.timestamp()[1] for message in messages])
        else:
            queue.ranks.extend([self._arrived] * len(messages))

    def _add_ranks(self, queue: Queue, messages: Sequence[Message], latest: int) -> None:
        for message in messages:
            if (time := message.timestamp()[1]) <= latest:
                queue.rank = time
            queue.ranks.append(queue.rank)

    def end(self, input: int, now: float) -> None:
        """Note that the broker has no record behind those that this input has given."""
        queue = self._queues[input]
        queue.at_end = True
        if not queue.messages:
            queue.idle_since = min(queue.idle_since, now)

    def waits(self, now: float) -> float:
        """Return for how many seconds an input is still waited for: 0 if none is, infinite without a limit."""
        if self._turns:
            return 0.0 if self._queues[self._turns[0].input].messages else math.inf
        if not self._by_time:
            return 0.0
        left = [queue.idle_since + queue.idle - now for queue in self._queues if not queue.messages]
        return max(0.0, max(left, default=0.0))

    def ready(self, now: float) -> bool:
        """Return whether `next` would return a record."""
        return self.waits(now) == 0.0 and any(queue.messages for queue in self._queues)

    def next(self, most: int, now: float) -> list[MergedMessage]:
        """Return up to `most` records in the order in which the partition handles them; none while it has to wait."""
        merged: list[MergedMessage] = []
        if not self.ready(now):
            return merged
        if self._turns:
            return self._next_of_turn(most)
        queues, position = self._queues, self.position
        heads = [(queue.ranks[0], index) for index, queue in enumerate(queues) if queue.messages]
        heapify(heads)
        if row := self._row(heads, most):
            return self._placed(row, heads[0][1], now)
        for _ in range(most):
            index = heads[0][1]
            queue = queues[index]
            message, ranks = queue.messages.popleft(), queue.ranks
            offset = message.offset() or 0
            at = position - queue.position + offset
            merged.append(MergedMessage(message, index, at))
            queue.position, position = offset + 1, at + 1
            ranks.popleft()
            if ranks:
                heapreplace(heads, (ranks[0], index))
                continue
            heappop(heads)
            if queue.at_end:
                queue.idle_since = now
            if not heads or self.waits(now):
                break
        self.position = position
        return merged

    def _row(self, heads: Sequence[tuple[int, int]], most: int) -> list[Message]:
        """Take the records of the first input that come before the next one of any other; none if they are few."""
        index = heads[0][1]
        messages, ranks = self._queues[index].messages, self._queues[index].ranks
        if min(most, len(messages)) < _ROW:
            return []
        first = list(islice(ranks, most))
        if len(heads) > 1:
            rank, other = min(heads[1:])
            end = rank + (index < other)
            if max(first[:_ROW]) >= end:
                return []
            if max(first) >= end:
                first = list(takewhile(end.__gt__, first))
        if len(first) == len(messages):
            row = list(messages)
            messages.clear()
            ranks.clear()
            return row
        for _ in first:
            ranks.popleft()
        return [messages.popleft() for _ in first]

    def _placed(self, row: Sequence[Message], index: int, now: float) -> list[MergedMessage]:
        """Return the next records, all of one input, with their places."""
        queue = self._queues[index]
        first, last, others = row[0].offset() or 0, row[-1].offset() or 0, self.position - queue.position
        places: Sequence[int] = range(others + first, others + last + 1)
        if len(places) > len(row):  # compaction and control records leave gaps
            places = [others + (message.offset() or 0) for message in row]
        queue.position, self.position = last + 1, others + last + 1
        if queue.at_end and not queue.messages:
            queue.idle_since = now
        return list(map(MergedMessage, row, repeat(index), places))

    def _next_of_turn(self, most: int) -> list[MergedMessage]:
        index, end = self._turns[0]
        queue, merged = self._queues[index], list[MergedMessage]()
        while len(merged) < most and queue.messages and (offset := queue.messages[0].offset() or 0) < end:
            at = self.position - queue.position + offset
            merged.append(MergedMessage(queue.messages.popleft(), index, at))
            queue.ranks.popleft()
            queue.position, self.position = offset + 1, at + 1
        self._drop_turns()
        return merged

    def _drop_turns(self) -> None:
        """Drop the turns that are over."""
        while self._turns:
            index, end = self._turns[0]
            queue = self._queues[index]
            reached = queue.messages[0].offset() or 0 if queue.messages else queue.position
            if reached < end:
                break
            self._turns.popleft()
