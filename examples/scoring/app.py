"""Fraud scoring: asks a slow and failing scorer for each payment, and decides when its score is there.

Run `statehold run examples.scoring.app:service`; SCORER_URL is the scorer (`python -m examples.scoring.scorer 8090`).
"""

from __future__ import annotations

import os
from functools import cache

import httpx2
import msgspec

from statehold import Call, CallFailure, CallResult, Handler, Output, Record, Service, Table
from statehold.errors import CallDelayed, CallRejected

URL = os.environ.get("SCORER_URL", "http://127.0.0.1:8090/scores")
#: from this risk on a payment is reviewed
RISKY = 80


class Payment(msgspec.Struct, frozen=True):
    """A card payment; the amount is in cents."""

    id: str
    card: str
    cents: int


class Score(msgspec.Struct, frozen=True):
    """The scorer's opinion, from 0 to 99."""

    risk: int


class Decision(msgspec.Struct, frozen=True):
    """What became of a payment, and what the card has paid so far."""

    payment: str
    card: str
    outcome: str
    risk: int
    paid: int


@cache
def client() -> httpx2.AsyncClient:
    """Return the client of this process; its event loop stays the same."""
    return httpx2.AsyncClient(timeout=None)


async def ask_scorer(id: str, payment: Payment) -> Score:
    """Ask for a score. The scorer answers a second request with the same id like the first one."""
    body, headers = msgspec.json.encode(payment), {"Idempotency-Key": id}
    answer = await client().post(URL, content=body, headers=headers)
    if answer.status_code == 404:
        raise CallRejected(f"the scorer does not know the card {payment.card}")
    if answer.status_code == 503:
        raise CallDelayed(float(answer.headers.get("Retry-After", "0")), "the scorer is busy")
    answer.raise_for_status()
    return msgspec.json.decode(answer.content, type=Score)


class Scoring(Handler[Payment]):
    """Accepts payments with a low risk. The scores of one card are asked for in the order of its payments."""

    score = Call(
        ask_scorer, argument=Payment, result=Score, timeout=2.0, backoff=0.05, max_backoff=1.0, per_key_order=True
    )
    paid = Table(key=str, value=int)
    decisions = Output("decisions", value=Decision)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value, key=record.value.card)

    @score.on_result
    def scored(self, done: CallResult[Payment, Score]) -> None:
        payment, risk = done.argument, done.result.risk
        paid = self.paid.get(payment.card, 0)
        if risk < RISKY:
            paid = self.paid[payment.card] = paid + payment.cents
        self._decide(payment, "accepted" if risk < RISKY else "review", risk, paid)

    @score.on_failed
    def unscored(self, failed: CallFailure[Payment]) -> None:
        self._decide(failed.argument, "unknown card", -1, self.paid.get(failed.argument.card, 0))

    def _decide(self, payment: Payment, outcome: str, risk: int, paid: int) -> None:
        self.decisions.send(Decision(payment.id, payment.card, outcome, risk, paid), key=payment.card)


service = Service("scoring", input="card-payments", handler=Scoring)

if __name__ == "__main__":
    service.run()
