"""Services that the simulation runs, and what must come out, by recomputations that know nothing of statehold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar

import msgspec
from tests.simulation.rekeyed import ledger
from tests.simulation.stored import verify_stored

from statehold import (
    Call,
    CallFailure,
    CallResult,
    Handler,
    Output,
    Record,
    Reference,
    Sink,
    Table,
    Timer,
    dead_letter,
    on,
    retry,
    retry_later,
)
from statehold.api.handler import EffectKey
from statehold.config.settings import Settings
from statehold.errors import CallRejected
from statehold.testing.simulation.cluster import quick_settings
from statehold.testing.simulation.simulation import (
    InputRecord,
    RunResult,
    Scenario,
    Simulation,
    is_committed,
    reach,
)
from statehold.testing.simulation.store import SIMULATED

MODULUS = 1_000_003
#: milliseconds after its record that a timer is due
TIMER = 700
RATES = "rates"


@dataclass(frozen=True)
class Size:
    """The length of a scenario's runs."""

    name: str
    partitions: int
    #: of each input, in these seconds
    records: int
    seconds: float
    #: seconds between two deltas where they are rare
    rare: float


#: about 1,000 steps, and about 300
LONG, SHORT = Size("", 3, 36, 4.0, 2.0), Size(", short", 1, 5, 0.6, 0.5)


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


class Question(msgspec.Struct, frozen=True):
    """What the remote system gets: the record's offset, and how many questions went before it."""

    offset: int
    amount: int
    depth: int = 0


#: answers that the remote system has given, each time another one, by partition, offset and depth
given: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
#: questions that came before the commit of their record
too_early: list[str] = []
numbers = count(1)


def forget_questions() -> None:
    given.clear()
    too_early.clear()


def answer(name: str, question: Question) -> int:
    """A remote system that answers a repeated question otherwise, which is the worst that it may do."""
    topic, partition, offset, *_ = name.split("/")
    if topic == "input" and not is_committed(topic, int(partition), int(offset)):
        too_early.append(name)
    if question.amount % 10 == 0:
        raise CallRejected("a round amount")
    number = next(numbers)
    given[int(partition), question.offset, question.depth].add(number)
    return number


class Asking(Book):
    """Asks a remote system; each answer is linked to all earlier ones, and some ask again."""

    ask = Call(answer, argument=Question, result=int, backoff=0.2, max_backoff=0.5)
    links = Table(key=str, value=int)
    counts = Table(key=str, value=int)
    told = Output("told", value=str)

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        if record.value.amount % 2 == 0 and record.value.amount:
            self.ask(Question(record.offset, record.value.amount))

    @ask.on_result
    def on_answer(self, done: CallResult[Question, int]) -> None:
        question = done.argument
        if question.amount % 4 == 0 and question.depth < 2:
            self.ask(Question(question.offset, question.amount, question.depth + 1))
        self._tell(question, done.result)

    @ask.on_failed
    def on_refusal(self, failed: CallFailure[Question]) -> None:
        self._tell(failed.argument, 0)

    def _tell(self, question: Question, result: int) -> None:
        name = f"{question.offset} {question.depth}"
        times = self.counts[name] = self.counts.get(name, 0) + 1
        link = self.links["all"] = after(self.links.get("all", 7), result)
        self.told.send(f"{name} {times} {result} {link}", partition=self.partition)


class AskingRows(Asking):
    """Each answer is a row of a database, too, which may be ahead of Kafka."""

    entries = Sink("entries", value=Entry, key=("partition", "number"))

    def _tell(self, question: Question, result: int) -> None:
        super()._tell(question, result)
        self.entries.put(Entry(self.partition, question.offset * 10 + question.depth, result))


class InOrder(Asking):
    """The questions of one key are asked in their order."""

    ask = Call(answer, argument=Question, result=int, backoff=0.2, max_backoff=0.5, per_key_order=True)
    on_answer = ask.on_result(Asking.on_answer)
    on_refusal = ask.on_failed(Asking.on_refusal)


class Refusing(Book):
    """A movement of 13 is refused, and blocks its account."""

    on_failure: ClassVar = {Refused: dead_letter()}

    def on_record(self, record: Record[Op]) -> None:
        if record.value.amount % 13 == 0 and record.value.amount:
            self.totals["unseen"] = 1
            raise Refused(record.value.account)
        super().on_record(record)


class Busy(RuntimeError):
    """The record can be handled later."""


#: calls for each record of the run: its partition, its offset
tries: Counter[tuple[int, int]] = Counter()


class Later(Handler[Op]):
    """Some movements fail several times; each output depends on the order in which they succeeded at last."""

    links = Table(key=str, value=int)
    out = Output("out", value=str)
    on_failure: ClassVar = {Busy: retry(1, seconds=0.1).then(retry_later(0.3, 0.6, any_order=True))}

    def on_record(self, record: Record[Op]) -> None:
        amount = record.value.amount
        tries[record.partition, record.offset] += 1
        if amount % 5 == 0 and tries[record.partition, record.offset] <= amount // 5:
            raise Busy
        link = self.links["all"] = after(self.links.get("all", 7), amount)
        self.out.send(f"{record.offset} {link}", partition=record.partition)


class Rated(Handler[Op]):
    """Totals by a rate, which changes meanwhile."""

    rates = Reference(RATES, key=str, value=int)
    totals = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[Op]) -> None:
        op, rate = record.value, self.rates.get("rate", 0)
        total = self.totals[op.account] = after(self.totals.get(op.account, 0), op.amount + rate)
        self.out.send(f"{op.account} {rate} {total}", partition=record.partition)


def publish_rate(simulation: Simulation) -> None:
    log = simulation.kafka.log(RATES, 0)
    simulation.kafka.append(log, msgspec.json.encode(log.end + 1), b"rate")


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


def records_of(inputs: Sequence[InputRecord], partition: int) -> list[InputRecord]:
    return [each for each in inputs if each.partition == partition]


def ops_of(inputs: Sequence[InputRecord], partition: int) -> list[Op]:
    return [msgspec.json.decode(each.value or b"", type=Op) for each in records_of(inputs, partition)]


def texts(outcome: RunResult, topic: str, partition: int) -> list[str]:
    return [(value or b"").decode() for _, value in outcome.outputs(topic)[partition]]


def verify_book(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    for partition in range(outcome.application.partitions):
        ops = ops_of(inputs, partition)
        said = texts(outcome, "out", partition)
        if outcome.ends is not None:  # the records after these are of another topic, or of another number of partitions
            ops = ops[: outcome.ends["input", partition]]
            assert len(said) <= len(ops), f"out[{partition}]: {len(said)} outputs of {len(ops)} records"
            ops = ops[: len(said)]
        assert_same(f"out[{partition}]", said, book(ops))


def verify_later(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Each record succeeds once or is dead-lettered once, and each link follows from the one before it."""
    for partition in range(outcome.application.partitions):
        ops, link, done = ops_of(inputs, partition), 7, list[int]()
        for text in texts(outcome, "out", partition):
            offset, found = map(int, text.split())
            link = after(link, ops[offset].amount)
            assert_same(f"output of [{partition}]@{offset}", found, link)
            done.append(offset)
        assert_same(f"records of [{partition}]", sorted(set(done)), sorted(done))
        dead = Counter(texts(outcome, "later.input.dead", partition))
        values = [(each.value or b"").decode() for each in records_of(inputs, partition)]
        left = Counter(values) - Counter(values[offset] for offset in done)
        assert_same(f"dead letters [{partition}]", dead, left)
        at_once = [offset for offset in done if ops[offset].amount % 5 or not ops[offset].amount]
        assert_same(f"order of [{partition}]", at_once, sorted(at_once))


def verify_rated(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """The rates never go back, each was published, and each total follows from the rate that its output names."""
    published = outcome.kafka.topics[RATES].logs[0].end
    for partition in range(outcome.application.partitions):
        ops, said, newest = ops_of(inputs, partition), texts(outcome, "out", partition), 0
        totals = dict[str, int]()
        assert_same(f"outputs of [{partition}]", len(said), len(ops))
        for op, text in zip(ops, said, strict=True):
            account, rate, total = text.split()
            assert newest <= int(rate) <= published, f"[{partition}]: rate {rate} after {newest} of {published}"
            newest = int(rate)
            totals[op.account] = after(totals.get(op.account, 0), op.amount + newest)
            assert_same(f"[{partition}]", (account, int(total)), (op.account, totals[op.account]))


def verify_asking(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Each question has one answer in the state, one of those that were given, and each link follows from the last."""
    verify_book(inputs, outcome)
    assert_same("questions before their commit", too_early, [])
    for partition in range(outcome.application.partitions):
        expected = dict[str, bool]()
        for offset, op in enumerate(ops_of(inputs, partition)):
            if op.amount % 2 == 0 and op.amount:
                depths = 3 if op.amount % 4 == 0 and op.amount % 10 else 1
                expected |= {f"{offset} {depth}": op.amount % 10 == 0 for depth in range(depths)}
        link, seen = 7, list[str]()
        for text in texts(outcome, "told", partition):
            place, depth, times, result, found = text.split()
            link, name = after(link, int(result)), f"{place} {depth}"
            assert_same(f"[{partition}] {name}: times", times, "1")
            assert_same(f"[{partition}] {name}: link", int(found), link)
            seen.append(name)
            possible = {0} if expected.get(name) else given[partition, int(place), int(depth)]
            assert int(result) in possible, f"[{partition}] {name}: {result} is not among {possible}"
        assert_same(f"answers of [{partition}]", sorted(seen), sorted(expected))


def verify_rows_of_answers(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    verify_asking(inputs, outcome)
    entries: dict[tuple[Any, ...], Any] = {}
    for partition in range(outcome.application.partitions):
        for text in texts(outcome, "told", partition):
            offset, depth, _, result, _ = map(int, text.split())
            number = offset * 10 + depth
            entries[partition, number] = {"partition": partition, "number": number, "total": result}
    assert_same("entries", outcome.application.database.tables.get("entries", {}), entries)


def verify_in_order(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """The first answers of each key come in the order of its records, too."""
    verify_asking(inputs, outcome)
    for partition in range(outcome.application.partitions):
        ops, last = ops_of(inputs, partition), dict[str, int]()
        for text in texts(outcome, "told", partition):
            offset, depth = map(int, text.split()[:2])
            if depth == 0:
                account = ops[offset].account
                assert last.get(account, -1) < offset, f"[{partition}] {account}: {offset} after {last[account]}"
                last[account] = offset


def verify_everything(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    verify_book(inputs, outcome)
    rows: dict[tuple[Any, ...], Any] = {}
    entries: dict[tuple[Any, ...], Any] = {}
    effects: set[tuple[EffectKey, str]] = set()
    for partition in range(outcome.application.partitions):
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


def verify_dead_letters(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    for partition in range(outcome.application.partitions):
        passed, dead_letters = [], []
        blocked: set[bytes | None] = set()
        mine = records_of(inputs, partition)
        for each, op in zip(mine, ops_of(inputs, partition), strict=True):
            if each.key in blocked or (op.amount and op.amount % 13 == 0):
                blocked.add(each.key)
                dead_letters.append(op)
            else:
                passed.append(op)
        assert_same(f"out[{partition}]", texts(outcome, "out", partition), book(passed))
        dead = [msgspec.json.decode(text, type=Op) for text in texts(outcome, "refusing.input.dead", partition)]
        assert_same(f"dead letters [{partition}]", dead, dead_letters)


def verify_chain(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Any interleaving will do, if each input comes in its order, and each link follows from the one before it."""
    for partition in range(outcome.application.partitions):
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
        if outcome.ends is None:
            assert_same(
                f"records of [{partition}]", positions, Counter({name: len(each) for name, each in ops.items()})
            )
        else:
            after = [name for name in ops if positions[name] > outcome.ends[name, partition]]
            assert_same(f"inputs of [{partition}] that were read on", after, [])


def verified(
    verify: Callable[[Sequence[InputRecord], RunResult], None], inputs: Sequence[InputRecord], outcome: RunResult
) -> None:
    verify(inputs, outcome)
    verify_stored(outcome)


def assert_same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: {found} instead of {expected}"


def made(number: int, size: Size, accounts: str = "abcd", zero: int = 9) -> list[InputRecord]:
    """Return movements in bursts; every `zero`-th one says all totals."""
    inputs, seconds, partitions = [], size.seconds, size.partitions
    for index in range(size.records):
        moment = seconds * (index // 3) / max(1, size.records // 3)
        amount = 0 if index % zero == zero - 1 else 1 + (index * 7 + number * 5) % 40
        account = accounts[(index * index + number) % len(accounts)]
        value = msgspec.json.encode(Op(account, amount))
        inputs.append(InputRecord(moment, (index * 2 + number) % partitions, value, account.encode()))
    # The last ones show what is left of everything.
    last = msgspec.json.encode(Op("a", 0))
    return [*inputs, *(InputRecord(seconds + 0.1, partition, last, b"z") for partition in range(partitions))]


BASE = quick_settings()
SMALL = replace(BASE, snapshot=replace(BASE.snapshot, chunk_bytes=4096))


def _settings(**sections: dict[str, Any]) -> Settings:
    changed = {name: replace(getattr(SMALL, name), **values) for name, values in sections.items()}
    return replace(SMALL, **changed)


def _of_one_input(
    size: Size,
    kind: type[Handler[Any]],
    verify: Callable[[Sequence[InputRecord], RunResult], None],
    name: str,
    number: int,
    settings: Settings = SMALL,
    accounts: str = "abcd",
    **more: Any,
) -> Scenario:
    inputs = made(number, size, accounts)
    found = partial(verified, verify, inputs)
    return Scenario(kind, inputs, settings, size.partitions, name=f"{name}{size.name}", verify=found, **more)


def _chain(size: Size, name: str, number: int, settings: Settings, **more: Any) -> Scenario:
    half = replace(size, records=size.records * 2 // 3)
    both = zip(made(number, half), made(number + 1, half), strict=True)
    inputs = [each for one, two in both for each in (one._replace(topic="input"), two._replace(topic="second"))]
    return Scenario(
        Chain,
        inputs,
        settings,
        size.partitions,
        topics=("input", "second"),
        name=f"{name}{size.name}",
        verify=partial(verified, verify_chain, inputs),
        **more,
    )


def _ledger(size: Size, name: str, number: int, settings: Settings, **more: Any) -> Scenario:
    partitions, records = max(2, size.partitions), size.records * 2 // 3
    name = f"{name}{size.name}"
    return ledger(name, number, settings, partitions=partitions, records=records, seconds=size.seconds, **more)


def _scenarios(size: Size) -> tuple[Scenario, ...]:
    book = partial(_of_one_input, size, Book, verify_book)
    everything = partial(_of_one_input, size, Everything, verify_everything, "everything", begin=called.clear, rest=4.0)
    dead_letters = partial(_of_one_input, size, Refusing, verify_dead_letters, accounts="abcdefgh")
    later = partial(_of_one_input, size, Later, verify_later, "retry topics", begin=tries.clear, rest=6.0)
    rated = partial(_of_one_input, size, Rated, verify_rated, events={"rate": publish_rate})
    chain = partial(_chain, size)
    asking = partial(_of_one_input, size, Asking, verify_asking, begin=forget_questions, rest=3.0)
    rows_of_answers = partial(_of_one_input, size, AskingRows, verify_rows_of_answers, begin=forget_questions, rest=3.0)
    in_order = partial(_of_one_input, size, InOrder, verify_in_order, begin=forget_questions, rest=3.0)
    compact, rare = {"compact": Simulation.compact}, _settings(snapshot={"delta_interval": size.rare})
    never = _settings(snapshot={"delta_interval": "off"})
    standbys = _settings(group={"standbys": 1})
    return (
        book("deltas with each commit", 0, events={"retention": Simulation.delete_committed}),
        book("rare deltas", 1, rare, events=compact),
        book("no deltas", 2, never, events=compact),
        book("consumer protocol", 3, _settings(group={"protocol": "consumer", "session_timeout": "auto"})),
        book("standby replicas", 4, standbys, processes=3, events=compact),
        everything(5),
        everything(6),
        dead_letters("dead letters", 17),
        dead_letters("dead letters, rare deltas", 25, rare),
        book(
            "static members",
            12,
            _settings(group={"membership": "static"}, service={"instance": "of-each-process"}),
        ),
        book("late markers", 13, rare, markers=0.5, rest=1.0),
        book(
            "full snapshots in a store",
            14,
            _settings(snapshot={"full_store": SIMULATED}),
            events={"full-disk": Simulation.fill_disk, "compact": Simulation.compact},
        ),
        book("input created again", 15, rare, events={"create-again": Simulation.create_again}),
        book("input gets partitions", 16, events={"grow": Simulation.grow}),
        later(17, rare),
        rated("references", 18),
        rated("references, rare deltas", 19, rare),
        chain("two inputs by time", 9, rare),
        chain(
            "two inputs by arrival",
            10,
            _settings(snapshot={"delta_interval": "off"}, inputs={"order": "arrival"}),
            events=compact,
        ),
        chain("two inputs, standby replicas", 11, standbys, processes=3),
        asking("calls", 21),
        asking("calls, rare deltas", 22, rare, events=compact),
        asking("calls, no deltas", 23, never),
        asking("calls, standby replicas", 27, standbys, processes=3),
        asking("calls, few at a time", 24, _settings(calls={"pending": 2}, snapshot={"delta_interval": size.rare})),
        in_order("calls in order", 26, rare),
        rows_of_answers("calls and rows", 28),
        _ledger(size, "another key", 29, rare, events=compact),
        _ledger(size, "another key, late markers", 30, SMALL, markers=0.5, rest=1.0),
        _ledger(
            size,
            "another key by arrival",
            31,
            _settings(snapshot={"delta_interval": "off"}, inputs={"order": "arrival"}),
        ),
        _ledger(size, "another key, standby replicas", 32, standbys, processes=3),
        chain("two inputs, one created again", 20, rare, events={"create-again": Simulation.create_again}),
    )


SCENARIOS = _scenarios(LONG)
SHORT_SCENARIOS = _scenarios(SHORT)


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of a random schedule: one in 64 is long."""
    chosen, number = (SHORT_SCENARIOS, seed) if seed % 64 else (SCENARIOS, seed // 64)
    return chosen[number % len(chosen)]
