"""Askers that time out and ask again, under random schedules: an id takes effect once, and all get its answer."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import msgspec
import pytest
from tests.simulation.scenarios import SMALL, Op, Refused, after, texts
from tests.simulation.stored import verify_stored

from statehold import Handler, Output, Record, Replies, Table, Timer, dead_letter
from statehold.api.record import Message, Request
from statehold.messages.request import Reply, headers_of, read_reply
from statehold.testing.simulation import InputRecord, fuzz_crashes
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import timeline
from statehold.testing.simulation.simulation import RunResult, Scenario, Simulation

#: schedules of the fast tier, and of all
FAST, ALL = 40, 600
PARTITIONS = 2
#: seconds after which an asker asks again, and how often at most
PATIENCE, TRIES = 0.7, 6
#: the offset of a movement that its answer names, and the total after it
Answer = tuple[int, int]


class Desk(Handler[Op]):
    """Totals that depend on the order; some are answered at once, some by a timer, and 13 is refused."""

    on_failure: ClassVar = {Refused: dead_letter(ordered=False)}
    totals = Table(key=str, value=int)
    waiting = Table(key=str, value=tuple[Request, Answer])
    replies = Replies(Answer, keep=3600)
    out = Output("out", value=str)

    def on_record(self, record: Record[Op]) -> None:
        account, amount = record.value.account, record.value.amount
        if amount % 13 == 0:
            raise Refused(str(amount))
        total = self.totals[account] = after(self.totals.get(account, 0), amount)
        self.out.send(f"{record.offset} {account} {total}", partition=self.partition)
        if record.request is None or amount % 4:
            record.reply((record.offset, total))
        else:
            self.waiting[str(record.offset)] = record.request, (record.offset, total)
            self.schedule(record.timestamp + 500, str(record.offset))

    def on_timer(self, timer: Timer) -> None:
        request, answer = self.waiting[timer.payload]
        assert self.replies.answer(request, answer)


class AskedSimulation(Simulation):
    """Adds askers that follow the topic of replies, as a `Client` does."""

    def begin(self) -> None:
        super().begin()
        for number in range(24):
            name, op = f"id-{number % 10}", Op("abc"[number % 10 % 3], number % 10 + 1)
            if number == 17:  # another value under an id that was asked
                op = replace_amount(op, 99)
            self.kafka.timers.after(0.5 + number * 0.23, partial(self._ask, name, op, number, 0))

    def _ask(self, id: str, op: Op, asker: int, tries: int) -> None:
        """Ask, and ask again if no reply comes in time."""
        address, partition = b"%d/%d" % (asker, tries), "abc".index(op.account) % PARTITIONS
        log = self.kafka.log(self.names.input, partition)
        self.kafka.append(log, msgspec.json.encode(op), op.account.encode(), headers_of(id, address))
        self.kafka.timers.after(PATIENCE, partial(self._look, id, op, asker, tries, address, partition))

    def _look(self, id: str, op: Op, asker: int, tries: int, address: bytes, partition: int) -> None:
        found = replies_of(self.result, partition)
        if tries + 1 < TRIES and not any(reply.address == address for reply in found):
            self._ask(id, op, asker, tries + 1)


def replace_amount(op: Op, amount: int) -> Op:
    return msgspec.structs.replace(op, amount=amount)


def replies_of(outcome: RunResult, partition: int) -> list[Reply]:
    log = outcome.kafka.topics[outcome.names.replies].logs[partition]
    found = [read_reply(message) for message in log.committed()]
    assert None not in found, "a record of the topic of replies is no reply"
    return [reply for reply in found if reply is not None]


def expected_of(messages: list[Message]) -> tuple[list[str], Counter[tuple[bytes, str, Any]]]:
    """Recompute the outputs of a partition, and its replies: (return address, outcome, value or offset)."""
    totals: dict[str, int] = defaultdict(int)
    known: dict[tuple[bytes, str], tuple[bytes, Answer]] = {}
    lines: list[str] = []
    replies: Counter[tuple[bytes, str, Any]] = Counter()
    for message in messages:
        value, headers, offset = message.value(), dict(message.headers() or ()), message.offset() or 0
        op = msgspec.json.decode(value, type=Op)
        name, address = headers.get("statehold-request"), headers.get("statehold-reply-to", b"")
        request = message.key(), (name or b"").decode()
        if name is not None and request in known:
            first, answer = known[request]
            replies[address, *(("answered", answer) if first == value else ("conflict", answer[0]))] += 1
            continue
        if op.amount % 13 == 0:
            replies[address, "failed", offset] += 1
            continue
        totals[op.account] = after(totals[op.account], op.amount)
        lines.append(f"{offset} {op.account} {totals[op.account]}")
        if name is not None:
            known[request] = value, (offset, totals[op.account])
            replies[address, "answered", known[request][1]] += 1
    return lines, replies


def verify(outcome: RunResult) -> None:
    for partition in range(outcome.application.partitions):
        log = outcome.kafka.topics["input"].logs[partition]
        lines, replies = expected_of([*log.committed()])
        assert texts(outcome, "out", partition) == lines
        found: Counter[tuple[bytes, str, Any]] = Counter()
        for reply in replies_of(outcome, partition):
            answer = (
                msgspec.json.decode(reply.value or b"", type=Answer) if reply.outcome == "answered" else reply.offset
            )
            found[reply.address, reply.outcome, answer] += 1
        assert found == replies
    verify_stored(outcome)


SCENARIO = Scenario(
    Desk,
    [InputRecord(0.4 + number * 0.7, number % PARTITIONS, b'{"account":"z","amount":1}', b"z") for number in range(14)],
    SMALL,
    PARTITIONS,
    name="requests",
    verify=verify,
    rest=4.0,
)
RARE = replace(
    SCENARIO,
    name="requests, rare deltas",
    settings=replace(SMALL, snapshot=replace(SMALL.snapshot, delta_interval=2.0)),
)


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    """The runs leave cycles, and a restore makes the collector ignore them."""
    yield
    gc.unfreeze()
    gc.collect()


def run_schedules(seeds: range) -> None:
    for seed in seeds:
        report = AskedSimulation(RARE if seed % 2 else SCENARIO, Schedule.random(seed)).run()
        if report.violation is not None:
            pytest.fail(f"seed {seed}, {report.scenario.name}:\n{timeline(report)}", pytrace=False)


def test_askers_that_ask_again_get_one_effect_and_equal_answers() -> None:
    run_schedules(range(FAST))


@pytest.mark.slow
@pytest.mark.long
def test_more_askers() -> None:
    run_schedules(range(FAST, ALL))


def test_a_crash_at_every_step_of_a_request_leaves_one_answer() -> None:
    value = b'{"account":"a","amount":1}'
    asked = [
        InputRecord(1.0 + number * 0.4, 0, value, b"a", headers=headers_of("1", b"%d" % number)) for number in range(2)
    ]
    assert fuzz_crashes(Desk, asked, most=40).schedules > 20
