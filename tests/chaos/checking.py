"""The verdict over a run: what a reader sees against what must come of the input, by the names that Jepsen uses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.chaos.arena import ORDER, Arena
from tests.chaos.asking import Diaries, check_asked, due_of
from tests.chaos.calling import check_calls, check_transactions
from tests.chaos.chain import Chain
from tests.chaos.failing import LATE, STOPS, check_dead_letters, check_tries
from tests.chaos.history import Patience
from tests.chaos.observer import read_all
from tests.chaos.operating import trouble
from tests.chaos.ordering import Order, check_runs, check_times, order_of
from tests.chaos.rekeyed import check_moves
from tests.chaos.rows import Row
from tests.chaos.worker import EFFECT_EVERY
from tests.chaos.workers import Worker, pause
from tests.chaos.workload import Fold, Running, Sent, Trade, fold, sorted_input

_SHOWN = 5
_ABORT = "python: rdkafka_"
#: the exit code of a service that a record has stopped
_STOPPED = 3


@dataclass
class Verdict:
    """Findings by anomaly; `figures` are for the tables."""

    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not any(self.findings.values())

    def add(self, anomaly: str, texts: Sequence[str]) -> None:
        if texts:
            self.findings[anomaly] += texts

    def lines(self) -> list[str]:
        """One line for each anomaly, with its first few cases."""
        reported = []
        for anomaly, texts in self.findings.items():
            shown = "; ".join(texts[:_SHOWN])
            reported.append(f"{anomaly} ({len(texts)}): {shown}{'; ...' if len(texts) > _SHOWN else ''}")
        return reported


def judge(arena: Arena, verdict: Verdict) -> None:
    """Everything has stopped: read it all, and compare."""
    for index, topic in enumerate(arena.fed):
        arena.learn(read_all(arena.servers, topic, arena.history), index)
    if arena.shape.rekeyed:
        judge_rekeyed(arena, verdict)
        return
    rows = read_all(arena.servers, arena.output, arena.history)
    ours = arena.shape.target == "statehold"
    asked = range(arena.shape.inputs) if arena.may_stop or ours else ()
    positions = [arena.committed_positions(index=index) for index in asked]
    ends = {p: sum(max(0, each[p]) for each in positions) for p in range(arena.shape.partitions) if positions}
    orders = orders_of(arena, rows, positions) if arena.shape.inputs > 1 else {}
    inputs = {p: order.sents for p, order in orders.items()} or sorted_input(arena.feeder.sent)
    stuck = check_stuck(verdict, inputs, ends, arena.may_stop) if ours else {}
    stops = {partition: max(0, ends.get(partition, 0)) for partition in arena.may_stop}
    expected = fold(inputs, stuck | stops)
    check_exact(verdict, expected, rows)
    aside = {topic: read_all(arena.servers, topic, arena.history) for topic in arena.dead_letter_topics}
    if aside:
        check_failed(verdict, arena, expected, list(aside.values()))
    check_reading(verdict, arena, rows)
    check_stable(verdict, arena)
    if arena.shape.calls:
        check_calls(verdict, arena, expected, rows)
        check_logs(verdict, arena)
    elif arena.shape.askers:
        judge_asked(arena, verdict, rows)
        check_logs(verdict, arena)
    elif ours:
        everything = [*rows, *(row for found in aside.values() for row in found)]
        owed = check_chains(verdict, arena, inputs, everything, orders)
        check_effects(verdict, arena, expected, owed)
        check_logs(verdict, arena)
    verdict.figures |= {"records": expected.times.total(), "outputs": len(rows)}


def judge_asked(arena: Arena, verdict: Verdict, rows: Sequence[Row]) -> None:
    """Requests: what each had to do and to answer against effects, replies and what the askers have seen."""
    effects, replies, dead = (read_all(arena.servers, topic, arena.history) for topic in arena.askers.topics)
    due, lines = due_of(arena.askers.records.values()), arena.askers.lines()
    check_asked(verdict.add, due, effects, replies, Diaries(arena.seed, arena.askers.end, lines))
    check_transactions(verdict, arena, [*rows, *effects, *replies, *dead])
    seen = Counter(line.what for each in lines.values() for line in each)
    verdict.figures |= {
        "requests": due.requests,
        "copies": due.copies,
        "ids": len(due.kept),
        "replies": len(replies),
        "seen": dict(seen),
    }


def judge_rekeyed(arena: Arena, verdict: Verdict) -> None:
    """The same for a ledger that sends to itself: what it has not handled of its own topic is stuck, too."""
    rows, inputs = read_all(arena.servers, arena.output, arena.history), sorted_input(arena.feeder.sent)
    positions = [arena.committed_positions(index=index) for index in range(len(arena.names.inputs))]
    check_stuck(verdict, inputs, positions[0], arena.may_stop)
    (topic,) = arena.names.rekeys
    left = [row for row in read_all(arena.servers, topic, arena.history) if row.offset >= positions[-1][row.partition]]
    verdict.add("stuck", [f"{topic}[{row.partition}]@{row.offset} is not handled" for row in left])
    check_moves(verdict.add, inputs, rows, arena.seed)
    check_reading(verdict, arena, rows)
    check_stable(verdict, arena)
    check_logs(verdict, arena)
    verdict.figures |= {"records": sum(map(len, inputs.values())), "outputs": len(rows)}


def check_stuck(
    verdict: Verdict, inputs: Mapping[int, Sequence[Sent]], committed: Mapping[int, int], may_stop: Collection[int]
) -> dict[int, int]:
    """Partitions whose input was not processed to its end, and where each stands.

    What lies behind the group's position without an answer is lost; what lies before it is not, and may come.
    """
    found: dict[int, int] = {}
    for partition, sents in inputs.items():
        position = max(0, committed.get(partition, 0))
        waiting = [sent for sent in sents if sent.offset >= position]
        if waiting and partition not in may_stop:
            found[partition] = position
            text = f"partition {partition} stands at {position}: {len(waiting)} records wait, to {waiting[-1].offset}"
            verdict.add("stuck", [text])
    return found


def check_exact(verdict: Verdict, expected: Fold, rows: Sequence[Row]) -> None:
    """Outputs are the recomputation from the input: by account in order, none lost, none twice."""
    decode = msgspec.json.Decoder(Running).decode
    found: dict[str, list[Running]] = defaultdict(list)
    home: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        answer = decode(row.value)
        found[answer.account].append(answer)
        home[answer.account].add(row.partition)
    seen = Counter(answer.id for answers in found.values() for answer in answers)
    missing = [one for one, due in expected.times.items() if seen[one] < due]
    waits = expected.late if verdict.findings.get("stuck") else set()  # on a retry topic, which has stopped as well
    verdict.add("lost", [f"{one} at {expected.origin[one]}" for one in missing if one not in waits])
    verdict.add("stuck", [f"{one} at {expected.origin[one]} waits on a retry topic" for one in missing if one in waits])
    more = {one: times for one, times in seen.items() if times > max(1, expected.times[one])}
    verdict.add("duplicated", [f"{one} x {times}" for one, times in more.items()])
    verdict.add("foreign", [one for one in seen if one not in expected.origin])
    verdict.add("split key", [f"{account} in {where}" for account, where in home.items() if len(where) > 1])
    for account, wanted in expected.answers.items():
        got = found.get(account, [])
        order = [answer.id for answer in got if answer.id not in expected.late]
        due = [answer.id for answer in wanted if answer.id not in expected.late]
        if order != due and sorted(order) == sorted(due):
            verdict.add("reordered", [account])
        if order == due and got != (running := expected.running(got)):
            first = next(pair for pair in zip(running, got, strict=True) if pair[0] != pair[1])
            verdict.add("wrong value", [f"{first[1]}, not {first[0]}"])


def check_failed(verdict: Verdict, arena: Arena, expected: Fold, found: Sequence[Sequence[Row]]) -> None:
    """Trades that fail by design: each is a letter or on the retry topics exactly where it must be."""
    dead_letters, *tries = found
    given = read_all(arena.servers, arena.names.input, arena.history)
    for anomaly, texts in check_dead_letters(expected.dead_letters, given, dead_letters).items():
        verdict.add(anomaly, texts)
    verdict.add("tried later", check_tries(expected.tried, tries))
    followed = sum(why == "followed" for _, _, why in expected.dead_letters.due.values())
    reported = {
        "dead_letters": len(dead_letters),
        "followed": followed,
        "late": len(expected.late),
        "tries": sum(map(len, tries)),
    }
    verdict.figures |= reported | {"paused": len(arena.operator.paused), "stopped": len(arena.operator.stopped)}


def check_reading(verdict: Verdict, arena: Arena, rows: Sequence[Row]) -> None:
    """What was read along against what is there in the end."""
    decode = msgspec.json.Decoder(Running).decode
    final = {(row.partition, row.offset): decode(row.value).id for row in rows}
    seen = arena.observer.seen
    aborted = [f"{seen[place]} at {place}" for place in seen if place not in final]
    verdict.add("aborted read (G1a)", aborted)
    verdict.add("inconsistent offsets", [f"{p}" for p, one in seen.items() if final.get(p, one) != one])
    verdict.add("non-monotonic poll", arena.observer.backwards)


def check_stable(verdict: Verdict, arena: Arena, seconds: float = 90.0) -> None:
    """No transaction is open any more, or none of them has ended for `seconds`: readers see to the end of all."""
    topics = [arena.output]
    if arena.shape.target == "statehold":
        topics += [arena.names.changelog, arena.names.snapshot, *arena.names.rekeys, *arena.dead_letter_topics]
        topics += arena.askers.topics
    patience = Patience(arena.history, seconds)
    while True:
        open_ = [text for topic in topics for text in _unstable(arena, topic)]
        if not open_ or patience.over(open_):
            verdict.add("transaction left open", open_)
            return
        pause(0.5)


def _unstable(arena: Arena, topic: str) -> list[str]:
    spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    places = [TopicPartition(topic, p) for p in range(arena.shape.partitions)]
    ends: list[dict[int, int]] = []
    for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        try:
            asked = arena.admin.list_offsets(dict.fromkeys(places, spec), isolation_level=isolation, request_timeout=10)
            ends.append({place.partition: future.result(12).offset for place, future in asked.items()})
        except KafkaException as error:
            return [f"{topic}: {error}"]
    return [f"{topic}[{p}] ends at {ends[1][p]}, stable to {ends[0][p]}" for p in ends[0] if ends[0][p] < ends[1][p]]


def check_chains(
    verdict: Verdict,
    arena: Arena,
    inputs: dict[int, list[Sent]],
    rows: Sequence[Row],
    orders: Mapping[int, Order],
) -> set[tuple[int, int]]:
    """The footer chain, every digest, one writer at a time, and the state that the next owner would load.

    Returns where the records lie whose effects the last marks owe: (partition, offset).
    """
    owed: set[tuple[int, int]] = set()
    increments, full_snapshots = _by_partition(arena, arena.names.changelog), _by_partition(arena, arena.names.snapshot)
    origins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.origin is not None:
            origins[row.origin[0]].append(row.origin[1:])
    commit_records = 0
    for partition in range(arena.shape.partitions):
        chain = Chain(partition, arena.names.inputs, inputs[partition], _late(partition, inputs[partition], rows))
        chain.walk(increments[partition])
        commit_records += chain.check_digests()
        # Transactions whose marks were truncated behind a full cannot be compared any more.
        kept = {commit_record["n"] for commit_record in chain.commit_records[1:]}
        newest = max(kept, default=0)
        chain.check_outputs([one for one in origins[partition] if one[0] in kept or one[0] > newest])
        chain.check_state(full_snapshots[partition])
        places = orders[partition].places if partition in orders else {}
        owed |= {
            (effect[2], places.get((arena.names.inputs.index(effect[1]), effect[3]), effect[3]))
            for commit_record in chain.commit_records[-1:]
            for effect in commit_record.get("effects", [])
        }
        for text in chain.findings:
            verdict.add(_named(text), [text])
        if partition in orders:
            _check_order(verdict, arena, orders[partition], chain)
    verdict.figures["marks"] = commit_records
    return owed


def orders_of(arena: Arena, rows: Sequence[Row], positions: Sequence[Mapping[int, int]]) -> dict[int, Order]:
    """The order in which each partition has handled its inputs, by its outputs."""
    decode, outputs = msgspec.json.Decoder(Running).decode, defaultdict[int, list[tuple[int, int, str]]](list)
    for row in rows:
        if row.origin is not None:
            outputs[row.origin[0]].append((*row.origin[1:], decode(row.value).id))
    return {
        partition: order_of(partition, sents, outputs[partition], [max(0, each[partition]) for each in positions])
        for partition, sents in arena.feeder.sent.items()
    }


def _check_order(verdict: Verdict, arena: Arena, order: Order, chain: Chain) -> None:
    check_runs(order, chain.commit_records, arena.names.inputs)
    if arena.shape.settings.get(ORDER) != "arrival":
        writers = {record["n"]: record["writer"][2] for record in chain.commit_records}
        born = {pid: at for worker in arena.workers for pid, at in worker.born.items()}
        compared = check_times(order, writers, born)
        verdict.figures["merged"] = verdict.figures.get("merged", 0) + compared
    for anomaly, texts in order.findings.items():
        verdict.add(anomaly, texts)


def _late(partition: int, inputs: Sequence[Sent], rows: Sequence[Row]) -> list[tuple[int, Trade]]:
    """The transactions that handled trades which came back, by the outputs of these."""
    late = {sent.trade.id: sent.trade for sent in inputs if sent.trade.symbol == LATE}
    if not late:
        return []
    decode, found = msgspec.json.Decoder(Running).decode, []
    for row in rows:
        if row.origin is None or row.origin[0] != partition or row.headers:  # letters and tries have headers
            continue
        trade = late.get(decode(row.value).id)
        if trade is not None:
            found.append((row.origin[1], trade))
    return sorted(found, key=lambda each: each[0])


def _named(text: str) -> str:
    names = {
        "torn": "torn transaction",
        "digest": "digest differs",
        "state": "digest differs",
        "two owners": "two owners",
    }
    return next((name for word, name in names.items() if word in text), "broken chain")


def _by_partition(arena: Arena, topic: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in read_all(arena.servers, topic, arena.history):
        found[row.partition].append(row)
    return found


def check_effects(verdict: Verdict, arena: Arena, expected: Fold, owed: set[tuple[int, int]]) -> None:
    """Side effects: never in a replay, at least once for each record, always with the same key.

    A partition that had to stop may leave some behind, for its next owner: those that its last mark owes.
    """
    lines = arena.calls.read_text().split("\n") if arena.calls.exists() else []
    keys: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for line in filter(None, lines):
        trade, *key, replaying = line.split(" ")
        keys[trade].add(tuple(key))
        if replaying != "0":
            verdict.add("effect in a replay", [line])
    due = [one for one in expected.origin if int(one[1:]) % EFFECT_EVERY == 0]
    left = {one for one, place in expected.origin.items() if place in owed and place[0] in arena.may_stop}
    verdict.add("effect never called", [one for one in due if one not in keys and one not in left])
    if not arena.may_stop:
        verdict.add("effect of what was not handled", [one for one in keys if one not in expected.origin])
    more = [one for one, found in keys.items() if len(found) > max(1, expected.times[one])]
    verdict.add("effect with two keys", more)
    verdict.figures["effects"] = len(due)


def check_logs(verdict: Verdict, arena: Arena) -> None:
    """What the processes say of themselves: no failed partition, no dead thread, no commit of a lost partition."""
    for worker in arena.workers:
        # Partitions that were lost and whose threads have not ended: one that drains now commits what is not its own.
        lost: set[int] = set()
        for event in worker.events():
            name, partition = event.get("event"), event.get("partition", -1)
            if name in ("started_by_harness", "stopping"):
                lost = set()
            elif name == "lost":
                lost |= set(event["partitions"])
            elif name == "partition_closed":
                lost.discard(partition)
            elif name == "drained" and partition in lost:
                verdict.add("commit after lost", [f"{worker.name}, partition {partition}"])
            elif name == "failed" and event.get("error") != arena.may_stop.get(partition) and not trouble(event)[0]:
                cause = str(event.get("cause"))[:160]
                verdict.add("partition failed", [f"{worker.name}: {event.get('error')} {cause}"])
            elif name == "fenced_too_often":
                verdict.add("fenced too often", [f"{worker.name}: partition {partition}, {event.get('fences')} fences"])
            elif name == "thread_died":
                verdict.add("thread died", [f"{worker.name}: {event.get('cause')}"])
        _check_ends(verdict, worker)


def _check_ends(verdict: Verdict, worker: Worker) -> None:
    """What ended by itself and was started again: two ways are known, every other one is a finding.

    Brokers that do not answer keep a service from starting (exit code 1), and an assertion of librdkafka ends the
    process (-6) where a connection breaks at a bad moment; docs/explanation/guarantees.md, N9. Both are counted. A
    trade may stop the service by design, once for each time that the operator sees it.
    """
    text = worker.log.read_text(errors="replace")
    known = {0, -9, *([1] if ": connect: the brokers " in text else []), *([-6] if _ABORT in text else [])}
    stops = sum(trouble(event)[0] == STOPS for event in worker.events("stopped"))
    if worker.exit_codes.count(_STOPPED) <= stops:
        known.add(_STOPPED)
    verdict.add("process ended", [f"{worker.name}: exit code {c}" for c in worker.exit_codes if c not in known])
    ends = verdict.figures.setdefault("restarts", [])
    ends += [code for code in worker.exit_codes if code in (1, -6)]
