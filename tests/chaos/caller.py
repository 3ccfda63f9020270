"""A service that makes a call of an HTTP server for each trade and books its result; the answer comes with that."""

from __future__ import annotations

import msgspec
from tests.chaos.remote import TIMEOUT, ask
from tests.chaos.workload import Running, Trade

from statehold import Call, CallResult, Handler, Output, Record, Table


class Booked(msgspec.Struct, frozen=True):
    """An account's total and number of trades."""

    total: int = 0
    count: int = 0


def caller(output: str, port: int) -> type[Handler[Trade]]:
    """The handler with its output topic and the port of the other system."""

    async def score(_: str, trade: Trade) -> int:
        return await ask(port, trade)

    class Caller(Handler[Trade]):
        accounts = Table(key=str, value=Booked)
        answers = Output(output, value=Running)
        score_call = Call(
            score, argument=Trade, result=int, backoff=0.1, max_backoff=1.0, timeout=TIMEOUT, per_key_order=True
        )

        def on_record(self, record: Record[Trade]) -> None:
            self.score_call(record.value)

        @score_call.on_result
        def on_score(self, done: CallResult[Trade, int]) -> None:
            trade = done.argument
            before = self.accounts.get(trade.account, Booked())
            after = self.accounts[trade.account] = Booked(before.total + done.result, before.count + 1)
            self.answers.send(Running(trade.id, trade.account, after.total, after.count), key=trade.account)

    return Caller
