"""The ops routes as a plain ASGI application, to be mounted in FastAPI, Starlette, Django or served alone.

It needs no further package. A thread answers each request, so that the host's event loop is never blocked. The threads
are its own, because a read that waits on a thread of the host may wait for an answer of these routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote

from statehold.ops.http.answers import EventStream, HttpAnswer, HttpRequest, Rejected, fields_of
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.routes import Routes, is_state, is_watch
from statehold.ops.http.watch import MOST as MOST_WATCHES
from statehold.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_PATH_BYTES: Final = 4096
#: threads that look up state, some of which wait, and threads of all other routes
_STATE_THREADS: Final = 16
_THREADS: Final = 4
#: seconds that the reader of a stream may take for a piece
_PATIENCE: Final = 10.0


class OpsApplication:
    """`app.mount("/ops", OpsApplication(service))`: the same routes as `OpsServer`.

    Create it before the service starts, and set `ops.advertised` to the URL of the mount, which the service reports to
    its group. Other machines may reach the host application, so all routes but health and metrics need `ops.token`;
    with `guarded` the host authenticates requests itself.
    """

    def __init__(self, service: Service, *, guarded: bool = False) -> None:
        self._routes = Routes(service, RequestGuard(service.settings.ops, exposed=not guarded))
        service.url = service.settings.ops.advertised
        self._state_threads = ThreadPoolExecutor(_STATE_THREADS, "ops-state")
        self._watch_threads = ThreadPoolExecutor(2 * MOST_WATCHES, "ops-watch")  # as many begin, and are refused
        self._threads = ThreadPoolExecutor(_THREADS, "ops")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                request = _request(scope)
            except Rejected as refused:
                await _send(refused.answer, scope["method"], send)
            else:
                await self._respond(request, receive, send)
        else:
            raise RuntimeError(f"{scope['type']} is not served here")

    async def _respond(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        answering = self._threads_of(request.path).submit(self._answer, request)
        try:
            answer = await asyncio.wrap_future(answering)
            await _send(answer, request.method, send)
            if answer.stream is not None:
                await _send_stream(answer.stream, receive, send, self._watch_threads)
        finally:
            # A request that is cancelled while a thread answers it closes its stream when that thread is done.
            answering.add_done_callback(self._end)

    def _end(self, answering: Future[HttpAnswer]) -> None:
        """Any thread. Closing may wait for the stream, so it has one of its own."""
        if not answering.cancelled() and not answering.exception() and (stream := answering.result().stream):
            self._watch_threads.submit(stream.close)

    def _threads_of(self, path: str) -> ThreadPoolExecutor:
        if is_watch(path):
            return self._watch_threads
        return self._state_threads if is_state(path) else self._threads

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        if request.path == "/console/data":
            self._routes.sample()
        return self._routes.answer(request)


def _request(scope: Scope) -> HttpRequest:
    """:raises Rejected: it is too long."""
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    whole = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    # Some servers pass the whole path, some the part below the mount.
    path = whole.removeprefix(quote(root)) if root else whole
    if len(path) > _PATH_BYTES:
        raise Rejected(414, f"a path of more than {_PATH_BYTES} bytes")
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = fields_of(scope["query_string"].decode("latin-1"))
    return HttpRequest(scope["method"], path, query, headers, root)


async def _send(answer: HttpAnswer, method: str, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.all_headers()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if answer.stream is None:
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


async def _send_stream(stream: EventStream, receive: Receive, send: Send, threads: ThreadPoolExecutor) -> None:
    """Send pieces until the end, until the reader is gone, or until it takes none for some seconds. Does not close."""
    gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(receive))
    try:
        while True:
            taking: asyncio.Future[bytes | None] = asyncio.get_running_loop().run_in_executor(threads, stream.take)
            await asyncio.wait([taking, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            if (piece := taking.result()) is None:
                await send({"type": "http.response.body", "body": b""})
                return
            async with asyncio.timeout(_PATIENCE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
