"""Requests under faults: the askers' own faults, and the oracle of each request. It shares no code with statehold.

The oracle handles the input once more, by the words of docs/reference/format.md: the order of the records of a
partition determines each effect and each reply. So effects and replies are compared with what is on the topics, and
the diaries of the askers with both.
"""

from __future__ import annotations

import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from tests.chaos.answering import LATER, REFUSED, Booked
from tests.chaos.arena import Arena
from tests.chaos.asker import ENDS, Line, asks, payment
from tests.chaos.faults import Fault
from tests.chaos.rows import Row
from tests.chaos.workers import pause
from tests.chaos.workload import Running, Trade

#: requests with other addresses that wait for one answer
_MOST_WAITING: Final = 16
_trade: Final = msgspec.json.Decoder(Trade).decode
_running: Final = msgspec.json.Decoder(Running).decode
_booked: Final = msgspec.json.Decoder(Booked).decode

#: (anomaly, its cases)
Found = Callable[[str, Sequence[str]], None]
#: key and id of a request
Name = tuple[bytes, str]


class AskerKilled(Fault):
    code, title = "A1", "asker killed"
    only_statehold = asks = True

    def inject(self, arena: Arena) -> None:
        arena.asker(self.victim).kill()

    def heal(self, arena: Arena) -> None:
        arena.asker(self.victim).start()


class AskerFrozen(Fault):
    """Its requests are handled meanwhile; those that it has read no reply of have come too late when it wakes."""

    code, title = "A2", "asker frozen"
    holds = (1.0, 8.0)
    only_statehold = asks = True

    def inject(self, arena: Arena) -> None:
        arena.asker(self.victim).signal(signal.SIGSTOP)

    def heal(self, arena: Arena) -> None:
        arena.asker(self.victim).signal(signal.SIGCONT)


class OwnersKilledInTurn(Fault):
    """Each worker dies a moment after the one before it, so a request may see several owners."""

    code, title = "A3", "workers killed in turn under requests"
    holds = (0.2, 1.0)
    only_statehold = asks = True

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.rests = [draw.uniform(0.2, 3.0) for _ in range(3)]

    def inject(self, arena: Arena) -> None:
        for number, rest in enumerate(self.rests):
            worker = arena.worker(self.victim + number)
            worker.kill()
            worker.start()
            pause(rest)


class SentReply(NamedTuple):
    """A reply, as it is due or as it is on the topic."""

    partition: int
    name: Name
    address: bytes
    outcome: str
    #: of the request that counts
    offset: int
    #: None: a failure or a conflict
    answer: Booked | None


@dataclass
class Kept:
    """A request that took effect."""

    value: bytes
    partition: int
    offset: int
    waiting: list[bytes]
    #: None: it is answered later, or never
    answer: Booked | None = None


@dataclass
class Due:
    """What must come of the input, whose records `handle` gets in the order of each partition."""

    #: partition -> effects in order
    effects: dict[int, list[Running]] = field(default_factory=lambda: defaultdict(list))
    replies: Counter[SentReply] = field(default_factory=Counter)
    kept: dict[Name, Kept] = field(default_factory=dict)
    #: return address of a request that is answered at once -> its id
    at_once: dict[bytes, str] = field(default_factory=dict)
    #: by id and return address, which each ask has its own of: every record of it, in order
    written: dict[tuple[Name, bytes], list[Row]] = field(default_factory=lambda: defaultdict(list))
    _totals: dict[str, Booked] = field(default_factory=lambda: defaultdict(Booked))
    #: by account: answers that its next record lets go
    _held: dict[str, list[tuple[Name, Booked]]] = field(default_factory=lambda: defaultdict(list))

    def handle(self, row: Row) -> None:
        trade, name = _trade(row.value), row.headers.get("statehold-request")
        if name is None:
            self._book(row.partition, trade)
            self._let_go(trade.account)
        else:
            self.written[(row.key, name.decode()), _address(row)].append(row)
            self._ask((row.key, name.decode()), row, trade)

    @property
    def requests(self) -> int:
        """Records of the input that are requests."""
        return sum(map(len, self.written.values()))

    @property
    def copies(self) -> int:
        """Those that the Kafka client of an asker has written once more."""
        return self.requests - len(self.written)

    def _ask(self, name: Name, row: Row, trade: Trade) -> None:
        kept, address = self.kept.get(name), _address(row)
        if kept is not None:
            self._repeat(kept, name, row)
        elif trade.symbol == REFUSED:
            self.replies[SentReply(row.partition, name, address, "failed", row.offset, None)] += 1
        else:
            self.kept[name] = Kept(row.value, row.partition, row.offset, [address])
            after = self._book(row.partition, trade)
            if trade.symbol == LATER:
                self._held[trade.account].append((name, after))
            else:
                self._answer(name, after)
                self.at_once.setdefault(address, trade.id)
                self._let_go(trade.account)

    def _repeat(self, kept: Kept, name: Name, row: Row) -> None:
        address, offset = _address(row), kept.offset
        if kept.value != row.value:
            self.replies[SentReply(row.partition, name, address, "conflict", offset, None)] += 1
        elif kept.answer is not None:
            self.replies[SentReply(row.partition, name, address, "answered", offset, kept.answer)] += 1
        elif address not in kept.waiting:
            kept.waiting = [*kept.waiting, address][-_MOST_WAITING:]

    def _book(self, partition: int, trade: Trade) -> Booked:
        before = self._totals[trade.account]
        after = self._totals[trade.account] = Booked(before.total + trade.amount, before.count + 1)
        self.effects[partition].append(Running(trade.id, trade.account, after.total, after.count))
        return after

    def _answer(self, name: Name, value: Booked) -> None:
        kept = self.kept[name]
        kept.answer = value
        for address in kept.waiting:
            self.replies[SentReply(kept.partition, name, address, "answered", kept.offset, value)] += 1

    def _let_go(self, account: str) -> None:
        for name, value in self._held.pop(account, []):
            self._answer(name, value)


def due_of(rows: Iterable[Row]) -> Due:
    """Handle the askers' records of the input once more."""
    due = Due()
    for row in sorted(rows, key=lambda each: (each.partition, each.offset)):
        due.handle(row)
    return due


class Diaries(NamedTuple):
    """What the askers wrote down: `lines` by the index of each; they ask the payments below `end`."""

    seed: int
    end: int
    lines: Mapping[int, Sequence[Line]]


def check_asked(add: Found, due: Due, effects: Sequence[Row], replies: Sequence[Row], diaries: Diaries) -> None:
    """Compare effects, replies and diaries with what was due."""
    _check_written(add, due, diaries)
    _check_effects(add, due, effects)
    _check_replies(add, due, replies)
    _check_atomic(add, due, effects, replies)
    answers = defaultdict[int, set[tuple[Booked | None, int, int]]](set)
    for index, lines in diaries.lines.items():
        for line in lines:
            _check_line(add, due, f"asker {index}", line, payment(diaries.seed, line.number, index))
            if line.what == "answered":
                answers[line.number].add((line.answer, line.partition, line.offset))
        ended = {line.number for line in lines if line.what in ENDS}
        due_here = [number for number in range(diaries.end) if asks(number, index, len(diaries.lines))]
        add("never answered", [f"asker {index}, payment {number}" for number in due_here if number not in ended])
    add("unequal answers", [f"payment {number}: {found}" for number, found in answers.items() if len(found) > 1])


def _check_written(add: Found, due: Due, diaries: Diaries) -> None:
    """Each request is one that an asker has noted, or the copy of one.

    A line is written before the ask, so a killed asker may have noted one more than it wrote. The Kafka client of an
    asker may write a record again that the broker has and has not acknowledged in time. Each ask has a return address
    of its own, so such a copy has the address, the value and the partition of the first one.
    """
    noted = Counter(f"p{line.number}" for lines in diaries.lines.values() for line in lines if line.what == "asks")
    asked = Counter(name for (_, name), _ in due.written)
    add(
        "request that was not asked",
        [f"{name} x {times}, noted {noted[name]}" for name, times in asked.items() if times > noted[name]],
    )
    for (name, address), rows in due.written.items():
        if any((row.value, row.partition) != (rows[0].value, rows[0].partition) for row in rows):
            add("copy of another request", [f"{name}, {address!r}: {[(row.partition, row.offset) for row in rows]}"])
    addresses = Counter(address for _, address in due.written)
    add("return address of two requests", [repr(each) for each, times in addresses.items() if each and times > 1])


def _check_effects(add: Found, due: Due, rows: Sequence[Row]) -> None:
    found = defaultdict[int, list[Running]](list)
    for row in sorted(rows, key=lambda each: (each.partition, each.offset)):
        found[row.partition].append(_running(row.value))
    wanted = Counter(each.id for effects in due.effects.values() for each in effects)
    seen = Counter(each.id for effects in found.values() for each in effects)
    add("effect lost", [*(wanted - seen)])
    add("took effect again", [f"{each} x {seen[each]}" for each in seen - wanted if each in wanted])
    add("effect of nothing", [each for each in seen if each not in wanted])
    if wanted == seen:
        for partition, effects in found.items():
            pairs = zip(due.effects[partition], effects, strict=False)
            add("wrong effect", [f"{got}, not {want}" for want, got in pairs if want != got][:1])


def _check_replies(add: Found, due: Due, rows: Sequence[Row]) -> None:
    found = Counter(map(_reply, rows))
    add("reply lost", [str(each) for each in due.replies - found])
    asked = {each.name: each.partition for each in due.replies}
    for reply in found - due.replies:
        kept = due.kept.get(reply.name)
        if reply.name not in asked:
            anomaly = "reply to nothing"
        elif reply.partition != asked[reply.name]:
            anomaly = "reply elsewhere"
        elif reply.outcome == "answered" and (kept is None or kept.answer is None):
            anomaly = "answer without effect"
        elif reply.outcome == "answered" and kept is not None and reply.answer != kept.answer:
            anomaly = "unequal answers"
        else:
            anomaly = "reply again"
        add(anomaly, [str(reply)])


def _check_atomic(add: Found, due: Due, effects: Sequence[Row], replies: Sequence[Row]) -> None:
    """The first reply to a request that is answered at once is in the transaction of its effect."""
    of_effect = {_running(row.value).id: row.origin for row in effects}
    first: dict[bytes, Row] = {}
    for row in sorted(replies, key=lambda each: each.offset):
        first.setdefault(_address(row), row)
    for address, name in due.at_once.items():
        effect, reply = of_effect.get(name), first.get(address)
        if effect is None or reply is None:
            continue  # lost: found where both are compared
        if reply.origin is None or reply.origin[:2] != effect[:2]:
            add("answer and effect in two transactions", [f"{name}: {reply.origin}, its effect {effect}"])


def _check_line(add: Found, due: Due, who: str, line: Line, trade: Trade) -> None:
    kept, what = due.kept.get((trade.account.encode(), trade.id)), f"{who}, {trade.id}"
    if line.what == "answered":
        if kept is None or kept.answer is None:
            add("answer without effect", [f"{what}: {line.answer}"])
        elif (line.answer, line.partition, line.offset) != (kept.answer, kept.partition, kept.offset):
            add("unequal answers", [f"{what}: {line}, not {kept}"])
    elif line.what == "conflict" and (kept is None or _trade(kept.value) == trade):
        add("conflict without reason", [f"{what}: {line.text}"])
    elif line.what == "failed" and trade.symbol != REFUSED:
        add("failure without reason", [f"{what}: {line.text}"])
    elif line.what == "late" and line.text.startswith("NotAnswered:"):
        add("answer cannot be read", [f"{what}: {line.text}"])


def _reply(row: Row) -> SentReply:
    headers = row.headers
    outcome = headers["statehold-outcome"].decode()
    return SentReply(
        row.partition,
        (row.key, headers["statehold-reply"].decode()),
        _address(row),
        outcome,
        int(headers["statehold-offset"]),
        _booked(row.value) if outcome == "answered" else None,
    )


def _address(row: Row) -> bytes:
    return row.headers.get("statehold-reply-to", b"")
