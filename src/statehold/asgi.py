"""A service and its `Client` in a FastAPI or Starlette application: lifespan, streams, an HTTP status for each error.

`statehold[asgi]` installs FastAPI and uvicorn; this module needs neither to be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from statehold.client.client import Client
from statehold.errors import (
    KafkaTrouble,
    MessageRefused,
    NoAnswerInTime,
    PartitionStopped,
    RequestConflict,
    RequestFailed,
    StateholdError,
    StateUnavailable,
    TooManyRequests,
    TopicMissing,
    UsageError,
)
from statehold.service import Service
from statehold.watch.changes import TableChange
from statehold.watch.events import as_event, change_event

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
else:
    try:  # at run time, because FastAPI reads the annotation
        from starlette.requests import HTTPConnection
    except ImportError:
        HTTPConnection = Any

#: what each error is to the caller of an application; the first class that fits counts
_STATUS: Final[tuple[tuple[type[StateholdError], int], ...]] = (
    (RequestConflict, 409),
    (RequestFailed, 422),
    (PartitionStopped, 503),
    (NoAnswerInTime, 504),
    (TooManyRequests, 429),
    (StateUnavailable, 503),
    (MessageRefused, 400),
    (KafkaTrouble, 503),
    (TopicMissing, 503),
    (UsageError, 400),
)
#: the name of the client in the state of a lifespan
_CLIENT: Final = "statehold_client"
#: seconds after which a caller may try again
_RETRY_AFTER: Final = "1"
#: what is streamed now; an answer that is never sent leaves it with its last reference
_streamed: Final[WeakSet[AsyncGenerator[Any, None]]] = WeakSet()


def lifespan(service: Service, client: Client) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return the lifespan of an application: it starts the service, and stops it and closes the client at the end.

        app = FastAPI(lifespan=lifespan(service, client))

    Both run on threads, because they may take seconds. A service that cannot start ends the application with its error.
    `client_of` gives the client to a route.
    """

    @asynccontextmanager
    async def run(_: Any) -> AsyncIterator[dict[str, Any]]:
        await asyncio.to_thread(service.start)
        try:
            yield {_CLIENT: client}
        finally:
            try:
                await asyncio.to_thread(client.close)
            finally:
                await asyncio.to_thread(service.stop)

    return run


def client_of(connection: HTTPConnection) -> Client:
    """Return the client of `lifespan`: a dependency of FastAPI, or called with a request.

        Payments = Annotated[Client, Depends(client_of)]

    A test can override the dependency.

    :raises RuntimeError: the application runs without `lifespan`.
    """
    client: Client | None = getattr(connection.state, _CLIENT, None)
    if client is None:
        raise RuntimeError(
            "the application has no client: it runs without `lifespan`. Next: FastAPI(lifespan=lifespan(service, "
            "client)). A lifespan of your own has to yield what this one yields, and a test runs it by `with "
            "TestClient(app)`"
        )
    return client


def stream_changes(changes: AsyncGenerator[TableChange[Any], None], *, most: int = 32) -> Any:
    """Return the answer of a route that streams what `Client.watch` yields, as server-sent events.

        return stream_changes(client.watch("balances", value=int, after=last_event_id or after))

    The id of an event is the position behind it, which browsers send as Last-Event-ID when they come back. The last
    event has the type "end" if the watch cannot continue; `error` says why. The watch ends with its reader.

    Each watch has a thread and a Kafka consumer. While `most` of this process are open, the answer is 503 with
    `Retry-After`. uvicorn waits for open streams before it stops: give it `--timeout-graceful-shutdown 5`.
    """
    from starlette.responses import JSONResponse, StreamingResponse

    if len(_streamed) >= most:
        text = f"{most} watches are open here; ask again, or ask another instance"
        return JSONResponse({"error": text}, 503, {"Retry-After": _RETRY_AFTER})
    _streamed.add(changes)

    async def events() -> AsyncIterator[bytes]:
        position = ""
        async with aclosing(changes):
            try:
                async for change in changes:
                    position = change.position
                    yield change_event(change)
            except StateholdError as error:
                yield as_event("end", position, {"error": f"{type(error).__name__}: {error}"})
            finally:
                _streamed.discard(changes)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def status_of(error: StateholdError) -> tuple[int, dict[str, str]]:
    """Return the HTTP status of an error of a `Client`, and the headers that belong to it.

    409: the id has another value. 422: the handler has failed at the request. 429: too many requests wait. 504: no
    answer in time. 503: the partition has failed or is paused, or Kafka or the owner cannot be reached now. 400: a
    wrong argument, or a record that Kafka rejects. Any other error is 500.
    """
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    return status, {"Retry-After": _RETRY_AFTER} if status in (429, 503, 504) else {}


def answer_errors(app: Any) -> None:
    """Let a FastAPI or Starlette application answer each error of statehold with its status, and its text as JSON.

    The text names topics and offsets. The body has `error`, and `id` of a request, by which the caller asks again.
    """
    from starlette.responses import JSONResponse

    async def answer(_: Any, error: StateholdError) -> Any:
        status, headers = status_of(error)
        body = {"error": str(error)} | ({"id": name} if (name := getattr(error, "id", "")) else {})
        return JSONResponse(body, status, headers)

    app.add_exception_handler(StateholdError, answer)
