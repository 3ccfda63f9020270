"""The scorer over gRPC, for `over_grpc`: `python -m examples.scoring.grpc_scorer 8091`."""

from __future__ import annotations

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import msgspec

from examples.scoring.app import Payment, Score
from examples.scoring.over_grpc import METHOD


class GrpcScorer:
    """Scores payments, slowly and with failures. Any thread may read `scores`."""

    def __init__(self, address: str, latency: float = 0.05, failing: float = 0.2) -> None:
        self.latency, self.failing = latency, failing
        #: score by idempotency key
        self.scores: dict[str, int] = {}
        self._lock = threading.Lock()
        service, _, method = METHOD.lstrip("/").partition("/")
        score = grpc.unary_unary_rpc_method_handler(
            self._score,
            request_deserializer=partial(msgspec.json.decode, type=Payment),
            response_serializer=msgspec.json.encode,
        )
        self.server = grpc.server(ThreadPoolExecutor(64))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: score}),))
        #: chosen by the system if `address` ends with ":0"
        self.port: int = self.server.add_insecure_port(address)
        self.server.start()

    def _score(self, payment: Payment, context: Any) -> Score:
        key = dict(context.invocation_metadata())["idempotency-key"]
        time.sleep(random.expovariate(1 / self.latency))
        chance = random.random()
        if payment.card.startswith("unknown"):
            context.abort(grpc.StatusCode.NOT_FOUND, "no such card")
        if chance < self.failing / 2:
            context.set_trailing_metadata((("retry-after", "0.1"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        with self._lock:
            risk = self.scores.setdefault(key, random.randrange(100))
        if chance < self.failing:  # the score is made, and its answer is lost
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return Score(risk)


if __name__ == "__main__":
    GrpcScorer(f"127.0.0.1:{sys.argv[1]}").server.wait_for_termination()
