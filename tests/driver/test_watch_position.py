"""The position of a client's watch moves while its table is quiet, so that a stored one does not age (W5)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from types import SimpleNamespace
from typing import Any

import pytest

from statehold import Client, Handler, Record, Table
from statehold.client import asking, watching
from statehold.config import Settings
from statehold.errors import UsageError
from statehold.testing import Driver
from statehold.testing.memory.clients import StableMemoryReader
from statehold.watch.position import parse


class TwoTables(Handler[str]):
    """`quiet` changes with the record "quiet" alone, `busy` with each."""

    quiet = Table(key=str, value=int)
    busy = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.busy[record.value] = self.busy.get(record.value, 0) + 1
        if record.value == "quiet":
            self.quiet["ann"] = self.quiet.get("ann", 0) + 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver(TwoTables, batch=1)
    admin: Any = SimpleNamespace(describe=lambda topics, _: dict.fromkeys(topics, SimpleNamespace(partitions=1)))
    monkeypatch.setattr(asking, "Admin", lambda *_: admin)
    monkeypatch.setattr(watching, "CommittedReader", lambda *_, **__: StableMemoryReader(found.broker, lambda: False))
    return found


def commits(driver: Driver, *values: str) -> int:
    for value in values:
        driver.feed(value)
        driver.commit()
    return driver.commit_record().n


def client_of(driver: Driver) -> Client:
    return Client(driver.names.service, Settings(), input=driver.names.input)


def test_it_moves_without_a_change_and_continues_there(driver: Driver) -> None:
    first = commits(driver, "quiet")

    async def follow(client: Client) -> str:
        watch = client.watch("quiet", value=int, after=f"0:{first}:{driver.commit_record().lineage[:8]}")
        waiting = asyncio.ensure_future(anext(watch))
        last = commits(driver, *["busy"] * 5)
        async with asyncio.timeout(20):
            while parse(watch.position)[0].n < last:
                await asyncio.sleep(0.01)
            position = watch.position
            last = commits(driver, "quiet")
            change = await waiting
        assert (change.key, change.value, change.transaction) == ("ann", 2, last)
        assert watch.position == change.position
        await watch.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        return position

    with client_of(driver) as client:
        position = asyncio.run(follow(client))
        driver.take_full()  # a position before it would be lost with the deltas
        with closing(client.watch_blocking("quiet", value=int, after=position)) as watch:
            change = next(watch)
            assert (change.key, change.value) == ("ann", 2)
            assert watch.position == change.position
        assert list(watch) == []


def test_wrong_arguments_end_at_the_call(driver: Driver) -> None:
    with client_of(driver) as client:
        for watch in (client.watch, client.watch_blocking):
            with pytest.raises(UsageError, match=r"is for keys of str and bytes, and `key` is int"):
                watch("quiet", key=int, value=int, prefix="a")


def test_it_is_an_asynchronous_generator(driver: Driver) -> None:
    commits(driver, "quiet")

    async def follow(client: Client) -> None:
        async with aclosing(client.watch("quiet", value=int)) as changes:
            with pytest.raises(KeyError):
                await changes.athrow(KeyError("x"))

    with client_of(driver) as client:
        asyncio.run(follow(client))
        with pytest.raises(KeyError):
            client.watch_blocking("quiet", value=int).throw(KeyError("x"))
