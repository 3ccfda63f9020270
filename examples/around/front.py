"""A web front whose posts may come twice: `uvicorn examples.around.front:app --port 8000`.

A client that heard no answer posts again, with the same Idempotency-Key; the front may have written the first one all
the same. So the front writes what it is given, key included, and the service knows which keys it has seen.
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
from statehold.config.load import load


class Booking(msgspec.Struct, frozen=True):
    """Seats of a show, asked for once by `post`."""

    post: str
    show: str
    seats: int


class Booked(msgspec.Struct, frozen=True):
    """The answer, and how many seats of the show are taken then."""

    post: str
    show: str
    seats: int
    taken: int


class Bookings(Handler[Booking]):
    """The record's key is the show: all posts for it, and their repetitions, are in one partition."""

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
    """The front only writes; the service runs as `statehold run examples.around.front:service`."""
    brokers = service.settings.kafka.bootstrap_servers
    running.state.producer = Producer(
        {"bootstrap.servers": brokers, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/shows/{show}/seats", status_code=202)
def book(show: str, seats: int, idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """Accepted once Kafka has it. 503: perhaps it has; post it again with the same key."""
    refused: list[Any] = []
    producer: Producer = app.state.producer
    value = msgspec.json.encode(Booking(idempotency_key, show, seats))
    producer.produce(service.input, value, show, on_delivery=lambda error, _: refused.append(error))
    producer.flush(10)
    if refused != [None]:
        raise HTTPException(503, "Kafka has not confirmed it; post it again with the same Idempotency-Key")
    return {"accepted": idempotency_key}
