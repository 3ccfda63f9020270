"""A TCP forwarder in front of one broker that delays, limits or resets connections. It does not parse Kafka requests.

The broker must advertise the link's port (`Cluster(advertised={1: link.port})`), or clients bypass it. Traffic between
brokers does not pass through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_PIECE = 16_384


class Link:
    """Listens on a free port at once; `connect` sets the broker's address. Set its fields at any time."""

    def __init__(self, seed: int = 0) -> None:
        #: seconds that each piece takes, in either direction
        self.delay = 0.0
        #: bytes per second, in either direction of each connection; 0: no limit
        self.rate = 0.0
        #: the chance that a piece breaks its connection
        self.resets = 0.0
        #: number of connections that it broke
        self.broken = 0
        self._random = random.Random(seed)
        self._upstream = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._accept, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connect(self, port: int) -> None:
        """Forward to the broker that listens on `port` of the loopback address."""
        self._upstream = port

    def heal(self) -> None:
        """Remove all faults."""
        self.delay = self.rate = self.resets = 0.0

    async def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            broker, requests = await asyncio.open_connection(HOST, self._upstream)
        except OSError:
            answers.transport.abort()
            return
        ways = [asyncio.ensure_future(self._carry(*way)) for way in ((client, requests), (broker, answers))]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (requests, answers):
            end.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Forward piece by piece; the delay of one piece does not delay the next."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.ensure_future(self._send(late, target))
        try:
            with contextlib.suppress(OSError):
                while not sending.done() and (piece := await source.read(_PIECE)):
                    if self._random.random() < self.resets:
                        self.broken += 1
                        return
                    late.put_nowait((self._loop.time() + self.delay, piece))
        finally:
            sending.cancel()

    async def _send(self, late: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = await late.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                target.write(piece)
                await target.drain()
                if self.rate:
                    await asyncio.sleep(len(piece) / self.rate)

    async def _end(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
