"""A web front end whose requests may be duplicated: `uvicorn examples.around.front:app --port 8000`.

A client without an answer posts again with the same Idempotency-Key, although Kafka may have the first request. The
front end therefore writes every request with its key, and the service ignores keys that it has seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from confluent_kafka import Producer
from fastapi import FastAPI, Header, HTTPException

from statehold import Dedupe, Handler, Output, Record, Service, Table
from statehold.config import load


class Booking(msgspec.Struct, frozen=True):
    """A request for seats of a show; `post` is its Idempotency-Key."""

    post: str
    show: str
    seats: int


class Booked(msgspec.Struct, frozen=True):
    """The answer, with the number of taken seats of the show."""

    post: str
    show: str
    seats: int
    taken: int


class Bookings(Handler[Booking]):
    """Books seats. The record's key is the show, so all its requests and their duplicates are in one partition."""

    posts = Dedupe(key=str, ttl=timedelta(hours=24))
    taken = Table(key=str, value=int)
    booked = Output("seats-booked", value=Booked)

    def on_record(self, record: Record[Booking]) -> None:
        booking = record.value
        if self.posts.seen(booking.post):
            return
        taken = self.taken.get(booking.show, 0) + booking.seats
        self.taken[booking.show] = taken
        self.booked.send(Booked(booking.post, booking.show, booking.seats, taken), key=booking.show)


service = Service("bookings", input="bookings", handler=Bookings, settings=load())


@asynccontextmanager
async def lifespan(running: FastAPI) -> AsyncIterator[None]:
    """Create the producer. The service is a separate process: `statehold run examples.around.front:service`."""
    brokers = service.settings.kafka.bootstrap_servers
    running.state.producer = Producer(
        {"bootstrap.servers": brokers, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/shows/{show}/seats", status_code=202)
def book(show: str, seats: int, idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """Accept the request after Kafka has acknowledged it. After a 503, post it again with the same key."""
    refused: list[Any] = []
    producer: Producer = app.state.producer
    value = msgspec.json.encode(Booking(idempotency_key, show, seats))
    producer.produce(service.input, value, show, on_delivery=lambda error, _: refused.append(error))
    producer.flush(10)
    if refused != [None]:
        raise HTTPException(503, "Kafka has not acknowledged it; post it again with the same Idempotency-Key")
    return {"accepted": idempotency_key}
