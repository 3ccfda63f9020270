"""Services that the simulation runs, and what must come out, by recomputations that know nothing of statehold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import msgspec
from tests.simulation.stored import verify_stored

from statehold import Handler, Output, Record, Sink, Table, Timer, on
from statehold.config.settings import Settings
from statehold.failures import dead_letter
from statehold.handler import EffectKey
from statehold.testing.simulation.cluster import quick_settings
from statehold.testing.simulation.simulation import InputRecord, RunResult, Scenario, is_committed, reach

PARTITIONS = 3
MODULUS = 1_000_003
#: milliseconds after its record that a timer is due
TIMER = 700


class Op(msgspec.Struct, frozen=True):
    """Moves one account. The new total depends on all earlier amounts and on their order."""

    account: str
    amount: int = 0


class Row(msgspec.Struct, frozen=True):
    """An account in the database."""

    account: str
    total: int = 0


class Entry(msgspec.Struct, frozen=True):
    """One movement in the database."""

    partition: int
    number: int
    total: int = 0


class Refused(ValueError):
    """The record cannot be handled, now or later."""


def after(total: int, amount: int) -> int:
    return (total * 3 + amount) % MODULUS


class Book(Handler[Op]):
    """Running totals. A movement of 0 says all totals."""

    totals = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[Op]) -> None:
        op = record.value
        if op.amount == 0:
            shown = ",".join(f"{account}={total}" for account, total in sorted(self.totals.items()))
            self.out.send(shown, partition=record.partition)
            return
        total = self.totals[op.account] = after(self.totals.get(op.account, 0), op.amount)
        self.out.send(f"{op.account}={total}", partition=record.partition)


#: (function, key, arguments) of each effect that ran
called: list[tuple[str, EffectKey, Any]] = []


def post(key: EffectKey, value: str) -> None:
    """An external system."""
    action = reach("effect")
    if action is not None and action.kind == "fail":
        raise ConnectionError("down")
    called.append(("post" if is_committed(*key[:3]) else "post before its commit", key, value))


class Everything(Book):
    """Totals, timers, effects and rows of a database."""

    due = Output("due", value=str)
    rows = Sink("rows", value=Row, key=("account",))
    entries = Sink("entries", value=Entry, key=("partition", "number"))
    fired = Table(key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        op = record.value
        if op.amount == 0:
            return
        total = self.totals[op.account]
        name = f"{record.partition}/{op.account}"
        self.rows.put(Row(name, total))
        self.entries.put(Entry(record.partition, record.offset, total))
        if op.amount % 3 == 0:
            self.effect(post, f"{record.partition}/{record.offset}/{total}")
        if op.amount % 4 == 0:
            self.schedule(record.timestamp + TIMER, op.amount, id=f"{record.offset}")

    def on_timer(self, timer: Timer) -> None:
        self.fired[timer.id] = self.fired.get(timer.id, 0) + 1
        self.due.send(f"{timer.id} {timer.payload} {self.fired[timer.id]}", partition=self.partition)


class Letters(Book):
    """A movement of 13 is refused, and blocks its account."""

    on_failure: ClassVar = {Refused: dead_letter()}

    def on_record(self, record: Record[Op]) -> None:
        if record.value.amount % 13 == 0 and record.value.amount:
            self.totals["unseen"] = 1
            raise Refused(record.value.account)
        super().on_record(record)


class Chain(Handler[Op]):
    """Two inputs; each output depends on every record before it, of whichever input."""

    links = Table(key=str, value=int)
    out = Output("out", value=str)

    @on("input", value=Op)
    def on_first(self, record: Record[Op]) -> None:
        self._link(record, 3)

    @on("second", value=Op)
    def on_second(self, record: Record[Op]) -> None:
        self._link(record, 5)

    def _link(self, record: Record[Op], factor: int) -> None:
        link = self.links["all"] = (self.links.get("all", 7) * factor + record.value.amount) % MODULUS
        self.out.send(f"{record.topic} {record.offset} {link}", partition=record.partition)


def book(ops: Sequence[Op]) -> list[str]:
    """The outputs of one partition."""
    totals: dict[str, int] = {}
    said = []
    for op in ops:
        if op.amount == 0:
            said.append(",".join(f"{account}={total}" for account, total in sorted(totals.items())))
        else:
            totals[op.account] = after(totals.get(op.account, 0), op.amount)
            said.append(f"{op.account}={totals[op.account]}")
    return said


def ops_of(inputs: Sequence[InputRecord], partition: int) -> list[Op]:
    return [msgspec.json.decode(each.value or b"", type=Op) for each in inputs if each.partition == partition]


def texts(outcome: RunResult, topic: str, partition: int) -> list[str]:
    return [(value or b"").decode() for _, value in outcome.outputs(topic)[partition]]


def verify_book(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    for partition in range(PARTITIONS):
        assert_same(f"out[{partition}]", texts(outcome, "out", partition), book(ops_of(inputs, partition)))


def verify_everything(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    verify_book(inputs, outcome)
    rows: dict[tuple[Any, ...], Any] = {}
    entries: dict[tuple[Any, ...], Any] = {}
    effects: set[tuple[EffectKey, str]] = set()
    for partition in range(PARTITIONS):
        totals: defaultdict[str, int] = defaultdict(int)
        timers: Counter[str] = Counter()
        for offset, op in enumerate(ops_of(inputs, partition)):
            if op.amount == 0:
                continue
            total = totals[op.account] = after(totals[op.account], op.amount)
            name = f"{partition}/{op.account}"
            rows[name,] = {"account": name, "total": total}
            entries[partition, offset] = {"partition": partition, "number": offset, "total": total}
            if op.amount % 3 == 0:
                effects.add((("input", partition, offset, 0), f"{partition}/{offset}/{total}"))
            if op.amount % 4 == 0:
                timers[f"{offset} {op.amount} 1"] += 1
        assert_same(f"due[{partition}]", sorted(texts(outcome, "due", partition)), sorted(timers.elements()))
    assert_same("rows", outcome.application.database.tables.get("rows", {}), rows)
    assert_same("entries", outcome.application.database.tables.get("entries", {}), entries)
    assert_same("effects", {(key, value) for _, key, value in called}, effects)
    assert_same("functions", {function for function, _, _ in called}, {"post"})


def verify_letters(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    for partition in range(PARTITIONS):
        passed, letters = [], []
        blocked: set[bytes | None] = set()
        mine = [each for each in inputs if each.partition == partition]
        for each, op in zip(mine, ops_of(inputs, partition), strict=True):
            if each.key in blocked or (op.amount and op.amount % 13 == 0):
                blocked.add(each.key)
                letters.append(op)
            else:
                passed.append(op)
        assert_same(f"out[{partition}]", texts(outcome, "out", partition), book(passed))
        dead = [msgspec.json.decode(text, type=Op) for text in texts(outcome, "letters.input.dead", partition)]
        assert_same(f"dead letters [{partition}]", dead, letters)


def verify_chain(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Any interleaving will do, if each input comes in its order, and each link follows from the one before it."""
    for partition in range(PARTITIONS):
        ops = {
            topic: ops_of([each for each in inputs if each.topic == topic], partition) for topic in ("input", "second")
        }
        positions, link = Counter[str](), 7
        for number, text in enumerate(texts(outcome, "out", partition)):
            topic, offset, found = text.split()
            assert_same(f"offset of output {number} of [{partition}]", int(offset), positions[topic])
            link = (link * (3 if topic == "input" else 5) + ops[topic][positions[topic]].amount) % MODULUS
            assert_same(f"output {number} of [{partition}]", int(found), link)
            positions[topic] += 1
        assert_same(f"records of [{partition}]", positions, Counter({topic: len(each) for topic, each in ops.items()}))


def verified(
    verify: Callable[[Sequence[InputRecord], RunResult], None], inputs: Sequence[InputRecord], outcome: RunResult
) -> None:
    verify(inputs, outcome)
    verify_stored(outcome)


def assert_same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: {found} instead of {expected}"


def made(number: int, count: int, seconds: float, accounts: str = "abcd", zero: int = 9) -> list[InputRecord]:
    """Return movements in `seconds`, in bursts; every `zero`-th one says all totals."""
    inputs = []
    for index in range(count):
        moment = seconds * (index // 3) / (count // 3)
        amount = 0 if index % zero == zero - 1 else 1 + (index * 7 + number * 5) % 40
        account = accounts[(index * index + number) % len(accounts)]
        inputs.append(
            InputRecord(
                moment, (index * 2 + number) % PARTITIONS, msgspec.json.encode(Op(account, amount)), account.encode()
            )
        )
    # The last ones show what is left of everything.
    return [*inputs, *(InputRecord(seconds + 0.1, p, msgspec.json.encode(Op("a", 0)), b"z") for p in range(PARTITIONS))]


BASE = quick_settings()
SHORT = replace(BASE, snapshot=replace(BASE.snapshot, chunk_bytes=4096))


def _settings(**sections: dict[str, Any]) -> Settings:
    changed = {name: replace(getattr(SHORT, name), **values) for name, values in sections.items()}
    return replace(SHORT, **changed)


def _book(name: str, settings: Settings, number: int, **more: Any) -> Scenario:
    inputs = made(number, 36, 4.0)
    return Scenario(
        Book, inputs, settings, PARTITIONS, name=name, verify=partial(verified, verify_book, inputs), **more
    )


def _everything(number: int) -> Scenario:
    inputs = made(number, 36, 4.0)
    return Scenario(
        Everything,
        inputs,
        SHORT,
        PARTITIONS,
        name="everything",
        verify=partial(verified, verify_everything, inputs),
        begin=called.clear,
        rest=4.0,
    )


def _letters(name: str, settings: Settings, number: int) -> Scenario:
    inputs = made(number, 36, 4.0, accounts="abcdefgh")
    return Scenario(Letters, inputs, settings, PARTITIONS, name=name, verify=partial(verified, verify_letters, inputs))


def _chain(name: str, settings: Settings, number: int, **more: Any) -> Scenario:
    both = zip(made(number, 24, 4.0), made(number + 1, 24, 4.0), strict=True)
    inputs = [each for one, two in both for each in (one._replace(topic="input"), two._replace(topic="second"))]
    return Scenario(
        Chain,
        inputs,
        settings,
        PARTITIONS,
        topics=("input", "second"),
        name=name,
        verify=partial(verified, verify_chain, inputs),
        **more,
    )


SCENARIOS: tuple[Scenario, ...] = (
    _book("deltas with each commit", SHORT, 0, events=("retention",)),
    _book("deltas every 2 s", _settings(snapshot={"delta_interval": 2.0}), 1),
    _book("no deltas", _settings(snapshot={"delta_interval": "off"}), 2),
    _book("consumer protocol", _settings(group={"protocol": "consumer", "session_timeout": "auto"}), 3),
    _book("standby replicas", _settings(group={"standbys": 1}), 4, processes=3),
    _everything(5),
    _everything(6),
    _letters("letters", SHORT, 7),
    _letters("letters, deltas every 2 s", _settings(snapshot={"delta_interval": 2.0}), 8),
    _book("static members", _settings(group={"membership": "static"}, service={"instance": "of-each-process"}), 12),
    _book("late markers", _settings(snapshot={"delta_interval": 2.0}), 13, markers=0.5, rest=1.0),
    _chain("two inputs by time", _settings(snapshot={"delta_interval": 2.0}), 9),
    _chain("two inputs by arrival", _settings(snapshot={"delta_interval": "off"}, inputs={"order": "arrival"}), 10),
    _chain("two inputs, standby replicas", _settings(group={"standbys": 1}), 11, processes=3),
)
