"""`python -m tests.chaos.asker JOB.json`: a process that asks the service, and asks again until it has an answer.

The payments are a function of the seed. Two processes ask each of them, at about the same time and with the same id;
of some they disagree about the amount. Each line of the process's diary is written before it asks, or once it knows
what has come of it, so a process that was killed continues where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from tests.chaos.answering import ASKED, LATER, NOW, REFUSED, Booked
from tests.chaos.workload import Trade

from statehold import Client
from statehold.config import load
from statehold.errors import KafkaTrouble, NotAnswered, RequestConflict, RequestFailed, StateholdError, TopicMissing

ACCOUNTS: Final = 40
#: requests of one process at a time
_TASKS: Final = 8
_TIMEOUTS: Final = (0.3, 1.0, 3.0)
#: seconds between two records that let a held answer go
_NUDGE: Final = (0.05, 1.5)


class AskingJob(msgspec.Struct):
    """What a process does."""

    service: str
    input: str
    seed: int
    #: the number of this process, and of all
    index: int
    askers: int
    #: payments per second, and the time of the first, in seconds since 1970
    rate: float
    began: float
    diary: str
    #: a file with the number of payments, once it is known
    end: str


class Line(msgspec.Struct, omit_defaults=True):
    """A line of the diary."""

    number: int
    what: str
    answer: Booked | None = None
    #: of the record that took effect
    partition: int = -1
    offset: int = -1
    #: why it was not answered
    text: str = ""


#: what a payment ends with
ENDS: Final = frozenset({"answered", "conflict", "failed"})


def asks(number: int, index: int, askers: int) -> bool:
    """Whether a process asks this payment: two do."""
    return (index - number) % askers < 2


def payment(seed: int, number: int, index: int) -> Trade:
    """Return a payment as a process asks it; its id is that of the request."""
    draw = random.Random(f"payment {seed} {number}")
    account = f"{ASKED}{draw.randrange(ACCOUNTS)}"
    kind = draw.choices((NOW, LATER, REFUSED), (80, 17, 3))[0]
    disagreed = index if draw.random() < 0.08 else 0
    price = draw.randrange(1, 99) + disagreed
    return Trade(f"p{number}", account, kind, "BUY", draw.randrange(1, 9), price, 0)


def read_diary(path: Path) -> list[Line]:
    """The lines that are whole."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]


class Asker:
    """One life of one process."""

    def __init__(self, job: AskingJob, client: Client) -> None:
        self._job, self._client = job, client
        self._file = os.open(job.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._draw = random.Random(f"asker {job.index} {time.time()}")
        self._done = {line.number for line in read_diary(Path(job.diary)) if line.what in ENDS}

    async def run(self) -> None:
        numbers = self._numbers()
        async with asyncio.TaskGroup() as group:
            for _ in range(_TASKS):
                group.create_task(self._work(numbers))

    def _numbers(self) -> Iterator[int]:
        mine = (each for each in itertools.count() if asks(each, self._job.index, self._job.askers))
        return (each for each in mine if each not in self._done)

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            due, end = self._job.began + number / self._job.rate, None
            while (end := self._end()) is None and time.time() < due:
                await asyncio.sleep(0.02)
            if end is not None and number >= end:
                return
            await self._pay(number)

    def _end(self) -> int | None:
        try:
            return int(Path(self._job.end).read_text())
        except FileNotFoundError:
            return None

    async def _pay(self, number: int) -> None:
        asked = payment(self._job.seed, number, self._job.index)
        nudging = asyncio.create_task(self._nudge(asked)) if asked.symbol == LATER else None
        try:
            while not await self._ask(number, asked):
                await asyncio.sleep(self._draw.uniform(0.0, 0.3))
            if self._draw.random() < 0.1:  # as a browser that posts again
                await self._ask(number, asked)
        finally:
            if nudging is not None:
                nudging.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await nudging

    async def _ask(self, number: int, asked: Trade) -> bool:
        """Return whether it is known what came of it."""
        self._write(Line(number, "asks"))
        account, timeout = asked.account, self._draw.choice(_TIMEOUTS)
        try:
            found = await self._client.ask_with_receipt(asked, key=account, reply=Booked, timeout=timeout, id=asked.id)
        except RequestConflict as error:
            self._write(Line(number, "conflict", text=str(error)))
        except RequestFailed as error:
            self._write(Line(number, "failed", text=str(error)))
        except (NotAnswered, KafkaTrouble, TopicMissing) as error:  # brokers that have just started know no topics
            self._write(Line(number, "late", text=f"{type(error).__name__}: {error}"))
            return False
        else:
            receipt = found.receipt
            self._write(Line(number, "answered", found.value, receipt.partition, receipt.offset))
        return True

    async def _nudge(self, trade: Trade) -> None:
        """Write ordinary records of the account until cancelled: each lets the held answers go."""
        for turn in itertools.count():
            await asyncio.sleep(self._draw.uniform(*_NUDGE))
            name = f"n{trade.id[1:]}-{self._job.index}-{os.getpid()}-{turn}"
            with contextlib.suppress(StateholdError):
                record = msgspec.structs.replace(trade, id=name, symbol=NOW)
                await self._client.send(record, key=trade.account, timeout=2)

    def _write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def _end_with_the_harness() -> None:
    os.read(0, 1)
    os._exit(9)


def main() -> None:
    threading.Thread(target=_end_with_the_harness, daemon=True).start()
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=AskingJob)
    with Client(job.service, load(), input=job.input, value=Trade) as client:
        asyncio.run(Asker(job, client).run())


if __name__ == "__main__":
    main()
