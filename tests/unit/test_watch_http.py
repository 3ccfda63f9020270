"""Watches over HTTP: events with positions as ids, their rights and bounds, readers that are slow or gone."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.support.handlers import Accounts, Op
from tests.support.processes import await_true

from statehold import Service, Table
from statehold.client import watching
from statehold.config import Secret, Settings
from statehold.config.sections.ops import OpsSettings
from statehold.errors import KafkaTrouble
from statehold.ops.http import bounded_server, watch
from statehold.ops.http.asgi import OpsApplication
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.routes import Routes
from statehold.ops.http.server import OpsServer
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.testing.memory.clients import StableMemoryReader
from statehold.watch import watcher
from statehold.watch.events import as_event
from statehold.watch.position import WatchedTo

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
SETTINGS = Settings(ops=OpsSettings(state="on", token=Secret(TOKEN)))


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


class Stream:
    """A reader of a stream."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", **headers})
        self.answer = self.connection.getresponse()

    def event(self) -> Event | None:
        """Return the next event; None at the end."""
        fields: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, fields_value = line.partition(": ")
            fields[name] = fields_value
        return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"])) if fields else None

    def changes(self, count: int) -> list[Event]:
        found: list[Event] = []
        while len(found) < count:
            event = self.event()
            assert event is not None
            found += [event] if event.kind == "change" else []
        return found

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


class Watching:
    """A service on a broker in memory, and the ops server that has its streams."""

    def __init__(self, driver: Driver, settings: Settings) -> None:
        self.driver = driver
        self.service = Service("accounts", input="input", handler=Accounts, settings=settings)
        overview: Any = SimpleNamespace(partitions=1, with_ends=lambda found: found)
        self.service.overview = overview
        self.routes = Routes(self.service, RequestGuard(settings.ops, exposed=False))
        self.server = BoundedServer(("127.0.0.1", 0), self.routes.answer)
        self.server.begin("ops")
        self.streams: list[Stream] = []

    def feed(self, *names: str, size: int = 0) -> None:
        self.driver.feed_all([Op(name, 1, size=size) for name in names], key="k")
        self.driver.commit()

    def open(self, path: str = "/watch/balances", **headers: str) -> Stream:
        self.streams.append(Stream(self.server.server_port, path, **headers))
        return self.streams[-1]

    def trouble(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        """Let the first looks fail."""
        monkeypatch.setattr(watcher, "_AGAIN", 0.01)
        failing = iter([True] * times)

        def make(*_: Any, **__: Any) -> StableMemoryReader:
            if next(failing, False):
                raise KafkaTrouble("no broker answers")
            return StableMemoryReader(self.driver.broker, lambda: False)

        monkeypatch.setattr(watching, "CommittedReader", make)

    @property
    def opened(self) -> float:
        """How many streams have begun."""
        return self._value(metrics.WATCHES_OPENED)

    @property
    def left(self) -> float:
        """How many streams have ended."""
        return self._value(metrics.WATCHES_ENDED)

    def _value(self, metric: Any) -> float:
        samples = [sample for family in self.service.metrics.collect() for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == metric.name)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.server.end()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    driver = Driver(Accounts)
    monkeypatch.setattr(watch, "Admin", lambda *_: None)
    monkeypatch.setattr(watching, "CommittedReader", lambda *_, **__: StableMemoryReader(driver.broker, lambda: False))
    monkeypatch.setattr(watch, "_QUIET", 0.05)
    found = Watching(driver, SETTINGS)
    found.feed("ann")
    yield found
    found.close()


def test_changes_are_events_and_a_stream_continues_by_the_last_id(watched: Watching) -> None:
    first = watched.open()
    assert (first.answer.status, first.answer.headers["Content-Type"]) == (200, "text/event-stream")
    begun, record = first.event(), watched.driver.commit_record()
    assert begun == Event("position", WatchedTo.of(record).text(0), {})
    watched.feed("bob", "cyd")
    bob, cyd = first.changes(2)
    record = watched.driver.commit_record()
    assert bob.data == {
        "key": "bob", "value": {"total": 1, "entries": 1, "ballast": ""}, "deleted": False, "partition": 0,
        "transaction": record.n, "offsets": {"input": 3}, "time": record.time, "last": False,
    }  # fmt: skip
    assert (cyd.data["key"], cyd.data["last"], cyd.id) == ("cyd", True, WatchedTo.of(record).text(0))
    for again in (watched.open(**{"Last-Event-ID": bob.id}), watched.open(f"/watch/balances?after={bob.id}")):
        assert again.changes(1) == [cyd]
    some = watched.open("/watch/balances?prefix=DE-&partition=0")
    some.event()
    watched.feed("eve", "DE-1")
    assert [each.data["key"] for each in some.changes(1)] == ["DE-1"]


def test_a_stream_that_cannot_begin_says_why(watched: Watching) -> None:
    generation = watched.driver.commit_record().lineage[:8]
    for path, status, word in (
        ("/watch/balance", 404, "there are balances"),
        ("/watch/balances?after=x", 400, "is no position of a watch"),
        ("/watch/balances?partition=7", 400, "the input has 1 partitions"),
        ("/watch/balances?after=0:99:abc", 410, "its newest transaction is 1"),
        (f"/watch/balances?after=0:1:{generation[::-1]}", 410, "of another state"),
    ):
        answer = watched.open(path).answer
        assert (answer.status, word in answer.read().decode()) == (status, True), path
    assert (watched.opened, watched.left) == (0, 0)
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        assert watched.open(**headers).answer.status == 401


def test_a_browser_that_comes_back_to_its_first_address_continues_by_its_last_id(watched: Watching) -> None:
    first = watched.open()
    page = first.event()
    assert page is not None
    watched.feed("bob", "cyd")
    bob, cyd = first.changes(2)
    again = watched.open(f"/watch/balances?after={page.id}", **{"Last-Event-ID": bob.id})
    assert again.changes(1) == [cyd]


def test_trouble_at_the_beginning_sends_no_empty_id(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.trouble(monkeypatch, times=3)
    assert watched.open().event() == Event("position", WatchedTo.of(watched.driver.commit_record()).text(0), {})


def test_trouble_that_stays_is_no_stream(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.trouble(monkeypatch, times=1_000_000)
    monkeypatch.setattr(watcher, "PATIENCE", 0.1)
    answer = watched.open().answer
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert b"no broker answers" in answer.read()
    assert (watched.opened, watched.left) == (0, 0)


def test_an_event_without_a_position_has_no_id() -> None:
    assert as_event("end", "", {"error": "why"}) == b'event: end\ndata: {"error":"why"}\n\n'
    assert as_event("end", "0:1:ab", {}) == b"id: 0:1:ab\nevent: end\ndata: {}\n\n"


def test_a_question_for_the_head_takes_no_place(watched: Watching) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", watched.server.server_port, timeout=20)
    connection.request("HEAD", "/watch/balances", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"], answer.read()) == (200, "text/event-stream", b"")
    connection.close()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(OpsApplication(watched.service)(scope_of("HEAD"), never, send), 10))
    assert (sent[0]["status"], sent[1:]) == (200, [{"type": "http.response.body", "body": b""}])
    assert watched.opened == 0


def test_a_mounted_request_that_is_cancelled_at_its_beginning_gives_its_place_back(
    watched: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = OpsApplication(watched.service)
    looking, cancelled = threading.Semaphore(0), threading.Event()

    def make(*_: Any, **__: Any) -> StableMemoryReader:
        looking.release()
        assert cancelled.wait(10)
        return StableMemoryReader(watched.driver.broker, lambda: False)

    async def send(_: Any) -> None: ...

    async def cancel_all() -> None:
        begun = [asyncio.ensure_future(application(scope_of("GET"), never, send)) for _ in range(watch.MOST)]
        for _ in begun:
            await asyncio.to_thread(looking.acquire, timeout=10)
        for each in begun:
            each.cancel()
        await asyncio.wait(begun)
        cancelled.set()

    monkeypatch.setattr(watching, "CommittedReader", make)
    asyncio.run(cancel_all())
    await_true(lambda: watched.left == watch.MOST, "all streams have ended")


def scope_of(method: str) -> dict[str, Any]:
    return {
        "type": "http", "method": method, "path": "/watch/balances", "query_string": b"", "root_path": "",
        "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
    }  # fmt: skip


async def never() -> Any:
    await asyncio.Event().wait()


def test_a_table_of_a_new_release_can_be_watched_before_its_first_commit(
    watched: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Next(Accounts):
        added = Table(key=str, value=int)

    monkeypatch.setattr(watched.service, "handler", Next)
    stream = watched.open("/watch/added")
    assert stream.event() == Event("position", WatchedTo.of(watched.driver.commit_record()).text(0), {})


def test_a_position_of_many_partitions_fits_a_query(watched: Watching) -> None:
    position = WatchedTo.of(watched.driver.commit_record()).text(0)
    for kept in range(1, 2000):
        position += f"%2C{kept}%3A123456789%3A1f3a0c2e"
    stream = watched.open(f"/watch/balances?after={position}")
    assert stream.answer.status == 200
    assert watched.open(f"/watch/{'a' * 5000}").answer.status == 414
    assert watched.open(f"/watch/balances?after={'1' * 60_000}").answer.status == 414


def test_a_watch_has_the_rights_of_a_query(watched: Watching) -> None:
    closed = Watching(watched.driver, replace(SETTINGS, ops=OpsSettings(state="off", token=Secret(TOKEN))))
    try:
        answer = closed.open().answer
        assert (answer.status, b"state queries are off" in answer.read()) == (404, True)
    finally:
        closed.close()


def test_a_few_streams_are_open_and_readers_that_leave_make_room(watched: Watching) -> None:
    for _ in range(watch.MOST):
        assert watched.open().answer.status == 200
    refused = watched.open().answer
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    watched.streams[0].close()
    await_true(lambda: watched.left == 1, "the stream of the reader that left has ended")
    assert watched.open().answer.status == 200


def test_a_slow_reader_gets_a_last_event_and_continues(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SLOW", -1.0)
    stream = watched.open()
    begun, end = stream.event(), stream.event()
    assert begun is not None
    assert end == Event("end", begun.id, {"error": "the reader is too slow; continue by the last id"})
    assert stream.event() is None
    watched.feed("bob")
    assert [each.data["key"] for each in watched.open(**{"Last-Event-ID": end.id}).changes(1)] == ["bob"]


def test_streams_end_soon_when_the_service_stops(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = watched.open()
    begun = stream.event()
    assert begun is not None
    monkeypatch.setattr(Service, "stopping", True)
    ends = [event for event in iter(stream.event, None) if event.kind == "end"]
    assert ends == [Event("end", begun.id, {"error": "this instance stops; continue by the last id elsewhere"})]
    await_true(lambda: watched.left == 1, "its stream has ended")
    refused = watched.open().answer
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert b"ask another instance" in refused.read()


def test_streams_end_soon_when_the_ops_server_closes(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads and Kafka clients go with it; they would live until the next event finds no reader."""
    monkeypatch.setattr(watch, "_QUIET", 3600.0)
    server = OpsServer(watched.service)
    stream = Stream(int(server.open().rpartition(":")[2]), "/watch/balances")
    assert stream.event() is not None
    server.close()
    await_true(lambda: watched.left == 1, "the stream has ended")
    stream.close()


def test_a_reader_that_takes_nothing_is_cut_off(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "_PATIENCE", 0.5)
    stream = watched.open()
    stream.event()
    for _ in range(20):
        watched.feed("bob", size=700_000)
    await_true(lambda: watched.left == 1, "its stream has ended")


def test_a_position_that_is_lost_ends_a_stream_with_its_cause(watched: Watching) -> None:
    stream = watched.open()
    stream.event()
    log = watched.driver.broker.log(watched.driver.names.changelog, 0)
    log.append(b"not of statehold")
    events = iter(stream.event, None)
    end = next(event for event in events if event.kind == "end")
    assert end.data["error"].startswith("DamagedIncrement: ")


def test_a_mounted_application_streams_until_its_reader_is_gone(watched: Watching) -> None:
    application = OpsApplication(watched.service)
    sent: list[Any] = []

    async def run(enough: Callable[[], bool]) -> None:
        gone = asyncio.Event()

        async def receive() -> Any:
            if sent:
                await gone.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)
            if enough():
                gone.set()

        await application(scope_of("GET"), receive, send)

    asyncio.run(run(lambda: len(sent) == 4))
    assert (sent[0]["status"], b"event: position" in sent[1]["body"]) == (200, True)
    assert all(message["more_body"] for message in sent[1:])
    await_true(lambda: watched.left == 1, "its stream has ended")


def test_a_mounted_stream_that_is_cancelled_as_its_reader_takes_a_piece_ends(watched: Watching) -> None:
    """A server that stops cancels its requests once."""
    application = OpsApplication(watched.service)
    taking, taken = asyncio.Event(), []

    async def send(message: Any) -> None:
        if "body" in message:
            await taking.wait()
            taken.append(message)

    async def run() -> None:
        request = asyncio.ensure_future(application(scope_of("GET"), never, send))
        taking.set()
        while not taken:
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request], timeout=20)
        assert request.cancelled()

    asyncio.run(run())
