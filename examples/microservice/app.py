"""Visits of pages, counted exactly once: `uvicorn examples.microservice.app:app --port 8000`.

One process, one port: the application's own routes, and under /ops the service's health, metrics and console. Start
several with ports of their own; each counts the pages of its partitions and knows who counts the others.
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
from statehold.config.load import load
from statehold.ops.http.asgi import OpsApplication
from statehold.ops.http.key_lookup import Elsewhere, Finder, NotFound, NotLive


class Visit(msgspec.Struct, frozen=True):
    """Somebody looked at a page. The record's key is the page, so all its visits are in one partition."""

    page: str
    visitor: str


class Page(msgspec.Struct, frozen=True):
    """What is known of a page."""

    visits: int = 0
    last_visitor: str = ""


class Visits(Handler[Visit]):
    """One instance per partition; the web application never sees it, only what it has committed."""

    pages = Table(key=str, value=Page)

    def on_record(self, record: Record[Visit]) -> None:
        """Count it."""
        visit = record.value
        self.pages[visit.page] = Page(self.pages.get(visit.page, Page()).visits + 1, visit.visitor)


service = Service("visits", input="visits", handler=Visits, settings=load())
finder = Finder(service)


@asynccontextmanager
async def lifespan(running: FastAPI) -> AsyncIterator[None]:
    """Joins the group and leaves it; both may take seconds, so neither may hold up the event loop."""
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
    """Accepted once Kafka has it; it is counted a moment later, by whoever holds the page's partition."""
    refused: list[Any] = []
    producer: Producer = app.state.producer
    producer.produce(
        "visits", msgspec.json.encode(Visit(page, visitor)), page, on_delivery=lambda error, _: refused.append(error)
    )
    producer.flush(10)
    if refused != [None]:
        raise HTTPException(503, f"Kafka did not take it: {refused or 'no answer'}")
    return {"accepted": page}


@app.get("/visits/{page}", response_model=None)
def visits(page: str) -> dict[str, Any] | RedirectResponse:
    """The committed count; another instance's page is redirected, one that is being restored asks for patience."""
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
