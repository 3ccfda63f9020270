"""The input of a run, and what must come of it: totals of accounts, from what the brokers acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, Message, Producer
from tests.chaos.failing import LATE, NEVER, Accounts, DeadLetters, Kinds, trade_of, written
from tests.chaos.history import History, Patience
from tests.chaos.rows import Row

ACCOUNTS = 120
_STEP = 0.02
#: milliseconds: with several inputs times are multiples of it, so that many are equal
_TICK = 50


class Trade(msgspec.Struct, frozen=True):
    """One record of the input; the account is the key, too."""

    id: str
    account: str
    symbol: str
    side: str
    quantity: int
    price: int
    ts: int

    @property
    def amount(self) -> int:
        return self.quantity * self.price * (1 if self.side == "BUY" else -1)


#: the account on which a service with two inputs books every trade, too
EVERYTHING = "*"


def linked(link: int, trade: Trade) -> int:
    """Return what follows in a chain that depends on the order of its trades."""
    return (link * 31 + trade.amount) % 1_000_000_007


class Running(msgspec.Struct, frozen=True):
    """The answer to one trade: the account's total and number of trades after it."""

    id: str
    account: str
    total: int
    count: int


class Sent(NamedTuple):
    """A trade that is on the input for certain."""

    offset: int
    trade: Trade
    #: when it was acknowledged, or found on the input
    at: float
    #: index of the input, and the record's time in milliseconds since 1970
    input: int = 0
    time: int = 0


@dataclass
class Fold:
    """What must come of an input."""

    #: by account, in order
    answers: dict[str, list[Running]] = field(default_factory=dict)
    #: trade's id -> input partition, offset; of a trade that is on the input twice the last one
    origin: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: how often each trade is on the input
    times: Counter[str] = field(default_factory=Counter)
    #: by trade's id
    amounts: dict[str, int] = field(default_factory=dict)
    #: those whose answer comes in no order, and where all that were tried later lie: partition, offset -> kind
    late: set[str] = field(default_factory=set)
    tried: dict[tuple[int, int], str] = field(default_factory=dict)
    dead_letters: DeadLetters = field(default_factory=DeadLetters)

    def running(self, got: Sequence[Running]) -> list[Running]:
        """An account's answers as they must be in the order in which they came."""
        total, made = 0, []
        for count, answer in enumerate(got, 1):
            total += self.amounts[answer.id]
            made.append(Running(answer.id, answer.account, total, count))
        return made


def fold(inputs: dict[int, list[Sent]], ends: dict[int, int] | None = None) -> Fold:
    """The service's work again, in other words; `ends` cuts partitions of which less was to be handled."""
    result, totals = Fold(), defaultdict[str, int](int)
    for partition, sents in inputs.items():
        end, accounts = None if ends is None else ends.get(partition), Accounts()
        for sent in sents:
            if end is not None and sent.offset >= end:
                break
            trade, place = sent.trade, (partition, sent.offset)
            fate = accounts.fate(trade.account, trade.symbol, sent.offset)
            if trade.symbol in (LATE, NEVER) and fate.why != "followed":
                result.tried[place] = trade.symbol
            if not fate.handled:
                result.dead_letters.due[place] = trade.id, trade.symbol, fate.why
                continue
            if fate.late:
                result.late.add(trade.id)
            result.amounts[trade.id] = trade.amount
            totals[trade.account] += trade.amount
            answers = result.answers.setdefault(trade.account, [])
            answers.append(Running(trade.id, trade.account, totals[trade.account], len(answers) + 1))
            result.origin[trade.id] = place
            result.times[trade.id] += 1
    return result


class Feeder:
    """Sends trades steadily on a thread of its own; an account lies in one partition always.

    It is idempotent and waits out every fault. Still the input itself is the truth: a batch may be acknowledged without
    an offset, and librdkafka, idempotent or not, sends one twice when it has to begin a new epoch (seed 809).
    """

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        partitions: int,
        history: History,
        *,
        seed: int,
        accounts: int = ACCOUNTS,
        failing: int = 0,
    ) -> None:
        self._topics, self._partitions, self._history = topics, partitions, history
        self._accounts = accounts
        self._random, self._kinds = random.Random(seed), Kinds(seed, failing)
        self._inputs = random.Random(f"inputs {seed}")
        self._number = self._withheld = 0
        self.per_second = 0
        #: partitions that get nothing for a while
        self.silent: frozenset[int] = frozenset()
        self.sent: dict[int, list[Sent]] = {partition: [] for partition in range(partitions)}
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._encode = msgspec.json.Encoder().encode
        self._lock, self._adding = threading.Lock(), threading.Lock()
        self._known: set[tuple[int, int, int]] = set()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 600_000,
                "socket.timeout.ms": 6000,
                "metadata.recovery.strategy": "none",
                "allow.auto.create.topics": False,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self, per_second: int) -> None:
        self.per_second = per_second
        self._thread.start()

    def burst(self, count: int, partition: int | None = None) -> None:
        """Feed this number at once, all for one partition if one is named."""
        for _ in range(count):
            self._produce(partition)

    def flush(self) -> None:
        """Until everything that was sent is acknowledged."""
        self._producer.flush(60)

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.sent.values()))

    def finish(self, seconds: float) -> bool:
        """End the thread; False when the brokers acknowledged nothing for `seconds` and have not taken everything."""
        self._stop.set()
        self._thread.join()
        patience = Patience(self._history, seconds)
        while (left := self._producer.flush(min(seconds, 1.0))) and not patience.over(left):
            pass
        return left == 0 and not self.failed

    def learn(self, rows: Sequence[Row], index: int = 0) -> None:
        """What is on the input, as far as it was not deleted, whatever the acknowledgements have said."""
        for row in rows:
            if (index, row.partition, row.offset) not in self._known:
                trade = msgspec.json.decode(trade_of(row.value), type=Trade)
                self._add(row.partition, row.offset, trade, index, row.time)
                self._history.note("learned", trade=trade.id, partition=row.partition, offset=row.offset)

    def _add(self, partition: int, offset: int, trade: Trade, index: int, moment: int) -> None:
        """Once: an acknowledgement may come when the record has been found on the input already."""
        with self._adding:
            if (index, partition, offset) not in self._known:
                self._known.add((index, partition, offset))
                self.sent[partition].append(Sent(offset, trade, self._history.now(), index, moment))

    def _run(self) -> None:
        due, last = 0.0, self._history.now()
        while not self._stop.wait(_STEP):
            now = self._history.now()
            # After a pause of this process itself there is no avalanche.
            due, last = due + self.per_second * min(now - last, 1.0), now
            while due >= 1.0:
                self._produce(None)
                due -= 1.0
            self._producer.poll(0)

    def _produce(self, partition: int | None) -> None:
        with self._lock:
            trade, where = self._make(partition)
            index = self._inputs.randrange(len(self._topics))
        if where in self.silent and partition is None:
            self._withheld += 1
            return

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(f"{trade.id}: {error}")
            elif (offset := message.offset()) is not None:
                self._add(where, offset, trade, index, message.timestamp()[1])
            else:  # sent again and known to the brokers already, who do not say where: `learn` looks it up
                self._history.note("no offset", trade=trade.id, partition=where)

        moment = int(time.time() * 1000)
        moment -= moment % _TICK if len(self._topics) > 1 else 0
        while True:
            try:
                key, value = trade.account.encode(), written(trade.symbol, self._encode(trade))
                self._producer.produce(self._topics[index], value, key, where, on_delivery=delivered, timestamp=moment)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _make(self, partition: int | None) -> tuple[Trade, int]:
        draw = self._random
        number = draw.randrange(self._accounts)
        if partition is not None:
            number += partition - number % self._partitions
            number = number if number >= 0 else partition
        side, self._number = draw.choice(("BUY", "SELL")), self._number + 1
        quantity, price, kind = draw.randrange(1, 9), draw.randrange(1, 99), self._kinds.next()
        trade = Trade(f"t{self._number}", f"a{number}", kind, side, quantity, price, 0)
        return trade, number % self._partitions


def sorted_input(sent: dict[int, list[Sent]]) -> dict[int, list[Sent]]:
    """Acknowledgements come in order, but nothing promises it."""
    return {partition: sorted(sents, key=lambda one: one.offset) for partition, sents in sent.items()}


def job_of(**fields: Any) -> bytes:
    """The job file of a worker, of whatever target."""
    return msgspec.json.encode(fields)
