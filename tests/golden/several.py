"""A service with two inputs, as it wrote the golden files of format 4. Never change it."""

from __future__ import annotations

from tests.golden.bank_v1 import Move

from statehold import Handler, Record, Table, on


class Several(Handler[None]):
    """Each balance is changed by moves and by rates, so that it depends on the order of both."""

    balances = Table(key=str, value=int)

    @on("moves", value=Move)
    def move(self, record: Record[Move]) -> None:
        move = record.value
        self.balances[move.account] = self.balances.get(move.account, 0) + move.cents

    @on("rates", value=int)
    def rate(self, record: Record[int]) -> None:
        for account, balance in list(self.balances.items()):
            self.balances[account] = balance * (100 + record.value) // 100
