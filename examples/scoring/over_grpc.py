"""The same service with grpc.aio: `statehold run examples.scoring.over_grpc:service`; SCORER_ADDRESS is the scorer.

Messages are JSON, so that the example needs no generated code. A stub that protoc has made is used in the same way.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any, Final

import grpc
import msgspec

from examples.scoring import app
from examples.scoring.app import Payment, Score
from statehold import Call, Service
from statehold.errors import CallDelayed, CallRejected

ADDRESS = os.environ.get("SCORER_ADDRESS", "127.0.0.1:8091")
METHOD: Final = "/scoring.Scorer/Score"


@cache
def channel() -> Any:
    """Return the channel of this process. Its first use is on the event loop of the calls, to which it belongs."""
    return grpc.aio.insecure_channel(ADDRESS)


async def ask_scorer(id: str, payment: Payment) -> Score:
    """Ask for a score. The scorer answers a second request with the same id like the first one."""
    ask = channel().unary_unary(
        METHOD,
        request_serializer=msgspec.json.encode,
        response_deserializer=partial(msgspec.json.decode, type=Score),
    )
    try:
        score: Score = await ask(payment, metadata=(("idempotency-key", id),))
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            raise CallRejected(f"the scorer does not know the card {payment.card}") from error
        if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
            pause = dict(error.trailing_metadata() or ()).get("retry-after", "0")
            raise CallDelayed(float(pause), "the scorer is busy") from error
        raise
    return score


class Scoring(app.Scoring):
    score = Call(
        ask_scorer, argument=Payment, result=Score, timeout=2.0, backoff=0.05, max_backoff=1.0, per_key_order=True
    )
    scored = score.on_result(app.Scoring.scored)
    unscored = score.on_failed(app.Scoring.unscored)


service = Service("scoring", input="card-payments", handler=Scoring)

if __name__ == "__main__":
    service.run()
