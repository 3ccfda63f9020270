"""A ledger: every transaction moves one balance. Run it: `statehold run examples.ledger.app:service`.

Units: amounts and balances are integer hellers (a hundredth of a crown), dates are YYMMDD.
"""

from typing import Literal

import msgspec

from statehold import Handler, Output, Record, Service, Table


class Transaction(msgspec.Struct, frozen=True):
    """One row of the bank's book. The bank's words: PRIJEM is a credit, VYDAJ and VYBER are debits."""

    id: int
    account: int
    date: int
    type: Literal["PRIJEM", "VYDAJ", "VYBER"]
    amount: int

    @property
    def movement(self) -> int:
        """Change of the account's balance in hellers."""
        return self.amount if self.type == "PRIJEM" else -self.amount


class Account(msgspec.Struct, frozen=True):
    """Balance in hellers after `entries` transactions."""

    balance: int = 0
    entries: int = 0


class Turnover(msgspec.Struct, frozen=True):
    """Sum of credits and of debits of one day, in hellers."""

    credit: int = 0
    debit: int = 0


class Booked(msgspec.Struct, frozen=True):
    """The output of one transaction: the balance after it."""

    id: int
    account: int
    date: int
    balance: int


class Ledger(Handler[Transaction]):
    """Balances of the accounts of one partition, and the turnover of each day in the order of days."""

    accounts = Table(key=int, value=Account)
    turnover = Table(key=int, value=Turnover, sorted=True)
    booked = Output("booked", value=Booked)

    def on_record(self, record: Record[Transaction]) -> None:
        entry = record.value
        before = self.accounts.get(entry.account, Account())
        after = Account(before.balance + entry.movement, before.entries + 1)
        self.accounts[entry.account] = after

        day = self.turnover.get(entry.date, Turnover())
        credit, debit = max(entry.movement, 0), max(-entry.movement, 0)
        self.turnover[entry.date] = Turnover(day.credit + credit, day.debit + debit)

        self.booked.send(Booked(entry.id, entry.account, entry.date, after.balance), key=str(entry.account))


service = Service("ledger", input="transactions", handler=Ledger)

if __name__ == "__main__":
    service.run()
