"""A service that answers requests: payments into accounts of askers, and trades of the feeder as ordinary records."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import msgspec
from tests.chaos.workload import Running, Trade

from statehold import Handler, Output, Record, Replies, Table, dead_letter
from statehold.api.record import Request

#: how a payment is answered, in the field `symbol`: at once; with the next one of its account; it fails
NOW, LATER, REFUSED = "now", "later", "refused"
#: the first letter of askers' accounts
ASKED = "q"


class Refused(Exception):
    """A payment that has no effect."""


class Booked(msgspec.Struct, frozen=True):
    """The answer to a payment: the account's total and number of payments after it."""

    total: int = 0
    count: int = 0


def answering(output: str, booked: str) -> type[Handler[Trade]]:
    """The handler with the topic of the feeder's answers, and that of the effects of payments."""

    class Answering(Handler[Trade]):
        on_failure: ClassVar = {Refused: dead_letter(ordered=False)}
        accounts = Table(key=str, value=Booked)
        held = Table(key=str, value=tuple[tuple[Request, Booked], ...])
        replies = Replies(Booked, keep=timedelta(days=1))
        answers = Output(output, value=Running)
        effects = Output(booked, value=Running)

        def on_record(self, record: Record[Trade]) -> None:
            trade = record.value
            account = trade.account
            before = self.accounts.get(account, Booked())
            after = self.accounts[account] = Booked(before.total + trade.amount, before.count + 1)
            effect = Running(trade.id, account, after.total, after.count)
            if not account.startswith(ASKED):
                self.answers.send(effect, key=account)
                return
            self.effects.send(effect, key=account, partition=self.partition)
            if trade.symbol == REFUSED:
                raise Refused(trade.id)
            if trade.symbol == LATER and record.request is not None:
                self.held[account] = (*self.held.get(account, ()), (record.request, after))
                return
            record.reply(after)
            for request, answer in self.held.get(account, ()):
                self.replies.answer(request, answer)
            if account in self.held:
                del self.held[account]

    return Answering
