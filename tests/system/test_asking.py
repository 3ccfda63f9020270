"""A `Client` asks a service on a real broker: answers, ids, failures, kills, a reader of one partition."""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.support.processes import await_true

from statehold import Client, Handler, Receipt, Record, Replies, Service, Table, dead_letter
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.common.partitioner import murmur2
from statehold.config import load
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.errors import (
    NoAnswerInTime,
    PartitionStopped,
    RequestConflict,
    RequestFailed,
    StateUnavailable,
    TopicMissing,
)
from statehold.ops.http.server import OpsServer

pytestmark = pytest.mark.kafka


class Payment(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Booked(msgspec.Struct, frozen=True):
    balance: int
    number: int


#: accounts whose payments wait until a test lets them
held: dict[str, threading.Event] = {}

#: those of which one waits
arrived: set[str] = set()

#: accounts at whose payments the partition fails
broken: set[str] = set()


class Payments(Handler[Payment]):
    on_failure: ClassVar = {ValueError: dead_letter(ordered=False)}
    balances = Table(key=str, value=Booked)
    replies = Replies(Booked, keep=timedelta(days=1))

    def on_record(self, record: Record[Payment]) -> None:
        payment = record.value
        if (wait := held.get(payment.account)) is not None:
            arrived.add(payment.account)
            wait.wait(60)
        if payment.account in broken:
            raise RuntimeError("the account is broken")
        if payment.amount < 0:
            raise ValueError(f"no amount: {payment.amount}")
        before = self.balances.get(payment.account, Booked(0, 0))
        booked = self.balances[payment.account] = Booked(before.balance + payment.amount, before.number + 1)
        record.reply(booked)


@dataclass(frozen=True)
class Desk:
    """A service with two partitions, which is running, and a client of it."""

    service: Service
    client: Client
    settings: Settings

    def key(self, partition: int) -> str:
        """Return a new key of a partition."""
        names = (uuid.uuid4().hex for _ in iter(int, 1))
        return next(name for name in names if murmur2(name.encode(), 2) == partition)


def settings_of(broker: Cluster) -> Settings:
    return load(
        env={
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
            "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.2",
            "STATEHOLD_OPS__STATE": "on",
            "STATEHOLD_OPS__TOKEN": "a-token-of-this-test",
        }
    )


@contextmanager
def running(broker: Cluster) -> Iterator[Desk]:
    settings, run = settings_of(broker), uuid.uuid4().hex[:8]
    service = Service(f"desk-{run}", input=f"payments-{run}", handler=Payments, settings=settings)
    topics = ServiceTopics(settings, service.names, output_topics(Payments, service.names))
    findings = topics.create("beginning", partitions=2)
    assert all(finding.good for finding in findings), findings
    client = Client(service.name, settings, input=service.input, value=Payment)
    with OpsServer(service), service, client:
        await_true(lambda: service.status()["ready"] and len(service.status()["partitions"]) == 2, "live", 60)
        yield Desk(service, client, settings)
        release()


def release() -> None:
    for each in held.values():
        each.set()
    held.clear()
    arrived.clear()
    broken.clear()


@pytest.fixture(scope="module")
def shared(broker: Cluster) -> Iterator[Desk]:
    with running(broker) as found:
        yield found


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    """One service for all tests, because each has keys and ids of its own."""
    yield shared
    release()


@pytest.fixture
def own_desk(broker: Cluster) -> Iterator[Desk]:
    """For a test that deletes a topic, or stops the service."""
    with running(broker) as found:
        yield found


def test_an_answer_comes_with_its_effects_and_an_id_takes_effect_once(desk: Desk) -> None:
    async def ask() -> None:
        key, client = desk.key(0), desk.client
        assert await client.ask(Payment(key, 5), key=key, reply=Booked, id="order-17", timeout=30) == Booked(5, 1)
        assert await client.ask(Payment(key, 5), key=key, reply=Booked, id="order-17", timeout=30) == Booked(5, 1)
        same = [client.ask(Payment(key, 2), key=key, reply=Booked, id="order-18", timeout=30) for _ in range(8)]
        assert await asyncio.gather(*same) == [Booked(7, 2)] * 8
        with pytest.raises(RequestConflict, match=r"@\d+: id 'order-17': another value"):
            await client.ask(Payment(key, 6), key=key, reply=Booked, id="order-17", timeout=30)
        many = [client.ask(Payment(key, 1), key=key, reply=Booked, timeout=30) for _ in range(50)]
        assert sorted((await asyncio.gather(*many)), key=lambda each: each.number) == [
            Booked(8 + i, 3 + i) for i in range(50)
        ]

    asyncio.run(ask())


def test_a_thread_asks_and_gets_the_receipt_of_the_request_that_took_effect(desk: Desk) -> None:
    key, client = desk.key(1), desk.client
    ask = partial(client.ask_with_receipt_blocking, Payment(key, 3), key=key, reply=Booked, id="a", timeout=30)
    first, again = ask(), ask()
    assert first == again
    assert (first.value, first.receipt.topic, first.receipt.partition) == (Booked(3, 1), desk.service.input, 1)
    after = client.send_blocking(Payment(key, 1), key=key, timeout=30)
    assert (after.partition, after.offset) == (1, first.receipt.offset + 2)


def test_the_asker_gets_the_failure_of_the_handler_and_what_became_of_the_record(desk: Desk) -> None:
    key = desk.key(0)
    with pytest.raises(RequestFailed) as failed:
        desk.client.ask_blocking(Payment(key, -1), key=key, reply=Booked, timeout=30)
    assert (failed.value.error, failed.value.text, failed.value.became) == (
        "ValueError",
        "no amount: -1",
        "dead letter",
    )
    assert desk.client.ask_blocking(Payment(key, 1), key=key, reply=Booked, timeout=30) == Booked(1, 1)


def test_an_ask_to_a_failed_partition_ends_early_and_takes_effect_after_a_retry(desk: Desk) -> None:
    key, other = desk.key(0), desk.key(1)
    broken.add(key)
    with pytest.raises(PartitionStopped, match=r"\[0\]@\d+: the partition has failed since .*broken") as stopped:
        desk.client.ask_blocking(Payment(key, 4), key=key, reply=Booked, timeout=60, id="order-1")
    assert stopped.value.error == "HandlerFailed"
    assert desk.client.ask_blocking(Payment(other, 1), key=other, reply=Booked, timeout=30) == Booked(1, 1)
    broken.clear()
    desk.service.retry(0)
    await_true(lambda: {each["phase"] for each in desk.service.status()["partitions"]} == {"live"}, "it continues", 60)
    ask = partial(desk.client.ask_blocking, Payment(key, 4), key=key, reply=Booked, timeout=60, id="order-1")
    assert ask() == Booked(4, 1)


def test_an_asker_of_one_partition_does_not_wait_for_another_ones_open_transaction(desk: Desk) -> None:
    slow, quick = desk.key(1), desk.key(0)
    held[slow] = threading.Event()
    with pytest.raises(NoAnswerInTime, match=r"\[1\]@\d+: no answer within 5 s") as late:
        desk.client.ask_blocking(Payment(slow, 1), key=slow, reply=Booked, timeout=5, id="late")
    assert desk.client.ask_blocking(Payment(quick, 1), key=quick, reply=Booked, timeout=30) == Booked(1, 1)
    held[slow].set()
    asked_again = desk.client.ask_blocking(Payment(slow, 1), key=slow, reply=Booked, timeout=30, id=late.value.id)
    assert asked_again == Booked(1, 1)


def test_a_request_and_its_reply_are_plain_headers_that_other_programs_write_and_read(desk: Desk) -> None:
    key, client = desk.key(0), desk.client
    answer = client.ask_blocking(Payment(key, 4), key=key, reply=bytes, timeout=30)
    assert msgspec.json.decode(answer) == {"balance": 4, "number": 1}
    producer = Producer({"bootstrap.servers": desk.settings.kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    value = msgspec.json.encode(Payment(key, 5))
    producer.produce(desk.service.input, value, key, headers={"statehold-request": b"by-hand"})
    producer.flush(30)
    assert client.ask_blocking(Payment(key, 5), key=key, reply=Booked, timeout=30, id="by-hand") == Booked(9, 2)


def test_the_format_page_asks_without_statehold(desk: Desk) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/format.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  it is the page of this repository
    key, servers = desk.key(0), desk.settings.kafka.bootstrap_servers
    ask = partial(names["ask"], servers, desk.service.input, desk.service.names.replies, key)
    for _ in range(2):
        headers, value = ask(msgspec.json.encode(Payment(key, 4)), "order-1")
        assert (headers["statehold-outcome"], msgspec.json.decode(value, type=Booked)) == (b"answered", Booked(4, 1))
    assert ask(msgspec.json.encode(Payment(key, 5)), "order-1")[0]["statehold-outcome"] == b"conflict"
    headers, value = ask(msgspec.json.encode(Payment(key, -1)), "order-2")
    assert (headers["statehold-outcome"], msgspec.json.decode(value)["became"]) == (b"failed", "dead letter")


def test_an_asker_passes_over_the_records_of_strangers_in_the_topic_of_replies(desk: Desk) -> None:
    """None of them has id and return address of a request that waits, and none stops the reader."""
    key, client = desk.key(0), desk.client
    held[key] = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.ask_blocking, Payment(key, 4), key=key, reply=Booked, timeout=30, id="order-1")
        await_true(lambda: key in arrived, "the request waits")
        producer = Producer({"bootstrap.servers": desk.settings.kafka.bootstrap_servers})
        answered: dict[str, str | bytes | None] = {
            "statehold-reply": b"order-1",
            "statehold-outcome": b"answered",
            "statehold-offset": b"0",
        }
        strangers: list[dict[str, str | bytes | None]] = [
            {},
            {"statehold-reply": b"\xff"},
            {**answered, "statehold-reply-to": b"another asker/1"},
            {**answered, "statehold-outcome": b"\xff"},
            {**answered, "statehold-offset": b"-"},
            {"statehold-reply-to": None},
        ]
        for headers in strangers:
            producer.produce(desk.service.names.replies, b"\xff", key, 0, headers=headers)
        assert producer.flush(30) == 0
        assert not asked.done()
        held[key].set()
        assert asked.result(30) == Booked(4, 1)


def test_a_service_without_a_topic_of_replies_is_named(desk: Desk) -> None:
    with (
        Client("nobody-answers", desk.settings, input=desk.service.input) as client,
        pytest.raises(TopicMissing, match="topic of replies does not exist"),
    ):
        client.ask_blocking(Payment("ann", 1), key="ann", reply=Booked, timeout=30)


def test_a_read_includes_the_write_before_it(desk: Desk) -> None:
    async def ask_and_read() -> None:
        client, sent = desk.client, None
        for number in range(20):
            key = desk.key(number % 2)
            answer = await client.ask_with_receipt(Payment(key, 3), key=key, reply=Booked, timeout=30)
            found = await client.get("balances", key, value=Booked, after=answer.receipt, timeout=30)
            assert found == answer.value
            sent = await client.send(Payment(key, 4), key=key, timeout=30)
            assert await client.get("balances", key, value=Booked, after=sent, timeout=30) == Booked(7, 2)
            assert await client.get("balances", desk.key(number % 2), value=Booked, after=sent, timeout=30) is None
        assert await client.get("balances", "no-such-key", value=Booked, timeout=30) is None

    asyncio.run(ask_and_read())


def test_the_services_own_program_reads_what_is_here_without_http(desk: Desk) -> None:
    with desk.service.client() as client:
        for partition in (0, 1):
            key = desk.key(partition)
            answer = client.ask_with_receipt_blocking(Payment(key, 3), key=key, reply=Booked, timeout=30)
            assert client.get_blocking("balances", key, value=Booked, after=answer.receipt, timeout=30) == Booked(3, 1)
            held[key] = threading.Event()
            sent = client.send_blocking(Payment(key, 4), key=key, timeout=30)
            assert client.get_blocking("balances", key, value=Booked, timeout=30) == Booked(3, 1), "committed only"
            threading.Timer(0.3, held[key].set).start()
            assert client.get_blocking("balances", key, value=Booked, after=sent, timeout=30) == Booked(7, 2)
            assert client.get_blocking("balances", desk.key(partition), value=Booked, after=sent, timeout=30) is None


def test_a_read_waits_for_its_record_and_names_what_it_waits_for(desk: Desk) -> None:
    key, client = desk.key(1), desk.client
    held[key] = threading.Event()
    sent = client.send_blocking(Payment(key, 4), key=key, timeout=30)
    with pytest.raises(StateUnavailable, match=rf"503: partition 1 has committed \d+, and not yet {sent.offset}"):
        client.get_blocking("balances", key, value=Booked, after=sent, timeout=2)
    assert client.get_blocking("balances", key, value=Booked, timeout=30) is None
    threading.Timer(0.5, held[key].set).start()
    assert client.get_blocking("balances", key, value=Booked, after=sent, timeout=30) == Booked(4, 1)
    with pytest.raises(StateUnavailable, match="the value is no <class 'int'>"):
        client.get_blocking("balances", key, value=int, timeout=30)
    with pytest.raises(StateUnavailable, match="404: there is no table 'none'"):
        client.get_blocking("none", key, value=int, timeout=30)


def test_a_topic_of_replies_that_was_deleted_and_created_again_serves_askers_on(own_desk: Desk) -> None:
    key, client, names = own_desk.key(0), own_desk.client, own_desk.service.names
    assert client.ask_blocking(Payment(key, 1), key=key, reply=Booked, timeout=30) == Booked(1, 1)
    admin = AdminClient({"bootstrap.servers": own_desk.settings.kafka.bootstrap_servers})
    admin.delete_topics([names.replies])[names.replies].result(30)
    await_true(lambda: names.replies not in admin.list_topics(timeout=30).topics, "it is gone")
    no_answer = (NoAnswerInTime, PartitionStopped)  # by whether the monitor or the client looks first
    with pytest.raises(no_answer):
        client.ask_blocking(Payment(key, 1), key=key, reply=Booked, timeout=3, id="meanwhile")
    ServiceTopics(own_desk.settings, names, output_topics(Payments, names)).create("beginning", partitions=2)

    def answered() -> bool:
        own_desk.service.retry()
        try:
            answer = client.ask_blocking(Payment(key, 1), key=key, reply=Booked, timeout=3, id="meanwhile")
        except no_answer:
            return False
        assert answer == Booked(2, 2)
        return True

    await_true(answered, "the asker's client has an answer", 120)


def test_a_watch_follows_the_table_across_a_takeover(own_desk: Desk) -> None:
    client, keys = own_desk.client, [f"w-{number}" for number in range(8)]

    async def pay(amount: int) -> list[Receipt]:
        asked = [client.ask_with_receipt(Payment(key, amount), key=key, reply=Booked, timeout=60) for key in keys]
        return [answer.receipt for answer in await asyncio.gather(*asked)]

    async def follow() -> None:
        receipts = await pay(1)
        page = await client.get_range("balances", value=Booked, prefix="w-", after=receipts, timeout=30)
        rows = {row.key: row.value for row in page.rows}
        assert rows == await client.get_many("balances", keys, value=Booked, timeout=30)
        position, seen = page.position, 0
        for turn in range(3):
            if turn == 1:  # another member takes the partitions over
                await asyncio.to_thread(own_desk.service.stop)
                await asyncio.to_thread(next_owner.start)
            await pay(10)
            watch = client.watch("balances", value=Booked, prefix="w-", after=position)
            async with aclosing(watch) as changes, asyncio.timeout(60):
                async for change in changes:
                    seen += 1
                    rows[change.key], position = change.value, change.position
                    if seen == len(keys) * (turn + 1):
                        break
        assert rows == dict.fromkeys(keys, Booked(31, 4))
        assert rows == await client.get_many("balances", keys, value=Booked, timeout=30)

    next_owner = Service(
        own_desk.service.name, input=own_desk.service.input, handler=Payments, settings=own_desk.settings
    )
    with OpsServer(next_owner):
        try:
            asyncio.run(follow())
        finally:
            next_owner.stop()
