"""What `benchmarks.scored` kills: a call of the scorer for each record, and a total per account of its points."""

from __future__ import annotations

import os
import threading

from benchmarks.calls_app import Payment
from benchmarks.scorer import Scores
from statehold import Call, CallResult, Handler, Output, Record, Service, Table
from statehold.config import load

scores = Scores(int(os.environ.get("SCORER_PORT", "0")))


async def score(_: str, payment: Payment) -> int:
    """Ask the scorer."""
    return await scores.score(payment.id)


class ScoredTotals(Handler[Payment]):
    score = Call(score, argument=Payment, result=int, per_key_order=True)
    totals = Table(key=str, value=int)
    answers = Output(os.environ.get("BENCH_OUTPUT", "bench-scored-totals"), value=str)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value)

    @score.on_result
    def on_score(self, done: CallResult[Payment, int]) -> None:
        account = done.argument.account
        total = self.totals[account] = self.totals.get(account, 0) + done.result
        self.answers.send(f"{done.argument.id} {account} {total}", key=account)


service = Service(
    "scored-killed", input=os.environ.get("BENCH_INPUT", "bench-scored"), handler=ScoredTotals, settings=load()
)

if __name__ == "__main__":
    with service:
        threading.Event().wait()
