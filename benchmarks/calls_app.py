"""What `benchmarks.calls` measures: one call of 50 ms for each record, and a total per account of the answers."""

from __future__ import annotations

import asyncio
import os

import msgspec

from statehold import Call, CallResult, Handler, Record, Service, Table
from statehold.config import load

#: seconds that the other system takes
LATENCY = float(os.environ.get("BENCH_LATENCY", "0.05"))


class Payment(msgspec.Struct, frozen=True, gc=False):
    id: int
    account: str
    amount: int


#: the sum of all answers that this process has taken
answered = [0]


async def score(_: str, payment: Payment) -> int:
    """Another system, which takes its time and no processor."""
    await asyncio.sleep(LATENCY)
    return payment.amount


class Scored(Handler[Payment]):
    score = Call(score, argument=Payment, result=int)
    totals = Table(key=str, value=int)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value)

    @score.on_result
    def on_score(self, done: CallResult[Payment, int]) -> None:
        account = done.argument.account
        answered[0] += done.result
        self.totals[account] = self.totals.get(account, 0) + done.result


service = Service("scored", input="bench-scored", handler=Scored, settings=load())
