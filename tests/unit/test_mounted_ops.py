"""`OpsApplication` in a host application: whose threads answer."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from statehold import Handler, Record, Service
from statehold.config import Settings
from statehold.ops import OpsApplication
from statehold.ops.http.answers import HttpAnswer, as_json
from statehold.ops.http.routes import Routes


class Nothing(Handler[bytes]):
    def on_record(self, record: Record[bytes]) -> None:
        """Nothing to do."""


async def ask(app: OpsApplication, path: str) -> int:
    """Return the status of a GET."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> None:
        """A GET has no body."""

    await app({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}, receive, send)
    return int(sent[0]["status"])


def test_neither_the_hosts_threads_nor_waiting_state_queries_hold_back_health(monkeypatch: pytest.MonkeyPatch) -> None:
    held, waiting = threading.Event(), threading.Semaphore(0)

    def state(*_: Any) -> HttpAnswer:
        waiting.release()
        held.wait(60)
        return as_json({})

    monkeypatch.setattr(Routes, "_state", state)
    app = OpsApplication(Service("s", input="i", handler=Nothing, settings=Settings()), guarded=True)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(held.wait, 60))
        queries = [asyncio.create_task(ask(app, "/state/balances/ann")) for _ in range(40)]
        while not waiting.acquire(blocking=False):
            await asyncio.sleep(0)
        assert await asyncio.wait_for(ask(app, "/live"), 20) == 503, "it is not started"
        assert not busy.done()
        assert not any(each.done() for each in queries)
        held.set()
        assert set(await asyncio.gather(*queries)) == {200}
        await busy

    asyncio.run(run())
