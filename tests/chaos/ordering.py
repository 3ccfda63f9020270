"""The order in which a partition has handled two inputs: read from the outputs, and judged. No code of statehold.

The order has to keep that of each input, to be the one that the commit records keep, and, with `inputs.order` time, to
be a merge by time of what was on the brokers before the process started that handled it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from tests.chaos.workload import Sent


class Handled(NamedTuple):
    """A record, and the transaction that handled it."""

    n: int
    sent: Sent


@dataclass
class Order:
    """One partition of all inputs."""

    partition: int
    #: next offset of each input
    reached: list[int]
    #: all records in the order of their handling, those without an output where they belong; `offset` is the place
    sents: list[Sent] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    #: (input, offset) -> place
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    #: findings by anomaly
    findings: dict[str, list[str]] = field(default_factory=dict)

    def wrong(self, anomaly: str, text: str) -> None:
        self.findings.setdefault(anomaly, []).append(f"partition {self.partition}: {text}")

    def take(self, queue: list[Sent], before: int) -> None:
        """Place the records of an input before an offset."""
        while queue and queue[0].offset < before:
            sent = queue.pop(0)
            place = sum(self.reached) - self.reached[sent.input] + sent.offset
            self.reached[sent.input] = sent.offset + 1
            self.sents.append(sent._replace(offset=place))
            self.places[sent.input, sent.offset] = place


def order_of(
    partition: int, sents: Iterable[Sent], outputs: Iterable[tuple[int, int, str]], committed: Sequence[int]
) -> Order:
    """Return the order of a partition's records.

    `outputs`: (n, ordinal, trade's id) of each one; `committed`: the group's offset of each input.
    """
    order, waiting = Order(partition, [0] * len(committed)), [list[Sent]() for _ in committed]
    of_id: dict[str, list[Sent]] = {}
    for sent in sorted(sents, key=lambda each: each.offset):
        waiting[sent.input].append(sent)
        of_id.setdefault(sent.trade.id, []).append(sent)
    for n, _, name in sorted(outputs):
        if not of_id.get(name):
            continue  # duplicated or foreign: found where outputs are compared
        sent = of_id[name].pop(0)
        order.handled.append(Handled(n, sent))
        if sent.offset < order.reached[sent.input]:
            order.wrong("reordered", f"{name} at offset {sent.offset} of input {sent.input}")
        order.take(waiting[sent.input], sent.offset + 1)
    for queue, position in zip(waiting, committed, strict=True):  # without an output, but passed over
        order.take(queue, position)
    for queue in waiting:
        order.take(queue, 1 << 62)
    return order


def check_runs(order: Order, commit_records: Sequence[Mapping[str, Any]], topics: Sequence[str]) -> None:
    """Each commit record keeps the order of its transaction's records, all that lie between two of its positions."""
    handled = {n: [sent for _, sent in group] for n, group in groupby(order.handled, key=lambda each: each.n)}
    for before, record in pairwise(commit_records):
        n, sents = record["n"], handled.get(record["n"], [])
        if list(record.get("inputs", ())) != list(topics):
            order.wrong("order lost", f"transaction {n} names the inputs {record.get('inputs')}")
        recorded = list(runs(record.get("runs", b"")))
        found = [(index, len(list(group))) for index, group in groupby(sent.input for sent in sents)]
        if recorded != found:
            order.wrong("order lost", f"transaction {n} keeps the runs {recorded[:5]}, its outputs come in {found[:5]}")
        for index, topic in enumerate(topics):
            between = list(range(before["positions"][topic], record["positions"][topic]))
            if [sent.offset for sent in sents if sent.input == index] != between:
                order.wrong("order lost", f"transaction {n} has not handled all of {topic} between its positions")


def runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Input and number of records of each run (docs/reference/format.md)."""
    at = 0
    while at < len(data):
        index, count, shift, at = data[at], 0, 0, at + 1
        more = True
        while more:
            byte = data[at] if at < len(data) else 0
            count, shift, at, more = count | (byte & 127) << shift, shift + 7, at + 1, byte > 127
        yield index, count


def check_times(order: Order, writers: Mapping[int, int], born: Mapping[int, float]) -> int:
    """Find records handled before the next one of another input that has a lower time. Return how many were compared.

    `writers`: the process that has committed a transaction; `born`: when a process started. A record that was
    acknowledged before that is known to the process before it handles any: the broker does not say that there are no
    more. What arrives later may come late.
    """
    queues: dict[int, list[Sent]] = {}
    compared = 0
    for _, sent in reversed(order.handled):
        queues.setdefault(sent.input, []).append(sent)
    for n, sent in order.handled:
        queues[sent.input].pop()
        since = born.get(writers.get(n, 0), 0.0)
        for index, queue in queues.items():
            head = queue[-1] if queue else None
            if index == sent.input or head is None or head.at >= since:
                continue
            compared += 1
            if (head.time, head.input) < (sent.time, sent.input):
                order.wrong(
                    "not merged by time",
                    f"transaction {n}: {sent.trade.id} of {sent.time} comes before "
                    f"{head.trade.id} of {head.time}, which was there {since - head.at:.1f} s before the process",
                )
    return compared
