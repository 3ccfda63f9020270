"""What a `Client` does apart from Kafka: its threads, its reads of owners that hang or answer oddly, its errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from statehold import Client, Receipt
from statehold.client import asking
from statehold.common.partitioner import murmur2
from statehold.config import Settings
from statehold.errors import UsageError
from statehold.ops.http.answers import HttpAnswer, HttpRequest, as_json
from statehold.ops.http.bounded_server import BoundedServer

PARTITIONS = 2


class Owner:
    """An instance that owns all partitions, as the group describes it; its HTTP server gives these answers."""

    def __init__(self, answer: Callable[[HttpRequest], HttpAnswer]) -> None:
        self.server = BoundedServer(("127.0.0.1", 0), answer)
        self.server.begin("owner")
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def admin(self, *_: Any) -> Any:
        member = SimpleNamespace(url=self.url, partitions=tuple(range(PARTITIONS)))
        return SimpleNamespace(
            describe=lambda topics: dict.fromkeys(topics, SimpleNamespace(partitions=PARTITIONS)),
            describe_group=lambda _: SimpleNamespace(members=(member,)),
            bounds=lambda *_: (0, 0),
        )


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[HttpRequest], HttpAnswer]], Owner]]:
    owners: list[Owner] = []

    def owned(answer: Callable[[HttpRequest], HttpAnswer]) -> Owner:
        owners.append(Owner(answer))
        monkeypatch.setattr(asking, "Admin", owners[-1].admin)
        return owners[-1]

    yield owned
    for each in owners:
        each.server.end()


Owned = Callable[[Callable[[HttpRequest], HttpAnswer]], Owner]


def test_a_read_does_not_wait_for_the_threads_of_the_event_loop(owned: Owned) -> None:
    owned(lambda _: as_json({"value": 7, "partition": 0}))
    held = threading.Event()

    async def read() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(held.wait, 60))
        with Client("s", Settings()) as client:
            read = client.get("balances", "ann", value=int, timeout=20)
            assert await asyncio.wait_for(read, 20) == 7
            assert not busy.done()
        held.set()
        await busy

    asyncio.run(read())


def test_a_receipt_of_another_partition_or_input_is_rejected_at_once(owned: Owned) -> None:
    owned(lambda _: as_json({"error": "no such key", "partition": 0}, 404))
    home = murmur2(b"ann", PARTITIONS)
    with Client("s", Settings()) as client:
        for after in (Receipt("", 1 - home, 0), Receipt.of("99999999:0"), Receipt("another", home, 0)):
            with pytest.raises(UsageError, match=r"balances\['ann'\]: the receipt .* Nothing was read"):
                client.get_blocking("balances", "ann", value=int, after=after)
            with pytest.raises(UsageError):
                asyncio.run(client.get("balances", "ann", value=int, after=after))
        assert client.get_blocking("balances", "ann", value=int, after=Receipt("", home, 0)) is None
