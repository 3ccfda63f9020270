"""An ask that waits learns early that its partition has failed or is paused, from the owner's own status."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.unit.test_service_client import PARTITIONS, Kafka, Owned, Requests, kafka, owned

from statehold import Client
from statehold.asgi import status_of
from statehold.client import asking
from statehold.client.asking import OpenRequests, RequestInProgress
from statehold.client.owner_reads import OwnerReads, PartitionState
from statehold.client.stopped_partitions import StoppedPartitions
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import Settings, load
from statehold.errors import NoAnswerInTime, PartitionStopped
from statehold.messages.request import Reply
from statehold.ops.http.answers import HttpAnswer, HttpRequest, as_json

__all__ = ["kafka", "owned"]
HOME = murmur2(b"ann", PARTITIONS)
FAILED = {"phase": "failed", "error": "HandlerFailed", "cause": "payments[0]@7: no", "since": 1_750_000_000.0}
PAUSED = {"phase": "live", "paused": "ops@desk", "position": 7, "since": 1.0}


def status(**partition: Any) -> dict[str, Any]:
    return {"service": "s", "partitions": [{"partition": HOME, **partition}]}


class Acknowledged(Requests):
    """Kafka has each record at once, at offset 7."""

    def send(self, *arguments: Any) -> None:
        super().send(*arguments)
        arguments[4](7, "")


@pytest.fixture
def sent(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Acknowledged:
    producer = Acknowledged()
    monkeypatch.setattr(asking, "RequestProducer", lambda *_: producer)
    return producer


def test_an_ask_to_a_failed_partition_ends_early_and_names_the_cause(owned: Owned, sent: Acknowledged) -> None:
    asked: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpAnswer:
        asked.append(request)
        return as_json(status(**FAILED))

    owned(answer)
    settings = load(env={"STATEHOLD_OPS__TOKEN": "a-token-of-this-test"})
    with Client("s", settings) as client, pytest.raises(PartitionStopped) as stopped:
        client.ask_blocking(b"1", key="ann", reply=int, id="order-17", timeout=60)
    error = stopped.value
    assert (error.id, error.topic, error.partition, error.offset) == ("order-17", "s", HOME, 7)
    assert (error.error, error.cause, error.since) == ("HandlerFailed", FAILED["cause"], FAILED["since"])
    for text in (f"s[{HOME}]@7", "has failed since 2025-06-15T", "HandlerFailed: payments[0]@7: no", "is written"):
        assert text in str(error)
    for text in (f"Next: `statehold retry {HOME} --name s`", "id='order-17'"):
        assert text in str(error)
    assert status_of(error) == (503, {"Retry-After": "1"})
    assert {request.path for request in asked} == {"/status"}
    assert asked[0].headers["authorization"] == "Bearer a-token-of-this-test"


def test_a_paused_partition_and_the_event_loop_is_never_blocked(owned: Owned, sent: Acknowledged) -> None:
    held, looked = threading.Event(), threading.Event()

    def answer(_: HttpRequest) -> HttpAnswer:
        looked.set()
        held.wait(60)
        return as_json(status(**PAUSED))

    owned(answer)

    async def ask() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        with Client("s", Settings()) as client:
            request = asyncio.create_task(client.ask(b"1", key="ann", reply=int, timeout=60))
            while not looked.is_set():
                await asyncio.sleep(0.001)
            assert not request.done()
            held.set()
            with pytest.raises(PartitionStopped, match=r"is paused by ops@desk.*`statehold resume --name s"):
                await request

    asyncio.run(ask())


def test_a_reply_that_comes_while_the_owner_is_asked_counts(owned: Owned, kafka: Kafka, sent: Acknowledged) -> None:
    def answer(_: HttpRequest) -> HttpAnswer:
        kafka[1][0].take(Reply("1", sent.sent[0]["statehold-reply-to"], "answered", 7, b"2"))
        return as_json(status(**FAILED))

    owned(answer)
    with Client("s", Settings()) as client:
        assert client.ask_blocking(b"1", key="ann", reply=int, id="1", timeout=60) == 2


def reads_of(owner: Any) -> OwnerReads:
    settings, names = Settings(), Names("s", "s")
    return OwnerReads(settings, names, owner.admin, OpenRequests(settings, names, 100))


@pytest.mark.parametrize(
    "said",
    [
        as_json(status(phase="live", position=7)),
        as_json(status(phase="restoring")),
        as_json(status(phase="failed", error="Fenced", cause="a newer owner")),
        as_json({**status(**FAILED), "service": "another"}),
        as_json({"service": "s", "partitions": [{"partition": 1 - HOME, **FAILED}]}),
        as_json({"error": "send the token"}, 401),
        HttpAnswer(200, b"<html>log in</html>"),
        as_json(status(phase=7)),
    ],
    ids=["live", "restoring", "moving", "another service", "another partition", "no token", "no JSON", "another type"],
)
def test_an_owner_that_names_no_stop_changes_nothing(owned: Owned, said: HttpAnswer) -> None:
    owner = owned(lambda _: said)
    reads = reads_of(owner)
    state = reads.state_of(HOME, time.monotonic() + 20)
    assert state is None or not state.stopped
    assert reads.state_of(PARTITIONS, time.monotonic() + 20) is None, "no member owns it"
    reads.close()


def test_an_owner_that_hangs_or_is_gone_says_nothing(owned: Owned) -> None:
    held = threading.Event()

    def answer(_: HttpRequest) -> HttpAnswer:
        held.wait(60)
        return as_json(status(**FAILED))

    owner = owned(answer)
    reads = reads_of(owner)
    assert reads.state_of(HOME, time.monotonic() + 0.05) is None
    held.set()
    owner.url = "http://127.0.0.1:1"
    reads = reads_of(owner)
    assert reads.state_of(HOME, time.monotonic() + 20) is None


# Whom it asks about what, and when


class Waiting:
    """Requests in progress, and an owner that gives these answers."""

    def __init__(self, state: PartitionState | None) -> None:
        self.requests: list[RequestInProgress] = []
        self.state, self.looks = state, list[int]()
        self.stopped = StoppedPartitions(Names("s", "s"), lambda: self.requests, self.look)

    def look(self, partition: int, until: float) -> PartitionState | None:
        self.looks.append(partition)
        return self.state

    def ask(self, partition: int, *, began: float, offset: int = 7) -> RequestInProgress:
        request = RequestInProgress("s", partition, "1")
        request.began, request.where["offset"] = began, offset
        self.requests.append(request)
        return request


STOPPED = PartitionState(partition=0, phase="failed")


def test_only_requests_that_wait_and_that_kafka_has_are_looked_for() -> None:
    waiting = Waiting(STOPPED)
    young, unwritten = waiting.ask(0, began=100.0), waiting.ask(1, began=0.0, offset=-1)
    waiting.stopped.turn(100.9)
    assert waiting.looks == []
    waiting.stopped.turn(101.0)
    assert waiting.looks == [0]
    assert (young.reply.done(), unwritten.reply.done()) == (True, False)


def test_many_requests_of_a_partition_are_one_look_and_the_next_one_is_rare() -> None:
    waiting = Waiting(PartitionState(partition=0, phase="live"))
    for _ in range(100):
        waiting.ask(0, began=0.0)
    for now in (2.0, 2.5, 3.0, 6.9):
        waiting.stopped.turn(now)
    assert waiting.looks == [0]
    waiting.stopped.turn(7.0)
    assert waiting.looks == [0, 0]
    assert not any(each.reply.done() for each in waiting.requests)


def test_a_request_before_the_position_was_handled_and_waits_for_its_reply() -> None:
    waiting = Waiting(PartitionState(partition=0, phase="live", paused="me", position=8))
    before, behind = waiting.ask(0, began=0.0, offset=7), waiting.ask(0, began=0.0, offset=8)
    waiting.stopped.turn(2.0)
    assert (before.reply.done(), behind.reply.done()) == (False, True)


def test_a_look_that_raises_does_not_end_the_looks() -> None:
    looks: list[int] = []

    def look(partition: int, until: float) -> PartitionState | None:
        looks.append(partition)
        if len(looks) == 1:
            raise RuntimeError("a bug")
        return STOPPED

    request = RequestInProgress("s", 0, "1")
    request.began, request.where["offset"] = time.monotonic() - 60, 7
    stopped = StoppedPartitions(Names("s", "s"), lambda: [request], look)
    stopped.begin()
    try:
        with pytest.raises(PartitionStopped):
            request.reply.result(60)
    finally:
        stopped.close()
    assert looks == [0, 0]


def test_a_client_that_closes_ends_its_looks(owned: Owned, sent: Acknowledged) -> None:
    owned(lambda _: as_json(status(phase="live")))
    client = Client("s", Settings())
    with pytest.raises(NoAnswerInTime):
        client.ask_blocking(b"1", key="ann", reply=int, timeout=0.1)
    named = [each for each in threading.enumerate() if each.name == "client-owners"]
    client.close()
    assert named
    assert not any(each.is_alive() for each in named)
