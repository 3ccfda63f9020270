"""The same service with aiohttp: `statehold run examples.scoring.over_aiohttp:service`."""

from __future__ import annotations

from functools import cache

import aiohttp
import msgspec

from examples.scoring import app
from examples.scoring.app import Payment, Score
from statehold import Call, Service
from statehold.errors import CallDelayed, CallRejected


@cache
def session() -> aiohttp.ClientSession:
    """Return the session of this process. Its first use is on the event loop of the calls, to which it belongs."""
    # `calls.in_flight` and the `Call` limit the requests and their time.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=None)
    )


async def ask_scorer(id: str, payment: Payment) -> Score:
    """Ask for a score. The scorer answers a second request with the same id like the first one."""
    headers = {"Idempotency-Key": id}
    async with session().post(app.URL, data=msgspec.json.encode(payment), headers=headers) as answer:
        if answer.status == 404:
            raise CallRejected(f"the scorer does not know the card {payment.card}")
        if answer.status == 503:
            raise CallDelayed(float(answer.headers.get("Retry-After", "0")), "the scorer is busy")
        answer.raise_for_status()
        return msgspec.json.decode(await answer.read(), type=Score)


class Scoring(app.Scoring):
    score = Call(
        ask_scorer, argument=Payment, result=Score, timeout=2.0, backoff=0.05, max_backoff=1.0, per_key_order=True
    )
    scored = score.on_result(app.Scoring.scored)
    unscored = score.on_failed(app.Scoring.unscored)


service = Service("scoring", input="card-payments", handler=Scoring)

if __name__ == "__main__":
    service.run()
