"""Counts page visits exactly once: `uvicorn examples.microservice.app:app --port 8000`.

One port serves the application's routes, and under /ops the service's health, metrics and console. Start several
instances with different ports: each counts the pages of its partitions and redirects requests for other pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from confluent_kafka import Producer
from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse

from statehold import Handler, Record, Service, Table
from statehold.config import load
from statehold.ops import Elsewhere, Finder, NotFound, NotLive, OpsApplication


class Visit(msgspec.Struct, frozen=True):
    """A visit of a page. The record's key is the page, so all its visits are in one partition."""

    page: str
    visitor: str


class Page(msgspec.Struct, frozen=True):
    """Number of visits and last visitor of a page."""

    visits: int = 0
    last_visitor: str = ""


class Visits(Handler[Visit]):
    """Counts visits. The web application reads the committed state only, never this object."""

    pages = Table(key=str, value=Page)

    def on_record(self, record: Record[Visit]) -> None:
        """Count the visit."""
        visit = record.value
        self.pages[visit.page] = Page(self.pages.get(visit.page, Page()).visits + 1, visit.visitor)


service = Service("visits", input="visits", handler=Visits, settings=load())
finder = Finder(service)


@asynccontextmanager
async def lifespan(running: FastAPI) -> AsyncIterator[None]:
    """Start and stop the service in threads, because both may take seconds and must not block the event loop."""
    brokers = service.settings.kafka.bootstrap_servers
    running.state.producer = Producer({"bootstrap.servers": brokers, "partitioner": "murmur2_random"})
    await asyncio.to_thread(service.start)
    try:
        yield
    finally:
        await asyncio.to_thread(service.stop)


app = FastAPI(lifespan=lifespan)
app.mount("/ops", OpsApplication(service))


@app.post("/visits/{page}", status_code=202)
def visit(page: str, visitor: str) -> dict[str, Any]:
    """Accept the visit after Kafka has acknowledged it; the owner of the page's partition counts it later."""
    refused: list[Any] = []
    producer: Producer = app.state.producer
    producer.produce(
        "visits", msgspec.json.encode(Visit(page, visitor)), page, on_delivery=lambda error, _: refused.append(error)
    )
    producer.flush(10)
    if refused != [None]:
        raise HTTPException(503, f"Kafka did not acknowledge it: {refused or 'no answer'}")
    return {"accepted": page}


@app.get("/visits/{page}", response_model=None)
def visits(page: str) -> dict[str, Any] | RedirectResponse:
    """Return the committed count; redirect to the owner of another page; 503 with Retry-After during a restore."""
    try:
        found = finder.find("pages", page)
    except NotFound:
        return {"page": page, "visits": 0}
    except NotLive as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    except Elsewhere as error:
        if error.url is None:
            raise HTTPException(421, str(error)) from error
        return RedirectResponse(f"{error.url.removesuffix('/ops')}/visits/{page}", 307)
    return {"page": page, **msgspec.structs.asdict(found.value), "as_of": found.position}
