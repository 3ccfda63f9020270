"""What a `Client` does apart from Kafka: its threads, its reads of owners that hang or answer oddly, its errors."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from statehold import Client, Receipt
from statehold.asgi import client_of, lifespan, status_of, stream_changes
from statehold.client import asking, owner_reads
from statehold.client.rows import RowPage
from statehold.common.partitioner import murmur2
from statehold.config import Settings, load
from statehold.errors import (
    KafkaTrouble,
    MessageRefused,
    NoAnswerInTime,
    NotAnswered,
    StateUnavailable,
    TooManyRequests,
    UsageError,
)
from statehold.messages.request import Reply
from statehold.ops.http.answers import HttpAnswer, HttpRequest, as_json
from statehold.ops.http.bounded_server import BoundedServer

PARTITIONS = 2


class Owner:
    """An instance that owns all partitions, as the group describes it; its HTTP server gives these answers."""

    def __init__(self, answer: Callable[[HttpRequest], HttpAnswer]) -> None:
        self.server = BoundedServer(("127.0.0.1", 0), answer)
        self.server.begin("owner")
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        #: addresses of members without partitions, and whether Kafka answers no question about the group
        self.idle: list[str] = []
        self.away = False
        #: for how long each question about the group may take
        self.limits: list[float] = []

    def admin(self, *_: Any) -> Any:
        return SimpleNamespace(
            describe=lambda topics, _: dict.fromkeys(topics, SimpleNamespace(partitions=PARTITIONS)),
            describe_group=lambda _, seconds: self.group(seconds),
            bounds=lambda *_: (0, 0),
        )

    def group(self, seconds: float) -> Any:
        self.limits.append(seconds)
        if self.away:
            raise KafkaTrouble("the brokers are away")
        owner = SimpleNamespace(url=self.url, partitions=tuple(range(PARTITIONS)))
        return SimpleNamespace(members=(owner, *(SimpleNamespace(url=each, partitions=()) for each in self.idle)))


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


def test_a_read_looks_into_this_process_in_each_turn(owned: Owned) -> None:
    looks = iter([None, None, [7]])
    owned(lambda _: as_json({"error": "behind"}, 503))
    with Client("s", Settings(), here=SimpleNamespace(values=lambda *_: next(looks))) as client:
        assert client.get_blocking("balances", "ann", value=int, timeout=20) == 7


def test_an_owner_that_hangs_is_asked_once_and_named(owned: Owned) -> None:
    together, held, asked = threading.Barrier(8), threading.Event(), []

    def answer(request: HttpRequest) -> HttpAnswer:
        if request.path.endswith("/hangs"):
            asked.append(request.path)
            held.wait(60)
        else:
            together.wait(20)  # so each read has a connection of its own, which the client keeps
        return as_json({"value": 1})

    owner = owned(answer)
    with Client("s", Settings()) as client, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: client.get_blocking("balances", "ann", value=int, timeout=20), range(8)))
        with pytest.raises(StateUnavailable, match=f"{owner.url}: TimeoutError"):
            client.get_blocking("balances", "hangs", value=int, timeout=0.3)
        assert len(asked) == 1
        held.set()


@pytest.mark.parametrize("data", [b"<html>log in</html>", b"{}"])
def test_an_answer_without_a_value_is_no_absent_key(owned: Owned, data: bytes) -> None:
    owned(lambda _: HttpAnswer(200, data))
    with Client("s", Settings()) as client, pytest.raises(StateUnavailable):
        client.get_blocking("balances", "ann", value=int | None, timeout=20)


def test_an_owner_is_asked_again_when_it_says(owned: Owned) -> None:
    asked: list[str] = []

    def answer(request: HttpRequest) -> HttpAnswer:
        asked.append(request.path)
        return as_json({"error": "restoring"}, 503, {"Retry-After": "99"})

    owned(answer)
    with Client("s", Settings()) as client, pytest.raises(StateUnavailable, match="503: restoring"):
        client.get_blocking("balances", "ann", value=int, timeout=0.5)
    assert len(asked) == 1


@pytest.mark.parametrize("status", [503, 421])
def test_a_standby_replica_answers_for_its_owner_only_if_the_read_allows_its_age(owned: Owned, status: int) -> None:
    ages: list[str] = []

    def copied(request: HttpRequest) -> HttpAnswer:
        ages.append(request.query["max_age"])
        rows = [{"key": "ann", "value": 7, "index": 0}] if "keys" in request.query else []
        return as_json(
            {"value": 7, "partition": 0, "rows": rows, "partitions": {each: {"watch": "0:1:a"} for each in "01"}}
        )

    def answer(request: HttpRequest) -> HttpAnswer:
        ages.append(request.query["max_age"])
        return as_json({"error": "restoring", "partition": 0}, status)

    standby = Owner(copied)
    owned(answer).idle = [standby.url]
    try:
        with Client("s", Settings()) as client:
            with pytest.raises(StateUnavailable, match=f"{status}: restoring"):
                client.get_blocking("balances", "ann", value=int, timeout=0.2)
            assert set(ages) == {"0"}, "a member that owned the partition before must not answer from its replica"
            ages.clear()
            assert client.get_blocking("balances", "ann", value=int, timeout=20, max_age=1.5) == 7
            assert set(ages) == {"1.5"}
            assert client.get_many_blocking("balances", ["ann"], value=int, timeout=20, max_age=2) == {"ann": 7}
            assert client.get_range_blocking("balances", value=int, timeout=20, max_age=2).rows == []
    finally:
        standby.server.end()


def test_a_standby_replica_answers_for_an_owner_that_hangs(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_reads, "_HANGS", 0.1)
    held, standby = threading.Event(), Owner(lambda _: as_json({"value": 7, "partition": 0}))

    def answer(_: HttpRequest) -> HttpAnswer:
        held.wait(60)
        return as_json({"value": 1, "partition": 0})

    owned(answer).idle = [standby.url]
    try:
        with Client("s", Settings()) as client:
            assert client.get_blocking("balances", "ann", value=int, timeout=20, max_age=5) == 7
    finally:
        held.set()
        standby.server.end()


def test_a_read_finds_the_next_owner_while_the_one_before_hangs(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is frozen or cut off, whose connections stay open, is replaced in the group after a while."""
    monkeypatch.setattr(owner_reads, "_HANGS", 0.1)
    held, following = threading.Event(), Owner(lambda _: as_json({"value": 7, "partition": 0}))

    def answer(_: HttpRequest) -> HttpAnswer:
        owner.url = following.url  # the group gives its partitions to another member
        held.wait(60)
        return as_json({"value": 1, "partition": 0})

    owner = owned(answer)
    try:
        with Client("s", Settings()) as client:
            assert client.get_blocking("balances", "ann", value=int, timeout=20) == 7
    finally:
        held.set()
        following.server.end()


def test_the_last_known_owner_is_read_while_kafka_is_away(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = owned(lambda _: as_json({"value": 7, "partition": 0}))
    with Client("s", Settings()) as client:
        assert client.get_blocking("balances", "ann", value=int, timeout=20) == 7
        owner.away = True
        monkeypatch.setattr(owner_reads, "_KEPT", 0.0)
        monkeypatch.setattr(owner_reads, "_ASK_AGAIN", 0.0)
        assert client.get_blocking("balances", "ann", value=int, timeout=2) == 7
        assert 19 < owner.limits[0] <= 20, "a question about the group takes no longer than its read may"
        assert owner.limits[-1] <= 2


def test_an_outage_of_kafka_takes_half_of_the_time_of_one_read(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, asked, held = owned(lambda _: as_json({"value": 7, "partition": 0})), threading.Event(), threading.Event()

    def silent(seconds: float) -> Any:
        owner.limits.append(seconds)
        asked.set()
        held.wait(seconds)
        raise KafkaTrouble("the brokers are away")

    with Client("s", Settings()) as client, ThreadPoolExecutor(1) as threads:
        assert client.get_blocking("balances", "ann", value=int, timeout=20) == 7
        monkeypatch.setattr(owner, "group", silent)
        monkeypatch.setattr(owner_reads, "_KEPT", 0.0)
        monkeypatch.setattr(owner_reads, "_ASK_AGAIN", 0.0)
        assert client.get_blocking("balances", "ann", value=int, timeout=1) == 7
        asked.clear()
        first = threads.submit(client.get_blocking, "balances", "ann", value=int, timeout=20)
        assert asked.wait(20)
        assert client.get_blocking("balances", "ann", value=int, timeout=20) == 7
        assert len(owner.limits) == 3, "a second read asks while the first one waits"
        held.set()
        assert first.result(20) == 7


class Requests:
    """In place of the Kafka producer: keeps the headers of what was sent, and may be full."""

    def __init__(self) -> None:
        self.sent: list[dict[str, bytes]] = []
        self.delivered: list[Callable[[int, str], None]] = []
        self.room = threading.Event()
        self.room.set()

    def send(self, *arguments: Any) -> None:
        if not self.room.wait(max(0.0, arguments[-1] - time.monotonic())):
            raise KafkaTrouble("the client's queue is full")
        self.sent.append(dict(arguments[3]))
        self.delivered.append(arguments[4])

    def partitions(self, seconds: float) -> int:
        return PARTITIONS

    def close(self, seconds: float) -> None:
        """It has nothing open."""


class Replies:
    """In place of the Kafka consumer of replies."""

    def __init__(self, *arguments: Any) -> None:
        self.take: Callable[[Reply], None] = arguments[-1]

    def lane(self, partition: int, position: int) -> Any:
        return SimpleNamespace(close=lambda: None)

    def close(self) -> None:
        """It has nothing open."""


@pytest.fixture
def kafka(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> tuple[Requests, list[Replies]]:
    """Return the producer of the test's client, and its readers of replies."""
    owned(lambda _: as_json({}))
    requests, readers = Requests(), list[Replies]()
    monkeypatch.setattr(asking, "RequestProducer", lambda *_: requests)

    def reader(*given: Any) -> Replies:
        readers.append(Replies(*given))
        return readers[-1]

    monkeypatch.setattr(asking, "ReplyFeed", reader)
    return requests, readers


Kafka = tuple[Requests, list[Replies]]


def test_a_request_in_progress_gets_an_error_when_its_client_closes(kafka: Kafka) -> None:
    async def ask() -> None:
        client = Client("s", Settings())
        request = asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=20))
        while not kafka[0].sent:
            await asyncio.sleep(0.001)
        client.close()
        with pytest.raises(NoAnswerInTime, match="the client was closed"):
            await request

    asyncio.run(ask())


def test_a_full_queue_does_not_block_the_event_loop(kafka: Kafka) -> None:
    async def ask() -> None:
        with Client("s", Settings()) as client:
            kafka[0].room.clear()
            request = asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=20))
            while not kafka[1]:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
            assert not request.done()
            kafka[0].room.set()
            while not kafka[0].sent:
                await asyncio.sleep(0.001)
            address = kafka[0].sent[0]["statehold-reply-to"]
            name = kafka[0].sent[0]["statehold-request"].decode()
            kafka[1][0].take(Reply("of another request", address, "answered", 1, b"1"))
            kafka[1][0].take(Reply(name, address, "answered", 1, b"2"))
            assert await request == 2

    asyncio.run(ask())


@pytest.mark.parametrize("call", ["ask", "send"])
def test_a_call_that_is_cancelled_as_its_result_comes_ends_as_cancelled(kafka: Kafka, call: str) -> None:
    """Otherwise a task that asks in a loop would not end, and with it the program that waits for the task."""
    requests, readers = kafka

    async def run() -> None:
        with Client("s", Settings()) as client:
            started: Any = (
                client.ask(b"1", key="ann", reply=int, timeout=20, id="a")
                if call == "ask"
                else client.send(b"1", key="ann", timeout=20)
            )
            task = asyncio.create_task(started)
            while not requests.delivered:
                await asyncio.sleep(0.001)
            requests.delivered[0](0, "")
            if call == "ask":
                readers[0].take(Reply("a", requests.sent[0]["statehold-reply-to"], "answered", 0, b"1"))
            await asyncio.sleep(0)  # the event loop has the result, and the task has not seen it
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())


class Question(msgspec.Struct, frozen=True):
    amount: int


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": None}, UsageError, "key=None: a request needs a key"),
    ({"id": 17}, UsageError, "id=17: an id is text. Nothing was sent. Next: id='17'"),
    ({"id": "a\ud800"}, UsageError, r"id='a\\ud800': no UTF-8 text"),
    ({"id": "x" * 201}, UsageError, "201 characters"),
    ({"reply": 17}, TypeError, "Type '17' is not supported"),
]


@pytest.mark.parametrize(("wrong", "kind", "text"), WRONG)
def test_a_request_that_the_service_could_not_take_is_rejected_before_it_is_sent(
    kafka: Kafka, wrong: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """A request without a key would be written, and fail its partition."""
    given: dict[str, Any] = {"key": "ann", "reply": int, "timeout": 0.5} | wrong
    with Client("s", Settings()) as client:
        with pytest.raises(kind, match=text):
            client.ask_blocking(b"1", **given)
        with pytest.raises(kind, match=text):
            asyncio.run(client.ask(b"1", **given))
    assert kafka[0].sent == []


def test_a_client_with_too_many_requests_sends_no_further_one(kafka: Kafka) -> None:
    async def ask() -> None:
        with Client("s", Settings(), in_flight=2) as client:
            first, second = (asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=20)) for _ in range(2))
            while len(kafka[0].sent) < 2:
                await asyncio.sleep(0.001)
            with pytest.raises(TooManyRequests, match=r"2 requests of this client wait .* Nothing was sent") as many:
                await client.ask(b"1", key="ann", reply=int, timeout=20)
            assert status_of(many.value) == (429, {"Retry-After": "1"})
            first.cancel()
            await asyncio.wait([first])
            third = asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=20))
            while len(kafka[0].sent) < 3:
                await asyncio.sleep(0.001)
        for each in (second, third):
            with pytest.raises(NoAnswerInTime):
                await each

    asyncio.run(ask())


@pytest.mark.parametrize(
    "timeout",
    [None, "5", b"5", -1, -0.001, float("nan"), float("inf"), 10**400, 1j, 604_801, timedelta(seconds=5), [5]],
    ids=str,
)
def test_a_timeout_that_is_none_is_rejected_by_every_call(kafka: Kafka, timeout: Any) -> None:
    with Client("s", Settings()) as client:
        calls: list[partial[Any]] = [
            partial(client.ask, b"1", key="ann", reply=int),
            partial(client.ask_with_receipt, b"1", key="ann", reply=int),
            partial(client.send, b"1", key="ann"),
            partial(client.get, "balances", "ann", value=int),
            partial(client.get_many, "balances", ["ann"], value=int),
            partial(client.get_range, "balances", value=int),
        ]
        blocking = [
            partial(getattr(client, f"{each.func.__name__}_blocking"), *each.args, **each.keywords) for each in calls
        ]
        text = r"timeout=.*give the seconds after which the call ends, from 0 to 604800 \(a week\). Nothing was sent"
        for call in calls:
            with pytest.raises(UsageError, match=text):
                asyncio.run(call(timeout=timeout))
        for call in blocking:
            with pytest.raises(UsageError, match=text):
                call(timeout=timeout)
    assert kafka[0].sent == []


@pytest.mark.parametrize("max_age", [None, "5", -1, float("nan"), timedelta(seconds=5)], ids=str)
def test_an_age_that_is_none_is_rejected_by_every_read(kafka: Kafka, max_age: Any) -> None:
    text = r"max_age=.*give the seconds that a standby replica may be old, .* Nothing was read"
    with Client("s", Settings()) as client:
        reads: list[partial[Any]] = [
            partial(client.get, "balances", "ann", value=int),
            partial(client.get_many, "balances", ["ann"], value=int),
            partial(client.get_range, "balances", value=int),
        ]
        for read in reads:
            with pytest.raises(UsageError, match=text):
                asyncio.run(read(max_age=max_age))
            with pytest.raises(UsageError, match=text):
                getattr(client, f"{read.func.__name__}_blocking")(*read.args, **read.keywords, max_age=max_age)


@pytest.mark.parametrize("most", [0, -1, "10", None, 2.5])
def test_a_client_without_a_place_for_a_request_is_rejected(most: Any) -> None:
    with pytest.raises(UsageError, match=r"in_flight=.*: give the most requests without an answer, 1 or more"):
        Client("s", Settings(), in_flight=most)


def test_a_read_of_this_process_needs_no_time(kafka: Kafka) -> None:
    here: Any = SimpleNamespace(values=lambda _, keys, *rest: [7] * len(keys), page=lambda *_: RowPage([], False, ""))
    with Client("s", Settings(), here=here) as client:
        client.get_blocking("balances", "ann", value=int)  # counts the partitions
        assert client.get_blocking("balances", "ann", value=int, timeout=0) == 7
        assert client.get_many_blocking("balances", ["ann"], value=int, timeout=0) == {"ann": 7}
        assert client.get_range_blocking("balances", value=int, timeout=0).rows == []


@pytest.mark.parametrize("timeout", [604_800, 604_800.0, 86_400])
def test_a_timeout_of_days_waits_for_the_answer(kafka: Kafka, timeout: float) -> None:
    async def ask() -> None:
        with Client("s", Settings()) as client:
            request = asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=timeout, id="a"))
            while not kafka[0].sent:
                await asyncio.sleep(0.001)
            kafka[1][0].take(Reply("a", kafka[0].sent[0]["statehold-reply-to"], "answered", 1, b"7"))
            assert await request == 7

    asyncio.run(ask())


def test_the_text_of_a_receipt_is_no_receipt(owned: Owned) -> None:
    owned(lambda _: as_json({"value": 7, "partition": 0}))
    with Client("s", Settings()) as client:
        after: Any = "1:7"
        for read in (
            partial(client.get_blocking, "balances", "ann", value=int),
            partial(client.get_many_blocking, "balances", ["ann"], value=int),
            partial(client.get_range_blocking, "balances", value=int),
        ):
            with pytest.raises(UsageError, match=r"after='1:7': give what `send`"):
                read(after=after)


@pytest.mark.parametrize(("kind", "value"), [(int, 1.5), (str, 7), (Question, {"amount": 1}), (Question, None)])
def test_a_value_of_another_type_than_the_client_declares_is_not_sent(kafka: Kafka, kind: Any, value: Any) -> None:
    with Client("s", Settings(), value=kind) as client:
        with pytest.raises(UsageError, match=r"is of type .* the client is declared with value="):
            client.ask_blocking(value, key="ann", reply=int)
        with pytest.raises(UsageError, match="Nothing was sent"):
            client.send_blocking(value, key="ann")
    assert kafka[0].sent == []


def test_an_answer_of_another_type_names_its_request(kafka: Kafka) -> None:
    async def ask() -> None:
        with Client("s", Settings()) as client:
            request = asyncio.create_task(client.ask(b"1", key="ann", reply=list[int], timeout=20, id="order-17"))
            while not kafka[0].sent:
                await asyncio.sleep(0.001)
            kafka[1][0].take(Reply("order-17", kafka[0].sent[0]["statehold-reply-to"], "answered", 1, b'"x"'))
            with pytest.raises(NotAnswered, match=r"another type .* id='order-17'"):
                await request

    asyncio.run(ask())


class Both:
    """A service and its client; the client cannot close."""

    def __init__(self) -> None:
        self.stopped = False

    def start(self) -> None:
        """It starts."""

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        raise RuntimeError("the client cannot close")


def test_a_service_stops_although_its_client_cannot_close() -> None:
    both: Any = Both()

    async def run() -> None:
        async with lifespan(both, both)(None) as state:
            request: Any = SimpleNamespace(state=SimpleNamespace(**state))
            assert client_of(request) is both

    with pytest.raises(RuntimeError, match="cannot close"):
        asyncio.run(run())
    assert both.stopped


def test_a_route_without_the_lifespan_names_what_is_missing() -> None:
    from starlette.datastructures import State

    with pytest.raises(
        RuntimeError, match=r"runs without `lifespan`. Next: FastAPI\(lifespan=lifespan\(service, client"
    ):
        client_of(cast("Any", SimpleNamespace(state=State())))


def test_a_rejected_record_is_no_outage() -> None:
    assert status_of(MessageRefused("too large")) == (400, {})
    assert status_of(KafkaTrouble("away"))[0] == 503


@pytest.mark.parametrize("call", ["ask", "send", "get"])
def test_brokers_that_are_away_are_named_within_the_time_with_what_to_check(call: str) -> None:
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    with Client("payments", settings) as client:
        calls: dict[str, Callable[[], object]] = {
            "ask": lambda: client.ask_blocking(b"x", key="ann", reply=bytes, timeout=0.2),
            "send": lambda: client.send_blocking(b"x", key="ann", timeout=0.2),
            "get": lambda: client.get_blocking("balances", "ann", value=int, timeout=0.2),
        }
        with pytest.raises(
            KafkaTrouble, match=r"127\.0\.0\.1:1: ask for payments: .*Next: check kafka\.bootstrap_servers"
        ):
            calls[call]()


def test_an_application_streams_a_bounded_number_of_watches() -> None:
    """Each watch has a thread and a Kafka consumer; a stream that ends, or is never sent, makes room."""
    ending = asyncio.Event()

    async def changes() -> AsyncGenerator[Any, None]:
        await ending.wait()
        for each in list[Any]():
            yield each

    async def read(response: Any) -> None:
        async for _ in response.body_iterator:
            pass

    async def run() -> None:
        streams = [stream_changes(changes(), most=2) for _ in range(2)]
        reading = [asyncio.ensure_future(read(each)) for each in streams]
        refused = stream_changes(changes(), most=2)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert b"2 watches are open here" in refused.body
        ending.set()
        await asyncio.gather(*reading)
        unsent = [stream_changes(changes(), most=2) for _ in range(2)]
        assert stream_changes(changes(), most=2).status_code == 503
        del unsent
        gc.collect()
        assert stream_changes(changes(), most=2).status_code == 200

    asyncio.run(run())
